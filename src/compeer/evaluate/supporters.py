"""Supporters side by side on held-out histories: form, decisions, diversity, and the judge's scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from compeer.evaluate.decisions import decision_figures
from compeer.evaluate.diversity import diversity_figures
from compeer.models import Failure, Sampling
from compeer.models.embedder import Embedder
from compeer.models.local import LocalModel
from compeer.models.training import model_card
from compeer.policy import Output, generate_turns
from compeer.policy.grpo import Scorer
from compeer.policy.prompt import refuse_direct
from compeer.progress import progress
from compeer.reasoning import PARTS
from compeer.reward import LocalJudge, collapsed_verdicts, evaluate_judge
from compeer.ser.record import SerRecord, is_judged
from compeer.statistics import generator, mean, mean_interval


class EvaluateSettings(BaseModel):
    """How judge and supporters are measured on the test split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    histories: int = Field(default=64, ge=2, description="held-out histories that each supporter answers")
    records: int = Field(default=500, ge=2, description="held-out records that the judge is measured on")
    batch: int = Field(default=16, ge=1, description="outputs generated or judged at a time")
    sampling: Sampling = Field(default=Sampling(), description="how answers are drawn")


def draw(records: Sequence[SerRecord], count: int, seed: int, purpose: str) -> list[SerRecord]:
    """Up to `count` records, drawn by the seed, in the order of the file."""
    keys = {record.id: generator(seed, purpose, record.id).random() for record in records}
    chosen = set(sorted(keys, key=keys.__getitem__)[:count])
    return [record for record in records if record.id in chosen]


def evaluate_run(
    records: Sequence[SerRecord],
    judge_folder: Path,
    supporters: Mapping[str, Path],
    settings: EvaluateSettings,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    """Measures the judge, then each supporter on the same histories. What is there already is not done again."""
    test = [record for record in records if record.split == "test"]
    judged = draw([record for record in test if is_judged(record)], settings.records, seed, "judge")
    asked = draw([record for record in test if record.author == "corpus"], settings.histories, seed, "supporters")
    with progress("Measuring the judge", len(judged)) as advance:
        judge = LocalJudge(judge_folder, batch_size=settings.batch, progress=advance)
        figures = _once(folder / "judge.json", lambda: evaluate_judge(judge, judged))
    embedder = Embedder()
    scorer = Scorer(LocalJudge(judge_folder, batch_size=settings.batch), embedder, {r.id: r for r in asked}, seed)
    return {
        "judge": figures,
        "judge_says_the_same_to_all": collapsed_verdicts(figures),
        "supporters": {
            name: _once(
                folder / f"outputs-{name}.json",
                lambda name=name, model=model: _supporter(name, model, asked, scorer, embedder, settings, seed),
            )
            for name, model in supporters.items()
        },
    }


def _once(path: Path, make: Any) -> dict[str, Any]:
    """What the file holds, or what `make` returns, written whole."""
    if not path.is_file():
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text(json.dumps(make(), ensure_ascii=False, indent=1), encoding="utf-8")
        os.replace(unfinished, path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _supporter(
    name: str,
    model: Path,
    records: Sequence[SerRecord],
    scorer: Scorer,
    embedder: Embedder,
    settings: EvaluateSettings,
    seed: int,
) -> dict[str, Any]:
    refuse_direct(model)
    with progress(f"Asking the supporter ({name})", len(records)) as advance:
        local = LocalModel(model, batch_size=settings.batch, progress=advance)
        answers = generate_turns(local, records, settings.sampling, seed, model_card(model).get("history"))
    outputs = [(r, a) for r, a in zip(records, answers, strict=True) if isinstance(a, Output)]
    parsed = [output.parsed for _, output in outputs]
    rollouts = scorer(
        [record.id for record, _ in outputs],
        [output.text for _, output in outputs],
        [output.cut_off for _, output in outputs],
    )
    totals = [rollout.raw for rollout in rollouts if rollout.score.total is not None]
    low, high = mean_interval(totals)
    parts = [rollout.score.parts() for rollout in rollouts if rollout.score.total is not None]
    return {
        "decisions": decision_figures(parsed, [record.candidate for record, _ in outputs]),
        "diversity": diversity_figures([str(turn.parts.get("response", "")) for turn in parsed], embedder),
        "reward": {
            "total": mean(totals),
            "low": low,
            "high": high,
            "scored": len(totals),
            **{part: mean([value for row in parts if (value := row[part]) is not None]) for part in (*PARTS, "format")},
        },
        "failures": [f"{r.id}: {a.reason}" for r, a in zip(records, answers, strict=True) if isinstance(a, Failure)],
        "outputs": [
            {
                "record": record.id,
                "said": record.history[-1].text,
                "reference": record.reference,
                "text": output.text,
                "cut_off": output.cut_off,
                "missing": output.parsed.missing,
                "parts": rollout.score.parts(),
                "total": rollout.score.total,
                "unscored": rollout.score.unscored,
            }
            for (record, output), rollout in zip(outputs, rollouts, strict=True)
        ],
    }
