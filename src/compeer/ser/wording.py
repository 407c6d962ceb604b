"""The reference turn of a context: what the corpus knows of the moment, put into words, and the corpus' reply.

A step is composed from a wording of `wordings/<language>.toml` and the seeker's own words, or is the corpus' own note;
the test split has wordings of its own, so that a judge cannot pass by knowing phrases. What the corpus does not label
is derived from the history, and the record says so. Responses come in pairs: a reply at home against its partner's, or
the halves of one reply, both good at home and neither elsewhere: the same texts stand on both sides of every verdict.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from compeer.dialogue import Emotion, Notes, Rating, Stage, Strategy, Utterance, last_seeker
from compeer.reasoning import MAX_RESPONSE, MAX_STEP, SupportTurn, one_line, sentiment_of
from compeer.ser.asking import table
from compeer.ser.record import PreferenceLabel, Preferred
from compeer.ser.sampling import Context
from compeer.statistics import generator, words

LONGEST_QUOTE = 14  # words; for Chinese twice as many characters
_BREAK = re.compile(r"\n+|(?<=[.!?…])\s+|(?<=[。！？])")
_SENTENCE = re.compile(r"(?<=[.!?…。！？；;])\s*|\n+")
_EMPTY = frozenset(table("ser/tables/faults")["english"]["without_meaning"].split())


@dataclass(frozen=True)
class Quotes:
    """The seeker's own words: what it is about, something said since, the last thing said, and one thing more.

    No two are the same, so that the steps of one turn share no quotation that would tie them together; only at the very
    start may the last thing said be the issue, and step 2 then quotes nothing.
    """

    issue: str
    detail: str | None
    last: str
    aside: str | None


@dataclass(frozen=True)
class HistoryWords:
    """Step 1 in two halves; `template` is the wording of the first, where it was composed."""

    issue: str
    stage: str
    template: str | None = None

    @property
    def text(self) -> str:
        return f"{self.issue} {self.stage}".strip()


@cache
def wordings(language: str) -> dict[str, Any]:
    """The wordings of a language; English where there are none."""
    there = files("compeer").joinpath(f"ser/wordings/{language}.toml").is_file()
    return table(f"ser/wordings/{language if there else 'en'}")


def quotes_of(history: Sequence[Utterance]) -> Quotes:
    """What to quote of a history: its most informative sentence, a later one, and one of the seeker's last message."""
    last = last_seeker(history) or history[-1]
    quote = max(_sentences(last.text), key=_weight)
    before = [utterance.text for utterance in history if utterance.speaker == "seeker" and utterance is not last]
    earlier = [sentence for text in before for sentence in _sentences(text)]
    meaningful = [sentence for sentence in earlier if _weight(sentence) >= 2 and sentence != quote]
    others = [sentence for sentence in _sentences(last.text) if _weight(sentence) >= 2 and sentence != quote]
    if not meaningful:
        return Quotes(quote, None, quote, others[0] if others else None)
    issue = max(meaningful, key=_weight)  # of several the first
    later = [sentence for sentence in meaningful[meaningful.index(issue) + 1 :] if sentence != issue]
    detail = max(later, key=_weight) if later else None
    left = [sentence for sentence in (*others, *later) if sentence not in (issue, detail)]
    return Quotes(issue, detail, quote, left[0] if left else None)


def _sentences(text: str) -> list[str]:
    found = [_shortened(part) for part in _SENTENCE.split(text) if part and part.strip()]
    return [part for part in found if part] or [_shortened(text) or "…"]


def _shortened(text: str) -> str:
    text = one_line(re.sub(r"[“”\"\[\]{}【】［］]", "", text)).strip(" .,;:!。，；：！-")
    parts = text.split(" ")
    if len(parts) > LONGEST_QUOTE:
        return " ".join(parts[:LONGEST_QUOTE]) + "…"
    return text if len(text) <= 6 * LONGEST_QUOTE else text[: 2 * LONGEST_QUOTE] + "…"


