"""`compeer reward`: train a judge, let it judge, measure it, and compare several beside their blind twins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.judges import JudgeOptions, judge_form, open_judge
from compeer.cli.printing import plain, silence_libraries
from compeer.cli.selecting import NEEDS, check_out, labelled_places, needs_of, read_split
from compeer.cli.training import Changes, claim, read_settings
from compeer.cli.verdicts import judge_turn, turn_case
from compeer.errors import InputError
from compeer.progress import console, progress

if TYPE_CHECKING:
    from compeer.reward.score import Judgment, Unscored

reward = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train, use and measure judges.")

Records = Annotated[Path, typer.Argument(help="A file of SER records.")]
Split = Annotated[str, typer.Option(help="Which records: reward, policy, test, or all.")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
Batch = Annotated[int | None, typer.Option(help="Outputs judged at a time in this process; 16 if not given.", min=1)]
BothOrders = Annotated[bool, typer.Option("--both-orders", help="Compare responses in both orders and average.")]


@reward.command()
def train(
    records: Records,
    out: Annotated[Path, typer.Argument(help="The folder to train in; the judge ends up in its model/.")],
    changes: Changes = None,
    split: Split = "reward",
    seed: Seed = 0,
) -> None:
    """Train a judge on labelled records: UnifiReward, or kind=process (PRM), kind=outcome (ORM), blind=true.

    Stopped anywhere, it goes on when called again.
    """
    from compeer.reward.train import RewardSettings, train_judge

    silence_libraries()
    start: dict[str, Any] = {"steps": 400, "batch": 1, "learning_rate": 1e-4, "lora_rank": 0, "save_every": 100}
    settings = read_settings(RewardSettings, start, changes)
    known = read_split(records, split)
    chosen = [known[place] for place in labelled_places(known, NEEDS[settings.kind], records)]
    claim(out, records, split, settings, seed)
    figures = train_judge(chosen, settings, out, seed)
    console.print_json(json.dumps(figures))
    console.print(f"written: {plain(str(out / 'model'))}", highlight=False, soft_wrap=True)


@reward.command()
def judge(
    records: Annotated[Path | None, typer.Argument(help="A file of SER records; not with --said.")] = None,
    model: Annotated[
        str, typer.Argument(help="'judge' (packaged), a trained judge's folder, or NAME@http://host:8000/v1.")
    ] = "judge",
    out: Annotated[Path | None, typer.Argument(help="The file of judgments to write.")] = None,
    said: Annotated[
        str | None, typer.Option(help="Judge one turn instead: what the seeker said; -m names another judge.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="With --said: the output, four lines or what `compeer say --json` printed.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="With --said: a response to compare with; without one only steps are judged.")
    ] = None,
    judge_name: Annotated[str | None, typer.Option("--judge", "-m", help="With --said: the judge.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --said: print one JSON object.")] = False,
    split: Split = "test",
    batch: Batch = None,
    both_orders: BothOrders = False,
    threshold: Annotated[
        float | None, typer.Option(help="From which probability on a step is True; the card's if not given.")
    ] = None,
    media: Annotated[Path | None, typer.Option(help="The folder that paths of pictures count from.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="What an endpoint is asked: unified (if not given), process or outcome.")
    ] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Let an endpoint give reasons before verdicts.")] = False,
    trained: Annotated[bool, typer.Option("--trained", help="The endpoint serves a judge of ours.")] = False,
    call: Annotated[
        list[str] | None,
        typer.Option("--call", metavar="KEY=VALUE", help="How an endpoint is called: compeer ser calls."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where an endpoint's answers are kept; answers.sqlite if not given.")
    ] = None,
) -> None:
    """Let a judge judge records, once, or one turn that is given here; exit code 1 if nothing could be scored.

    RECORDS MODEL OUT: figures are then made from the file wherever you like. --said "…" --output "…": the verdicts on
    one turn; --output - reads it from the standard input, so that `compeer say` can write it.
    """
    from compeer.reward.compare import write_judgments
    from compeer.reward.conversation import record_case

    silence_libraries()
    options = JudgeOptions(kind, reasons, trained, call, cache, batch, threshold, both_orders, media)
    if said is not None:
        turn = turn_case(said, output, reference)
        name = judge_name or model
        one = open_judge(name, judge_form(name, options), options, lambda _: None)
        if not judge_turn(one, turn, as_json):
            raise typer.Exit(1)
        return
    if records is None or out is None:
        do = 'Give RECORDS MODEL OUT, or --said "…" --output "…" for one turn.'
        raise InputError("there is nothing to judge.", do=do)
    check_out(out)
    form = judge_form(model, options)
    known = read_split(records, split)
    chosen = [known[place] for place in labelled_places(known, NEEDS[form.kind], records)]
    with progress("Judging", len(chosen)) as advance:
        found = open_judge(model, form, options, advance).judge([record_case(record) for record in chosen])
    write_judgments(out, chosen, found)
    if not _tell_judged(found, out):
        raise typer.Exit(1)


@reward.command()
def evaluate(
    records: Records,
    judgments: Annotated[Path, typer.Argument(help="A file of judgments of these records.")],
    split: Split = "test",
    plot: Annotated[Path | None, typer.Option(help="An SVG file to draw the reliability diagrams to.")] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(metavar="DIALOGUES", help="Labelled dialogues, by which contradictions are found; repeatable."),
    ] = None,
) -> None:
    """All figures of one judge as JSON: by part, by kind of mistake, calibration, position bias, with intervals.

    --corpus adds how often its verdicts on steps and response contradict each other: whether a response does what
    step 3 says is told by a classifier that learns from these dialogues, those that were judged left out.
    """
    from compeer.reward.calibration import calibration_figures, position_figures
    from compeer.reward.compare import read_judgments
    from compeer.reward.metrics import judge_figures

    if plot:
        check_out(plot)
    known = read_split(records, split)
    every = read_judgments(judgments, known)
    places = labelled_places(known, needs_of([every]), records)
    chosen, said = [known[place] for place in places], [every[place] for place in places]
    found = {
        **judge_figures(chosen, said),
        "calibration": calibration_figures(chosen, said),
        "position": position_figures(chosen, said),
    }
    if corpus:
        from compeer.cli.measures import contradictions

        found["contradictions"] = contradictions(chosen, said, corpus)
    typer.echo(json.dumps(found, indent=1, ensure_ascii=False, default=str))
    if plot:
        from compeer.report.charts import reliability_svg

        if not found["calibration"]:
            raise InputError("nothing was scored, so there is nothing to draw.", file=judgments)
        plot.write_text(reliability_svg(found["calibration"]), encoding="utf-8")
        console.print(f"written: {plain(str(plot))}", highlight=False, soft_wrap=True)


@reward.command()
def compare(
    records: Records,
    rows: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE[,FILE...][::TWIN[,TWIN...]]...",
            help="A judge's judgments, a file a seed, and after two colons those of its blind twin.",
        ),
    ],
    split: Split = "test",
    out: Annotated[Path | None, typer.Option(help="A Markdown file to write the tables to.")] = None,
) -> None:
    """Several judges in one table, beside the all-True baseline, their blind twins and the paper's figures."""
    from rich.console import Console

    from compeer.reward.compare import JudgedSet, Said, combined, compare_judges, read_judgments
    from compeer.reward.comparison_table import as_markdown, as_rich, comparison_tables

    if out:
        check_out(out)
    known = read_split(records, split)
    files: dict[str, tuple[list[Said], list[Said]]] = {}
    for row in rows:
        name, equals, paths = row.partition("=")
        if not equals:
            raise InputError(f"'{row}' is not of the form NAME=FILE.", do="Write, for instance, UnifiReward=a.jsonl")
        own, _, twin = paths.partition("::")
        files[name] = (
            [read_judgments(Path(path), known) for path in own.split(",")],
            [read_judgments(Path(path), known) for path in twin.split(",")] if twin else [],
        )
    places = labelled_places(known, needs_of([said for judge in files.values() for said in judge[0]]), records)
    chosen = [known[place] for place in places]

    def seeds(every: Sequence[Said]) -> dict[int, Said]:
        return {seed: [said[place] for place in places] for seed, said in enumerate(every)}

    sets = {name: JudgedSet(chosen, seeds(own), seeds(twin)) for name, (own, twin) in files.items()}
    if {"PRM", "ORM"} <= set(sets):
        sets["PRM + ORM"] = combined(sets["PRM"], sets["ORM"])
    pairs = [("UnifiReward", "PRM + ORM")] if {"UnifiReward", "PRM + ORM"} <= set(sets) else []
    tables = comparison_tables(compare_judges(sets, pairs))
    for table in tables:
        Console().print(as_rich(table))
    if out:
        out.write_text(as_markdown(tables) + "\n", encoding="utf-8")


def _tell_judged(found: Sequence[Judgment | Unscored], out: Path) -> int:
    """Says how many records were scored, and why the others were not; returns how many were."""
    from compeer.reward.score import Unscored

    reasons = Counter(one.reason for one in found if isinstance(one, Unscored))
    scored = len(found) - reasons.total()
    told = f"{len(found):,} judgments written to {out}: {scored:,} scored, {reasons.total():,} not"
    if reasons:
        told += f" (most often: {reasons.most_common(1)[0][0]})"
    console.print(plain(told), style=None if scored else "yellow", highlight=False, soft_wrap=True)
    return scored
