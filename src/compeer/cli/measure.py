"""The parts of `compeer evaluate` that need no simulated conversation: `decisions` and `safety`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from compeer.cli.models import SupporterOptions, open_named
from compeer.cli.options import JSON, LONGEST, SEED, SPLITS, TEMPERATURE, argument, grouped, option, writable
from compeer.cli.printing import note, note_written, print_table, with_bounds, write_metrics
from compeer.errors import InputError
from compeer.models import Sampling, TextModel
from compeer.models.resolve import folder_mark
from compeer.progress import progress
from compeer.reasoning import parse_turn
from compeer.statistics import Estimate

if TYPE_CHECKING:
    from compeer.evaluate.decisions import DecisionReport, PerplexityMetrics
    from compeer.evaluate.safety import SafetyCase, Shares
    from compeer.safety import Detector


@grouped
def decisions(
    asked: SupporterOptions,
    turns: str = argument("Held-out turns: a file of SER records, a corpus, or 'sample'."),
    model: str | None = option("The supporter: 'embedded', its folder, or NAME@http://host:8000/v1."),
    outputs: Path = option("The file of outputs: read if there is no --model, else written.", Path("outputs.jsonl")),
    split: str = option(SPLITS, "test"),
    rounds: int = option("Rounds of a corpus' dialogue, sampled as the dataset's are.", 5, min=1),
    limit: int | None = option("At most so many turns, sampled by the seed.", min=1),
    perplexity: bool = option("Also of human responses, for a model in this process.", True),
    mode: Literal["structured", "plain"] = option("What perplexity is given; structured: steps too.", "structured"),
    constrained: bool = option("Hold outputs to the form of a turn.", False, "--constrained"),
    temperature: float = option(TEMPERATURE, 0.0, min=0),
    max_tokens: int = option(LONGEST, 256, min=1),
    seed: int = SEED,
    out: Path | None = JSON,
) -> None:
    """Measure decisions against the corpus: accuracy, macro-F1, strategies by stage; perplexity of human responses."""
    from compeer.corpora import corpus_path
    from compeer.evaluate.decisions import decision_report, held_out, measure_perplexity
    from compeer.evaluate.runner import sample
    from compeer.models.local import LocalModel
    from compeer.models.training import model_card
    from compeer.policy.prompt import refuse_direct
    from compeer.policy.selection import candidate_metrics, candidate_stage, read_candidates

    dropped: Counter[str] = Counter()
    records = sample(held_out(turns, split, rounds, seed, dropped), limit, seed, "decisions")
    surprise = None
    if model:
        refuse_direct(Path(model))
        opened = asked.supporter(model)
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        last = model_card(Path(model)).get("history")
        marks = {model: folder_mark(Path(model))} if Path(model).is_dir() else {}
        more: dict[str, Any] = {"last": last, "constrained": constrained, "marks": marks}
        with progress("Asking the supporter", len(records)) as advance:
            candidate_stage(corpus_path(turns), records, outputs, opened, sampling, seed, **more, advance=advance)
        if perplexity and isinstance(opened, LocalModel):
            with progress("Reading human responses", len(records)) as advance:
                surprise = measure_perplexity(opened, records, mode, last, seed, advance)
        elif perplexity:
            note("  Perplexity needs a model in this process; it is left out.")
    written = list(read_candidates(outputs))
    first = {one.record: one for one in reversed(written)}
    known = [record for record in records if record.id in first and first[record.id].failure is None]
    if not known:
        do = "Make them with --model, or with: compeer policy generate"
        raise InputError(f"no output of it answers one of the {len(records)} held-out turns.", file=outputs, do=do)
    parsed = [parse_turn(first[record.id].output, cut_off=first[record.id].cut_off) for record in known]
    report = decision_report(known, parsed, seed)
    _print_decisions(report, len(records) - len(known), dropped, surprise)
    content = {
        **{"turns": turns, "model": model, "seed": seed, "without_output": len(records) - len(known)},
        **{"dropped": dict(dropped), "outputs": candidate_metrics(written)},
        **report.model_dump(exclude={"turns"}),
        **{"held_out": report.turns, "perplexity": surprise and surprise.model_dump()},
    }
    write_metrics(out, content)


def _print_decisions(
    report: DecisionReport, unanswered: int, dropped: Counter[str], surprise: PerplexityMetrics | None
) -> None:
    typer.echo(f"{report.turns:,} held-out turns of {report.dialogues:,} dialogues; 95 % intervals over dialogues.")
    typer.echo(f"Everything could be read in {report.complete or 0:.1%} of the outputs; no output: {unanswered:,}.")
    for reason, count in dropped.items():
        typer.echo(f"No gold turn, {reason}: {count:,}")
    rows: list[list[str]] = []
    for name, one in (report.gold | {f"{name} (by rule)": one for name, one in report.derived.items()}).items():
        counts = [f"{one.turns:,}", f"{one.missing:,}"]
        rows.append([name, with_bounds(one.accuracy), with_bounds(one.macro_f1), *counts])
        rows.append([f"  always {one.majority}", f"{one.majority_accuracy:.3f}", f"{one.majority_macro_f1:.3f}"])
        rows.append(["  above that", with_bounds(one.above_majority, "+.3f")])
    print_table(["decision", "accuracy", "macro-F1", "turns", "missing"], rows)
    typer.echo("\nStrategies against the humans' on the same turns: KL(human ‖ model) in nats, smoothed")
    rows = []
    for stage, used in report.strategies.items():
        baseline = "–" if used.by_chance is None else f"{used.by_chance:.3f}"
        rows.append([stage, with_bounds(used.kl), baseline, f"{used.turns:,}"])
    print_table(["stage", "KL", "by chance", "turns"], rows)
    if surprise:
        perplexity, bits = with_bounds(surprise.perplexity), with_bounds(surprise.bits_per_character)
        typer.echo(
            f"\nHuman responses given {surprise.given}: perplexity {perplexity} a token, {bits} bits a "
            f"character ({surprise.responses:,} responses; too long: {surprise.too_long:,})"
        )


def safety(
    half: str = option("Which cases: open (rules may be changed on it), tuning (thresholds were), both.", "tuning"),
    cases: Path | None = option("Instead of a half: cases of your own.", metavar="FILE"),
    model: str | None = option("Also ask a supporter, behind the guard: embedded, a folder, NAME@http://…."),
    cache: Path = option("Where the supporter's answers are kept.", Path("answers.sqlite")),
    classifier: bool = option("The best reader, or rules and weighted phrases alone.", True),
    show: bool = option("Print the texts of mistakes too.", False, "--show"),
    out: Path | None = JSON,
    page: Path | None = option("An HTML page with all shares and confused levels.", metavar="FILE", callback=writable),
) -> None:
    """Measure the guard: danger found, false alarms, bad replies stopped, and what a supporter's seekers would see."""
    from compeer.evaluate.safety import HALVES, cases_path, read_cases
    from compeer.report.page import write_page
    from compeer.safety import Detector

    half = "tuning" if half == "kept" else half  # its name until thresholds were chosen on it
    if half not in (*HALVES, "both"):
        raise InputError(f"unknown half '{half}'.", field="half", do=f"Known: {', '.join(HALVES)}, both")
    detector = Detector() if classifier else Detector(classifier=None)
    supporter = open_named(model, None, cache) if model else None
    paths = {cases.stem: cases} if cases else {one: cases_path(one) for one in HALVES if half in (one, "both")}
    parts = {name: _part(name, read_cases(path), detector, supporter, show) for name, path in paths.items()}
    write_metrics(out, {"classifier": classifier, **parts})
    if page:
        note_written(write_page(page, "safety.html.jinja", parts=parts))


