"""Profiles that are alike: K-means over embedded descriptions, seekers and supporters apart.

They are clustered apart because they do different things in a conversation: together, the first split would only tell
the two roles from each other. The elbow gives the number of clusters (`compeer.ser.personality.elbow`). Three files
are written:

    clusters.json    the squared error for each K, the K chosen and why, and what each cluster is like
    clusters.jsonl   the cluster of each profile, in the profiles' order
    elbow.svg        the curve with the elbow marked, and the clusters on two principal axes
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compeer.dialogue import Speaker
from compeer.errors import InputError, from_validation
from compeer.io import read_json_lines
from compeer.models.embedder import Embeds, Matrix
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.ser.personality import PARTICIPANTS, Profile, read_profiles
from compeer.ser.personality.elbow import Elbow, Panel, elbow_svg, find_elbow
from compeer.ser.personality.traits import TRAITS, Trait
from compeer.statistics import generator, words

FIT_ON = 20_000
"""Profiles of a participant that K-means is fitted on, drawn by the seed; all are assigned."""
STARTS = 16
"""Times that K-means is started for each K; the best result counts."""
PROFILES_A_BLOCK = 1_000
REMEMBERED = 50_000
"""Descriptions whose cluster is kept in mind, so that each is embedded once."""
DRAWN_POINTS = 400

CLUSTERS, ELBOW = "clusters.jsonl", "elbow.svg"


class Member(BaseModel):
    """Which cluster a participant of a dialogue belongs to; seekers and supporters are numbered apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dialogue: str
    participant: Speaker
    cluster: int = Field(ge=0)


def read_members(path: Path) -> Iterator[Member]:
    """The lines of a `clusters.jsonl`, one at a time; an error names the file, line and field."""
    if not path.is_file():
        raise InputError("there is no such file of clusters.", file=path, do="Cluster the profiles first.")
    for number, value in read_json_lines(path):
        try:
            yield Member.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None


def cluster_profiles(
    profiles: Path, out: Path, seed: int, embedder: Embeds | None = None, most: int = 12
) -> dict[str, Any]:
    """Writes `out` (clusters.json) and the two files beside it, for K up to `most`; returns the stage's manifest."""
    stage = Stage(out, {"seed": seed, "most": most}, {"profiles": profiles}, beside=(CLUSTERS, ELBOW))
    if found := stage.finished():
        return found
    if embedder is None:
        from compeer.models.embedder import Embedder

        embedder = Embedder()
    drawn = _draw(profiles, seed)
    if not drawn:
        raise InputError("there are no profiles in it.", file=profiles, do="Make the profiles first.")
    fits = {who: _fit(counted, generator(seed, "clusters", who), embedder, most) for who, counted in drawn.items()}
    with stage:
        # What was computed above is computed anew after a stop; only the writing goes on from where it was.
        work_through(stage, _written(profiles, fits, embedder), lambda done: done)
        return stage.finish()


def _draw(profiles: Path, seed: int) -> dict[Speaker, Counter[str]]:
    """For each participant the descriptions of at most `FIT_ON` profiles, each equally likely, and their counts."""
    drawn: dict[Speaker, list[str]] = {who: [] for who in PARTICIPANTS}
    seen: Counter[Speaker] = Counter()
    rng = generator(seed, "clusters", "drawn")
    for profile in read_profiles(profiles):
        kept, who = drawn[profile.participant], profile.participant
        seen[who] += 1
        if len(kept) < FIT_ON:
            kept.append(profile.description)
        elif (place := int(rng.integers(seen[who]))) < FIT_ON:
            kept[place] = profile.description
    return {who: Counter(kept) for who, kept in drawn.items() if kept}


# --- fitting ----------------------------------------------------------------------------------------------------------


@dataclass
class _Fit:
    """K-means with the K of the elbow, what it was fitted on, and the cluster of each description seen so far."""

    errors: list[float]
    elbow: Elbow
    centres: Matrix
    counted: Counter[str]
    known: dict[str, int]
    typical: list[list[str]]
    panel: Panel

    def assign(self, descriptions: Sequence[str], embedder: Embeds) -> list[int]:
        """The cluster of each description."""
        new = [text for text in dict.fromkeys(descriptions) if text not in self.known]
        found = dict(zip(new, _nearest(_rows(embedder, new), self.centres), strict=True)) if new else {}
        clusters = [found[text] if text in found else self.known[text] for text in descriptions]
        if len(self.known) + len(found) <= REMEMBERED:
            self.known |= found
        return clusters


