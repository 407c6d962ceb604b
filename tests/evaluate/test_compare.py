"""Comparison of two runs: pairs, differences and wins to the number, and what may not be compared."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from compeer.cli import app
from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS
from compeer.evaluate.compare import RunFolder, compare_runs, read_run

SCORE = st.none() | st.integers(0, 4)


def manifest(protocol: str = "esc-eval", **changes: Any) -> dict[str, Any]:
    models = {
        "supporter": {"name": "s", "mark": "1"},
        "seeker": {"name": "k", "url": "http://a"},
        "judge": {"name": "j"},
    }
    settings = {"mode": "plain", "rounds": 5, "repeats": 1, "supporter_tokens": 9}
    content = {"protocol": protocol, "settings": settings, "seed": 0, "models": models, "scenarios": {"ids": ["a"]}}
    return content | changes


def line(scenario: str, repeat: int = 1, judges: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"scenario": scenario, "repeat": repeat, "language": "en", "judges": judges or {}, "failed": None, **more}


def run(name: str, lines: list[dict[str, Any]], content: dict[str, Any] | None = None) -> RunFolder:
    content = content or manifest()
    pairs = {(one["scenario"], one["repeat"]): one for one in lines}
    supporter = content["models"]["supporter"]["name"]
    return RunFolder(folder=name, supporter=supporter, mode=content["settings"]["mode"], manifest=content, lines=pairs)


def test_escevals_differences_by_hand() -> None:
    first = run(
        "A",
        [line("a", 1, {"j": {"empathy": 4}}), line("a", 2, {"j": {"empathy": 2}}), line("b", 1, {"j": {"empathy": 1}})],
    )
    second = run(
        "B",
        [line("a", 1, {"j": {"empathy": 2}}), line("a", 2, {"j": {"empathy": 2}}), line("b", 1, {"j": {"empathy": 3}})],
    )
    found = compare_runs(first, second).dimensions["empathy"]
    assert (found.pairs, found.scenarios) == (3, 2)
    assert found.first == pytest.approx((100 + 50 + 25) / 3)
    assert found.second == pytest.approx((50 + 50 + 75) / 3)
    assert found.difference.value == pytest.approx((50 + 0 - 50) / 3)
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)
    assert found.win_rate.value == pytest.approx(0.5)
    assert found.difference.low is None  # two scenarios are too few


def test_a_judge_counts_only_where_it_scored_both() -> None:
    first = run("A", [line("a", 1, {"j": {"overall": 4}, "k": {"overall": 0}})])
    second = run("B", [line("a", 1, {"j": {"overall": 3}, "k": {"overall": None}})])
    found = compare_runs(first, second)
    assert found.dimensions["overall"].first == 100
    assert found.dimensions["overall"].second == 75
    assert found.dimensions["fluency"].pairs == 0
    assert found.dimensions["fluency"].difference.value is None
    assert found.dimensions["average"].pairs == 0  # six dimensions are missing


def test_the_average_needs_all_seven() -> None:
    whole = {dimension: place % 5 for place, dimension in enumerate(DIMENSIONS)}
    first, second = (
        run("A", [line("a", 1, {"j": whole})]),
        run("B", [line("a", 1, {"j": dict.fromkeys(DIMENSIONS, 2)})]),
    )
    average = compare_runs(first, second).dimensions["average"]
    assert average.first == pytest.approx(25 * np.mean(list(whole.values())))
    assert average.second == 50


def test_sage_compares_emotions_and_ends() -> None:
    content = manifest("sage")
    one = [("a", 100.0, "success"), ("b", 40.0, None), ("c", None, None)]
    other = [("a", 5.0, "failure"), ("b", 60.0, None), ("c", 50.0, None)]
    runs = [
        run(name, [line(s, final=final, end=end) for s, final, end in rows], content)
        for name, rows in (("A", one), ("B", other))
    ]
    found = compare_runs(runs[0], runs[1])
    assert found.dimensions["final"].pairs == 2  # one of the pair c came to no end
    assert found.dimensions["final"].difference.value == pytest.approx((95 - 20) / 2)
    assert found.dimensions["success"].difference.value == pytest.approx(50)
    assert found.dimensions["failure"].difference.value == pytest.approx(-50)
    assert found.dimensions["failure"].win_rate.value == 0.75  # a win and a tie: fewer failures are better


@given(st.lists(st.tuples(st.integers(0, 9), SCORE, SCORE), min_size=1, max_size=30), st.integers(0, 3))
def test_swapping_the_runs_mirrors_everything(rows: list[tuple[int, int | None, int | None]], seed: int) -> None:
    first = run("A", [line(str(s), n + 1, {"j": {"empathy": a}}) for n, (s, a, _) in enumerate(rows)])
    second = run("B", [line(str(s), n + 1, {"j": {"empathy": b}}) for n, (s, _, b) in enumerate(rows)])
    there, back = compare_runs(first, second, seed), compare_runs(second, first, seed)
    one, other = there.dimensions["empathy"], back.dimensions["empathy"]
    assert (one.wins, one.ties, one.losses) == (other.losses, other.ties, other.wins)
    assert one.pairs == sum(a is not None and b is not None for _, a, b in rows)
    if one.difference.value is not None and other.difference.value is not None:
        assert one.difference.value == pytest.approx(-other.difference.value)
        assert one.win_rate.value == pytest.approx(1 - (other.win_rate.value or 0))
    if one.difference.low is not None and other.difference.high is not None:
        assert one.difference.low == pytest.approx(-other.difference.high)


def test_pairing_sees_what_separate_intervals_would_not() -> None:
    """Scenarios differ much, the supporters little and always the same way."""
    rng = np.random.default_rng(0)
    hard = rng.integers(0, 90, 40)
    content = manifest("sage")
    first = run("A", [line(str(n), final=float(x) + 3 + rng.normal(), end=None) for n, x in enumerate(hard)], content)
    second = run("B", [line(str(n), final=float(x), end=None) for n, x in enumerate(hard)], content)
    found = compare_runs(first, second).dimensions["final"]
    assert found.difference.low is not None
    assert 2 < found.difference.low < 3 < (found.difference.high or 0) < 4
    assert found.win_rate.low is not None
    assert found.win_rate.low > 0.9


def test_what_only_one_has_is_left_out_with_a_note() -> None:
    first = run("A", [line("a", 1, {"j": {"empathy": 4}}), line("b", 1, {"j": {"empathy": 4}})])
    second = run("B", [line("a", 1, {"j": {"empathy": 2}})], manifest(seed=1))
    found = compare_runs(first, second)
    assert (found.scenarios, found.pairs) == (1, 1)
    assert any("1 of 2 conversations of A" in note for note in found.notes)
    assert any("seeds differ" in note for note in found.notes)
    assert any("same supporter in the same mode" in note for note in found.notes)
    with pytest.raises(InputError, match="no scenario in common"):
        compare_runs(first, run("B", [line("z")]))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"protocol": "sage"}, "protocol"),
        ({"models": {"supporter": {"name": "s"}, "seeker": {"name": "other"}, "judge": {"name": "j"}}}, "seeker"),
        ({"models": {"supporter": {"name": "s"}, "seeker": {"name": "k"}}}, "judge"),
        ({"settings": {"mode": "plain", "rounds": 6}}, r"settings\.rounds"),
        ({"prompts": {"seeker.en.txt": "x"}}, "prompts"),
        ({"scenarios": {"ids": ["a"], "sha256": "x"}}, "what the scenarios say"),
    ],
)
def test_runs_that_differ_in_more_than_the_supporter_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"differ in .*{named}"):
        compare_runs(run("A", [line("a")]), run("B", [line("a")], manifest(**changes)))


def test_supporter_mode_and_place_of_a_server_may_differ() -> None:
    other = manifest(
        settings={"mode": "structured", "rounds": 5, "repeats": 3, "supporter_tokens": 99},
        prompts={"supporter structured": "x"},
        models={"supporter": {"name": "s"}, "seeker": {"name": "k", "url": "http://b"}, "judge": {"name": "j"}},
    )
    found = compare_runs(run("A", [line("a")]), run("B", [line("a")], other))
    assert (found.first, found.second) == ("s (plain)", "s (structured)")


def write(folder: Path, content: Mapping[str, Any], lines: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(content))
    (folder / "scores.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return folder


def test_folders_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no manifest\.json"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest()))
    with pytest.raises(InputError, match=r"no scores\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="no manifest of an evaluation"):
        read_run(write(tmp_path / "x", {"protocol": "esc-eval"}, []))
    with pytest.raises(InputError, match=r"line 2.*before"):
        read_run(write(tmp_path / "y", manifest(), [line("a"), line("a")]))
    with pytest.raises(InputError, match="line 1"):
        read_run(write(tmp_path / "z", manifest(), [{"scenario": "a"}]))


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    rows = [line(str(n), 1, {"j": dict.fromkeys(DIMENSIONS, 3)}) for n in range(8)]
    less = [line(str(n), 1, {"j": dict.fromkeys(DIMENSIONS, 2)}) for n in range(8)]
    one, other = write(tmp_path / "one", manifest(), rows), write(tmp_path / "two", manifest(), less)
    out = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["evaluate", "compare", str(one), str(other), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "+25.0 [+25.0, +25.0]" in done.output
    assert "8-0-0" in done.output
    assert json.loads(out.read_text())["dimensions"]["average"]["win_rate"]["value"] == 1
