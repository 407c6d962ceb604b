"""A conversation in the terminal, from its first message to the file it may be saved in.

A session keeps the utterances, the control that holds until it is changed, and the guard's memory. It makes the
`TurnRequest` for the next turn and takes in how that turn ended. It is kept in memory only, until somebody saves it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from compeer.chat.conversation import NO_REPLY, GuardedSupporter
from compeer.chat.turn import SAMPLING, Event, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone, TurnRequest
from compeer.dialogue import Dialogue, Notes, Utterance
from compeer.errors import InputError
from compeer.io import write_lines, write_text
from compeer.models.base import Sampling
from compeer.policy.control import VALUES, Control, read_control
from compeer.reasoning import STEPS, SupportTurn, one_line, render_step
from compeer.safety.guard import GuardState

NOTICE = "This is software, and no clinician: it can be wrong, and it cannot see how you are. In danger, call for help."
HELP = files("compeer.chat").joinpath("terminal_help.txt").read_text("utf-8").strip()


@dataclass
class ChatSession:
    """A conversation under way."""

    control: Control = field(default_factory=Control)
    best_of: int = 1
    sampling: Sampling = SAMPLING
    seed: int = 0
    utterances: list[Utterance] = field(default_factory=list)
    last: TurnDone | None = None
    _state: GuardState = field(default_factory=GuardState)
    _before: GuardState = field(default_factory=GuardState)
    _turns: int = 0

    def say(self, text: str) -> TurnRequest:
        """The request for an answer to the seeker's message."""
        self.utterances.append(Utterance(speaker="seeker", text=text))
        return self._request(self.control)

    def redo(self, control: Control | None = None) -> TurnRequest:
        """The request for the last turn again, this once under another control; its old reply is forgotten."""
        while self.utterances and self.utterances[-1].speaker == "supporter":
            self.utterances.pop()
        if not self.utterances:
            raise InputError("there is no turn to redo yet.", do="Say something first.")
        self._state, self.last = self._before, None
        return self._request(control or self.control)

    def _request(self, control: Control) -> TurnRequest:
        self._turns += 1
        self._before = self._state
        seed = self.seed + self._turns - 1
        return TurnRequest(tuple(self.utterances), control, self.best_of, self.sampling, seed, self._state)

    def done(self, done: TurnDone) -> None:
        self._state, self.last = done.guarded.state, done
        if done.turn is not None and self.utterances:
            feeling = {"emotion": done.turn.emotion.emotion, "intensity": done.turn.emotion.intensity}
            self.utterances[-1] = self.utterances[-1].model_copy(update=feeling)
        reply = _utterance(done.reply, done.turn)
        self.utterances.append(reply.model_copy(update={"notes": None}) if done.guarded.hide_reasoning else reply)

    def stopped(self, reply: str) -> None:
        """Takes in that the seeker stopped the turn; what was displayed of the reply stays."""
        self.last = None
        if reply.strip():
            self.utterances.append(_utterance(reply.strip(), None))

    def save(self, path: Path, model: str, language: str) -> None:
        """Writes the conversation to a new file: Markdown if the name ends in .md, else a dialogue as JSON."""
        if not self.utterances:
            raise InputError("nothing has been said yet.", file=path)
        if path.exists():
            raise InputError("there is such a file already.", file=path, do="Give another name.")
        every = tuple(self.utterances)
        dialogue = Dialogue(id=path.stem or "chat", language=language, source=f"chat: {model}", utterances=every)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() == ".md":
                write_text(path, as_markdown(every, model))
            else:
                write_lines(path, [dialogue])
        except (OSError, ValueError) as error:
            raise InputError(f"it cannot be written: {error}", file=path) from None


def _utterance(reply: str, turn: SupportTurn | None) -> Utterance:
    if turn is None:
        return Utterance(speaker="supporter", text=reply)
    notes = Notes(history=turn.history.text, emotion=turn.emotion.text, strategy=turn.strategy.text)
    strategy, stage = turn.strategy.strategy, turn.history.stage
    return Utterance(speaker="supporter", text=reply, strategy=strategy, stage=stage, notes=notes)


def as_markdown(utterances: Sequence[Utterance], model: str) -> str:
    """A conversation for people to read, decisions under each reply."""
    lines = [f"# A conversation with {model}", "", "Written by software, not by a clinician.", ""]
    for utterance in utterances:
        lines += [f"**{utterance.speaker.capitalize()}:** {utterance.text}", ""]
        if utterance.strategy:
            lines += [f"*{utterance.stage}, {utterance.strategy}*", ""]
    return "\n".join(lines)


def collected(supporter: GuardedSupporter, request: TurnRequest) -> dict[str, Any]:
    """The supporter's answer as one JSON object."""
    events: list[Event] = []
    done = answered(supporter, request, events.append)
    found: dict[str, Any] = {
        "model": supporter.name,
        "reply": done.reply,
        "turn": done.turn.model_dump() if done.turn and not done.guarded.hide_reasoning else None,
        "risk": done.guarded.risk.level,
        "replaced": done.guarded.replaced,
        "degraded": list(done.guarded.degraded),
        "problems": list(done.problems),
        "tokens": done.tokens,
    }
    if request.best_of > 1:
        found["candidates"] = [
            {
                **vars(one),
                "turn": one.turn.model_dump() if one.turn else None,
                "score": {**one.score.parts(), "total": one.score.total} if one.score else None,
            }
            for one in events
            if isinstance(one, JudgedCandidate)
        ]
    return found


