"""Supporters side by side on held-out histories: form, decisions, diversity, and the judge's scores.

All answer the same histories. The last one also answers some of them several times, and the judge chooses the best
output for each without the corpus' reply: that is a supporter of its own, `best-of-n`. Every output is then
judged in the same way, against the corpus' reply; its row keeps the judge's probabilities.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.evaluate.decisions import measure_decisions
from compeer.evaluate.diversity import measure_diversity
from compeer.evaluate.runner import sample
from compeer.io import Frozen, read_json, write_json
from compeer.models import Failure, Sampling
from compeer.models.catalogue import PACKAGED_MODELS
from compeer.models.embedder import Embedder
from compeer.models.local import LocalModel
from compeer.models.resolve import model_folder
from compeer.models.training import model_card
from compeer.pipeline import in_blocks
from compeer.policy import Output, SupporterSettings, generate_turns
from compeer.policy.prompt import refuse_direct
from compeer.policy.rewards import case_of
from compeer.progress import progress
from compeer.reasoning import PARTS
from compeer.reward import Judge, Judgment, LocalJudge, Unscored, collapsed_verdicts, judge_metrics, record_case, score
from compeer.reward.rank import rank
from compeer.safety.output import check_reply
from compeer.ser.record import SerRecord, is_judged
from compeer.statistics import mean, mean_interval

BEFORE = 2  # utterances kept of a history beside its last one, so that a reader sees what a turn answers


class EvaluateSettings(Frozen):
    """How judge and supporters are measured on the test split."""

    histories: int = Field(default=64, ge=2, description="held-out histories that each supporter answers")
    records: int = Field(default=500, ge=2, description="held-out records that the judge is measured on")
    best_of: int = Field(default=4, ge=1, description="outputs of the last supporter that a judge chooses of; 1: none")
    best_histories: int = Field(default=64, ge=1, description="how many of the histories the best is chosen for")
    batch: int = Field(default=16, ge=1, description="outputs generated or judged at a time")
    sampling: Sampling = Field(default=Sampling(), description="how answers are sampled")


def starting_supporters(settings: SupporterSettings) -> dict[str, Path]:
    """What a fine-tuned supporter is compared with, by name: the untouched model, and what else it was trained from."""
    if settings.model not in PACKAGED_MODELS:
        return {"untrained": model_folder(settings.model)}
    found = {"untrained": model_folder("embedded")}
    return found | {"packaged": model_folder(settings.model)} if settings.steps else found


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
    judged = sample([record for record in test if is_judged(record)], settings.records, seed, "judge")
    asked = sample([record for record in test if record.author == "corpus"], settings.histories, seed, "supporters")
    path = folder / "judge.json"
    if not path.is_file():
        with progress("Measuring the judge", len(judged)) as advance:
            measured = LocalJudge(judge_folder, batch_size=settings.batch, progress=advance)
            write_json(path, judge_metrics(judged, measured.judge([record_case(record) for record in judged])))
    metrics = read_json(path) or {}
    judge, embedder = LocalJudge(judge_folder, batch_size=settings.batch), Embedder()
    plan = {name: (model, asked, 1) for name, model in supporters.items()}
    if settings.best_of > 1:
        newest = list(supporters.values())[-1]
        plan[f"best-of-{settings.best_of}"] = (newest, asked[: settings.best_histories], settings.best_of)
    found = {}
    for name, (model, histories, candidates) in plan.items():
        path = folder / f"outputs-{name}.json"
        if not path.is_file():
            refuse_direct(model)
            with progress(f"Asking the supporter ({name})", candidates * len(histories)) as advance:
                local = LocalModel(model, batch_size=settings.batch, progress=advance)
                last = model_card(model).get("history")
                answers = generate_turns(local, histories, settings.sampling, seed, last, candidates=candidates)
            if candidates > 1:
                groups = list(in_blocks(answers, candidates))
                with progress(f"Choosing the {name.replace('-', ' ')}", len(histories)) as advance:
                    answers = list(choose_best(judge, histories, groups, seed, advance))
            write_json(path, _measured(histories, answers, judge, embedder, seed))
        found[name] = read_json(path)
    return {"judge": metrics, "judge_says_the_same_to_all": collapsed_verdicts(metrics), "supporters": found}


def choose_best(
    judge: Judge,
    records: Sequence[SerRecord],
    groups: Sequence[Sequence[Output | Failure]],
    seed: int,
    progress: Callable[[int], None],
) -> Iterator[Output | Failure]:
    """For each record the answer that the judge puts first; at need a failure, or what the guard rejects."""
    for record, group in zip(records, groups, strict=True):
        answered = [answer for answer in group if isinstance(answer, Output)]
        messages = [utterance.text for utterance in record.history if utterance.speaker == "seeker"]
        replies = [str(output.parsed.parts.get("response", "")) for output in answered]
        allowed = [one for one, reply in zip(answered, replies, strict=True) if not check_reply(reply, messages)]
        if outputs := allowed or answered:
            yield outputs[rank(judge, record.history, [output.parsed for output in outputs], seed=seed)[0].index]
        else:
            yield group[0]
        progress(1)


def _measured(
    records: Sequence[SerRecord], answers: Sequence[Output | Failure], judge: Judge, embedder: Embedder, seed: int
) -> dict[str, Any]:
    answered = [(r, a) for r, a in zip(records, answers, strict=True) if isinstance(a, Output)]
    asked, outputs = [record for record, _ in answered], [output for _, output in answered]
    parsed = [output.parsed for output in outputs]
    judgments = judge.judge([case_of(record, turn, seed) for record, turn in zip(asked, parsed, strict=True)])
    scores = [score(turn, judgment) for turn, judgment in zip(parsed, judgments, strict=True)]
    totals = [float(one.total) for one in scores if one.total is not None]
    low, high = mean_interval(totals)
    parts = [one.parts() for one in scores if one.total is not None]
    return {
        "decisions": measure_decisions(parsed, [record.candidate for record in asked]),
        "diversity": measure_diversity([str(turn.parts.get("response", "")) for turn in parsed], embedder),
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
                "before": [{"speaker": one.speaker, "text": one.text} for one in record.history[-1 - BEFORE : -1]],
                "said": record.history[-1].text,
                "reference": record.reference,
                "text": output.text,
                "cut_off": output.cut_off,
                "missing": output.parsed.missing,
                "parts": given.parts(),
                "chances": _probabilities(judgment),
                "total": given.total,
                "unscored": given.unscored,
            }
            for record, output, given, judgment in zip(asked, outputs, scores, judgments, strict=True)
        ],
    }


def _probabilities(judgment: Judgment | Unscored) -> dict[str, Any]:
    """The judge's probabilities: of True by step, and of each answer about the response; why one counts for nothing."""
    if isinstance(judgment, Unscored):
        return {}
    steps = {str(part): probability for part, probability in judgment.steps.items()}
    return {**steps, "response": dict(judgment.response) if judgment.response else None, "void": judgment.void}
