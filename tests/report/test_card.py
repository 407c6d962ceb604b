"""The card says what the records hold and nothing more: counts are right, text is safe, missing files are no error."""

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.report import card
from compeer.report.card import write_card
from compeer.report.card_counts import count_records, most_different, quantile
from compeer.report.charts import bar_chart, dot_chart
from compeer.ser.record import SerRecord, write_records
from compeer.statistics import Estimate

Json = dict[str, Any]
EVIL = "<script>alert(1)</script> | **loud** `tick` _low_ # [link](http://elsewhere.example/x)"
WORDS = "My kettle whistles at night."


def label(value: bool = True, kind: str | None = None, **changes: Any) -> Json:
    return {
        "value": value,
        "source": "silver",
        "how": f"the step of ours-{value:d}:3; by hand",
        "kind": kind,
        **changes,
    }


def record(number: int = 0, wrong: str | None = None, **changes: Any) -> SerRecord:
    steps = {part: label() for part in ("history", "emotion", "strategy")}
    if wrong:
        steps[wrong] = label(False, f"wrong {wrong}")
    value: Json = {
        "id": f"ours-{number}:1:x",
        "dialogue": f"ours-{number}",
        "round": 1,
        "language": "en",
        "source": "ours",
        "split": ("reward", "policy", "test")[number % 3],
        "history": [{"speaker": "supporter", "text": "Hello."}, {"speaker": "seeker", "text": WORDS}],
        "candidate": {
            "history": {"text": "It is about the kettle.", "stage": "exploration"},
            "emotion": {"text": "Worn out.", "sentiment": "negative", "emotion": "stress", "intensity": 2},
            "strategy": {"text": "Ask when.", "strategy": "Question"},
            "response": "When did it start?",
        },
        "author": "silver",
        "reference": "Buy another kettle, then.",
        "labels": steps,
        "preference": {"value": "candidate", "source": "silver", "how": "at home against another"},
        "candidate_first": number % 2 == 0,
        "derived": ["stage"],
        **changes,
    }
    return SerRecord.model_validate(value)


def made(folder: Path, *records: SerRecord, **options: Any) -> tuple[str, str]:
    write_records(folder / "records.jsonl", records)
    paths = write_card(folder, **options)
    assert [path.name for path in paths] == ["card.md", "card.html"]
    return paths[0].read_text(encoding="utf-8"), paths[1].read_text(encoding="utf-8")


def rows(markdown: str, caption: str) -> list[list[str]]:
    """The cells of the table under a caption, without its head."""
    after = markdown.split(caption, 1)[1].lstrip("\n")
    lines = after.split("\n\n")[0].splitlines()
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines[2:]]
    return [[re.sub(r"\\(.)", r"\1", cell).strip().replace("\u00a0", " ") for cell in row] for row in cells]


def manifest(folder: Path, name: str, **held: Any) -> None:
    reported = {"settings": {"seed": 4}, "inputs": {"corpus": "f" * 64}, "compeer": "9.9", "counts": {}, "files": {}}
    (folder / f"{name}.manifest.json").write_text(json.dumps({**reported, **held}), encoding="utf-8")


def probe(target: str, value: float, limit: float | None, **changes: Any) -> Json:
    passes = None if limit is None else value <= limit
    bounds = {"balanced_accuracy": value, "low": value - 0.02, "high": value + 0.02}
    return {"label": target, "sees": "words", **bounds, "tested": 90, "chance": 0.5} | {
        "limit": limit,
        "passed": passes,
        **changes,
    }


# --- what is counted --------------------------------------------------------------------------------------------------


def test_records_and_labels_are_counted(tmp_path: Path) -> None:
    human = {part: label(source="human", how="two people") for part in ("history", "emotion", "strategy")}
    given = [
        *(record(number) for number in range(4)),
        record(4, wrong="emotion"),
        record(5, labels=human, preference=None, author="somebody's model", source="theirs", language="zh", derived=[]),
    ]
    markdown, _ = made(tmp_path, *given)
    assert rows(markdown, "Dialogues and records by split.") == [
        ["reward (trains the judge)", "2", "2"],
        ["policy (trains the supporter)", "2", "2"],
        ["test (measures only)", "2", "2"],
    ]
    by = rows(markdown, "Records by what tells them apart, and by split.")
    assert ["author", "silver", "2", "2", "1", "5"] in by
    assert ["author", "somebody's model", "0", "0", "1", "1"] in by
    assert ["labels of steps", "human", "0", "0", "1", "1"] in by
    assert ["preferences", "none", "0", "0", "1", "1"] in by
    assert not [row for row in by if row[0] == "rewritten"]
    assert rows(markdown, "Verdicts on steps, by who gave them.") == [
        ["History", "human", "1", "0", "0 %"],
        ["History", "silver", "5", "0", "0 %"],
        ["Emotion", "human", "1", "0", "0 %"],
        ["Emotion", "silver", "4", "1", "20 %"],
        ["Strategy", "human", "1", "0", "0 %"],
        ["Strategy", "silver", "5", "0", "0 %"],
    ]
    assert rows(markdown, "What is wrong with steps that are False.") == [["Emotion", "silver", "wrong emotion", "1"]]
    assert rows(markdown, "Which response is better, by who says so.")[0] == ["the candidate is better", "5 (100 %)"]
    assert rows(markdown, "Decisions that a rule gave.") == [["stage", "5", "83 %"]]
    assert "it is shown first in 60" in markdown.replace("\u00a0", " ")


