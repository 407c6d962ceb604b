"""docs/results.md: it is what `python research/results/page.py` writes, and claims stand as they were measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import ROOT, script

page = script("page")


def test_the_page_and_its_plots_are_those_of_the_files() -> None:
    docs, again = ROOT / "docs", "run: python research/results/page.py"
    found = page.written()
    for name, text in found.items():
        assert (docs / name).is_file(), again
        assert (docs / name).read_text(encoding="utf-8") == text, again
    beside = {f"{path.parent.name}/{path.name}" for name in ("plots", "results") for path in (docs / name).iterdir()}
    assert beside == found.keys() - {"results.md"}, again


def test_the_summary_is_short_and_its_prose_fits_a_screen() -> None:
    found = page.written()
    assert len(found["results.md"].encode()) <= 8_000
    for name, text in found.items():
        prose = [line for line in text.split("\n") if not line.startswith(("|", "!", "<", "#"))]
        assert name.endswith(".svg") or max(map(len, prose)) <= 120, name


def test_what_has_no_file_is_said_to_be_unmeasured_and_nothing_else(tmp_path: Path) -> None:
    found = page.written(tmp_path)
    assert found.keys() == {"results.md"}
    rows = [line for line in found["results.md"].split("\n") if line.startswith("| [")]
    assert len(rows) == 7
    assert all(row.endswith("| – | – | not measured yet |") for row in rows)


def test_the_readme_counts_the_claims_as_the_page_does() -> None:
    verdicts = [claim.verdict for claim in page.claims_of(ROOT / "research" / "results").values()]
    numbers = ("none", "one", "two", "three", "four", "five", "six", "seven")
    failed, partly = (numbers[verdicts.count(one)] for one in ("does not hold", "holds in part"))
    told = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{failed} do not hold there, {partly} hold in part" in told


BETTER, WORSE, SAME = [0.1, 0.05, 0.15], [-0.1, -0.15, -0.05], [0.01, -0.05, 0.05]


def supporters(apart: dict[str, Any]) -> dict[str, Any]:
    one = {
        "stage": BETTER,
        "similarity in a group": BETTER,
        "second judge": BETTER,
        "distinct_2_by_history": [0.5, 0.7],
        "seeds": 2,
    }
    return {
        "settings": {"grpo": {"steps": 1, "prompts": 2, "group": 4}, "histories": 8, "group": 4},
        "supporters": {"sft": one, "plain": one},
        "differences": apart,
        "trainings": {"sft": {"device": "H200", "torch": "2.11"}},
    }


@pytest.mark.parametrize(
    ("stage", "judge", "words"),
    [(BETTER, BETTER, "holds"), (BETTER, SAME, "holds in part"), (SAME, WORSE, "does not hold")],
)
def test_a_verdict_follows_from_the_intervals(tmp_path: Path, stage: Any, judge: Any, words: str) -> None:
    save(tmp_path, "supporter", supporters({"reweighted - sft": {"stage": stage, "second judge": judge}}))
    found = page.written(tmp_path)
    [row] = [line for line in found["results.md"].split("\n") if "improves on fine-tuning" in line]
    assert row.endswith(f"| {words} |")
    told = found["results/4-by-reward.md"]
    assert f"**Verdict: the claim {words}.** " in told
    assert "| distinct-2 of a history's replies | 0.600 | 0.600 |" in told
    assert found["plots/grpo.svg"].startswith("<svg xmlns=")


def test_nothing_lost_is_another_question_than_something_gained(tmp_path: Path) -> None:
    plain = {"similarity in a group": BETTER}
    kept = {"similarity in a group": WORSE, "second judge": SAME}
    save(tmp_path, "supporter", supporters({"plain - sft": plain, "reweighted - plain": kept}))
    assert page.claims_of(tmp_path)["alike"].verdict == "holds"
    lost = supporters({"plain - sft": {"similarity in a group": SAME}, "reweighted - plain": {"second judge": SAME}})
    save(tmp_path, "supporter", lost)
    assert page.claims_of(tmp_path)["alike"].verdict == "does not hold"


def test_the_other_claims_are_told(tmp_path: Path) -> None:
    settings = {"steps": 320, "batch": 16, "lora_rank": 8, "histories": 256, "group": 4, "records_a_step": 16}
    apart = {"outcome": BETTER, "feedback": WORSE, "strategy_probability": SAME, "words": [3.0, 1.0, 4.0]}
    told = {"settings": settings, "supporters": {"steps": apart, "direct": apart}, "difference": apart, "trainings": {}}
    save(tmp_path, "reasoning", told)
    best = {"chosen": [3.5, 3.4, 3.6], "other judges": [3.1, 3.0, 3.2]}
    gains = {"4": {"chosen": [0.5, 0.3, 0.7], "other judges": [0.1, -0.1, 0.3]}}
    counts = [{"n": 4, **best}, {"n": 1, **{key: [3.0, 2.9, 3.1] for key in best}}]
    save(tmp_path, "best_of", {"rows": counts, "differences": gains})
    compared = json.loads((ROOT / "research" / "results" / "judges" / "results.json").read_text(encoding="utf-8"))
    near = compared["tests"]["near"]
    rewritten = {"UnifiReward": "personality", "PRM + ORM": "duplicated"}
    for row in near["differences"] + near["rows"]:
        row |= {key: rewritten.get(row[key], row[key]) for key in ("judge", "rival") if key in row}
    home = json.loads((ROOT / "research" / "results" / "weights" / "figures.json").read_text(encoding="utf-8"))
    save(tmp_path, "weights", home, "figures.json")
    elsewhere = {"stage": [0.5, 0.45, 0.55], "majority": {"stage": 0.4}}
    save(tmp_path, "supporter", supporters({}))
    save(tmp_path, "transfer", {"judge": {"sample": home["judge"]["llm"]}, "supporter": {"sample": elsewhere}})
    save(tmp_path, "personality", {"settings": settings, "tests": {"near": near}, "trainings": {}})
    found = page.claims_of(tmp_path)
    assert {name: claim.verdict for name, claim in found.items() if claim.conditions} == {
        "reasoning": "holds in part",
        "personality": "does not hold",
        "best_of": "does not hold",
        "transfer": "holds in part",
    }
    text = "".join(page.written(tmp_path).values())
    assert "| words of a reply | 3.0 (1.0 to 4.0) |" in text
    assert "| as good as the anchor, by the judge of feedback | −10.0 (−15.0 to −5.0) | less | – |" in text
    assert "| chosen, n = 4 against 1 | +0.50 (0.30 to 0.70) | more | – |" in text
    title = "supporter on the sample corpus, stage: accuracy over the largest class, points"
    assert f"| {title} | +10.0 (5.0 to 15.0) | more | yes |" in text


def save(folder: Path, name: str, found: dict[str, Any], file: str = "results.json") -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / file).write_text(json.dumps(found), encoding="utf-8")
