"""Profiles that are alike: K-means over embedded descriptions, seekers and supporters apart.

    clusters.json    the squared error for each K, the K chosen and why, and what each cluster is like
    clusters.jsonl   the cluster of each profile, in the profiles' order
    elbow.svg        the curve with the elbow marked, and the clusters on two principal axes

The elbow of the squared error gives the number of clusters. The point farthest below the chord of the curve proves
nothing: even a cloud without clusters has one. Without clusters the error falls about as a power of K, a straight line
on logarithmic axes; at a true elbow it falls steeply up to K and hardly any more after it. `find_elbow` takes such a
kink where there is one, and otherwise the point farthest from the chord, and says which.
"""

from __future__ import annotations

import json
import math
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field
from research.reservoir import Reservoir

from compeer.dialogue import Speaker
from compeer.errors import InputError
from compeer.io import Frozen, read_lines
from compeer.models.embedder import Embedder, Embeds, Matrix
from compeer.pipeline import Done, Stage, in_blocks
from compeer.policy.persona import TRAITS, Trait, read_profiles
from compeer.ser.asking import run_stage
from compeer.statistics import generator, words

PARTICIPANTS: tuple[Speaker, ...] = get_args(Speaker)
FIT_ON = 20_000
"""Profiles of a participant that K-means is fitted on, chosen by the seed; all are assigned."""
STARTS = 16
"""Times that K-means is started for each K; the best result counts."""
PROFILES_A_BLOCK = 1_000
REMEMBERED = 50_000
"""Descriptions whose cluster is kept in mind, so that each is embedded once."""
POINTS = 400

CLUSTERS, ELBOW = "clusters.jsonl", "elbow.svg"
KINK = 3.0
"""How much steeper the error must fall just before K than after it, on logarithmic axes, for a clear elbow. Uniform and
Gaussian clouds of 2 to 384 dimensions gave 0.9 to 1.6 at most, blobs that lie apart 5 and more."""


@dataclass(frozen=True)
class Elbow:
    """The number of clusters chosen, whether the curve really bends there, and both numbers that say so."""

    clusters: int
    clear: bool
    kink: float
    """The fall of the error just before K, as a multiple of the fall after it (log-log slopes)."""
    distance: float
    """How far the normalised curve lies below its chord at K, 0 to 1."""

    @property
    def summary(self) -> str:
        """The choice in a sentence."""
        if self.clusters == 1:
            return "One cluster: the error does not fall in any way that would speak for more."
        if self.clear:
            return f"A clear elbow at {self.clusters} clusters: after it the error hardly falls any more."
        return (
            f"No clear elbow: the error falls evenly, as it does for a cloud without clusters. {self.clusters} is only "
            "where the curve lies farthest below its chord."
        )


def find_elbow(errors: Sequence[float]) -> Elbow:
    """The elbow of the squared errors for K = 1, 2, …"""
    curve = np.minimum.accumulate(np.asarray(errors, dtype=float))  # a worse local optimum for a larger K is no rise
    most = len(curve)
    if most < 3 or curve[0] <= 0 or curve[-1] >= curve[0]:
        return Elbow(1, clear=False, kink=0.0, distance=0.0)
    distances = 1 - np.arange(most) / (most - 1) - (curve - curve[-1]) / (curve[0] - curve[-1])
    logs = np.log(np.maximum(curve, curve[0] * 1e-9))
    kinks = np.zeros(most)
    for index in range(1, most - 2):  # with a single step after it, one cannot tell a bend from chance
        clusters = index + 1
        before = (logs[index - 1] - logs[index]) / math.log(clusters / (clusters - 1))
        after = (logs[index] - logs[-1]) / math.log(most / clusters)
        kinks[index] = min(before / max(after, 1e-9), 1e6)
    sharpest, farthest = int(np.argmax(kinks)), int(np.argmax(np.round(distances, 12)))
    clear = bool(kinks[sharpest] >= KINK)
    chosen = sharpest if clear else farthest
    return Elbow(chosen + 1, clear, round(float(kinks[chosen]), 3), round(max(0.0, float(distances[chosen])), 3))


class Member(Frozen):
    """Which cluster a participant of a dialogue belongs to; seekers and supporters are numbered apart."""

    dialogue: str
    participant: Speaker
    cluster: int = Field(ge=0)


