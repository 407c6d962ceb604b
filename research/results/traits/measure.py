"""How the lexical traits are spread, and whether profiles have clusters.

    python research/results/traits/measure.py profiles DATA    spread and correlation of the traits on ESConv
    python research/results/traits/measure.py clouds DATA      the elbow of points without clusters, and of blobs
    python research/results/traits/measure.py lexical DATA     clusters of the lexical profiles of ESConv
    python research/results/traits/measure.py llm DATA         clusters of profiles by a language model

Each writes a file of its name beside this one. DATA is a folder with `esconv/train.jsonl` and
`ser_llm/profiles.jsonl`.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from research.personality.clusters import (
    CLUSTERS,
    PARTICIPANTS,
    STARTS,
    cluster_profiles,
    find_elbow,
    read_members,
)
from research.personality.profiles import lexical_profiles

from compeer.corpora import read_corpus
from compeer.io import read_json_lines
from compeer.models.embedder import Embedder, Embeds, Matrix
from compeer.policy.persona import TRAITS, Profile
from compeer.statistics import generator

MOST = 12
SEEDS = range(5)
DIMENSIONS = (2, 20, 384)
POINTS, CLOUDS = 500, 2
"""Points of a cloud, and clouds of each kind and dimension."""
BLOBS = (2, 3, 5, 7)
APART = 2.5
"""Standard deviation of the blobs' centres in each of 20 dimensions, where that of a blob is 1."""


