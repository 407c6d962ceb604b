"""`compeer evaluate compare`, `diversity`, `decisions`, `train-seeker`: metrics with intervals, as tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.cli.training import Changes, claim, read_settings
from compeer.errors import InputError
from compeer.io import check_writable, write_json
from compeer.models.distributed import first_process
from compeer.progress import console, progress

if TYPE_CHECKING:
    from rich.table import Table

    from compeer.evaluate.compare import Comparison
    from compeer.evaluate.decisions import DecisionReport, PerplexityFigures
    from compeer.evaluate.diversity import DiversityFigures
    from compeer.evaluate.seeker_training import RealismFigures
    from compeer.models import Sampling, TextModel
    from compeer.ser.record import SerRecord
    from compeer.simulate.agents import Mode
    from compeer.statistics import Estimate

Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")]


def check_out(out: Path | None) -> None:
    """Stops before any work where the file could not be written."""
    if out:
        check_writable(out)


def write_figures(out: Path, found: Mapping[str, Any]) -> None:
    """Writes the figures, whole or not at all, and says where."""
    write_json(out, found)
    console.print(f"written: {plain(str(out))}", highlight=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Prints a table as wide as it is."""
    from rich.console import Console

    Console(soft_wrap=True).print(table)


def with_bounds(figure: Estimate, form: str = ".3f") -> str:
    """A value with its interval."""
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:{form}}"
    return plain(f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]")


def compare(
    first: Annotated[Path, typer.Argument(help="The folder of a run.")],
    second: Annotated[Path, typer.Argument(help="Another run's, on the same scenarios, of another supporter.")],
    seed: Annotated[int, typer.Option(help="Of the intervals' draws.")] = 0,
    out: Json = None,
) -> None:
    """Compare two supporters on the same scenarios: differences and win rates by dimension, with paired intervals."""
    from compeer.evaluate.compare import compare_runs, read_run

    check_out(out)
    found = compare_runs(read_run(first), read_run(second), seed)
    _print_compare(found)
    if out:
        write_figures(out, {"seed": seed, "folders": [str(first), str(second)], **found.model_dump()})


def _print_compare(found: Comparison) -> None:
    from rich.table import Table

    typer.echo(f"{found.protocol}, {found.pairs:,} pairs of conversations about {found.scenarios:,} scenarios")
    typer.echo(f"A: {found.first}\nB: {found.second}")
    for note in found.notes:
        typer.echo(f"Note: {note}")
    table = Table(box=None)
    for title in ("", "A", "B", "A − B", "A wins", "won-tied-lost"):
        table.add_column(title, no_wrap=True)
    for name, one in found.dimensions.items():
        means = ["–" if value is None else f"{value:.1f}" for value in (one.first, one.second)]
        differences = [with_bounds(one.difference, "+.1f"), with_bounds(one.win_rate, ".0%")]
        table.add_row(name, *means, *differences, f"{one.wins}-{one.ties}-{one.losses}")
    print_table(table)
    typer.echo("95 % intervals over scenarios; where one holds 0 (50 % for wins), chance may explain the difference.")


def diversity(
    sets: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="Runs' folders, files of outputs, corpora; several are counted alike."),
    ],
    speaker: Annotated[str, typer.Option(help="Whose replies: supporter or seeker.")] = "supporter",
    records: Annotated[
        Path | None, typer.Option(help="The SER records that outputs answer; else each history stands for itself.")
    ] = None,
    language: Annotated[str, typer.Option(help="The language of outputs without records.")] = "en",
    embedder: Annotated[str, typer.Option(help="'embedded', or a sentence-transformers folder.")] = "embedded",
    seed: Seed = 0,
    out: Json = None,
) -> None:
    """Measure how varied replies are: distinct-n, self-BLEU, openings, similarity; at equal sizes, with intervals."""
    from compeer.evaluate.diversity import HALVES, compare_diversity, read_replies
    from compeer.models.embedder import Embedder
    from compeer.ser.record import read_records

    if speaker not in ("supporter", "seeker"):
        raise InputError(f"unknown speaker '{speaker}'.", field="speaker", do="Known: supporter, seeker")
    check_out(out)
    silence_libraries()
    known = list(read_records(records)) if records else []
    read = [read_replies(name, "seeker" if speaker == "seeker" else "supporter", known, language) for name in sets]
    console.print(f"  {sum(len(one) for one in read):,} replies are read and embedded", highlight=False)
    found = compare_diversity(read, Embedder(embedder), seed)
    for code in sorted({figures.language for one in found for figures in one}):
        chosen = [(name, f) for name, one in zip(sets, found, strict=True) for f in one if f.language == code]
        _print_diversity(code, chosen, embedder == "embedded")
    if out:
        content = {
            **{"speaker": speaker, "seed": seed, "halves": HALVES},
            "bleu": "sacrebleu, effective order, exponential smoothing, case kept; zh for Chinese, else 13a",
            "embedder": embedder,
            "sets": [
                {"name": name, "figures": [figures.model_dump() for figures in one]}
                for name, one in zip(sets, found, strict=True)
            ],
        }
        write_figures(out, content)


