"""A conversation in the terminal: how a turn is printed, and what the seeker can type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compeer.cli.printing import plain
from compeer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from compeer.chat.session import ChatSession
    from compeer.chat.turn import Event, JudgedCandidate, Supporter, TurnDone, TurnRequest
    from compeer.policy.control import Control

NOTICE = "This is software, and no clinician: it can be wrong, and it cannot see how you are. In danger, call for help."
HELP = """\
/strategy NAME   choose the strategy of the next turns; without a name: list them; /strategy off: leave it open
/stage, /emotion, /persona   the same for the stage, the seeker's emotion, the manner of speaking
/redo [STRATEGY]   write the last turn again, with another strategy if one is named
/why    why the supporter said that: its three steps
/save FILE   keep the conversation: .json or .md
/quit   leave; nothing is kept
Ctrl-C stops a reply."""


# --- showing a turn ---------------------------------------------------------------------------------------------------


class Screen:
    """Prints a turn as it comes: steps dimmed, then the reply."""

    def __init__(self, printer: Console) -> None:
        self._printer = printer
        self.text = ""
        self._steps = False

    def show(self, supporter: Supporter, request: TurnRequest) -> TurnDone:
        """Lets the supporter answer, and prints all of it."""
        from compeer.chat.turn import TurnDone

        async def follow() -> TurnDone:
            async for event in supporter.converse(request):
                self._print(event)
                if isinstance(event, TurnDone):
                    return event
            raise RuntimeError("a turn ended without TurnDone")

        return asyncio.run(follow())

    def _print(self, event: Event) -> None:
        from compeer.chat.turn import NO_REPLY, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone
        from compeer.reasoning import render_step

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
    from compeer.reasoning import one_line

    mark = "→" if candidate.place == 1 else " "
    if candidate.turn is None:
        return f"{mark} {candidate.number}. not shown: {candidate.problem}"
    summary = f"{candidate.turn.strategy.strategy}: {one_line(candidate.turn.response)}"
    if candidate.score is None:
        return f"{mark} {candidate.number}. {summary} (not judged: {candidate.problem})"
    verdicts = ", ".join(f"{part} {value:+d}" for part, value in candidate.score.parts().items() if value is not None)
    return f"{mark} {candidate.number}. {summary} ({verdicts})"


# --- a conversation ---------------------------------------------------------------------------------------------------


class Chat:
    """A conversation in the terminal; `ask` reads what the seeker types."""

    def __init__(
        self, supporter: Supporter, session: ChatSession, printer: Console, ask: Callable[[str], str] = input
    ) -> None:
        self._supporter, self._session, self._printer, self._ask = supporter, session, printer, ask

    def run(self) -> None:
        """Talks until the seeker leaves."""
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
            self._session.done(screen.show(self._supporter, request))
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
        choice = "" if value else f" Known: {', '.join(known_values(field))}"
        self._print(f"{field}: {now or 'left to the supporter'}.{choice}")

    def _with(self, field: str, value: str) -> Control:
        found = None if value.lower() in ("off", "none") else matched(field, value)
        return self._session.control.model_copy(update={field: found})

    def _why(self) -> None:
        from compeer.chat.session import steps_of

        last = self._session.last
        if last is None:
            self._print("Nothing has been said that could be explained.")
        elif last.guarded.hide_reasoning:
            self._print("After words of danger the reasoning is not shown.")
        elif last.turn is None:
            self._print(f"The supporter's own words are not shown ({last.guarded.replaced or 'no whole turn'}).")
        else:
            self._print("\n".join(steps_of(last.turn)))

    def _print(self, text: str) -> None:
        self._printer.print(plain(text), style="dim", highlight=False, soft_wrap=True)


# --- what can be set --------------------------------------------------------------------------------------------------


def known_values(field: str) -> tuple[str, ...]:
    """What a field can be set to."""
    from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES

    if field == "persona":
        from compeer.policy.control import PERSONAS  # its room is slow to load

        return PERSONAS
    return {"strategy": STRATEGIES, "stage": STAGES, "emotion": EMOTIONS}[field]


def matched(field: str, value: str) -> str:
    """The value that a person means: by its name in any case, or by a beginning that fits only one."""
    known = known_values(field)
    same = [one for one in known if one.lower() == value.lower()]
    found = same or [one for one in known if one.lower().startswith(value.lower())]
    if len(found) != 1:
        raise InputError(f"unknown {field} '{value}'.", field=field, do=f"Known: {', '.join(known)}")
    return found[0]