def _part(
    name: str, cases: list[SafetyCase], detector: Detector, model: TextModel | None, show: bool
) -> dict[str, Any]:
    """All metrics of some cases, printed and as JSON."""
    from compeer.evaluate.safety import measure_detection, measure_replies, texts_of

    texts = texts_of(cases) if show else {}
    typer.echo(f"The part '{name}': {len(cases)} cases. Shares with their 95 % Wilson intervals.\n")
    with progress("Detecting", sum(case.reply is None for case in cases)) as advance:
        detection = measure_detection(cases, detector, advance)
    _print_shares("Danger found (recall)", detection.recall)
    _print_shares("Any alarm where there is danger", detection.alarms)
    _print_shares("False alarms (fewer is better)", detection.false_alarms)
    _print_shares("Exactly the expected level", {"all": detection.agreement.get("all", {})})
    levels = detection.levels
    confusion = [[expected, *(str(found[level]) for level in levels)] for expected, found in levels.items()]
    print_table(["Level expected, and found", *levels], confusion)
    typer.echo(f"\nRight kind of danger among the reasons: {_with_count(detection.risk_named)}\n")
    _print_ids("Missed", {one.id: f"{one.expected}, found {one.found}" for one in detection.missed}, texts)
    _print_ids("Alarmed for nothing", {one.id: f"{one.found} by {'; '.join(one.by)}" for one in detection.false}, texts)
    _print_degraded(detection.degraded)
    replies = measure_replies(cases)
    if replies.cases:
        _print_shares("Bad replies rejected", replies.rejected)
        _print_shares("Good replies passed", replies.passed)
        typer.echo(f"Rejected for the fault they have: {_with_count(replies.category_named)}\n")
        _print_ids("Let through", [one.id for one in replies.missed], texts)
        _print_ids("Rejected for nothing", {one.id: "; ".join(one.by) for one in replies.false}, texts)
    found = {"cases": len(cases), "detection": detection.model_dump(), "replies": replies.model_dump()}
    return found | {"supporter": _supporter(cases, detector, model, texts)} if model else found