def test_ids_of_other_dialogues_do_not_tell_ways_of_labelling_apart(tmp_path: Path) -> None:
    markdown, _ = made(tmp_path, *(record(number) for number in range(3)))
    hows = rows(markdown, "at most 40 are shown.")
    assert ["history step", "silver", "the step of …", "True", "3"] in hows
    assert len([row for row in hows if row[0] == "history step"]) == 1


def test_better_and_worse_responses_are_measured_apart(tmp_path: Path) -> None:
    other = {"value": "reference", "source": "silver", "how": "other"}
    markdown, page = made(
        tmp_path, record(0), record(1, preference=other), record(2, preference={**other, "value": "both"})
    )
    found = {row[0]: row[1:] for row in rows(markdown, "unless said otherwise.")}
    assert found["Better response"] == ["4", "4", "4", "4", "4.0"]  # both have four words
    assert found["History, in utterances"] == ["2", "2", "2", "2", "2.0"]
    assert found["Emotion step, True"] == ["2", "2", "2", "2", "2.0"]
    assert "Better and worse responses" in page


def test_false_steps_do_not_enter_the_shares_of_decisions(tmp_path: Path) -> None:
    given = [record(0), record(1, wrong="strategy"), record(2, wrong="emotion"), record(3, labels=None)]
    counts = count_records(_written(tmp_path, *given), 0, 0)
    assert counts.strategies == {("exploration", "Question"): 3}
    assert counts.emotions == {("stress", 2): 3}
    assert counts.false_steps == {0: 1, 1: 2}


def _written(folder: Path, *records: SerRecord) -> Path:
    write_records(folder / "records.jsonl", records)
    return folder / "records.jsonl"


