"""Reliability diagrams of a judge: for each part what it said against what came true, as one SVG file of its own.

A dot is a bin of probabilities (`compeer.reward.metrics`, bins of equal width): across the mean probability, up the
share that came true. On the dashed diagonal the judge means what it says; below it, it is too sure of True. The bars
underneath say how many verdicts each bin holds, since a dot of three verdicts proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from compeer.report.charts import Axis
from compeer.report.wording import count, decimal

PANEL, HEIGHT = 330, 378
LEFT, RIGHT, TOP, SIDE = 62, 20, 50, 230
BARS, TALL = 292, 42
"""Where the room for the bars begins, and how high it is."""
BINS = 10
_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_NAMES = {
    "history": "Step 1, history: True",
    "emotion": "Step 2, emotion: True",
    "strategy": "Step 3, strategy: True",
    "response": "Response: acceptable",
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-size:14px;font-weight:600}.note{fill:#57606a}"
    ".size{font-size:10px;fill:#57606a}.paper{fill:#fff}.grid{stroke:#e3e6ea;fill:none}"
    ".diagonal{stroke:#57606a;stroke-width:1.5;stroke-dasharray:5 4;fill:none}"
    ".curve{stroke:#1f6feb;stroke-width:1.5;fill:none;opacity:.6}.dot{fill:#1f6feb}.bar{fill:#a9c7f5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note,.size{fill:#a8b1ba}.paper{fill:#0d1117}"
    ".grid{stroke:#2b323b}.diagonal{stroke:#a8b1ba}.curve{stroke:#6cb6ff}.dot{fill:#6cb6ff}.bar{fill:#274b75}}"
)


def reliability_svg(calibration: Mapping[str, Mapping[str, Any]]) -> str:
    """The diagrams of all parts that were judged, given what `calibration_metrics` found."""
    panels, said = Markup(""), []
    for number, (part, figures) in enumerate(calibration.items()):
        x, y = number % 2 * PANEL, number // 2 * HEIGHT
        panels += Markup('<g transform="translate({} {})">{}</g>').format(x, y, _panel(part, figures))
        said.append(f"{_name(part)}, {_summary(figures)}")
    summary = escape(f"Reliability diagrams. {'; '.join(said)}.")
    width, height = PANEL * min(2, len(calibration)), HEIGHT * -(-len(calibration) // 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{summary}</title><style>{_STYLE}</style>'
        f'<rect class="paper" width="{width}" height="{height}"/>{panels}</svg>\n'
    )


def _panel(part: str, figures: Mapping[str, Any]) -> Markup:
    across, up = Axis(0, 1, LEFT, LEFT + SIDE), Axis(0, 1, TOP + SIDE, TOP)
    middle = LEFT + SIDE / 2
    body = Markup('<text class="title" x="{}" y="20">{}</text>').format(LEFT, _name(part))
    body += Markup('<text class="note" x="{}" y="38">{}</text>').format(LEFT, _summary(figures))
    for tick in _TICKS:
        body += Markup('<path class="grid" d="M{0} {2}H{1}M{3} {4}V{5}"/>').format(
            LEFT, LEFT + SIDE, up.place(tick), across.place(tick), TOP, TOP + SIDE
        )
        body += Markup('<text x="{}" y="{}" text-anchor="end" dominant-baseline="middle">{}</text>').format(
            LEFT - 7, up.place(tick), decimal(tick, 1)
        )
        body += Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            across.place(tick), BARS + TALL + 18, decimal(tick, 1)
        )
    body += Markup('<path class="diagonal" d="M{} {}L{} {}"/>').format(LEFT, TOP + SIDE, LEFT + SIDE, TOP)
    body += Markup(
        '<text class="note" x="{}" y="{}" text-anchor="middle">probability that the judge gave</text>'
    ).format(middle, BARS + TALL + 36)
    body += Markup(
        '<text class="note" transform="translate(18 {}) rotate(-90)" text-anchor="middle">share that came true</text>'
    ).format(TOP + SIDE / 2)
    body += Markup('<text class="size" x="{}" y="{}" text-anchor="end">verdicts</text>').format(LEFT - 7, BARS + TALL)
    return body + _bins(figures["points_equal_width"], across, up)


def _bins(points: list[Mapping[str, Any]], across: Axis, up: Axis) -> Markup:
    """The dots with a line through them, and below each the bar of its bin."""
    places = [(across.place(point["said"]), up.place(point["came_true"])) for point in points]
    body = Markup('<path class="curve" d="M{}"/>').format("L".join(" ".join(place) for place in places))
    most = max(point["count"] for point in points)
    for point, (x, y) in zip(points, places, strict=True):
        body += Markup('<circle class="dot" cx="{}" cy="{}" r="4.5"><title>{}</title></circle>').format(
            x, y, f"said {decimal(point['said'])}, came true {decimal(point['came_true'])}, {count(point['count'])}"
        )
        place = max(0, math.ceil(round(point["said"] * BINS, 9)) - 1)  # a bin holds its upper edge, not its lower one
        tall = max(1.0, (TALL - 12) * point["count"] / most)
        start, wide = LEFT + place * SIDE / BINS, SIDE / BINS
        body += Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            start + 1, BARS + TALL - tall, wide - 2, tall
        )
        body += Markup('<text class="size" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
            start + wide / 2, BARS + TALL - tall - 3, _short(point["count"])
        )
    return body


def _name(part: str) -> str:
    return _NAMES.get(part, part)


def _summary(figures: Mapping[str, Any]) -> str:
    interval = figures.get("intervals", {}).get("ece_equal_width")
    bounds = f" ({decimal(interval[0], 3)} to {decimal(interval[1], 3)})" if interval else ""
    return f"{count(figures['judged'])} verdicts, ECE {decimal(figures['ece_equal_width'], 3)}{bounds}"


def _short(number: int) -> str:
    """A count that fits over a narrow bar."""
    return str(number) if number < 10_000 else f"{number / 1000:.0f}k"