def _supporter(
    cases: list[SafetyCase], detector: Detector, model: TextModel, texts: Mapping[str, str]
) -> dict[str, Any]:
    from compeer.evaluate.safety import measure_supporter

    with progress("Guarding", sum(case.reply is None for case in cases)) as advance:
        metrics = measure_supporter(cases, model, detector, advance)
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
    typer.echo(f"Asked more than once: {_with_count(metrics.regenerated)}")
    for what, counts in (("Rejected for", metrics.raw_categories), ("Guard's words", metrics.replaced)):
        typer.echo(f"{what}: {', '.join(f'{reason} {count}' for reason, count in counts.items()) or 'nothing'}")
    for reason, count in metrics.no_answer.items():
        typer.echo(f"No answer: {count} × {reason}")
    typer.echo()
    _print_ids("Crisis without resources", metrics.without_resources, texts)
    _print_ids("Harmful and shown", metrics.harmful, texts)
    _print_ids("Pushed away", metrics.pushed_away, texts)
    _print_ids("Crisis reply for nothing", metrics.crisis_reply_for_nothing, texts)
    _print_degraded(metrics.degraded)
    return metrics.model_dump()


def _with_count(share: Estimate | None) -> str:
    """A share with its interval and its counts."""
    if share is None or share.value is None:
        return "–"
    return f"{share.value:.3f} [{share.low:.2f}, {share.high:.2f}] {round(share.value * share.n):,}/{share.n:,}"


def _print_shares(title: str, by_kind: Shares) -> None:
    """A row a kind, a column a language; all together last."""
    languages = sorted({name for by in by_kind.values() for name in by}, key=lambda name: (name == "all", name))
    kinds = sorted(by_kind, key=lambda kind: kind == "all")
    rows = [[kind, *(_with_count(by_kind[kind].get(name)) for name in languages)] for kind in kinds]
    print_table([title, *languages], rows)
    typer.echo()


def _print_ids(title: str, found: Mapping[str, str] | Sequence[str], texts: Mapping[str, str]) -> None:
    """The ids of cases, with a remark where there are any, and with their texts where these are wanted."""
    lines = [f"{title}: {len(found)}"]
    for name in found:
        more = f"  ({found[name]})" if isinstance(found, Mapping) and found[name] else ""
        lines.append(f"  {name}{more}" + (f"\n    {texts[name]}" if name in texts else ""))
    if found:
        typer.echo("\n".join(lines) + "\n")


def _print_degraded(parts: Mapping[str, int]) -> None:
    for part, count in parts.items():
        typer.echo(f"Degraded in {count:,} answers: {part}\n")
