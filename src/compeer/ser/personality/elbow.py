"""How many clusters there are, by the elbow of the squared error, and a picture of it.

Any convex curve has a point farthest below the chord from its first to its last value, even the curve of a cloud
without clusters (over K = 1 … 12 it lies at 3 to 6, mostly at 4 or 5). So that point alone proves nothing. Without
clusters the squared error falls about as a power of K, a straight line on logarithmic axes; at a true elbow it falls
steeply up to K and hardly any more after it. `find_elbow` takes such a kink where there is one, and otherwise the point
farthest from the chord, and says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

KINK = 3.0
"""How much steeper the error must fall just before K than after it, on logarithmic axes, for a clear elbow. Uniform and
Gaussian clouds of 2 to 384 dimensions gave 0.9 to 1.6 at most, blobs that lie apart 5 and more."""


@dataclass(frozen=True)
class Elbow:
    """The number of clusters chosen, whether the curve really bends there, and both figures that say so."""

    clusters: int
    clear: bool
    kink: float
    """The fall of the error just before K, as a multiple of the fall after it (log-log slopes)."""
    distance: float
    """How far the normalised curve lies below its chord at K, 0 to 1."""

    @property
    def said(self) -> str:
        if self.clusters == 1:
            return "One cluster: the error does not fall in any way that would speak for more."
        if self.clear:
            return f"A clear elbow at {self.clusters} clusters: after it the error hardly falls any more."
        return (
            f"No clear elbow: the error falls evenly, as it does for a cloud without clusters. {self.clusters} is only "
            "where the curve lies farthest below its chord."
        )


def find_elbow(errors: Sequence[float]) -> Elbow:
    """The elbow of the squared errors for K = 1, 2, …"""
    curve = np.minimum.accumulate(np.asarray(errors, dtype=float))  # a worse local optimum for a larger K is no rise
    most = len(curve)
    if most < 3 or curve[0] <= 0 or curve[-1] >= curve[0]:
        return Elbow(1, clear=False, kink=0.0, distance=0.0)
    distances = 1 - np.arange(most) / (most - 1) - (curve - curve[-1]) / (curve[0] - curve[-1])
    logs = np.log(np.maximum(curve, curve[0] * 1e-9))
    kinks = np.zeros(most)
    for index in range(1, most - 2):  # with a single step after it, one cannot tell a bend from chance
        clusters = index + 1
        before = (logs[index - 1] - logs[index]) / math.log(clusters / (clusters - 1))
        after = (logs[index] - logs[-1]) / math.log(most / clusters)
        kinks[index] = min(before / max(after, 1e-9), 1e6)
    sharpest, farthest = int(np.argmax(kinks)), int(np.argmax(np.round(distances, 12)))
    clear = bool(kinks[sharpest] >= KINK)
    chosen = sharpest if clear else farthest
    return Elbow(chosen + 1, clear, round(float(kinks[chosen]), 3), round(max(0.0, float(distances[chosen])), 3))


# --- the picture ------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 30, 42
_LIGHT = ("#1f6feb", "#b35900", "#1a7f37", "#8250df", "#bf3989", "#57606a")
_DARK = ("#6cb6ff", "#f0a050", "#57c878", "#c9a6ff", "#ff8fc8", "#a8b1ba")
_SHAPES = ("circle", "square", "triangle", "cross")


@dataclass(frozen=True)
class Panel:
    """What is drawn of one participant: the curve, the elbow, points on two principal axes and their clusters."""

    errors: Sequence[float]
    elbow: Elbow
    points: npt.NDArray[np.float64]
    clusters: Sequence[int]


def elbow_svg(panels: Mapping[str, Panel]) -> str:
    """A self-contained picture: for each participant the curve with the elbow, and beside it the clusters."""
    style = [
        "text{font:12px system-ui,sans-serif;fill:#24292f}.paper{fill:#fff}.axis{stroke:#8c959f;fill:none}",
        ".chord{stroke:#8c959f;stroke-dasharray:3 4;fill:none}.curve{stroke:#1f6feb;stroke-width:2;fill:none}",
        ".dot{fill:#1f6feb}.elbow{stroke:#b35900;fill:none;stroke-width:2}.title{font-weight:600}",
        *(f".c{index}{{fill:{colour}}}" for index, colour in enumerate(_LIGHT)),
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.curve{stroke:#6cb6ff}.dot{fill:#6cb6ff}",
        ".elbow{stroke:#f0a050}",
        *(f".c{index}{{fill:{colour}}}" for index, colour in enumerate(_DARK)),
        "}",
    ]
    body = []
    for row, (name, panel) in enumerate(panels.items()):
        body.append(f'<g transform="translate(0 {row * HEIGHT})">{_curve(name, panel)}</g>')
        body.append(f'<g transform="translate({WIDTH} {row * HEIGHT})">{_scatter(name, panel)}</g>')
    summary = " ".join(f"{name}: {panel.elbow.said}" for name, panel in panels.items())
    width, height = 2 * WIDTH, HEIGHT * max(1, len(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(summary)}</title><style>{''.join(style)}</style>"
        f'<rect class="paper" width="{width}" height="{height}"/>{"".join(body)}</svg>'
    )


def _curve(name: str, panel: Panel) -> str:
    most, elbow = len(panel.errors), panel.elbow
    shares = [error / (panel.errors[0] or 1.0) for error in panel.errors]
    low = min(0.9, math.floor(10 * min(shares)) / 10)

    def at(clusters: int, share: float) -> tuple[str, str]:
        x = LEFT + (clusters - 1) / max(1, most - 1) * (WIDTH - LEFT - RIGHT)
        y = TOP + (1 - share) / (1 - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f}", f"{y:.1f}"

    places = [at(clusters, share) for clusters, share in enumerate(shares, 1)]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    drawn = [
        f'<text class="title" x="{LEFT}" y="18">{escape(name.capitalize())}s: squared error by clusters</text>',
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>',
        f'<path class="chord" d="M{" ".join(places[0])}L{" ".join(places[-1])}"/>',
        f'<path class="curve" d="M{"L".join(" ".join(place) for place in places)}"/>',
    ]
    for clusters, (x, y) in enumerate(places, 1):
        drawn.append(f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>')
        drawn.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{clusters}</text>')
    for share in (low, (low + 1) / 2, 1.0):
        y = at(1, share)[1]
        drawn.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" dominant-baseline="middle">{share:.0%}</text>')
    x, y = places[elbow.clusters - 1]
    verdict = "clear elbow" if elbow.clear else "no clear elbow"
    drawn.append(f'<circle class="elbow" cx="{x}" cy="{y}" r="8"/><path class="elbow" d="M{x} {bottom}v-10"/>')
    drawn.append(
        f'<text x="{right}" y="{TOP + 12}" text-anchor="end">{elbow.clusters} chosen ({verdict})</text>'
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">number of clusters</text>'
    )
    return "".join(drawn)


def _scatter(name: str, panel: Panel) -> str:
    drawn = [f'<text class="title" x="{LEFT}" y="18">{escape(name.capitalize())}s on two principal axes</text>']
    low, high = panel.points.min(axis=0), panel.points.max(axis=0)
    spread = np.where(high > low, high - low, 1.0)
    for point, cluster in zip((panel.points - low) / spread, panel.clusters, strict=True):
        x = LEFT + float(point[0]) * (WIDTH - LEFT - RIGHT)
        y = TOP + (1 - float(point[1])) * (HEIGHT - TOP - BOTTOM)
        drawn.append(_mark(cluster, x, y, 3))
    for place, cluster in enumerate(sorted(set(panel.clusters))):
        x, y = LEFT + place % 12 * 26, HEIGHT - 14
        drawn.append(f'{_mark(cluster, x, y, 4)}<text x="{x + 7}" y="{y + 4}">{cluster}</text>')
    return "".join(drawn)


def _mark(cluster: int, x: float, y: float, size: float) -> str:
    """A mark whose colour and shape together tell up to twelve clusters apart, also for those who see no colours."""
    kind, shape = f"c{cluster % len(_LIGHT)}", _SHAPES[cluster % len(_SHAPES)]
    if shape == "circle":
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    outline = {
        "square": f"M{x - size:.1f} {y - size:.1f}h{2 * size}v{2 * size}h-{2 * size}z",
        "triangle": f"M{x:.1f} {y - size:.1f}l{size} {2 * size}h-{2 * size}z",
        "cross": f"M{x - size:.1f} {y - 1:.1f}h{2 * size}v2h-{2 * size}zM{x - 1:.1f} {y - size:.1f}h2v{2 * size}h-2z",
    }[shape]
    return f'<path class="{kind}" d="{outline}"/>'
