"""`compeer policy`: train a supporter by example and by reward, let it write, and merge adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compeer.cli.printing import silence_libraries
from compeer.cli.training import (
    Changes,
    Records,
    Seed,
    Split,
    claim,
    print_metrics,
    print_written,
    read_settings,
    read_split,
)
from compeer.errors import InputError
from compeer.progress import progress

if TYPE_CHECKING:
    from compeer.models.base import TextModel
    from compeer.reward.score import Judge
    from compeer.ser.record import SerRecord

policy = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train and use supporters.")

Out = Annotated[Path, typer.Argument(help="The folder to train in; the supporter ends up in its model/.")]
Batch = Annotated[int, typer.Option(help="Outputs written or judged at a time.", min=1)]
Judges = Annotated[
    list[str],
    typer.Option(
        "--judge",
        metavar="JUDGE",
        help="A judge's folder or NAME@http://host:8000/v1; given twice: one for the steps, one for the responses.",
    ),
]
Trained = Annotated[bool, typer.Option("--trained", help="A judge behind a server is one of ours.")]
Call = Annotated[
    list[str] | None, typer.Option("--call", metavar="KEY=VALUE", help="How servers are called: compeer ser calls.")
]
Cache = Annotated[Path, typer.Option(help="Where answers from servers are kept.")]
CACHE = Path("answers.sqlite")


@policy.command()
def sft(records: Records, out: Out, changes: Changes = None, split: Split = "policy", seed: Seed = 0) -> None:
    """Fine-tune a supporter on reference turns, or on the best of scored outputs (--set candidates=FILE).

    Stopped anywhere, it goes on when called again.
    """
    from compeer.policy.sft import SupporterSettings, train_supporter

    silence_libraries()
    start = {"steps": 400, "learning_rate": 1e-4, "lora_rank": 0, "save_every": 100}
    settings = read_settings(SupporterSettings, start, changes)
    chosen = _records(records, split)
    claim(out, records, split, settings, seed)
    print_metrics(train_supporter(chosen, settings, out, seed), out / "model")


@policy.command()
def grpo(
    records: Records,
    out: Out,
    judges: Judges,
    model: Annotated[Path, typer.Option(help="The supporter to start from: its folder.")],
    changes: Changes = None,
    split: Split = "policy",
    batch: Batch = 16,
    trained: Trained = False,
    call: Call = None,
    cache: Cache = CACHE,
    seed: Seed = 0,
) -> None:
    """Train a supporter by a judge's rewards. Stopped anywhere, it goes on when called again."""
    from compeer.models.embedder import Embedder
    from compeer.models.resolve import model_folder
    from compeer.models.training import model_card
    from compeer.policy.grpo import GrpoSettings, train_grpo

    silence_libraries()
    folder = model_folder(model)
    start = {"steps": 100, "learning_rate": 1e-5, "lora_rank": 0, "history": model_card(folder).get("history")}
    settings = read_settings(GrpoSettings, start, changes)
    chosen = _records(records, split)
    judge = _judge(judges, batch, trained, call, cache, settings.outage)
    claim(out, records, split, settings, seed, model=str(model), judge=judge.name)
    print_metrics(train_grpo(folder, judge, Embedder(), chosen, settings, out, seed), out / "model")


