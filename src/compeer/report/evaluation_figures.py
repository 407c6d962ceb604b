"""The figures of an evaluation for its page: headlines, charts, tables, what failed, what it cost, and what to mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from compeer.evaluate.esc_eval import DIMENSIONS
from compeer.report.charts import Bar, Dot, bar_chart, dot_chart
from compeer.report.evaluation_curves import Curve, emotion_chart
from compeer.report.evaluation_parts import Transcript
from compeer.report.limits import Caution
from compeer.report.reading import as_number, find
from compeer.report.tables import Table
from compeer.report.wording import (
    DASH,
    count,
    decimal,
    interval,
    language_name,
    percent,
    percent_interval,
    plural,
    with_interval,
)
from compeer.statistics import mean

FEW_SCENARIOS = 20
"""Below this many, an interval drawn from the scenarios is itself uncertain."""
GOOD_COVERAGE = 0.95
MOSTLY_ALIKE = 0.8
"""From this share on a judge's seven scores are one."""
HUNDRED = (0.0, 25.0, 50.0, 75.0, 100.0)


@dataclass(frozen=True)
class Tile:
    """A figure to be seen first: its name, its value, and lines below it."""

    name: str
    value: str
    lines: list[str] = field(default_factory=list)


def tiles_of(figures: Mapping[str, Any]) -> list[Tile]:
    """What is to be seen first."""
    found = _dict(figures.get("figures"))
    if figures.get("protocol") == "sage":
        return [
            Tile("Final emotion (0 to 100)", *_valued(found.get("emotion"), 2)),
            _outcome_tile("Successes", found.get("success")),
            _outcome_tile("Failures", found.get("failure")),
            Tile("Replies until the end", *_valued(found.get("replies"))),
        ]
    average = Tile("Average (0 to 100)", *_valued(found.get("average"), scored="scored in all seven"))
    overall = Tile("Overall (0 to 100)", *_valued(find(found, "dimensions", "overall")))
    return [average, overall, *_judge_tiles(found)]


def _outcome_tile(name: str, figure: Any) -> Tile:
    """How many conversations ended so, and the share of them."""
    share, low, high = (as_number(find(figure, key)) for key in ("score", "low", "high"))
    lines = [with_interval(percent(share), percent_interval(low, high)), _scored(figure)]
    return Tile(name, count(as_number(find(figure, "count"))), lines)


def _judge_tiles(found: Mapping[str, Any]) -> list[Tile]:
    by_judge = _dict(found.get("by_judge"))
    if len(by_judge) < 2:
        return []
    return [
        Tile(
            f"Average by {name}",
            decimal(as_number(find(one, "average")), 1),
            [_of(as_number(find(one, "scored")), as_number(find(one, "asked"))) + " scores given"],
        )
        for name, one in by_judge.items()
    ]


def _valued(figure: Any, digits: int = 1, scored: str = "scored") -> tuple[str, list[str]]:
    """A figure's value, then its interval and what it rests on."""
    value, low, high = (as_number(find(figure, key)) for key in ("score", "low", "high"))
    return decimal(value, digits), [line for line in (interval(low, high, digits), _scored(figure, scored)) if line]


def _scored(figure: Any, scored: str = "scored") -> str:
    return _of(as_number(find(figure, "scored")), as_number(find(figure, "items"))) + f" {scored}"


def _of(part: float | None, whole: float | None) -> str:
    return f"{count(part)}\u00a0of\u00a0{count(whole)}"


# --- charts -----------------------------------------------------------------------------------------------------------


def charts_of(figures: Mapping[str, Any], transcripts: Sequence[Transcript]) -> list[Markup]:
    """Emotion curves, or a dot with its interval for each dimension; beside them how single conversations came out."""
    sage = figures.get("protocol") == "sage"
    first = _emotions(transcripts) if sage else _dimensions(_dict(figures.get("figures")))
    scores = [one.score for one in transcripts if one.score is not None]
    title = f"Conversations by {'final emotion' if sage else 'mean score'} (higher is better)"
    second = bar_chart("spread", title, [Bar(name, [times]) for name, times in bands(scores).items()] if scores else [])
    endings = Counter("failed" if one.failed else one.ending for one in transcripts)
    if len(endings) > 1:
        bars = [Bar(name, [times]) for name, times in endings.most_common()]
        second += bar_chart("endings", "How the conversations ended", bars)
    return [first, Markup('<div class="stack">{}</div>').format(second)]