class Remembering:
    """An embedder that embeds each text once."""

    def __init__(self) -> None:
        self._embedder = Embedder(device="cpu")
        self._known: dict[str, npt.NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> Matrix:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= dict(zip(new, self._embedder.embed(new), strict=True))
        return np.stack([self._known[text] for text in texts]) if texts else self._embedder.embed([])


# --- profiles ---------------------------------------------------------------------------------------------------------


def lexical(data: Path) -> list[Profile]:
    """The lexical profiles of ESConv's training split."""
    dialogues = read_corpus(data / "esconv" / "train.jsonl")
    return [profile for dialogue in dialogues for profile in lexical_profiles(dialogue)]


def import_profiles(path: Path) -> Iterator[Profile]:
    """The profiles by a language model, a line a context: `{"id": "esconv-train-73-6", "seeker": {"description", "D",
    "I", "S", "C"}, "supporter": {…}}`, where 73 is the dialogue's line, counted from 0."""
    for _, value in read_json_lines(path):
        corpus, split, line, _ = value["id"].rsplit("-", 3)
        for who in PARTICIPANTS:
            own = {"dialogue": f"{corpus}-{split}-{int(line) + 1:04d}", "participant": who, "source": "llm"}
            scores = {trait: value[who][trait[0].upper()] for trait in TRAITS}
            yield Profile.model_validate({**own, "scores": scores, "description": value[who]["description"]})


def measure_profiles(data: Path) -> dict[str, Any]:
    """Standard deviations of the traits and correlations between them, seekers and supporters apart."""
    found: dict[str, Any] = {}
    profiles = lexical(data)
    for who in PARTICIPANTS:
        scores = _scores(profile for profile in profiles if profile.participant == who)
        standard = (scores - scores.mean(axis=0)) / scores.std(axis=0)
        related = standard.T @ standard / len(scores)
        pairs = {
            f"{TRAITS[one]} and {TRAITS[other]}": float(related[one, other]) for one, other in combinations(range(4), 2)
        }
        deviations = dict(zip(TRAITS, scores.std(axis=0).tolist(), strict=True))
        found[who] = {"profiles": len(scores), "deviations": deviations, "correlations": pairs}
    for figure in ("deviations", "correlations"):
        values = [value for who in PARTICIPANTS for value in found[who][figure].values()]
        found[figure] = {"lowest": min(values), "highest": max(values)}
    return found


def _scores(profiles: Iterable[Profile]) -> npt.NDArray[np.float64]:
    return np.array([[getattr(profile.scores, trait) for trait in TRAITS] for profile in profiles])


# --- clusters ---------------------------------------------------------------------------------------------------------


def measure_clouds(_: Path) -> dict[str, Any]:
    """What the elbow says of points without clusters, and of blobs that lie apart."""
    return {"clouds": summary(clouds()), "blobs": summary(blobs())}


def measure_lexical(data: Path) -> dict[str, Any]:
    """The clusters of the lexical profiles by the first seed, and what the elbow says by each seed."""
    profiles, embedder = lexical(data), Remembering()
    return {"first": clustered(profiles, 0, embedder, MOST), "seeds": by_seed(profiles, embedder, (MOST,))}


def measure_llm(data: Path) -> dict[str, Any]:
    """What the elbow says of the profiles by a language model, by seed and by the greatest K tried."""
    return by_seed(list(import_profiles(data / "ser_llm" / "profiles.jsonl")), Remembering(), (8, MOST, 16))


def clouds() -> Iterator[dict[str, Any]]:
    """Points without clusters, uniform in a cube or Gaussian."""
    for dimensions in DIMENSIONS:
        for draw in range(CLOUDS):
            rng = generator(draw, "cloud", str(dimensions))
            yield {"kind": "uniform", "dimensions": dimensions, **bend(rng.uniform(size=(POINTS, dimensions)))}
            yield {"kind": "gaussian", "dimensions": dimensions, **bend(rng.normal(size=(POINTS, dimensions)))}


def blobs() -> Iterator[dict[str, Any]]:
    """Gaussian blobs of equal size that lie apart."""
    for count in BLOBS:
        for draw in range(CLOUDS):
            rng = generator(draw, "blobs", str(count))
            centres = np.repeat(rng.normal(size=(count, 20)) * APART, 100, axis=0)
            yield {"blobs": count, **bend(centres + rng.normal(size=centres.shape))}


def bend(rows: npt.NDArray[np.float64]) -> dict[str, Any]:
    """The K chosen for the rows, and the greatest ratio of falls before and after a K."""
    from sklearn.cluster import KMeans

    fits = [KMeans(clusters, n_init=STARTS, random_state=0).fit(rows) for clusters in range(1, MOST + 1)]
    return _told([float(fit.inertia_) for fit in fits])


def _told(errors: Sequence[float]) -> dict[str, Any]:
    """As `find_elbow`, which keeps the ratio at the K chosen only, and the greatest ratio of all."""
    elbow = find_elbow(errors)
    logs, most = np.log(np.minimum.accumulate(errors)), len(errors)
    ratios = []
    for at in range(2, most - 1):
        before = (logs[at - 2] - logs[at - 1]) / math.log(at / (at - 1))
        ratios.append(float(before / ((logs[at - 1] - logs[-1]) / math.log(most / at))))
    if elbow.clusters < most - 1 and abs(ratios[elbow.clusters - 2] - elbow.kink) > 1e-3:
        raise ValueError("find_elbow computes its ratio in another way now: mend this script")
    return {"chosen": elbow.clusters, "clear": elbow.clear, "ratio": max(ratios)}


def summary(sets: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The range of K and of the greatest ratio over sets of points."""
    each = list(sets)
    ratios = [one["ratio"] for one in each]
    return {
        "sets": len(each),
        "clear": sum(one["clear"] for one in each),
        "chosen": dict(sorted(Counter(one["chosen"] for one in each).items())),
        "ratio": {"least": min(ratios), "greatest": max(ratios)},
        "each": each,
    }


def clustered(profiles: Sequence[Profile], seed: int, embedder: Embeds, most: int) -> dict[str, Any]:
    """Sizes and mean scores of the clusters of each participant, and how much of the scores' variance is between."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "profiles.jsonl", Path(folder) / "clusters.json"
        file.write_text("".join(f"{one.model_dump_json(exclude_defaults=True)}\n" for one in profiles), "utf-8")
        cluster_profiles(file, out, seed, embedder, most)
        told = json.loads(out.read_text("utf-8"))["participants"]
        members = list(read_members(out.with_name(CLUSTERS)))
    for who in PARTICIPANTS:
        own = [one.cluster for one in members if one.participant == who]
        scores = _scores(one for one in profiles if one.participant == who)
        centred = np.array([scores[np.equal(own, cluster)].mean(axis=0) for cluster in own]) - scores.mean(axis=0)
        between = (centred**2).mean(axis=0) / scores.var(axis=0)
        found[who] = {
            "profiles": len(own),
            **_told(told[who]["squared_errors"]),
            "variance_between": dict(zip(TRAITS, between.tolist(), strict=True)),
            "clusters": [{key: one[key] for key in ("size", "scores", "said")} for one in told[who]["clusters"]],
        }
    return found


def by_seed(profiles: Sequence[Profile], embedder: Embeds, mosts: Sequence[int]) -> dict[str, Any]:
    """For each greatest K tried how often which K was chosen, and the greatest ratio, over the seeds."""
    found: dict[str, Any] = {}
    for most in mosts:
        runs = [clustered(profiles, seed, embedder, most) for seed in SEEDS]
        found[f"up to {most}"] = {who: summary(_brief(run[who]) for run in runs) for who in PARTICIPANTS}
    return found


def _brief(run: dict[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in ("profiles", "chosen", "clear", "ratio")}


PARTS = {"profiles": measure_profiles, "clouds": measure_clouds, "lexical": measure_lexical, "llm": measure_llm}


def main() -> None:
    import torch

    torch.set_num_threads(1)  # the last bits depend on the number of threads
    part, data = sys.argv[1], Path(sys.argv[2])
    measured = PARTS[part](data)
    Path(__file__).with_name(f"{part}.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
