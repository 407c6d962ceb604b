"""The evaluation's page: figures and transcripts of both protocols, safe with any text, whole without its script."""

import asyncio
import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS
from compeer.evaluate.esc_eval import EscEval, EscEvalSettings
from compeer.evaluate.players import Player, Players
from compeer.evaluate.runner import run_evaluation
from compeer.evaluate.sage import Sage, SageSettings
from compeer.models.base import Request
from compeer.report.charts import Curve, emotion_chart, mean_emotions
from compeer.report.evaluation import bands, write_evaluation
from compeer.simulate import Scenario
from compeer.statistics import generator
from tests.support.scripted_model import ScriptedModel

HOSTILE = "</noscript></details></script><script>alert(1)</script> {{ 7 * 7 }} \" onload='x' &amp; <img src=x>"
SEEKER = (
    "nine years of early mornings, and they gave it to the one I trained",
    "I laughed when they told me. Then I stood in the cold room for a while.",
    "我昨天又没睡着，一直在想这件事。",
    "maybe I should have said something. I never know when",
)
SUPPORTER = (
    "That sounds like a hard thing to swallow, after nine years. What was it like to stand there?",
    "You taught him, and nobody asked you. I can see why you laughed rather than say it.",
    "听起来这件事一直压在你心里。你最放不下的是哪一句话？",
    "What would you have wanted somebody to say to you on that day?",
)
STEPS = (
    "History: Passed over after nine years. [exploration]\n"
    "Emotion: Hurt under the laugh. [negative, sadness, 4]\n"
    "Strategy: Ask about the moment itself. [Question]"
)
REASONS = "It noticed the laugh, which nobody else did. It asked instead of telling me what to do."


def log_name(scenario: str, repeat: int) -> str:
    return scenario if repeat == 1 else f"{scenario}#{repeat}"


def write_log(folder: Path, name: str, language: str, entries: list[dict[str, Any]]) -> None:
    place = folder / "dialogues"
    place.mkdir(parents=True, exist_ok=True)
    facts = {"card": f"{name} lost a promotion.\nWants to be heard.", "secrets": ["one", "two"], "problem": ""}
    head = {"scenario": {"id": name, "language": language, "opening": None, "facts": facts}, "seed": 0}
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *entries])
    (place / f"{hashlib.sha256(name.encode()).hexdigest()}.jsonl").write_text(lines, encoding="utf-8")


def utterance(speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"turn": {"speaker": speaker, "text": text, **more}, "calls": [{"messages": [], "seed": 1, "answer": text}]}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def metrics_of(protocol: str, metrics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "supporter": "/home/somebody/models/supporter-7b",
        "seeker": "seeker-model",
        "judges": [],
        "mode": "structured",
        "settings": {"rounds": 5, "retries": 2, "cards": "/home/somebody/cards.jsonl"},
        "seed": 7,
        "versions": {"compeer": "0.1"},
        "scenarios": 40,
        "repeats": 1,
        "figures": metrics,
        "failures": {
            "model": {"seeker: out of role": 2},
            "infrastructure": {"supporter: timeout": 3},
        },
        "cost": {
            "roles": {
                "seeker": {"calls": 410, "prompt_tokens": 123456, "tokens": 9876},
                "supporter": {"calls": 400, "prompt_tokens": 223456, "tokens": 19876},
            },
            "seconds": 812.4,
        },
        "hashes": {"prompts": {"one.txt": "ab" * 32}, "scenarios": "cd" * 32},
        **more,
    }


