"""The page builder that all reports share: one template environment, tables, lenient reading, one way to write.

A report is most needed when something went wrong, so what is missing or unreadable becomes None and then a dash.
A page needs nothing from outside, holds no clock time and no path of the machine, and is the same for the same files.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compeer.io import atomic
from compeer.report import wording
from compeer.report.wording import DASH
from compeer.statistics import Estimate


@dataclass(frozen=True)
class Table:
    """A caption, column heads (the first for the rows' names), and rows of text."""

    caption: str
    head: list[str]
    rows: list[list[str]]

    @property
    def numeric(self) -> list[bool]:
        """For each column whether it holds numbers, which stand on the right; words stand on the left."""
        columns = zip(*self.rows, strict=True)
        return [all(cell == DASH or any(map(str.isdigit, cell[:2])) for cell in cells) for cells in columns]


@cache
def environment(markdown: bool = False) -> Environment:
    """The templates of this package. Values are escaped for HTML, or for Markdown."""
    found = Environment(
        loader=PackageLoader("compeer.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_markdown if markdown else None,
    )
    found.filters |= {name: word for name, word in vars(wording).items() if callable(word)}
    found.filters["headings"] = lambda body: re.findall(r'<section id="([^"]+)">\s*<h2>(.*?)</h2>', body)
    found.filters["json"] = lambda value: Markup(json.dumps(value))
    found.filters["pretty"] = lambda value, indent: json.dumps(value, indent=indent, ensure_ascii=False)
    found.globals |= {name: getattr(wording, name) for name in ("interval", "estimated", "estimated_share")}
    found.globals |= {"Table": Table, "find": find, "number": number, "as_dict": as_dict}
    found.globals["kit"] = "markdown.jinja" if markdown else "html.jinja"
    found.globals["layout"] = "page.md.jinja" if markdown else "page.html.jinja"
    return found


def _markdown(value: Any) -> Any:
    """Text that Markdown shows as it is, on one line."""
    if isinstance(value, Markup):
        return value
    return Markup(re.sub(r"([\\`*_\[\]<>#|~$])", r"\\\1", " ".join(str(value).split())))


def write_page(path: Path, template: str, markdown: bool = False, **content: Any) -> Path:
    """Renders a template to a file, whole or not at all."""
    page = environment(markdown).get_template(template).render(**content)
    if markdown:
        page = re.sub(r"\n{3,}", "\n\n", page).rstrip() + "\n"
    with atomic(path) as unfinished:
        unfinished.write_bytes(page.encode("utf-8", errors="replace"))  # a model may write half a surrogate pair
    return path


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; other lines are passed over, and so is a file that is not there."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def find(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def number(value: Any, *keys: str) -> float | None:
    """What stands there under the keys, or the value itself without any, if it is a finite number; else None."""
    found = find(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def as_estimate(found: Any, key: str) -> Estimate:
    """The estimate whose value has this key, as it was recorded; what is not known is None."""
    value, low, high = (number(found, name) for name in (key, "low", "high"))
    return Estimate(value=value, low=low, high=high)


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none where there is no list."""
    return [one for one in as_list(value) if isinstance(one, dict)]
