"""How numbers are put into words: numbers, shares, intervals, lists, and the names that people read."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from compeer.io import table
from compeer.statistics import Estimate

DASH = "–"
_BLANK = "\u00a0"  # keeps a number and its sign on one line
WORDS = table("report/wording")
BEST_OF = "best-of-"  # how the name begins of outputs that the judge chose among several


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with a true minus sign, or a dash where it is not known."""
    if value is None:
        return DASH
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def signed(value: float | None, digits: int = 2) -> str:
    text = decimal(value, digits)
    return text if value is None or text.startswith("−") or float(text) == 0 else f"+{text}"


def count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}".replace(",", _BLANK)


def percent(value: float | None) -> str:
    """A share in per cent; one decimal only where rounding would make it look like nothing or all."""
    if value is None:
        return DASH
    digits = 0 if value in (0, 1) or 0.005 <= value < 0.995 else 1
    return f"{decimal(100 * value, digits)}{_BLANK}%"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval in brackets; nothing where it is not known. One without width is not certainty: all were alike."""
    if low is None or high is None:
        return ""
    return "[all alike]" if low == high else f"[{decimal(low, digits)} to {decimal(high, digits)}]"


def with_interval(value: str, low: float | None, high: float | None, digits: int = 2) -> str:
    """A number and its interval, which may stand on the next line, but is not broken itself."""
    return f"{value} {interval(low, high, digits).replace(' ', _BLANK)}".strip()


def estimated(estimate: Estimate, digits: int = 2) -> str:
    return with_interval(decimal(estimate.value, digits), estimate.low, estimate.high, digits)


def estimated_share(estimate: Estimate) -> str:
    low, high = (None if bound is None else 100 * bound for bound in (estimate.low, estimate.high))
    return with_interval(percent(estimate.value), low, high, digits=0)


def listing(names: Sequence[str]) -> str:
    """Names as a phrase: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"


def named(estimates: Mapping[str, Estimate], words: Callable[[Estimate], str]) -> str:
    """Names, each with its estimate, as a phrase."""
    return listing([f"{supporter_name(name)}{_BLANK}{words(found)}" for name, found in estimates.items()])


def plural(number: float | None, one: str, many: str) -> str:
    """A count with the right form of its noun."""
    return f"{count(number)} {one if number == 1 else many}"


def supporter_name(name: str) -> str:
    if name.startswith(BEST_OF):
        return f"Best of {name.removeprefix(BEST_OF)}"
    return str(WORDS["supporters"].get(name, name))


def language_name(code: str) -> str:
    return str(WORDS["languages"].get(code, code))


def without_folder(value: Any, *left_out: str) -> Any:
    """A setting as it may be published, without some keys; of an absolute path, which reveals much, only the name."""
    if isinstance(value, str):
        for kind in (PurePosixPath, PureWindowsPath):
            if (path := kind(value)).is_absolute():
                return f"…/{path.name}"
        return value
    if isinstance(value, dict):
        return {key: without_folder(inner, *left_out) for key, inner in value.items() if key not in left_out}
    return [without_folder(inner, *left_out) for inner in value] if isinstance(value, list | tuple) else value


def toml(values: dict[str, Any], table: str = "") -> str:
    """Settings as TOML, to be saved and run again; what is None is left out, as a recipe leaves it out."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict) and value is not None}
    # JSON writes strings, numbers and lists as TOML does, but for one sign.
    lines = [f"{key} = {json.dumps(one, ensure_ascii=False)}".replace("\x7f", "\\u007f") for key, one in plain.items()]
    for key, value in values.items():
        if isinstance(value, dict):
            name = f"{table}.{key}" if table else key
            lines += ["", f"[{name}]", toml(value, name)]
    return "\n".join(lines)