def write_sage(folder: Path, dialogues: int = 6, rounds: int = 10, repeats: int = 1) -> Path:
    """A folder of SAGE: every third is won, every fifth lost, the seventh failed."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows = generator(3, "report"), []
    for number in range(dialogues * repeats):
        scenario, repeat = f"sage-en-{number % dialogues + 1:03}", number // dialogues + 1
        trend = 7 if number % 3 == 0 else -8 if number % 5 == 1 else 1
        emotion, emotions, end, entries = 40, [40], None, []
        entries.append(utterance("seeker", SEEKER[number % 4], extra={"emotion": 40}))
        for round_number in range(rounds):
            text = SUPPORTER[(number + round_number) % 4]
            entries.append(utterance("supporter", text, reasoning=STEPS, extra={"missing": {"emotion": "not there"}}))
            change = int(rng.integers(-6, 7)) + trend
            applied = max(-10, min(10, change))
            emotion = max(0, min(100, emotion + applied))
            emotions.append(emotion)
            end = "success" if emotion >= 100 else "failure" if emotion < 10 else None
            notes = {"emotion": emotion, "change": change, "applied": applied, "reasons": REASONS, "outcome": end}
            if end or round_number == rounds - 1:
                why = {"status": "ended", "why": end or "turns reached", "who": "seeker" if end else None}
                entries.append({"closing": notes, "outcome": why})
                break
            entries.append(utterance("seeker", SEEKER[(number + round_number) % 4], reasoning=REASONS, extra=notes))
        failed = None
        if number == 6:
            failed = "infrastructure failed: supporter: timeout"
            outcome = {"status": "infrastructure failed", "why": "timeout", "who": "supporter", "reason": "too slow"}
            entries[3:] = [{"outcome": outcome}]
        write_log(folder, log_name(scenario, repeat), "en", entries)
        reported = {"emotions": emotions, "end": end, "final": float(emotion)}
        if failed:
            reported = {"emotions": emotions[:2], "end": None, "final": None}
        rows.append({"scenario": scenario, "repeat": repeat, "language": "en", **reported, "failed": failed})
    write_lines(folder / "scores.jsonl", rows)
    finals = [row["final"] for row in rows if row["final"] is not None]
    score = sum(finals) / len(finals)
    of_all = {"scored": len(finals), "items": len(rows)}
    metrics = {
        "emotion": {"score": score, "low": score - 5, "high": score + 5, **of_all},
        "success": {"score": 0.25, "low": 0.15, "high": 0.35, "count": 3, **of_all},
        "failure": {"score": 0.125, "low": 0.05, "high": 0.2, "count": 2, **of_all},
        "replies": {"score": 8.5, "low": 8.0, "high": 9.0, **of_all},
        "by_repeat": {str(number + 1): {"average": score} for number in range(repeats)},
        "repeat_deviation": 2.5 if repeats > 1 else None,
    }
    reported = metrics_of("sage", metrics, scenarios=dialogues, repeats=repeats)
    (folder / "figures.json").write_text(json.dumps(reported), encoding="utf-8")
    return folder


def write_esc(folder: Path, dialogues: int = 4, rounds: int = 5, judges: int = 2, repeats: int = 1) -> Path:
    """A folder of ESC-Eval: the first judge could not be read for one dimension of the first conversation."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows, judged = generator(4, "report"), [], []
    names = ["judge-one", "another-judge-14b", "third"][:judges]
    for number in range(dialogues * repeats):
        language = "zh" if number % 4 == 2 else "en"
        scenario, repeat = f"{language}-{number % dialogues + 1:02}", number // dialogues + 1
        entries = []
        for round_number in range(rounds):
            entries.append(utterance("seeker", SEEKER[(number + round_number) % 4]))
            more = {"reasoning": STEPS, "extra": {"cut_off": True}} if number % 2 else {}
            entries.append(utterance("supporter", SUPPORTER[(number + round_number) % 4], **more))
        entries[-1]["outcome"] = {"status": "ended", "why": "turns reached"}
        write_log(folder, log_name(scenario, repeat), language, entries)
        given: dict[str, dict[str, int | None]] = {}
        unscored: dict[str, dict[str, str]] = {}
        for name in names:
            given[name] = {dimension: int(rng.integers(1, 5)) for dimension in DIMENSIONS}
            for dimension in DIMENSIONS:
                answer = json.dumps({"reason": "It stays with the seeker.", "score": given[name][dimension]})
                row = {"conversation": scenario, "repeat": repeat, "language": language, "judge": name}
                judged.append({**row, "dimension": dimension, "score": given[name][dimension], "answer": answer})
        if number == 0:
            given[names[0]]["empathy"] = None
            unscored = {names[0]: {"empathy": "unreadable"}}
        row = {"scenario": scenario, "repeat": repeat, "language": language, "judges": given}
        rows.append({**row, "unscored": unscored, "failed": None})
    write_lines(folder / "scores.jsonl", rows)
    write_lines(folder / "judged.jsonl", judged)
    one = {"score": 61.25, "low": 55.5, "high": 66.75, "scored": len(rows), "items": len(rows)}
    averages = {"dimensions": dict.fromkeys(DIMENSIONS, 60.0), "average": 60.0, "scored": 27, "asked": 28}
    metrics = {
        "scenarios": dialogues,
        "conversations": len(rows),
        "dimensions": {dimension: {**one, "unscored": {}, "judges": {"2": 4}} for dimension in DIMENSIONS},
        "average": one,
        "by_judge": dict.fromkeys(names, averages),
        "by_repeat": {str(number + 1): averages for number in range(repeats)},
        "repeat_deviation": 1.5 if repeats > 1 else None,
    }
    reported = metrics_of("esc-eval", metrics, judges=names, scenarios=dialogues, repeats=repeats, failures={})
    (folder / "figures.json").write_text(json.dumps(reported), encoding="utf-8")
    return folder


