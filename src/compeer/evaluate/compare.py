"""Two supporters compared on the same scenarios: differences with paired intervals, and how often each wins.

Both runs' folders must be of one protocol, with the same seeker, the same judges and the same settings; only the
supporter and its mode may differ. A pair is one scenario and repeat that both have scored. In each dimension the
difference is the mean of first − second over the pairs, and the win rate the share of pairs in which the first did
better, ties counting half. Scenarios are resampled with all their repeats for 95 % intervals: pairs of one scenario
are alike. What only one run has is left out, and noted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field

from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS, HIGHEST
from compeer.io import Frozen, read_json, read_json_lines
from compeer.statistics import FEW_GROUPS, Estimate, Numbers, group_weights

Pair = tuple[str, int]  # a scenario's id and the repeat
_MAY_DIFFER = ("mode", "supporter_tokens", "batch", "repeats")


class RunFolder(Frozen):
    """What a comparison needs of a run."""

    folder: str
    supporter: str
    mode: str
    manifest: dict[str, Any]
    lines: dict[Pair, dict[str, Any]]


class DimensionComparison(Frozen):
    """The first supporter against the second in one dimension."""

    pairs: int
    scenarios: int
    first: float | None = Field(description="the first one's mean over the pairs")
    second: float | None
    difference: Estimate = Field(description="first less second")
    wins: int = Field(description="pairs in which the first is better")
    ties: int
    losses: int
    win_rate: Estimate = Field(description="wins and half of the ties, as a share of the pairs")


class Comparison(Frozen):
    """Two runs side by side."""

    protocol: str
    first: str
    second: str
    scenarios: int = Field(description="scenarios that both have")
    pairs: int
    notes: list[str]
    dimensions: dict[str, DimensionComparison]


def read_run(folder: Path) -> RunFolder:
    """The manifest and the scores of a run that has ended."""
    do = "Give a folder that compeer evaluate esc-eval or sage wrote, and finished."
    manifest, scores = folder / "manifest.json", folder / "scores.jsonl"
    if missing := [path.name for path in (manifest, scores) if not path.is_file()]:
        raise InputError(f"there is no {missing[0]} in it.", file=folder, do=do)
    content = read_json(manifest) or {}
    try:
        name, mode = content["models"]["supporter"]["name"], content["settings"]["mode"]
    except (KeyError, TypeError):
        content = {}
    if content.get("protocol") not in ("esc-eval", "sage"):
        raise InputError("this is no manifest of an evaluation.", file=manifest, do=do)
    lines: dict[Pair, dict[str, Any]] = {}
    for number, value in read_json_lines(scores):
        try:
            key = (str(value["scenario"]), int(value["repeat"]))
        except (KeyError, TypeError, ValueError):
            raise InputError("a score needs scenario and repeat.", file=scores, line=number, do=do) from None
        if key in lines:
            raise InputError("this scenario and repeat were there before.", file=scores, line=number, do=do)
        lines[key] = value
    return RunFolder(folder=str(folder), supporter=name, mode=mode, manifest=content, lines=lines)


def compare_runs(first: RunFolder, second: RunFolder, seed: int = 0) -> Comparison:
    """The comparison, over what both have; an error names what makes it unfair."""
    notes = _check_alike(first, second)
    shared = [key for key in first.lines if key in second.lines]
    if not shared:
        do = "Run both on the same cards or profiles, with the same --limit and seed."
        raise InputError("the two runs have no scenario in common.", file=second.folder, do=do)
    for run in (first, second):
        if unpaired := len(run.lines) - len(shared):
            notes.append(f"{unpaired} of {len(run.lines)} conversations of {run.folder} have no counterpart: left out.")
    protocol = str(first.manifest["protocol"])
    read = _esc_eval_scores if protocol == "esc-eval" else _sage_scores
    pairs = {key: read(first.lines[key], second.lines[key]) for key in shared}
    names = [*DIMENSIONS, "average"] if protocol == "esc-eval" else ["final", "success", "failure"]
    by_name = {name: {key: found[name] for key, found in pairs.items() if name in found} for name in names}
    scenarios = list(dict.fromkeys(scenario for scenario, _ in shared))
    weights = group_weights(len(scenarios), seed=seed)
    return Comparison(
        protocol=protocol,
        first=_title(first, second),
        second=_title(second, first),
        scenarios=len(scenarios),
        pairs=len(shared),
        notes=notes,
        dimensions={name: _dimension(name, own, scenarios, weights) for name, own in by_name.items()},
    )


def _title(run: RunFolder, other: RunFolder) -> str:
    """What tells the run from the other: the supporter, its mode if both are of one name, else the folder too."""
    if run.supporter != other.supporter:
        return run.supporter
    title = f"{run.supporter} ({run.mode})"
    return title if run.mode != other.mode else f"{title}, {run.folder}"


def _check_alike(first: RunFolder, second: RunFolder) -> list[str]:
    """Stops where the runs differ in more than the supporter; returns what is worth knowing."""
    one, other = first.manifest, second.manifest
    if one["protocol"] != other["protocol"]:
        what = f"the two runs differ in protocol: {one['protocol']} and {other['protocol']}."
        raise InputError(what, file=second.folder, do="Give two runs of the same one.")
    fixed, others = _fixed(one), _fixed(other)
    differ = sorted(name for name in {*fixed, *others} - {"supporter"} if fixed.get(name) != others.get(name))
    scenarios = [run.get("scenarios", {}) for run in (one, other)]
    if scenarios[0].get("ids") == scenarios[1].get("ids") and scenarios[0] != scenarios[1]:
        differ.append("what the scenarios say")
    if differ:
        do = "Only the supporter and its mode may differ. Run one of them again as the other was run."
        raise InputError(f"the two runs differ in {', '.join(differ)}.", file=second.folder, do=do)
    notes = []
    if one.get("seed") != other.get("seed"):
        notes.append(f"The seeds differ ({one.get('seed')}, {other.get('seed')}): seekers were drawn anew.")
    if fixed["supporter"] == others["supporter"] and first.mode == second.mode:
        notes.append("Both runs are of the same supporter in the same mode.")
    return notes


def _fixed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs have in common by name: models, without where a server stood, settings and others' prompts."""
    models = {role: {**model, "url": None} for role, model in manifest["models"].items()}
    settings = {f"settings.{key}": one for key, one in manifest["settings"].items() if key not in _MAY_DIFFER}
    prompts = {name: mark for name, mark in manifest.get("prompts", {}).items() if not name.startswith("supporter")}
    return {**models, **settings, "prompts": prompts}


