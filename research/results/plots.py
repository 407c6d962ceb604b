"""The report's charts as SVG files of their own, for a Markdown page, which cannot bring a style sheet along.

The drawing is that of `compeer.report.charts`; here it gets its colours, a light ground that any page can show, and its
legend, which the report writes in HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from compeer.report.charts import WIDTH, Bars, Dots, Series, bar_chart, dot_chart, line_chart, nice_ticks
from compeer.report.wording import decimal
from compeer.statistics import Estimate

_CHART = re.compile(r'<svg class="chart" viewBox="0 0 \d+ ([\d.]+)"(.*?)>(.*?)</svg>', re.DOTALL)
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#22262b}.label{fill:#59616b}.grid{stroke:#e6e3dc;fill:none}"
    ".mark{stroke:#59616b;stroke-width:1.6;stroke-dasharray:4 3;fill:none}"
    ".interval{stroke:#0b6e99;stroke-width:2.5;stroke-linecap:round;opacity:.55;fill:none}"
    "rect.s1,circle.s1{fill:#0b6e99}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".line.s1{stroke:#0b6e99}.line.s2{stroke:#b8470b}.line.s3{stroke:#2f7d32}.line.s4{stroke:#8a3fa0}.line.s5{stroke:#7a5c00}"
)
_KEY = re.compile(r"""<li><svg[^>]*>(<path class="line [^>]*/>)</svg>(.*?)</li>""")


def dot(name: str, value: float | None, low: float | None = None, high: float | None = None) -> tuple[str, Estimate]:
    """A row of a chart of dots."""
    return name, Estimate(value=value, low=low, high=high)


def dots(key: str, title: str, rows: Dots, mark: tuple[str, float] | None = None, digits: int = 1) -> str:
    """A dot with its interval for each row; `mark` is a dashed line to compare with, named in the legend."""
    known = [value for _, one in rows for value in (one.value, one.low, one.high) if value is not None]
    known += [mark[1]] if mark else []
    left = 24 + round(7 * max(len(name) for name, _ in rows))

    def words(value: float | None) -> str:
        return decimal(value, digits)

    drawn = dot_chart(key, title, rows, nice_ticks(min(known), max(known), 4), mark, words, left)
    return _alone(drawn, mark[0] if mark else None)


def bars(key: str, title: str, rows: Bars, words: Callable[[float | None], str]) -> str:
    """A bar from zero for each row, with its value beside it."""
    return _alone(bar_chart(key, title, rows, words=words), None)


def lines(key: str, title: str, series: Sequence[Series], y_label: str) -> str:
    """Lines over steps, named in the legend."""
    return _alone(line_chart(key, title, series, y_label=y_label), None)


def _alone(figure: Markup, mark: str | None) -> str:
    """The drawing of a figure, with the names of its dashed line and of its lines below it."""
    found = _CHART.search(figure)
    assert found, "the figure has no chart"
    height, attributes, body = float(found[1]), found[2], found[3]
    if mark:
        height += 20
        body += f'<path class="mark" d="M8 {height - 8:.1f}H34"/>'
        body += f'<text x="42" y="{height - 4:.1f}">{escape(mark)}</text>'
    for path, name in _KEY.findall(figure):
        height += 20
        body += f'<g transform="translate(8 {height - 13:.1f})">{path}<text x="34" y="9">{name}</text></g>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 6:g}" width="600"{attributes}>'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'
    )