@policy.command()
def generate(
    records: Records,
    out: Annotated[Path, typer.Argument(help="The file of outputs to write.")],
    model: Annotated[str, typer.Option(help="'embedded', a supporter's folder, or NAME@http://host:8000/v1.")],
    count: Annotated[int, typer.Option("--n", help="Outputs for each history.", min=1)] = 1,
    control: Annotated[
        list[str] | None,
        typer.Option("--control", metavar="FIELD=VALUE", help="Ask for a strategy, stage, emotion or persona."),
    ] = None,
    constrained: Annotated[
        bool, typer.Option("--constrained", help="Hold outputs to the form of a turn, and to what is asked for.")
    ] = False,
    judges: Annotated[
        list[str] | None, typer.Option("--score", metavar="JUDGE", help="A judge that scores them, as in grpo --judge.")
    ] = None,
    split: Split = "policy",
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token.", min=0)] = 0.8,
    max_tokens: Annotated[int, typer.Option(help="Longest output, in tokens.", min=1)] = 256,
    history: Annotated[
        int | None, typer.Option(help="Utterances of the history it sees; else as the model's card says.", min=1)
    ] = None,
    batch: Batch = 16,
    trained: Trained = False,
    call: Call = None,
    cache: Cache = CACHE,
    seed: Seed = 0,
) -> None:
    """Let a supporter answer histories, once or several times each, and score what it wrote if a judge is given.

    Stopped anywhere, it goes on when called again.
    """
    from compeer.models import Sampling
    from compeer.models.resolve import folder_mark
    from compeer.models.training import model_card
    from compeer.policy.control import read_control
    from compeer.policy.prompt import with_whole_paths
    from compeer.policy.selection import candidate_stage

    silence_libraries()
    if count > 1 and temperature == 0:
        raise InputError("several outputs need a temperature above 0, or they are all the same.", field="temperature")
    wanted = read_control(control or ())
    chosen = [record for record in _records(records, split) if record.author == "corpus"]
    supporter = _supporter(model, batch, call, cache)
    judge = _judge(judges, batch, trained, call, cache) if judges else None
    folders = [name for name in (model, *(judges or ())) if Path(name).is_dir()]
    card = model_card(Path(model)) if Path(model).is_dir() else {}
    history = history or card.get("history")
    chosen = [
        one.model_copy(update={"history": with_whole_paths(one.history, card.get("media", ""))}) for one in chosen
    ]
    with progress("Asking the supporter", len(chosen)) as advance:
        metrics = candidate_stage(
            records,
            chosen,
            out,
            supporter,
            Sampling(temperature=temperature, max_tokens=max_tokens),
            seed,
            count=count,
            last=history,
            control=wanted if wanted.requested() else None,
            constrained=constrained,
            direct=bool(card.get("direct")),
            judge=judge,
            marks={name: folder_mark(Path(name)) for name in folders},
            advance=advance,
        )
    print_metrics(metrics, out)


@policy.command()
def merge(
    adapter: Annotated[Path, typer.Argument(help="A folder with a LoRA adapter, as a checkpoint is.")],
    base: Annotated[str, typer.Argument(help="The model it was trained on: a folder, or 'embedded'.")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
) -> None:
    """Merge a LoRA adapter into its base model, with tokenizer and card, into a folder that transformers loads."""
    from compeer.policy.sft import merge_adapter

    silence_libraries()
    merge_adapter(adapter, base, out)
    print_written(out)


# --- what the commands share ------------------------------------------------------------------------------------------


def _records(path: Path, split: str) -> list[SerRecord]:
    found = read_split(path, split)
    if not any(record.author == "corpus" for record in found):
        raise InputError(f"there is no turn of the corpus in the {split} split.", file=path, do="Try --split all.")
    return found


def _supporter(name: str, batch: int, call: Sequence[str] | None, cache: Path) -> TextModel:
    from compeer.cli.models import open_named
    from compeer.models.resolve import ModelSettings, open_model

    return open_named(name, call, cache) if "@http" in name else open_model(name, settings=ModelSettings(batch=batch))


def _judge(
    names: Sequence[str], batch: int, trained: bool, call: Sequence[str] | None, cache: Path, outage: float = 0
) -> Judge:
    """The judge of a name, or the pair of two: PRM, then ORM. Their servers may be away for `outage` seconds."""
    from compeer.cli.models import open_named
    from compeer.policy.sources import Patient
    from compeer.reward.conversation import JudgeForm
    from compeer.reward.judges import open_judges

    def model(name: str) -> TextModel:
        found = open_named(name, call, cache)
        return Patient(found, outage) if outage else found

    return open_judges(names, JudgeForm(), model=model, trained=trained, batch=batch)
