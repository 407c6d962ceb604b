"""The dataset card of a build: `card.html`, one self-contained page, and `card.md`, a README for a dataset repository.

`card.jinja` has the prose of both; the Markdown file leaves out the charts, whose numbers all stand in tables. Dialogue
text stands in the records to look at, and nowhere else. Every file but the records may be missing or broken.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from compeer.io import read_json
from compeer.reasoning import EMOTIONS, LABELS, STAGES, STEPS, STRATEGIES
from compeer.report.card_counts import NONE, RecordCounts, count_records, quantile
from compeer.report.charts import Bars, bar_chart, dot_chart, nice_ticks
from compeer.report.page import Table, as_dict, as_estimate, find, number, objects, write_page
from compeer.report.wording import DASH, WORDS, count, decimal, listing, percent, with_interval, without_folder
from compeer.ser.record import PREFERENCES, SPLITS, SerRecord

_STEMS = "screened splits contexts turns records profiles clusters rewritten-plain rewritten-personality duplicated"
FILES = tuple(f"{stem}.jsonl" for stem in _STEMS.split())  # what a build may hold, in the order in which it is made
DISPLAYED_UTTERANCES = 8  # of an example's history, the last ones
MOST_ROWS = 12  # of values or kinds that may be many; the largest are displayed
SOURCES = ("human", "llm", "silver", NONE)
_SIZES = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M"}
"""As hubs of datasets name them."""
_PROBED = ("balanced_accuracy", "low", "high", "chance", "limit", "tested")
_LEFT_OUT = {"dropped": "dropped, by reason", "failed": "calls that failed, by kind", "masked": "masked, by kind"}


def write_card(folder: Path, examples: int = 12, seed: int = 0) -> tuple[Path, Path]:
    """Writes `card.md` and `card.html` into the folder of a build; no `examples` keep all dialogue text out of them."""
    counts = count_records(folder / "records.jsonl", examples, seed)
    content = {
        "title": f"SER records from {listing(counts.of('source'))}",
        "languages": counts.of("language"),
        **{"emotion_names": EMOTIONS, "stage_names": STAGES, "strategy_names": STRATEGIES},
        **{"step_names": STEPS, "sources": SOURCES},
        "size": next((name for bound, name in _SIZES.items() if counts.records < bound), "10M<n<100M"),
        "counts": counts,
        "splits": {split: total for split in SPLITS if (total := counts.in_split(split))},
        "most_rows": MOST_ROWS,
        "preference_names": {better: WORDS["preferences"][better] for better in PREFERENCES},
        "kind_charts": [
            bar_chart(f"kinds-{step}", f"{LABELS[step]}: False verdicts by kind", _bars(found))
            for step in STEPS
            if (found := counts.kinds_of(step, *SOURCES))
        ],
        "agreement": as_dict(find(read_json(folder / "agreement.json"), "questions")),
        **_measured(counts),
        **_checked(folder),
        **_made(folder),
        "examples": [_example(record) for record in counts.examples],
        "last": DISPLAYED_UTTERANCES,
    }
    markdown = write_page(folder / "card.md", "card.jinja", markdown=True, **content)
    return markdown, write_page(folder / "card.html", "card.jinja", **content)


def _bars(times: Mapping[str, int]) -> Bars:
    rest = sum(list(times.values())[MOST_ROWS:])
    displayed = {name: [number] for name, number in list(times.items())[:MOST_ROWS]}
    return displayed | ({"all others": [rest]} if rest else {})


def _measured(counts: RecordCounts) -> dict[str, Any]:
    order = ["history, in utterances", *(f"{step} step, {value}" for step in STEPS for value in (True, False))]
    order += ["response", "better response", "worse response"]
    lengths = []
    for name in order:
        if found := counts.lengths.get(name):
            mean = sum(length * times for length, times in found.items()) / found.total()
            cells = [count(quantile(found, share)) for share in (0.05, 0.5, 0.95, 1)]
            lengths.append([name[0].upper() + name[1:], *cells, decimal(mean, 1)])
    charts = [_histogram("histories", "Histories, in utterances", counts, {"history, in utterances": "histories"})]
    pair = {"better response": "better", "worse response": "worse"}
    if all(counts.lengths.get(name) for name in pair):
        charts.append(_histogram("pairs", "Better and worse responses, in words: share of each", counts, pair))
    else:
        charts.append(_histogram("responses", "Responses, in words", counts, {"response": "responses"}))
    caption = "Lengths in words (in Chinese, characters) unless said otherwise."
    head = ["what", "5th percentile", "median", "95th percentile", "longest", "mean"]
    return {"length_charts": charts, "lengths": Table(caption, head, lengths)}


def _histogram(key: str, title: str, counts: RecordCounts, series: dict[str, str]) -> Markup:
    """Shares of lengths in about ten ranges, the last one open."""
    found = [counts.lengths[name] for name in series]
    reach = max((quantile(lengths, 0.95) or 1) for lengths in found)
    width = max(1, round(nice_ticks(0, reach, about=10)[1]))
    starts = range(0, max(width, reach + 1), width)
    bars = {}
    for start in starts:
        end = math.inf if start == starts[-1] else start + width
        name = f"{start}+" if end == math.inf else str(start) if width == 1 else f"{start}–{end - 1}"
        bars[name] = [sum(n for length, n in one.items() if start <= length < end) / one.total() for one in found]
    return bar_chart(key, title, bars, list(series.values()), percent)


def _checked(folder: Path) -> dict[str, Any]:
    """What can be guessed without the history, and what the check found."""
    probes = objects(find(read_json(folder / "probes.json"), "probes"))
    findings = objects(find(read_json(folder / "check.json"), "findings"))
    rows = []
    for probe in probes:
        what, by = (str(probe.get(key, DASH)) for key in ("label", "sees"))
        accuracy, low, high, chance, limit, tested = (number(probe, key) for key in _PROBED)
        bounded = with_interval(decimal(accuracy, 3), low, high)
        rows.append([what, by, bounded, decimal(chance), decimal(limit), count(tested), _passed(probe)])
    labels = dict.fromkeys(row[0] for row in rows)
    # The probe that guesses best decides; one without a value comes last.
    best = [max((row for row in rows if row[0] == label), key=lambda row: row[2].strip(DASH)) for label in labels]
    head = ["what is guessed", "from", "balanced accuracy", "chance", "limit", "labels", "within the limit"]
    return {
        "guessed": sorted({str(probe.get("label")) for probe in probes if probe.get("passed") is False}),
        "findings": [[str(one.get("name", DASH)), str(one.get("message", DASH)), _passed(one)] for one in findings],
        "failed": [str(finding.get("name")) for finding in findings if finding.get("passed") is False],
        "probe_charts": [_probe_chart(index, label, probes) for index, label in enumerate(labels)],
        "best_probes": Table("The probe that guesses best, with its 95 % interval. Lower is better.", head, best),
        "probes": Table("All probes, with 95 % intervals. Lower is better.", head, rows),
    }


def _passed(found: Mapping[str, Any]) -> str:
    passed = found.get("passed")
    return "yes" if passed is True else "no" if passed is False else DASH


def _probe_chart(index: int, label: str, probes: list[dict[str, Any]]) -> Markup:
    here = [probe for probe in probes if str(probe.get("label", DASH)) == label]
    dots = [(str(probe.get("sees", DASH))[:24], as_estimate(probe, "balanced_accuracy")) for probe in here]
    known = [value for _, dot in dots for value in (dot.value, dot.low, dot.high) if value is not None]
    limits = [limit for probe in here if (limit := number(probe, "limit")) is not None]
    ticks = nice_ticks(min([*known, *limits, 0.4]), max([*known, *limits, 0.7]), about=4)
    mark = ("limit", limits[0]) if limits else ("chance", number(here[0], "chance"))
    return dot_chart(f"probe-{index}", f"Guessing {label}", dots, ticks, mark, left=165)


def _made(folder: Path) -> dict[str, Any]:
    """What the stages left out and asked, the files, the exact settings, what was read, and the versions."""
    named = (*FILES, "clusters.json")
    manifests = {name: found for name in named if (found := read_json(folder / f"{name}.manifest.json"))}
    left_out = [
        _numbers(f"{name}: {words}.", find(manifest, "counts", group))
        for name, manifest in manifests.items()
        for group, words in _LEFT_OUT.items()
    ]
    calls = [_numbers(f"{name}: calls to models.", manifest.get("calls")) for name, manifest in manifests.items()]
    settings = {
        name: {key: without_folder(manifest[key]) for key in ("settings", "inputs", "versions") if key in manifest}
        for name, manifest in manifests.items()
    }
    hashes = {
        file: find(entry, "sha256")
        for manifest in manifests.values()
        for file, entry in as_dict(manifest.get("files")).items()
    }
    code = {"Settings, seed and hashes of what was read, by file": settings, "Hashes of the files": hashes}
    lines = [[name, count(_line_count(folder / name))] for name in FILES if (folder / name).is_file()]
    screen = find(manifests.get("screened.jsonl"), "counts", "screen")
    return {
        "screened": [number(screen, name) for name in ("read", "kept", "dropped")],
        "left_out": [table for table in left_out if table.rows],
        "calls": [table for table in calls if table.rows],
        "versions": list(dict.fromkeys(str(one["compeer"]) for one in manifests.values() if "compeer" in one)),
        "lines": Table("Files of the build.", ["file", "lines"], lines),
        "code": [(title, json.dumps(found, indent=1, ensure_ascii=False)) for title, found in code.items() if found],
    }


def _numbers(caption: str, found: Any) -> Table:
    known = [(name, value) for name, inner in _flat(found) if (value := number(inner)) is not None]
    rows = [[name, count(value)] for name, value in sorted(known, key=lambda item: (-item[1], item[0]))]
    return Table(caption, ["what", "number"], rows)


def _flat(found: Any, before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in as_dict(found).items():
        yield from _flat(value, f"{before}{key}: ") if isinstance(value, dict) else [(f"{before}{key}", value)]


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _example(record: SerRecord) -> dict[str, Any]:
    """A record as people read it; the responses stand in the order in which a judge reads them."""
    about = [record.split, record.source, record.language, f"round {record.round}", f"by {record.author}"]
    about += [f"rewritten: {record.rewritten}"] if record.rewritten else []
    about += [f"by rule: {listing(record.derived)}"] if record.derived else []
    preference = record.preference
    ours, theirs = WORDS["preferred"][preference.value] if preference else ("", "")
    responses = [("Candidate", ours, record.candidate.response), ("Reference", theirs, record.reference)]
    if record.reference == record.candidate.response:
        responses = [("Response", "", record.reference)]
    how = [preference.source, preference.how, preference.reason] if preference else ["not compared"]
    return {
        "id": record.id,
        "about": about,
        "earlier": max(0, len(record.history) - DISPLAYED_UTTERANCES),
        "history": [(one.speaker, one.text) for one in record.history[-DISPLAYED_UTTERANCES:]],
        "steps": [_step(record, step) for step in STEPS],
        "responses": responses if record.candidate_first else responses[::-1],
        "preference": _sentences(how),
    }


def _step(record: SerRecord, part: Any) -> dict[str, Any]:
    """A step with its verdict, which names what is wrong, and how that came about."""
    step, label = record.candidate.step(part), getattr(record.labels, part, None)
    displayed = {"label": LABELS[part], "decision": step.decision, "text": step.text}
    if label is None:
        return {**displayed, "right": None, "verdict": "not judged yet", "why": ""}
    verdict = f"{label.value}: {label.kind}" if label.kind else str(label.value)
    why = _sentences([label.source, label.how, label.reason])
    return {**displayed, "right": label.value, "verdict": verdict, "why": why}


def _sentences(parts: Sequence[str | None]) -> str:
    return "; ".join(part.strip().rstrip(".") for part in parts if part)
