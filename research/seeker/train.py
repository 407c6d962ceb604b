"""Fine-tune a seeker on the seeker side of a corpus, and measure how lifelike it is on held-out dialogues.

    python -m research.seeker.train train.jsonl seeker

Give seeker/model to: compeer evaluate esc-eval --seeker. Stopped anywhere, it goes on when called again. On a CPU
shorten it: --set steps=60 --set batch=1 --set rounds=3. The metrics are left in seeker/realism.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from research.command import run_command
from research.seeker.seeker import SAMPLING, RealismFigures, SeekerSettings, hold_out, measure_seeker, train_seeker

from compeer.cli.options import CHANGES, SEED, argument, option
from compeer.cli.printing import note_written, print_table, with_bounds, write_metrics
from compeer.cli.training import claim, read_settings
from compeer.corpora import corpus_path, read_corpus
from compeer.models.embedder import Embedder
from compeer.models.local import LocalModel
from compeer.models.resolve import model_folder
from compeer.progress import first_process, progress


def main(
    corpus: str = argument("Dialogues that tell their seeker's situation: a file, or 'sample'."),
    out: Path = argument("The folder to train in; the seeker ends up in its model/."),
    changes: list[str] | None = CHANGES,
    measure: int = option("Held-out dialogues that realism is measured on, at most.", 40, min=2),
    beside: bool = option("Also measure the model that training started from.", True, "--beside/--no-beside"),
    max_tokens: int = option("Longest message when measured, in tokens.", 96, min=1),
    batch: int = option("Messages written at a time.", 16, min=1),
    seed: int = SEED,
) -> None:
    """Fine-tune a seeker, and measure how lifelike it is."""
    start = {"steps": 300, "learning_rate": 5e-4, "lora_rank": 16, "save_every": 50, "max_length": 2048}
    settings = read_settings(SeekerSettings, start, changes)
    base = model_folder(settings.model)
    training, held_out = hold_out(list(read_corpus(corpus)), settings, seed)
    claim(out, corpus_path(corpus), "all", settings, seed)
    trained = train_seeker(training, settings, out, seed)
    if not first_process():
        return
    chosen, embedder = held_out[:measure], Embedder()
    sampling = SAMPLING.model_copy(update={"max_tokens": max_tokens})
    messages, measured = sum(len(one.said) for one in chosen), dict[str, RealismFigures]()
    for name, folder in (("trained", out / "model"), *((("before", base),) if beside else ())):
        with progress(f"Measuring the seeker ({name})", messages) as advance:
            model = LocalModel(folder, batch_size=batch, name=name, progress=advance)
            measured[name] = measure_seeker(model, chosen, embedder, seed, sampling)
    _print_realism(list(measured.values()))
    content = {"corpus": corpus, "seed": seed, "training": {"dialogues": len(training), **trained}}
    write_metrics(out / "realism.json", content | {name: one.model_dump() for name, one in measured.items()})
    note_written(out / "model")


def _print_realism(found: Sequence[RealismFigures]) -> None:
    first = found[0]
    typer.echo(f"{first.messages:,} messages of {first.dialogues:,} held-out dialogues; 95 % intervals over dialogues.")
    lengths = [with_bounds(one, ".1f") for one in (*(one.words for one in found), first.human_words)]
    near = [with_bounds(one) for one in (*(one.closeness for one in found), first.closeness_of_humans)]
    slips = [with_bounds(one.share) for one in (*(one.out_of_role for one in found), first.human_out_of_role)]
    rows = [["words a message", *lengths]]
    for human in first.human_diversity:
        own = [next((f for f in one.diversity if f.language == human.language), None) for one in found]
        for name, form in (("distinct_1", ".3f"), ("distinct_2", ".3f"), ("self_bleu", ".1f")):
            cells = [with_bounds(getattr(one, name), form) if one else "–" for one in (*own, human)]
            rows.append([f"{name.replace('_', '-')} ({human.language})", *cells])
    rows.append(["near the human's words", *near])
    rows.append(["told from humans (AUC)", *(with_bounds(one.told_apart) for one in found), "0.5"])
    rows.append(["out of role", *slips])
    rows.append(["spoke for both", *(f"{one.spoke_for_both:,}" for one in found), "–"])
    rows.append(["cut off", *(f"{one.cut_off:,}" for one in found), "–"])
    rows.append(["no message", *(f"{sum(one.unusable.values()):,}" for one in found), "–"])
    print_table(["", *(one.model for one in found), "human seekers"], rows)
    typer.echo("Nearness of humans is that of two different dialogues. Diversity is at equal sizes.")


if __name__ == "__main__":
    run_command(main)
