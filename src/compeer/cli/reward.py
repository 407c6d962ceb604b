"""`compeer reward`: train a judge, let it judge, measure it, and compare several beside their blind twins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.cli.training import Changes, claim, read_settings
from compeer.cli.verdicts import judge_turn
from compeer.errors import InputError
from compeer.progress import console, progress

if TYPE_CHECKING:
    from compeer.reward.form import Judge
    from compeer.ser.record import SerRecord

reward = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train, use and measure judges.")

Records = Annotated[Path, typer.Argument(help="A file of SER records.")]
Split = Annotated[str, typer.Option(help="Which records: reward, policy, test, or all.")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
Batch = Annotated[int, typer.Option(help="Outputs judged at a time.", min=1)]
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
    chosen = _records(records, split)
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
    batch: Batch = 16,
    both_orders: BothOrders = False,
    kind: Annotated[str, typer.Option(help="What an endpoint is asked: unified, process or outcome.")] = "unified",
    reasons: Annotated[bool, typer.Option("--reasons", help="Let an endpoint give reasons before verdicts.")] = False,
    trained: Annotated[bool, typer.Option("--trained", help="The endpoint serves a judge of ours.")] = False,
    call: Annotated[
        list[str] | None, typer.Option("--call", metavar="KEY=VALUE", help="How it is called: compeer ser calls.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where an endpoint's answers are kept.")] = Path("answers.sqlite"),
) -> None:
    """Let a judge judge records, once, or one turn that is given here.

    RECORDS MODEL OUT: figures are then made from the file wherever you like. --said "…" --output "…": the verdicts on
    one turn; --output - reads it from the standard input, so that `compeer say` can write it.
    """
    from compeer.reward.compare import write_judgments
    from compeer.reward.conversation import record_case

    silence_libraries()
    if said is not None:
        one = _judge(judge_name or model, batch, both_orders, kind, reasons, trained, call, cache, lambda _: None)
        judge_turn(one, said, output, reference, as_json)
        return
    if records is None or out is None:
        do = 'Give RECORDS MODEL OUT, or --said "…" --output "…" for one turn.'
        raise InputError("there is nothing to judge.", do=do)
    chosen = _records(records, split)
    with progress("Judging", len(chosen)) as advance:
        one = _judge(model, batch, both_orders, kind, reasons, trained, call, cache, advance)
        found = one.judge([record_case(record) for record in chosen])
    write_judgments(out, chosen, found)
    console.print(f"{len(found):,} judgments written to {plain(str(out))}", highlight=False, soft_wrap=True)


@reward.command()
def evaluate(
    records: Records,
    judgments: Annotated[Path, typer.Argument(help="A file of judgments of these records.")],
    split: Split = "test",
) -> None:
    """All figures of one judge as JSON: by part, by kind of mistake, calibration, position bias, with intervals."""
    from compeer.reward.calibration import calibration_figures, position_figures
    from compeer.reward.compare import read_judgments
    from compeer.reward.metrics import judge_figures

    chosen = _records(records, split)
    said = read_judgments(judgments, chosen)
    found = {
        **judge_figures(chosen, said),
        "calibration": calibration_figures(chosen, said),
        "position": position_figures(chosen, said),
    }
    typer.echo(json.dumps(found, indent=1, ensure_ascii=False, default=str))


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

    from compeer.reward.compare import JudgedSet, combined, compare_judges, read_judgments
    from compeer.reward.comparison_table import as_markdown, as_rich, comparison_tables

    chosen = _records(records, split)
    sets: dict[str, JudgedSet] = {}
    for row in rows:
        name, equals, files = row.partition("=")
        if not equals:
            raise InputError(f"'{row}' is not of the form NAME=FILE.", do="Write, for instance, UnifiReward=a.jsonl")
        own, _, twin = files.partition("::")
        sets[name] = JudgedSet(
            chosen,
            {seed: read_judgments(Path(path), chosen) for seed, path in enumerate(own.split(","))},
            {seed: read_judgments(Path(path), chosen) for seed, path in enumerate(twin.split(","))} if twin else {},
        )
    if {"PRM", "ORM"} <= set(sets):
        sets["PRM + ORM"] = combined(sets["PRM"], sets["ORM"])
    pairs = [("UnifiReward", "PRM + ORM")] if {"UnifiReward", "PRM + ORM"} <= set(sets) else []
    tables = comparison_tables(compare_judges(sets, pairs))
    for table in tables:
        Console().print(as_rich(table))
    if out:
        out.write_text(as_markdown(tables) + "\n", encoding="utf-8")


def _records(path: Path, split: str) -> list[SerRecord]:
    from compeer.ser.record import SPLITS, read_records

    if split not in (*SPLITS, "all"):
        raise InputError(f"unknown split '{split}'.", field="split", do=f"Known: {', '.join(SPLITS)}, all")
    found = [record for record in read_records(path) if split in ("all", record.split) and record.preference]
    if not found:
        raise InputError(f"there is no record with a preference in the {split} split.", file=path)
    return found


def _judge(
    model: str,
    batch: int,
    both_orders: bool,
    kind: str,
    reasons: bool,
    trained: bool,
    call: Sequence[str] | None,
    cache: Path,
    advance: Any,
) -> Judge:
    from compeer.cli.ser import open_named
    from compeer.reward.endpoint import ModelJudge
    from compeer.reward.form import Form
    from compeer.reward.judge import LocalJudge

    if "@http" not in model:
        return LocalJudge(model, batch, both_orders=both_orders, progress=advance)
    if kind not in ("unified", "process", "outcome"):
        raise InputError(f"unknown kind '{kind}'.", field="kind", do="Known: unified, process, outcome")
    form = Form(kind=kind, reasons=reasons)
    opened = open_named(model, call, cache)
    return ModelJudge(opened, form, trained=trained, both_orders=both_orders, progress=advance)