def _esc_eval_scores(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Both supporters' scores by dimension, 0 to 100, where a judge scored both."""
    found: dict[str, tuple[float, float]] = {}
    judges = [name for name in one.get("judges") or {} if name in (other.get("judges") or {})]
    for dimension in DIMENSIONS:
        scores = [(one["judges"][name].get(dimension), other["judges"][name].get(dimension)) for name in judges]
        if known := [(100 * a / HIGHEST, 100 * b / HIGHEST) for a, b in scores if a is not None and b is not None]:
            found[dimension] = (sum(a for a, _ in known) / len(known), sum(b for _, b in known) / len(known))
    if len(found) == len(DIMENSIONS):
        found["average"] = (fmean([a for a, _ in found.values()]), fmean([b for _, b in found.values()]))
    return found


def _sage_scores(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Both supporters' final emotions, and 100 for a success or a failure, where both came to an end."""
    if one.get("final") is None or other.get("final") is None:
        return {}
    ends = {name: (100.0 * (one["end"] == name), 100.0 * (other["end"] == name)) for name in ("success", "failure")}
    return {"final": (float(one["final"]), float(other["final"])), **ends}


def _dimension(
    name: str, pairs: Mapping[Pair, tuple[float, float]], scenarios: Sequence[str], weights: Numbers
) -> DimensionComparison:
    groups = [scenarios.index(scenario) for scenario, _ in pairs]
    better = -1 if name == "failure" else 1  # the sign of a difference that is a win for the first
    signs = [better * ((one > other) - (one < other)) for one, other in pairs.values()]
    differences = [one - other for one, other in pairs.values()]
    return DimensionComparison(
        pairs=len(pairs),
        scenarios=len(set(groups)),
        first=fmean([one for one, _ in pairs.values()]) if pairs else None,
        second=fmean([other for _, other in pairs.values()]) if pairs else None,
        difference=Estimate.of_groups(differences, groups, weights, FEW_GROUPS),
        wins=signs.count(1),
        ties=signs.count(0),
        losses=signs.count(-1),
        win_rate=Estimate.of_groups([(1 + sign) / 2 for sign in signs], groups, weights, FEW_GROUPS),
    )