def _weight(sentence: str) -> int:
    """How much a sentence tells: its words that carry meaning, each once, up to eight."""
    return min(8, len(content_words(sentence)))


def content_words(text: str) -> set[str]:
    """The words of a text that carry meaning."""
    return {word for word in words(text) if word not in _EMPTY}


def history_words(quotes: Quotes, stage: Stage, language: str, part: str, rng: np.random.Generator) -> HistoryWords:
    """Step 1. `part` is `train` or `test`."""
    known = wordings(language)["history"][part]
    template = _sample([f for f in known["issue"] if quotes.detail or "{detail}" not in f], rng)
    return HistoryWords(fill_history(template, quotes), _sample(known[stage], rng), template)


def fill_history(template: str, quotes: Quotes) -> str:
    return template.format(issue=quotes.issue, detail=quotes.detail)


def emotion_words(
    quotes: Quotes, emotion: Emotion, intensity: Rating, language: str, part: str, rng: np.random.Generator
) -> str:
    """The text of step 2."""
    known = wordings(language)
    feeling, strength = _sample(known["feeling"][emotion], rng), _sample(known["strength"][str(intensity)], rng)
    templates = [f for f in known["emotion"][part]["text"] if quotes.last != quotes.issue or "{said}" not in f]
    texts = {"said": quotes.last, "feeling": feeling, "Feeling": feeling[0].upper() + feeling[1:], "strength": strength}
    return _sample(templates, rng).format(**texts)[:MAX_STEP]


def strategy_words(quotes: Quotes, strategy: Strategy, language: str, part: str, rng: np.random.Generator) -> str:
    """The text of step 3."""
    known = wordings(language)["strategy"][part][strategy]
    return _sample([text for text in known if quotes.aside or "{aside}" not in text], rng).format(aside=quotes.aside)


