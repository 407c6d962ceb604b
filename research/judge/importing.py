"""Step-labelled turns made elsewhere, as SER records.

    python research/judge/importing.py ser_llm.jsonl llm.jsonl --splits ser/splits.jsonl --seed 7

Two shapes are read, one JSON object a line; the first line says which:

- our own `SerRecord`, as another build or the annotation workbench wrote it;
- *contexts with candidates*: a history, the human's response, and candidate turns, each with three verdicts, the
  annotators' votes and reasons, and which response is better (`_JudgedContext`). Rewrites of such contexts
  name the original in `rewritten_from`, and carry a `profile` where they were made toward a personality.

A dialogue gets the id that our reader of the corpus gives it, so that imported records and a build of the same corpus
share their splits. Candidates on one of whose steps no two votes agree are dropped and counted; where no two agree on
the responses, the record has no preference.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field, ValidationError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Seed, Written, run_command

from compeer.cli.printing import print_counts
from compeer.corpora.items import Item
from compeer.dialogue import Emotion, Rating, Speaker, Stage, Strategy
from compeer.errors import InputError, from_validation
from compeer.io import Frozen, json_line, read_json_lines
from compeer.pipeline import Done, in_blocks
from compeer.pipeline import Stage as PipelineStage
from compeer.reasoning import STEPS, Sentiment, StepText, SupportTurn
from compeer.ser.asking import run_stage
from compeer.ser.record import SPLITS, LabelSource, Preferred, SerRecord, Split
from compeer.ser.split import read_splits
from compeer.statistics import generator

LINES_A_UNIT = 200
SHARES = (0.45, 0.35, 0.2)
"""Of dialogues for judge, supporter and test, where no file of splits is given."""
_DO = "Give SER records as a build writes them, or contexts with judged candidates."
_AN_ORDER = re.compile(r"\b(first|second|former|latter)\b", re.IGNORECASE)

Line = tuple[int, dict[str, Any]]


class _Utterance(Frozen):
    speaker: Speaker
    text: str = Field(min_length=1)


class _StepVerdict(Frozen):
    correct: bool | None
    votes: tuple[bool, ...] = ()
    reason: str | None = None


class _Candidate(Frozen):
    analysis: StepText
    stage: Stage
    feeling: StepText
    sentiment: Sentiment
    emotion: Emotion
    intensity: Rating
    plan: StepText
    strategy: Strategy
    response: str
    steps: tuple[_StepVerdict, _StepVerdict, _StepVerdict]
    preference: Preferred | None = None
    preference_votes: tuple[Preferred, ...] = ()
    preference_reasons: tuple[str, ...] | None = None


class _JudgedContext(Frozen):
    """A history with candidate turns. `dialogue` is the 0-based line of the corpus file that `split` names."""

    id: str = Field(min_length=1)
    corpus: str = Field(min_length=1)
    split: str = Field(min_length=1)
    dialogue: int = Field(ge=0)
    turn: int = Field(ge=1, description="0-based, what one speaker says in a row counting once")
    language: str = Field(min_length=2)
    history: tuple[_Utterance, ...] = Field(min_length=1)
    reference: str = Field(min_length=1)
    reference_strategies: tuple[str, ...] = ()
    candidates: tuple[_Candidate, ...] = Field(min_length=1)
    rewritten_from: str | None = None
    profile: dict[str, Any] | None = None


def import_turns(
    path: Path,
    out: Path,
    source: Literal["human", "llm"] | None = None,
    splits: Path | None = None,
    leave_out: Sequence[Strategy] = (),
    seed: int = 0,
    workers: int = 1,
) -> dict[str, Any]:
    """Writes the turns of a file as SER records; returns the stage's manifest.

    `source` says whose the labels are; without it records keep what they say, and contexts with candidates count as
    judged by language models. A dialogue's split is taken from the file `splits`, where it must stand; without one,
    records keep theirs and other dialogues are dealt out by the seed. Turns of a strategy in `leave_out` are dropped.
    """
    settings = {"source": source, "leave_out": sorted(leave_out), "seed": seed, "shares": SHARES}
    if not path.is_file():
        raise InputError("there is no such file to import.", file=path)
    inputs = {"turns": path} | ({"splits": splits} if splits else {})
    stage = PipelineStage(out, settings, inputs)
    known = read_splits(splits) if splits else None
    work = partial(_records, path, source, splits, known, frozenset(leave_out), seed)
    return run_stage(stage, in_blocks(_lines(path), LINES_A_UNIT), work, workers)


def _lines(path: Path) -> Iterator[Line]:
    """The objects of the file with their line numbers, all of one shape, each with an id of its own."""
    shape, ids = None, set()
    for number, value in read_json_lines(path):
        if not isinstance(value, dict):
            raise InputError("this line is not an object.", file=path, line=number, do=_DO)
        found = next((name for name in ("candidates", "candidate") if name in value), None)
        if found is None:
            raise InputError("a field is missing: 'candidates', or 'candidate'.", file=path, line=number, do=_DO)
        shape = shape or found
        if found != shape:
            what = f"there is a '{found}' here, but the file began with '{shape}'."
            raise InputError(what, file=path, line=number, do=_DO)
        key = value.get("id")
        if not isinstance(key, str) or key in ids:
            what = "this id is used twice." if isinstance(key, str) else "an id is missing."
            raise InputError(what, file=path, line=number, field="id", do="Give every line an id of its own.")
        ids.add(key)
        yield number, value


def _records(
    path: Path,
    source: LabelSource | None,
    file: Path | None,
    splits: dict[str, Split] | None,
    leave_out: frozenset[Strategy],
    seed: int,
    block: list[Line],
) -> Done:
    """The records of some lines, with what was read, dropped and labelled."""
    lines: list[str] = []
    read: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {"import": read, "dropped": dropped}
    for number, value in block:
        try:
            made = _taken(value, source) if "candidate" in value else _judged(value, source or "llm", seed)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number, do=_DO) from None
        except InputError as error:
            raise InputError(error.what, file=path, line=number, field=error.field, do=error.do) from None
        read["lines"] += 1
        for record in made:
            read["turns"] += 1
            if record is None:
                dropped["no two votes agree on a step"] += 1
                continue
            if record.candidate.strategy.strategy in leave_out:
                dropped["strategy left out"] += 1
                continue
            if splits is not None and record.dialogue not in splits:
                what = f"dialogue '{record.dialogue}' has no split in {file}."
                raise InputError(what, file=path, line=number, field="dialogue", do="Split the whole corpus first.")
            if splits is not None:
                record = record.model_copy(update={"split": splits[record.dialogue]})
            lines.append(json_line(record))
            read["records"] += 1
            for group, names in _groups(record).items():
                counts.setdefault(group, Counter()).update(names)
    return Done(lines, counts=counts)


def _groups(record: SerRecord) -> dict[str, list[str]]:
    """What of a record is counted, by group."""
    found: dict[str, list[str]] = {
        "split": [record.split],
        "rewritten": [record.rewritten or "no"],
        "preference": [record.preference.value if record.preference else "none"],
    }
    if record.labels:
        found["steps"] = [f"{part} {getattr(record.labels, part).value}" for part in STEPS]
    return found


def dealt_split(dialogue: str, seed: int) -> Split:
    """The split of a dialogue by its id alone, so that all that is made of one dialogue falls into one split."""
    point = generator(seed, "import split", dialogue).random() * sum(SHARES)
    for split, share in zip(SPLITS, SHARES, strict=True):
        point -= share
        if point < 0:
            return split
    return SPLITS[-1]


# --- the two shapes ---------------------------------------------------------------------------------------------------


def _taken(value: dict[str, Any], source: LabelSource | None) -> list[SerRecord | None]:
    """The record as it stands; a `source` given takes the place of its labels' own."""
    record = SerRecord.model_validate(value)
    if source is None:
        return [record]
    changed = record.model_dump()
    for label in [*(changed["labels"] or {}).values(), *filter(None, [changed["preference"]])]:
        label["source"] = source
    return [SerRecord.model_validate(changed)]


