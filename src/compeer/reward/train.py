"""Training UnifiReward: a generative judge, taught by the verdicts of SER records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.models.local import model_folder
from compeer.models.training import SftSettings, train_sft
from compeer.reward.conversation import chat, record_case, record_verdicts
from compeer.ser.record import SerRecord, is_judged


class RewardSettings(SftSettings):
    """How the judge is trained."""

    model: str = Field(default="embedded", description="the model to start from: a folder, or 'embedded'")
    history: int | None = Field(default=None, ge=1, description="utterances of the history the judge sees; none: all")


def train_judge(records: Sequence[SerRecord], settings: RewardSettings, folder: Path, seed: int) -> dict[str, Any]:
    """Trains on the records that compare responses; leaves the judge in `folder/model`."""
    chats = [
        chat(record_case(record), record_verdicts(record), settings.history) for record in records if is_judged(record)
    ]
    card = {"role": "judge", "history": settings.history}
    return train_sft(model_folder(settings.model), chats, settings, folder, seed, "Training the judge", card)
