"""Which dialogues are fit to learn from: rules that look for what is broken, personal data masked, a model's verdict.

The rules drop only what is plainly no good, and each says why. An empty utterance goes, and so does a message that was
sent twice in a row. A model, where there is one, is then asked whether each dialogue that is left is coherent, under a
grammar where it can be. A dialogue whose verdict could not be read is kept and counted: it passed the rules, and
dropping it would punish it for the model's mistake. `verdicts.jsonl` holds every verdict.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from compeer.corpora import BadDialogues, corpus_path, read_corpus
from compeer.dialogue import Dialogue, Utterance, rounds_of, transcript
from compeer.errors import InputError
from compeer.io import Frozen, json_line
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.pipeline import Done, Stage, in_blocks
from compeer.ser import asking
from compeer.ser.masking import is_machine_phrase, is_mojibake, is_other_language, mask_dialogue, speaks_for_both
from compeer.statistics import words

DROPPED, VERDICTS = "dropped.jsonl", "verdicts.jsonl"
DIALOGUES_A_UNIT = 200
_TEXTS = (".jsonl", ".json", ".csv", ".txt")
MONOLOGUE = 0.95  # share of the words; where one speaker has more, the other only nods


class ScreenSettings(Frozen):
    """Which dialogues are kept."""

    languages: tuple[str, ...] = Field(default=(), description="languages to take; empty takes all")
    rounds: int = Field(default=2, ge=1, description="fewest rounds of a dialogue")
    empty: float = Field(default=0.2, ge=0, le=1, description="share of empty utterances up to which it is mended")
    repeated: float = Field(default=0.25, ge=0, le=1, description="share of a speaker's lines that may be repeats")


@dataclass(frozen=True)
class KeptDialogue:
    """A dialogue as it goes on, what was masked in it by kind, and what was mended."""

    dialogue: Dialogue
    masked: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)


def screen_dialogue(dialogue: Dialogue, settings: ScreenSettings) -> KeptDialogue | list[str]:
    """The dialogue mended and masked, or why it is dropped, the plainest reason first."""
    if settings.languages and dialogue.language not in settings.languages:
        return ["language not wanted"]
    filled = [utterance for utterance in dialogue.utterances if not _is_empty(utterance)]
    empty = len(dialogue.utterances) - len(filled)
    once = [*filled[:1], *(after for before, after in pairwise(filled) if not _sent_twice(before, after))]
    reasons = ["empty utterances"] if empty > settings.empty * len(dialogue.utterances) else []
    if once:
        mended = dialogue.model_copy(update={"utterances": tuple(once)})
        reasons += [*_structure(mended, settings.rounds), *_wording(mended, settings.repeated)]
    if reasons:
        return reasons
    masked, counts = mask_dialogue(mended)
    changes = Counter({"empty utterances": empty, "sent twice": len(filled) - len(once)})
    return KeptDialogue(masked, counts, +changes)


def _is_empty(utterance: Utterance) -> bool:
    """Nothing that can be seen or heard."""
    return not utterance.media and not re.sub(r"[\s\u200b-\u200f\u2060\ufeff\u00ad]+", "", utterance.text)


def _line(text: str) -> tuple[str, ...]:
    """A line as it counts for repeats, or nothing if it is too short to tell: people say "yes" often."""
    found = words(text)
    return tuple(found) if len(found) >= 4 else ()


def _sent_twice(before: Utterance, after: Utterance) -> bool:
    line = _line(after.text)
    return bool(line) and before.speaker == after.speaker and not after.media and line == _line(before.text)


def _structure(dialogue: Dialogue, rounds: int) -> list[str]:
    """What keeps it from being a dialogue."""
    length: Counter[str] = Counter()
    for utterance in dialogue.utterances:
        length[utterance.speaker] += len(words(utterance.text))
    if len(length) < 2:
        return ["one speaker"]
    if len(rounds_of(dialogue)) < rounds:
        return ["too few rounds"]
    if length.total() and max(length.values()) > MONOLOGUE * length.total():
        return ["monologue"]
    return []


def _wording(dialogue: Dialogue, repeated: float) -> Iterator[str]:
    """What is wrong with the words."""
    texts = [utterance.text for utterance in dialogue.utterances]
    if any(is_mojibake(text) for text in texts):
        yield "broken encoding"
    if any(speaks_for_both(utterance) for utterance in dialogue.utterances):
        yield "both speakers in one message"
    if any(_repeats(dialogue, speaker, repeated) for speaker in ("seeker", "supporter")):
        yield "repeated lines"
    if any(is_machine_phrase(u.text) for u in dialogue.utterances if u.speaker == "supporter"):
        yield "machine phrases"
    if is_other_language(texts, dialogue.language):
        yield "not the declared language"


def _repeats(dialogue: Dialogue, speaker: str, allowed: float) -> bool:
    texts = [utterance.text for utterance in dialogue.utterances if utterance.speaker == speaker]
    lines = Counter(line for line in map(_line, texts) if line)
    repeats = lines.total() - len(lines)
    return repeats >= 2 and repeats > allowed * len(texts)


def screen_stage(
    corpora: Sequence[str], out: Path, settings: ScreenSettings, workers: int = 1, skip_bad: bool = False
) -> dict[str, Any]:
    """Writes the dialogues that are kept, masked, and `dropped.jsonl` beside them; returns the stage's manifest."""
    known = {**settings.model_dump(), "skip_bad": skip_bad}
    stage = Stage(out, known, _inputs(corpora, out), beside=[DROPPED])
    units = in_blocks(_dialogues(corpora, skip_bad), DIALOGUES_A_UNIT)
    return asking.run_stage(stage, units, partial(_screen, settings), workers)


