"""Whether the measured numbers in README and docs are those of the files in research/results/.

    python research/results/check.py            what disagrees, and which measured number has no source, as FILE:LINE

A measured number is followed by a comment that readers do not see: the file it comes from and the place in it.

    right in 72.9 %<!-- judges/results.json tests.esconv.rows.ORM.parts.response.accuracy -->

The file counts from results/. The place is keys with dots between; in a list, a position or what one of the object's
fields says (`rows.ORM` is the object with `"judge": "ORM"`); `.value` at the end may be left out. A number is compared
as far as it is rounded, and a share may be shown as per cent. Several numbers share one comment, in their order, with
`{a,b}` for every value and `;` between sources: it speaks of as many numbers before it as it has places. Places can
be combined, from left to right: `seconds.a over seconds.b`, `plus`, `minus`, `times 1000`.

Every other number with decimals, thousands, a unit, a per cent sign or as in "3 of 4" is taken for a measured one, and
needs such a comment, unless it stands in code, a link, a heading or a version, or is *in italics* (published by
others). Two comments exempt the rest of their paragraph, list item or row of a table, and where they stand alone,
everything up to the next heading of the same rank:

    <!-- settings -->      these are settings, limits, sizes or calculations: nothing was measured
    <!-- untraced -->      measured, but research/results/ has no file of it: the tests want fewer of these
"""

from __future__ import annotations