def page_of(folder: Path) -> str:
    return write_evaluation(folder).read_text(encoding="utf-8")


def escaped(text: str) -> str:
    return html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def transcript(page: str, number: int) -> str:
    """The markup of one transcript."""
    return page.split(f'id="dialogue-{number}"><noscript>')[1].split("</noscript>")[0]


def changed(value: Any, put: Any, kinds: type | tuple[type, ...], kept: tuple[str, ...] = ()) -> Any:
    """The same structure with every leaf of those kinds replaced, and the keys kept."""
    if isinstance(value, dict):
        return {key: inner if key in kept else changed(inner, put, kinds, kept) for key, inner in value.items()}
    if isinstance(value, list):
        return [changed(inner, put, kinds, kept) for inner in value]
    return put if isinstance(value, kinds) and not isinstance(value, bool) else value


def change_file(path: Path, put: Any, kinds: type | tuple[type, ...], kept: tuple[str, ...] = ()) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    new = [json.dumps(changed(json.loads(line), put, kinds, kept)) + "\n" for line in lines]
    path.write_text("".join(new), encoding="utf-8")


class Balanced(HTMLParser):
    """Notes the tags of a page, and stops where one is closed that is not the last one opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# --- safety -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_sage, write_esc])
def test_hostile_text_stays_text(tmp_path: Path, write: Any) -> None:
    folder = write(tmp_path / "run", 3)
    for path in (folder / "dialogues").iterdir():
        change_file(path, HOSTILE, str, kept=("id", "status", "speaker"))
    names = ("scenario", "conversation", "judges", "dimension", "judge", "unscored")
    for name in ("scores.jsonl", "judged.jsonl"):
        if (folder / name).is_file():
            change_file(folder / name, HOSTILE, str, kept=names)
    metrics = changed(json.loads((folder / "figures.json").read_text()), HOSTILE, str, kept=("protocol",))
    metrics["failures"] = {HOSTILE: {HOSTILE: 3}}
    metrics["figures"]["by_judge"] = {HOSTILE: {"average": 3}, "b": {}}
    metrics["cost"]["roles"] = {HOSTILE: {HOSTILE: 3}}
    (folder / "figures.json").write_text(json.dumps(metrics))
    page = page_of(folder)
    found = Balanced(page)
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert page.count("</noscript>") == 3
    assert page.count(escaped(HOSTILE)) > 30
    assert "{{ 7 * 7 }}" in page  # shown, not computed
    assert escaped(HOSTILE) in transcript(page, 1)


def test_a_hostile_scenario_stays_text(tmp_path: Path) -> None:
    write_log(tmp_path, HOSTILE, HOSTILE, [utterance("seeker", "words")])
    write_lines(tmp_path / "scores.jsonl", [{"scenario": HOSTILE, "repeat": 1, "judges": {HOSTILE: {"empathy": 2}}}])
    (tmp_path / "figures.json").write_text(json.dumps(metrics_of("esc-eval", {})))
    page = page_of(tmp_path)
    assert Balanced(page).tags.count("script") == 1
    assert "words" in transcript(page, 1)


@pytest.mark.parametrize("write", [write_sage, write_esc])
def test_the_page_needs_nothing_from_outside_and_runs_its_own_script_only(tmp_path: Path, write: Any) -> None:
    page = page_of(write(tmp_path / "run", 3))
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert script
    mark = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{mark}'" in page
    targets = re.findall(r"""(?:src|href|action|data)\s*=\s*["']([^"']*)""", page)
    assert targets
    assert all(target.startswith("#") for target in targets)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in targets} <= set(ids)
    for unwanted in ("http://", "https://", "url(", "@import", "/home", str(tmp_path)):
        assert unwanted not in page
    assert set(re.findall(r'getElementById\("(\w+)"\)', script[1])) <= set(ids)