def answered(supporter: GuardedSupporter, request: TurnRequest, hear: Callable[[Event], object]) -> TurnDone:
    """Lets the supporter answer, and passes on each event."""

    async def follow() -> TurnDone:
        async for event in supporter.converse(request):
            hear(event)
            if isinstance(event, TurnDone):
                return event
        raise RuntimeError("a turn ended without TurnDone")

    return asyncio.run(follow())


class Screen:
    """Prints a turn as it comes: steps dimmed, then the reply."""

    def __init__(self, printer: Console) -> None:
        self._printer = printer
        self.text = ""
        self._steps = False

    def hear(self, event: Event) -> None:
        match event:
            case StepDone(part, step):
                self._write(f"{chr(10) if self._steps else ''}{render_step(part, step)}", "dim")
                self._steps = True
            case JudgedCandidate():
                self._write(candidate_line(event) + "\n", "dim")
            case ReplyPart(text):
                if self._steps:
                    self._write("\n\n")
                    self._steps = False
                self.text += text
                self._write(text)
            case Retracted():
                self._write("\n(taken back)\n\n", "dim")
                self.text = ""
            case TurnDone():
                self._write("\n")
                if event.problems and event.guarded.replaced in (None, NO_REPLY):
                    self._write(f"({'; '.join(event.problems)})\n", "dim")

    def _write(self, text: str, style: str = "") -> None:
        self._printer.print(escape(text), end="", style=style, highlight=False, soft_wrap=True)


def candidate_line(candidate: JudgedCandidate) -> str:
    """One of several outputs with its verdicts, on a line."""
    mark = "→" if candidate.place == 1 else " "
    if candidate.turn is None:
        return f"{mark} {candidate.number}. not shown: {candidate.problem}"
    summary = f"{candidate.turn.strategy.strategy}: {one_line(candidate.turn.response)}"
    if candidate.score is None:
        return f"{mark} {candidate.number}. {summary} (not judged: {candidate.problem})"
    verdicts = ", ".join(f"{part} {value:+d}" for part, value in candidate.score.parts().items() if value is not None)
    return f"{mark} {candidate.number}. {summary} ({verdicts})"


class Chat:
    """A conversation in the terminal; `ask` reads what the seeker types."""

    def __init__(
        self, supporter: GuardedSupporter, session: ChatSession, printer: Console, ask: Callable[[str], str] = input
    ) -> None:
        self._supporter, self._session, self._printer, self._ask = supporter, session, printer, ask

    def run(self) -> None:
        self._print(f"Talking with {self._supporter.name} ({self._supporter.language}). {NOTICE}\n/help, /quit")
        while True:
            try:
                text = self._ask("\nYou: ").strip()
            except KeyboardInterrupt:
                self._print("\n/quit leaves.")
                continue
            except EOFError:
                self._print("")
                return
            if text in ("/quit", "/exit"):
                return
            try:
                if text.startswith("/"):
                    self._command(*text[1:].split(maxsplit=1))
                elif text:
                    self._turn(self._session.say(text))
            except InputError as error:
                self._print(str(error))

    def _turn(self, request: TurnRequest) -> None:
        screen = Screen(self._printer)
        try:
            self._session.done(answered(self._supporter, request, screen.hear))
        except KeyboardInterrupt:
            self._session.stopped(screen.text)
            self._print("\n(stopped)")

    def _command(self, name: str = "", rest: str = "") -> None:
        match name:
            case "strategy" | "stage" | "emotion" | "persona":
                self._set(name, rest.strip())
            case "redo":
                self._turn(self._session.redo(self._with("strategy", rest.strip()) if rest.strip() else None))
            case "why":
                self._why()
            case "save":
                if not rest.strip():
                    raise InputError("a file's name is needed.", do="Write: /save conversation.md")
                path = Path(rest.strip()).expanduser()
                self._session.save(path, self._supporter.name, self._supporter.language)
                self._print(f"written: {path}")
            case "help":
                self._print(HELP)
            case _:
                raise InputError(f"there is no command '/{name}'.", do=HELP)

    def _set(self, field: str, value: str) -> None:
        if value:
            self._session.control = self._with(field, value)
        now = getattr(self._session.control, field)
        choice = "" if value else f" Known: {', '.join(VALUES[field])}"
        self._print(f"{field}: {now or 'left to the supporter'}.{choice}")

    def _with(self, field: str, value: str) -> Control:
        found = Control() if value.lower() in ("off", "none") else read_control([f"{field}={value}"])
        return self._session.control.model_copy(update={field: getattr(found, field)})

    def _why(self) -> None:
        last = self._session.last
        if last is None:
            self._print("Nothing has been said that could be explained.")
        elif last.guarded.hide_reasoning:
            self._print("After words of danger the reasoning is not shown.")
        elif last.turn is None:
            self._print(f"The supporter's own words are not shown ({last.guarded.replaced or 'no whole turn'}).")
        else:
            self._print("\n".join(render_step(part, last.turn.step(part)) for part in STEPS))

    def _print(self, text: str) -> None:
        self._printer.print(escape(text), style="dim", highlight=False, soft_wrap=True)
