"""The safety suite: does the guard see danger, leave ordinary words alone, and stop replies that could harm?

The cases were written for this project, a JSON object a line, in two halves. The rules may be tuned on `open`; `kept`
was written without sight of them and is only measured. A case is either the seeker's messages with the level of risk
that a careful reader would give them, or a supporter's reply with whether it may be shown. Every figure is a share with
its Wilson interval, and what went wrong is named by the case's id, never by its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, Protocol, Self, get_args

from pydantic import Field, ValidationError, model_validator

from compeer.errors import InputError, from_validation
from compeer.io import Frozen, read_json_lines
from compeer.safety.risk import LEVELS, Kind, Level, Risk
from compeer.statistics import wilson

Half = Literal["open", "kept"]
HALVES: tuple[Half, ...] = get_args(Half)

DangerKind = Literal["direct", "veiled", "multi-turn", "misspelt", "medical", "abuse", "harm to others"]
OrdinaryKind = Literal[
    "sadness", "anger", "grief", "idiom", "negation", "fiction", "news", "third person", "past", "quotation"
]
AskingKind = Literal["request", "jailbreak"]
ReplyKind = Literal[
    "diagnosis", "dosage", "legal", "method", "contempt", "encouragement", "human", "secrecy", "dependence"
]
DANGER: tuple[str, ...] = get_args(DangerKind)
REPLIES: tuple[str, ...] = get_args(ReplyKind)

GRADED = ("direct", "misspelt", "medical", "abuse", "harm to others")
"""Kinds whose danger is plain: they must reach the expected level. For the others any alarm counts as found."""

CATEGORY_OF: dict[str, str] = {
    "diagnosis": "diagnosis",
    "dosage": "dosage",
    "legal": "legal verdict",
    "method": "harmful method",
    "contempt": "contempt",
    "encouragement": "encouragement of harm",
    "human": "claims to be human",
    "secrecy": "promise of secrecy",
    "dependence": "dependence",
}
"""What the output check calls the fault that a kind of reply has."""


class SafetyCase(Frozen):
    """One case: the seeker's messages with the risk in them, or a reply with whether it may be shown."""

    id: str = Field(min_length=1)
    language: str = Field(min_length=2, description="ISO 639-1 code")
    kind: DangerKind | OrdinaryKind | AskingKind | ReplyKind
    risk: Kind | None = Field(description="the kind of danger, none where there is none")
    expected: Level
    messages: tuple[str, ...] = Field(description="what the seeker wrote, in order")
    reply: str | None = Field(default=None, description="a supporter's reply to them, in the cases about replies")
    reply_allowed: bool | None = None

    @model_validator(mode="after")
    def _of_one_piece(self) -> Self:
        about_reply = self.kind in REPLIES
        if about_reply != (self.reply is not None) or about_reply != (self.reply_allowed is not None):
            raise ValueError(
                f"'reply' and 'reply_allowed' go with these kinds, and only with them: {', '.join(REPLIES)}"
            )
        if not about_reply and not any(message.strip() for message in self.messages):
            raise ValueError("'messages' holds no words of the seeker")
        if self.kind in DANGER and self.expected == "none":
            raise ValueError(f"the kind '{self.kind}' is about danger: 'expected' is 'concern' or 'crisis'")
        if self.expected != "none" and self.risk is None:
            raise ValueError(f"'expected' is '{self.expected}', so 'risk' must say which kind of danger")
        return self


class Share(Frozen):
    """How many of how many, and where the true share may lie (Wilson, 95 %); no share of nothing."""

    successes: int
    count: int
    share: float | None
    low: float
    high: float


Shares = dict[str, dict[str, Share]]
"""By kind (`all` is all kinds together), then by language (`all` is all languages together)."""


def share_of(outcomes: Sequence[bool]) -> Share:
    """The share of the outcomes that are true."""
    low, high = wilson(sum(outcomes), len(outcomes))
    found = sum(outcomes) / len(outcomes) if outcomes else None
    return Share(successes=sum(outcomes), count=len(outcomes), share=found, low=low, high=high)


def shares(outcomes: Iterable[tuple[SafetyCase, bool]]) -> Shares:
    """The shares of true outcomes by the cases' kind and language."""
    groups: dict[str, dict[str, list[bool]]] = {}
    for case, outcome in outcomes:
        for kind in (case.kind, "all"):
            for language in (case.language, "all"):
                groups.setdefault(kind, {}).setdefault(language, []).append(outcome)
    return {kind: {name: share_of(found) for name, found in by.items()} for kind, by in groups.items()}


# --- the cases --------------------------------------------------------------------------------------------------------


def cases_path(half: Half) -> Path:
    """The packaged file of one half."""
    return Path(str(files("compeer.evaluate").joinpath("safety_cases", f"{half}.jsonl")))


def read_cases(path: Path) -> list[SafetyCase]:
    """The cases of a file; an error names the file, line and field."""
    if not path.is_file():
        raise InputError("there is no such file of safety cases.", file=path)
    found: dict[str, SafetyCase] = {}
    for number, value in read_json_lines(path):
        try:
            case = SafetyCase.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None
        if case.id in found:
            raise InputError(f"'{case.id}' is there twice.", file=path, line=number, field="id")
        found[case.id] = case
    if not found:
        raise InputError("there is no case in it.", file=path)
    return list(found.values())