ROWS = {
    **{f"distinct-{n}": f"distinct_{n}" for n in (1, 2, 3)},
    **{"self-BLEU": "self_bleu", "open alike": "open_alike", "largest opening": "largest_opening"},
    **{"similarity in a dialogue": "in_dialogue", "similarity across": "across_dialogues"},
}


def _print_diversity(language: str, found: Sequence[tuple[str, DiversityFigures]], packaged: bool) -> None:
    from rich.table import Table

    first = found[0][1]
    typer.echo(
        f"{language}: distinct-n over {first.at_words:,} words, self-BLEU and openings over {first.at_replies:,} "
        "replies of each; 95 % intervals over dialogues."
    )
    table = Table("", box=None)
    for name, _ in found:
        table.add_column(plain(name), overflow="fold")
    for name in ("replies", "dialogues"):
        table.add_row(name, *(f"{getattr(figures, name):,}" for _, figures in found))
    table.add_row("characters" if language == "zh" else "words", *(f"{figures.words:.1f}" for _, figures in found))
    for name, value in ROWS.items():
        form = ".1f" if value == "self_bleu" else ".3f"
        table.add_row(name, *(with_bounds(getattr(figures, value), form) for _, figures in found))
    print_table(table)
    if packaged and language != "en":
        typer.echo("The packaged embedder knows English only: similarity here is that of wording, not of meaning.")
    if first.dialogues == first.replies:
        typer.echo("No dialogue has two replies, so there is no similarity within one.")
    typer.echo()


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
    seed: Seed = 0,
    out: Json = None,
) -> None:
    """Measure decisions against the corpus: accuracy, macro-F1, strategies by stage; and perplexity of human responses.

    Stopped anywhere, it goes on when called again.
    """
    from compeer.cli.models import open_named
    from compeer.corpora import corpus_path
    from compeer.evaluate.decisions import decision_report, perplexity_figures
    from compeer.models import Sampling
    from compeer.models.local import LocalModel
    from compeer.models.resolve import ModelSettings, open_model
    from compeer.models.training import model_card
    from compeer.policy.prompt import refuse_direct
    from compeer.policy.selection import candidate_metrics, read_candidates
    from compeer.reasoning import parse_turn

    if mode not in ("structured", "plain"):
        raise InputError(f"unknown mode '{mode}'.", field="mode", do="Known: structured, plain")
    check_out(out)
    silence_libraries()
    dropped: Counter[str] = Counter()
    records = _held_out(turns, split, rounds, limit, seed, dropped)
    surprise = None
    if model:
        refuse_direct(Path(model))
        here = "@http" not in model
        opened = open_model(model, settings=ModelSettings(batch=batch)) if here else open_named(model, call, cache)
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        last = model_card(Path(model)).get("history")
        _answer(model, opened, records, corpus_path(turns), outputs, sampling, constrained, last, seed)
        if perplexity and isinstance(opened, LocalModel):
            given: Mode = "plain" if mode == "plain" else "structured"
            with progress("Reading human responses", len(records)) as advance:
                surprise = perplexity_figures(opened, records, given, last, seed, advance)
        elif perplexity:
            console.print("  Perplexity needs a model in this process; it is left out.", highlight=False)
    written = list(read_candidates(outputs))
    first = {one.record: one for one in reversed(written)}
    known = [record for record in records if record.id in first and first[record.id].failure is None]
    if not known:
        do = "Make them with --model, or with: compeer policy generate"
        raise InputError(f"no output of it answers one of the {len(records)} held-out turns.", file=outputs, do=do)
    parsed = [parse_turn(first[record.id].output, cut_off=first[record.id].cut_off) for record in known]
    report = decision_report(known, parsed, seed)
    _print_decisions(report, len(records) - len(known), dropped, surprise)
    if out:
        content = {
            "turns": turns, "model": model, "seed": seed, "without_output": len(records) - len(known),
            "dropped": dict(dropped), "outputs": candidate_metrics(written), **report.model_dump(exclude={"turns"}),
            "held_out": report.turns, "perplexity": surprise and surprise.model_dump(),
        }  # fmt: skip
        write_figures(out, content)


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