def _fit(counted: Counter[str], rng: np.random.Generator, embedder: Embeds, most: int) -> _Fit:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    texts = list(counted)
    rows, weights = _rows(embedder, texts), np.array([counted[text] for text in texts], dtype=float)
    state = int(rng.integers(2**31))
    with threadpool_limits(1):  # sums by several threads differ in the last bits from run to run
        tried = [
            KMeans(clusters, n_init=STARTS, random_state=state).fit(rows, sample_weight=weights)
            for clusters in range(1, min(most, len(texts)) + 1)
        ]
        errors = [round(float(model.inertia_), 6) for model in tried]
        elbow = find_elbow(errors)
        centres: Matrix = tried[elbow.clusters - 1].cluster_centers_
        sizes = np.bincount(_nearest(rows, centres), weights=weights, minlength=elbow.clusters)
        centres = centres[np.argsort(-sizes, kind="stable")]  # the largest cluster is number 0
        labels = _nearest(rows, centres)
        shown = rng.permutation(len(texts))[:DRAWN_POINTS]
        points = _principal(rows, weights)[shown]
    away = np.linalg.norm(rows - centres[labels], axis=1)
    nearest = np.argsort(away, kind="stable")
    typical = [[texts[index] for index in nearest if labels[index] == k][:3] for k in range(elbow.clusters)]
    panel = Panel(errors, elbow, points, [labels[index] for index in shown])
    known = dict(zip(texts, labels, strict=True))
    return _Fit(errors, elbow, centres, counted, known, typical, panel)


def _rows(embedder: Embeds, texts: Sequence[str]) -> Matrix:
    """The texts' embeddings, without the columns after the last one that is used, which are many."""
    blocks = []
    for block in in_blocks(texts, PROFILES_A_BLOCK):
        rows = embedder.embed(block)
        blocks.append(rows[:, : int(np.flatnonzero(rows.any(axis=0)).max(initial=0)) + 1].copy())
    width = max(block.shape[1] for block in blocks)
    return np.concatenate([np.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks])


def _nearest(rows: Matrix, centres: Matrix) -> list[int]:
    """The index of the nearest centre, row by row; either may lack columns, which are then zero."""
    width = min(rows.shape[1], centres.shape[1])
    likeness = rows[:, :width] @ centres[:, :width].T
    found: list[int] = np.argmin((centres**2).sum(axis=1) - 2 * likeness, axis=1).tolist()
    return found


