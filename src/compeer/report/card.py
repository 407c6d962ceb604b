"""The dataset card of a build: `card.html`, one self-contained page, and `card.md`, a README for a dataset repository.

Both say the same: what the records are, how their labels came about, what was counted, probed, checked and dropped, and
how to make them again. Dialogue text stands in the records to look at, and nowhere else.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from compeer.reasoning import LABELS, STEPS
from compeer.report import card_folder, card_sections
from compeer.report.card_figures import RecordCounts, count_records
from compeer.report.tables import Table
from compeer.report.wording import listing, percent
from compeer.ser.record import SerRecord, StepLabel

FILES = (
    *("screened.jsonl", "splits.jsonl", "contexts.jsonl", "turns.jsonl", "records.jsonl", "profiles.jsonl"),
    *("clusters.jsonl", "rewritten-plain.jsonl", "rewritten-personality.jsonl", "duplicated.jsonl"),
)
"""What a build may hold, in the order in which it is made."""
SHOWN_UTTERANCES = 8
"""Of an example's history, the last ones."""
_PREFERRED = {
    "candidate": ("better", "worse"),
    "reference": ("worse", "better"),
    "both": ("good", "good too"),
    "neither": ("not acceptable", "not acceptable either"),
}


def write_card(folder: Path, examples: int = 12, seed: int = 0) -> tuple[Path, Path]:
    """Writes `card.md` and `card.html` into the folder of a build and returns their paths.

    `examples` is the number of records to look at; 0 keeps all dialogue text out of the card.
    """
    counts = count_records(folder / "records.jsonl", examples, seed)
    told = _told(folder, counts)
    written = []
    for name, escape in (("card.md", False), ("card.html", True)):
        page = _environment(escape).get_template(f"{name}.jinja").render(**told)
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_bytes(page.encode("utf-8", errors="replace"))  # a model may write half a surrogate pair
        os.replace(unfinished, folder / name)
        written.append(folder / name)
    return written[0], written[1]


def _told(folder: Path, counts: RecordCounts) -> dict[str, Any]:
    """All that the two templates show."""
    named = (*FILES, "clusters.json")
    manifests = {name: found for name in named if (found := _object(folder / f"{name}.manifest.json"))}
    probes, findings = _rows(folder / "probes.json", "probes"), _rows(folder / "check.json", "findings")
    sections = [
        card_folder.what_it_is(counts, card_folder.warnings_of(counts, probes, findings)),
        card_sections.how_many(counts),
        card_sections.label_balance(counts),
        card_sections.agreement(_object(folder / "agreement.json")),
        card_folder.probes_section(probes),
        card_folder.check_section(findings),
        card_sections.derived_decisions(counts),
        card_sections.lengths(counts),
        card_sections.strategies_and_feelings(counts),
        card_folder.dropped_section(manifests),
        card_folder.personality_section(_object(folder / "clusters.json"), _elbow(folder / "elbow.svg")),
        card_folder.calls_section(manifests),
        card_folder.repeat_section(manifests, {name: n for name in FILES if (n := _lines(folder / name)) is not None}),
        card_folder.licence_section(counts.of("source")),
    ]
    return {
        "title": f"SER records from {listing(counts.of('source'))}",
        "languages": counts.of("language"),
        "size": _size(counts.records),
        "sections": [section for section in sections if section is not None],
        "examples": [_example(record) for record in counts.examples],
        "last": SHOWN_UTTERANCES,
    }


def _object(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None where it is missing or broken."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _rows(path: Path, key: str) -> list[dict[str, Any]]:
    found = (_object(path) or {}).get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _elbow(path: Path) -> Markup | None:
    """The drawing of the elbow as a picture within the page: its own styles stay its own."""
    try:
        drawing = path.read_bytes()
    except OSError:
        return None
    said = re.search(r"<title>(.*?)</title>", drawing.decode("utf-8", errors="replace"), re.DOTALL)
    return Markup(
        '<figure class="picture"><figcaption>How many clusters: the elbow, and the clusters on two axes.</figcaption>'
        '<img src="data:image/svg+xml;base64,{}" alt="{}"></figure>'
    ).format(base64.b64encode(drawing).decode(), unescape(said[1]) if said else "The elbow curve")


def _lines(path: Path) -> int | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _size(records: int) -> str:
    """The size as hubs of datasets name it."""
    names = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M"}
    return next((name for bound, name in names.items() if records < bound), "10M<n<100M")


# --- records to look at -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepShown:
    """A step with its verdict, which names what is wrong, and how that came about."""

    label: str
    decision: str
    text: str
    right: bool | None
    verdict: str
    why: str


@dataclass(frozen=True)
class Example:
    """A record as people look at it; the responses stand in the order in which a judge sees them."""

    id: str
    about: list[str]
    earlier: int
    history: list[tuple[str, str]]
    steps: list[StepShown]
    responses: list[tuple[str, str, str]]
    preference: str


def _example(record: SerRecord) -> Example:
    about = [record.split, record.source, record.language, f"round {record.round}", f"by {record.author}"]
    about += [f"rewritten: {record.rewritten}"] if record.rewritten else []
    about += [f"by rule: {listing(record.derived)}"] if record.derived else []
    preference = record.preference
    ours, theirs = _PREFERRED[preference.value] if preference else ("", "")
    responses = [("Candidate", ours, record.candidate.response), ("Reference", theirs, record.reference)]
    shown = responses if record.candidate_first else responses[::-1]
    if record.reference == record.candidate.response:
        shown = [("Response", "", record.reference)]
    how = [preference.source, preference.how, preference.reason] if preference else ["not compared"]
    return Example(
        id=record.id,
        about=about,
        earlier=max(0, len(record.history) - SHOWN_UTTERANCES),
        history=[(said.speaker, said.text) for said in record.history[-SHOWN_UTTERANCES:]],
        steps=[_step_shown(record, step) for step in STEPS],
        responses=shown,
        preference=_sentences(how),
    )


def _step_shown(record: SerRecord, part: Any) -> StepShown:
    step = record.candidate.step(part)
    label: StepLabel | None = getattr(record.labels, part, None)
    if label is None:
        return StepShown(LABELS[part], step.decision, step.text, None, "not judged yet", "")
    verdict = f"{label.value}: {label.kind}" if label.kind else str(label.value)
    why = _sentences([label.source, label.how, label.reason])
    return StepShown(LABELS[part], step.decision, step.text, label.value, verdict, why)


def _sentences(parts: Sequence[str | None]) -> str:
    return "; ".join(part.strip().rstrip(".") for part in parts if part)


# --- rendering --------------------------------------------------------------------------------------------------------


def _environment(escape: bool) -> Environment:
    environment = Environment(
        loader=FunctionLoader(lambda name: files("compeer.report").joinpath(name).read_text(encoding="utf-8")),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": _markdown, "percent": percent, "json": json.dumps}
    environment.globals["numeric"] = _numeric
    return environment


def _numeric(table: Table) -> list[bool]:
    """Which columns hold numbers, and so stand to the right."""
    return [all(re.match(r"[\d−–+]", row[index]) for row in table.rows) for index in range(len(table.head))]


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>#|~$])", r"\\\1", " ".join(str(text).split()))
