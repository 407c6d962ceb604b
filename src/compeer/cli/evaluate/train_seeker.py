"""`compeer evaluate train-seeker`: a small local seeker, fine-tuned on a corpus, and how lifelike it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.cli.training import Changes, claim, read_settings
from compeer.models.spread import first_process
from compeer.progress import console, progress

if TYPE_CHECKING:
    from compeer.evaluate.seeker_training import RealismFigures
    from compeer.statistics import Estimate


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
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
) -> None:
    """Fine-tune a seeker on the seeker side of a corpus, and measure how lifelike it is on held-out dialogues.

    Give OUT/model to: compeer evaluate esc-eval --seeker. Stopped anywhere, it goes on when called again. On a CPU
    shorten it: --set steps=60 --set batch=1 --set rounds=3.
    """
    from compeer.cli.evaluate.writing import write_figures
    from compeer.corpora import corpus_path, read_corpus
    from compeer.evaluate.seeker_training import SAMPLING, SeekerSettings, hold_out, measure_seeker
    from compeer.evaluate.seeker_training import train_seeker as train
    from compeer.models.embedder import Embedder
    from compeer.models.local import LocalModel, model_folder

    silence_libraries()
    start = {"steps": 300, "learning_rate": 5e-4, "lora_rank": 16, "save_every": 50, "max_length": 2048}
    settings = read_settings(SeekerSettings, start, changes)
    file = corpus_path(corpus)
    base = model_folder(settings.model)
    training, held_out = hold_out(list(read_corpus(corpus)), settings, seed)
    claim(out, file, "all", settings, seed)
    figures = train(training, settings, out, seed)
    if not first_process():
        return
    chosen = held_out[:measure]
    sampling = SAMPLING.model_copy(update={"max_tokens": max_tokens})
    embedder = Embedder()
    measured: dict[str, RealismFigures] = {}
    for name, folder in (("trained", out / "model"), *((("before", base),) if beside else ())):
        messages = sum(len(one.said) for one in chosen)
        with progress(f"Measuring the seeker ({name})", messages) as advance:
            model = LocalModel(folder, batch_size=batch, name=name, progress=advance)
            measured[name] = measure_seeker(model, chosen, embedder, seed, sampling)
    _print(list(measured.values()))
    told = {"corpus": corpus, "seed": seed, "training": {"dialogues": len(training), **figures}}
    write_figures(out / "realism.json", told | {name: one.model_dump() for name, one in measured.items()})
    console.print(f"written: {plain(str(out / 'model'))}", highlight=False, soft_wrap=True)


def _print(found: Sequence[RealismFigures]) -> None:
    from rich.console import Console
    from rich.table import Table

    first = found[0]
    typer.echo(f"{first.messages:,} messages of {first.dialogues:,} held-out dialogues; 95 % intervals over dialogues.")
    table = Table("", *(one.model for one in found), "human seekers", box=None)
    table.add_row("words a message", *(_shown(one.words, 1) for one in found), _shown(first.human_words, 1))
    human = {figures.language: figures for figures in first.human_diversity}
    for language, theirs in human.items():
        own = [next((f for f in one.diversity if f.language == language), None) for one in found]
        for row in ("distinct_1", "distinct_2", "self_bleu"):
            digits = 1 if row == "self_bleu" else 3
            shown = [_shown(getattr(figures, row), digits) if figures else "–" for figures in own]
            title = f"{row.replace('_', '-')} ({language})"
            table.add_row(title, *shown, _shown(getattr(theirs, row), digits))
    nearness = _shown(first.closeness_of_humans)
    table.add_row("near the human's words", *(_shown(one.closeness) for one in found), nearness)
    table.add_row("told from humans (AUC)", *(_shown(one.told_apart) for one in found), "0.5")
    slips = _shown(first.human_out_of_role.share)
    table.add_row("out of role", *(_shown(one.out_of_role.share) for one in found), slips)
    table.add_row("spoke for both", *(f"{one.spoke_for_both:,}" for one in found), "–")
    table.add_row("cut off", *(f"{one.cut_off:,}" for one in found), "–")
    table.add_row("no message", *(f"{sum(one.unusable.values()):,}" for one in found), "–")
    Console(soft_wrap=True).print(table)
    typer.echo("Nearness of humans is that of two different dialogues. Diversity is at equal sizes.")


def _shown(figure: Estimate, digits: int = 3) -> str:
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.{digits}f}"
    return plain(f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]")