def _principal(rows: Matrix, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The rows on the two directions in which they differ most, each direction with a fixed sign."""
    centred = rows - np.average(rows, axis=0, weights=weights)
    _, vectors = np.linalg.eigh((centred * weights[:, None]).T @ centred)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    points = centred @ axes
    return points if points.shape[1] == 2 else np.hstack([points, np.zeros((len(points), 1))])


# --- writing ----------------------------------------------------------------------------------------------------------


def _written(profiles: Path, fits: dict[Speaker, _Fit], embedder: Embeds) -> Iterator[Done]:
    """A unit for each block of profiles, and a last one for what the clusters are like."""
    totals = {who: np.zeros((fit.elbow.clusters, 1 + 2 * len(TRAITS))) for who, fit in fits.items()}
    for block in in_blocks(read_profiles(profiles), PROFILES_A_BLOCK):
        clusters: dict[Speaker, Iterator[int]] = {}
        for who, fit in fits.items():
            own = [profile for profile in block if profile.participant == who]
            found = fit.assign([profile.description for profile in own], embedder)
            clusters[who] = iter(found)
            for profile, cluster in zip(own, found, strict=True):
                scores = _scores(profile)
                totals[who][cluster] += [1, *scores, *(score**2 for score in scores)]
        members = [
            Member(dialogue=p.dialogue, participant=p.participant, cluster=next(clusters[p.participant])) for p in block
        ]
        counts = {"profiles": len(block)}
        yield Done(beside={CLUSTERS: [member.model_dump_json() for member in members]}, counts={"clusters": counts})
    described = {who: _described(fit, totals[who]) for who, fit in fits.items()}
    counts = {f"of {who}s": fit.elbow.clusters for who, fit in fits.items()}
    lines = json.dumps({"participants": described}, indent=1, ensure_ascii=False).splitlines()
    picture = elbow_svg({who: fit.panel for who, fit in fits.items()})
    yield Done(lines, {ELBOW: [picture]}, {"clusters": counts})


def _scores(profile: Profile) -> list[float]:
    return [float(getattr(profile.scores, trait)) for trait in TRAITS]


def _described(fit: _Fit, totals: npt.NDArray[np.float64]) -> dict[str, Any]:
    """What `clusters.json` says of one participant."""
    traits = len(TRAITS)
    sizes, sums, squares = totals[:, 0], totals[:, 1 : 1 + traits], totals[:, 1 + traits :]
    everyone = sums.sum(axis=0) / sizes.sum()
    spread = np.sqrt(np.maximum(squares.sum(axis=0) / sizes.sum() - everyone**2, 1e-12))
    clusters = []
    for cluster, size in enumerate(sizes):
        means = sums[cluster] / max(1.0, size)
        scores: dict[Trait, float] = dict(zip(TRAITS, means.round(2).tolist(), strict=True))
        away = dict(zip(TRAITS, ((means - everyone) / spread).tolist(), strict=True))
        entry = {
            "cluster": cluster,
            "size": int(size),
            "share": round(float(size / sizes.sum()), 3),
            "scores": scores,
            "said": in_words(away),
            "words": _telling_words(fit, cluster),
            "typical": fit.typical[cluster],
        }
        clusters.append(entry)
    return {
        "profiles": int(sizes.sum()),
        "fitted_on": fit.counted.total(),
        "squared_errors": fit.errors,
        "chosen": fit.elbow.clusters,
        "elbow": asdict(fit.elbow) | {"said": fit.elbow.said},
        "scores": dict(zip(TRAITS, everyone.round(2).tolist(), strict=True)),
        "clusters": clusters,
    }


_MORE: dict[Trait, str] = {
    "dominance": "dominant",
    "influence": "lively",
    "steadiness": "steady",
    "compliance": "careful",
}
_LESS: dict[Trait, str] = {
    "dominance": "hardly dominant",
    "influence": "reserved",
    "steadiness": "restless",
    "compliance": "casual",
}
NAMED = 0.3
"""Standard deviations from the mean of all at which a trait is named; from three times that on it is 'very' so."""


def in_words(away: dict[Trait, float]) -> str:
    """What tells a cluster from the others, given how many standard deviations each trait lies from the mean of all."""

    def named(names: dict[Trait, str], sign: int) -> str:
        found = sorted(
            (trait for trait in TRAITS if sign * away[trait] >= NAMED), key=lambda trait: -sign * away[trait]
        )
        said = [
            ("very " if sign * away[t] >= 3 * NAMED and names[t] != "hardly dominant" else "") + names[t] for t in found
        ]
        return " and ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else "".join(said)

    return ", ".join(part for part in (named(_MORE, 1), named(_LESS, -1)) if part) or "near the mean in every trait"


def _telling_words(fit: _Fit, cluster: int, count: int = 6) -> list[str]:
    """Words that stand in this cluster's descriptions much more often than in the others'."""
    inside: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for text, times in fit.counted.items():
        target = inside if fit.known[text] == cluster else outside
        for word in set(words(text)):
            if len(word) > 3:
                target[word] += times
    size = max(1, sum(times for text, times in fit.counted.items() if fit.known[text] == cluster))
    others = max(1, fit.counted.total() - size)

    def weight(word: str) -> float:
        share, elsewhere = inside[word] / size, outside[word] / others
        return share * math.log((share + 0.01) / (elsewhere + 0.01))

    return sorted(inside, key=lambda word: (-weight(word), word))[:count]