def test_half_a_surrogate_pair_is_written(tmp_path: Path) -> None:
    write_log(tmp_path, "a", "en", [])
    with next((tmp_path / "dialogues").iterdir()).open("a") as log:
        log.write(json.dumps(utterance("seeker", "half \ud83d pair")) + "\n")
    (tmp_path / "figures.json").write_text(json.dumps(metrics_of("sage", {})))
    assert "half ? pair" in page_of(tmp_path)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_sage_says_what_came_out(tmp_path: Path) -> None:
    page = page_of(write_sage(tmp_path / "run", 12))
    assert "<b>3</b>" in page
    assert "25\u00a0% [15\u00a0to\u00a035]" in page
    assert page.count('<span class="soft">11\u00a0of\u00a012 scored</span>') == 4
    assert "Few scenarios: 12." in page
    assert "Not all was scored: 11\u00a0of\u00a012 conversations." in page
    assert "Infrastructure failed 3 times." in page
    assert page.index("seeker: out of role") < page.index("supporter: timeout</th>")
    assert "812 seconds in all." in page
    assert "ab" * 32 in page
    assert "Scored by" not in page
    assert "repeat 2" not in page


def test_a_judge_that_tells_nothing_apart_is_named(tmp_path: Path) -> None:
    folder = write_esc(tmp_path / "run", 24)
    reported = json.loads((folder / "figures.json").read_text())
    reported["figures"]["all_alike"] = {"flat <b>": 0.9, "fine": 0.3}
    (folder / "figures.json").write_text(json.dumps(reported))
    page = page_of(folder)
    assert "flat &lt;b&gt; gave 90\u00a0% of the conversations one score in all seven dimensions." in page
    assert "fine gave" not in page


def test_a_seeker_whom_nothing_moves_is_named(tmp_path: Path) -> None:
    folder = write_sage(tmp_path / "run", 12)
    reported = json.loads((folder / "figures.json").read_text())
    for unmoved, named in ((0, False), (5, False), (reported["figures"]["emotion"]["scored"], True)):
        reported["figures"]["unmoved"] = unmoved
        (folder / "figures.json").write_text(json.dumps(reported))
        assert ("no reply changed the seeker's emotion" in html.unescape(page_of(folder))) == named


def test_esc_eval_gives_the_average_and_each_judge(tmp_path: Path) -> None:
    page = page_of(write_esc(tmp_path / "run", 24, repeats=2))
    assert "61.2 [55.5\u00a0to\u00a066.8]" in page
    assert "Average by another-judge-14b" in page
    assert '<th scope="col">all judges</th><th scope="col">judge-one</th>' in page
    assert '<td>47\u00a0of\u00a048</td><td>48\u00a0of\u00a048</td><td class="words">unreadable 1</td>' in page
    assert "standard deviation" in page
    assert '<th scope="row">Chinese</th>' in page
    assert "Nothing failed." in page
    assert "Few scenarios" not in page
    one = page_of(write_esc(tmp_path / "one", 24, judges=1))
    assert "Average by" not in one
    assert "all judges" not in one
    assert "standard deviation" not in one