@given(st.lists(st.integers(0, 50), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_least_length_that_reaches_its_share(values: list[int], share: float) -> None:
    found = quantile(Counter(values), share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile(Counter(), 0.5) is None


# --- warnings ---------------------------------------------------------------------------------------------------------


def test_silver_is_never_displayed_as_human(tmp_path: Path) -> None:
    markdown, page = made(tmp_path, record())
    for text in (markdown, page):
        assert "Silver is not human." in text
        assert "No label of this set was given by a person." in text
        assert "People judged it." not in text
    human = {part: label(source="human", how="two people") for part in ("history", "emotion", "strategy")}
    markdown, _ = made(tmp_path, record(), record(1, labels=human))
    assert "was given by a person" not in markdown
    assert "People judged it." in markdown


def test_a_dialogue_in_two_splits_is_reported(tmp_path: Path) -> None:
    markdown, _ = made(tmp_path, record(0), record(1), record(3))
    assert "more than one split" not in markdown
    markdown, _ = made(tmp_path, record(0), record(1, dialogue="ours-0"))
    assert "1 dialogue stands in more than one split." in markdown.replace("\u00a0", " ")


def test_probes_stand_beside_their_limits(tmp_path: Path) -> None:
    probes = [
        probe("history", 0.52, 0.55),
        probe("emotion", 0.61, 0.55),
        probe("emotion", 0.53, 0.55, probe="decision words"),
        probe("preference: four classes", 0.27, None),
    ]
    (tmp_path / "probes.json").write_text(json.dumps({"probes": probes, "seed": 0}), encoding="utf-8")
    markdown, page = made(tmp_path, record())
    assert "beyond the limit set: emotion." in markdown
    best = rows(markdown, "The probe that guesses best, with its 95 % interval. Lower is better.")
    assert [(row[0], row[1], row[-1]) for row in best] == [
        ("history", "words", "yes"),
        ("emotion", "words", "no"),
        ("preference: four classes", "words", "–"),
    ]
    assert best[1][2] == "0.610 [0.59 to 0.63]"
    assert len(rows(markdown, "All probes, with 95 % intervals. Lower is better.")) == 4
    assert page.count("limit (0.55)") == 2
    assert '<td class="words bad">no</td>' in page


def test_what_the_check_found_is_displayed(tmp_path: Path) -> None:
    findings = [{"name": "a dialogue in two splits", "message": "3", "passed": False}, {"name": "near-duplicates"}]
    (tmp_path / "check.json").write_text(json.dumps({"findings": findings}), encoding="utf-8")
    markdown, _ = made(tmp_path, record())
    assert rows(markdown, "Findings.") == [["a dialogue in two splits", "3", "no"], ["near-duplicates", "–", "–"]]
    assert "The check failed: a dialogue in two splits." in markdown


# --- the other files of a build ---------------------------------------------------------------------------------------


def test_a_folder_with_nothing_but_records_has_a_card(tmp_path: Path) -> None:
    markdown, page = made(tmp_path, record(labels=None, preference=None))
    for text in (markdown, page):
        assert "They were not run." in text
        assert "The check was not run." in text
        assert "Nothing is known of what was left out." in text


def test_broken_files_are_as_good_as_none(tmp_path: Path) -> None:
    for name in ("probes.json", "check.json", "screened.jsonl.manifest.json"):
        (tmp_path / name).write_text("{half", encoding="utf-8")
    assert "They were not run." in made(tmp_path, record())[0]
    for name in ("probes.json", "check.json", "screened.jsonl.manifest.json"):
        (tmp_path / name).write_text('{"probes": [3, {}], "findings": 7}', encoding="utf-8")
    made(tmp_path, record())


def test_what_was_dropped_masked_and_asked_is_reported(tmp_path: Path) -> None:
    screen = {"read": 40, "kept": 30, "dropped": 10}
    counts = {"screen": screen, "dropped": {"not a dialogue": 4, "repeated lines": 6}, "masked": {"email": 2}}
    manifest(tmp_path, "screened.jsonl", counts=counts, settings={"corpus": "/home/wren/data/talks.jsonl"})
    manifest(tmp_path, "turns.jsonl", calls={"calls": 9, "failures": {"timeout": 1}}, counts={"failed": {"timeout": 1}})
    markdown, page = made(tmp_path, record())
    assert "Of 40 dialogues that were read, 30 were kept and 10 (25 %) dropped." in markdown.replace("\u00a0", " ")
    assert rows(markdown, "screened.jsonl: dropped, by reason.") == [["repeated lines", "6"], ["not a dialogue", "4"]]
    assert rows(markdown, "screened.jsonl: masked, by kind.") == [["email", "2"]]
    assert rows(markdown, "turns.jsonl: calls to models.") == [["calls", "9"], ["failures: timeout", "1"]]
    for text in (markdown, html.unescape(page)):
        assert '"seed": 4' in text
        assert "f" * 64 in text
        assert "compeer 9.9" in text
        assert "/home/wren" not in text
        assert "…/talks.jsonl" in text


def test_without_records_there_is_no_card(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        write_card(tmp_path)


# --- records to look at -----------------------------------------------------------------------------------------------


def test_dialogue_text_stands_in_the_examples_only(tmp_path: Path) -> None:
    given = [record(number) for number in range(5)]
    texts = [WORDS, "When did it start?", "Buy another kettle", "It is about the kettle", "Worn out", "Ask when"]
    for text in made(tmp_path, *given):
        before, after = html.unescape(text).rsplit("Records to look at", 1)
        assert all(words in after for words in texts)
        assert not any(words in before for words in texts)
    for text in made(tmp_path, *given, examples=0):
        assert not any(words in html.unescape(text) for words in texts)
        assert "Records to look at" not in text


def test_examples_are_of_different_kinds_and_the_same_every_time(tmp_path: Path) -> None:
    given = [record(number) for number in range(200)]
    given += [record(200 + index, wrong=part) for index, part in enumerate(("history", "emotion", "strategy"))]
    given += [
        record(210, preference={"value": "neither", "source": "silver", "how": "x"}),
        record(211, author="a model"),
    ]
    special = {f"ours-{number}:1:x" for number in (200, 201, 202, 210, 211)}
    path = _written(tmp_path, *given)
    chosen = count_records(path, 6, 0).examples
    assert {one.id for one in chosen} >= special
    assert [one.id for one in count_records(path, 6, 0).examples] == [one.id for one in chosen]
    ordinary = set()
    for seed in range(5):
        ordinary |= {one.id for one in count_records(path, 6, seed).examples} - special
    assert len(ordinary) > 1  # drawn, not the first of the file


def test_no_more_examples_than_there_are_records() -> None:
    assert len(most_different([record(0), record(1)], 12)) == 2
    assert most_different([], 12) == []


def test_an_example_says_why_a_step_is_false_and_keeps_the_order_of_responses(tmp_path: Path) -> None:
    markdown, page = made(tmp_path, record(1, wrong="emotion"))  # an odd number: the reference comes first
    assert "False: wrong emotion" in page
    assert "✗ **Emotion** \\[negative, stress, 2\\]: Worn out. *(False: wrong emotion; silver;" in markdown
    for text in (markdown, page):
        assert text.index("Buy another kettle") < text.index("When did it start?")
    _, page = made(tmp_path, record(1, labels=None, preference=None))
    assert "not judged yet" in page
    assert "not compared" in page


def test_long_histories_are_cut_and_it_is_said(tmp_path: Path) -> None:
    history = [{"speaker": "seeker", "text": f"Line {number}."} for number in range(card.DISPLAYED_UTTERANCES + 3)]
    markdown, page = made(tmp_path, record(history=history))
    for text in (markdown, page):
        assert "3 earlier" in text
        assert "Line 2." not in text
        assert "Line 3." in text


# --- the two files ----------------------------------------------------------------------------------------------------


def test_text_from_outside_cannot_harm_the_page(tmp_path: Path) -> None:
    wild = {part: label(False, EVIL, how=EVIL, reason=EVIL) for part in ("history", "emotion", "strategy")}
    (tmp_path / "probes.json").write_text(
        json.dumps({"probes": [probe(EVIL, 0.5, 0.55, probe=EVIL)]}), encoding="utf-8"
    )
    turn = record().candidate.model_copy(update={"response": EVIL})
    given = record(labels=wild, author=EVIL, source=EVIL, reference=EVIL, candidate=turn.model_dump())
    markdown, page = made(tmp_path, given)
    assert "<script" not in page
    front, body = markdown.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front)["pretty_name"] == f"SER records from {EVIL}"
    assert "\\<script\\>" in body
    for sign in ("<script", "**loud", "`tick", "](http"):
        assert not re.search(rf"(?<!\\){re.escape(sign)}", body)


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    _, page = made(tmp_path, *(record(number) for number in range(4)))
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets == set(re.findall(r'<section id="([^"]+)"', page))


def test_the_markdown_opens_as_hubs_of_datasets_want_it(tmp_path: Path) -> None:
    markdown, _ = made(tmp_path, record(), record(1, language="zh", source="a: 'b'"))
    _, front, body = markdown.split("---\n", 2)
    found = yaml.safe_load(front)
    assert found["language"] == ["en", "zh"]
    assert found["license"] == "other"
    assert found["size_categories"] == ["n<1K"]
    assert found["pretty_name"] == "SER records from a: 'b' and ours"
    assert body.lstrip().startswith("# SER records from")
    for table in re.findall(r"(?:^\|.*\|\n)+", body, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_same_records_give_the_same_cards(tmp_path: Path) -> None:
    given = [record(number, wrong="history" if number % 4 == 0 else None) for number in range(30)]
    cards = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        cards.append(made(tmp_path / name, *given))
    assert cards[0] == cards[1]
    assert not list(tmp_path.rglob("*.unfinished"))


# --- charts -----------------------------------------------------------------------------------------------------------


def widths(chart: str) -> list[float]:
    drawing = chart.split("<ul")[0]
    return [float(width) for width in re.findall(r'<rect class="s\d" x="\d+" y="[\d.]+" width="([\d.]+)"', drawing)]


def test_bars_are_as_long_as_their_values() -> None:
    chart = str(bar_chart("k", "Apples", {"red": [10], "green": [5], "none": [0], "?": [None]}))
    whole, half, zero, unknown = widths(chart)
    assert half == pytest.approx(whole / 2, abs=0.1)
    assert zero == unknown == 1  # a trace, so that the row is seen to be there
    assert "<title" in chart
    assert "red 10; green 5; none 0; ? –." in chart


def test_bars_of_several_series_have_a_legend() -> None:
    chart = str(bar_chart("k", "Apples", {"a very long name of a row": [1, 2]}, ["mine", "<yours>"]))
    assert len(widths(chart)) == 2
    assert "&lt;yours&gt;" in chart
    assert '<ul class="legend">' in chart


def test_bars_of_nothing_say_so() -> None:
    assert "No figures." in str(bar_chart("k", "Apples", {}))
    assert widths(str(bar_chart("k", "Apples", {"a": [0]}))) == [1]


def test_a_dot_chart_gives_its_names_the_room_asked_for() -> None:
    charts = [str(dot_chart("k", "t", [("name", Estimate(value=0.5))], [0, 1], left=left)) for left in (92, 165)]
    assert ['x="80"' in chart for chart in charts] == [True, False]
    assert 'x="153"' in charts[1]
