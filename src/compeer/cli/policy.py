"""`compeer policy`: train a supporter by example and by reward, let it write, and merge adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from compeer.cli.models import SupporterOptions, open_named
from compeer.cli.options import CHANGES, GOES_ON, LONGEST, RECORDS, SEED, SPLITS, TEMPERATURE, argument, grouped, option
from compeer.cli.printing import note_written, print_metrics
from compeer.cli.training import claim, read_settings, read_split
from compeer.errors import InputError
from compeer.models import Sampling, TextModel
from compeer.models.embedder import Embedder
from compeer.models.resolve import folder_mark, model_folder
from compeer.progress import progress

if TYPE_CHECKING:
    from compeer.reward.score import Judge
    from compeer.ser.record import SerRecord

policy = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train and use supporters.")
OUT = argument("The folder to train in; the supporter ends up in its model/.")


@dataclass
class JudgeOptions(SupporterOptions):
    """How supporters and judges are asked."""

    trained: bool = option("A judge behind a server is one of ours.", False, "--trained")

    def judge(self, names: Sequence[str], outage: float = 0) -> Judge:
        """The judge of a name, or the pair of two: PRM, then ORM. Their servers may be away for `outage` seconds."""
        from compeer.policy.sources import Patient
        from compeer.reward.conversation import JudgeForm
        from compeer.reward.judges import open_judges

        def model(name: str) -> TextModel:
            found = open_named(name, self.call, self.cache)
            return Patient(found, outage) if outage else found

        return open_judges(names, JudgeForm(), model=model, trained=self.trained, batch=self.batch)


@policy.command(epilog=GOES_ON)
def sft(
    records: Path = RECORDS,
    out: Path = OUT,
    changes: list[str] | None = CHANGES,
    split: str = option(SPLITS, "policy"),
    seed: int = SEED,
) -> None:
    """Fine-tune a supporter on reference turns, or on the best of scored outputs (--set candidates=FILE)."""
    from compeer.policy.sft import SupporterSettings, train_supporter

    start = {"steps": 400, "learning_rate": 1e-4, "lora_rank": 0, "save_every": 100}
    settings = read_settings(SupporterSettings, start, changes)
    chosen = _records(records, split)
    claim(out, records, split, settings, seed)
    print_metrics(train_supporter(chosen, settings, out, seed), out / "model")


@policy.command(epilog=GOES_ON)
@grouped
def grpo(
    asked: JudgeOptions,
    records: Path = RECORDS,
    out: Path = OUT,
    judge: list[str] = option("A judge's folder or NAME@URL; twice: for steps, for responses.", ..., metavar="JUDGE"),
    model: Path = option("The supporter to start from: its folder.", ...),
    changes: list[str] | None = CHANGES,
    split: str = option(SPLITS, "policy"),
    seed: int = SEED,
) -> None:
    """Train a supporter by a judge's rewards."""
    from compeer.models.training import model_card
    from compeer.policy.grpo import GrpoSettings, train_grpo

    folder = model_folder(model)
    start = {"steps": 100, "learning_rate": 1e-5, "lora_rank": 0, "history": model_card(folder).get("history")}
    settings = read_settings(GrpoSettings, start, changes)
    chosen = _records(records, split)
    opened = asked.judge(judge, settings.outage)
    claim(out, records, split, settings, seed, model=str(model), judge=opened.name)
    print_metrics(train_grpo(folder, opened, Embedder(), chosen, settings, out, seed), out / "model")


@policy.command(epilog=GOES_ON)
@grouped
def generate(
    asked: JudgeOptions,
    records: Path = RECORDS,
    out: Path = argument("The file of outputs to write."),
    model: str = option("'embedded', a supporter's folder, or NAME@http://host:8000/v1.", ...),
    count: int = option("Outputs for each history.", 1, "--n", min=1),
    control: list[str] | None = option("Ask for a strategy, stage, emotion or persona.", metavar="FIELD=VALUE"),
    constrained: bool = option("Hold outputs to the form of a turn, and to what is asked for.", False, "--constrained"),
    judges: list[str] | None = option("A judge that scores them, as in grpo.", None, "--score", metavar="JUDGE"),
    split: str = option(SPLITS, "policy"),
    temperature: float = option(TEMPERATURE, 0.8, min=0),
    max_tokens: int = option(LONGEST, 256, min=1),
    history: int | None = option("Utterances of the history that it is given; else as the model's card says.", min=1),
    seed: int = SEED,
) -> None:
    """Let a supporter answer histories, once or several times each, and score what it wrote if a judge is given."""
    from compeer.models.training import model_card
    from compeer.policy.control import read_control
    from compeer.policy.selection import candidate_stage
    from compeer.reward.conversation import with_whole_paths

    if count > 1 and temperature == 0:
        raise InputError("several outputs need a temperature above 0, or they are all the same.", field="temperature")
    wanted = read_control(control or ())
    card = model_card(Path(model)) if Path(model).is_dir() else {}
    own = [one for one in _records(records, split) if one.author == "corpus"]
    media = card.get("media", "")
    chosen = [one.model_copy(update={"history": with_whole_paths(one.history, media)}) for one in own]
    more: dict[str, Any] = {
        **{"count": count, "last": history or card.get("history"), "constrained": constrained},
        **{"control": wanted if wanted.requested() else None, "direct": bool(card.get("direct"))},
        "marks": {name: folder_mark(Path(name)) for name in (model, *(judges or ())) if Path(name).is_dir()},
    }
    supporter, sampling = asked.supporter(model), Sampling(temperature=temperature, max_tokens=max_tokens)
    judge = asked.judge(judges) if judges else None
    with progress("Asking the supporter", len(chosen)) as advance:
        found = candidate_stage(records, chosen, out, supporter, sampling, seed, **more, judge=judge, advance=advance)
    print_metrics(found, out)


@policy.command()
def merge(
    adapter: Path = argument("A folder with a LoRA adapter, as a checkpoint is."),
    base: str = argument("The model it was trained on: a folder, or 'embedded'."),
    out: Path = argument("The model folder to write."),
) -> None:
    """Merge a LoRA adapter into its base model, with tokenizer and card, into a folder that transformers loads."""
    from compeer.policy.sft import merge_adapter

    merge_adapter(adapter, base, out)
    note_written(out)


def _records(path: Path, split: str) -> list[SerRecord]:
    found = read_split(path, split)
    if not any(record.author == "corpus" for record in found):
        raise InputError(f"there is no turn of the corpus in the {split} split.", file=path, do="Try --split all.")
    return found
