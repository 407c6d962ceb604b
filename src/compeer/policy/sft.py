"""Supervised fine-tuning of the supporter on reference turns: one turn a sample, the loss on the output only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.models.local import model_folder
from compeer.models.training import SftSettings, train_sft
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import render_turn
from compeer.ser.record import SerRecord


class SupporterSettings(SftSettings):
    """How the supporter is fine-tuned."""

    model: str = Field(default="embedded", description="the model to start from: a folder, or 'embedded'")
    history: int | None = Field(default=None, ge=1, description="utterances of the history it sees; none: all")


def train_supporter(
    records: Sequence[SerRecord], settings: SupporterSettings, folder: Path, seed: int
) -> dict[str, Any]:
    """Trains on the corpus' own turns among the records; leaves the supporter in `folder/model`."""
    chats: list[list[dict[str, Any]]] = [
        [
            *(dict(message) for message in supporter_prompt(record.history, settings.history)),
            {"role": "assistant", "content": render_turn(record.candidate)},
        ]
        for record in records
        if record.author == "corpus"
    ]
    card = {"role": "supporter", "history": settings.history}
    return train_sft(model_folder(settings.model), chats, settings, folder, seed, "Training the supporter", card)
