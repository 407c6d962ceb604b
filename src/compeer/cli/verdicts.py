"""The verdicts on one turn that was given on the command line, for `compeer reward judge --said`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from compeer.cli.printing import plain, standard_input
from compeer.errors import InputError

if TYPE_CHECKING:
    from compeer.reasoning import ParsedTurn
    from compeer.reward.conversation import Case
    from compeer.reward.form import Judge


def turn_case(said: str, output: str | None, reference: str | None) -> Case:
    """The turn as it was given, to be judged."""
    from compeer.dialogue import Utterance
    from compeer.reward.conversation import Case

    if not said.strip():
        do = 'Write: compeer reward judge --said "I cannot sleep." --output "…"'
        raise InputError("the seeker says nothing.", field="said", do=do)
    return Case((Utterance(speaker="seeker", text=said),), read_output(output), reference)


def judge_turn(judge: Judge, case: Case, as_json: bool) -> bool:
    """Judges a turn and prints what the judge says of each part; whether it could be asked."""
    from rich.console import Console

    from compeer.reasoning import STEPS
    from compeer.reward.score import Judgment, score

    parsed = case.output
    found = judge.judge([case])[0]
    given = score(parsed, found)
    answered = isinstance(found, Judgment) or given.unscored is None
    steps = {
        part: {"right": found.step(part), "probability": round(found.steps[part], 4)}
        for part in STEPS
        if isinstance(found, Judgment) and part in found.steps
    }
    preferred = found.preferred() if isinstance(found, Judgment) else None
    void = found.void if isinstance(found, Judgment) else None
    told: dict[str, Any] = {
        "judge": judge.name,
        "steps": steps,
        "preferred": preferred,
        "void": void,
        "score": {**given.parts(), "total": given.total},
        "unscored": given.unscored,
        "missing": list(parsed.missing),
        "problems": list(parsed.problems),
    }
    if as_json:
        typer.echo(json.dumps(told, ensure_ascii=False, indent=1))
        return answered
    console = Console()
    for part in STEPS:
        if part in parsed.missing:
            console.print(f"  {part:<9} missing", highlight=False)
        elif part in steps:
            verdict = "[green]True[/] " if steps[part]["right"] else "[red]False[/]"
            console.print(f"  {part:<9} {verdict}  p(True) {steps[part]['probability']:.2f}", highlight=False)
    if preferred:
        console.print(f"  {'response':<9} better: {preferred}", highlight=False)
    if void:
        console.print(f"  {'response':<9} counts for nothing: {plain(void)}", highlight=False, soft_wrap=True)
    for problem in parsed.problems:
        console.print(f"  [yellow]![/] {plain(problem)}", highlight=False, soft_wrap=True)
    if given.unscored:
        console.print(f"  not scored: {plain(given.unscored)}", highlight=False, soft_wrap=True)
        return answered
    most = "5" if given.response is not None else "4 (there is no response to compare with)"
    console.print(f"  {'total':<9} {given.total} of {most}", highlight=False)
    return answered


def read_output(output: str | None) -> ParsedTurn:
    """The output as it was given: its four lines, what `compeer say --json` printed, or `-` for the standard input."""
    from pydantic import ValidationError

    from compeer.reasoning import SupportTurn, parse_turn, render_turn

    text = standard_input() if output == "-" else output or ""
    if not text.strip():
        do = 'Give its four lines, or pipe it: compeer say "…" --json | compeer reward judge --said "…" --output -'
        raise InputError("there is no output to judge.", field="output", do=do)
    if not text.lstrip().startswith("{"):
        return parse_turn(text)
    try:
        given = json.loads(text)
        turn = SupportTurn.model_validate(given.get("turn", given))
    except (ValueError, RecursionError, ValidationError) as error:
        do = "Give the JSON of `compeer say --json`, or the four lines of an output."
        raise InputError("this JSON holds no turn.", field="output", do=do) from error
    return parse_turn(render_turn(turn))