def read_members(path: Path) -> Iterator[Member]:
    """The lines of a `clusters.jsonl`, one at a time; an error names the file, line and field."""
    return read_lines(path, Member, "file of clusters", "Cluster the profiles first.")


def cluster_profiles(
    profiles: Path, out: Path, seed: int, embedder: Embeds | None = None, most: int = 12
) -> dict[str, Any]:
    """Writes `out` (clusters.json) and the two files beside it, for K up to `most`; returns the stage's manifest."""
    stage = Stage(out, {"seed": seed, "most": most}, {"profiles": profiles}, beside=(CLUSTERS, ELBOW))
    if found := stage.finished():
        return found
    embedder = embedder or Embedder()
    rng = generator(seed, "clusters", "drawn")
    kept: dict[Speaker, Reservoir[str]] = {who: Reservoir(FIT_ON, rng) for who in PARTICIPANTS}
    for profile in read_profiles(profiles):
        kept[profile.participant].offer(profile.description)
    fits = {
        who: _fit(Counter(those.items), generator(seed, "clusters", who), embedder, most)
        for who, those in kept.items()
        if those.items
    }
    if not fits:
        raise InputError("there are no profiles in it.", file=profiles, do="Make the profiles first.")
    # What was computed above is computed anew after a stop; only the writing goes on from where it was.
    return run_stage(stage, _written(profiles, fits, embedder), lambda done: done)


# --- fitting ----------------------------------------------------------------------------------------------------------


@dataclass
class _Fit:
    """K-means with the K of the elbow, what it was fitted on, and the cluster of each description so far."""

    errors: list[float]
    elbow: Elbow
    centres: Matrix
    counted: Counter[str]
    known: dict[str, int]
    typical: list[list[str]]
    points: npt.NDArray[np.float64]
    """Some of the descriptions on two principal axes, with their cluster."""

    def assign(self, descriptions: Sequence[str], embedder: Embeds) -> Mapping[str, int]:
        """The cluster of each description."""
        new = [text for text in dict.fromkeys(descriptions) if text not in self.known]
        found = dict(zip(new, _nearest(_rows(embedder, new), self.centres), strict=True)) if new else {}
        if len(self.known) + len(found) <= REMEMBERED:
            self.known |= found
        return ChainMap(found, self.known)


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
        some = rng.permutation(len(texts))[:POINTS]
        points = np.column_stack([_principal(rows, weights), labels])[some]
    away = np.linalg.norm(rows - centres[labels], axis=1)
    nearest = np.argsort(away, kind="stable")
    typical = [[texts[index] for index in nearest if labels[index] == k][:3] for k in range(elbow.clusters)]
    return _Fit(errors, elbow, centres, counted, dict(zip(texts, labels, strict=True)), typical, points)


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
        clusters = {
            who: fit.assign([profile.description for profile in block if profile.participant == who], embedder)
            for who, fit in fits.items()
        }
        lines = []
        for profile in block:
            who, cluster = profile.participant, clusters[profile.participant][profile.description]
            scores = [float(getattr(profile.scores, trait)) for trait in TRAITS]
            totals[who][cluster] += [1, *scores, *(score**2 for score in scores)]
            lines.append(Member(dialogue=profile.dialogue, participant=who, cluster=cluster).model_dump_json())
        yield Done(beside={CLUSTERS: lines}, counts={"clusters": {"profiles": len(block)}})
    described = {who: _described(fit, totals[who]) for who, fit in fits.items()}
    counts = {f"of {who}s": fit.elbow.clusters for who, fit in fits.items()}
    lines = json.dumps({"participants": described}, indent=1, ensure_ascii=False).splitlines()
    yield Done(lines, {ELBOW: [elbow_svg(fits)]}, {"clusters": counts})


