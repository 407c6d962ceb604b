"""A small seeker of one's own: a model fine-tuned on the seeker side of a corpus, so that evaluation needs no API.

It is trained with the very messages that `CardSeeker` asks with: a dialogue's situation is its role card, the
supporter's words are what it is given, and the loss is on what the human seeker wrote. A supporter block that opens a
dialogue is left out, since in play the seeker speaks first. How lifelike the result is, `measure_seeker` says.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from compeer.dialogue import Dialogue, merge_consecutive
from compeer.errors import InputError
from compeer.evaluate.diversity import DiversityMetrics, Reply, compare_diversity
from compeer.io import Frozen
from compeer.models.base import Failure, Request, Sampling, TextModel, ask
from compeer.models.embedder import Embeds, Matrix
from compeer.models.resolve import model_folder
from compeer.models.training import SftSettings, train_sft
from compeer.simulate import Complaint, Scenario, Turn, View, mark_of
from compeer.simulate.conversation import view_of
from compeer.simulate.seekers import card_messages, prompt_language, read_card_message, seeker_prompts
from compeer.statistics import FEW_GROUPS, Estimate, Numbers, auc_by_group, generator, group_weights, words

FOLDER = Path(__file__).parent


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
    facts = {"card": card_text(dialogue), "problem": ""}
    return SeekerDialogue(Scenario(id=dialogue.id, language=prompt_language(dialogue.language), facts=facts), turns)


def card_text(dialogue: Dialogue) -> str:
    """What the player of a dialogue's seeker knows of it."""
    known = {"situation": dialogue.situation, "problem": dialogue.problem, "emotion": dialogue.emotion}
    lines = _wording()[prompt_language(dialogue.language)]
    given = {name: " ".join(value.split()) for name, value in known.items() if value}
    return "\n".join(line.replace(f"{{{name}}}", given[name]) for name, line in lines.items() if name in given)


@cache
def _wording() -> dict[str, dict[str, str]]:
    return tomllib.loads((FOLDER / "seeker_card.toml").read_text(encoding="utf-8"))


def training_chat(dialogue: SeekerDialogue) -> list[dict[str, Any]]:
    """The chat that teaches all messages of the seeker, in the words in which it will be asked."""
    turns = dialogue.turns if dialogue.turns[-1].speaker == "seeker" else dialogue.turns[:-1]
    return [dict(message) for message in card_messages(view_of(dialogue.scenario, turns, "seeker"))]


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


SAMPLING = Sampling(temperature=0.7, max_tokens=96)


class RoleSlips(Frozen):
    """How often a set of messages speaks as a supporter would."""

    share: Estimate
    kinds: dict[str, int] = Field(description="messages by kind; one may be of several")


class RealismFigures(Frozen):
    """A simulated seeker beside human ones, message by message."""

    model: str
    dialogues: int
    messages: int
    unusable: dict[str, int] = Field(description="answers without a message, by reason; left out on both sides")
    spoke_for_both: int = Field(description="answers that went on in the supporter's name, and were cut there")
    cut_off: int = Field(description="messages that had no end within the tokens allowed")
    words: Estimate
    human_words: Estimate
    closeness: Estimate = Field(description="mean cosine with what the human wrote at the same point")
    closeness_of_humans: Estimate = Field(description="the same of two humans of different dialogues")
    told_apart: Estimate = Field(description="AUC of a classifier: 0.5 cannot be told from humans")
    out_of_role: RoleSlips
    human_out_of_role: RoleSlips
    diversity: list[DiversityMetrics] = Field(description="by language")
    human_diversity: list[DiversityMetrics]


