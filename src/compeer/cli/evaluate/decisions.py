"""`compeer evaluate decisions`: a supporter's stage, emotion and strategy against the corpus' on held-out turns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError
from compeer.progress import console, progress

if TYPE_CHECKING:
    from compeer.evaluate.decisions import DecisionReport
    from compeer.evaluate.diversity import Measured
    from compeer.ser.record import SerRecord


def decisions(
    turns: Annotated[str, typer.Argument(help="Held-out turns: a file of SER records, a corpus, or 'sample'.")],
    model: Annotated[
        str | None, typer.Option(help="The supporter: 'embedded', its folder, or NAME@http://host:8000/v1.")
    ] = None,
    outputs: Annotated[
        Path, typer.Option(help="The file of outputs: read if there is no --model, else written.")
    ] = Path("outputs.jsonl"),
    split: Annotated[str, typer.Option(help="Which records: reward, policy, test, or all.")] = "test",
    rounds: Annotated[int, typer.Option(help="Rounds of a corpus' dialogue, drawn as the dataset's are.", min=1)] = 5,
    limit: Annotated[int | None, typer.Option(help="At most so many turns, drawn by the seed.", min=1)] = None,
    perplexity: Annotated[
        bool, typer.Option("--perplexity/--no-perplexity", help="Also of human responses, for a model in this process.")
    ] = True,
    mode: Annotated[
        str, typer.Option(help="What perplexity is given: structured (steps too) or plain.")
    ] = "structured",
    constrained: Annotated[bool, typer.Option("--constrained", help="Hold outputs to the form of a turn.")] = False,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token.", min=0)] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Longest output, in tokens.", min=1)] = 256,
    batch: Annotated[int, typer.Option(help="Outputs written at a time.", min=1)] = 16,
    call: Annotated[
        list[str] | None, typer.Option("--call", metavar="KEY=VALUE", help="How servers are called: compeer ser calls.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where answers from servers are kept.")] = Path("answers.sqlite"),
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure decisions against the corpus: accuracy, macro-F1, strategies by stage; and perplexity of human responses.

    Stopped anywhere, it goes on when called again.
    """
    from compeer.cli.evaluate.writing import check_place, write_figures
    from compeer.evaluate.decisions import decision_report
    from compeer.policy.selection import candidate_metrics, read_candidates
    from compeer.reasoning import parse_turn

    if mode not in ("structured", "plain"):
        raise InputError(f"unknown mode '{mode}'.", field="mode", do="Known: structured, plain")
    check_place(out)
    silence_libraries()
    dropped: Counter[str] = Counter()
    records = _held_out(turns, split, rounds, limit, seed, dropped)
    surprise: dict[str, Any] | None = None
    if model:
        surprise = _write(
            model,
            records,
            turns,
            outputs,
            (temperature, max_tokens, batch),
            constrained,
            call,
            cache,
            seed,
            mode if perplexity else None,
        )
    written = list(read_candidates(outputs))
    first = {one.record: one for one in reversed(written)}
    known = [record for record in records if record.id in first and first[record.id].failure is None]
    if not known:
        do = "Make them with --model, or with: compeer policy generate"
        raise InputError(f"no output of it answers one of the {len(records)} held-out turns.", file=outputs, do=do)
    parsed = [parse_turn(first[record.id].output, cut_off=first[record.id].cut_off) for record in known]
    report = decision_report(known, parsed, seed)
    _print(report, len(records) - len(known), dropped, surprise)
    if out:
        told = {
            "turns": turns, "model": model, "seed": seed, "without_output": len(records) - len(known),
            "dropped": dict(dropped), "outputs": candidate_metrics(written), **report.model_dump(exclude={"turns"}),
            "held_out": report.turns, "perplexity": surprise,
        }  # fmt: skip
        write_figures(out, told)


def _held_out(
    turns: str, split: str, rounds: int, limit: int | None, seed: int, dropped: Counter[str]
) -> list[SerRecord]:
    """The corpus' own turns among records, or those of a corpus."""
    from compeer.evaluate.decisions import corpus_records, is_records
    from compeer.evaluate.supporters import draw
    from compeer.ser.record import SPLITS, read_records

    if split not in (*SPLITS, "all"):
        raise InputError(f"unknown split '{split}'.", field="split", do=f"Known: {', '.join(SPLITS)}, all")
    if is_records(turns):
        every = [record for record in read_records(Path(turns)) if record.author == "corpus"]
        found = [record for record in every if split in ("all", record.split)]
        if not found:
            do = "Try --split all, or give records of another file."
            raise InputError(f"there is no turn of the corpus in the {split} split.", file=turns, do=do)
    else:
        found = corpus_records(turns, rounds, seed, dropped)
        if not found:
            do = "A corpus needs a strategy on supporters' messages, and an emotion."
            raise InputError("there is no labelled turn of a supporter in it.", file=turns, do=do)
    return draw(found, limit, seed, "decisions") if limit else found


