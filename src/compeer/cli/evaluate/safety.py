"""`compeer evaluate safety`: how well the guard finds danger and stops bad replies, alone or around a supporter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError
from compeer.io import check_writable, write_json, write_text
from compeer.progress import console, progress

if TYPE_CHECKING:
    from compeer.evaluate.safety import SafetyCase, Shares
    from compeer.evaluate.safety_alarms import AlarmMetrics
    from compeer.models import TextModel
    from compeer.safety import Detector
    from compeer.statistics import Estimate


def safety(
    half: Annotated[
        str, typer.Option(help="Which cases: open (rules may be changed on it), tuning (thresholds were), both.")
    ] = "tuning",
    cases: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead of a half: cases of your own.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Also ask a supporter, behind the guard: embedded, a folder, NAME@http://….")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where the supporter's answers are kept.")] = Path("answers.sqlite"),
    classifier: Annotated[
        bool, typer.Option("--classifier/--no-classifier", help="The best reader, or rules and weighted phrases alone.")
    ] = True,
    alarms: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="Instead: every seeker utterance of a corpus, for alarms.")
    ] = None,
    to: Annotated[Path, typer.Option(help="The table of alarms to write, for a person to read.")] = Path("alarms.csv"),
    read: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: a table of alarms whose column 'true' is filled in.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show texts too: of mistakes, and in the table.")] = False,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all metrics as JSON.")] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page (HTML) with all shares and confused levels.")
    ] = None,
) -> None:
    """Measure the guard: danger found, false alarms, bad replies stopped, and what a supporter's seekers would see."""
    from compeer.cli.models import open_named
    from compeer.evaluate.safety import HALVES, cases_path, read_cases

    if half == "kept":  # its name until thresholds were chosen on it
        half = "tuning"
    if half not in (*HALVES, "both"):
        raise InputError(f"unknown half '{half}'.", field="half", do=f"Known: {', '.join(HALVES)}, both")
    for path in (out, page):
        if path:
            check_writable(path)
    silence_libraries()
    found: dict[str, Any]
    if read:
        found = {"read": _read(read)}
    elif alarms:
        found = {"classifier": classifier, "alarms": _alarms(alarms, to, _detector(classifier), show)}
    else:
        supporter = open_named(model, None, cache) if model else None
        detector = _detector(classifier)
        paths: dict[str, Path] = {one: cases_path(one) for one in HALVES if half in (one, "both")}
        paths = {cases.stem: cases} if cases else paths
        found = {"classifier": classifier}
        found |= {name: _part(name, read_cases(path), detector, supporter, show) for name, path in paths.items()}
        if page:
            write_text(page, _page({name: found[name] for name in paths}))
    if out:
        write_json(out, found)
    for path in (out, page):
        if path:
            console.print(f"written: {plain(str(path))}", highlight=False, soft_wrap=True)


def _detector(classifier: bool) -> Detector:
    from compeer.safety import Detector

    return Detector() if classifier else Detector(classifier=None)


def _part(
    name: str, cases: list[SafetyCase], detector: Detector, model: TextModel | None, show: bool
) -> dict[str, Any]:
    """All metrics of some cases, printed and as JSON."""
    from compeer.evaluate.safety import measure_detection, measure_replies, texts_of
    from compeer.safety import check_reply

    texts = texts_of(cases) if show else {}
    typer.echo(f"The part '{name}': {len(cases)} cases. Shares with their 95 % Wilson intervals.\n")
    with progress("Detecting", sum(case.reply is None for case in cases)) as advance:
        detection = measure_detection(cases, detector, advance)
    _print_shares("Danger found (recall)", detection.recall)
    _print_shares("Any alarm where there is danger", detection.alarms)
    _print_shares("False alarms (fewer is better)", detection.false_alarms)
    _print_shares("Exactly the expected level", {"all": detection.agreement.get("all", {})})
    _print_confusion(detection.levels)
    typer.echo(f"Right kind of danger among the reasons: {_shown(detection.risk_named)}\n")
    _print_ids("Missed", [(one.id, f"{one.expected}, found {one.found}") for one in detection.missed], texts)
    nothing = [(one.id, f"{one.found} by {'; '.join(one.by)}") for one in detection.false]
    _print_ids("Alarmed for nothing", nothing, texts)
    _print_degraded(detection.degraded)
    replies = measure_replies(cases, check_reply)
    if replies.cases:
        _print_shares("Bad replies rejected", replies.rejected)
        _print_shares("Good replies passed", replies.passed)
        typer.echo(f"Rejected for the fault they have: {_shown(replies.category_named)}\n")
        _print_ids("Let through", [(one.id, "") for one in replies.missed], texts)
        _print_ids("Rejected for nothing", [(one.id, "; ".join(one.by)) for one in replies.false], texts)
    found = {"cases": len(cases), "detection": detection.model_dump(), "replies": replies.model_dump()}
    if model:
        found["supporter"] = _supporter(cases, detector, model, texts)
    return found


def _page(parts: Mapping[str, Any]) -> str:
    """The metrics of detection and replies as one HTML page, without any text of a case."""
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    template = files("compeer.evaluate").joinpath("safety.html.jinja").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(parts=parts)