def _judged(value: dict[str, Any], source: LabelSource, seed: int) -> list[SerRecord | None]:
    """A record for each candidate of a context; None for one that has no verdict on a step."""
    context = _JudgedContext.model_validate(value)
    # The reader's own rule for the id; the corpus file is named after its split.
    dialogue = Item(None, Path(f"{context.split}.jsonl"), context.dialogue + 1).id(context.corpus)
    kind = None if context.rewritten_from is None else "personality" if context.profile else "plain"
    found: list[SerRecord | None] = []
    for number, candidate in enumerate(context.candidates, 1):
        if any(verdict.correct is None for verdict in candidate.steps):
            found.append(None)
            continue
        # A rewrite is named as a record that was rewritten here.
        key = f"{context.id}:{number}" if kind is None else f"{context.rewritten_from}:{number}~{kind}"
        record = {
            "id": key,
            "dialogue": dialogue,
            "round": (context.turn + 1) // 2,  # the speakers take turns, so every second block is the supporter's
            "language": context.language,
            "source": context.corpus,
            "split": dealt_split(dialogue, seed),
            "history": [utterance.model_dump() for utterance in context.history],
            "candidate": _turn(candidate, number),
            "author": "llm",
            "reference": context.reference,
            "labels": {
                part: _by(source, map(str, verdict.votes)) | {"value": verdict.correct, "reason": verdict.reason}
                for part, verdict in zip(STEPS, candidate.steps, strict=True)
            },
            "preference": _preference(candidate, source),
            "candidate_first": bool(generator(seed, "order", key).random() < 0.5),
            "rewritten": kind,
        }
        found.append(SerRecord.model_validate(record))
    return found