def _inputs(corpora: Sequence[str], out: Path) -> dict[str, Path]:
    """The files of the corpora by a name that says which; those of a folder all count."""
    found: dict[str, Path] = {}
    for number, corpus in enumerate(corpora, 1):
        folder = Path(corpus)
        inside = corpus != "sample" and folder.is_dir()
        found_here = folder.iterdir() if inside else [corpus_path(corpus)]
        files = sorted(file for file in found_here if not inside or file.suffix.casefold() in _TEXTS)
        if (inside and folder.resolve() == out.parent.resolve()) or out.resolve() in [file.resolve() for file in files]:
            raise InputError("this would be written over or into a corpus.", file=out, do="Write it to another folder.")
        found.update({f"corpus {number}: {file.name}": file for file in files})
    return found


def _dialogues(corpora: Sequence[str], skip_bad: bool) -> Iterator[Dialogue | Counter[str]]:
    """The dialogues of all corpora, each with an id of its own; after each corpus what could not be read, by reason."""
    known: set[str] = set()
    for number, corpus in enumerate(corpora, 1):
        bad = BadDialogues()
        for dialogue in read_corpus(corpus, skip_bad=bad if skip_bad else None):
            if len(corpora) > 1:  # within one, ids are unique already
                if dialogue.id in known:
                    names = (f"{number}{'x' * count}-{dialogue.id}" for count in range(len(known) + 1))
                    dialogue = dialogue.model_copy(update={"id": next(name for name in names if name not in known)})
                known.add(dialogue.id)
            yield dialogue
        yield bad.reasons


def _screen(settings: ScreenSettings, block: list[Dialogue | Counter[str]]) -> Done:
    lines, dropped = [], []
    screen = Counter(read=0, kept=0, dropped=0)
    counts = {"screen": screen, **{name: Counter[str]() for name in ("dropped", "masked", "mended", "unreadable")}}
    for item in block:
        if isinstance(item, Counter):
            counts["unreadable"] += item
            continue
        screen["read"] += 1
        found = screen_dialogue(item, settings)
        if isinstance(found, list):
            screen["dropped"] += 1
            counts["dropped"][found[0]] += 1
            dropped.append(json_line({"dialogue": item.id, "source": item.source, "reasons": found}))
        else:
            screen["kept"] += 1
            counts["masked"] += found.masked
            counts["mended"] += found.mended
            lines.append(json_line(found.dialogue))
    return Done(lines, {DROPPED: dropped}, counts)


