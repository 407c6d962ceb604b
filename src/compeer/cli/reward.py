"""`compeer reward`: train a judge, let it judge, and measure it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Console

from compeer.cli.models import open_named
from compeer.cli.options import CACHE, CALL, CHANGES, GOES_ON, RECORDS, SEED, SPLITS, argument, option, writable
from compeer.cli.printing import note, note_written, plain, print_metrics, standard_input
from compeer.cli.training import NEEDS, claim, labelled_indices, needs_of, read_settings, read_split
from compeer.dialogue import Utterance
from compeer.errors import InputError
from compeer.progress import progress
from compeer.reasoning import STEPS, ParsedTurn, SupportTurn, parse_turn, render_turn

if TYPE_CHECKING:
    from compeer.reward.conversation import Case, JudgeForm
    from compeer.reward.metrics import Judgments
    from compeer.reward.score import Judge

reward = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train, use and measure judges.")


@reward.command(epilog=GOES_ON)
def train(
    records: Path = RECORDS,
    out: Path = argument("The folder to train in; the judge ends up in its model/."),
    changes: list[str] | None = CHANGES,
    split: str = option(SPLITS, "reward"),
    seed: int = SEED,
) -> None:
    """Train a judge on labelled records: UnifiReward, or kind=process (PRM), kind=outcome (ORM), blind=true."""
    from compeer.reward.train import RewardSettings, train_judge

    start: dict[str, Any] = {"steps": 400, "batch": 1, "learning_rate": 1e-4, "lora_rank": 0, "save_every": 100}
    settings = read_settings(RewardSettings, start, changes)
    known = read_split(records, split)
    chosen = [known[index] for index in labelled_indices(known, NEEDS[settings.kind], records)]
    claim(out, records, split, settings, seed)
    print_metrics(train_judge(chosen, settings, out, seed), out / "model")


@reward.command()
def judge(
    records: Path | None = argument("A file of SER records; not with --said.", None),
    model: str = argument("'judge' (packaged), a trained judge's folder, or NAME@http://host:8000/v1.", "judge"),
    out: Path | None = argument("The file of judgments to write.", None, callback=writable),
    message: str | None = option("Judge one turn instead: what the seeker wrote.", None, "--said"),
    output: str | None = option("With --said: the output, four lines or what `compeer say --json` printed."),
    reference: str | None = option("With --said: a response to compare with; without one only steps are judged."),
    judge_name: str | None = option("With --said: the judge.", None, "--judge", "-m"),
    as_json: bool = option("With --said: print one JSON object.", False, "--json"),
    split: str = option(SPLITS, "test"),
    batch: int | None = option("Outputs judged at a time in this process; 16 if not given.", min=1),
    both_orders: bool = option("Compare responses in both orders and average.", False, "--both-orders"),
    threshold: float | None = option("From which probability on a step is True; the card's if not given."),
    media: Path | None = option("The folder that paths of pictures count from."),
    kind: Literal["unified", "process", "outcome"] | None = option("What an endpoint is asked; unified if not given."),
    reasons: bool = option("Let an endpoint give reasons before verdicts.", False, "--reasons"),
    trained: bool = option("The endpoint serves a judge of ours.", False, "--trained"),
    call: list[str] | None = CALL,
    cache: Path | None = option("Where an endpoint's answers are kept; answers.sqlite if not given."),
) -> None:
    """Let a judge judge records, once, or one turn that is given here; exit code 1 if nothing could be scored.

    RECORDS MODEL OUT: metrics are then made from the file wherever you like. --said "…" --output "…": the verdicts on
    one turn; --output - reads it from the standard input, so that `compeer say` can write it.
    """
    from compeer.reward.conversation import Case, record_case
    from compeer.reward.judges import open_judge
    from compeer.reward.judgments import write_judgments

    name = model if message is None else judge_name or model
    local = {"--batch": batch, "--threshold": threshold}
    remote = {"--kind": kind, "--reasons": reasons, "--trained": trained, "--call": call, "--cache": cache}
    form = _judge_form(name, kind, reasons, local, remote)
    opened = partial(open_judge, name, form, trained=trained, batch=batch or 16, threshold=threshold, media=media)
    opened = partial(opened, model=lambda url: open_named(url, call, cache or CACHE), both_orders=both_orders)
    if message is not None:
        if not message.strip():
            do = 'Write: compeer reward judge --said "I cannot sleep." --output "…"'
            raise InputError("the seeker says nothing.", field="said", do=do)
        case = Case((Utterance(speaker="seeker", text=message),), _read_output(output), reference)
        scored = _judge_turn(opened(), case, as_json)
    elif records is None or out is None:
        do = 'Give RECORDS MODEL OUT, or --said "…" --output "…" for one turn.'
        raise InputError("there is nothing to judge.", do=do)
    else:
        known = read_split(records, split)
        chosen = [known[index] for index in labelled_indices(known, NEEDS[form.kind], records)]
        with progress("Judging", len(chosen)) as advance:
            found = opened(progress=advance).judge([record_case(record) for record in chosen])
        write_judgments(out, chosen, found)
        scored = _print_judged(found, out) > 0
    if not scored:
        raise typer.Exit(1)


@reward.command()
def evaluate(
    records: Path = RECORDS,
    judgments: Path = argument("A file of judgments of these records."),
    split: str = option(SPLITS, "test"),
    plot: Path | None = option("An SVG file to draw the reliability diagrams to.", callback=writable),
) -> None:
    """All metrics of one judge as JSON: by part, by kind of mistake, calibration, position bias, contradictions."""
    from compeer.report.charts import reliability_svg
    from compeer.reward.contradiction import record_contradictions
    from compeer.reward.judgments import read_judgments
    from compeer.reward.metrics import calibration_metrics, judge_metrics, position_metrics

    known = read_split(records, split)
    every = read_judgments(judgments, known)
    indices = labelled_indices(known, needs_of([every]), records)
    chosen, judged = [known[index] for index in indices], [every[index] for index in indices]
    found = {
        **judge_metrics(chosen, judged),
        "calibration": calibration_metrics(chosen, judged),
        "position": position_metrics(chosen, judged),
        "contradictions": record_contradictions(chosen, judged),
    }
    typer.echo(json.dumps(found, indent=1, ensure_ascii=False, default=str))
    if plot:
        if not found["calibration"]:
            raise InputError("nothing was scored, so there is nothing to draw.", file=judgments)
        plot.write_text(reliability_svg(found["calibration"]), encoding="utf-8")
        note_written(plot)


def _print_judged(found: Judgments, out: Path) -> int:
    """Prints how many records were scored, and why the others were not; returns how many were."""
    from compeer.reward.score import Unscored

    reasons = Counter(one.reason for one in found if isinstance(one, Unscored))
    scored = len(found) - reasons.total()
    most = f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
    text = f"{len(found):,} judgments written to {out}: {scored:,} scored, {reasons.total():,} not{most}"
    note(text, "" if scored else "yellow")
    return scored


def _judge_form(
    model: str, kind: str | None, reasons: bool, local: Mapping[str, Any], remote: Mapping[str, Any]
) -> JudgeForm:
    """The form in which the judge is asked: by its folder's card, or by options for a server; idle ones are refused."""
    from compeer.models.resolve import card_folder
    from compeer.models.training import model_card
    from compeer.reward.conversation import JudgeForm
    from compeer.reward.judge import form_of

    threshold = local["--threshold"]
    if threshold is not None and not 0 <= threshold <= 1:
        raise InputError(f"{threshold:g} is no probability.", field="threshold", do="Give one from 0 to 1.")
    server = "@http" in model
    idle = [name for name, value in (local if server else remote).items() if value not in (None, False, [])]
    if idle:
        own = "for judges in this process; an endpoint answers in words"
        what = own if server else "for endpoints (NAME@http://…); a judge's folder says itself how it is asked"
        do = "Leave it out." if len(idle) == 1 else "Leave them out."
        raise InputError(f"{' and '.join(idle)}: only {what}.", do=do)
    if not server:
        return form_of(model_card(card_folder(model)))
    return JudgeForm.model_validate({"kind": kind or "unified", "reasons": reasons})