def _sample(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


@dataclass(frozen=True)
class Reference:
    """A context that can serve, with its reference turn in two wordings; `history` is step 1 of the first."""

    context: Context
    quotes: Quotes
    history: HistoryWords
    turns: tuple[SupportTurn, SupportTurn]

    @property
    def turn(self) -> SupportTurn:
        return self.turns[0]


def derived_stage(number: int) -> Stage:
    """The stage by nothing but the round's number, where a corpus has none."""
    return "exploration" if number <= 3 else "comforting" if number <= 6 else "action"


def why_not(context: Context) -> str | None:
    """Why a context has no reference turn, or None."""
    reply = context.reply
    reasons = {
        "no strategy label": reply.strategy is None,
        "empty reply": not reply.text.strip(),
        "over-long reply": len(reply.text) > MAX_RESPONSE,
        "badly rated reply": reply.feedback is not None and reply.feedback <= 2,
        "dialogue did not help": context.helped is False and (reply.feedback or 0) < 4,
        "no emotion label": context.emotion is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def reference_of(context: Context, seed: int) -> Reference:
    """A context's reference turn. Ask `why_not` first."""
    rng = generator(seed, "wording", context.id)
    part, language = "test" if context.split == "test" else "train", context.language
    notes, strategy, emotion = context.reply.notes or Notes(), context.reply.strategy, context.emotion
    assert strategy is not None
    assert emotion is not None
    stage, intensity = context.reply.stage or derived_stage(context.round), context.intensity or 3
    quotes = quotes_of(context.history)
    histories, turns = [], []
    for _ in range(2):
        own = HistoryWords(one_line(notes.history), "") if notes.history else None
        history = own or history_words(quotes, stage, language, part, rng)
        feeling = one_line(notes.emotion or "") or emotion_words(quotes, emotion, intensity, language, part, rng)
        plan = one_line(notes.strategy or "") or strategy_words(quotes, strategy, language, part, rng)
        felt = {"sentiment": sentiment_of(emotion), "emotion": emotion, "intensity": intensity}
        steps = {"emotion": {"text": feeling, **felt}, "strategy": {"text": plan, "strategy": strategy}}
        steps |= {"history": {"text": history.text, "stage": stage}}
        histories.append(history)
        turns.append(SupportTurn.model_validate({**steps, "response": context.reply.text}))
    return Reference(context, quotes, histories[0], (turns[0], turns[1]))


HALVED = 0.4  # share of pairs whose replies are halved, where so many can be
ResponsePair = tuple[str, str, PreferenceLabel]
ResponsePairs = tuple[ResponsePair, ResponsePair]


def choose_halved(references: Sequence[Reference], partner: Sequence[int], rng: np.random.Generator) -> set[int]:
    """Which contexts show halves of replies: pairs of which both replies can be halved, up to the share wanted."""
    able = [halves(reference.turn.response) is not None for reference in references]
    pairs = [(one, other) for one, other in enumerate(partner) if one < other]
    could = [pair for pair in pairs if able[pair[0]] and able[pair[1]]]
    wanted = min(len(could), round(HALVED * len(pairs)))
    return {index for chosen in rng.permutation(len(could))[:wanted].tolist() for index in could[chosen]}


def response_pairs(own: Reference, partner: Reference, halved: bool, rng: np.random.Generator) -> ResponsePairs:
    """Two pairs of responses for a context: the candidate's, the other one, and which is better."""
    mine, theirs = halves(own.turn.response), halves(partner.turn.response)
    if halved and mine and theirs:
        both = _halved(mine, "both", f"two halves of {_rated(own.context)} reply to this history", rng)
        neither = _halved(theirs, "neither", f"two halves of the reply of {partner.context.id}", rng)
        return (both, neither) if rng.random() < 0.5 else (neither, both)
    how = f"{_rated(own.context)} reply to this history against that of {partner.context.id}"
    one, other = (decisive(own.turn.response, partner.turn.response, how, rng) for _ in range(2))
    return one, other


def own_first(own: Reference, partner: Reference, pairs: ResponsePairs) -> ResponsePairs:
    """The two pairs such that the first has the context's own reply as candidate, and the second its partner's."""
    good, bad = sorted(pairs, key=lambda pair: pair[2].value not in ("both", "candidate"))
    if good[2].value == "both":
        return good, bad
    mine, theirs, how = own.turn.response, partner.turn.response, good[2].how
    return (mine, theirs, _preference("candidate", how)), (theirs, mine, _preference("reference", how))


def is_of(response: str, reference: Reference) -> bool:
    """Whether a response is a context's own reply, or a half of it."""
    return response in (reference.turn.response, *(halves(reference.turn.response) or ()))


def decisive(better: str, worse: str, how: str, rng: np.random.Generator) -> ResponsePair:
    """The two responses, the better one as candidate or as the other by chance."""
    if rng.random() < 0.5:
        return better, worse, _preference("candidate", how)
    return worse, better, _preference("reference", how)


def _preference(value: Preferred, how: str) -> PreferenceLabel:
    return PreferenceLabel(value=value, source="silver", how=how)


def _halved(parts: tuple[str, str], value: Preferred, how: str, rng: np.random.Generator) -> ResponsePair:
    one, other = parts if rng.random() < 0.5 else parts[::-1]
    return one, other, _preference(value, how)


def _rated(context: Context) -> str:
    return "the well-rated" if (context.reply.feedback or 0) >= 4 else "the"


def halves(text: str) -> tuple[str, str] | None:
    """A reply cut in two that both say something, of about equal length; None where it cannot be."""
    parts = [part.strip() for part in _BREAK.split(text) if part and part.strip()]
    sizes = [len(words(part)) for part in parts]
    sums = {cut: sorted((sum(sizes[:cut]), sum(sizes[cut:]))) for cut in range(1, len(parts))}
    even = {cut: most / least for cut, (least, most) in sums.items() if least >= 3 and most <= 3 * least}
    if not even:
        return None
    best = min(even, key=even.__getitem__)
    return " ".join(parts[:best]), " ".join(parts[best:])
