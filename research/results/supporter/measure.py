"""A supporter trained by example, then by reward, with and without reweighting: several seeds side by side on one GPU.

    python research/results/supporter/measure.py prepare FOLDER --records RECORDS  records of a build, as README.md says
    python research/results/supporter/measure.py run FOLDER [--parallel 3]          what is done is not done again
    python research/results/supporter/measure.py table FOLDER   results.json and tables.md beside this file

The settings are those of recipes/h200.toml and of what recipes/claims changes in it. The supporter is fine-tuned on
reference turns by adapters of rank 8 (`sft`; `sft-whole`: all weights), then trained by reward from there, by adapters
of rank 8 again: `reweighted-1` … with redundancy-aware rewards (`anchored-1` …: the corpus' own decisions and the plan
count as well; `gold-1` …: the decisions alone do; `chance-1` …: so they do, less how common they are; `paper-1` …: the
formula as printed; `alpha-0.1-1` …: another length gate, one seed), `plain-1` … without. Both trainings together are
adapters of rank 16. FOLDER/judge-1 gives the rewards; FOLDER/judge-2 and FOLDER/feedback are judges that the supporter
was never trained against (results/judges/measure.py trains all three; links will do). All answer the same held-out
histories, each with a group of outputs (`assess.py`); a history's outputs together are what the similarity within a
group is measured on. `best-sft` has sixteen outputs a history, for choosing the best of n (a FOLDER/judge-3 may choose
as well); `measure-sft@NAME` answers FOLDER/NAME.jsonl instead. `decided-sft@NAME` has the likeliest output for every
turn of that file, `held-sft@NAME` the same held to a turn's form. `again-NAME` lets the judges of FOLDER judge anew
what said/measure-NAME.json holds (`again-best-sft`: said/best-sft.json).

What FOLDER does not hold stays as it is in results.json, so results may be gathered over several days; with `table
--add` so does all that is there already. Where judges were trained anew between two days, give both days' folders: a
supporter is compared with the one that the same judges measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assess import CANDIDATES, DECISIONS, GROUP, HISTORIES, assessed, decided, judged_again

from compeer.recipe import load_recipe

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3])]

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
RECIPE = load_recipe(RECIPES / "h200.toml")
SEEDS = (1, 2, 3)
SFT: dict[str, Any] = {
    name: recipe.sft.model_dump(exclude_unset=True, exclude={"save_every"})
    for name, recipe in {"sft": RECIPE, "sft-whole": load_recipe(RECIPES / "claims" / "whole.toml")}.items()
}
GRPO: dict[str, Any] = RECIPE.grpo.model_dump(exclude_unset=True, exclude={"save_every"})
"""Every training here has one checkpoint, at its end."""


def changed(name: str) -> dict[str, Any]:
    """The settings of training by reward that a recipe of recipes/claims changes."""
    chosen, usual = load_recipe(RECIPES / "claims" / f"{name}.toml").grpo.model_dump(), RECIPE.grpo.model_dump()
    return {key: value for key, value in chosen.items() if value != usual[key]}


VARIANTS: dict[str, dict[str, Any]] = {
    "reweighted": {},
    "plain": changed("plain"),
    "anchored": changed("anchored"),
    "gold": changed("gold"),
    "chance": changed("chance"),
    "paper": changed("printed"),
}
GRID = {name: changed(name) for name in ("alpha-0.1", "alpha-2.0", "beta-10", "beta-20")}
"""Other length gates, each tried with the first seed."""
COMPARED = (
    *(("reweighted", "sft"), ("plain", "sft"), ("reweighted", "plain")),
    *(("anchored", "sft"), ("gold", "sft"), ("chance", "sft"), ("sft-whole", "sft")),
    *(("paper", "sft"), ("paper", "reweighted"), *((name, "sft") for name in GRID)),
)
CURVE = (
    *("step", "step_time", "entropy", "frac_zero_std", "guard/rejected_share", "grad_norm"),
    *(f"raw/{part}" for part in ("total", "history", "emotion", "strategy", "response", "format", "tied_groups")),
    *(f"redundancy/{name}" for name in ("s_in", "s_hi", "tau")),
    *("reweighted/total", "response/distinct_2", "response/words"),
)


def prepare(folder: Path, records: Path) -> None:
    """A file of records a split."""
    from compeer.ser.record import SPLITS, read_records, write_records

    folder.mkdir(parents=True, exist_ok=True)
    found = list(read_records(records))
    for split in SPLITS:
        write_records(folder / f"{split}.jsonl", [record for record in found if record.split == split])


def do(folder: Path, name: str) -> None:
    """One training or measurement, by its name."""
    from compeer.ser.record import read_records

    kind, _, rest = name.partition("-")
    variant, _, seed = name.rpartition("-")
    start = time.monotonic()
    figures: dict[str, Any] = {}
    if kind == "sft":
        from compeer.policy.sft import SupporterSettings, train_supporter

        supporter = SupporterSettings(**SFT[name], save_every=SFT[name]["steps"])
        figures = train_supporter(list(read_records(folder / "policy.jsonl")), supporter, folder / name, 1)
    elif variant in VARIANTS | GRID:
        figures = by_reward(folder, name, (VARIANTS | GRID)[variant], int(seed))
    elif kind == "again":
        name = rest if rest.startswith("best-") else f"measure-{rest}"
        figures = judged_again(folder, name)
    else:
        model, _, test = rest.partition("@")
        figures = (
            decided(folder, model, test, held=kind == "held")
            if kind in ("decided", "held")
            else assessed(folder, model, test or "test", CANDIDATES if kind == "best" else GROUP)
        )
    figures["seconds"] = round(time.monotonic() - start)
    (folder / "said" / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def by_reward(folder: Path, name: str, changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Trains by reward, with changed settings; the figures of every step are kept with it."""
    from compeer.models.embedder import Embedder
    from compeer.policy.grpo import GrpoSettings, train_grpo
    from compeer.policy.sources import open_sources
    from compeer.ser.record import read_records

    settings = GrpoSettings.model_validate({**GRPO, **changes, "save_every": GRPO["steps"]})
    records = list(read_records(folder / "policy.jsonl"))
    sources = open_sources(settings, folder / "judge-1" / "model", 64, seed, records)
    figures = train_grpo(folder / "sft" / "model", sources, Embedder(), records, settings, folder / name, seed)
    state = next((folder / name / "checkpoints").glob("checkpoint-*/trainer_state.json"))
    rows = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    return {**figures, "curve": [{key: row[key] for key in sorted(row)} for row in rows if "raw/total" in row]}