def _judge_turn(judge: Judge, case: Case, as_json: bool) -> bool:
    """Judges a turn and prints what the judge says of each part; whether it could be asked."""
    from compeer.reward.score import Judgment, score

    parsed, found = case.output, judge.judge([case])[0]
    given = score(parsed, found)
    answered = isinstance(found, Judgment) or given.unscored is None
    judged = found if isinstance(found, Judgment) else Judgment({})
    steps = {
        part: {"right": judged.step(part), "probability": round(judged.steps[part], 4)}
        for part in STEPS
        if part in judged.steps
    }
    report: dict[str, Any] = {
        "judge": judge.name,
        "steps": steps,
        "preferred": judged.preferred(),
        "void": judged.void,
        "score": {**given.parts(), "total": given.total},
        "unscored": given.unscored,
        "missing": list(parsed.missing),
        "problems": list(parsed.problems),
    }
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, indent=1))
        return answered
    lines = []
    for part in STEPS:
        if part in parsed.missing:
            lines.append(f"{part:<9} missing")
        elif part in steps:
            right = "[green]True[/] " if steps[part]["right"] else "[red]False[/]"
            lines.append(f"{part:<9} {right}  p(True) {steps[part]['probability']:.2f}")
    if report["preferred"]:
        lines.append(f"{'response':<9} better: {report['preferred']}")
    if report["void"]:
        lines.append(f"{'response':<9} counts for nothing: {plain(report['void'])}")
    lines += [f"[yellow]![/] {plain(problem)}" for problem in parsed.problems]
    most = "5" if given.response is not None else "4 (there is no response to compare with)"
    lines.append(f"not scored: {plain(given.unscored)}" if given.unscored else f"total     {given.total} of {most}")
    for line in lines:
        Console().print(f"  {line}", highlight=False, soft_wrap=True)
    return answered


def _read_output(output: str | None) -> ParsedTurn:
    """The output as it was given: its four lines, what `compeer say --json` printed, or `-` for the standard input."""
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