def _turn(candidate: _Candidate, number: int) -> SupportTurn:
    values = candidate.model_dump()
    texts = {"history": values["analysis"], "emotion": values["feeling"], "strategy": values["plan"]}
    decisions = {"history": ("stage",), "emotion": ("sentiment", "emotion", "intensity"), "strategy": ("strategy",)}
    steps = {part: {"text": text, **{name: values[name] for name in decisions[part]}} for part, text in texts.items()}
    try:
        return SupportTurn.model_validate({**steps, "response": candidate.response})
    except ValidationError as error:  # the steps have been checked
        raise InputError(error.errors()[0]["msg"], field=f"candidates.{number - 1}.response", do=_DO) from None


def _preference(candidate: _Candidate, source: LabelSource) -> Mapping[str, Any] | None:
    """The label with the words of an annotator who chose it.

    Words that speak of the first and the second response are left out: the order that annotator saw is not known.
    """
    if candidate.preference is None:
        return None
    given = zip(candidate.preference_votes, candidate.preference_reasons or (), strict=False)
    fitting = (reason for vote, reason in given if vote == candidate.preference and not _AN_ORDER.search(reason))
    by = _by(source, candidate.preference_votes)
    return by | {"value": candidate.preference, "reason": next(fitting, None)}


def _by(source: LabelSource, votes: Iterable[str]) -> dict[str, Any]:
    who = "annotators who are language models" if source == "llm" else "human annotators"
    cast = ", ".join(votes)
    return {"source": source, "how": f"judged by {who}" + (f"; votes: {cast}" if cast else "")}


def main(
    turns: Annotated[Path, typer.Argument(help="Step-labelled turns from elsewhere, JSON lines.")],
    out: Written,
    source: Annotated[Literal["llm", "human"] | None, typer.Option(help="Who labelled them: llm or human.")] = None,
    splits: Annotated[Path | None, typer.Option(help="The splits that the dialogues have in a build.")] = None,
    leave_out: Annotated[list[str], typer.Option(help="A strategy whose turns are left out.")] = [],  # noqa: B006
    seed: Seed = 0,
) -> None:
    """Take step-labelled turns from elsewhere as records."""
    print_counts(import_turns(turns, out, source, splits, leave_out, seed), out)


if __name__ == "__main__":
    run_command(main)
