"""Trains the weighted phrases of replies anew: `python -m compeer.safety.output_training`.

    python -m compeer.safety.output_training                        # from the packaged texts, into the package
    python -m compeer.safety.output_training --texts mine --to here # with a service's own texts (*.txt) beside them
    python -m compeer.safety.output_training --to here --json f.json # how many of the replies held out are rejected

A line of the texts is `category<TAB>the seeker's last message<TAB>reply`, category `-` for a good reply. The supporters
of the sample corpus are good too, and so are the guard's own fixed words. Texts are split into five folds by seed; the
weights are learnt five times, each time without one fold, and judge it; then from all. A reply begins to count as bad
where, of the good replies held out, a small share does: `FALSE_REJECTIONS`. The same texts and seed on the same machine
give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compeer.corpora import read_corpus
from compeer.errors import InputError
from compeer.progress import console
from compeer.safety.output import CATEGORIES, check_rules, plain
from compeer.safety.output_phrases import COLUMNS, FILE, SENTENCE, ReplyPhrases, keys, language_of
from compeer.safety.replies import LANGUAGES, Replies
from compeer.safety.resources import load_resources
from compeer.safety.risk import KINDS
from compeer.safety.training.phrases import sparse
from compeer.safety.training.texts import packaged_folder
from compeer.safety.weights import Arrays, write_weights
from compeer.statistics import Numbers, generator

SEED = 1
FOLDS = 5
STRENGTH = 30.0
"""The inverse of the penalty on the weights (scikit-learn's C)."""
SEEN_IN = 2
"""A feature counts if so many replies have it."""
KEPT = 40_000
"""Features that are kept in each language, those with the greatest weights."""
MADE = 0.5
"""What a reply that was made of others weighs in training, beside one that was written so."""
FALSE_REJECTIONS = {"en": 0.006, "zh": 0.009}
"""Shares of the good replies, held out, that may be rejected; beside what the rules reject."""


@dataclass(frozen=True)
class Reply:
    """A reply, what the seeker wrote before it, and what is wrong with it: a category, or nothing."""

    text: str
    seeker: str
    category: str | None
    source: int = -1
    """Replies of one source are held out together."""

    @property
    def language(self) -> str:
        """By its script."""
        return language_of(plain(self.text))


def read_replies(folder: Path) -> list[Reply]:
    """The labelled replies of all files in a folder, each once; an error names the file and line."""
    if not (paths := sorted(folder.glob("*.txt"))):
        raise InputError("there are no texts (*.txt) in it.", file=folder)
    found: dict[str, Reply] = {}
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                reply = _reply(line, path, number)
                found.setdefault(reply.text, reply)
    return list(found.values())


def _reply(line: str, path: Path, number: int) -> Reply:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != 3 or not fields[2]:
        do = "Write: category, tab, the seeker's last message, tab, reply."
        raise InputError("this is no labelled reply.", file=path, line=number, do=do)
    category, seeker, text = fields
    if category != "-" and category not in CATEGORIES:
        do = f"Write - for a good reply, else one of {', '.join(CATEGORIES)}."
        raise InputError("no such category.", file=path, line=number, field="category", do=do)
    return Reply(text, seeker, None if category == "-" else category)


def everyday_replies() -> list[Reply]:
    """What the supporters of the sample corpus say."""
    found = []
    for dialogue in read_corpus("sample"):
        seeker = ""
        for utterance in dialogue.utterances:
            if utterance.speaker == "seeker":
                seeker = utterance.text
            else:
                found.append(Reply(utterance.text, seeker, None))
    return found


def fixed_replies() -> list[Reply]:
    """The guard's own fixed words, which must pass its check."""
    resources, found = load_resources(), []
    for language in LANGUAGES:
        for place in ("US", "CN", None):
            words = Replies(language, resources, place)
            found += [words.safe(category, turn) for category in (*CATEGORIES, "general") for turn in range(2)]
            found += [words.crisis([kind], earlier, True) for kind in KINDS for earlier in range(4)]
            found += [words.concern(kind) for kind in KINDS]
    return [Reply(text, "", None) for text in dict.fromkeys(found)]


def made_of(replies: Sequence[Reply], seed: int) -> list[Reply]:
    """More replies out of the given: bad ones amid good sentences, good ones joined or cut to a single sentence.

    Of half of them nothing is known of what the seeker wrote, so that it is not leant on too much.
    """
    rng = generator(seed, "replies made of others")
    good = [reply for reply in replies if reply.category is None]
    made = []
    for reply in replies:
        sentences = [sentence.strip() for sentence in SENTENCE.findall(reply.text) if sentence.strip()]
        other = good[int(rng.integers(len(good)))].text
        if reply.category is None and len(sentences) > 1 and rng.random() < 0.6:
            text = sentences[int(rng.integers(len(sentences)))]
        else:
            text = f"{other} {reply.text}" if rng.random() < 0.5 else f"{reply.text} {other}"
        made.append(Reply(text, reply.seeker if rng.random() < 0.5 else "", reply.category, reply.source))
    return made


def train(folders: Sequence[Path], to: Path) -> dict[str, Any]:
    """Learns from the replies of the folders and the sample corpus, and writes the weights; how well it came out."""
    written = dict.fromkeys(reply for folder in folders for reply in read_replies(folder))
    replies = [*written, *everyday_replies(), *fixed_replies()]
    stored: Arrays = {}
    figures = {}
    for language in ("en", "zh"):
        own = [reply for reply in replies if reply.language == language]
        numbered = [Reply(reply.text, reply.seeker, reply.category, number) for number, reply in enumerate(own)]
        arrays, figures[language] = _train(numbered, language)
        stored.update(arrays)
    to.mkdir(parents=True, exist_ok=True)
    _say(f"{write_weights(FILE, stored, to) / 1000:.0f} kB")
    return figures


def _train(replies: Sequence[Reply], language: str) -> tuple[Arrays, dict[str, Any]]:
    odds = held_out_odds(replies, language)
    bad = np.array([reply.category is not None for reply in replies])
    ruled = np.array([check_rules(reply.text, [reply.seeker]) is not None for reply in replies])
    bound = float(np.quantile(odds[~bad & ~ruled], 1 - FALSE_REJECTIONS[language]))
    rejected = (odds >= bound) | ruled
    _say(
        f"{language}: of {bad.sum()} bad replies held out {rejected[bad].mean():.3f} are rejected "
        f"({ruled[bad].mean():.3f} by rules alone), of {(~bad).sum()} good ones {rejected[~bad].mean():.4f}"
    )
    shares: dict[str, float] = {
        category: float(rejected[these].mean())
        for category in CATEGORIES
        if (these := np.array([reply.category == category for reply in replies])).any()
    }
    for category, share in shares.items():
        _say(f"    {category}: {share:.2f}")
    arrays = fit(replies, language)
    arrays[f"{language}_biases"][0] -= bound
    counts = {"bad": int(bad.sum()), "good": int((~bad).sum())}
    shares |= {"bad": float(rejected[bad].mean()), "good": float(rejected[~bad].mean())}
    return arrays, {"rejected": shares, "replies": counts}


def held_out_odds(replies: Sequence[Reply], language: str) -> Numbers:
    """The log-odds of each reply by weights that were learnt without it."""
    folds = generator(SEED, "folds of replies").permutation(len(replies)) % FOLDS
    odds = np.zeros(len(replies))
    for fold in range(FOLDS):
        arrays = fit([reply for reply, own in zip(replies, folds, strict=True) if own != fold], language)
        phrases = ReplyPhrases({**arrays, **_renamed(arrays, language)})
        for place in np.flatnonzero(folds == fold).tolist():
            reply = replies[place]
            odds[place] = phrases.weigh(plain(reply.text), plain(reply.seeker))[0]
    return odds


def _renamed(arrays: Arrays, language: str) -> Arrays:
    """The arrays under the other language's names, so that weights of one language alone can weigh."""
    other = "zh" if language == "en" else "en"
    return {name.replace(language, other, 1): array for name, array in arrays.items()}


def fit(replies: Sequence[Reply], language: str) -> Arrays:
    """The arrays of one language, learnt from replies in it and from those made of them."""
    texts = [*replies, *made_of(replies, SEED)]
    shares = np.array([1.0] * len(replies) + [MADE] * (len(texts) - len(replies)))
    rows = [keys(plain(reply.text), plain(reply.seeker), language) for reply in texts]
    known, counts = np.unique(np.concatenate(rows), return_counts=True)
    known = known[counts >= 2 * SEEN_IN]  # each reply is there twice, or most of it
    matrix = sparse(rows, known)
    bad = np.array([reply.category is not None for reply in texts])
    weights, biases = np.zeros((len(known), len(COLUMNS))), np.full(len(COLUMNS), -20.0)
    weights[:, 0], biases[0] = _two_way(matrix, bad, shares)
    for place, category in enumerate(CATEGORIES, 1):
        truth = np.array([reply.category == category for reply in texts])
        if truth.any():
            weights[:, place], biases[place] = _two_way(matrix[bad], truth[bad], shares[bad])
    kept = np.sort(np.argsort(-np.abs(weights[:, 0]), kind="stable")[:KEPT])
    scales = np.abs(weights[kept]).max(axis=0) / 127 + 1e-12
    return {
        f"{language}_keys": known[kept],
        f"{language}_weights": np.round(weights[kept] / scales).astype(np.int8),
        f"{language}_scales": scales.astype(np.float32),
        f"{language}_biases": biases.astype(np.float32),
    }


def _two_way(matrix: Any, truth: Any, shares: Numbers) -> tuple[Numbers, float]:
    from sklearn.linear_model import LogisticRegression

    if truth.all():
        return np.zeros(matrix.shape[1]), 20.0
    model = LogisticRegression(
        C=STRENGTH, solver="liblinear", dual=True, class_weight="balanced", random_state=0, max_iter=300
    )
    model.fit(matrix, truth, sample_weight=shares)
    return model.coef_[0], float(model.intercept_[0])


def _say(what: str) -> None:
    console.print(f"  {what}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m compeer.safety.output_training", description=__doc__)
    parser.add_argument("--texts", type=Path, action="append", default=[], help="a folder of texts of your own")
    parser.add_argument("--to", type=Path, help="where the weights are written; into the package if not given")
    parser.add_argument("--json", type=Path, help="where the shares of held-out replies that are rejected are written")
    options = parser.parse_args()
    folder = packaged_folder()
    figures = train([folder / "replies", *options.texts], options.to or folder.parent / "weights")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
