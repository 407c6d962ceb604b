"""The sections of a dataset card that the records themselves fill, as sentences, tables and charts.

A section is the same for the page and for the Markdown file; the latter leaves the charts out, since every figure of a
chart stands in a table too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from compeer.reasoning import EMOTIONS, LABELS, STAGES, STEPS, STRATEGIES
from compeer.report.card_figures import NONE, RecordCounts, quantile
from compeer.report.charts import Bar, bar_chart, nice_ticks
from compeer.report.tables import PREFERENCE_WORDS, Table
from compeer.report.wording import (
    count,
    decimal,
    percent,
)
from compeer.ser.record import PREFERENCES, SPLITS

MOST_ROWS = 12
"""Of values or kinds that may be many; the largest are shown."""
SOURCES = ("human", "llm", "silver", NONE)
_SPLIT_WORDS = {"reward": "trains the judge", "policy": "trains the supporter", "test": "measures only"}


@dataclass(frozen=True)
class Heat:
    """A table of shares, each row summing to one, to be shaded by its values."""

    caption: str
    head: list[str]
    rows: list[tuple[str, list[float]]]


@dataclass(frozen=True)
class Section:
    """A part of the card. On the page, `wide` tables take the whole width, and `folded` ones open on demand."""

    key: str
    title: str
    text: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    charts: list[Markup] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    wide: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)
    heats: list[Heat] = field(default_factory=list)
    code: list[tuple[str, str]] = field(default_factory=list)


def how_many(counts: RecordCounts) -> Section:
    """Records by split and by everything else that tells them apart."""
    by_split: Counter[str] = Counter()
    for (_, split), number in counts.by_split["source"].items():
        by_split[split] += number
    splits = [split for split in SPLITS if by_split[split]]
    rows = [
        [f"{split} ({_SPLIT_WORDS[split]})", count(len(counts.dialogues[split])), count(by_split[split])]
        for split in splits
    ]
    tables = [Table("Dialogues and records by split.", ["split", "dialogues", "records"], rows)]
    by_value = []
    for aspect, found in counts.by_split.items():
        values = counts.of(aspect)
        for value in values[:MOST_ROWS] if values != [NONE] else []:
            numbers = [found[value, split] for split in splits]
            by_value.append([aspect, value, *map(count, numbers), count(sum(numbers))])
    table = Table("Records by what tells them apart, and by split.", ["by", "value", *splits, "all"], by_value)
    return Section("counts", "How many", tables=tables, wide=[table])


def label_balance(counts: RecordCounts) -> Section:
    """True and False by step, source and kind; the four classes of preference."""
    steps = [
        (LABELS[step], source, counts.steps[step, source, True], counts.steps[step, source, False])
        for step in STEPS
        for source in SOURCES
        if counts.steps[step, source, True] or counts.steps[step, source, False]
    ]
    balance = Table(
        "Verdicts on steps, by who gave them.",
        ["step", "source", "True", "False", "share False"],
        [
            [step, source, count(true), count(false), percent(false / (true + false))]
            for step, source, true, false in steps
        ],
    )
    wrong = Table(
        "How many steps of one output are False.",
        ["False steps", "outputs", "share"],
        [[str(n), count(k), percent(k / counts.false_steps.total())] for n, k in sorted(counts.false_steps.items())],
    )
    kinds = Table(
        "What is wrong with steps that are False.",
        ["step", "source", "kind", "verdicts"],
        [
            [LABELS[step], source, kind, count(number)]
            for step in STEPS
            for source in SOURCES
            for kind, number in _kinds(counts, step, source).items()
        ],
    )
    charts = [
        bar_chart(f"kinds-{step}", f"{LABELS[step]}: False verdicts by kind", _bars(_kinds(counts, step)))
        for step in STEPS
        if _kinds(counts, step)
    ]
    first = counts.better_first
    text = (
        ["True and False, and the four classes of preference, are kept apart by who gave them."] if counts.steps else []
    )
    if first.total():
        text.append(
            f"Where one response is better, it is shown first in {percent(first[True] / first.total())} of the pairs."
        )
    return Section(
        "labels",
        "Labels",
        text,
        charts=charts,
        tables=[balance, _preferences(counts), wrong],
        folded=[kinds, _hows(counts)],
    )


def _kinds(counts: RecordCounts, step: str, *sources: str) -> dict[str, int]:
    """False verdicts on a step by kind, the most frequent first; of all sources where none is named."""
    found: Counter[str] = Counter()
    for (part, source, kind), number in counts.kinds.items():
        found[kind] += number if part == step and source in (sources or SOURCES) else 0
    return dict(sorted((+found).items(), key=lambda item: (-item[1], item[0])))


def _bars(numbers: Mapping[str, int]) -> list[Bar]:
    shown = list(numbers.items())[:MOST_ROWS]
    rest = sum(numbers.values()) - sum(number for _, number in shown)
    return [Bar(name, [number]) for name, number in [*shown, *([("all others", rest)] if rest else [])]]


def _preferences(counts: RecordCounts) -> Table:
    sources = [source for source in SOURCES if any(counts.preferences[source, value] for value in PREFERENCES)]
    totals = {source: sum(counts.preferences[source, value] for value in PREFERENCES) for source in sources}
    rows = []
    for value in PREFERENCES:
        numbers = [(counts.preferences[source, value], totals[source]) for source in sources]
        rows.append([PREFERENCE_WORDS[value], *(f"{count(n)} ({percent(n / total)})" for n, total in numbers)])
    return Table("Which response is better, by who says so.", ["class", *sources], rows if sources else [])


def _hows(counts: RecordCounts) -> Table:
    found = sorted(counts.hows.items(), key=lambda item: (item[0][:2], -item[1], item[0]))
    rows = [[what, source, how, value, count(number)] for (what, source, how, value), number in found[:40]]
    return Table(
        "How labels came about; “…” stands for the id of a dialogue; at most 40 are shown.",
        ["label", "source", "how", "value", "labels"],
        rows,
    )


def agreement(told: Mapping[str, Any] | None) -> Section | None:
    """How far annotators agree, from an export's `agreement.json`; None where people have labelled nothing."""
    questions = told.get("questions") if told else None
    if not isinstance(questions, dict) or not questions:
        return None
    rows = []
    for name, found in questions.items():
        alpha = found["alpha"]
        value, low, high = (NONE if alpha[key] is None else decimal(alpha[key], 3) for key in ("value", "low", "high"))
        equal = NONE if found["percent"] is None else percent(found["percent"])
        rows.append([name, count(found["items"]), equal, value, f"{low} to {high}", count(found["without_consensus"])])
    text = (
        "Each item was labelled by two annotators who did not see each other's labels; where they differ a third one "
        "decided. A record has the labels that two of them share."
    )
    head = ["question", "items", "equal", "Krippendorff's α", "95 % interval", "without consensus"]
    return Section("agreement", "Agreement of annotators", [text], tables=[Table("Of first labels.", head, rows)])