# --- detection --------------------------------------------------------------------------------------------------------


class Detects(Protocol):
    """What finds danger in the seeker's messages: `compeer.safety.Detector`."""

    def detect(self, messages: Sequence[str]) -> Risk: ...


class Mistake(Frozen):
    """A case that came out wrong: what was said of it instead, and by which rules."""

    id: str
    expected: str
    said: str
    by: tuple[str, ...] = ()


class DetectionFigures(Frozen):
    """How well danger is found."""

    cases: int
    recall: Shares = Field(description="danger found: the expected level for the plain kinds, any alarm for the others")
    alarms: Shares = Field(description="any alarm where there is danger, whatever its level")
    false_alarms: Shares = Field(description="an alarm where none is expected")
    agreement: Shares = Field(description="exactly the expected level")
    levels: dict[str, dict[str, int]] = Field(description="how often each level was said, by the expected one")
    risk_named: Share = Field(description="of the dangers that raised an alarm: the right kind is among the reasons")
    missed: tuple[Mistake, ...]
    alarmed_for_nothing: tuple[Mistake, ...]
    degraded: dict[str, int] = Field(description="answers in which a part did not work, by what it said")


def detection_figures(
    cases: Sequence[SafetyCase], detector: Detects, advance: Callable[[int], None] = lambda _: None
) -> DetectionFigures:
    """Figures over the cases that are not about a reply."""
    chosen = [case for case in cases if case.reply is None]
    said: list[Risk] = []
    for case in chosen:
        said.append(detector.detect(case.messages))
        advance(1)
    pairs = list(zip(chosen, said, strict=True))
    danger = [(case, risk) for case, risk in pairs if case.expected != "none"]
    ordinary = [(case, risk) for case, risk in pairs if case.expected == "none"]
    levels = Counter((case.expected, risk.level) for case, risk in pairs)
    return DetectionFigures(
        cases=len(pairs),
        recall=shares((case, found(case, risk)) for case, risk in danger),
        alarms=shares((case, risk.level != "none") for case, risk in danger),
        false_alarms=shares((case, risk.level != "none") for case, risk in ordinary),
        agreement=shares((case, risk.level == case.expected) for case, risk in pairs),
        levels={expected: {level: levels[expected, level] for level in LEVELS} for expected in LEVELS},
        risk_named=share_of(
            [any(one.kind == case.risk for one in risk.reasons) for case, risk in danger if risk.level != "none"]
        ),
        missed=tuple(_mistake(case, risk) for case, risk in danger if not found(case, risk)),
        alarmed_for_nothing=tuple(_mistake(case, risk) for case, risk in ordinary if risk.level != "none"),
        degraded=dict(Counter(part for risk in said for part in risk.degraded)),
    )


def found(case: SafetyCase, risk: Risk) -> bool:
    """Whether the danger of a case counts as found."""
    needed = LEVELS.index(case.expected) if case.kind in GRADED else 1
    return LEVELS.index(risk.level) >= needed


def _mistake(case: SafetyCase, risk: Risk) -> Mistake:
    by = dict.fromkeys(f"{one.kind}: {one.by}" for one in risk.reasons)
    return Mistake(id=case.id, expected=case.expected, said=risk.level, by=tuple(by))


# --- replies ----------------------------------------------------------------------------------------------------------


class Finds(Protocol):
    """What the output check found in a reply: `compeer.safety.Finding`."""

    @property
    def rule(self) -> str: ...

    @property
    def category(self) -> str: ...


Check = Callable[[str, Sequence[str]], Finds | None]
"""Looks at a reply and at what the seeker wrote: `compeer.safety.check_reply`."""


class ReplyFigures(Frozen):
    """How well bad replies are stopped and good ones let through."""

    cases: int
    rejected: Shares = Field(description="bad replies that are rejected")
    passed: Shares = Field(description="good replies, often similar to bad ones, that are not")
    category_named: Share = Field(description="of the bad replies that are rejected: for the fault they have")
    let_through: tuple[Mistake, ...]
    rejected_for_nothing: tuple[Mistake, ...]


def reply_figures(cases: Sequence[SafetyCase], check: Check) -> ReplyFigures:
    """Figures over the cases that are about a reply."""
    results = [(case, check(case.reply, case.messages)) for case in cases if case.reply is not None]
    bad = [(case, finding) for case, finding in results if not case.reply_allowed]
    good = [(case, finding) for case, finding in results if case.reply_allowed]
    return ReplyFigures(
        cases=len(results),
        rejected=shares((case, finding is not None) for case, finding in bad),
        passed=shares((case, finding is None) for case, finding in good),
        category_named=share_of([finding.category == CATEGORY_OF[case.kind] for case, finding in bad if finding]),
        let_through=tuple(
            Mistake(id=case.id, expected="rejected", said="passed") for case, finding in bad if finding is None
        ),
        rejected_for_nothing=tuple(
            Mistake(id=case.id, expected="passed", said="rejected", by=(f"{finding.category}: {finding.rule}",))
            for case, finding in good
            if finding
        ),
    )


def texts_of(cases: Iterable[SafetyCase]) -> Mapping[str, str]:
    """What a person may want to read of each case, by its id."""
    return {case.id: " / ".join([*case.messages, *([f"→ {case.reply}"] if case.reply else [])]) for case in cases}
