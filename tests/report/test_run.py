"""The report: whatever a run left behind, the page is safe, the same every time, and says what the figures call for."""

import copy
import html
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from compeer.report import write_report
from compeer.report.charts import Series, dot_chart, line_chart, nice_ticks
from compeer.report.run import conclusion, paired, share_estimate
from compeer.report.wording import decimal, percent, signed, toml, without_folder
from compeer.statistics import Estimate

RECIPE: dict[str, Any] = {
    "name": "little",
    "seed": 7,
    "ser": {"corpus": "sample", "languages": ["en"], "rounds": 5},
    "judge": {"steps": 30, "model": "embedded", "learning_rate": 1e-4, "history": None},
    "sft": {"steps": 30, "model": "embedded", "history": 3},
    "grpo": {"steps": 300, "group": 4, "negatives": "mirrored"},
    "evaluate": {"histories": 80, "sampling": {"temperature": 0.8, "stop": ['a "quoted" \\ line\n']}},
}
TURN = (
    "History: Blamed before others. [exploration]\nEmotion: Fury. [negative, anger, 4]\n"
    "Strategy: Ask first. [Question]\nResponse: Whose bay was it?"
)
COLLAPSE, NEAR_CHANCE = "says the same to everything", "The judge is near chance"


def step_metrics(balanced: float) -> dict[str, float]:
    return {
        "weighted_f1": 0.8,
        "weighted_f1_always_true": 0.5,
        "recall_false": balanced,
        "balanced_accuracy": balanced,
        "false_share": 0.4,
        "said_false": 0.41,
    }


def supporter(total: float) -> dict[str, Any]:
    accuracy = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "majority": 0.3}
    parts = ("history", "emotion", "strategy", "response", "format")
    return {
        "decisions": {
            "outputs": 80,
            "format_complete": 0.9,
            **dict.fromkeys(("stage", "emotion", "intensity", "strategy"), accuracy),
        },
        "diversity": {
            "responses": 72,
            "words": 12.5,
            "distinct_1": 0.4,
            "distinct_2": 0.8,
            "pairwise_similarity": None,
        },
        "reward": {"total": total, "low": total - 0.3, "high": total + 0.3, "scored": 80, **dict.fromkeys(parts, 0.2)},
        "failures": [],
    }


def healthy() -> dict[str, dict[str, Any]]:
    """Figures of a run that calls for no warning, by stage."""
    return {
        "1-ser": {
            "dialogues": 84,
            "records_by_split": {"reward": 459, "policy": 354, "test": 171},
            "false_share": {"history": 0.4, "emotion": 0.4, "strategy": 0.39},
            "preferences": {"neither": 136, "candidate": 218},
            "strategies": {"Question": 84},
            "dropped": {"badly rated reply": 52},
            "label_source": "silver",
        },
        "2-judge": {"chats": 306, "too_long": 0, "steps": 30},
        "3-sft": {"chats": 118, "too_long": 0, "steps": 30},
        "4-grpo": {
            "histories": 118,
            "steps": 300,
            "outputs": 9600,
            "tied_groups": 0.1,
            "unscored_share": 0.0,
            "parts_that_never_varied": [],
        },
        "5-evaluate": {
            "judge": {
                "records": 300,
                "scored": 300,
                **{step: step_metrics(0.85) for step in ("history", "emotion", "strategy")},
                "response": {
                    "weighted_f1": 0.6,
                    "accuracy": 0.6,
                    "majority_share": 0.3,
                    "said": {"both": 9, "neither": 3},
                },
            },
            "judge_says_the_same_to_all": [],
            "supporters": {"sft": supporter(1.0), "grpo": supporter(2.5)},
        },
    }


def output(record: str, total: int | None, text: str = TURN, message: str = "it wasny even my bay") -> dict[str, Any]:
    parts = dict.fromkeys(("history", "emotion", "strategy", "response"), 1) | {"format": 1}
    return {
        "record": record,
        "said": message,
        "reference": "Go on.",
        "text": text,
        "missing": {},
        "parts": parts,
        "total": total,
    }


