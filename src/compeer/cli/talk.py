"""`compeer say` and `compeer chat`: one structured turn of a supporter, or a whole conversation in the terminal."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from compeer.cli.options import LONGEST, SEED, TEMPERATURE, argument, grouped, option
from compeer.cli.printing import note, note_unknown_locale, standard_input
from compeer.errors import InputError

if TYPE_CHECKING:
    from compeer.chat.conversation import GuardedSupporter
    from compeer.chat.terminal import ChatSession

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
        from compeer.chat.terminal import ChatSession
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
    from compeer.chat.terminal import Screen, answered, collected

    text = standard_input() if text == "-" else text
    if not text.strip():
        raise InputError("there is nothing to answer.", field="text", do='Write: compeer say "I cannot sleep."')
    session = chosen.session()
    with chosen.supporter() as supporter:
        request = session.say(text)
        if as_json:
            found = collected(supporter, request)
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
    from compeer.chat.terminal import Chat

    session = chosen.session()
    with chosen.supporter() as supporter:
        if larger := larger_note(supporter.name):
            note(larger, "dim")
        Chat(supporter, session, Console()).run()
