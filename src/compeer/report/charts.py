"""The charts of all reports: lines over steps, dots with intervals, bars, emotion curves and reliability diagrams.

This module works out positions; `charts.jinja` draws. Colours are CSS variables of the page; series differ in dashes
too, for those who do not see the colours. A value that is not known leaves a gap. Coordinates are rounded, so that the
same numbers give the same bytes everywhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup

from compeer.report.page import environment
from compeer.report.wording import count, decimal
from compeer.statistics import Estimate

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44
MANY_POINTS = 40  # from here on single points are faint and a moving mean lies over them
COLOURS = 5
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")
Words = Callable[[float | None], str]
Dots = Sequence[tuple[str, Estimate]]  # rows by name, of which everything else may be unknown
Mark = tuple[str, float | None] | None  # a named value to compare with
Bars = Mapping[str, Sequence[float | None]]  # by row: a value for each series, each of which may be unknown


class Series(NamedTuple):
    """One line: a name, and a value or None at each step."""

    name: str
    points: Sequence[tuple[float, float | None]]

    @property
    def known(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if y is not None]


class Curve(NamedTuple):
    """The emotions of one conversation, from the start on, and whether it was won or lost ('success', 'failure')."""

    emotions: Sequence[float]
    end: str = ""


class Axis(NamedTuple):
    """A range of values laid over a range of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def position(self, value: float) -> str:
        at = self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
        return f"{at:.1f}"


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values that cover the range, in steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        low, high = (low - abs(low) * 0.1, high + abs(high) * 0.1) if low else (0.0, 1.0)
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _plot(macro: str, **content: Any) -> Markup:
    macros = environment().get_template("charts.jinja", globals={"width": WIDTH}).module
    return Markup(str(getattr(macros, macro)(**content)).replace("\n", ""))