Kind = Literal["coherent", "incoherent", "machine-styled", "not a dialogue", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SAMPLING = Sampling(temperature=0, max_tokens=160)


class ScreenVerdict(Frozen, strict=True):
    """What the model says of a dialogue."""

    reason: str = Field(min_length=1)
    kind: Kind
    keep: bool

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.keep != (self.kind == "coherent"):
            raise ValueError(f"'keep' and 'kind' contradict each other: {str(self.keep).lower()}, {self.kind}")
        return self


def verdict_grammar(reason_characters: int = 200) -> str:
    """A Lark grammar of the answer, in which `keep` cannot contradict `kind`."""
    bad = " | ".join(rf'"{kind}"' for kind in KINDS if kind != "coherent")
    return asking.prompt("screen_grammar").replace("<bad>", bad).replace("<most>", str(reason_characters))


def read_verdict(_: int, answer: Generation) -> ScreenVerdict | asking.AnswerFault:
    """The verdict in an answer, or what is wrong with it; a fence around it does no harm."""
    plain = re.sub(r"\A```(?:json)?[^\S\n]*\n(.*?)\n?```\Z", r"\1", answer.text.strip(), flags=re.DOTALL)
    return asking.read_object(plain, ScreenVerdict, answer.cut_off)


async def verdict_stage(
    dialogues: Path, out: Path, model: TextModel, retries: int = 2, seed: int = 0
) -> dict[str, Any]:
    """Writes the dialogues that the model finds fit, and every verdict beside them; returns the stage's manifest."""
    asking.refuse_packaged(model, "judge which dialogues are fit: its answers are in form and mean nothing")
    known = {"model": model.name, "retries": retries, "seed": seed, "prompt": asking.prompt("screen")}
    stage = Stage(out, known, {"dialogues": dialogues}, beside=[VERDICTS])

    def question(one: Dialogue) -> Request:
        text = asking.prompt("screen").format(conversation=transcript(one.utterances))
        return asking.ask_user(text, seed, "verdict", model.name, one.id, grammar=verdict_grammar())

    async def ask(block: list[Dialogue]) -> Done:
        asked = [question(one) for one in block]
        return _done(block, await asking.ask_until_read(model, asked, read_verdict, SAMPLING, retries))

    return await asking.ask_stage(stage, in_blocks(read_corpus(dialogues), model.batch_size), ask, model.at_once)


def _done(block: list[Dialogue], answers: list[asking.Answer[ScreenVerdict]]) -> Done:
    lines, verdicts = [], []
    counts = {name: Counter[str]() for name in ("screen", "dropped", "verdicts", "failed")}
    for dialogue, answer in zip(block, answers, strict=True):
        counts["screen"]["read"] += 1
        if isinstance(answer, Failure) and answer.kind != "refused":
            counts["failed"][answer.kind] += 1
            continue
        kind, keep, more = _judged(answer)
        counts["verdicts"][kind] += 1
        counts["screen"]["kept" if keep else "dropped"] += 1
        verdicts.append(json_line({"dialogue": dialogue.id, "kind": kind, "keep": keep, **more}))
        if keep:
            lines.append(json_line(dialogue))
        else:
            counts["dropped"][kind] += 1
    return Done(lines, {VERDICTS: verdicts}, counts)


def _judged(answer: asking.Answer[ScreenVerdict]) -> tuple[str, bool, dict[str, Any]]:
    """The kind of a verdict, whether the dialogue is kept, and what else is written down."""
    if isinstance(answer, asking.Read):
        return answer.value.kind, answer.value.keep, {"reason": answer.value.reason, "tries": answer.tries}
    if isinstance(answer, asking.Unread):
        return "verdict unread", True, {"text": answer.text, "complaint": answer.complaint, "tries": answer.tries}
    return "not asked", True, {"reason": answer.reason}
