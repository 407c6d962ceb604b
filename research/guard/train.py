"""Trains what the guard has learnt: `python research/guard/train.py phrases`, `… reader` and `… replies`.

    python research/guard/train.py reader [--texts mine] [--to here]
    python research/guard/train.py replies [--texts mine] [--to here] [--json f.json]

All write into the package unless `--to` is given. `--texts` adds a folder of a service's own texts (*.txt).

The small reader has weighted phrases, by logistic regression on hashed features, pruned and rounded to a small file;
and, over the rows of the multilingual embedder, a network with one hidden layer. How the two are joined is learnt on
conversations of writers that the network had not met. Where danger and crisis begin to count is a quantile of the
harmless tuning texts: `tune/` and the suite's cases.

The check of replies has the same with replies and their categories. A line of its texts is `category<TAB>the seeker's
last message<TAB>reply`, category `-` for a good reply. The supporters of the sample corpus are good too, and so are the
guard's own fixed words. A reply begins to count as bad where, of the good replies held out, a small share does. The
same texts and seed on the same machine give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from prepare import (
    Reply,
    Text,
    everyday_replies,
    everyday_texts,
    made_longer,
    read_conversations,
    read_replies,
    read_texts,
)

import compeer.safety
from compeer.errors import InputError
from compeer.evaluate.safety import HALVES, cases_path, read_cases
from compeer.io import write_json
from compeer.progress import console
from compeer.safety import output_phrases, reader
from compeer.safety.fixed_replies import LANGUAGES, Replies
from compeer.safety.output import check_rules, plain
from compeer.safety.output_phrases import SENTENCE, ReplyPhrases, keys
from compeer.safety.resources import load_resources
from compeer.safety.risk import CATEGORIES, KINDS
from compeer.safety.weights import Arrays, Keys, WeightTable, norm, read_weights
from compeer.statistics import Numbers, generator

SEED = 1
STRENGTH = 30.0
"""The inverse of the penalty on the weights (scikit-learn's C)."""
KEPT = 40_000
"""Features that are kept in each language, those with the greatest weights."""
LONGER, CONVERSATION = 0.1, 5.0
"""What a text that was made longer weighs in training, and a conversation, beside a text that was written so."""
FOLDS = 5
SAMPLE = 8_000
"""Labelled texts that the network learns from."""
HIDDEN, ROUNDS = 48, 6
FALSE_ALARMS, FALSE_CRISES = 0.08, 0.06
"""Shares of the harmless tuning texts that may count as danger, and of those without crisis that may count as one."""
MADE = 0.5
"""What a reply that was made of others weighs, beside one that was written so."""
FALSE_REJECTIONS = {"en": 0.006, "zh": 0.009}
"""Shares of the good replies, held out, that may be rejected; beside what the rules reject."""
PACKAGE = Path(compeer.safety.__file__).parent
FOLDER = Path(__file__).parent


def write_weights(name: str, arrays: Arrays, folder: Path) -> int:
    """Writes the arrays and their hash, and returns the file's size. The same arrays give the same bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{key: np.asarray(arrays[key]) for key in sorted(arrays)})
    (folder / f"{name}.npz").write_bytes(buffer.getvalue())
    (folder / f"{name}.sha256").write_text(hashlib.sha256(buffer.getvalue()).hexdigest() + "\n", "utf-8")
    return len(buffer.getvalue())


# --- logistic regression on hashed features ---------------------------------------------------------------------------


def fit_table(rows: Sequence[Keys], shares: Numbers, columns: Sequence[tuple[Any, Any]], language: str) -> Arrays:
    """The arrays of a language: a weight a feature and column. A column is (which rows, their truth)."""
    found, counts = np.unique(np.concatenate(rows), return_counts=True)
    found = found[counts >= 2]
    matrix = sparse(rows, found)
    fits = [_two_way(matrix[chosen], truth[chosen], shares[chosen]) for chosen, truth in columns]
    weights, biases = np.stack([fit[0] for fit in fits], axis=1), np.array([fit[1] for fit in fits])
    kept = np.sort(np.argsort(-np.abs(weights[:, :2]).max(axis=1), kind="stable")[:KEPT])
    scales = np.abs(weights[kept]).max(axis=0) / 127 + 1e-12
    return {
        f"{language}_keys": found[kept],
        f"{language}_weights": np.round(weights[kept] / scales).astype(np.int8),
        f"{language}_scales": scales.astype(np.float32),
        f"{language}_biases": biases.astype(np.float32),
    }


def _two_way(matrix: Any, truth: Any, shares: Numbers) -> tuple[Numbers, float]:
    from sklearn.linear_model import LogisticRegression

    if truth.all() or not truth.any():
        return np.zeros(matrix.shape[1]), 20.0 if truth.all() else -20.0
    model = LogisticRegression(
        C=STRENGTH, solver="liblinear", dual=True, class_weight="balanced", random_state=0, max_iter=100, tol=1e-3
    )
    model.fit(matrix, truth, sample_weight=shares)
    return model.coef_[0], float(model.intercept_[0])


def sparse(rows: Sequence[Keys], known: Keys) -> Any:
    """The rows' features as a sparse matrix with a column for each key."""
    from scipy.sparse import csr_matrix

    columns, ends, values = [], [0], []
    for row in rows:
        indices = np.searchsorted(known, row)
        indices[indices == len(known)] = 0
        own = indices[known[indices] == row]
        columns.append(own)
        values.append(np.full(len(own), 1 / norm(len(row))))
        ends.append(ends[-1] + len(own))
    return csr_matrix((np.concatenate(values), np.concatenate(columns), ends), shape=(len(rows), len(known)))


# --- the small reader -------------------------------------------------------------------------------------------------


def fit_phrases(texts: Sequence[Text], language: str) -> Arrays:
    """The weighted phrases of one language."""
    own = [text for text in texts if text.language == language]
    longer = made_longer(own, SEED)
    shares = [CONVERSATION if text.manner else 1.0 for text in own] + [LONGER] * len(longer)
    own = [*own, *longer]
    rows = [reader.features(text.messages, language) for text in own]
    danger, crisis, kinds = _truth(own)
    columns: list[tuple[Any, Any]] = [(slice(None), danger), (slice(None), crisis)]
    columns += [(danger, kinds == kind) for kind in range(len(KINDS))]
    return fit_table(rows, np.array(shares), columns, language)


def _truth(texts: Sequence[Text]) -> tuple[Any, Any, Any]:
    levels = np.array([text.level for text in texts])
    kinds = np.array([KINDS.index(text.kind) if text.kind else -1 for text in texts])
    return levels != "none", levels == "crisis", kinds


def phrase_odds(texts: Sequence[Text], arrays: Arrays, language: str) -> Numbers:
    """A row for each text."""
    table = WeightTable(arrays, language, len(reader.COLUMNS))
    return np.array([reader.phrase_odds(table, text.messages, language) for text in texts])


def fit_network(texts: Sequence[Text], inputs: Numbers) -> Arrays:
    """A network with one hidden layer over the embedder's rows."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    order = torch.Generator().manual_seed(SEED)
    hidden, outer = torch.nn.Linear(inputs.shape[1], HIDDEN), torch.nn.Linear(HIDDEN, len(reader.COLUMNS))
    net = torch.nn.Sequential(torch.nn.Dropout(0.1), hidden, torch.nn.ReLU(), torch.nn.Dropout(0.3), outer)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    danger, crisis, kinds = _truth(texts)
    given = torch.tensor(inputs, dtype=torch.float32)
    levels = torch.tensor(np.stack([danger, crisis], axis=1), dtype=torch.float32)
    about = torch.tensor(np.maximum(kinds, 0))
    shares = torch.tensor([CONVERSATION if text.manner else 1.0 for text in texts])
    for _ in range(ROUNDS):
        for batch in torch.randperm(len(given), generator=order).split(128):
            scores = net(given[batch])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                scores[:, :2], levels[batch], reduction="none"
            ).sum(1)
            kind = torch.nn.functional.cross_entropy(scores[:, 2:], about[batch], reduction="none")
            loss = ((loss + 0.3 * kind * levels[batch, 0]) * shares[batch]).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return {
        "hidden": hidden.weight.detach().numpy().T.astype(np.float16),
        "hidden_bias": hidden.bias.detach().numpy(),
        "outer": outer.weight.detach().numpy().T.astype(np.float32),
        "outer_bias": outer.bias.detach().numpy(),
    }


def train_phrases(folders: Sequence[Path], to: Path) -> None:
    """Learns the weighted phrases from labelled texts, the sample corpus and the conversations of `train/`."""
    for name in ("_features", "_classes"):  # messages come again and again
        setattr(reader, name, cache(getattr(reader, name).__wrapped__))
    texts = [*_labelled(folders), *read_conversations("train")]
    stored: Arrays = {}
    for language in ("en", "zh"):
        stored.update(fit_phrases(texts, language))
        own = [text for text in tuning_texts() if text.language == language]
        stored[f"{language}_biases"][:2] -= bound(phrase_odds(own, stored, language), own, f"{language} phrases")
    to.mkdir(parents=True, exist_ok=True)
    _say(f"{write_weights(reader.PHRASES, stored, to) / 1000:.0f} kB")


def train_reader(folders: Sequence[Path], to: Path) -> None:
    """Learns what messages mean from labelled texts and conversations, and how to join it with the phrases in `to`."""
    from sklearn.linear_model import LogisticRegression

    embed = reader.packaged_embedder()
    if embed is None:
        raise InputError(f"{reader.EMBEDDER.title} is not installed.", do=f"Run: {reader.EMBEDDER.install}")
    table = read_weights(reader.PHRASES, to)
    labelled, conversations = _labelled(folders), read_conversations("train")
    sample = [labelled[i] for i in generator(SEED, "texts of the network").permutation(len(labelled))[:SAMPLE]]
    inputs = {text.messages: row for text, row in _with_rows(embed, [*sample, *conversations])}
    _say(f"{len(inputs)} texts embedded")

    def learn(met: Sequence[Text]) -> Arrays:
        texts = [*sample, *met]
        return fit_network(texts, np.stack([inputs[text.messages] for text in texts]))

    # how far each is to be trusted is learnt on conversations of writers that the network had not met
    meaning = np.zeros((len(conversations), len(reader.COLUMNS)))
    for letter in ("a", "b"):
        own = np.array([text.writer.endswith(letter) for text in conversations])
        stored = learn([text for text, held in zip(conversations, own, strict=True) if not held])
        meaning[own] = reader.network(np.stack([inputs[text.messages] for text in conversations])[own], stored)
    phrases = np.array([phrase_odds([text], table, text.language)[0] for text in conversations])
    weights = np.zeros((2, 2))
    for column, truth in enumerate(_truth(conversations)[:2]):
        model = LogisticRegression(C=1.0, class_weight="balanced")
        model.fit(np.stack([phrases[:, column], meaning[:, column]], axis=1), truth)
        weights[column] = model.coef_[0]
    _say(f"joined: {weights.round(2).tolist()}")
    stored = {**learn(conversations), "joined": weights.astype(np.float32)}
    for language in ("en", "zh"):
        own_texts = [text for text in tuning_texts() if text.language == language]
        stored[f"{language}_bounds"] = np.zeros(2, np.float32)
        meaning = reader.network(np.stack([row for _, row in _with_rows(embed, own_texts)]), stored)
        odds = reader.joined(phrase_odds(own_texts, table, language), meaning, stored, language)
        stored[f"{language}_bounds"] = bound(odds, own_texts, f"{language} reader").astype(np.float32)
    _say(f"{write_weights(reader.FILE, stored, to) / 1000:.0f} kB")


def _labelled(folders: Sequence[Path]) -> list[Text]:
    found = {text.messages: text for folder in folders for text in read_texts(folder)}
    return [*found.values(), *everyday_texts()]


def _with_rows(embed: reader.Embed, texts: Sequence[Text]) -> list[tuple[Text, Numbers]]:
    found = []
    for start in range(0, len(texts), 64):
        batch = texts[start : start + 64]
        found += list(zip(batch, reader.rows(embed, [text.messages for text in batch]), strict=True))
    return found


def tuning_texts() -> list[Text]:
    """What bounds are chosen on: the conversations of `tune/` and the suite's cases, both halves."""
    found = read_conversations("tune")
    for half in HALVES:
        for case in read_cases(cases_path(half)):
            if case.reply is None:
                found.append(Text(case.messages, case.expected, case.risk, half, case.id, case.kind))
    return found


def bound(odds: Numbers, texts: Sequence[Text], name: str) -> Numbers:
    """Where danger and crisis begin to count."""
    danger, crisis, _ = _truth(texts)
    found = np.array([np.quantile(odds[~danger, 0], 1 - FALSE_ALARMS), np.quantile(odds[~crisis, 1], 1 - FALSE_CRISES)])
    _say(
        f"{name}: of danger {np.mean(odds[danger, 0] >= found[0]):.3f} found, "
        f"of crises {np.mean(odds[crisis, 1] >= found[1]):.3f} as such"
    )
    return found


# --- the check of replies ---------------------------------------------------------------------------------------------


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


def train_replies(folders: Sequence[Path], to: Path, held_out: Path | None = None) -> dict[str, Any]:
    """Learns from the replies of the folders and the sample corpus, and writes the weights; how well it came out.

    With `held_out`, the files of that folder are measured too and never learnt from.
    """
    written = dict.fromkeys(reply for folder in folders for reply in read_replies(folder))
    replies = [*written, *everyday_replies(), *fixed_replies()]
    stored: Arrays = {}
    found: dict[str, Any] = {}
    for language in ("en", "zh"):
        own = [reply for reply in replies if reply.language == language]
        arrays, found[language] = _train_replies([replace(reply, source=i) for i, reply in enumerate(own)], language)
        stored.update(arrays)
    to.mkdir(parents=True, exist_ok=True)
    _say(f"{write_weights(output_phrases.FILE, stored, to) / 1000:.0f} kB")
    if held_out:
        found["held out"] = measure_replies(read_replies(held_out), by_weights(ReplyPhrases(stored)))
    return found


def measure_replies(replies: Sequence[Reply], rejects: Callable[[Reply], bool]) -> dict[str, Any]:
    """How many of each category are rejected, as [rejected, all], by language."""
    found: dict[str, Any] = {}
    for language in ("en", "zh"):
        counts: dict[str, list[int]] = {}
        for reply in replies:
            if reply.language == language:
                own = counts.setdefault(reply.category or "good", [0, 0])
                own[0] += rejects(reply)
                own[1] += 1
        found[language] = counts
        _say(f"{language} held out: " + ", ".join(f"{name} {a} of {b}" for name, (a, b) in counts.items()))
    return found


def by_weights(phrases: ReplyPhrases) -> Callable[[Reply], bool]:
    """Rejects by rules and weights together."""
    return lambda reply: (
        check_rules(reply.text, [reply.seeker]) is not None
        or phrases.weigh(plain(reply.text), plain(reply.seeker))[0] >= 0
    )


def _train_replies(replies: Sequence[Reply], language: str) -> tuple[Arrays, dict[str, Any]]:
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
    arrays = fit_replies(replies, language)
    arrays[f"{language}_biases"][0] -= bound
    counts = {"bad": int(bad.sum()), "good": int((~bad).sum())}
    shares |= {"bad": float(rejected[bad].mean()), "good": float(rejected[~bad].mean())}
    return arrays, {"rejected": shares, "replies": counts}


def held_out_odds(replies: Sequence[Reply], language: str) -> Numbers:
    """The log-odds of each reply by weights that were learnt without it."""
    folds = generator(SEED, "folds of replies").permutation(len(replies)) % FOLDS
    odds = np.zeros(len(replies))
    for fold in range(FOLDS):
        arrays = fit_replies([reply for reply, own in zip(replies, folds, strict=True) if own != fold], language)
        phrases = ReplyPhrases({**arrays, **_renamed(arrays, language)})
        for place in np.flatnonzero(folds == fold).tolist():
            reply = replies[place]
            odds[place] = phrases.weigh(plain(reply.text), plain(reply.seeker))[0]
    return odds


def _renamed(arrays: Arrays, language: str) -> Arrays:
    """The arrays under the other language's names, so that weights of one language alone can weigh."""
    other = "zh" if language == "en" else "en"
    return {name.replace(language, other, 1): array for name, array in arrays.items()}


def fit_replies(replies: Sequence[Reply], language: str) -> Arrays:
    """The arrays of one language, learnt from replies in it and from those made of them."""
    texts = [*replies, *made_of(replies, SEED)]
    shares = np.array([1.0] * len(replies) + [MADE] * (len(texts) - len(replies)))
    rows = [keys(plain(reply.text), plain(reply.seeker), language) for reply in texts]
    bad = np.array([reply.category is not None for reply in texts])
    columns: list[tuple[Any, Any]] = [(slice(None), bad)]
    columns += [(bad, np.array([reply.category == category for reply in texts])) for category in CATEGORIES]
    return fit_table(rows, shares, columns, language)


def _say(what: str) -> None:
    console.print(f"  {what}", highlight=False)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("phrases", "reader", "replies"))
    parser.add_argument("--texts", type=Path, action="append", default=[], help="a folder of texts of your own")
    parser.add_argument("--to", type=Path, default=PACKAGE / "weights", help="where the weights are written")
    parser.add_argument("--json", type=Path, help="where the shares of held-out replies that are rejected are written")
    options = parser.parse_args()
    if options.what != "replies":
        train = {"phrases": train_phrases, "reader": train_reader}[options.what]
        train([FOLDER / "texts", *options.texts], options.to)
        return
    held_out = FOLDER / "texts" / "replies" / "held_out"
    found = train_replies([FOLDER / "texts" / "replies", *options.texts], options.to, held_out)
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
