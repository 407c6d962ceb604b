"""The report of an evaluation: one self-contained HTML page made from an evaluation's folder alone.

`write_evaluation(FOLDER)` reads `figures.json`, `scores.jsonl`, `judged.jsonl` and the dialogues' logs and writes
`report.html` beside them: the figures with their intervals and what they rest on, what failed and why, what it cost,
and every transcript to page through. Of `figures.json` the page looks at

    protocol, supporter, seeker, judges, mode, seed, scenarios, repeats, settings, versions, hashes
    figures     esc-eval: the fields of `EscEvalFigures`; sage: emotion, success, failure, replies, by_repeat
    failures    {"model": {reason: times}, "infrastructure": {reason: times}}
    cost        {"roles": {role: {"calls", "prompt_tokens", "tokens"}}, "seconds", and "price" with its "currency"}

The page needs nothing from outside. What was said is escaped everywhere, and the page's policy lets no script run but
its own, which only pages through the transcripts; without it they stand closed, one below the other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from compeer.errors import InputError
from compeer.report.evaluation_curves import spark
from compeer.report.evaluation_figures import (
    charts_of,
    cost_table,
    failure_tables,
    figure_tables,
    limits_of,
    part_tables,
    tiles_of,
    warnings_of,
)
from compeer.report.evaluation_parts import Transcript, read_scores, transcripts_of
from compeer.report.reading import as_number
from compeer.report.tables import Table
from compeer.report.wording import DASH, language_name, listing, plural, without_place

PROTOCOLS = {"esc-eval": "ESC-Eval", "sage": "SAGE"}


def write_evaluation(folder: Path) -> Path:
    """Writes the folder's `report.html`, whole or not at all, and returns its path."""
    figures = _figures(folder / "figures.json")
    scores = read_scores(folder)
    page = render_evaluation(figures, transcripts_of(folder, scores))
    path = folder / "report.html"
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(page.encode("utf-8", errors="replace"))  # a model may write half a surrogate pair
    os.replace(unfinished, path)
    return path


def render_evaluation(figures: Mapping[str, Any], transcripts: Sequence[Transcript]) -> str:
    """The page as text."""
    script = _packaged("evaluation.js")
    environment = Environment(
        loader=FunctionLoader(_packaged),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["language"] = language_name
    environment.globals.update(numeric=_numeric, spark=lambda one: spark(one.emotions, one.kind))
    return environment.get_template("evaluation.html.jinja").render(
        title=f"{PROTOCOLS[figures['protocol']]}: {_model(figures.get('supporter'))}",
        what_was_run=_what_was_run(figures),
        contents=[
            ("came-out", "What came out"),
            ("figures", "The figures"),
            ("failures", "What failed"),
            ("repeat", "Cost, settings and hashes"),
            ("transcripts", "Transcripts"),
        ],
        tiles=tiles_of(figures),
        warnings=warnings_of(figures),
        limits=limits_of(figures),
        charts=charts_of(figures, transcripts),
        figure_tables=figure_tables(figures, transcripts),
        part_tables=part_tables(figures, transcripts),
        failure_tables=failure_tables(figures),
        cost_table=cost_table(figures),
        folded=_folded(figures),
        transcripts=transcripts,
        repeats=any(one.repeat > 1 for one in transcripts),
        with_feelings=figures["protocol"] == "sage",
        how_to_read=_how_to_read(figures["protocol"]),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _figures(path: Path) -> dict[str, Any]:
    do = "Give the folder of an evaluation: compeer evaluate esc-eval, or sage, makes one."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file.", file=path, do=do) from None
    except ValueError:
        raise InputError("this is not JSON.", file=path, do=do) from None
    if not isinstance(found, dict) or found.get("protocol") not in PROTOCOLS:
        raise InputError(f"it is not one of {listing(list(PROTOCOLS))}.", file=path, field="protocol", do=do)
    return found


def _packaged(name: str) -> str:
    return files("compeer.report").joinpath(name).read_text(encoding="utf-8")


def _numeric(table: Table, scores: bool = False) -> list[bool]:
    """For each column whether it holds figures, which stand on the right; words stand on the left.

    Of a table of `scores` all columns do: a word there stands in a score's place.
    """

    def is_figure(cell: str) -> bool:
        return scores or cell == DASH or any(character.isdigit() for character in cell[:2])

    return [all(map(is_figure, cells)) for cells in zip(*table.rows, strict=True)]


def _what_was_run(figures: Mapping[str, Any]) -> str:
    named = figures.get("judges")
    judges = [_model(judge) for judge in named] if isinstance(named, list) else []
    judged = f" Scored by {listing(judges)}." if judges else ""
    repeats = figures.get("repeats")
    times = f", {repeats} times each" if isinstance(repeats, int) and repeats > 1 else ""
    return (
        f"{_model(figures.get('supporter'))} supports in the mode {figures.get('mode') or DASH}; "
        f"{_model(figures.get('seeker'))} plays the seeker in "
        f"{plural(as_number(figures.get('scenarios')), 'scenario', 'scenarios')}{times}, "
        f"seed {figures.get('seed', DASH)}.{judged}"
    )


def _model(name: Any) -> str:
    """A model's name; of a path only the last part."""
    return str(without_place(name)).removeprefix("…/") if name else DASH


def _how_to_read(protocol: str) -> str:
    if protocol == "sage":
        return (
            "Beside each message of the seeker stands its emotion from 0 to 100, what the reply before it changed, "
            "and why. The list gives the emotion at the end."
        )
    return "The list gives each conversation's mean over the dimensions that were scored, from 0 to 100."


def _folded(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings, hashes and versions as text; paths and addresses of the machine are left out."""
    return [
        (name, json.dumps(_without_addresses(without_place(found)), indent=2, ensure_ascii=False))
        for name, key in (("Settings", "settings"), ("Hashes", "hashes"), ("Versions", "versions"))
        if isinstance(found := figures.get(key), dict) and found
    ]


def _without_addresses(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_addresses(inner) for key, inner in value.items() if key != "url"}
    return value
