"""What a second look at the responses does to UnifiReward's contradictions, beside PRM and ORM of equal data and steps.

    python research/results/judges/measure.py train FOLDER --only unified-alone-1 … process-watched-1 …
    python research/results/judges/looks.py FOLDER --contexts ser/contexts.jsonl          looks.json beside this file

Each UnifiReward was trained once and gave three answers about a response (`compeer.reward.second_pass`); rows differ in
what is made of them. Weights are found on dialogues that were held out from training, never on the test set. So that
care is not taken for insight, a judge that sees no steps is shown with the same care: its own odds, weighed on the same
dialogues by the same rule. That is UnifiReward's second look by itself, and, where they were trained, the ORM's.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import SEEDS, _annotated, settings_of

TEST = "esconv"
OTHERS = ("near", "random", "llm")
COSTS = (0.0, 1.0, 2.0)
USUAL = 1.0


def held_out(folder: Path, name: str, kind: str, seed: int) -> tuple[list[Any], list[Any]]:
    """The records on which a judge was measured at the end of its training, and what it said to them."""
    from compeer.reward.judgments import read_judgments
    from compeer.reward.train import hold_out, is_usable
    from compeer.ser.record import read_records

    settings = settings_of(kind, ["alone"] if kind == "unified" else ["watched"])
    usable = [record for record in read_records(folder / "train.jsonl") if is_usable(record, settings.form)]
    _, records = hold_out(usable, settings.validation, seed)
    return records, read_judgments(folder / "said" / f"{name}.validated.jsonl", records)


def looks_of(said: Sequence[Any]) -> list[Any]:
    """An outcome judge's one look, taken for both: what is weighed is then its own odds, and an offset."""
    return [replace(one, looks=(one.response, one.response), carried=None) if one.response else one for one in said]


def reweighed(said: Sequence[Any], weights: Any) -> list[Any]:
    from compeer.reward.second_pass import weighed

    return [replace(one, response=weighed(one.looks, one.carried, one.steps, weights)) for one in said]


def only(number: int) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda said: [replace(one, response=one.looks[number]) for one in said]


def table(folder: Path, contexts: Path) -> dict[str, Any]:
    """All rows: accuracy of the response, the steps, and contradictions."""
    from research.judge.compare import JudgedSet, combined, compare_judges, contradiction_metrics

    from compeer.reward.judgments import read_judgments
    from compeer.reward.second_pass import fit_weights
    from compeer.ser.record import read_records

    records = list(read_records(folder / f"{TEST}.jsonl"))

    def said(name: str) -> dict[int, list[Any]]:
        paths = {seed: folder / "said" / f"{name}-{seed}.{TEST}.jsonl" for seed in SEEDS}
        return {seed: read_judgments(path, records) for seed, path in paths.items() if path.is_file()}

    ours, steps, responses = said("unified-alone"), said("process-watched"), said("outcome-watched")
    responses = {seed: looks_of(one) for seed, one in responses.items()}
    found_weights: dict[str, dict[str, Any]] = {}

    def weighed_rows(
        name: str, kind: str, judged: Mapping[int, list[Any]], cost: float, seen: Callable[[Any], list[Any]]
    ) -> dict[int, list[Any]]:
        rows = {}
        for seed, one in judged.items():
            held, told = held_out(folder, f"{name}-{seed}", kind, seed)
            weights = fit_weights(held, seen(told), cost)
            assert weights is not None, "the held-out dialogues are hundreds"
            title = kind if seen is list else f"{kind}, without the steps"
            found_weights.setdefault(f"{title}, {cost:g}", {})[str(seed)] = weights.model_dump()
            rows[seed] = reweighed(seen(one), weights)
        return rows

    def row(judged: Mapping[int, list[Any]]) -> Any:
        return JudgedSet(records, judged)

    rival = "PRM + ORM" if steps and responses else None  # without them there are rows of UnifiReward alone
    rows = {
        **({rival: combined(row(steps), row(responses))} if rival else {}),
        "after the steps": row({seed: only(0)(one) for seed, one in ours.items()}),
        "without the steps": row({seed: only(1)(one) for seed, one in ours.items()}),
        "both alike": row({seed: reweighed(one, None) for seed, one in ours.items()}),
    }
    for cost in COSTS:
        rows[f"weighed, cost {cost:g}"] = row(weighed_rows("unified-alone", "unified", ours, cost, list))
        blind = weighed_rows("unified-alone", "unified", ours, cost, lambda said: looks_of(only(1)(said)))
        rows[f"without the steps, weighed, cost {cost:g}"] = row(blind)
        if rival:
            careful = row(weighed_rows("outcome-watched", "outcome", responses, cost, looks_of))
            rows[f"{rival}, weighed, cost {cost:g}"] = combined(row(steps), careful)
    comparison = compare_judges(rows, [(name, rival) for name in rows if rival and name != rival])
    annotated = _annotated(contexts)
    follows = [record.candidate.strategy.strategy in annotated.get(record.candidate.response, ()) for record in records]
    judges = {name: one.seeds for name, one in rows.items()}
    dialogues = [record.dialogue for record in records]
    comparison["contradictions"] = contradiction_metrics(dialogues, follows, judges, rival=rival)
    comparison["carried"] = {str(seed): carried(one, follows) for seed, one in ours.items()}
    comparison["weights"] = found_weights
    return comparison