def line_chart(key: str, title: str, series: Sequence[Series], y_label: str = "") -> Markup:
    """Lines over steps. `key` names the chart within the page; series without a known point are left out."""
    known = [line for line in series if line.known]
    if not known:
        return _plot("nothing", title=title)
    xs = [x for line in known for x, _ in line.known]
    ys = [y for line in known for _, y in line.known]
    low, high, y_ticks = min(xs), max(xs), nice_ticks(min(ys), max(ys))
    x_axis = Axis(*((low, high) if high > low else (low - 1, high + 1)), LEFT, WIDTH - RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    digits = max(0, -math.floor(math.log10(y_ticks[1] - y_ticks[0]) + 1e-9))
    rows = [(tick, decimal(tick, digits)) for tick in y_ticks]
    columns = [(tick, f"{tick:g}") for tick in _step_ticks(low, high)]
    plot = {"x": x_axis, "y": y_axis, "rows": rows, "columns": columns, "x_label": "step", "y_label": y_label}
    summary = "; ".join(
        f"{line.name} from {decimal(line.known[0][1])} at step {line.known[0][0]:g} "
        f"to {decimal(line.known[-1][1])} at step {line.known[-1][0]:g}"
        for line in known
    )
    lines = [_line(line, index, x_axis, y_axis) for index, line in enumerate(known)]
    return _plot("lines", key=key, title=title, summary=f"{title}: {summary}.", plot=plot, lines=lines)


def _line(line: Series, index: int, x_axis: Axis, y_axis: Axis) -> dict[str, Any]:
    kind, dash, known = f"s{index % COLOURS + 1}", _DASHES[index % len(_DASHES)], line.known
    paths = [(kind, dash, _path(line.points, x_axis, y_axis))]
    if len(known) >= MANY_POINTS:
        half = max(5, len(known) // 15) // 2
        windows = [known[max(0, at - half) : at + half + 1] for at in range(len(known))]
        means = [(x, sum(y for _, y in near) / len(near)) for (x, _), near in zip(known, windows, strict=True)]
        paths = [(f"{kind} faint", "", paths[0][2]), (kind, dash, _path(means, x_axis, y_axis))]
    at = (x_axis.position(known[0][0]), y_axis.position(known[0][1]))
    return {"name": line.name, "kind": kind, "dash": dash, "at": at, "paths": paths if len(known) > 1 else []}


def _path(points: Sequence[tuple[float, float | None]], x_axis: Axis, y_axis: Axis) -> str:
    """A path through the points that are known; one between two gaps is a dot."""
    commands = ""
    for _, stretch in groupby(points, key=lambda point: point[1] is None):
        positions = [f"{x_axis.position(x)} {y_axis.position(y)}" for x, y in stretch if y is not None]
        commands += f"M{'L'.join(positions)}{'h0.1' if len(positions) == 1 else ''}" if positions else ""
    return commands


def _step_ticks(low: float, high: float) -> list[float]:
    """Whole steps within the range, the first and the last among them if there are few."""
    if high - low <= 6:
        return [float(tick) for tick in range(math.ceil(low), math.floor(high) + 1)]
    return [tick for tick in nice_ticks(low, high) if low <= tick <= high and tick == round(tick)]


def dot_chart(
    key: str, title: str, dots: Dots, ticks: Sequence[float], mark: Mark = None, words: Words = decimal, left: int = 92
) -> Markup:
    """Dots with intervals; `mark` becomes a line, `left` the room for the rows' names."""
    axis = Axis(ticks[0], ticks[-1], left, WIDTH - 30)
    summary = []
    for name, dot in dots:
        bounds = "" if dot.low is None or dot.high is None else f", {words(dot.low)} to {words(dot.high)}"
        summary.append(f"{name} {words(dot.value)}{bounds}")
    mark = mark if mark and mark[1] is not None else None
    label = f"{title}: {'; '.join(summary)}."
    return _plot("dots", key=key, title=title, summary=label, axis=axis, ticks=ticks, dots=dots, mark=mark, words=words)


def bar_chart(key: str, title: str, bars: Bars, series: Sequence[str] = ("",), words: Words = count) -> Markup:
    """A bar from zero for each row and series, with its value beside it. Long names stand above their bars."""
    known = [value for values in bars.values() for value in values if value is not None]
    if not known:
        return _plot("nothing", title=title)
    thick, gap, longest = 14, 10, max(map(len, bars))
    above = longest > 14
    left = 4 if above else 16 + 7 * longest
    axis = Axis(0, max(*known, 1e-9), left, WIDTH - 72)
    rows, top = [], 4.0
    for name, values in bars.items():
        height = thick * len(values)
        lengths = [float(axis.position(value or 0)) - left for value in values]
        rows.append((name, values, top + 12 if above else top + height / 2 + 5, top + (18 if above else 0), lengths))
        top += height + gap + (18 if above else 0)
    summary = "; ".join(f"{name} {', '.join(map(words, values))}" for name, values in bars.items())
    common = {"key": key, "title": title, "summary": f"{title}: {summary}.", "series": series, "words": words}
    return _plot("bars", **common, left=left, above=above, height=top, thick=thick, rows=rows)


def mean_emotions(curves: Sequence[Curve]) -> list[float]:
    """The mean at each reply; a conversation that has ended keeps its last emotion, or lost ones would raise it."""
    longest = max((len(curve.emotions) for curve in curves), default=0)
    return [
        sum(curve.emotions[min(reply, len(curve.emotions) - 1)] for curve in curves) / len(curves)
        for reply in range(longest)
    ]


def emotion_chart(curves: Sequence[Curve]) -> Markup:
    """A thin curve for each conversation, their mean in bold, and a mark where one was won or lost."""
    title = "Emotion after each reply (higher is better); a conversation that has ended keeps its last in the mean"
    known = [curve for curve in curves if curve.emotions]
    if not known:
        return _plot("nothing", title=title)
    means = mean_emotions(known)
    x_axis, y_axis = Axis(0, max(1, len(means) - 1), LEFT, WIDTH - RIGHT), Axis(0, 100, HEIGHT + 40 - BOTTOM, TOP)
    rows = [(tick, tick) for tick in range(0, 101, 20)]
    columns = [(reply, reply) for reply in range(0, len(means), 1 if len(means) <= 12 else 5)]
    plot = {"x": x_axis, "y": y_axis, "rows": rows, "columns": columns, "x_label": "replies", "y_label": "emotion"}
    ends = {end: sum(curve.end == end for curve in known) for end in ("success", "failure")}
    summary = (
        f"{len(known)} conversations; the mean goes from {decimal(means[0], 1)} to {decimal(means[-1], 1)}; "
        f"successes {ends['success']}, failures {ends['failure']}."
    )
    lines = [_curve(curve, x_axis, y_axis) for curve in known]
    mean = _path(list(enumerate(means)), x_axis, y_axis)
    opacity = max(0.15, min(0.6, 12 / len(known)))  # many curves must not hide their mean
    common = {"title": title, "summary": summary, "plot": plot, "ends": ends}
    return _plot("emotions", **common, curves=lines, mean=mean, opacity=opacity)


def spark(curve: Curve) -> Markup:
    x_axis, y_axis = Axis(0, max(1, len(curve.emotions) - 1), 6, 184), Axis(0, 100, 43, 5)
    emotions = ", ".join(f"{emotion:g}" for emotion in curve.emotions)
    rows = [y_axis.position(tick) for tick in (0, 50, 100)]
    return _plot("spark", emotions=emotions, curve=_curve(curve, x_axis, y_axis), rows=rows)


def _curve(curve: Curve, x_axis: Axis, y_axis: Axis) -> dict[str, Any]:
    at = {"x": float(x_axis.position(len(curve.emotions) - 1)), "y": float(y_axis.position(curve.emotions[-1]))}
    return {"kind": curve.end, "commands": _path(list(enumerate(curve.emotions)), x_axis, y_axis), **at}


def reliability_svg(calibration: Mapping[str, Mapping[str, Any]]) -> str:
    """Reliability diagrams of the parts that were judged, an SVG file, given what `calibration_metrics` found.

    A dot is a bin of equal width: across the mean probability, up the share that came true; bars underneath count its
    verdicts. On the diagonal the judge means what it says; below it, it is too sure of True.
    """
    axes = {"across": Axis(0, 1, 62, 292), "up": Axis(0, 1, 280, 50)}
    return f"{_plot('reliability', calibration=calibration, **axes)}\n"
