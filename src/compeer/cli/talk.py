"""`compeer say` and `compeer chat`: one structured turn of a supporter, or a whole conversation in the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.conversation import Chat, Screen, matched
from compeer.cli.printing import silence_libraries, standard_input, tell_unknown_place
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from rich.console import Console

    from compeer.chat.turn import Event, Supporter, TurnRequest
    from compeer.policy.control import Control

UNGUARDED = "The guard is off: danger is not looked for, and nothing checks what the supporter says."
SUPPORTER = "best"
SUPPORTER_HELP = (
    "'supporter' or 'supporter-1.5b' (packaged, trained; 'best': the larger one if its base is here), a base's name, "
    "a supporter's folder, or NAME@http://host:8000/v1."
)
Model = Annotated[str, typer.Option(help=SUPPORTER_HELP)]
Base = Annotated[bool, typer.Option("--base", help="The packaged model before any training, to compare with.")]
JudgeName = Annotated[
    str, typer.Option("--judge", help="Who chooses among several outputs: 'judge' (packaged), a folder, or NAME@URL.")
]
BestOf = Annotated[int, typer.Option("--best-of", min=1, help="Write so many outputs; the judge chooses.")]
StrategyName = Annotated[str | None, typer.Option("--strategy", help="Force a strategy, as Question.")]
StageName = Annotated[str | None, typer.Option("--stage", help="Force a stage, as exploration.")]
EmotionName = Annotated[str | None, typer.Option("--emotion", help="Force what the seeker is taken to feel.")]
PersonaName = Annotated[str | None, typer.Option("--persona", help="Ask for a manner of speaking, as steady.")]
Locale = Annotated[str | None, typer.Option(help="Whose numbers for help are named, as en-GB; none: no country's.")]
NoGuard = Annotated[bool, typer.Option("--no-guard", help="Switch the safety guard off. For experiments only.")]
Temperature = Annotated[float, typer.Option(min=0, help="0 takes the most probable token.")]
MaxTokens = Annotated[int, typer.Option(min=16, help="Longest output, in tokens.")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]


def say(
    text: Annotated[str, typer.Argument(help="What the seeker says; - reads it from the standard input.")],
    model: Model = SUPPORTER,
    base: Base = False,
    judge: JudgeName = "judge",
    best_of: BestOf = 1,
    strategy: StrategyName = None,
    stage: StageName = None,
    emotion: EmotionName = None,
    persona: PersonaName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    locale: Locale = None,
    no_guard: NoGuard = False,
    temperature: Temperature = 0.4,
    max_tokens: MaxTokens = 320,
    seed: Seed = 0,
) -> None:
    """Let a supporter answer one message: three steps of reasoning, then its reply."""
    from compeer.chat.session import ChatSession
    from compeer.chat.turn import NO_REPLY, SAMPLING

    text = standard_input() if text == "-" else text
    if not text.strip():
        raise InputError("there is nothing to answer.", field="text", do='Write: compeer say "I cannot sleep."')
    control = _control(strategy=strategy, stage=stage, emotion=emotion, persona=persona)
    sampling = SAMPLING.model_copy(update={"temperature": temperature, "max_tokens": max_tokens})
    with _opened(_chosen(model, base), judge if best_of > 1 else None, locale, no_guard) as supporter:
        request = ChatSession(control, best_of, sampling, seed).say(text)
        if as_json:
            found = _collected(supporter, request)
            typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
            replaced = found["replaced"]
        else:
            replaced = Screen(_printer()).show(supporter, request).guarded.replaced
    if replaced == NO_REPLY:
        raise typer.Exit(1)


def chat(
    model: Model = SUPPORTER,
    base: Base = False,
    judge: JudgeName = "judge",
    best_of: BestOf = 1,
    strategy: StrategyName = None,
    stage: StageName = None,
    emotion: EmotionName = None,
    persona: PersonaName = None,
    locale: Locale = None,
    no_guard: NoGuard = False,
    temperature: Temperature = 0.4,
    max_tokens: MaxTokens = 320,
    seed: Seed = 0,
) -> None:
    """Talk with a supporter in the terminal. /help tells what can be steered; nothing is kept unless you /save it."""
    from compeer.chat.resolve import larger_note
    from compeer.chat.session import ChatSession
    from compeer.chat.turn import SAMPLING

    control = _control(strategy=strategy, stage=stage, emotion=emotion, persona=persona)
    sampling = SAMPLING.model_copy(update={"temperature": temperature, "max_tokens": max_tokens})
    session = ChatSession(control, best_of, sampling, seed)
    with _opened(_chosen(model, base), judge if best_of > 1 else None, locale, no_guard) as supporter:
        if note := larger_note(supporter.name):
            console.print(f"[dim]{note}[/]", highlight=False, soft_wrap=True)
        Chat(supporter, session, _printer()).run()


# --- what both share --------------------------------------------------------------------------------------------------


def _chosen(model: str, base: bool) -> str:
    if base and model != SUPPORTER:
        raise InputError("--base means the packaged model, and --model another.", do="Give one of the two.")
    return "embedded" if base else model


def _control(**wanted: str | None) -> Control:
    from compeer.policy.control import Control

    return Control.model_validate({field: matched(field, value) for field, value in wanted.items() if value})


@contextmanager
def _opened(model: str, judge: str | None, locale: str | None, no_guard: bool) -> Iterator[Supporter]:
    """The supporter that the options describe, closed at the end; says so if it has no guard."""
    from compeer.chat.resolve import resolve_judge, resolve_supporter
    from compeer.safety.guard import Guard

    silence_libraries()
    if no_guard:
        console.print(f"[bold red]{UNGUARDED}[/]", highlight=False, soft_wrap=True)
    tell_unknown_place(locale)
    guard = None if no_guard else Guard(locale=locale)
    supporter = resolve_supporter(model, guard, resolve_judge(judge) if judge else None)
    try:
        yield supporter
    finally:
        supporter.close()


def _collected(supporter: Supporter, request: TurnRequest) -> dict[str, Any]:
    """A turn as one object."""
    from compeer.chat.turn import JudgedCandidate, TurnDone

    async def collect() -> list[Event]:
        return [event async for event in supporter.converse(request)]

    events = asyncio.run(collect())
    done = events[-1]
    assert isinstance(done, TurnDone)
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
                "number": one.number,
                "place": one.place,
                "turn": one.turn.model_dump() if one.turn else None,
                "score": {**one.score.parts(), "total": one.score.total} if one.score else None,
                "problem": one.problem,
            }
            for one in events
            if isinstance(one, JudgedCandidate)
        ]
    return found


def _printer() -> Console:
    from rich.console import Console

    return Console()
