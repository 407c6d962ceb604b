"""Trains the learnt layers of the detector anew: `python -m compeer.safety.training`.

    python -m compeer.safety.training                        # from the packaged texts, into the package
    python -m compeer.safety.training --texts mine --to here # with a service's own texts (*.txt) beside them

Texts are split into five folds by seed. The weighted phrases are learnt five times, each time without one fold, and
judge it; then from all. MiniLM's changes are learnt without the first fold, once for each of `MEMBERS`; on that fold
it is then learnt how the members' mean and the phrases' word are joined. Where it begins to count is set so that, of
the harmless texts held out, a small share is taken for danger: `FALSE_ALARMS`, chosen by reading the alarms on
corpora of real conversations. The same texts and seed on the same machine give the same bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compeer.progress import console
from compeer.safety.classifier import FILE as CLASSIFIER
from compeer.safety.classifier import as_text, heads, join, stored_members
from compeer.safety.encoder import Encoder
from compeer.safety.phrases import FILE as PHRASES
from compeer.safety.training import encoder, phrases
from compeer.safety.training.texts import (
    Text,
    everyday_texts,
    held_out,
    made_longer,
    numbered,
    packaged_folder,
    read_texts,
)
from compeer.safety.weights import Arrays, write_weights
from compeer.statistics import Numbers

SEED = 1
MEMBERS = (1, 3)
"""Seeds from which MiniLM's changes are learnt; more than two would take a seeker's message too long."""
THREADS = 2
"""Threads that torch uses; with another number sums come out otherwise in the last digits."""
FOLDS = 5
FALSE_ALARMS = {"en phrases": 0.01, "zh phrases": 0.07, "classifier": 0.01}
"""Shares of the harmless texts, held out, that may count as danger."""
FALSE_CRISES = {"en phrases": 0.05, "zh phrases": 0.05, "classifier": 0.015}
"""Shares of the texts that are no crisis, held out, that may count as one."""


def train(folders: Sequence[Path], to: Path) -> None:
    """Learns from the texts of the folders and the sample corpus, and writes the weights."""
    texts = numbered([*dict.fromkeys(text for folder in folders for text in read_texts(folder)), *everyday_texts()])
    stored: Arrays = {}
    held: dict[str, Numbers] = {}
    for language in ("en", "zh"):
        own = [text for text in texts if text.language == language]
        arrays, held[language] = train_phrases(own, language)
        stored.update(arrays)
    to.mkdir(parents=True, exist_ok=True)
    _say(f"weighted phrases: {write_weights(PHRASES, stored, to) / 1000:.0f} kB")
    arrays = train_classifier([text for text in texts if text.language == "en"], held["en"])
    _say(f"classifier: {write_weights(CLASSIFIER, arrays, to) / 1000:.0f} kB")


def train_phrases(texts: Sequence[Text], language: str) -> tuple[Arrays, Numbers]:
    """The phrases' arrays of a language, and the log-odds of each text from phrases that were learnt without it."""
    folds = held_out(texts, SEED, FOLDS)
    odds = np.zeros((len(texts), 2))
    for fold in range(FOLDS):
        learnt = _where(texts, folds != fold)
        arrays = phrases.fit(learnt, made_longer(learnt, SEED), language)
        odds[folds == fold] = phrases.odds(_where(texts, folds == fold), language, arrays)
    arrays = phrases.fit(texts, made_longer(texts, SEED), language)
    bounds = _bounds(f"{language} phrases", texts, odds)
    biases = arrays[f"{language}_biases"].astype(np.float32)
    biases[:2] -= bounds
    arrays[f"{language}_biases"] = biases
    return arrays, odds - bounds


def train_classifier(texts: Sequence[Text], phrases_odds: Numbers) -> Arrays:
    """The classifier's arrays."""
    from sklearn.linear_model import LogisticRegression

    folds = held_out(texts, SEED, FOLDS)
    learnt = [encoder.fit(_where(texts, folds != 0), seed, _say) for seed in MEMBERS]
    judged, phrases_odds = _where(texts, folds == 0), phrases_odds[folds == 0]
    scores = np.mean([_scores(arrays, judged) for arrays in learnt], axis=0)
    joined = np.zeros((2, 3))
    for column, level in enumerate((("concern", "crisis"), ("crisis",))):
        both = np.stack([scores[:, column], phrases_odds[:, column]], axis=1)
        model = LogisticRegression(C=1.0, class_weight="balanced")
        model.fit(both, [text.level in level for text in judged])
        joined[column] = [*model.coef_[0], model.intercept_[0]]
    joined[:, 2] -= _bounds("classifier", judged, join(scores, phrases_odds, joined))
    return {**stored_members(learnt), "joined": joined.astype(np.float32)}


def _scores(arrays: Arrays, texts: Sequence[Text]) -> Numbers:
    """What one member thinks of some texts."""
    rows = Encoder(arrays).embed([as_text(text.messages) for text in texts])
    return heads(rows.astype(np.float64), arrays["heads"].astype(np.float64))


def _bounds(name: str, texts: Sequence[Text], odds: Numbers) -> Numbers:
    """Where danger and crisis begin to count; says how many of the texts, held out, are found so."""
    danger = np.array([text.level != "none" for text in texts])
    crisis = np.array([text.level == "crisis" for text in texts])
    bounds = np.array(
        [
            np.quantile(odds[~danger, 0], 1 - FALSE_ALARMS[name]),
            np.quantile(odds[~crisis, 1], 1 - FALSE_CRISES[name]),
        ]
    )
    found, grave = odds[:, 0] >= bounds[0], odds[:, 1] >= bounds[1]
    _say(
        f"{name}: of {danger.sum()} texts of danger held out {np.mean(found[danger] | grave[danger]):.3f} are found, "
        f"of {crisis.sum()} of crisis {np.mean(grave[crisis]):.3f} as such; "
        f"{np.mean(found[~danger] | grave[~danger]):.4f} false alarms"
    )
    return bounds


def _where(texts: Sequence[Text], chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[Text]:
    return [text for text, is_chosen in zip(texts, chosen, strict=True) if is_chosen]


def _say(what: str) -> None:
    console.print(f"  {what}", highlight=False)


def main() -> None:
    """Reads the command line."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m compeer.safety.training", description=__doc__)
    parser.add_argument("--texts", type=Path, action="append", default=[], help="a folder of texts of your own")
    parser.add_argument("--to", type=Path, help="where the weights are written; into the package if not given")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    train([packaged_folder(), *options.texts], options.to or packaged_folder().parent / "weights")


if __name__ == "__main__":
    main()