def derived_decisions(counts: RecordCounts) -> Section:
    """Which decisions a rule gave."""
    found = sorted(counts.derived.items(), key=lambda item: (-item[1], item[0]))
    rows = [[name, count(number), percent(number / counts.records)] for name, number in found]
    text = (
        "Corpora do not label everything at every moment. A decision that is not the corpus' own label of that moment "
        "comes from a rule that looks at the history only, never at what is said later. Each record names them."
    )
    none = [] if rows else ["In these records no decision is derived."]
    tables = [Table("Decisions that a rule gave.", ["decision", "records", "share of all"], rows)] if rows else []
    return Section("derived", "Decisions by rule", [text, *none], tables=tables)


def lengths(counts: RecordCounts) -> Section:
    """How long histories, steps and responses are."""
    rows = []
    for name, found in sorted(counts.lengths.items(), key=lambda item: _length_order(item[0])):
        mean = sum(length * number for length, number in found.items()) / found.total()
        cells = [count(quantile(found, share)) for share in (0.05, 0.5, 0.95, 1)]
        rows.append([name[0].upper() + name[1:], *cells, decimal(mean, 1)])
    charts = [_histogram("histories", "Histories, in utterances", counts, {"history, in utterances": "histories"})]
    pair = {"better response": "better", "worse response": "worse"}
    if all(counts.lengths.get(name) for name in pair):
        charts.append(_histogram("pairs", "Better and worse responses, in words: share of each", counts, pair))
    else:
        charts.append(_histogram("responses", "Responses, in words", counts, {"response": "responses"}))
    table = Table(
        "Lengths in words (in Chinese, characters) unless said otherwise.",
        ["what", "5th percentile", "median", "95th percentile", "longest", "mean"],
        rows,
    )
    text = "Lengths must not give labels away: better and worse responses, and True and False steps, should be alike."
    return Section("lengths", "Lengths", [text], charts=charts, wide=[table])


def _length_order(name: str) -> tuple[int, str]:
    order = ["history, in utterances", *(f"{step} step, {value}" for step in STEPS for value in (True, False))]
    order += ["response", "better response", "worse response"]
    return order.index(name) if name in order else len(order), name


def _histogram(key: str, title: str, counts: RecordCounts, series: dict[str, str]) -> Markup:
    """Shares of lengths in about ten ranges, the last one open."""
    found = [counts.lengths[name] for name in series]
    reach = max((quantile(lengths, 0.95) or 1) for lengths in found)
    width = max(1, round(nice_ticks(0, reach, about=10)[1]))
    starts = range(0, max(width, reach + 1), width)
    bars = []
    for start in starts:
        last = start == starts[-1]
        inside = [
            sum(n for length, n in one.items() if length >= start and (last or length < start + width)) for one in found
        ]
        name = f"{start}+" if last else str(start) if width == 1 else f"{start}–{start + width - 1}"
        bars.append(Bar(name, [n / one.total() for n, one in zip(inside, found, strict=True)]))
    return bar_chart(key, title, bars, list(series.values()), percent)


def strategies_and_feelings(counts: RecordCounts) -> Section:
    """Strategies by stage, emotions and intensities, of steps that are not False."""
    emotions = [name for name in EMOTIONS if any(counts.emotions[name, level] for level in range(1, 6))]
    emotions.sort(key=lambda name: -sum(counts.emotions[name, level] for level in range(1, 6)))
    rows = []
    for emotion in emotions:
        numbers = [counts.emotions[emotion, level] for level in range(1, 6)]
        rows.append(
            [emotion, *map(count, numbers), count(sum(numbers)), percent(sum(numbers) / counts.emotions.total())]
        )
    heat = Heat(
        "Strategies by stage: shares of each stage's turns, of turns where neither step is False.",
        ["stage", *STRATEGIES],
        [
            (f"{stage} ({count(total)})", [counts.strategies[stage, strategy] / total for strategy in STRATEGIES])
            for stage in STAGES
            if (total := sum(counts.strategies[stage, strategy] for strategy in STRATEGIES))
        ],
    )
    table = Table(
        "Emotions by intensity, of emotion steps that are not False.",
        ["emotion", "1", "2", "3", "4", "5", "all", "share"],
        rows,
    )
    return Section("decisions", "Strategies and feelings", heats=[heat], wide=[table])