def test_a_price_is_displayed_with_its_currency(tmp_path: Path) -> None:
    folder = write_sage(tmp_path / "run")
    metrics = json.loads((folder / "figures.json").read_text())
    metrics["cost"] |= {"price": 1.234, "currency": "EUR"}
    (folder / "figures.json").write_text(json.dumps(metrics))
    assert "812 seconds in all. 1.23 EUR in all." in page_of(folder)


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=12), min_size=1, max_size=9))
def test_the_mean_curve_ends_at_the_mean_final_emotion(curves: list[list[int]]) -> None:
    means = mean_emotions([Curve(curve) for curve in curves])
    assert len(means) == max(map(len, curves))
    assert means[0] == pytest.approx(sum(curve[0] for curve in curves) / len(curves))
    assert means[-1] == pytest.approx(sum(curve[-1] for curve in curves) / len(curves))
    assert Balanced(emotion_chart([Curve(curve) for curve in curves])).tags.count("path") > len(curves)


def test_curves_are_marked_where_they_were_won_or_lost() -> None:
    assert mean_emotions([Curve([40, 30]), Curve([40, 50, 60, 100])]) == [40, 40, 45, 65]
    chart = emotion_chart([Curve([40, 100], "success"), Curve([40, 5], "failure"), Curve([40, 45])])
    drawing = chart.split('<ul class="legend">')[0]
    assert [drawing.count(f'class="end {end}"') for end in ("success", "failure")] == [1, 1]
    assert drawing.count('class="curve') == 3
    assert drawing.count('class="mean"') == 1
    assert "success (1)" in chart
    assert "No figures." in emotion_chart([])


def test_scores_fall_into_fifths() -> None:
    assert list(bands([0, 19.9, 20, 50, 79.9, 80, 100]).values()) == [2, 1, 1, 1, 2]
    assert list(bands([]))[::4] == ["0 to 20", "80 to 100"]


# --- transcripts ------------------------------------------------------------------------------------------------------


def test_each_turn_has_its_reasoning_and_the_emotion_with_its_reasons(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        "a",
        "en",
        [
            utterance("seeker", "I am so tired.", extra={"emotion": 40}),
            utterance(
                "supporter", "Of what?", reasoning=STEPS, extra={"missing": {"emotion": "not there"}, "cut_off": True}
            ),
            utterance(
                "seeker",
                "Of this.",
                reasoning=REASONS,
                extra={"emotion": 50, "change": 13, "applied": 10, "reasons": REASONS},
            ),
            utterance("supporter", "Tell me."),
            {
                "closing": {"emotion": 47.5, "change": -2.5, "applied": -2.5, "reasons": "Too short."},
                "outcome": {"status": "ended", "why": "turns reached"},
            },
        ],
    )
    row = {"scenario": "a", "repeat": 1, "language": "en", "emotions": [40, 50, 47.5], "end": None, "final": 47.5}
    write_lines(tmp_path / "scores.jsonl", [row])
    (tmp_path / "figures.json").write_text(json.dumps(metrics_of("sage", {})))
    page = page_of(tmp_path)
    assert "<h3>a: 47.5</h3>" in page
    displayed = transcript(page, 1)
    assert displayed.count('<summary lang="en">Reasoning</summary>') == 1  # the seeker's reasons are not shown twice
    assert escaped(STEPS) in displayed
    assert "No emotion: not there" in displayed
    assert "Supporter, cut off" in displayed
    assert "Emotion at the start</span> <strong>40</strong>" in displayed
    assert "+10 (said +13)" in displayed
    assert displayed.count(REASONS) == 1
    assert "<strong>47.5</strong>" in displayed
    assert "−2.50" in displayed
    assert 'width:50%"' in displayed
    assert 'aria-label="Emotion: 40, 50, 47.5"' in displayed
    assert 'secrets</dt><dd dir="auto">one\ntwo</dd>' in displayed