def _write(
    model: str,
    records: list[SerRecord],
    turns: str,
    outputs: Path,
    sampled: tuple[float, int, int],
    constrained: bool,
    call: list[str] | None,
    cache: Path,
    seed: int,
    mode: str | None,
) -> dict[str, Any] | None:
    """Lets the model answer the turns, into the file of outputs; returns perplexities if a mode is given."""
    from compeer.cli.ser import open_named
    from compeer.corpora import corpus_path
    from compeer.models import Sampling
    from compeer.models.resolve import ModelSettings, folder_mark, open_model
    from compeer.models.training import model_card
    from compeer.policy.prompt import refuse_direct
    from compeer.policy.selection import candidate_stage

    temperature, max_tokens, batch = sampled
    served = "@http" in model
    folder = Path(model)
    refuse_direct(folder)
    supporter = open_named(model, call, cache) if served else open_model(model, settings=ModelSettings(batch=batch))
    last = model_card(folder).get("history") if folder.is_dir() else None
    with progress("Asking the supporter", len(records)) as advance:
        candidate_stage(
            corpus_path(turns),
            records,
            outputs,
            supporter,
            Sampling(temperature=temperature, max_tokens=max_tokens),
            seed,
            last=last,
            constrained=constrained,
            marks={model: folder_mark(folder)} if folder.is_dir() else {},
            advance=advance,
        )
    if not mode:
        return None
    if served:
        console.print("  Perplexity needs a model in this process; it is left out.", highlight=False)
        return None
    from compeer.evaluate.perplexity import perplexity_figures
    from compeer.models.local import LocalModel

    assert isinstance(supporter, LocalModel)
    with progress("Reading human responses", len(records)) as advance:
        found = perplexity_figures(
            supporter, records, "plain" if mode == "plain" else "structured", last, seed, advance
        )
    return found.model_dump()


# --- printing ---------------------------------------------------------------------------------------------------------


def _print(report: DecisionReport, unanswered: int, dropped: Counter[str], surprise: dict[str, Any] | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from compeer.evaluate.diversity import Measured

    typer.echo(f"{report.turns:,} held-out turns of {report.dialogues:,} dialogues; 95 % intervals over dialogues.")
    typer.echo(f"Everything could be read in {report.complete or 0:.1%} of the outputs; no output: {unanswered:,}.")
    for reason, count in dropped.items():
        typer.echo(f"No gold turn, {reason}: {count:,}")
    table = Table("decision", "accuracy", "macro-F1", "turns", "missing", box=None)
    for title, found in (("", report.gold), (" (by rule)", report.derived)):
        for name, one in found.items():
            figures = [_shown(one.accuracy), _shown(one.macro_f1)]
            table.add_row(name + title, *figures, f"{one.turns:,}", f"{one.missing:,}")
            always = [f"{one.majority_accuracy:.3f}", f"{one.majority_macro_f1:.3f}"]
            table.add_row(plain(f"  always {one.majority}"), *always)
            table.add_row("  above that", _shown(one.above_majority, "+"))
    Console(soft_wrap=True).print(table)
    typer.echo("\nStrategies against the humans' on the same turns: KL(human ‖ model) in nats, smoothed")
    table = Table("stage", "KL", "by chance", "turns", box=None)
    for stage, spread in report.strategies.items():
        chance = "–" if spread.by_chance is None else f"{spread.by_chance:.3f}"
        table.add_row(stage, _shown(spread.kl), chance, f"{spread.turns:,}")
    Console(soft_wrap=True).print(table)
    if surprise:
        figures = [_shown(Measured.model_validate(surprise[name]), "") for name in ("perplexity", "bits_per_character")]
        typer.echo(
            f"\nHuman responses given {surprise['given']}: perplexity {figures[0]} a token, {figures[1]} bits a "
            f"character ({surprise['responses']:,} responses; too long: {surprise['too_long']:,})".replace("\\[", "[")
        )


def _shown(figure: Measured, sign: str = "") -> str:
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:{sign}.3f}"
    return plain(f"{figure.value:{sign}.3f} [{figure.low:{sign}.3f}, {figure.high:{sign}.3f}]")