def _emotions(transcripts: Sequence[Transcript]) -> Markup:
    return emotion_chart([Curve(one.emotions, one.kind) for one in transcripts if not one.failed])


def _dimensions(found: Mapping[str, Any]) -> Markup:
    rows = [(name.capitalize(), find(found, "dimensions", name)) for name in DIMENSIONS]
    dots = [
        Dot(name, *(as_number(find(figure, key)) for key in ("score", "low", "high")))
        for name, figure in [*rows, ("Average", found.get("average"))]
    ]
    title = "Score by dimension, with 95 % intervals (higher is better)"
    return dot_chart("dimensions", title, dots, HUNDRED, words=lambda value: decimal(value, 0))


def bands(scores: Sequence[float]) -> dict[str, int]:
    """How many scores lie in each fifth of the scale from 0 to 100; a border belongs to the fifth above it."""
    places = Counter(min(int(score // 20), 4) for score in scores)
    return {f"{20 * place} to {20 * place + 20}": places[place] for place in range(5)}


# --- tables -----------------------------------------------------------------------------------------------------------


def figure_tables(figures: Mapping[str, Any], transcripts: Sequence[Transcript]) -> list[Table]:
    """Each dimension's figure and what it rests on, by judge; SAGE has neither dimensions nor judges."""
    if figures.get("protocol") == "sage":
        return []
    tables = [_dimension_table(_dict(figures.get("figures"))), _coverage_table(transcripts)]
    return [table for table in tables if table.rows]


def part_tables(figures: Mapping[str, Any], transcripts: Sequence[Transcript]) -> list[Table]:
    """The main figure by repeat and by language, where there are several."""
    tables = [_repeat_table(_dict(figures.get("figures"))), _language_table(transcripts)]
    return [table for table in tables if table.rows]


def _with_bounds(figure: Any) -> str:
    value, low, high = (as_number(find(figure, key)) for key in ("score", "low", "high"))
    return with_interval(decimal(value, 1), interval(low, high, 1))


def _dimension_table(found: Mapping[str, Any]) -> Table:
    by_judge = _dict(found.get("by_judge"))
    judges = list(by_judge) if len(by_judge) > 1 else []
    rows = [
        [
            name.capitalize(),
            _with_bounds(find(found, "dimensions", name)),
            *(decimal(as_number(find(by_judge, judge, "dimensions", name)), 1) for judge in judges),
        ]
        for name in DIMENSIONS
    ]
    average = [_with_bounds(found.get("average"))]
    average += [decimal(as_number(find(by_judge, judge, "average")), 1) for judge in judges]
    caption = "Score from 0 to 100, 100·Σ/(4N), with 95 % intervals. Higher is better."
    return Table(caption, ["dimension", "all judges" if judges else "score", *judges], [*rows, ["Average", *average]])


def _coverage_table(transcripts: Sequence[Transcript]) -> Table:
    asked = [one for one in transcripts if one.by_judge]
    judges = list(dict.fromkeys(judge for one in asked for judge in one.by_judge))
    rows = []
    for name in DIMENSIONS:
        cells, reasons = [], Counter[str]()
        for judge in judges:
            of_judge = [one for one in asked if judge in one.by_judge]
            scored = sum(as_number(find(one.by_judge, judge, name)) is not None for one in of_judge)
            cells.append(_of(scored, len(transcripts)))
            reasons.update(str(why) for one in of_judge if (why := find(one.unscored, judge, name)))
        rows.append([name.capitalize(), *cells, _counted(reasons)])
    caption = "Conversations scored, by dimension and judge. What is unscored is in no figure."
    return Table(caption, ["dimension", *judges, "unscored, why"], rows if judges else [])


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{why} {times}" for why, times in reasons.items()) or DASH


def _repeat_table(found: Mapping[str, Any]) -> Table:
    by_repeat = _dict(found.get("by_repeat"))
    rows = [[f"repeat {name}", decimal(as_number(find(one, "average")), 1)] for name, one in by_repeat.items()]
    rows.append(["standard deviation", decimal(as_number(found.get("repeat_deviation")), 1)])
    caption = "The main figure, repeat by repeat: how much it moves with the same scenarios."
    return Table(caption, ["repeat", "figure"], rows if len(by_repeat) > 1 else [])


def _language_table(transcripts: Sequence[Transcript]) -> Table:
    languages = sorted({one.language for one in transcripts})
    rows = []
    for language in languages if len(languages) > 1 else []:
        own = [one for one in transcripts if one.language == language]
        scores = [one.score for one in own if one.score is not None]
        rows.append([language_name(language), decimal(mean(scores), 1), _of(len(scores), len(own))])
    return Table("Mean of the conversations by language. Higher is better.", ["language", "mean", "scored"], rows)


# --- what failed, and what it cost ------------------------------------------------------------------------------------


def failure_tables(figures: Mapping[str, Any]) -> list[Table]:
    """What failed by reason: models' failures and those of the infrastructure, each by itself."""
    titles = {
        "model": "By a model: an answer that could not be used. It is a result.",
        "infrastructure": "By infrastructure: a model that could not be asked. Another try may end otherwise.",
    }
    found = _dict(figures.get("failures"))
    return [
        Table(titles.get(kind, kind), ["reason", "times"], rows)
        for kind, reasons in found.items()
        if (rows := [[why, count(as_number(times))] for why, times in _dict(reasons).items()])
    ]


def cost_table(figures: Mapping[str, Any]) -> Table | None:
    """Calls and tokens by role, with the time and the money where they are known."""
    cost = _dict(figures.get("cost"))
    roles = _dict(cost.get("roles"))
    keys = list(dict.fromkeys(key for role in roles.values() for key in _dict(role)))
    if not roles:
        return None
    rows = [[str(name), *(count(as_number(find(role, key))) for key in keys)] for name, role in roles.items()]
    seconds, price = as_number(cost.get("seconds")), as_number(cost.get("price"))
    told = ["Calls and tokens by role."]
    told += [f"{count(seconds)} seconds in all."] if seconds is not None else []
    told += [f"{decimal(price)} {cost.get('currency') or ''} in all."] if price is not None else []
    return Table(" ".join(told), ["role", *(key.replace("_", " ") for key in keys)], rows)


# --- what to mind -----------------------------------------------------------------------------------------------------


def warnings_of(figures: Mapping[str, Any]) -> list[Caution]:
    """What these figures call for."""
    found, warnings = _dict(figures.get("figures")), []
    scenarios = as_number(figures.get("scenarios"))
    if scenarios is not None and scenarios < FEW_SCENARIOS:
        title = f"Few scenarios: {count(scenarios)}."
        warnings.append(Caution(title, "The intervals are wide, and themselves uncertain; other scenarios may differ."))
    sage = figures.get("protocol") == "sage"
    main = found.get("emotion" if sage else "average")
    scored, items = as_number(find(main, "scored")), as_number(find(main, "items"))
    if scored is not None and items and scored < GOOD_COVERAGE * items:
        whole = "conversations" if sage else "conversations in all seven dimensions"
        title = f"Not all was scored: {_of(scored, items)} {whole}."
        warnings.append(Caution(title, "What is missing may be what went worst; the figures do not hold it."))
    for judge, share in _dict(found.get("all_alike")).items():
        if (as_number(share) or 0) >= MOSTLY_ALIKE:
            title = f"{judge} gave {percent(as_number(share))} of the conversations one score in all seven dimensions."
            warnings.append(Caution(title, "It does not tell them apart; do not read the seven as seven findings."))
    unmoved = as_number(found.get("unmoved"))
    if unmoved and scored and unmoved >= MOSTLY_ALIKE * scored:
        title = f"In {_of(unmoved, scored)} conversations no reply changed the seeker's emotion."
        warnings.append(Caution(title, "Its model does not tell replies apart; the final emotion is where it began."))
    broken = sum(as_number(times) or 0 for times in _dict(find(figures, "failures", "infrastructure")).values())
    if broken:
        title = f"Infrastructure failed {plural(broken, 'time', 'times')}."
        warnings.append(Caution(title, "Call the same command again with the same folder: only that is tried again."))
    return warnings


def limits_of(figures: Mapping[str, Any]) -> list[Caution]:
    """What holds whatever the figures are."""
    judge = (
        Caution("The seeker judges itself.", "One model plays the person and says how the person feels.")
        if figures.get("protocol") == "sage"
        else Caution("A model's opinion is not a person's.", "Judges have tastes; another judge gives other scores.")
    )
    return [
        Caution("The seekers are simulated.", "Whether a supporter helps people was not asked."),
        judge,
        Caution(
            "Intervals cover the choice of scenarios.",
            "They do not cover another seeker, judge or seed. Compare models on the same scenarios, seeker and judges.",
        ),
    ]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
