"""`compeer say` and `compeer chat`: one structured turn of a supporter, or a whole conversation in the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from compeer.cli.options import LONGEST, SEED, TEMPERATURE, argument, grouped, option
from compeer.cli.printing import note, note_unknown_locale, plain, standard_input
from compeer.errors import InputError
from compeer.reasoning import STEPS, one_line, render_step

if TYPE_CHECKING:
    from compeer.chat.conversation import GuardedSupporter
    from compeer.chat.session import ChatSession
    from compeer.chat.turn import Event, JudgedCandidate, TurnDone, TurnRequest
    from compeer.policy.control import Control

NOTICE = "This is software, and no clinician: it can be wrong, and it cannot see how you are. In danger, call for help."
HELP = files("compeer.cli").joinpath("chat_help.txt").read_text("utf-8").strip()
UNGUARDED = "The guard is off: danger is not looked for, and nothing checks what the supporter says."
MODEL = option(
    "'supporter' or 'supporter-1.5b' (packaged, trained; 'best': the larger one if its base is here), 'embedded' "
    "(before any training), a base's name, a supporter's folder, or NAME@http://host:8000/v1.",
    "best",
)


@dataclass
class TalkOptions:
    """What can be chosen where a supporter talks in the terminal."""

    model: str = MODEL
    judge: str = option("Who chooses among several outputs: 'judge' (packaged), a folder, or NAME@URL.", "judge")
    best_of: int = option("Write so many outputs; the judge chooses.", 1, min=1)
    strategy: str | None = option("Force a strategy, as Question.")
    stage: str | None = option("Force a stage, as exploration.")
    emotion: str | None = option("Force what the seeker is taken to feel.")
    persona: str | None = option("Ask for a manner of speaking, as steady.")
    locale: str | None = option("Whose numbers for help are named, as en-GB; none: no country's.")
    no_guard: bool = option("Switch the safety guard off. For experiments only.", False, "--no-guard")
    temperature: float = option(TEMPERATURE, 0.4, min=0)
    max_tokens: int = option(LONGEST, 320, min=16)
    seed: int = SEED

    def session(self) -> ChatSession:
        """A conversation that has not begun, steered and sampled as chosen."""
        from compeer.chat.session import ChatSession
        from compeer.chat.turn import SAMPLING
        from compeer.policy.control import read_control

        fields = ("strategy", "stage", "emotion", "persona")
        control = read_control(f"{field}={value}" for field in fields if (value := getattr(self, field)))
        sampling = SAMPLING.model_copy(update={"temperature": self.temperature, "max_tokens": self.max_tokens})
        return ChatSession(control, self.best_of, sampling, self.seed)

    def supporter(self) -> closing[GuardedSupporter]:
        """The supporter, closed at the end; says so if it has no guard."""
        from compeer.chat.resolve import resolve_judge, resolve_supporter
        from compeer.safety.guard import Guard

        if self.no_guard:
            note(UNGUARDED, "bold red")
        note_unknown_locale(self.locale)
        guard = None if self.no_guard else Guard(locale=self.locale)
        judge = resolve_judge(self.judge) if self.best_of > 1 else None
        return closing(resolve_supporter(self.model, guard, judge))


@grouped
def say(
    chosen: TalkOptions,
    text: str = argument("What the seeker says; - reads it from the standard input."),
    as_json: bool = option("Print one JSON object.", False, "--json"),
) -> None:
    """Let a supporter answer one message: three steps of reasoning, then its reply."""
    from compeer.chat.conversation import NO_REPLY

    text = standard_input() if text == "-" else text
    if not text.strip():
        raise InputError("there is nothing to answer.", field="text", do='Write: compeer say "I cannot sleep."')
    session = chosen.session()
    with chosen.supporter() as supporter:
        request = session.say(text)
        if as_json:
            found = _collected(supporter, request)
            typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
            replaced = found["replaced"]
        else:
            replaced = answered(supporter, request, Screen(Console()).hear).guarded.replaced
    if replaced == NO_REPLY:
        raise typer.Exit(1)


@grouped
def chat(chosen: TalkOptions) -> None:
    """Talk with a supporter in the terminal. /help lists what can be steered; nothing is kept unless you /save it."""
    from compeer.chat.resolve import larger_note

    session = chosen.session()
    with chosen.supporter() as supporter:
        if larger := larger_note(supporter.name):
            note(larger, "dim")
        Chat(supporter, session, Console()).run()


def _collected(supporter: GuardedSupporter, request: TurnRequest) -> dict[str, Any]:
    from compeer.chat.turn import JudgedCandidate

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
    from compeer.chat.turn import TurnDone

    async def follow() -> TurnDone:
        async for event in supporter.converse(request):
            hear(event)
        assert isinstance(event, TurnDone), "a turn ends with TurnDone"
        return event

    return asyncio.run(follow())


class Screen:
    """Prints a turn as it comes: steps dimmed, then the reply."""

    def __init__(self, printer: Console) -> None:
        self._printer = printer
        self.text = ""
        self._steps = False

    def hear(self, event: Event) -> None:
        from compeer.chat.conversation import NO_REPLY
        from compeer.chat.turn import JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone

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
        self._printer.print(plain(text), end="", style=style, highlight=False, soft_wrap=True)


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
        from compeer.policy.control import VALUES

        if value:
            self._session.control = self._with(field, value)
        now = getattr(self._session.control, field)
        choice = "" if value else f" Known: {', '.join(VALUES[field])}"
        self._print(f"{field}: {now or 'left to the supporter'}.{choice}")

    def _with(self, field: str, value: str) -> Control:
        from compeer.policy.control import Control, read_control

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
        self._printer.print(plain(text), style="dim", highlight=False, soft_wrap=True)
