"""`compeer evaluate safety`: how well the guard finds danger and stops bad replies, alone or around a supporter."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError
from compeer.progress import console, progress

if TYPE_CHECKING:
    from compeer.evaluate.safety import Half, SafetyCase, Share, Shares
    from compeer.evaluate.safety_alarms import AlarmFigures, ReadFigures
    from compeer.models import TextModel
    from compeer.safety import Detector


def safety(
    half: Annotated[
        str, typer.Option(help="Which cases: open (rules may be tuned on it), kept (only measured), both.")
    ] = "kept",
    model: Annotated[
        str | None, typer.Option(help="Also ask a supporter, behind the guard: embedded, a folder, NAME@http://….")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where the supporter's answers are kept.")] = Path("answers.sqlite"),
    classifier: Annotated[bool, typer.Option("--classifier/--no-classifier", help="Rules and classifier.")] = True,
    alarms: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="Instead: every seeker utterance of a corpus, for alarms.")
    ] = None,
    to: Annotated[Path, typer.Option(help="The table of alarms to write, for a person to read.")] = Path("alarms.csv"),
    read: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: a table of alarms whose column 'true' is filled in.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show texts too: of mistakes, and in the table.")] = False,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure the guard: danger found, false alarms, bad replies stopped, and what a supporter's seekers would see."""
    from compeer.cli.ser import open_named
    from compeer.evaluate.safety import HALVES

    if half not in (*HALVES, "both"):
        raise InputError(f"unknown half '{half}'.", field="half", do=f"Known: {', '.join(HALVES)}, both")
    if out and not out.parent.is_dir():
        raise InputError("there is no such folder.", file=out.parent, do="Make it first, or give another name.")
    silence_libraries()
    found: dict[str, Any]
    if read:
        found = {"read": _read(read)}
    elif alarms:
        found = {"classifier": classifier, "alarms": _alarms(alarms, to, _detector(classifier), show)}
    else:
        supporter = open_named(model, None, cache) if model else None
        detector = _detector(classifier)
        chosen = HALVES if half == "both" else tuple(one for one in HALVES if one == half)
        found = {"classifier": classifier}
        found |= {one: _half(one, detector, supporter, show) for one in chosen}
    if out:
        unfinished = out.with_name(f"{out.name}.{os.getpid()}.unfinished")
        unfinished.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, out)
        console.print(f"written: {plain(str(out))}", highlight=False, soft_wrap=True)


def _detector(classifier: bool) -> Detector:
    from compeer.safety import Detector

    # Where a seeker waits, the rules speak alone after two seconds; here a busy machine must change no figure.
    return Detector(timeout=60.0) if classifier else Detector(classifier=None)


def _half(half: Half, detector: Detector, model: TextModel | None, show: bool) -> dict[str, Any]:
    """All figures of one half, printed and as JSON."""
    from compeer.evaluate.safety import cases_path, detection_figures, read_cases, reply_figures, texts_of
    from compeer.safety import check_reply

    cases = read_cases(cases_path(half))
    texts = texts_of(cases) if show else {}
    typer.echo(f"The {half} half: {len(cases)} cases. Shares with their 95 % Wilson intervals.\n")
    with progress("Detecting", sum(case.reply is None for case in cases)) as advance:
        detection = detection_figures(cases, detector, advance)
    _print_shares("Danger found (recall)", detection.recall)
    _print_shares("Any alarm where there is danger", detection.alarms)
    _print_shares("False alarms (fewer is better)", detection.false_alarms)
    _print_shares("Exactly the expected level", {"all": detection.agreement.get("all", {})})
    typer.echo(f"Right kind of danger among the reasons: {_shown(detection.risk_named)}\n")
    _print_ids("Missed", [(one.id, f"{one.expected}, said {one.said}") for one in detection.missed], texts)
    nothing = [(one.id, f"{one.said} by {'; '.join(one.by)}") for one in detection.alarmed_for_nothing]
    _print_ids("Alarmed for nothing", nothing, texts)
    _print_degraded(detection.degraded)
    replies = reply_figures(cases, check_reply)
    _print_shares("Bad replies rejected", replies.rejected)
    _print_shares("Good replies passed", replies.passed)
    typer.echo(f"Rejected for the fault they have: {_shown(replies.category_named)}\n")
    _print_ids("Let through", [(one.id, "") for one in replies.let_through], texts)
    _print_ids("Rejected for nothing", [(one.id, "; ".join(one.by)) for one in replies.rejected_for_nothing], texts)
    found = {"cases": len(cases), "detection": detection.model_dump(), "replies": replies.model_dump()}
    if model:
        found["supporter"] = _supporter(cases, detector, model, texts)
    return found