def write_run(run: Path, metrics: dict[str, dict[str, Any]], outputs: dict[str, list[dict[str, Any]]]) -> Path:
    for stage, found in metrics.items():
        folder = run / stage
        folder.mkdir(parents=True)
        manifest = {
            "figures": found,
            "settings": {"group": 4},
            "versions": {"torch": "2.13.0"},
            "machine": {"platform": "aarch64", "python": "3.11.7"},
            "times": {"seconds": 4321.5, "ended": "2031-02-03T04:05:06+0000"},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        if stage in ("2-judge", "3-sft", "4-grpo"):
            rows = [{"step": step, "loss": 1 / step, "raw/total": step / 9, "reward": None} for step in range(1, 8)]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, rows in outputs.items():
        (run / "5-evaluate" / f"outputs-{name}.json").write_text(json.dumps({"outputs": rows}), encoding="utf-8")
    return run


def page_of(
    folder: Path,
    metrics: dict[str, dict[str, Any]] | None = None,
    outputs: dict[str, list[dict[str, Any]]] | None = None,
    recipe: dict[str, Any] = RECIPE,
) -> str:
    run = write_run(folder / "run", healthy() if metrics is None else metrics, outputs or {})
    write_report(run, recipe, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


# --- safety ---------------------------------------------------------------------------------------------------------

HOSTILE = "</pre></style><script>alert(1)</script> {{ 7 * 7 }} {% raw %} \" onload='x' &amp; <img src=x>"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    metrics = healthy()
    evil = "</td><script>x</script>"
    metrics["1-ser"]["dropped"] = {evil: 3}
    metrics["5-evaluate"]["supporters"][evil[:7]] = supporter(0)  # a name that is a file's name too has no slash
    metrics["5-evaluate"]["supporters"] = {
        name.replace("/", "<i>"): found for name, found in metrics["5-evaluate"]["supporters"].items()
    }
    rows = [
        output("a", 3, message=HOSTILE),
        output("b", 3, text=HOSTILE),
        output("c", 1, text=TURN.replace("Fury", HOSTILE)),
    ]
    rows[0]["reference"] = HOSTILE
    page = page_of(tmp_path, metrics, {"sft": rows}, RECIPE | {"name": "<script>n</script>"})
    assert "<script" not in page
    assert "<img" not in page
    assert "<i>" not in page
    assert page.count(html.escape(HOSTILE).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) == 4
    assert "{{ 7 * 7 }}" in page  # shown, not computed


def test_half_a_surrogate_pair_is_written(tmp_path: Path) -> None:
    assert "half ? pair" in page_of(tmp_path, outputs={"sft": [output("a", 1, message="half \ud83d pair")]})


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = page_of(tmp_path, outputs={"sft": [output("a", 3)]})
    targets = re.findall(r"""(?:src|href|action|data)\s*=\s*["']?([^"'\s>]*)""", page)
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "@import" not in page
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in targets} <= set(ids)


def test_no_path_of_the_machine_and_no_time(tmp_path: Path) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe["ser"]["corpus"] = "/home/somebody/secret/talks.jsonl"
    recipe["sft"]["model"] = r"C:\Users\somebody\model"
    page = page_of(tmp_path, recipe=recipe)
    assert "talks.jsonl" in page
    for unwanted in ("/home", "somebody", str(tmp_path), "2031", "4321", "04:05"):
        assert unwanted not in page


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    rows = {name: [output(str(i), i % 5) for i in range(20)] for name in ("sft", "grpo")}
    pages = []
    for name, seconds in (("one", 1.0), ("two", 99.0)):
        (tmp_path / name).mkdir()
        run = write_run(tmp_path / name / "run", healthy(), rows)
        manifest = json.loads((run / "4-grpo" / "manifest.json").read_text())
        manifest["times"]["seconds"] = seconds
        (run / "4-grpo" / "manifest.json").write_text(json.dumps(manifest))
        write_report(run, RECIPE, tmp_path / name / "report.html")
        pages.append((tmp_path / name / "report.html").read_bytes())
        assert [path.name for path in (tmp_path / name).iterdir() if path.is_file()] == ["report.html"]
    assert pages[0] == pages[1]


# --- figures that are not there -------------------------------------------------------------------------------------


def broken(value: Any, put: Any) -> Any:
    """The same figures with every number replaced."""
    if isinstance(value, dict):
        return {key: broken(inner, put) for key, inner in value.items()}
    if isinstance(value, list):
        return [broken(inner, put) for inner in value]
    return put if isinstance(value, int | float) else value


@pytest.mark.parametrize("put", [None, float("nan"), float("inf"), "text", [], {}])
def test_metrics_that_are_no_numbers_become_dashes(tmp_path: Path, put: Any) -> None:
    rows = {"sft": [broken(output("a", 3), put)], "grpo": [output("a", None)]}
    page = page_of(tmp_path, broken(healthy(), put), rows)
    assert not re.search(r"\b(nan|NaN|inf|None)\b", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
    assert "<td>–</td>" in page
    assert "<td>–</td>" not in page_of_complete(tmp_path / "whole").split('id="supporters"')[0]


def page_of_complete(folder: Path) -> str:
    folder.mkdir()
    return page_of(folder)


def test_an_empty_run_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path, {}, recipe={})
    assert "The run is not whole." in page
    assert "Nothing was measured." in page
    assert "The run is not whole." not in page_of_complete(tmp_path / "whole")


def test_torn_lines_and_odd_rows_are_passed_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy(), {"sft": [{}, {"record": None, "parts": [], "text": 5}]})
    (run / "2-judge" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n[1]\n{"step": 2, "lo')
    write_report(run, RECIPE, tmp_path / "report.html")
    assert "from 2.50 at step 1" in (tmp_path / "report.html").read_text(encoding="utf-8")


# --- what it says ---------------------------------------------------------------------------------------------------


def test_a_healthy_run_gets_no_warning(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert '<ul class="warnings">' not in page
    assert COLLAPSE not in page
    assert NEAR_CHANCE not in page
    assert "measures its own pupil" in page  # true of every run
    assert "No person labelled anything" in page


def test_a_collapsed_judge_is_named(tmp_path: Path) -> None:
    metrics = healthy()
    metrics["5-evaluate"]["judge_says_the_same_to_all"] = ["emotion", "response"]
    assert f"{COLLAPSE}: Emotion and Response." in page_of(tmp_path, metrics)


@pytest.mark.parametrize(("balanced", "warned"), [(0.59, True), (0.61, False)])
def test_a_judge_near_chance_is_named(tmp_path: Path, balanced: float, warned: bool) -> None:
    metrics = healthy()
    metrics["5-evaluate"]["judge"]["strategy"] = step_metrics(balanced)
    assert (f"{NEAR_CHANCE}: Strategy" in page_of(tmp_path, metrics)) == warned


@pytest.mark.parametrize(
    ("stage", "key", "value", "words"),
    [
        ("4-grpo", "steps", 3, "Training by reward was short: 3 steps."),
        ("4-grpo", "tied_groups", 0.5, "Groups without a lesson: 50"),
        ("4-grpo", "unscored_share", 0.02, "Unscored outputs in training: 2"),
        ("4-grpo", "parts_that_never_varied", ["format"], "Parts that never varied: Format."),
    ],
)
def test_weak_training_by_reward_is_named(tmp_path: Path, stage: str, key: str, value: Any, words: str) -> None:
    metrics = healthy()
    metrics[stage][key] = value
    assert words in page_of(tmp_path, metrics)
    assert words not in page_of_complete(tmp_path / "whole")


def test_few_outputs_and_wide_intervals_are_named(tmp_path: Path) -> None:
    metrics = healthy()
    sft = metrics["5-evaluate"]["supporters"]["sft"]
    sft["decisions"]["outputs"] = 12
    sft["reward"]["low"] = -2.0
    sft["failures"] = ["a: no answer"]
    page = page_of(tmp_path, metrics)
    assert "Few histories: 12 outputs" in page
    assert "SFT&#39;s score (3.3 points wide)" in page
    assert "SFT: no output for 1 history." in page


def test_a_difference_within_chance_is_called_so(tmp_path: Path) -> None:
    before = [output(str(i), 0) for i in range(40)]
    alike = [output(str(i), 1 if i % 2 else -1) for i in range(40)]
    higher = [output(str(i), 2) for i in range(40)]
    (tmp_path / "alike").mkdir()
    (tmp_path / "higher").mkdir()
    within, rarely = "on the same 40 histories. That is within", "on the same 40 histories. Chance alone would rarely"
    first = page_of(tmp_path / "alike", outputs={"sft": before, "grpo": alike})
    second = page_of(tmp_path / "higher", outputs={"sft": before, "grpo": higher})
    assert first.count(within) == 2  # form and score
    assert second.count(within) == 1  # form only
    assert rarely in second
    assert rarely not in first


def test_without_outputs_intervals_are_compared(tmp_path: Path) -> None:
    assert "the intervals do not overlap" in page_of(tmp_path)
    metrics = healthy()
    metrics["5-evaluate"]["supporters"]["grpo"] = supporter(1.2)
    (tmp_path / "near").mkdir()
    assert "the intervals overlap: the difference is within what chance gives" in page_of(tmp_path / "near", metrics)


def test_what_could_not_be_read_is_displayed_as_it_came(tmp_path: Path) -> None:
    cut = output("b", -5, text="Once upon\n" + TURN.replace("[Question]", "[Sing]"))
    cut["missing"] = {"response": "cut off before the output ended"}
    cut["parts"]["strategy"] = -1
    page = page_of(tmp_path, outputs={"sft": [output("a", 5), cut], "grpo": [output("a", 5)]})
    assert page.count("<summary>The output as it came</summary>") == 1
    assert "strategy &#39;Sing&#39; is not one of" in page
    assert "cut off before the output ended" in page
    assert '<span class="chip">negative, anger, 4</span>' in page
    assert "It gave no output." in page
    assert "<details open>" not in page
    assert '<span class="sign bad"><span aria-hidden="true">✗</span> False</span>' in page


def test_the_judges_verdicts_stand_beside_each_part_and_the_chosen_output_beside_the_others(tmp_path: Path) -> None:
    metrics = healthy()
    metrics["5-evaluate"]["supporters"]["best-of-4"] = supporter(3.0)
    row = output("a", 1) | {"before": [{"speaker": "supporter", "text": "Tell me more."}]}
    row["parts"] |= {"emotion": -1, "response": -1}
    compared = {"candidate": 0.1, "reference": 0.62, "both": 0.2, "neither": 0.08}
    row["chances"] = {"history": 0.93, "emotion": 0.3, "response": compared, "void": None}
    copied = output("a", 1)
    copied["parts"]["response"] = -1
    copied["chances"] = {"response": compared, "void": "the response repeats the history"}
    prose = output("b", -5, text="Dear friend,") | {"parts": {}}
    page = page_of(tmp_path, metrics, {"sft": [row, prose], "grpo": [copied], "best-of-4": [row]})
    section = page.split('id="said"')[1].split('id="not-shown"')[0].replace("\u00a0", " ")
    assert re.findall(r"<h4>(.*?) <span>", section) == ["SFT", "GRPO", "Best of 4", "SFT"]
    assert (
        section.count("</span> True, 93 %<")
        == section.count("</span> False, 70 %<")
        == section.count("> worse, 62 %<")
        == 2
    )
    assert section.count("</span> True</span>") == 2 + 3  # no probability is known of these
    assert "counts for nothing: the response repeats the history" in section
    assert "Tell me more." in section
    assert section.count("<details open>") == 1  # of the one in which nothing could be read
    assert "The judge also chose the best outputs." in page
    assert "The judge also chose the best outputs." not in page_of_complete(tmp_path / "whole")


def test_models_that_were_taken_as_they_are_are_said_to_be(tmp_path: Path) -> None:
    metrics, recipe = healthy(), copy.deepcopy(RECIPE)
    for stage, part, model in (("2-judge", "judge", "judge"), ("3-sft", "sft", "supporter")):
        metrics[stage]["steps"] = 0
        recipe[part] |= {"model": model, "steps": 0}
    page = page_of(tmp_path, metrics, recipe=recipe)
    assert "Judge and supporter start as those that come with the package, trained on a larger corpus before." in page
    assert "The judge is not trained further. The supporter is not fine-tuned further (SFT), but learns by" in page
    assert page.count("It was not trained here") == 2
    assert "Loss (lower is better)" not in page
    assert "Loss (lower is better)" in page_of_complete(tmp_path / "whole")


def test_at_most_five_histories_are_displayed(tmp_path: Path) -> None:
    page = page_of(tmp_path, outputs={"sft": [output(str(i), 1, message=f"words {i}.") for i in range(9)]})
    assert re.findall(r"words (\d)\.", page) == list("01234")


# --- numbers and charts ---------------------------------------------------------------------------------------------


def test_numbers_in_words() -> None:
    assert (decimal(-0.001), decimal(-1.5), decimal(None)) == ("0.00", "−1.50", "–")
    assert (signed(0.5), signed(-0.5), signed(0.001)) == ("+0.50", "−0.50", "0.00")
    assert [percent(share) for share in (0, 0.004, 0.5, 0.999, 1)] == [
        f"{text}\u00a0%" for text in ("0", "0.4", "50", "99.9", "100")
    ]


def test_settings_read_back_as_toml() -> None:
    wanted = copy.deepcopy(RECIPE)
    del wanted["judge"]["history"]
    assert tomllib.loads(toml(RECIPE)) == wanted
    assert without_folder({"a": ["/x/y.z", "b/c"]}) == {"a": ["…/y.z", "b/c"]}


def test_paired_differences_and_their_verdicts() -> None:
    assert paired({"a": 1.0}, {"b": 2.0}) is None
    found = paired({str(i): 0.0 for i in range(30)}, {str(i): float(i % 3) for i in range(30)})
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < found.high
    assert "too few" in conclusion(Estimate(value=3, low=2, high=4, n=3))
    share = share_estimate(0.0, 12)
    assert share.low == 0
    assert share.high == pytest.approx(0.2425, abs=1e-3)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-5, 5), (3, 3), (0, 0), (1e-6, 2e-6), (-1e6, 7)])
def test_ticks_cover_the_range(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 9


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_curves_of_any_length(count: int) -> None:
    series = [Series("a <b>", [(float(i), None if i % 7 == 3 else i / 3) for i in range(count)]), Series("none", [])]
    chart = line_chart("key", "A <title>", series)
    assert "A &lt;title&gt;" in chart
    assert ("<svg" in chart) == (count > 0)
    assert not re.search(r"\bnan\b", chart)
    assert "<b>" not in chart


def test_a_dot_without_values_is_left_out() -> None:
    chart = dot_chart(
        "key",
        "Title",
        [("known", Estimate(value=0.5, low=0.4, high=0.6)), ("not", Estimate(value=None))],
        (0, 1),
        ("chance", None),
    )
    assert chart.count("<circle") == 1
    assert chart.count('class="interval"') == 1
    assert 'class="mark"' not in chart
