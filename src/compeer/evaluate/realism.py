"""How lifelike a simulated seeker is, beside the human seekers of held-out dialogues.

At each point where a human seeker wrote something the model is given the same card and the same words before it, and
writes instead. Both sets of messages are then compared: how long and how varied they are (at equal sizes), how near
each is to what the human wrote there (beside how near two humans of different dialogues are), whether a classifier can
tell them apart, and how often they fall out of the role, speaking as the supporter would. The classifier is a logistic
regression on embeddings and lengths that has not seen the dialogue; its AUC is 0.5 where nobody can be told apart, and
1 where all can. Falling out of the role is found by set phrases (`role_slips.toml`): rare in human seekers, but of
human supporters' messages only some have one, so the share is a lower bound, good for comparing seekers.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from compeer.evaluate.diversity import DiversityFigures, Measured, Reply, compare_diversity, measured
from compeer.evaluate.seeker_training import SeekerDialogue
from compeer.models.base import Failure, Request, Sampling, TextModel, ask
from compeer.models.embedder import Embeds, Matrix
from compeer.simulate import Complaint
from compeer.simulate.seekers import CardSeeker
from compeer.statistics import Numbers, auc_by_group, generator, group_weights, ratio, words

SAMPLING = Sampling(temperature=0.7, max_tokens=96)


class RoleSlips(BaseModel):
    """How often a set of messages speaks as a supporter would."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: Measured
    kinds: dict[str, int] = Field(description="messages by kind; one may be of several")


class RealismFigures(BaseModel):
    """A simulated seeker beside human ones, message by message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    dialogues: int
    messages: int
    unusable: dict[str, int] = Field(description="answers without a message, by reason; left out on both sides")
    spoke_for_both: int = Field(description="answers that went on in the supporter's name, and were cut there")
    cut_off: int = Field(description="messages that had no end within the tokens allowed")
    words: Measured
    human_words: Measured
    closeness: Measured = Field(description="mean cosine with what the human wrote at the same point")
    closeness_of_humans: Measured = Field(description="the same of two humans of different dialogues")
    told_apart: Measured = Field(description="AUC of a classifier: 0.5 cannot be told from humans")
    out_of_role: RoleSlips
    human_out_of_role: RoleSlips
    diversity: list[DiversityFigures] = Field(description="by language")
    human_diversity: list[DiversityFigures]


def measure_seeker(
    model: TextModel,
    dialogues: Sequence[SeekerDialogue],
    embedder: Embeds,
    seed: int,
    sampling: Sampling = SAMPLING,
) -> RealismFigures:
    """Lets the model write what the human seekers of the dialogues wrote, and compares."""
    seeker = CardSeeker(model, sampling)
    points = [(one, number) for one in dialogues for number in range(len(one.said))]
    requests = [
        Request(
            tuple(seeker.messages(one.view(number))),
            int(generator(seed, "realism", one.scenario.id, str(number)).integers(2**31)),
        )
        for one, number in points
    ]
    unusable: Counter[str] = Counter()
    noted: Counter[str] = Counter()
    written, human = [], []
    for (one, number), answer in zip(points, ask(model, requests, sampling), strict=True):
        said = answer if isinstance(answer, Failure) else seeker.read(one.view(number), answer)
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
        words=_mean(lengths, groups, weights),
        human_words=_mean(human_lengths, groups, weights),
        closeness=_mean((rows * humans).sum(1), groups, weights),
        closeness_of_humans=_mean((humans * humans[other]).sum(1), groups, weights),
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


def _mean(values: Numbers, groups: Any, weights: Numbers) -> Measured:
    """The mean of messages, with an interval over dialogues."""
    sums, counts = np.zeros((2, weights.shape[1]))
    np.add.at(sums, groups, values)
    np.add.at(counts, groups, 1)
    return measured(ratio(weights @ sums, weights @ counts), weights.shape[1])


def _of_other_dialogues(groups: Any, rng: np.random.Generator) -> list[int]:
    """For each message the place of a random one of another dialogue; its own where there is no other."""
    found = []
    for place, group in enumerate(groups):
        others = np.flatnonzero(groups != group)
        found.append(int(rng.choice(others)) if len(others) else place)
    return found


def _told_apart(
    model: tuple[Numbers, Numbers], human: tuple[Numbers, Numbers], groups: Any, weights: Numbers
) -> Measured:
    """The AUC of a classifier on messages of dialogues that it has not seen."""
    if weights.shape[1] < 2:
        return Measured(value=None)
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
    return measured(auc_by_group(both, truth, np.asarray(scores, np.float64), weights), weights.shape[1])


# --- the role ---------------------------------------------------------------------------------------------------------


def _slips(replies: Sequence[Reply], groups: Any, weights: Numbers) -> RoleSlips:
    found = [role_slips(reply.text, reply.language) for reply in replies]
    share = _mean(np.array([float(bool(kinds)) for kinds in found]), groups, weights)
    return RoleSlips(share=share, kinds=dict(Counter(kind for kinds in found for kind in kinds)))


def role_slips(text: str, language: str) -> list[str]:
    """In what ways a seeker's message speaks as the supporter would: `offers`, `advises`, `comforts`, `machine`."""
    patterns = _patterns("zh" if language.split("-")[0] == "zh" else "en")
    return [kind for kind, pattern in patterns.items() if pattern.search(text)]


@cache
def _patterns(language: str) -> dict[str, re.Pattern[str]]:
    text = files("compeer.evaluate").joinpath("role_slips.toml").read_text(encoding="utf-8")
    return {kind: re.compile("|".join(found), re.IGNORECASE) for kind, found in tomllib.loads(text)[language].items()}