import itertools
import json
import operator
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/*.md", "src/compeer/weights/*/README.md", "research/results/*/README.md")
EXEMPT = {"docs/decisions.md": "a log of what was tried", "docs/results.md": "written by research/results/page.py"}

_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_SOURCE = re.compile(r"([\w./-]+/[\w.-]+\.json)\s+")
_FENCE = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
_NOT_MEASURED = re.compile(
    r"`[^`\n]+`|\]\([^)\s]*\)(?:\s\d+(?:\.\d+)+)?|https?://\S+"  # code, links with the version of what they name
    r"|(?<![*\w])\*(?![*\s])[^*\n]+\*(?!\*)"  # italics: published by others
    r"|\b(?:Python|torch|transformers|trl|vLLM|NC|arXiv)\s\d[\d.]*"  # versions and names
    r"|\b95 %(?=\)|\s(?:Wilson\s)?interval)"
)
_NUMBER = re.compile(r"(?<![\w.])(?<![A-Za-z]-)(?>[−+]?\d+(?:,\d{3})*(?:\.\d+)?)(?!(?!th\b)[A-Za-z_]|\.\d)")
_UNIT = re.compile(r"\s?%|\s(?:ms|s|h|[kMG]B|seconds?|minutes?|min|hours?|points?)\b|\sof\s\d|\sof\sthe\s\d")
_HEADING = re.compile(r"^(#+)\s.*$", re.MULTILINE)
_BLOCK_START = re.compile(r"^(?:\s*$|#|\||\s*[-*]\s|\s*\d+\.\s)")
_NO_SOURCE = (
    "looks measured and has no source. Put one behind it, <!-- folder/file.json place -->, or <!-- settings --> at the "
    "end of the paragraph if nothing was measured: research/results/check.py says how"
)
_OPERATIONS = {"over": operator.truediv, "plus": operator.add, "minus": operator.sub, "times": operator.mul}


@dataclass(frozen=True)
class Finding:
    """Something to mend: where, and what to do."""

    file: str
    line: int
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.words}"


@dataclass
class Checked:
    """What a page's check found; `untraced` are numbers that say themselves that they have no source."""

    findings: list[Finding] = field(default_factory=list)
    untraced: list[Finding] = field(default_factory=list)
    traced: int = 0


@dataclass(frozen=True)
class _Number:
    text: str
    start: int
    end: int
    measured: bool


def check_page(text: str, name: str, results: Path) -> Checked:
    """Compares the numbers of one Markdown page with their sources below the folder `results`."""
    checked = Checked()
    text = _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    rank = 0
    exempt: dict[int, str] = {}  # the kind of exemption by the rank of the heading whose section it covers
    for start, end in _blocks(text):
        block = text[start:end]
        if heading := _HEADING.match(block):
            rank = len(heading[1])
            exempt = {own: kind for own, kind in exempt.items() if own < rank}
            continue
        kinds = [found for found in _COMMENT.findall(block) if found in ("settings", "untraced")]
        if kinds and not _COMMENT.sub("", block).strip():
            exempt[rank] = kinds[-1]
            continue
        kind = (kinds or [exempt[own] for own in sorted(exempt)] or [""])[-1]
        for number in _compare(text, start, end, name, results, checked):
            at = _line(text, number.start)
            if number.measured and not kind:
                checked.findings.append(Finding(name, at, f"{number.text} {_NO_SOURCE}"))
            elif number.measured and kind == "untraced":
                checked.untraced.append(Finding(name, at, f"{number.text} is untraced"))
    return checked


def _compare(text: str, start: int, end: int, name: str, results: Path, checked: Checked) -> list[_Number]:
    """Compares a block's numbers with the sources in its comments; gives those that no comment speaks of."""
    left = list(_numbers(text, start, end))
    for found in _COMMENT.finditer(text, start, end):
        if not _SOURCE.match(found[1]):
            continue
        places = expand(found[1])
        before = [number for number in left if number.end <= found.start()]
        told = before[-len(places) :]
        left = [number for number in left if number not in told]
        if len(told) < len(places):
            words = f"the comment names {len(places)} numbers, and only {len(told)} stand before it"
            checked.findings.append(Finding(name, _line(text, found.start()), words))
            continue
        for number, place in zip(told, places, strict=True):
            try:
                value = value_of(place, results)
                wrong = "" if agrees(number.text, value) else f"{value:.6g} in research/results/{' '.join(place)}"
            except LookupError as error:
                wrong = str(error.args[0])
            if wrong:
                checked.findings.append(Finding(name, _line(text, number.start), f"{number.text} stands here, {wrong}"))
            else:
                checked.traced += 1
    return left


def expand(source: str) -> list[tuple[str, str]]:
    """File and place of each number that a comment speaks of: `;` and `{a,b}` written out."""
    places, file = [], ""
    for part in source.split(";"):
        part = part.strip()
        if named := _SOURCE.match(part):
            file, part = named[1], part[named.end() :]
        pieces = re.split(r"\{([^{}]*)\}", part)
        choices = [piece.split(",") if index % 2 else [piece] for index, piece in enumerate(pieces)]
        places += [(file, "".join(chosen)) for chosen in itertools.product(*choices)]
    return places


def value_of(place: tuple[str, str], results: Path) -> float:
    """The number at a place of a file; a `LookupError` says what is not there."""
    file, path = place
    first, *rest = re.split(rf"\s({'|'.join(_OPERATIONS)})\s", path)
    value = _operand(file, first, results)
    for name, term in zip(rest[::2], rest[1::2], strict=True):
        value = _OPERATIONS[name](value, _operand(file, term, results))
    return value


def agrees(shown: str, value: float) -> bool:
    """Whether a number as it is written is the value rounded to its digits, as such or in per cent."""
    text = shown.replace("−", "-").replace(",", "")
    digits = len(text.partition(".")[2])
    return any(
        abs(float(text) - factor * value) <= 0.5 * 10.0**-digits + 1e-9
        for factor in ((1, 100) if abs(value) <= 1 else (1,))
    )


def _operand(file: str, path: str, results: Path) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", path):
        return float(path)
    where = f"research/results/{file}"
    if not (results / file).is_file():
        raise LookupError(f"{where} is not there")
    found = _read(results / file)
    for key in path.split("."):
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, list):
            same = [one for one in found if isinstance(one, Mapping) and key in one.values()]
            found = same[0] if len(same) == 1 else same
        else:
            found = None
        if found is None or found == []:
            raise LookupError(f"{where} has no {path}: there is no '{key}'")
    found = found.get("value") if isinstance(found, Mapping) else found
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise LookupError(f"{where}: {path} is not one number")
    return float(found)


@cache
def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where paragraphs, list items, headings and rows of tables start and end; a comment may run over several lines."""
    start = at = 0
    for line in text.splitlines(keepends=True):
        new = _BLOCK_START.match(line) or _HEADING.match(text, start, at)
        if new and at > start and text.count("<!--", start, at) == text.count("-->", start, at):
            yield start, at
            start = at
        at += len(line)
    yield start, at


def _numbers(text: str, start: int, end: int) -> Iterator[_Number]:
    blank = text[start:end]
    for pattern in (_COMMENT, _NOT_MEASURED):
        blank = pattern.sub(lambda found: " " * len(found.group()), blank)
    for found in _NUMBER.finditer(blank):
        measured = bool(re.search(r"[.,]", found.group()) or _UNIT.match(blank, found.end()))
        yield _Number(found.group(), start + found.start(), start + found.end(), measured)


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def check_all(root: Path = ROOT) -> dict[str, Checked]:
    """Every page whose numbers must have a source, by its name, with what was found."""
    paths = {path.relative_to(root).as_posix(): path for pattern in PAGES for path in sorted(root.glob(pattern))}
    return {
        name: check_page(path.read_text(encoding="utf-8"), name, root / "research" / "results")
        for name, path in paths.items()
        if name not in EXEMPT
    }


def without_command(root: Path = ROOT) -> list[Finding]:
    """The files of figures that no README.md beside them names: there the command stands that wrote them."""
    missing = []
    for path in sorted((root / "research" / "results").glob("*/*.json")):
        beside = path.with_name("README.md")
        if not beside.is_file() or path.name not in beside.read_text(encoding="utf-8"):
            words = "README.md beside it does not name it: say there by which command it was written"
            missing.append(Finding(path.relative_to(root).as_posix(), 1, words))
    return missing


def main() -> int:
    found = check_all()
    untraced = [one for checked in found.values() for one in checked.untraced]
    findings = [one for checked in found.values() for one in checked.findings] + without_command()
    for one in (*untraced, *findings):
        print(one)
    traced = sum(checked.traced for checked in found.values())
    print(f"{traced} numbers agree; {len(untraced)} untraced; {len(findings)} to mend")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