def run(folder: Path, parallel: int, only: Sequence[str]) -> None:
    """Fine-tunings side by side, then the trainings by reward, then all measurements."""
    from side_by_side import chosen, side_by_side

    trained = [f"{variant}-{seed}" for seed in SEEDS for variant in VARIANTS] + [f"{name}-{SEEDS[0]}" for name in GRID]
    supporters = [*(f"measure-{name}" for name in SFT), "best-sft"]
    stages = ([*SFT], [*trained, *supporters], [f"measure-{name}" for name in trained])
    wanted = chosen([name for stage in stages for name in stage], only)
    for stage in stages:
        side_by_side(__file__, folder, [name for name in stage if name in wanted], parallel)


def table(folders: Sequence[Path], add: bool = False) -> None:
    """Means with intervals over histories (and seeds), differences to the fine-tuned model, and the curves."""
    rounds = [
        {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "said").glob("*.json"))}
        for folder in folders
    ]
    said = {name: value for one in rounds for name, value in one.items()}
    groups = {name: [f"measure-{name}"] for name in SFT} | {
        name: [f"measure-{name}-{seed}" for seed in SEEDS] for name in VARIANTS | GRID
    }
    found: dict[str, Any] = {
        "settings": {"sft": SFT, "grpo": GRPO, "grid": GRID, "histories": HISTORIES, "group": GROUP},
        "supporters": {},
        "differences": {},
        "decisions": {name: value for name, value in said.items() if name.startswith(("decided-", "held-"))},
        "trainings": {
            name: training(value, said.get(f"measure-{name}", {}))
            for name, value in said.items()
            if not name.startswith(("measure-", "best-", "decided-", "held-"))
        },
    }
    values: dict[str, dict[int, list[dict[str, Any]]]] = {}
    found["habits"] = {}
    for name, members in groups.items():
        there = [(number, one[member]) for number, one in enumerate(rounds) for member in members if member in one]
        if there:
            values[name] = {}
            for number, one in there:
                values[name].setdefault(number, []).append(values_by_history(one))
            first = min(values[name])  # what several days measured counts as the judges of the first saw it
            own = [one for number, one in there if number == first]
            whole = {key: [one[key] for one in own] for key in ("distinct_1", "distinct_2", "distinct_2_by_history")}
            found["supporters"][name] = {**intervals(averaged(values[name][first])), **whole, "seeds": len(own)}
            each = [habits(one["texts"]) for one in own]
            found["habits"][name] = {key: sum(one[key] for one in each) / len(each) for key in each[0]}
    for name, rival in COMPARED:
        mine, others = values.get(name, {}), values.get(rival, {})
        rivals = {number: averaged(others[number]) for number in mine if number in others}
        apart = [
            {key: one[key] - rivals[number][key] for key in one if key in rivals[number]}
            for number in rivals
            for one in mine[number]
        ]
        if apart:
            found["differences"][f"{name} - {rival}"] = intervals(averaged(apart))
    here = Path(__file__).parent
    if (here / "results.json").is_file():
        before = json.loads((here / "results.json").read_text(encoding="utf-8"))
        for part in ("supporters", "differences", "decisions", "trainings", "habits"):
            old, new = before.get(part, {}), found[part]
            found[part] = {**old, **{key: new[key] for key in new if not (add and key in old)}}
    (here / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (here / "tables.md").write_text(_as_text(found), encoding="utf-8")


def averaged(members: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of what all members have."""
    import numpy as np

    return {key: np.mean([one[key] for one in members], axis=0) for key in members[0] if all(key in m for m in members)}


def values_by_history(measured: dict[str, Any]) -> dict[str, Any]:
    """Each figure as a value a history, averaged over its outputs."""
    import numpy as np

    def total(row: dict[str, Any], judge: str) -> float:
        return float(np.mean([value for value in row[judge] if value is not None]))

    second = all("judge_2" in row for row in measured["rows"])
    names = {
        "raw reward": lambda row: total(row, "judge_1"),
        **({"second judge": lambda row: total(row, "judge_2")} if second else {}),
        "whole form": lambda row: float(np.mean([parts["format"] > 0 for parts in row["parts_1"]])),
        "similarity in a group": lambda row: row["s_in"],
        "judge of feedback": lambda row: float(np.mean([value for value in row["feedback"] if value is not None])),
        **{name: lambda row, name=name: float(np.mean(row["right"][name])) for name in DECISIONS},
        **{f"{name}, likeliest": lambda row, name=name: row["likeliest"][name] for name in ("whole", *DECISIONS)},
        "words": lambda row: row["words"],
        "rejected by the guard": lambda row: float(np.mean([rule is not None for rule in row["rejected"]])),
    }
    return {name: np.array([value(row) for row in measured["rows"]], dtype=float) for name, value in names.items()}


def training(figures: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """A training's figures, its curve cut down to what is read, and the machine that it was measured on as well."""
    machine = {key: measured[key] for key in ("device", "torch") if key in measured}
    curve = [{key: round(row[key], 4) for key in CURVE if key in row} for row in figures.get("curve", [])]
    return {**figures, **({"curve": curve} if curve else {}), **machine}


def habits(texts: Sequence[str]) -> dict[str, float]:
    """How far a supporter's outputs repeat themselves in what no measure of responses sees, each a share of outputs."""
    from collections import Counter

    from compeer.reasoning import parse_turn

    turns = [turn for text in texts if (turn := parse_turn(text).turn) is not None]

    def most(values: Sequence[str], count: int = 1) -> float:
        return sum(number for _, number in Counter(values).most_common(count)) / len(values)

    asking = [turn.response for turn in turns if turn.strategy.strategy == "Question"]
    return {
        "five sentences": most([turn.strategy.text for turn in turns], 5),
        "one stage": most([turn.history.stage for turn in turns]),
        "one strategy": most([turn.strategy.strategy for turn in turns]),
        "intensity 5": sum(turn.emotion.intensity == 5 for turn in turns) / len(turns),
        "no question": sum("?" not in response for response in asking) / len(asking) if asking else 0.0,
    }


def intervals(values: dict[str, Any]) -> dict[str, Any]:
    """Means over histories with their 95 % intervals."""
    from compeer.statistics import mean, mean_interval

    return {name: [mean(list(v)), *mean_interval(list(v))] for name, v in values.items()}


def _as_text(found: dict[str, Any]) -> str:
    lines = ["# Supporters, as measured", ""]
    for title, part in (("", found["supporters"]), ("Differences", found["differences"])):
        if not part:
            continue
        names = [key for key, value in next(iter(part.values())).items() if isinstance(value, list)]
        lines += [f"## {title}", ""] if title else []
        lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for name, row in part.items():
            lines.append(
                f"| {name} | " + " | ".join(_cell(key, row[key]) if key in row else "–" for key in names) + " |"
            )
        lines.append("")
    return "\n".join(lines)


def _cell(name: str, value: list[float]) -> str:
    if name.startswith("distinct"):
        return ", ".join(f"{one:.3f}" for one in value)
    middle, low, high = value
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=["prepare", "run", "one", "table"])
    parser.add_argument("folder", type=Path, nargs="+", help="table: several, if each has its own judges and sft")
    parser.add_argument("--records", type=Path, help="prepare: records.jsonl of a build")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--add", action="store_true", help="table: what is there already stays")
    parser.add_argument("--parallel", type=int, default=3, help="run: more trainings by reward fill the card")
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder[0], options.records)
    elif options.what == "run":
        run(options.folder[0], options.parallel, options.only)
    elif options.what == "one":
        do(options.folder[0], options.only[0])
    else:
        table(options.folder, options.add)


if __name__ == "__main__":
    main()