def test_repeats_and_judges_belong_to_their_conversation(tmp_path: Path) -> None:
    write_log(tmp_path, "a", "en", [utterance("seeker", "the first talk")])
    write_log(tmp_path, "a#2", "en", [utterance("seeker", "the second talk")])
    write_log(tmp_path, "c", "en", [utterance("seeker", "a talk without a score")])
    calls = [{"answer": "As a model I cannot", "complaint": "unparsable: no"}, {"failure": "timeout: slow"}, 3]
    outcome = {"status": "model failed", "why": "empty", "who": "seeker", "reason": "no words"}
    write_log(tmp_path, "d", "en", [{"outcome": outcome, "calls": calls}])
    given_scores = {"one": dict.fromkeys(DIMENSIONS, 4), "two": dict.fromkeys(DIMENSIONS, 3)}
    rows: list[dict[str, Any]] = [
        {"scenario": "a", "repeat": 2, "language": "en", "judges": given_scores},
        {"scenario": "a", "repeat": 1, "language": "en", "judges": {"one": dict.fromkeys(DIMENSIONS)}},
        {"scenario": "b", "repeat": 1, "language": "en", "judges": {}, "failed": "model failed: seeker: empty"},
        {"scenario": "d", "repeat": 1, "language": "en", "judges": {}, "failed": "model failed: seeker: empty"},
    ]
    rows[1]["unscored"] = {"one": dict.fromkeys(DIMENSIONS, "unreadable")}
    write_lines(tmp_path / "scores.jsonl", rows)
    judged = {"conversation": "a", "repeat": 2, "judge": "one", "dimension": "empathy", "score": 4, "answer": "so warm"}
    write_lines(tmp_path / "judged.jsonl", [judged])
    (tmp_path / "figures.json").write_text(json.dumps(metrics_of("esc-eval", {})))
    page = page_of(tmp_path)
    assert re.findall(r"<h3>(.*?)</h3>", page) == [
        "a, repeat 2: 87.5",
        "a, repeat 1: –",
        "b, repeat 1: failed",
        "d, repeat 1: failed",
        "c, repeat 1: –",
    ]
    first, second, third, failed, fourth = (transcript(page, number) for number in range(1, 6))
    assert "the second talk" in first
    assert "so warm" in first
    assert "<td>3.50</td><td>4</td><td>3</td>" in first
    assert "the first talk" in second
    assert second.count("<td>unreadable</td>") == 7
    assert "so warm" not in second
    assert "model failed: seeker: empty" in third
    assert "Nothing was said." in third
    assert "model failed: seeker: empty (no words)" in failed
    assert '<pre dir="auto">As a model I cannot</pre></details>' in failed
    assert "a talk without a score" in fourth
    assert "not finished" in fourth


@pytest.mark.parametrize("write", [write_sage, write_esc])
def test_two_hundred_dialogues_make_a_page_of_a_few_megabytes(tmp_path: Path, write: Any) -> None:
    folder = write(tmp_path / "run", 200, 10)
    page = page_of(folder)
    assert len(page) < 4_000_000
    assert page.count('<details class="dialogue') == 200
    outside = re.sub(r"<noscript>.*?</noscript>", "", page, flags=re.DOTALL)
    assert len(Balanced(outside).tags) < 4000  # what a browser with scripts lays out before a transcript is opened
    assert sum(text not in outside for text in (SUPPORTER[0], escaped(REASONS))) == 2
    assert page.count(SUPPORTER[0]) > 200  # and what one without scripts finds


# --- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("put", [None, float("nan"), float("inf"), "text", [], {}])
@pytest.mark.parametrize("write", [write_sage, write_esc])
def test_metrics_that_are_no_numbers_become_dashes(tmp_path: Path, write: Any, put: Any) -> None:
    folder = write(tmp_path / "run", 3)
    for path in (folder / "figures.json", folder / "scores.jsonl", *(folder / "dialogues").iterdir()):
        change_file(path, put, (int, float), kept=("settings", "seed"))
    page = page_of(folder)
    Balanced(page)
    assert "<b>–</b>" in page
    assert not re.search(r"\b(nan|NaN|inf|None)\b", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL))


def test_a_folder_without_conversations_says_so(tmp_path: Path) -> None:
    (tmp_path / "figures.json").write_text(json.dumps({"protocol": "sage"}))
    page = page_of(tmp_path)
    Balanced(page)
    assert "No conversation was kept." in page
    assert "No figures." in page