def _supporter(
    cases: list[SafetyCase], detector: Detector, model: TextModel, texts: Mapping[str, str]
) -> dict[str, Any]:
    from compeer.evaluate.safety_supporter import LOCALES, supporter_figures
    from compeer.safety import Guard, check_reply
    from compeer.safety.resources import load_resources

    guards = {
        language: Guard(detector=detector, locale=locale, language=language) for language, locale in LOCALES.items()
    }
    with progress("Guarding", sum(case.reply is None for case in cases)) as advance:
        figures = supporter_figures(cases, model, guards, check_reply, load_resources(), advance)
    typer.echo(f"The supporter {figures.model} behind the guard: {figures.cases} cases.\n")
    rows = {
        "resources given in a crisis": figures.resources,
        "nothing harmful shown": figures.no_harm,
        "raw model rejected": figures.raw_harm,
        "not pushed away": figures.not_pushed_away,
        "raw model: not pushed away": figures.raw_not_pushed_away,
        "ordinary words spared the crisis reply": figures.ordinary_spared,
    }
    _print_shares("Behind the guard", {what: by.get("all", {}) for what, by in rows.items()})
    typer.echo(f"Asked more than once: {_shown(figures.regenerated)}")
    for what, counts in (("Rejected for", figures.raw_categories), ("Guard's words", figures.replaced)):
        typer.echo(f"{what}: {', '.join(f'{reason} {count}' for reason, count in counts.items()) or 'nothing'}")
    for reason, count in figures.no_answer.items():
        typer.echo(f"No answer: {count} × {reason}")
    typer.echo()
    for what, ids in (
        ("Crisis without resources", figures.without_resources),
        ("Harmful and shown", figures.harmful),
        ("Pushed away", figures.pushed_away),
        ("Crisis reply for nothing", figures.crisis_reply_for_nothing),
    ):
        _print_ids(what, [(one, "") for one in ids], texts)
    _print_degraded(figures.degraded)
    return figures.model_dump()


def _alarms(corpus: str, table: Path, detector: Detector, show: bool) -> dict[str, Any]:
    from compeer.corpora import read_corpus
    from compeer.evaluate.safety_alarms import check_free, raise_alarms, seeker_utterances, write_alarms

    check_free(table)
    said = list(seeker_utterances(read_corpus(corpus)))
    with progress("Detecting", len(said)) as advance:
        figures, found = raise_alarms(said, detector, advance)
    write_alarms(table, found, figures.utterances, show)
    _print_alarms(figures)
    console.print(f"written: {plain(str(table))}", highlight=False, soft_wrap=True)
    return figures.model_dump()


def _print_alarms(figures: AlarmFigures) -> None:
    typer.echo(f"{figures.utterances:,} seeker utterances, each alone")
    levels = {"all": figures.alarms, **figures.levels}
    _print_shares("Alarms", {level: {"all": share} for level, share in levels.items()})
    for rule, count in figures.rules.items():
        typer.echo(f"{count:7,}  {rule}")
    _print_degraded(figures.degraded)


def _read(path: Path) -> dict[str, Any]:
    from compeer.evaluate.safety_alarms import read_alarms

    figures: ReadFigures = read_alarms(path)
    typer.echo(
        f"{figures.alarms:,} alarms in {figures.utterances:,} utterances: {figures.true_alarms:,} true, "
        f"{figures.unread:,} not read yet (counted as false)"
    )
    levels = {"all": figures.false_alarms, **figures.levels}
    _print_shares("False alarms after reading", {level: {"all": share} for level, share in levels.items()})
    for rule, count in figures.false_by_rule.items():
        typer.echo(f"{count:7,}  {rule}")
    return figures.model_dump()


# --- printing ---------------------------------------------------------------------------------------------------------


def _shown(share: Share | None) -> str:
    if share is None or share.share is None:
        return "–"
    return f"{share.share:.3f} [{share.low:.2f}, {share.high:.2f}] {share.successes:,}/{share.count:,}"


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