def _described(fit: _Fit, totals: npt.NDArray[np.float64]) -> dict[str, Any]:
    """What `clusters.json` says of one participant."""
    traits = len(TRAITS)
    sizes, sums, squares = totals[:, 0], totals[:, 1 : 1 + traits], totals[:, 1 + traits :]
    everyone = sums.sum(axis=0) / sizes.sum()
    deviation = np.sqrt(np.maximum(squares.sum(axis=0) / sizes.sum() - everyone**2, 1e-12))
    clusters = []
    for cluster, size in enumerate(sizes):
        means = sums[cluster] / max(1.0, size)
        scores: dict[Trait, float] = dict(zip(TRAITS, means.round(2).tolist(), strict=True))
        away = dict(zip(TRAITS, ((means - everyone) / deviation).tolist(), strict=True))
        entry = {
            "cluster": cluster,
            "size": int(size),
            "share": round(float(size / sizes.sum()), 3),
            "scores": scores,
            "said": in_words(away),
            "words": _typical_words(fit, cluster),
            "typical": fit.typical[cluster],
        }
        clusters.append(entry)
    return {
        "profiles": int(sizes.sum()),
        "fitted_on": fit.counted.total(),
        "squared_errors": fit.errors,
        "chosen": fit.elbow.clusters,
        "elbow": asdict(fit.elbow) | {"said": fit.elbow.summary},
        "scores": dict(zip(TRAITS, everyone.round(2).tolist(), strict=True)),
        "clusters": clusters,
    }


_MORE = dict(zip(TRAITS, ("dominant", "lively", "steady", "careful"), strict=True))
_LESS = dict(zip(TRAITS, ("hardly dominant", "reserved", "restless", "casual"), strict=True))
NAMED = 0.3
"""Standard deviations from the mean of all at which a trait is named; from three times that on it is 'very' so."""


def in_words(away: dict[Trait, float]) -> str:
    """What tells a cluster from the others, given how many standard deviations each trait lies from the mean of all."""

    def named(names: dict[Trait, str], sign: int) -> str:
        found = sorted(
            (trait for trait in TRAITS if sign * away[trait] >= NAMED), key=lambda trait: -sign * away[trait]
        )
        terms = [
            ("very " if sign * away[t] >= 3 * NAMED and names[t] != "hardly dominant" else "") + names[t] for t in found
        ]
        return " and ".join([", ".join(terms[:-1]), terms[-1]]) if len(terms) > 1 else "".join(terms)

    return ", ".join(part for part in (named(_MORE, 1), named(_LESS, -1)) if part) or "near the mean in every trait"


def _typical_words(fit: _Fit, cluster: int, count: int = 6) -> list[str]:
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


# --- the picture ------------------------------------------------------------------------------------------------------

TEMPLATE = Path(__file__).parent / "tables" / "elbow.svg.jinja"
WIDTH, HEIGHT, LEFT, TOP = 380, 230, 52, 30
RIGHT, BOTTOM = WIDTH - 14, HEIGHT - 42


def elbow_svg(fits: Mapping[Speaker, _Fit]) -> str:
    """A self-contained picture: for each participant the curve with the elbow, and beside it the clusters."""
    from jinja2 import Environment

    panels = [_panel(who.capitalize(), fit) for who, fit in fits.items()]
    summary = " ".join(f"{who}: {fit.elbow.summary}" for who, fit in fits.items())
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    size = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    return "".join(template.render(panels=panels, summary=summary, **size).splitlines())


def _panel(name: str, fit: _Fit) -> dict[str, Any]:
    most, shares = len(fit.errors), [error / (fit.errors[0] or 1.0) for error in fit.errors]
    low = min(0.9, math.floor(10 * min(shares)) / 10)

    def at(clusters: int, share: float) -> tuple[str, str]:
        x = LEFT + (clusters - 1) / max(1, most - 1) * (RIGHT - LEFT)
        return f"{x:.1f}", f"{TOP + (1 - share) / (1 - low) * (BOTTOM - TOP):.1f}"

    least, extent = fit.points.min(axis=0), np.ptp(fit.points, axis=0)
    points = (fit.points - least) / np.where(extent > 0, extent, 1.0)
    clusters = fit.points[:, 2].astype(int).tolist()
    return {
        "name": name,
        "elbow": fit.elbow,
        "curve": [at(clusters, share) for clusters, share in enumerate(shares, 1)],
        "ticks": [(f"{share:.0%}", at(1, share)[1]) for share in (low, (low + 1) / 2, 1.0)],
        "points": [(x, y, cluster) for (x, y, _), cluster in zip(points.tolist(), clusters, strict=True)],
        "clusters": sorted(set(clusters)),
    }
