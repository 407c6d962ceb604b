"""A small seeker of one's own: a model fine-tuned on the seeker side of a corpus, so that evaluation needs no API.

It is trained with the very messages that `CardSeeker` asks with: a dialogue's situation is its role card, the
supporter's words are what it is told, and the loss is on what the human seeker wrote. A supporter block that opens a
dialogue is left out, since in play the seeker speaks first. How lifelike the result is, `realism.py` says, on dialogues
held out here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from compeer.dialogue import Dialogue, merge_consecutive
from compeer.errors import InputError
from compeer.models.resolve import model_folder
from compeer.models.scripted import ScriptedModel
from compeer.models.training import SftSettings, train_sft
from compeer.simulate import Scenario, Turn, View, mark_of
from compeer.simulate.conversation import view_of
from compeer.simulate.seekers import CardSeeker, RoleCard, seeker_prompts
from compeer.statistics import generator


class SeekerSettings(SftSettings):
    """How a seeker is fine-tuned."""

    model: str = Field(default="embedded", description="the model to start from: a folder, or 'embedded'")
    rounds: int = Field(default=5, ge=1, description="messages of the seeker learnt from each dialogue, from the first")
    held_out: float = Field(default=0.1, gt=0, lt=1, description="share of the dialogues that realism is measured on")


@dataclass(frozen=True)
class SeekerDialogue:
    """A dialogue as its seeker sees it: the card, and what was said from the seeker's first words on."""

    scenario: Scenario
    turns: tuple[Turn, ...]

    def view(self, before: int) -> View:
        """What the seeker has before its message number `before`, counted from 0."""
        return view_of(self.scenario, self.turns[: 2 * before], "seeker")

    @property
    def said(self) -> list[str]:
        """The seeker's messages."""
        return [turn.text for turn in self.turns if turn.speaker == "seeker"]


def seeker_dialogue(dialogue: Dialogue, rounds: int) -> SeekerDialogue | None:
    """The first rounds of a dialogue from the seeker's side; None without a situation or a word of the seeker."""
    if not (dialogue.situation or "").strip():
        return None
    blocks = merge_consecutive(one for one in dialogue.utterances if one.text.strip())
    if blocks and blocks[0].speaker == "supporter":
        blocks = blocks[1:]
    turns = tuple(Turn(speaker=one.speaker, text=" ".join(one.text.split())) for one in blocks[: 2 * rounds - 1])
    if not turns:
        return None
    chinese = dialogue.language.split("-")[0] == "zh"
    card = RoleCard(id=dialogue.id, language="zh" if chinese else "en", text=card_text(dialogue))
    return SeekerDialogue(card.scenario, turns)


def card_text(dialogue: Dialogue) -> str:
    """What the player of a dialogue's seeker is told."""
    known = {"situation": dialogue.situation, "problem": dialogue.problem, "emotion": dialogue.emotion}
    lines = _wording()["zh" if dialogue.language.split("-")[0] == "zh" else "en"]
    told = {name: " ".join(value.split()) for name, value in known.items() if value}
    return "\n".join(line.replace(f"{{{name}}}", told[name]) for name, line in lines.items() if name in told)


@cache
def _wording() -> dict[str, dict[str, str]]:
    return tomllib.loads(files("compeer.evaluate").joinpath("seeker_card.toml").read_text(encoding="utf-8"))


def training_chat(dialogue: SeekerDialogue) -> list[dict[str, Any]]:
    """The chat that teaches all messages of the seeker, in the words in which it will be asked."""
    turns = dialogue.turns if dialogue.turns[-1].speaker == "seeker" else dialogue.turns[:-1]
    seeker = CardSeeker(ScriptedModel(()))  # nobody is asked: it only words the messages
    return [dict(message) for message in seeker.messages(view_of(dialogue.scenario, turns, "seeker"))]


def hold_out(
    dialogues: Sequence[Dialogue], settings: SeekerSettings, seed: int
) -> tuple[list[SeekerDialogue], list[SeekerDialogue]]:
    """Dialogues to train on and dialogues to measure on; such as share a situation stay together."""
    found = [one for dialogue in dialogues if (one := seeker_dialogue(dialogue, settings.rounds))]
    groups: dict[str, list[SeekerDialogue]] = {}
    for one in found:
        groups.setdefault(str(one.scenario.facts["card"]).casefold(), []).append(one)
    if len(groups) < 2:
        do = "A seeker is trained on dialogues that tell their seeker's situation, as ESConv's or 'sample' do."
        raise InputError(f"{len(groups)} of {len(dialogues)} dialogues tell a situation of their own.", do=do)
    names = sorted(groups)
    count = min(len(names) - 1, max(1, round(settings.held_out * len(names))))
    order = generator(seed, "held-out seekers").permutation(np.arange(len(names))).tolist()
    held = {names[place] for place in order[:count]}
    training = [one for name in names if name not in held for one in groups[name]]
    return training, [one for name in names if name in held for one in groups[name]]


def train_seeker(
    training: Sequence[SeekerDialogue], settings: SeekerSettings, folder: Path, seed: int
) -> dict[str, Any]:
    """Trains on the dialogues; leaves the seeker in `folder/model`, to be given to `compeer evaluate esc-eval`."""
    card = {"role": "seeker", "prompts": mark_of(seeker_prompts())}
    chats = [training_chat(dialogue) for dialogue in training]
    return train_sft(model_folder(settings.model), chats, settings, folder, seed, "Training the seeker", card)
