"""The sections of a dataset card that the other files of a build fill: probes, check, what was dropped, settings.

Every one of these files may be missing, and its figures too: a card is most needed where something went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from compeer.report.card_figures import NONE, RecordCounts
from compeer.report.card_sections import Section
from compeer.report.charts import Dot, dot_chart, nice_ticks
from compeer.report.reading import as_number, find
from compeer.report.tables import Table
from compeer.report.wording import (
    DASH,
    count,
    decimal,
    interval,
    language_name,
    listing,
    percent,
    plural,
    with_interval,
    without_place,
)

SOURCE_WORDS = {
    "human": "People judged it.",
    "llm": "Language models judged it. That they agree with each other does not say that people would.",
    "silver": "Made by rule from what the corpus knows, without anybody reading it: a step is True where it carries "
    "the corpus' own decisions, and False where it was taken from another context or changed. Silver is not human.",
    NONE: "There is no label: not judged yet, or nothing to compare with.",
}
LICENCES = {
    "esconv": "CC BY-NC 4.0, research only",
    "failed-esconv": "CC BY-NC 4.0, research only",
    "smile": "CC0",
    "compeer-sample": "Apache-2.0, written for this project",
}
_SCREEN = ("read", "kept", "dropped")
_LEFT_OUT = {"dropped": "dropped, by reason", "failed": "calls that failed, by kind", "masked": "masked, by kind"}


def what_it_is(counts: RecordCounts, warnings: list[str]) -> Section:
    """What a record is, where the records come from, and what the sources of labels mean."""
    sources = counts.of("source")
    spoken = listing([language_name(code) for code in counts.of("language")])
    dialogues = len(set().union(*counts.dialogues.values()))
    found = [name for name in SOURCE_WORDS if name in {*counts.of("labels of steps"), *counts.of("preferences")}]
    return Section(
        "what",
        "What this is",
        [
            f"{plural(counts.records, 'record', 'records')} of emotional support, made from "
            f"{plural(dialogues, 'dialogue', 'dialogues')} of {listing(sources)} ({spoken}).",
            "A record is a history with one output of a supporter: three reasoning steps (what the issue is, what the "
            "seeker feels, which kind of help fits), each with a decision from a fixed vocabulary, and the response "
            "that the seeker reads. Each step may have a verdict, True or False; the response may be compared with a "
            "second one, the reference. The records serve to train and measure a judge of support, and by it a "
            "supporter.",
            "They show how a few corpora talk. They are no guide to treatment, and nothing trained on them replaces a "
            "person who is trained to help.",
        ],
        warnings,
        tables=[
            Table(
                "Where labels come from.", ["source of a label", "what it means"], [[s, SOURCE_WORDS[s]] for s in found]
            )
        ],
    )


def warnings_of(counts: RecordCounts, probes: list[dict[str, Any]], findings: list[dict[str, Any]]) -> list[str]:
    """What whoever uses the records must know first."""
    found = []
    if not {"human"} & {*counts.of("labels of steps"), *counts.of("preferences")}:
        found.append("No label of this set was given by a person.")
    if counts.shared_dialogues:
        found.append(f"{plural(counts.shared_dialogues, 'dialogue stands', 'dialogues stand')} in more than one split.")
    if over := [probe for probe in probes if probe.get("passed") is False]:
        targets = listing(sorted({str(probe.get("label")) for probe in over}))
        found.append(f"Labels can be guessed without the history, beyond the limit set: {targets}.")
    if not probes:
        found.append("Nobody measured whether labels can be guessed without the history.")
    if failed := [finding for finding in findings if finding.get("passed") is False]:
        found.append(f"The check failed: {listing([str(finding.get('name')) for finding in failed])}.")
    return found


def probes_section(probes: list[dict[str, Any]]) -> Section:
    """What can be guessed without the history, beside the limits."""
    text = (
        "A judge must not be able to tell True from False without reading the history. So probes are trained that see "
        "a step or a pair of responses, but never the history. Near chance is good; the limit is what we still accept."
    )
    if not probes:
        return Section("probes", "Probes without the history", [text, "They were not run."])
    rows = []
    for probe in probes:
        value, low, high = (as_number(probe.get(key)) for key in ("balanced_accuracy", "low", "high"))
        rows.append(
            [
                str(probe.get("label", DASH)),
                str(probe.get("sees", DASH)),
                with_interval(decimal(value, 3), interval(low, high)),
                decimal(as_number(probe.get("chance"))),
                decimal(as_number(probe.get("limit"))),
                count(as_number(probe.get("tested"))),
                verdict(probe.get("passed")),
            ]
        )
    targets = dict.fromkeys(row[0] for row in rows)
    # The probe that guesses best decides; one without a figure comes last.
    best = [max((row for row in rows if row[0] == target), key=lambda row: row[2].strip(DASH)) for target in targets]
    head = ["what is guessed", "from", "balanced accuracy", "chance", "limit", "labels", "within the limit"]
    return Section(
        "probes",
        "Probes without the history",
        [text],
        charts=[_probe_chart(index, target, probes) for index, target in enumerate(targets)],
        wide=[Table("The probe that guesses best, with its 95 % interval. Lower is better.", head, best)],
        folded=[Table("All probes, with 95 % intervals. Lower is better.", head, rows)],
    )


def _probe_chart(index: int, target: str, probes: list[dict[str, Any]]) -> Markup:
    here = [probe for probe in probes if str(probe.get("label", DASH)) == target]
    dots = [
        Dot(
            str(probe.get("sees", DASH))[:24],
            *(as_number(probe.get(key)) for key in ("balanced_accuracy", "low", "high")),
        )
        for probe in here
    ]
    known = [value for dot in dots for value in (dot.value, dot.low, dot.high) if value is not None]
    marks = [limit for probe in here if (limit := as_number(probe.get("limit"))) is not None]
    ticks = nice_ticks(min([*known, *marks, 0.4]), max([*known, *marks, 0.7]), about=4)
    mark = ("limit", marks[0]) if marks else ("chance", as_number(here[0].get("chance")))
    return dot_chart(f"probe-{index}", f"Guessing {target}", dots, ticks, mark, left=165)


def verdict(passes: Any) -> str:
    """Whether something passed, in a word."""
    return "yes" if passes is True else "no" if passes is False else DASH


def check_section(findings: list[dict[str, Any]]) -> Section:
    """What the check found."""
    if not findings:
        return Section("check", "The check", ["The check was not run."])
    rows = [[str(f.get("name", DASH)), str(f.get("says", DASH)), verdict(f.get("passed"))] for f in findings]
    text = "The check looks for what would make the splits or the labels worthless."
    return Section(
        "check", "The check", [text], wide=[Table("Findings.", ["what was checked", "found", "passes"], rows)]
    )


def dropped_section(manifests: Mapping[str, Mapping[str, Any]]) -> Section:
    """What the stages left out, by reason, and what was masked."""
    text, tables = [], []
    screen = {name: as_number(find(manifests.get("screened.jsonl"), "counts", "screen", name)) for name in _SCREEN}
    read, kept, dropped = screen.values()
    if read and kept is not None and dropped is not None:
        text.append(
            f"Of {plural(read, 'dialogue', 'dialogues')} that were read, {count(kept)} were kept and {count(dropped)} "
            f"({percent(dropped / read)}) dropped."
        )
    for name, manifest in manifests.items():
        for group, words in _LEFT_OUT.items():
            numbers = find(manifest, "counts", group)
            table = numbers_table(f"{name}: {words}.", "what", numbers) if isinstance(numbers, Mapping) else None
            tables += [table] if table else []
    if not text and not tables:
        text.append("Nothing is known of what was left out.")
    return Section("dropped", "What was left out", text, tables=tables)


def personality_section(clusters: Mapping[str, Any] | None, elbow: Markup | None) -> Section | None:
    """How the participants' manners were clustered; None where nobody did it."""
    if clusters is None and elbow is None:
        return None
    text = [
        "Each participant's manner was described by DISC traits and the descriptions clustered by K-means, seekers and "
        "supporters apart. A rewritten dialogue takes a manner from its own cluster."
    ]
    rows = []
    participants = find(clusters, "participants")
    for name, found in participants.items() if isinstance(participants, Mapping) else ():
        text += [f"{name.capitalize()}s: {said}"] if isinstance(said := find(found, "elbow", "said"), str) else []
        for cluster in find(found, "clusters") or ():
            scores, words = find(cluster, "scores"), find(cluster, "words")
            traits = scores.items() if isinstance(scores, Mapping) else ()
            rows.append(
                [
                    f"{name} {find(cluster, 'cluster')}",
                    count(as_number(find(cluster, "size"))),
                    str(find(cluster, "said") or DASH),
                    ", ".join(f"{trait} {decimal(as_number(score), 1)}" for trait, score in traits) or DASH,
                    ", ".join(map(str, words)) if isinstance(words, list) and words else DASH,
                ]
            )
    head = ["cluster", "profiles", "what tells it from the others", "mean traits, 1 to 5", "words of its descriptions"]
    table = Table("Clusters, the largest of each participant first.", head, rows)
    return Section("personality", "Manners of speaking", text, charts=[elbow] if elbow else [], wide=[table])


