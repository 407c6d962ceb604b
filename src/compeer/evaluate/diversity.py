"""How varied replies are: distinct-n, self-BLEU, openings, and how alike replies are in meaning.

Distinct-n falls and self-BLEU rises with every reply that is added, so two sets can only be compared at the same size.
Each set is therefore cut at random into halves, by dialogues, many times; from each half so many words (distinct-n) or
replies (self-BLEU, openings) are taken as the smallest half of all sets has. The metric is the mean over the halves,
and the 95 % interval holds most of them: a half without replacement varies about as much as the whole does, and unlike
a bootstrap sample it holds no dialogue twice, which would look like repetition. Where a set is much larger than the
smallest one its intervals are wider than they need be. Similarities do not depend on size; their intervals are
bootstrap ones, dialogues resampled, pairs of a dialogue with its own copy left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from compeer.corpora import corpus_path, read_corpus
from compeer.dialogue import Speaker, merge_consecutive
from compeer.errors import InputError
from compeer.evaluate.players import CONVERSATIONS
from compeer.io import Frozen, read_values
from compeer.models.embedder import Embedder, Embeds, Matrix
from compeer.policy.redundancy import in_group_similarity
from compeer.policy.selection import read_candidates
from compeer.reasoning import parse_turn
from compeer.ser.record import SerRecord
from compeer.simulate import read_conversations
from compeer.statistics import (
    FEW_GROUPS,
    Estimate,
    Indices,
    Numbers,
    distinct,
    generator,
    group_weights,
    mean,
    ratio,
    words,
)

HALVES = 200
MOST_REPLIES = 200  # replies that are compared with each other at most, for self-BLEU and openings
OPENING_WORDS = 3


def measure_diversity(responses: Sequence[str], embedder: Embedder) -> dict[str, Any]:
    """A few metrics over the responses that are there, at whatever size; None where there are too few to compare."""
    there = [response for response in responses if response.strip()]
    openings = Counter(" ".join(words(response)[:2]) for response in there)
    similar = in_group_similarity(embedder.embed(there)) if len(there) > 1 else []
    return {
        "responses": len(there),
        "words": mean([len(words(response)) for response in there]),
        "distinct_1": distinct(there, 1) if there else None,
        "distinct_2": distinct(there, 2) if there else None,
        "pairwise_similarity": mean(similar),
        "largest_opening": openings.most_common(1)[0][1] / len(there) if there else None,
    }


class Reply(NamedTuple):
    """A reply, the conversation it was given in, and the scenario or dialogue that is sampled as a whole."""

    text: str
    dialogue: str
    unit: str
    language: str


class DiversityMetrics(Frozen):
    """How varied the replies of one set are in one language."""

    language: str
    replies: int
    dialogues: int = Field(description="what is sampled as a whole: dialogues, scenarios or histories")
    words: float = Field(description="mean length; characters in Chinese")
    at_words: int = Field(description="words that distinct-n is counted over")
    distinct_1: Estimate
    distinct_2: Estimate
    distinct_3: Estimate
    at_replies: int = Field(description="replies that self-BLEU and the openings are counted over")
    self_bleu: Estimate = Field(description="mean BLEU of a reply against all others, 0 to 100")
    open_alike: Estimate = Field(description="share of replies whose first words open another one too")
    largest_opening: Estimate = Field(description="share of the replies that have the most frequent first words")
    in_dialogue: Estimate = Field(description="mean cosine of two replies of a dialogue, then over dialogues")
    across_dialogues: Estimate = Field(description="mean cosine of two replies of different dialogues")
    whole: dict[str, float] = Field(description="distinct-n of the whole set, for comparison with published figures")


def compare_diversity(
    sets: Sequence[Sequence[Reply]], embedder: Embeds, seed: int = 0, halves: int = HALVES
) -> list[list[DiversityMetrics]]:
    """The metrics of each set, by language; in a language all sets are counted at the same size."""
    by_language: dict[str, dict[int, _Counted]] = {}
    for number, replies in enumerate(sets):
        for language in sorted({reply.language for reply in replies}):
            if own := [reply for reply in replies if reply.language == language and words(reply.text)]:
                rng = generator(seed, "halves", language)
                by_language.setdefault(language, {})[number] = _Counted(own, language, rng, halves)
    found: list[list[DiversityMetrics]] = [[] for _ in sets]
    for language, counted in by_language.items():
        at_words = min(one.fewest_words for one in counted.values())
        at_replies = min(MOST_REPLIES, *(one.fewest_replies for one in counted.values()))
        for number, one in counted.items():
            found[number].append(one.metrics(language, at_words, at_replies, embedder, seed))
    return found


class _Counted:
    """A set's replies with their n-grams as numbers, and its halves: the indices of replies, in random order."""

    def __init__(self, replies: Sequence[Reply], language: str, rng: np.random.Generator, halves: int) -> None:
        self._replies = replies
        self._units = list(dict.fromkeys(reply.unit for reply in replies))
        self._words = [words(reply.text) for reply in replies]
        self._lengths = np.array([len(one) for one in self._words])
        self._grams = [_numbered(self._words, size) for size in (1, 2, 3)]
        self._openings = [tuple(one[:OPENING_WORDS]) for one in self._words]
        self._tokens = [ngrams(reply.text, language) for reply in replies]
        unit = {name: index for index, name in enumerate(self._units)}
        owner = np.array([unit[reply.unit] for reply in replies])
        self._halves: list[Indices] = [] if len(unit) > 1 else [rng.permutation(len(replies))]
        for _ in range(halves if len(unit) > 1 else 0):
            chosen = rng.permutation(len(unit))[: len(unit) // 2]
            self._halves.append(rng.permutation(np.flatnonzero(np.isin(owner, chosen))))
        self.fewest_words = min(int(self._lengths[half].sum()) for half in self._halves)
        self.fewest_replies = min(len(half) for half in self._halves)

    def metrics(self, language: str, at_words: int, at_replies: int, embedder: Embeds, seed: int) -> DiversityMetrics:
        parts = [half[:at_replies] for half in self._halves]
        openings = [Counter(self._openings[index] for index in part).values() for part in parts]
        over_halves: dict[str, Sequence[float | None]] = {
            **{f"distinct_{n}": [self._distinct(half, at_words, n) for half in self._halves] for n in (1, 2, 3)},
            "self_bleu": [self_bleu([self._tokens[index] for index in part]) for part in parts],
            "open_alike": [sum(count for count in counts if count > 1) / at_replies for counts in openings],
            "largest_opening": [max(counts) / at_replies for counts in openings],
        }
        return DiversityMetrics(
            language=language,
            replies=len(self._replies),
            dialogues=len(self._units),
            words=float(self._lengths.mean()),
            at_words=at_words,
            at_replies=at_replies,
            **{name: self._over_halves(values) for name, values in over_halves.items()},
            **_similarities(self._replies, self._units, embedder, seed),
            whole={f"distinct_{n}": distinct([reply.text for reply in self._replies], n) for n in (1, 2, 3)},
        )

    def _distinct(self, half: Indices, at_words: int, size: int) -> float | None:
        """Distinct-n of the first so many words; the last reply is cut where they end."""
        left, grams = at_words, []
        for index in half:
            length = min(left, int(self._lengths[index]))
            grams.append(self._grams[size - 1][index][: max(0, length - size + 1)])
            left -= length
            if not left:
                break
        every = np.concatenate(grams)
        return len(np.unique(every)) / len(every) if len(every) else None

    def _over_halves(self, values: Sequence[float | None]) -> Estimate:
        known = np.array([value for value in values if value is not None], dtype=np.float64)
        value = known.mean() if len(known) else np.nan
        return Estimate.of_resamples(np.array([value, *known]), len(self._units), FEW_GROUPS)


def _numbered(texts: Sequence[Sequence[str]], size: int) -> list[Indices]:
    """Each text's n-grams as numbers: equal ones have the same."""
    known: dict[tuple[str, ...], int] = {}
    grams = [[tuple(text[at : at + size]) for at in range(len(text) - size + 1)] for text in texts]
    return [np.array([known.setdefault(gram, len(known)) for gram in own], dtype=np.int64) for own in grams]


Ngrams = tuple[Counter[tuple[str, ...]], int]  # a reply's n-grams up to four, and its length in tokens


def ngrams(text: str, language: str) -> Ngrams:
    """The n-grams of a text by sacreBLEU's tokenisation: `zh` for Chinese, else `13a`."""
    from sacrebleu.metrics.helpers import extract_all_word_ngrams

    found: Ngrams = extract_all_word_ngrams(_tokenizer(language)(text.rstrip()), 1, 4)
    return found


@cache
def _tokenizer(language: str) -> Any:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

    kind: Any = TokenizerZh if language.split("-")[0] == "zh" else Tokenizer13a
    return kind()


def self_bleu(replies: Sequence[Ngrams]) -> float | None:
    """The mean sentence BLEU (effective order, exponential smoothing) of each reply against all others."""
    if len(replies) < 2:
        return None
    from sacrebleu.metrics.bleu import BLEU

    # an n-gram counts as often as another reply has it at most: its largest count, whose it is, and the second largest
    most: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for index, (counts, _) in enumerate(replies):
        for gram, count in counts.items():
            first, owner, second = most.get(gram, (0, -1, 0))
            most[gram] = (count, index, first) if count > first else (first, owner, max(second, count))
    lengths = np.array([length for _, length in replies])
    scores = []
    for index, (counts, length) in enumerate(replies):
        correct, total = [0] * 4, [0] * 4
        for gram, count in counts.items():
            first, owner, second = most[gram]
            total[len(gram) - 1] += count
            correct[len(gram) - 1] += min(count, second if owner == index else first)
        others = np.delete(lengths, index)
        near = np.abs(others - length)
        closest = int(others[near == near.min()].min())
        score = BLEU.compute_bleu(correct, total, length, closest, smooth_method="exp", effective_order=True)
        scores.append(float(score.score))
    return sum(scores) / len(scores)


def _similarities(replies: Sequence[Reply], units: Sequence[str], embedder: Embeds, seed: int) -> dict[str, Estimate]:
    """Mean cosines within conversations and between those of different units, with intervals over units."""
    rows = np.asarray(embedder.embed([reply.text for reply in replies]), dtype=np.float64)
    weights = group_weights(len(units), seed=seed)
    index_of = {unit: number for number, unit in enumerate(units)}
    inside, dialogues = np.zeros((2, len(units)))
    by_dialogue: dict[tuple[str, str], list[int]] = {}
    for number, reply in enumerate(replies):
        by_dialogue.setdefault((reply.unit, reply.dialogue), []).append(number)
    for (unit, _), members in by_dialogue.items():
        if len(members) > 1:
            inside[index_of[unit]] += pair_mean(rows[members])
            dialogues[index_of[unit]] += 1
    sums, counts = np.zeros((len(units), rows.shape[1])), np.zeros(len(units))
    np.add.at(sums, [index_of[reply.unit] for reply in replies], rows)
    np.add.at(counts, [index_of[reply.unit] for reply in replies], 1)
    # Σ over pairs of different units of w_g w_h s_g·s_h is |Σ w s|² less what units have with themselves.
    squares = weights**2
    cosines = ((weights @ sums) ** 2).sum(1) - squares @ (sums**2).sum(1)
    pairs = (weights @ counts) ** 2 - squares @ counts**2
    return {
        "in_dialogue": Estimate.of_resamples(ratio(weights @ inside, weights @ dialogues), len(units), FEW_GROUPS),
        "across_dialogues": Estimate.of_resamples(ratio(cosines, pairs), len(units), FEW_GROUPS),
    }


def pair_mean(rows: Matrix | Numbers) -> float:
    """The mean dot product of two different rows."""
    total, count = rows.sum(axis=0), len(rows)
    return float((total @ total - (rows * rows).sum()) / (count * (count - 1)))


def read_replies(
    path: str | Path, speaker: Speaker = "supporter", records: Sequence[SerRecord] = (), language: str = "en"
) -> list[Reply]:
    """All replies of a run's folder, conversations, a corpus, or outputs: to `records`, or else in that `language`."""
    source = Path(path)
    runs, keys = sorted(source.rglob(CONVERSATIONS)) if source.is_dir() else [], first_keys(source)
    if runs:
        found = [reply for file in runs for reply in _of_conversations(file, str(file.parent), speaker)]
    elif {"scenario", "turns", "outcome"} <= keys:
        found = list(_of_conversations(source, "", speaker))
    elif "record" in keys and keys & {"output", "failure"}:
        found = list(_of_outputs(source, records, language))
    else:
        source = source if source.is_dir() else corpus_path(path)
        found = list(_of_corpus(str(path), speaker))
    if not found:
        do = "Give a run's folder, a file of outputs, or a corpus."
        raise InputError(f"there is no reply of a {speaker} in it.", file=source, do=do)
    return found


def first_keys(path: Path) -> set[str]:
    """The keys of the first object of a file of JSON lines; none where it holds something else."""
    value = next(read_values(path), (0, None))[1] if path.is_file() else None
    return set(value) if isinstance(value, dict) else set()


def _of_conversations(file: Path, run: str, speaker: Speaker) -> Iterator[Reply]:
    conversations = read_conversations(file)
    names = {one.scenario for one in conversations}
    for one in (one for one in conversations if one.outcome.status == "ended"):
        first, _, repeat = one.scenario.rpartition("#")  # how a run names later talks about the same scenario
        unit = first if first in names and repeat.isdecimal() else one.scenario
        for turn in one.turns:
            if turn.speaker == speaker:
                yield Reply(turn.text, f"{run}/{one.scenario}", unit, one.language)


def _of_outputs(file: Path, records: Sequence[SerRecord], language: str) -> Iterator[Reply]:
    known = {record.id: record for record in records}
    for candidate in read_candidates(file):
        response = parse_turn(candidate.output, cut_off=candidate.cut_off).parts.get("response")
        if isinstance(response, str):
            record = known.get(candidate.record)
            dialogue = record.dialogue if record else candidate.record
            yield Reply(response, dialogue, dialogue, record.language if record else language)


def _of_corpus(path: str, speaker: Speaker) -> Iterator[Reply]:
    for dialogue in read_corpus(path):
        for block in merge_consecutive(dialogue.utterances):
            if block.speaker == speaker:
                yield Reply(block.text, dialogue.id, dialogue.id, dialogue.language)
