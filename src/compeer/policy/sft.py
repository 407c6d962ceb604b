"""Supervised fine-tuning of the supporter: one turn a sample, the loss on the output only.

The turns are the corpus' own reference turns, or (rejection sampling) the best of a file of scored outputs. A share of
the samples asks in the prompt for what the turn is anyway, so that the trained supporter can be steered with the same
words. A direct supporter learns the responses only: the difference is what the steps are worth.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.engine.multimodal import picture_reader
from compeer.engine.network import load_network, load_tokenizer
from compeer.errors import InputError
from compeer.models.resolve import model_folder
from compeer.models.training import SftSettings, model_card, save_model, train_sft
from compeer.policy.control import sampled_control
from compeer.policy.persona import Persona, personas, read_profiles
from compeer.policy.prompt import direct_prompt, supporter_prompt
from compeer.policy.selection import best_candidates, read_candidates
from compeer.reasoning import render_turn
from compeer.reward.train import with_pictures
from compeer.ser.record import SerRecord
from compeer.statistics import generator


class SupporterSettings(SftSettings):
    """How the supporter is fine-tuned."""

    model: str = Field(default="embedded", description="the model to start from: a folder, or 'embedded'")
    history: int | None = Field(default=None, ge=1, description="utterances of the history it sees; none: all")
    control_share: float = Field(default=0.3, ge=0, le=1)
    """share of the samples whose prompt asks for what the turn is"""
    profiles: str = Field(default="", description="a file of DISC profiles, for manners to ask for; none: no manners")
    candidates: str = ""
    """a file of scored outputs to train on the best of; none: reference turns"""
    threshold: float = Field(default=3, description="the least total of an output worth imitating, −5 to 5")
    direct: bool = Field(default=False, description="reply at once: without steps, and without words to steer it by")
    media: str = Field(default="", description="the folder from which paths of pictures count, for a multimodal model")


def train_supporter(
    records: Sequence[SerRecord], settings: SupporterSettings, folder: Path, seed: int
) -> dict[str, Any]:
    """Trains on the corpus' own turns among the records, or on the best outputs; leaves it in `folder/model`."""
    own = [record for record in records if record.author == "corpus"]
    if not own:
        raise InputError("there is no turn of the corpus among the records.", do="Give records of another split.")
    chosen = own
    if settings.candidates:
        file = Path(settings.candidates)
        chosen = best_candidates(own, read_candidates(file), settings.threshold)
        if not chosen:
            least = f"{settings.threshold:g}"
            what = f"for none of {len(own)} histories does it hold a whole output with a total of {least}."
            raise InputError(what, file=file, do="Lower the threshold, or score more outputs for these records.")
    model = model_folder(settings.model)
    card: dict[str, Any] = {"role": "supporter", "history": settings.history}
    card |= {"direct": True} if settings.direct else {}
    if images := picture_reader(model) is not None:
        chosen = with_pictures(chosen, settings.media, settings.history)
        card |= {"media": settings.media} if settings.media else {}
    manners = personas(read_profiles(Path(settings.profiles))) if settings.profiles else {}
    chats = training_chats(chosen, settings, seed, manners, images)
    metrics = train_sft(model, chats, settings, folder, seed, "Training the supporter", card)
    return {**metrics, "histories": len(own), "histories_kept": len(chosen)}


def training_chats(
    records: Sequence[SerRecord],
    settings: SupporterSettings,
    seed: int,
    manners: Mapping[str, Persona] | None = None,
    images: bool = False,
) -> list[list[dict[str, Any]]]:
    """The chats that teach the turns; `manners` holds the supporter's by dialogue, which a reworded one has lost."""
    found: list[list[dict[str, Any]]] = []
    for record in records:
        if settings.direct:
            prompt, output = direct_prompt(record.history, settings.history, images=images), record.candidate.response
        else:
            manner = (manners or {}).get(record.dialogue) if record.rewritten is None else None
            rng = generator(seed, "control", record.id)
            control = sampled_control(record.candidate, manner, settings.control_share, rng)
            prompt = supporter_prompt(record.history, settings.history, control, images=images)
            output = render_turn(record.candidate)
        found.append([*(dict(message) for message in prompt), {"role": "assistant", "content": output}])
    return found


def merge_adapter(adapter: Path, base: str | Path, out: Path) -> None:
    """Writes the base with a LoRA adapter merged in; tokenizer and card are the adapter's, where it has them."""
    import torch
    from peft import PeftModel

    if not (adapter / "adapter_config.json").is_file():
        do = "Give a folder that peft has saved, as checkpoints/checkpoint-100 of a training with lora_rank."
        raise InputError("this is no adapter: there is no adapter_config.json in it.", file=adapter, do=do)
    start = model_folder(base)
    if out.exists():
        raise InputError("this is there already.", file=out, do="Give the name of a new folder.")
    network = load_network(start, torch.device("cpu"), torch.float32)
    try:
        merged = PeftModel.from_pretrained(network, adapter).merge_and_unload()
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"it does not fit the base model: {first}", file=adapter, do="Give its own base.") from error
    tokenizer = load_tokenizer(adapter if (adapter / "tokenizer_config.json").is_file() else start)
    with tempfile.TemporaryDirectory(dir=out.parent) as unfinished:
        save_model(merged, tokenizer, Path(unfinished), model_card(adapter) or model_card(start), start)
        (Path(unfinished) / "model").rename(out)