def calls_section(manifests: Mapping[str, Mapping[str, Any]]) -> Section | None:
    """Calls to models by stage; None where none were made."""
    tables = [
        table
        for name, manifest in manifests.items()
        if isinstance(calls := manifest.get("calls"), Mapping)
        and (table := numbers_table(f"{name}: calls to models.", "what", _flat(calls)))
    ]
    return Section("calls", "Calls to models", tables=tables) if tables else None


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        found |= _flat(value, f"{name}: ") if isinstance(value, Mapping) else {name: value}
    return found


def repeat_section(manifests: Mapping[str, Mapping[str, Any]], lines: Mapping[str, int]) -> Section:
    """The files, the exact settings, what was read, and the versions."""
    rows = [[name, count(number)] for name, number in lines.items()]
    versions = dict.fromkeys(str(manifest["compeer"]) for manifest in manifests.values() if "compeer" in manifest)
    told = {
        name: {key: without_place(manifest[key]) for key in ("settings", "inputs", "versions") if key in manifest}
        for name, manifest in manifests.items()
    }
    hashes = {
        file: find(entry, "sha256")
        for manifest in manifests.values()
        for file, entry in (manifest.get("files") or {}).items()
    }
    code = [("Settings, seed and hashes of what was read, by file", told), ("Hashes of the files", hashes)]
    return Section(
        "repeat",
        "How it was made",
        [f"Made with compeer {listing(list(versions))}." if versions else "The versions are not known."],
        tables=[Table("Files of the build.", ["file", "lines"], rows)],
        code=[(title, json.dumps(value, indent=1, ensure_ascii=False)) for title, value in code if value],
    )


def licence_section(sources: Iterable[str]) -> Section:
    """Whose licences hold."""
    rows = [
        [source, LICENCES.get(source, "as its makers say; look there before you pass anything on")]
        for source in sources
    ]
    text = (
        "Histories and replies are the corpora's own text; the licence of each corpus holds for what comes from it. "
        "Labels, and what was written for these records, add no right to that text."
    )
    return Section("licence", "Licence", [text], tables=[Table("Sources.", ["corpus", "licence"], rows)])


def numbers_table(caption: str, head: str, numbers: Mapping[str, Any]) -> Table | None:
    """Named numbers, the largest first; None where there are none."""
    known = [(name, number) for name, value in numbers.items() if (number := as_number(value)) is not None]
    rows = [[str(name), count(number)] for name, number in sorted(known, key=lambda item: (-item[1], item[0]))]
    return Table(caption, [head, "number"], rows) if rows else None