def test_torn_lines_and_odd_rows_are_passed_over(tmp_path: Path) -> None:
    folder = write_sage(tmp_path / "run", 2)
    with (folder / "scores.jsonl").open("ab") as scores:
        scores.write(b'[1]\n{"scenario": "x", "judges": 3, "emotions": {}}\n\xff\n{"scen')
    (folder / "dialogues" / "torn.jsonl").write_bytes(
        b'{"scenario": {"id": "torn", "facts": [1]}}\n{"turn": [1]}\n{"tu'
    )
    (folder / "dialogues" / "odd.jsonl").write_bytes(b"[]\n{}\n")
    names = re.findall(r"<h3>(.*?):", page_of(folder))
    assert names == ["sage-en-001", "sage-en-002", "x", "torn"]


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "no such file"), ("{", "no JSON object"), ("[]", "no JSON object"), ('{"protocol": "other"}', "protocol")],
)
def test_what_is_no_evaluation_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "figures.json").write_text(text)
    with pytest.raises(InputError, match=words) as raised:
        write_evaluation(tmp_path)
    assert "figures.json" in str(raised.value)
    assert not (tmp_path / "report.html").exists()


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_sage(tmp_path / "run", 4, repeats=2)
    first = write_evaluation(folder).read_bytes()
    assert write_evaluation(folder).read_bytes() == first
    assert not list(folder.glob("*.unfinished"))


# --- folders as an evaluation writes them -----------------------------------------------------------------------------

PEOPLE = [
    Scenario(
        id=name, language="en", opening="they gave it to him", facts={"person": "p", "scene": "s", "intention": "i"}
    )
    for name in ("a", "b", "c")
]


def model_named(name: str) -> Player:
    return Player(f"{name}@http://localhost:1/v1")


def test_a_folder_of_sage_as_it_is_written(tmp_path: Path) -> None:
    def feels(request: Request) -> str:
        asked = str(request.messages[-1]["content"])
        return "Reasons: it asked.\nChange: +9" if "Change:" in asked else "it went on like that for years"

    players = Players(model_named("supporter"), model_named("seeker"))
    models = {
        players.supporter.given: ScriptedModel(lambda _: "What happened <b>then</b>?", "supporter"),
        players.seeker.given: ScriptedModel(feels, "seeker"),
    }
    evaluation = Sage(players, PEOPLE, SageSettings(rounds=3, repeats=2), seed=1)
    asyncio.run(run_evaluation(evaluation, tmp_path, models))
    page = page_of(tmp_path)
    Balanced(page)
    assert "<b>67.00</b>" in page
    assert re.findall(r"<h3>(.*?)</h3>", page)[3] == "a, repeat 2: 67"
    assert "What happened &lt;b&gt;then&lt;/b&gt;?" in transcript(page, 4)
    assert transcript(page, 4).count("it asked.") == 3
    assert "Emotion at the start</span> <strong>40</strong>" in transcript(page, 4)
    assert "localhost" not in page


def test_a_folder_of_esc_eval_as_it_is_written(tmp_path: Path) -> None:
    players = Players(model_named("supporter"), model_named("seeker"), (model_named("kind"), model_named("mute")))
    models = {
        players.supporter.given: ScriptedModel(lambda _: "What happened then?", "supporter"),
        players.seeker.given: ScriptedModel(lambda _: "it went on like that for years", "seeker"),
        players.judges[0].given: ScriptedModel(lambda _: '{"reason": "It asks.", "score": 3}', "kind"),
        players.judges[1].given: ScriptedModel(lambda _: "I would rather not", "mute"),
    }
    people = [one.model_copy(update={"facts": {"card": "a card"}}) for one in PEOPLE]
    evaluation = EscEval(players, people, EscEvalSettings(rounds=2), seed=1)
    asyncio.run(run_evaluation(evaluation, tmp_path, models))
    page = page_of(tmp_path)
    Balanced(page)
    assert "<b>75.0</b>" in page
    assert '<td>3\u00a0of\u00a03</td><td>0\u00a0of\u00a03</td><td class="words">unreadable 3</td>' in page
    assert "mute: unreadable" in page
    assert "It asks." in html.unescape(transcript(page, 1))
    assert "I would rather not" in transcript(page, 1)
    assert "a card" in transcript(page, 1)
