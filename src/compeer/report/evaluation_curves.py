"""Emotion over a conversation, drawn: a thin curve for each, their mean in bold, a mark where one was won or lost.

A conversation that has ended keeps its last emotion in the mean, so that the mean ends at the mean final emotion. If
only those still running were counted, the mean would rise wherever lost conversations drop out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from compeer.report.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Axis
from compeer.report.wording import decimal

HEIGHT = 270
SCALE = (0, 20, 40, 60, 80, 100)


@dataclass(frozen=True)
class Curve:
    """The emotions of one conversation, from the start on, and whether it was won or lost ('success', 'failure')."""

    emotions: Sequence[float]
    end: str = ""


def mean_emotions(curves: Sequence[Curve]) -> list[float]:
    """The mean at each reply over all conversations; one that has ended keeps its last emotion."""
    longest = max((len(curve.emotions) for curve in curves), default=0)
    return [
        sum(curve.emotions[min(reply, len(curve.emotions) - 1)] for curve in curves) / len(curves)
        for reply in range(longest)
    ]


def emotion_chart(curves: Sequence[Curve]) -> Markup:
    """All curves and their mean, with a legend."""
    title = "Emotion after each reply (higher is better); a conversation that has ended keeps its last in the mean"
    known = [curve for curve in curves if curve.emotions]
    if not known:
        return Markup('<figure><figcaption>{}</figcaption><p class="none">No figures.</p></figure>').format(title)
    means = mean_emotions(known)
    x_axis = Axis(0, max(1, len(means) - 1), LEFT, WIDTH - RIGHT)
    y_axis = Axis(SCALE[0], SCALE[-1], HEIGHT - BOTTOM, TOP)
    faint = max(0.15, min(0.6, 12 / len(known)))  # many curves must not hide their mean
    body = _grid(x_axis, y_axis, len(means))
    body += Markup('<g stroke-opacity="{:.2f}">').format(faint)
    body += Markup("").join(
        Markup('<path class="curve {}" d="{}"/>').format(curve.end, _points(curve.emotions, x_axis, y_axis))
        for curve in known
    )
    body += Markup('</g><path class="mean" d="{}"/>').format(_points(means, x_axis, y_axis))
    body += Markup("").join(
        _end_mark(curve.end, float(x_axis.place(len(curve.emotions) - 1)), float(y_axis.place(curve.emotions[-1])))
        for curve in known
    )
    ends = {end: sum(curve.end == end for curve in known) for end in ("success", "failure")}
    said = (
        f"{len(known)} conversations; the mean goes from {decimal(means[0], 1)} to {decimal(means[-1], 1)}; "
        f"successes {ends['success']}, failures {ends['failure']}."
    )
    return Markup(
        "<figure><figcaption>{}</figcaption>"
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>{}</figure>'
    ).format(title, WIDTH, HEIGHT, said, body, _legend(ends))


def spark(emotions: Sequence[float], end: str) -> Markup:
    """One conversation's curve, small enough to stand beside its name."""
    width, height = 192, 48
    x_axis, y_axis = Axis(0, max(1, len(emotions) - 1), 6, width - 8), Axis(0, 100, height - 5, 5)
    at = float(x_axis.place(len(emotions) - 1)), float(y_axis.place(emotions[-1]))
    mark = _end_mark(end, *at) or Markup('<circle class="s1" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(*at)
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" role="img" aria-label="Emotion: {2}">'
        '<path class="grid" d="M6 {3}H{4}M6 {5}H{4}M6 {6}H{4}"/>'
        '<path class="curve {7}" stroke-width="2" d="{8}"/>{9}</svg>'
    ).format(
        width,
        height,
        ", ".join(f"{emotion:g}" for emotion in emotions),
        *(y_axis.place(0), width - 8, y_axis.place(50), y_axis.place(100)),
        end,
        _points(emotions, x_axis, y_axis),
        mark,
    )


def _points(values: Sequence[float], x_axis: Axis, y_axis: Axis) -> str:
    places = [f"{x_axis.place(step)} {y_axis.place(value)}" for step, value in enumerate(values)]
    return f"M{'L'.join(places)}{'h0.1' if len(places) == 1 else ''}"


def _end_mark(end: str, x: float, y: float) -> Markup:
    """A triangle that points up where a conversation was won, down where it was lost; nothing else is marked."""
    if end not in ("success", "failure"):
        return Markup("")
    up = 1 if end == "success" else -1
    return Markup('<path class="end {}" d="M{:.1f} {:.1f}l5 {}h-10z"/>').format(end, x, y - 5 * up, 9 * up)


def _grid(x_axis: Axis, y_axis: Axis, replies: int) -> Markup:
    body = Markup("")
    for tick in SCALE:
        body += Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, y_axis.place(tick), WIDTH - RIGHT)
        body += Markup('<text x="{}" y="{}" text-anchor="end" dominant-baseline="middle">{}</text>').format(
            LEFT - 7, y_axis.place(tick), tick
        )
    for reply in range(0, replies, 1 if replies <= 12 else 5):
        body += Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            x_axis.place(reply), HEIGHT - BOTTOM + 18, reply
        )
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    body += Markup('<text class="label" x="{}" y="{}" text-anchor="middle">replies</text>').format(middle, HEIGHT - 6)
    return body + Markup(
        '<text class="label" transform="translate(11 {}) rotate(-90)" text-anchor="middle">emotion</text>'
    ).format(centre)


def _legend(ends: dict[str, int]) -> Markup:
    swatch = '<li><svg width="26" height="12" aria-hidden="true">{}</svg>{}</li>'
    items = [
        Markup(swatch).format(Markup('<path class="mean" d="M2 6H24"/>'), "mean"),
        Markup(swatch).format(Markup('<path class="curve" d="M2 6H24"/>'), "one conversation"),
        Markup(swatch).format(_end_mark("success", 13, 6), f"success ({ends['success']})"),
        Markup(swatch).format(_end_mark("failure", 13, 6), f"failure ({ends['failure']})"),
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))
