"""What a corpus holds: how many dialogues and utterances, and which labels how often. Nothing is kept but counts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

from compeer.dialogue import Dialogue
from compeer.reasoning import EMOTIONS, STRATEGIES


@dataclass
class CorpusCounts:
    """Counts over dialogues; `bad` is filled by whoever left dialogues out."""

    lengths: list[int] = field(default_factory=list)
    speakers: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    dialogue_emotions: Counter[str] = field(default_factory=Counter)
    utterance_emotions: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    feedback: Counter[str] = field(default_factory=Counter)
    clips: int = 0
    bad: Counter[str] = field(default_factory=Counter)


def count_corpus(dialogues: Iterable[Dialogue]) -> CorpusCounts:
    counts = CorpusCounts()
    for dialogue in dialogues:
        utterances = dialogue.utterances
        counts.lengths.append(len(utterances))
        counts.languages[dialogue.language] += 1
        counts.dialogue_emotions.update(filter(None, [dialogue.emotion]))
        counts.problems.update(filter(None, [dialogue.problem]))
        counts.speakers.update(utterance.speaker for utterance in utterances)
        counts.clips += sum(len(utterance.media) for utterance in utterances)
        counts.strategies.update(utterance.strategy for utterance in utterances if utterance.strategy)
        counts.utterance_emotions.update(utterance.emotion for utterance in utterances if utterance.emotion)
        counts.feedback.update(str(utterance.feedback) for utterance in utterances if utterance.feedback)
    return counts


def table_rows(columns: list[CorpusCounts]) -> Iterator[tuple[str, list[str]]]:
    """The lines of a table with a column a corpus: what it is about, and a cell for each."""
    yield "dialogues", [f"{len(counts.lengths):,}" for counts in columns]
    yield "utterances", [f"{sum(counts.lengths):,}" for counts in columns]
    for speaker in ("seeker", "supporter"):
        yield f"  by the {speaker}", [_share(counts.speakers, speaker) for counts in columns]
    yield "median utterances a dialogue", [f"{median(c.lengths):g}" if c.lengths else "–" for c in columns]
    yield from _group("language", [counts.languages for counts in columns])
    yield from _group("strategy", [counts.strategies for counts in columns], STRATEGIES, shares=True)
    yield from _group("emotion of the dialogue", [counts.dialogue_emotions for counts in columns], EMOTIONS)
    yield from _group("emotion of an utterance", [counts.utterance_emotions for counts in columns], EMOTIONS)
    yield from _group("problem", [counts.problems for counts in columns])
    yield from _group("feedback", [counts.feedback for counts in columns], ("1", "2", "3", "4", "5"))
    if any(counts.clips for counts in columns):
        yield "clips", [f"{counts.clips:,}" for counts in columns]
    yield from _group("left out", [counts.bad for counts in columns])


def _group(
    title: str, counters: list[Counter[str]], order: tuple[str, ...] = (), *, shares: bool = False
) -> Iterator[tuple[str, list[str]]]:
    together: Counter[str] = sum(counters, Counter())
    if not together:
        return
    yield title, [f"{counter.total():,}" for counter in counters]
    for name in [name for name in order if together[name]] or [name for name, _ in together.most_common()]:
        yield f"  {name}", [_share(c, name) if shares else f"{c[name]:,}" if c[name] else "–" for c in counters]


def _share(counter: Counter[str], name: str) -> str:
    return f"{100 * counter[name] / counter.total():.1f} %" if counter[name] else "–"
