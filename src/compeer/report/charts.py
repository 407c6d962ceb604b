"""Small charts as SVG, written by hand: lines over steps, dots with their intervals, and bars.

A chart is a figure with a caption, a drawing that scales with its box, and a legend in HTML, which wraps on a phone.
Colours are CSS variables of the page, so that one drawing serves light and dark; series differ in dashes too, for those
who do not see the colours. A point that is not known leaves a gap. Coordinates are rounded, so that the same figures
give the same bytes everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from compeer.report.wording import count, decimal

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44
MANY_POINTS = 40
"""From here on single points are faint and a running mean is drawn over them."""
COLOURS = 5
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")


@dataclass(frozen=True)
class Series:
    """One line: a name, and a value or None at each step."""

    name: str
    points: Sequence[tuple[float, float | None]]

    @property
    def known(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if y is not None]


@dataclass(frozen=True)
class Dot:
    """One row of a dot chart: a value with its interval, each of which may be unknown."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart: a value for each series, each of which may be unknown."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    """A range of values laid over a range of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> str:
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


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """The mean of the values around each, fewer at the ends."""
    half = width // 2
    windows = (values[max(0, index - half) : index + half + 1] for index in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def line_chart(key: str, title: str, series: Sequence[Series], x_label: str = "step", y_label: str = "") -> Markup:
    """Lines over steps. `key` names the chart within the page; series without a known point are not drawn."""
    drawn = [line for line in series if line.known]
    if not drawn:
        return _figure(title, Markup('<p class="none">No figures.</p>'), Markup(""))
    xs = [x for line in drawn for x, _ in line.known]
    ys = [y for line in drawn for _, y in line.known]
    y_ticks = nice_ticks(min(ys), max(ys))
    x_ticks = _step_ticks(min(xs), max(xs))
    x_axis = Axis(*_padded(min(xs), max(xs)), LEFT, WIDTH - RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    body = _grid(x_axis, y_axis, x_ticks, y_ticks, x_label, y_label)
    body += Markup("").join(_line(line, index, x_axis, y_axis) for index, line in enumerate(drawn))
    summary = "; ".join(
        f"{line.name} from {decimal(line.known[0][1])} at step {line.known[0][0]:g} "
        f"to {decimal(line.known[-1][1])} at step {line.known[-1][0]:g}"
        for line in drawn
    )
    legend = _legend([line.name for line in drawn]) if len(drawn) > 1 else Markup("")
    return _figure(title, _svg(key, f"{title}: {summary}.", HEIGHT, body), legend)


def dot_chart(
    key: str,
    title: str,
    dots: Sequence[Dot],
    ticks: Sequence[float],
    mark: tuple[str, float | None] | None = None,
    words: Callable[[float | None], str] = decimal,
    left: int = 92,
) -> Markup:
    """A dot with its interval for each row, from the first tick to the last; `mark` is a named line to compare with.

    `left` is the room for the rows' names.
    """
    row, top = 30, 12
    bottom = top + row * len(dots)
    axis = Axis(ticks[0], ticks[-1], left, WIDTH - 30)
    body = Markup("")
    for tick in ticks:
        at = axis.place(tick)
        body += Markup('<path class="grid" d="M{0} {1}V{2}"/>').format(at, top, bottom)
        body += Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(at, bottom + 17, words(tick))
    value_of_mark = mark[1] if mark else None
    if value_of_mark is not None:
        body += Markup('<path class="mark" d="M{0} {1}V{2}"/>').format(axis.place(value_of_mark), top - 6, bottom)
    said = []
    for index, dot in enumerate(dots):
        middle = top + row * index + row / 2
        body += Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 12, middle + 4, dot.name)
        body += _dot(dot, axis, middle)
        bounds = "" if dot.low is None or dot.high is None else f", {words(dot.low)} to {words(dot.high)}"
        said.append(f"{dot.name} {words(dot.value)}{bounds}")
    legend = Markup("")
    if mark and value_of_mark is not None:
        swatch = Markup('<svg width="26" height="10" aria-hidden="true"><path class="mark" d="M1 5H25"/></svg>')
        legend = Markup('<ul class="legend"><li>{}{} ({})</li></ul>').format(swatch, mark[0], words(value_of_mark))
    return _figure(title, _svg(key, f"{title}: {'; '.join(said)}.", bottom + 26, body), legend)


def bar_chart(
    key: str,
    title: str,
    bars: Sequence[Bar],
    series: Sequence[str] = ("",),
    words: Callable[[float | None], str] = count,
) -> Markup:
    """A bar from zero for each row and series, with its value beside it. Long names stand above their bars."""
    known = [value for bar in bars for value in bar.values if value is not None]
    if not known:
        return _figure(title, Markup('<p class="none">No figures.</p>'), Markup(""))
    thick, gap, longest = 14, 10, max(len(bar.name) for bar in bars)
    above = longest > 14
    left = 4 if above else 16 + 7 * longest
    axis = Axis(0, max(*known, 1e-9), left, WIDTH - 72)
    body, top, said = Markup(""), 4.0, []
    for bar in bars:
        height = thick * len(bar.values)
        if above:
            body += Markup('<text x="{}" y="{:.1f}">{}</text>').format(left, top + 12, bar.name)
            top += 18
        else:
            body += Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                left - 10, top + height / 2 + 5, bar.name
            )
        for index, value in enumerate(bar.values):
            length = float(axis.place(value or 0)) - left
            body += Markup('<rect class="s{}" x="{}" y="{:.1f}" width="{:.1f}" height="{}" rx="2"/>').format(
                index % COLOURS + 1, left, top + thick * index + 1, max(length, 1), thick - 2
            )
            body += Markup('<text class="label" x="{:.1f}" y="{:.1f}">{}</text>').format(
                left + length + 6, top + thick * index + 12, words(value)
            )
        top += height + gap
        said.append(f"{bar.name} {', '.join(map(words, bar.values))}")
    legend = Markup("")
    if len(series) > 1:
        swatch = (
            '<li><svg width="16" height="10" aria-hidden="true"><rect class="s{}" width="14" height="10"/></svg>{}</li>'
        )
        items = [Markup(swatch).format(index % COLOURS + 1, name) for index, name in enumerate(series)]
        legend = Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))
    return _figure(title, _svg(key, f"{title}: {'; '.join(said)}.", top, body), legend)


def _dot(dot: Dot, axis: Axis, middle: float) -> Markup:
    body = Markup("")
    if dot.low is not None and dot.high is not None:
        body += Markup('<path class="interval" d="M{0} {2:.1f}H{1}"/>').format(
            axis.place(dot.low), axis.place(dot.high), middle
        )
    if dot.value is not None:
        body += Markup('<circle class="s1" cx="{}" cy="{:.1f}" r="5"/>').format(axis.place(dot.value), middle)
    return body


def _line(line: Series, index: int, x_axis: Axis, y_axis: Axis) -> Markup:
    kind = f"s{index % COLOURS + 1}"
    known = line.known
    if len(known) == 1:
        x, y = known[0]
        return Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(kind, x_axis.place(x), y_axis.place(y))
    many = len(known) >= MANY_POINTS
    body = _path(line.points, f"{kind} faint" if many else kind, "" if many else _dash(index), x_axis, y_axis)
    if many:
        means = running_mean([y for _, y in known], max(5, len(known) // 15))
        smooth = [(x, mean) for (x, _), mean in zip(known, means, strict=True)]
        body += _path(smooth, kind, _dash(index), x_axis, y_axis)
    return body


def _path(points: Sequence[tuple[float, float | None]], kind: str, dash: str, x_axis: Axis, y_axis: Axis) -> Markup:
    commands, pen_down = [], False
    for position, (x, y) in enumerate(points):
        if y is None:
            pen_down = False
            continue
        alone = not pen_down and (position + 1 == len(points) or points[position + 1][1] is None)
        commands.append(f"{'L' if pen_down else 'M'}{x_axis.place(x)} {y_axis.place(y)}{'h0.1' if alone else ''}")
        pen_down = True
    return Markup('<path class="line {}" stroke-dasharray="{}" d="{}"/>').format(kind, dash, "".join(commands))


def _grid(
    x_axis: Axis, y_axis: Axis, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str
) -> Markup:
    step = y_ticks[1] - y_ticks[0]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    body = Markup("")
    for tick in y_ticks:
        at = y_axis.place(tick)
        body += Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, at, WIDTH - RIGHT)
        body += Markup('<text x="{}" y="{}" text-anchor="end" dominant-baseline="middle">{}</text>').format(
            LEFT - 7, at, decimal(tick, digits)
        )
    for tick in x_ticks:
        body += Markup('<text x="{}" y="{}" text-anchor="middle">{:g}</text>').format(
            x_axis.place(tick), HEIGHT - BOTTOM + 18, tick
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    body += Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>').format(
        middle, HEIGHT - 6, x_label
    )
    centre = (TOP + HEIGHT - BOTTOM) / 2
    body += Markup(
        '<text class="label" transform="translate(11 {}) rotate(-90)" text-anchor="middle">{}</text>'
    ).format(centre, y_label)
    return body


def _step_ticks(low: float, high: float) -> list[float]:
    """Whole steps within the range, the first and the last among them if there are few."""
    if high - low <= 6:
        return [float(tick) for tick in range(math.ceil(low), math.floor(high) + 1)]
    return [tick for tick in nice_ticks(low, high) if low <= tick <= high and tick == round(tick)]


def _padded(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 1, high + 1)


def _dash(index: int) -> str:
    return _DASHES[index % len(_DASHES)]


def _legend(names: Sequence[str]) -> Markup:
    items = Markup("").join(
        Markup(
            '<li><svg width="26" height="10" aria-hidden="true">'
            '<path class="line s{}" stroke-dasharray="{}" d="M1 5H25"/></svg>{}</li>'
        ).format(index % COLOURS + 1, _dash(index), name)
        for index, name in enumerate(names)
    )
    return Markup('<ul class="legend">{}</ul>').format(items)


def _svg(key: str, summary: str, height: float, body: Markup) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}"><title id="{}">{}</title>{}</svg>'
    ).format(WIDTH, height, f"chart-{key}", f"chart-{key}", summary, body)


def _figure(title: str, drawing: Markup, legend: Markup) -> Markup:
    return Markup("<figure><figcaption>{}</figcaption>{}{}</figure>").format(escape(title), drawing, legend)