def _answer(
    model: str,
    supporter: TextModel,
    records: list[SerRecord],
    turns: Path,
    outputs: Path,
    sampling: Sampling,
    constrained: bool,
    last: int | None,
    seed: int,
) -> None:
    """Lets the model answer the turns, into the file of outputs."""
    from compeer.models.resolve import folder_mark
    from compeer.policy.selection import candidate_stage

    marks = {model: folder_mark(Path(model))} if Path(model).is_dir() else {}
    more: dict[str, Any] = {"last": last, "constrained": constrained, "marks": marks}
    with progress("Asking the supporter", len(records)) as advance:
        candidate_stage(turns, records, outputs, supporter, sampling, seed, **more, advance=advance)


def _print_decisions(
    report: DecisionReport, unanswered: int, dropped: Counter[str], surprise: PerplexityFigures | None
) -> None:
    from rich.table import Table

    typer.echo(f"{report.turns:,} held-out turns of {report.dialogues:,} dialogues; 95 % intervals over dialogues.")
    typer.echo(f"Everything could be read in {report.complete or 0:.1%} of the outputs; no output: {unanswered:,}.")
    for reason, count in dropped.items():
        typer.echo(f"No gold turn, {reason}: {count:,}")
    table = Table("decision", "accuracy", "macro-F1", "turns", "missing", box=None)
    for title, found in (("", report.gold), (" (by rule)", report.derived)):
        for name, one in found.items():
            figures = [with_bounds(one.accuracy), with_bounds(one.macro_f1)]
            table.add_row(name + title, *figures, f"{one.turns:,}", f"{one.missing:,}")
            always = [f"{one.majority_accuracy:.3f}", f"{one.majority_macro_f1:.3f}"]
            table.add_row(plain(f"  always {one.majority}"), *always)
            table.add_row("  above that", with_bounds(one.above_majority, "+.3f"))
    print_table(table)
    typer.echo("\nStrategies against the humans' on the same turns: KL(human ‖ model) in nats, smoothed")
    table = Table("stage", "KL", "by chance", "turns", box=None)
    for stage, distribution in report.strategies.items():
        chance = "–" if distribution.by_chance is None else f"{distribution.by_chance:.3f}"
        table.add_row(stage, with_bounds(distribution.kl), chance, f"{distribution.turns:,}")
    print_table(table)
    if surprise:
        perplexity, bits = with_bounds(surprise.perplexity), with_bounds(surprise.bits_per_character)
        typer.echo(
            f"\nHuman responses given {surprise.given}: perplexity {perplexity} a token, {bits} bits a "
            f"character ({surprise.responses:,} responses; too long: {surprise.too_long:,})".replace("\\[", "[")
        )