def elsewhere(folder: Path, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The response on the other test sets, after the steps and as the looks are weighed, by the same weights."""
    from research.judge.compare import JudgedSet, compare_judges

    from compeer.reward.judgments import read_judgments
    from compeer.reward.second_pass import PassWeights
    from compeer.ser.record import read_records

    found = {}
    for test in OTHERS:
        records = list(read_records(folder / f"{test}.jsonl"))
        paths = {seed: folder / "said" / f"unified-alone-{seed}.{test}.jsonl" for seed in SEEDS}
        said = {seed: read_judgments(path, records) for seed, path in paths.items()}
        kept = {seed: PassWeights.model_validate(weights[str(seed)]) for seed in SEEDS}
        rows = {
            "after the steps": JudgedSet(records, {seed: only(0)(one) for seed, one in said.items()}),
            "weighed": JudgedSet(records, {seed: reweighed(one, kept[seed]) for seed, one in said.items()}),
        }
        found[test] = compare_judges(rows, [("weighed", "after the steps")])
    return found


def to_measured(judges: Mapping[str, Any]) -> dict[str, list[float]]:
    """Each row's contradictions divided by those of PRM + ORM in results.json, which were measured on the same outputs.

    What those judges said to each output is not kept, so the interval is that of two independent rates (normal in the
    logarithm), wider than one that draws both from the same dialogues.
    """
    measured = json.loads((Path(__file__).parent / "results.json").read_text(encoding="utf-8"))
    rival = measured["tests"][TEST]["contradictions"]["by the annotators"]["judges"]["PRM + ORM"]

    def spread(one: Mapping[str, Any]) -> float:
        low, high = one["intervals"]["contradictions"]
        return math.log(high / low) / 2

    ratios = {name: one["contradictions"] / rival["contradictions"] for name, one in judges.items()}
    wide = {name: math.exp(math.hypot(spread(one), spread(rival))) for name, one in judges.items()}
    return {name: [ratio, ratio / wide[name], ratio * wide[name]] for name, ratio in ratios.items()}


def carried(said: Sequence[Any], follows: Sequence[bool]) -> float:
    """How well the judge tells responses that carry out step 3 from others: the area under the curve."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(list(follows), [one.carried or 0.0 for one in said]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--contexts", type=Path, required=True, help="contexts.jsonl of the build")
    options = parser.parse_args()
    found = table(options.folder, options.contexts)
    found["elsewhere"] = elsewhere(options.folder, found["weights"][f"unified, {USUAL:g}"])
    found["to_measured"] = to_measured(found["contradictions"]["judges"])
    found["trainings"] = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((options.folder / "said").glob("*.json"))
        if {"alone", "watched"} & set(path.stem.split("-")) and not path.stem.endswith(".people")
    }
    (Path(__file__).parent / "looks.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for row in found["rows"]:
        response, told = row["parts"].get("response", {}), found["contradictions"]["judges"].get(row["judge"])
        shown = [response[name]["value"] for name in ("weighted_f1", "accuracy", "acceptable_balanced_accuracy")]
        shown += [told[name] for name in ("contradictions", "against_the_steps", "despite_the_steps")] if told else []
        print(f"{row['judge']:32}", *(f"{100 * value:6.2f}" if not math.isnan(value) else "-" for value in shown))


if __name__ == "__main__":
    main()