def measure_seeker(
    model: TextModel,
    dialogues: Sequence[SeekerDialogue],
    embedder: Embeds,
    seed: int,
    sampling: Sampling = SAMPLING,
) -> RealismFigures:
    """Lets the model write what the human seekers of the dialogues wrote, and compares."""
    points = [(one, number) for one in dialogues for number in range(len(one.said))]
    requests = [
        Request(
            tuple(card_messages(one.view(number))),
            int(generator(seed, "realism", one.scenario.id, str(number)).integers(2**31)),
        )
        for one, number in points
    ]
    unusable: Counter[str] = Counter()
    noted: Counter[str] = Counter()
    written, human = [], []
    for (one, number), answer in zip(points, ask(model, requests, sampling), strict=True):
        said = answer if isinstance(answer, Failure) else read_card_message(answer)
        if isinstance(said, Failure | Complaint):
            unusable[said.kind] += 1
            continue
        noted.update(name for name in ("spoke_for_both", "cut_off") if said.extra.get(name))
        name, language = one.scenario.id, one.scenario.language
        written.append(Reply(said.text, name, name, language))
        human.append(Reply(one.said[number], name, name, language))
    units = {name: place for place, name in enumerate(dict.fromkeys(reply.unit for reply in human))}
    groups = np.array([units[reply.unit] for reply in human], dtype=np.int64)
    weights = group_weights(len(units), seed=seed)
    known = _Embedded([reply.text for reply in (*written, *human)], embedder)
    rows, humans = (np.asarray(known.embed([r.text for r in side]), np.float64) for side in (written, human))
    lengths, human_lengths = (np.array([len(words(r.text)) for r in side], np.float64) for side in (written, human))
    diverse = compare_diversity([written, human], known, seed)
    other = _of_other_dialogues(groups, generator(seed, "other human"))
    return RealismFigures(
        model=model.name,
        dialogues=len(units),
        messages=len(written),
        unusable=dict(unusable),
        spoke_for_both=noted["spoke_for_both"],
        cut_off=noted["cut_off"],
        words=Estimate.of_groups(lengths, groups, weights, FEW_GROUPS),
        human_words=Estimate.of_groups(human_lengths, groups, weights, FEW_GROUPS),
        closeness=Estimate.of_groups((rows * humans).sum(1), groups, weights, FEW_GROUPS),
        closeness_of_humans=Estimate.of_groups((humans * humans[other]).sum(1), groups, weights, FEW_GROUPS),
        told_apart=_told_apart((rows, lengths), (humans, human_lengths), groups, weights),
        out_of_role=_slips(written, groups, weights),
        human_out_of_role=_slips(human, groups, weights),
        diversity=diverse[0],
        human_diversity=diverse[1],
    )


class _Embedded:
    """Texts that are embedded once, though several figures need them."""

    def __init__(self, texts: Sequence[str], embedder: Embeds) -> None:
        self._places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        self._rows = embedder.embed(list(self._places))

    def embed(self, texts: Sequence[str]) -> Matrix:
        return self._rows[np.array([self._places[text] for text in texts], dtype=np.int64)]


def _of_other_dialogues(groups: Any, rng: np.random.Generator) -> list[int]:
    """For each message the place of a random one of another dialogue; its own where there is no other."""
    found = []
    for place, group in enumerate(groups):
        others = np.flatnonzero(groups != group)
        found.append(int(rng.choice(others)) if len(others) else place)
    return found


def _told_apart(
    model: tuple[Numbers, Numbers], human: tuple[Numbers, Numbers], groups: Any, weights: Numbers
) -> Estimate:
    """The AUC of a classifier on messages of dialogues that it was not trained on."""
    if weights.shape[1] < 2:
        return Estimate(value=None)
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = np.concatenate(
        [np.column_stack([rows, np.log1p(lengths)]) for rows, lengths in (model, human)], dtype=np.float64
    )
    truth = np.arange(len(features)) < len(model[0])
    both = np.concatenate([groups, groups])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    folds = GroupKFold(min(5, weights.shape[1]))
    scores = cross_val_predict(classifier, features, truth, groups=both, cv=folds, method="decision_function")
    return Estimate.of_resamples(
        auc_by_group(both, truth, np.asarray(scores, np.float64), weights), weights.shape[1], FEW_GROUPS
    )


# --- the role ---------------------------------------------------------------------------------------------------------


def _slips(replies: Sequence[Reply], groups: Any, weights: Numbers) -> RoleSlips:
    found = [role_slips(reply.text, reply.language) for reply in replies]
    share = Estimate.of_groups(np.array([float(bool(kinds)) for kinds in found]), groups, weights, FEW_GROUPS)
    return RoleSlips(share=share, kinds=dict(Counter(kind for kinds in found for kind in kinds)))


def role_slips(text: str, language: str) -> list[str]:
    """In what ways a seeker's message speaks as the supporter would: `offers`, `advises`, `comforts`, `machine`."""
    patterns = _patterns(prompt_language(language))
    return [kind for kind, pattern in patterns.items() if pattern.search(text)]


@cache
def _patterns(language: str) -> dict[str, re.Pattern[str]]:
    text = (FOLDER / "role_slips.toml").read_text(encoding="utf-8")
    return {kind: re.compile("|".join(found), re.IGNORECASE) for kind, found in tomllib.loads(text)[language].items()}