def train_seeker(
    corpus: Annotated[str, typer.Argument(help="Dialogues that tell their seeker's situation: a file, or 'sample'.")],
    out: Annotated[Path, typer.Argument(help="The folder to train in; the seeker ends up in its model/.")],
    changes: Changes = None,
    measure: Annotated[int, typer.Option(help="Held-out dialogues that realism is measured on, at most.", min=2)] = 40,
    beside: Annotated[
        bool, typer.Option("--beside/--no-beside", help="Also measure the model that training started from.")
    ] = True,
    max_tokens: Annotated[int, typer.Option(help="Longest message when measured, in tokens.", min=1)] = 96,
    batch: Annotated[int, typer.Option(help="Messages written at a time.", min=1)] = 16,
    seed: Seed = 0,
) -> None:
    """Fine-tune a seeker on the seeker side of a corpus, and measure how lifelike it is on held-out dialogues.

    Give OUT/model to: compeer evaluate esc-eval --seeker. Stopped anywhere, it goes on when called again. On a CPU
    shorten it: --set steps=60 --set batch=1 --set rounds=3.
    """
    from compeer.corpora import corpus_path, read_corpus
    from compeer.evaluate.seeker_training import SAMPLING, SeekerSettings, hold_out, measure_seeker
    from compeer.evaluate.seeker_training import train_seeker as train
    from compeer.models.embedder import Embedder
    from compeer.models.local import LocalModel
    from compeer.models.resolve import model_folder

    silence_libraries()
    start = {"steps": 300, "learning_rate": 5e-4, "lora_rank": 16, "save_every": 50, "max_length": 2048}
    settings = read_settings(SeekerSettings, start, changes)
    base = model_folder(settings.model)
    training, held_out = hold_out(list(read_corpus(corpus)), settings, seed)
    claim(out, corpus_path(corpus), "all", settings, seed)
    figures = train(training, settings, out, seed)
    if not first_process():
        return
    chosen = held_out[:measure]
    sampling = SAMPLING.model_copy(update={"max_tokens": max_tokens})
    embedder = Embedder()
    messages, measured = sum(len(one.said) for one in chosen), dict[str, "RealismFigures"]()
    for name, folder in (("trained", out / "model"), *((("before", base),) if beside else ())):
        with progress(f"Measuring the seeker ({name})", messages) as advance:
            model = LocalModel(folder, batch_size=batch, name=name, progress=advance)
            measured[name] = measure_seeker(model, chosen, embedder, seed, sampling)
    _print_train_seeker(list(measured.values()))
    content = {"corpus": corpus, "seed": seed, "training": {"dialogues": len(training), **figures}}
    write_figures(out / "realism.json", content | {name: one.model_dump() for name, one in measured.items()})
    console.print(f"written: {plain(str(out / 'model'))}", highlight=False, soft_wrap=True)


def _print_train_seeker(found: Sequence[RealismFigures]) -> None:
    from rich.table import Table

    first = found[0]
    typer.echo(f"{first.messages:,} messages of {first.dialogues:,} held-out dialogues; 95 % intervals over dialogues.")
    table = Table("", *(one.model for one in found), "human seekers", box=None)
    lengths = [with_bounds(one, ".1f") for one in (*(one.words for one in found), first.human_words)]
    table.add_row("words a message", *lengths)
    human = {figures.language: figures for figures in first.human_diversity}
    for language, humans in human.items():
        own = [next((f for f in one.diversity if f.language == language), None) for one in found]
        for row in ("distinct_1", "distinct_2", "self_bleu"):
            form = ".1f" if row == "self_bleu" else ".3f"
            cells = [with_bounds(getattr(figures, row), form) if figures else "–" for figures in own]
            title = f"{row.replace('_', '-')} ({language})"
            table.add_row(title, *cells, with_bounds(getattr(humans, row), form))
    theirs, slips = with_bounds(first.closeness_of_humans), with_bounds(first.human_out_of_role.share)
    table.add_row("near the human's words", *(with_bounds(one.closeness) for one in found), theirs)
    table.add_row("told from humans (AUC)", *(with_bounds(one.told_apart) for one in found), "0.5")
    table.add_row("out of role", *(with_bounds(one.out_of_role.share) for one in found), slips)
    table.add_row("spoke for both", *(f"{one.spoke_for_both:,}" for one in found), "–")
    table.add_row("cut off", *(f"{one.cut_off:,}" for one in found), "–")
    table.add_row("no message", *(f"{sum(one.unusable.values()):,}" for one in found), "–")
    print_table(table)
    typer.echo("Nearness of humans is that of two different dialogues. Diversity is at equal sizes.")
