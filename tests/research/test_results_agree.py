"""Numbers in README and docs: they are those of results/, and one without a source is found."""

import json
from pathlib import Path

import pytest

from tests.support.scripts import script

UNTRACED: dict[str, int] = {}
"""How many measured numbers of each page have no file in research/results. Lower it with each file; never raise it."""


check = script("check")


def test_every_measured_number_has_a_source_and_agrees_with_it() -> None:
    found = check.check_all()
    wrong = [str(one) for checked in found.values() for one in checked.findings]
    assert not wrong, "\n".join(wrong)
    assert sum(checked.traced for checked in found.values()) > 200
    untraced = {name: len(checked.untraced) for name, checked in found.items() if checked.untraced}
    assert untraced == UNTRACED


def test_every_file_of_figures_has_its_command() -> None:
    missing = [str(one) for one in check.without_command()]
    assert not missing, "\n".join(missing)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    figures = {
        "share": {"value": 0.7291, "low": 0.701, "high": 0.75},
        "rows": [{"judge": "PRM", "f1": 0.5}, {"judge": "PRM + ORM", "f1": -0.0172}],
        "seconds": {"one": 0.00849, "two": 0.01698},
    }
    (tmp_path / "judges").mkdir()
    (tmp_path / "judges" / "r.json").write_text(json.dumps(figures), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "right in 72.9 %<!-- judges/r.json share -->",
        "0.73<!-- judges/r.json share.value --> of them",
        "| 72.9 (70.1 to 75.0)<!-- judges/r.json share.{value,low,high} --> |",
        "−1.7 and\n50.0 %<!-- judges/r.json rows.PRM + ORM.f1; rows.PRM.f1 -->",
        "8.5 ms<!-- judges/r.json seconds.one times 1000 -->",
        "2.0 times<!-- judges/r.json seconds.two over seconds.one -->",
        "after 30 seconds<!-- settings -->",
        "# Title\n<!-- settings -->\n\n## Part\nafter 30 seconds",
        "see `0.5`, *0.5*, [0](0.5), Python 3.11, 95 % intervals, 127.0.0.1, distinct-2, 3 seeds",
        "```\n0.5 s\n```",
    ],
)
def test_what_is_right(text: str, results: Path) -> None:
    assert check.check_page(text, "page.md", results).findings == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            "one\n\nright in 72.8 %<!-- judges/r.json share -->",
            3,
            "72.8 stands here, 0.7291 in research/results/judges/r.json",
        ),
        ("−1.6<!-- judges/r.json rows.PRM + ORM.f1 -->", 1, "−1.6 stands here"),
        ("0.5 s<!-- judges/r.json share; seconds.one -->", 1, "names 2 numbers, and only 1"),
        ("0.5 s<!-- judges/r.json seconds.three -->", 1, "there is no 'three'"),
        ("0.5 s<!-- judges/r.json rows.ORM.f1 -->", 1, "there is no 'ORM'"),
        ("0.5 s<!-- judges/r.json seconds -->", 1, "not one number"),
        ("0.5 s<!-- judges/no.json a -->", 1, "research/results/judges/no.json is not there"),
        ("It takes 12 ms.", 1, "12 looks measured"),
        ("- is right\n- in 7 of 9", 2, "7 looks measured"),
        ("# A\n\n## B\n<!-- settings -->\n\n0.1 s\n\n## C\n0.2 s", 9, "0.2 looks measured"),
        ("72.9 %<!-- judges/r.json share --> and 1,024", 1, "1,024 looks measured"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(text: str, line: int, words: str, results: Path) -> None:
    (found,) = check.check_page(text, "page.md", results).findings
    assert str(found).startswith(f"page.md:{line}: ")
    assert words in str(found)


def test_what_has_no_file_is_counted(results: Path) -> None:
    checked = check.check_page("0.5 s and 3 of 4<!-- untraced -->", "page.md", results)
    assert (len(checked.findings), len(checked.untraced)) == (0, 2)