def _supporter(
    cases: list[SafetyCase], detector: Detector, model: TextModel, texts: Mapping[str, str]
) -> dict[str, Any]:
    from compeer.evaluate.safety import LOCALES, measure_supporter
    from compeer.safety import Guard, check_reply
    from compeer.safety.resources import load_resources

    guards = {
        language: Guard(detector=detector, locale=locale, language=language) for language, locale in LOCALES.items()
    }
    with progress("Guarding", sum(case.reply is None for case in cases)) as advance:
        metrics = measure_supporter(cases, model, guards, check_reply, load_resources(), advance)
    typer.echo(f"The supporter {metrics.model} behind the guard: {metrics.cases} cases.\n")
    rows = {
        "resources given in a crisis": metrics.resources,
        "nothing harmful shown": metrics.no_harm,
        "raw model rejected": metrics.raw_harm,
        "not pushed away": metrics.not_pushed_away,
        "raw model: not pushed away": metrics.raw_not_pushed_away,
        "ordinary words spared the crisis reply": metrics.ordinary_spared,
    }
    _print_shares("Behind the guard", {what: by.get("all", {}) for what, by in rows.items()})
    typer.echo(f"Asked more than once: {_shown(metrics.regenerated)}")
    for what, counts in (("Rejected for", metrics.raw_categories), ("Guard's words", metrics.replaced)):
        typer.echo(f"{what}: {', '.join(f'{reason} {count}' for reason, count in counts.items()) or 'nothing'}")
    for reason, count in metrics.no_answer.items():
        typer.echo(f"No answer: {count} × {reason}")
    typer.echo()
    for what, ids in (
        ("Crisis without resources", metrics.without_resources),
        ("Harmful and shown", metrics.harmful),
        ("Pushed away", metrics.pushed_away),
        ("Crisis reply for nothing", metrics.crisis_reply_for_nothing),
    ):
        _print_ids(what, [(one, "") for one in ids], texts)
    _print_degraded(metrics.degraded)
    return metrics.model_dump()


def _alarms(corpus: str, table: Path, detector: Detector, show: bool) -> dict[str, Any]:
    from compeer.corpora import read_corpus
    from compeer.evaluate.safety_alarms import check_free, raise_alarms, seeker_utterances, write_alarms

    check_free(table)
    said = list(seeker_utterances(read_corpus(corpus)))
    with progress("Detecting", len(said)) as advance:
        metrics, found = raise_alarms(said, detector, advance)
    write_alarms(table, found, metrics.utterances, show)
    _print_alarms(metrics)
    console.print(f"written: {plain(str(table))}", highlight=False, soft_wrap=True)
    return metrics.model_dump()


def _print_alarms(metrics: AlarmMetrics) -> None:
    typer.echo(f"{metrics.utterances:,} seeker utterances, each alone")
    levels = {"all": metrics.alarms, **metrics.levels}
    _print_shares("Alarms", {level: {"all": share} for level, share in levels.items()})
    for rule, count in metrics.rules.items():
        typer.echo(f"{count:7,}  {rule}")
    _print_degraded(metrics.degraded)


def _read(path: Path) -> dict[str, Any]:
    from compeer.evaluate.safety_alarms import read_alarms

    metrics = read_alarms(path)
    typer.echo(
        f"{metrics.alarms:,} alarms in {metrics.utterances:,} utterances: {metrics.true_alarms:,} true, "
        f"{metrics.unread:,} not read yet (counted as false)"
    )
    levels = {"all": metrics.false_alarms, **metrics.levels}
    _print_shares("False alarms after reading", {level: {"all": share} for level, share in levels.items()})
    for rule, count in metrics.false_by_rule.items():
        typer.echo(f"{count:7,}  {rule}")
    return metrics.model_dump()


# --- printing ---------------------------------------------------------------------------------------------------------


def _shown(share: Estimate | None) -> str:
    if share is None or share.value is None:
        return "–"
    return f"{share.value:.3f} [{share.low:.2f}, {share.high:.2f}] {round(share.value * share.n):,}/{share.n:,}"


def _print_shares(title: str, by_kind: Shares) -> None:
    """A row a kind, a column a language; all together last."""
    from rich.console import Console
    from rich.table import Table

    languages = sorted({name for by in by_kind.values() for name in by}, key=lambda name: (name == "all", name))
    table = Table(title, *languages, box=None)
    for kind in sorted(by_kind, key=lambda kind: kind == "all"):
        table.add_row(plain(kind), *(plain(_shown(by_kind[kind].get(name))) for name in languages))
    Console(soft_wrap=True).print(table)
    typer.echo()


def _print_confusion(levels: Mapping[str, Mapping[str, int]]) -> None:
    """A row an expected level, a column a level found."""
    from rich.console import Console
    from rich.table import Table

    table = Table("Level expected, and found", *levels, box=None)
    for expected, found in levels.items():
        table.add_row(expected, *(str(found[level]) for level in levels))
    Console(soft_wrap=True).print(table)
    typer.echo()


def _print_ids(title: str, found: Iterable[tuple[str, str]], texts: Mapping[str, str]) -> None:
    rows = list(found)
    if not rows:
        return
    typer.echo(f"{title}: {len(rows)}")
    for name, more in rows:
        typer.echo(f"  {name}" + (f"  ({more})" if more else "") + (f"\n    {texts[name]}" if name in texts else ""))
    typer.echo()


def _print_degraded(parts: Mapping[str, int]) -> None:
    for part, count in parts.items():
        typer.echo(f"Degraded in {count:,} answers: {part}\n")
