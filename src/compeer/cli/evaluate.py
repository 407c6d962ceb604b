"""`compeer evaluate`: measure what a supporter is like; here `esc-eval`, `sage`, `compare` and `diversity`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.table import Table

from compeer.cli.measure import decisions, safety
from compeer.cli.options import GOES_ON, JSON, SEED, argument, grouped, option
from compeer.cli.printing import note, plain, print_table, with_bounds, write_metrics
from compeer.cli.training import read_settings
from compeer.errors import InputError
from compeer.models.resolve import ModelSettings
from compeer.progress import console
from compeer.statistics import Estimate

if TYPE_CHECKING:
    from compeer.evaluate.diversity import DiversityMetrics
    from compeer.evaluate.players import Players, Prices
    from compeer.evaluate.runner import Evaluation

evaluate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure supporters and the guard.")
_MODEL = "'supporter' (packaged, trained), 'embedded' (untrained), a model's folder, or NAME@http://host:8000/v1"
_MODE = "Ask plainly, or for three steps and a response.  [default: plain; structured for the packaged supporter]"
_ONE_CALL = "Judges score all seven dimensions in one call, or one a call.  [default: seven; one if embedded]"
OUT = "The folder to write; called again, it goes on there."


@dataclass
class RunOptions:
    """Who takes part in simulated conversations, about which scenarios, and how models are called."""

    supporter: str | None = option(f"The supporter under test: {_MODEL}.", metavar="MODEL")
    seeker: str | None = option("Who plays the seekers: named alike.", metavar="MODEL")
    endpoint: str | None = option("One model behind a server for all roles not named otherwise.", metavar="NAME@URL")
    mode: Literal["plain", "structured"] | None = option(_MODE)
    language: list[str] | None = option("en or zh; may be given twice.", metavar="CODE")
    limit: int | None = option("Only so many scenarios, sampled by the seed.", min=1)
    repeats: int = option("Conversations about each scenario.", 1, min=1)
    seed: int = SEED
    at_once: int = option("Calls under way at a server; dialogues in a batch of a model in this process.", 16, min=1)
    max_tokens: int | None = option("Longest answer of every role; more for models that think first.", min=16)
    call: list[str] | None = option("How servers are called, as key_variable=MY_KEY.", metavar="KEY=VALUE")
    price: list[str] | None = option("Of a million prompt and answer tokens, as 0.15/0.60.", metavar="[NAME=]IN/OUT")
    currency: str = option("What the prices are in.", "USD")
    yes: bool = option("Do not ask before a server is called.", False, "--yes")

    def calling(self) -> ModelSettings:
        """How models are called: what `--call` says, with `--at-once` for both kinds of models."""
        return read_settings(ModelSettings, {"concurrency": self.at_once, "batch": self.at_once}, self.call)

    def settings(self, players: Players) -> dict[str, Any]:
        """The settings of both protocols, which go by the supporter and by where models run."""
        batch = self.calling().batch if players.any_local else None
        common = {"limit": self.limit, "seed": self.seed, "tokens": self.max_tokens, "repeats": self.repeats}
        return {"mode": self.mode or players.supporter.mode, "batch": batch, **common}


def conduct(evaluation: Evaluation, out: Path, chosen: RunOptions) -> dict[str, Any]:
    """Prints what it will cost, asks, runs, writes the report, and prints what failed."""
    from compeer.evaluate.players import check_folder, claim_folder, read_prices
    from compeer.evaluate.runner import run_evaluation
    from compeer.report.evaluation import write_evaluation

    calling, prices = chosen.calling(), read_prices(chosen.price or (), chosen.currency)
    for player in evaluation.players.all:
        player.check(calling)
    check_folder(out, evaluation.manifest())
    _announce(evaluation, out, prices, chosen.yes)
    claim_folder(out, evaluation.manifest())
    models = {player.given: player.open(calling, out / "answers.sqlite") for player in evaluation.players.all}
    metrics = asyncio.run(run_evaluation(evaluation, out, models, prices))
    report = write_evaluation(out)
    for kind, counts in metrics["failures"].items():
        for why, count in counts.items():
            note(f"  {kind} failure, {count:,} times: {why}")
    note(f"  written: {report}")
    if broken := sum(metrics["failures"]["infrastructure"].values()):
        what = f"{broken:,} times a model could not be asked; what came is kept, and the metrics hold it."
        raise InputError(what, do="Call the same command again: only what is missing is asked for.")
    return metrics


def _announce(evaluation: Evaluation, out: Path, prices: Prices, yes: bool) -> None:
    """Shows what is left to do and what it will take; a person agrees before a server is called."""
    from compeer.evaluate.players import cost_of, finished_dialogues
    from compeer.evaluate.runner import rehearse

    players, dialogues, done = evaluation.players, len(evaluation.repeated), finished_dialogues(out)
    if done >= dialogues and (out / "figures.json").is_file():
        return
    already = f", {done:,} of them done already" if done else ""
    note(f"{dialogues:,} conversations of up to {evaluation.settings.rounds} rounds{already}")
    expected = asyncio.run(rehearse(evaluation, max(0, dialogues - done), dialogues))
    table = Table("role", "model", "calls", "prompt tokens", "answer tokens", "at most", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for role, (typical, most) in expected.items():
        tokens = [f"about {typical[name]:,}" for name in ("prompt_tokens", "tokens")]
        calls, name = f"{typical['calls']:,}", plain(players.by_role[role].name)
        table.add_row(plain(role), name, calls, *tokens, f"{most['tokens']:,}")
    console.print(table)
    if prices.by_model:
        both = ({role: took[index] for role, took in expected.items()} for index in (0, 1))
        least, worst = (cost_of(players, took, prices)["price"] for took in both)
        note(f"about {least:,.2f} {prices.currency}, at most {worst:,.2f}")
    note("Estimated; answers that must be asked for again come on top.")
    servers = [player.name for player in players.all if player.kind == "endpoint"]
    if not servers or yes:
        return
    if not sys.stdin.isatty():
        raise InputError("nobody can be asked whether to go on.", do="Give --yes to call the server without asking.")
    if not typer.confirm(f"Call {', '.join(servers)}?", err=True):
        raise typer.Exit(1)


def with_share(metric: Mapping[str, Any], form: str, scale: float = 1) -> str:
    """A metric of a run's `figures.json` with its interval."""
    value, low, high = (None if metric[key] is None else scale * metric[key] for key in ("score", "low", "high"))
    return with_bounds(Estimate(value=value, low=low, high=high), form)


@evaluate.command("esc-eval")
@grouped
def esc_eval(
    chosen: RunOptions,
    judge: list[str] | None = option("Who scores: named alike; several are averaged.", metavar="MODEL"),
    cards: Path | None = option("Role cards; ours, if not given.", metavar="FILE"),
    rounds: int = option("Rounds of a conversation.", 5, min=1),
    one_call: bool | None = option(_ONE_CALL, None, "--one-call/--seven-calls"),
    out: Path = option(OUT, Path("esc-eval")),
) -> None:
    """Score a supporter from 0 to 100 in seven dimensions. Without options: the packaged models in all roles."""
    from compeer.evaluate.esc_eval import EscEval, cards_of
    from compeer.evaluate.players import named_players

    players = named_players(chosen.supporter, chosen.seeker, judge or [], chosen.endpoint)
    languages = chosen.language or ([] if cards else ["en"])
    together = any(one.kind == "embedded" for one in players.judges) if one_call is None else one_call
    settings = {**chosen.settings(players), "rounds": rounds, "one_call": together}
    metrics = conduct(EscEval.named(players, cards_of(cards), languages, **settings), out, chosen)["figures"]
    for name, one in {**metrics["dimensions"], "average": metrics["average"]}.items():
        typer.echo(f"{name:<12} {with_share(one, '.1f'):<22} {one['scored']} of {one['items']} scored")


@evaluate.command()
@grouped
def sage(
    chosen: RunOptions,
    profiles: Path | None = option("Profiles; ours, if not given.", metavar="FILE"),
    rules: str = option("sage, sage-released (the last reply is not scored), sage-paper (20 turns), rlver.", "sage"),
    turns: int | None = option("The seeker's messages; as the rules say, if none.", min=1),
    out: Path = option(OUT, Path("sage")),
) -> None:
    """SAGE: seekers with an emotion, which the supporter should lift. Without options: the packaged models."""
    from compeer.evaluate.players import named_players
    from compeer.evaluate.sage import Sage
    from compeer.simulate.emotion import preset
    from compeer.simulate.sentient import own_profiles, read_profiles

    players = named_players(chosen.supporter, chosen.seeker, None, chosen.endpoint)
    own_rules = preset(rules).model_copy(update={"turns": turns} if turns else {})
    settings = {**chosen.settings(players), "rounds": own_rules.turns, "rules": own_rules}
    evaluation = Sage.named(players, read_profiles(profiles or own_profiles()), chosen.language, **settings)
    metrics = conduct(evaluation, out, chosen)["figures"]
    emotion = metrics["emotion"]
    typer.echo(f"final emotion  {with_share(emotion, '.2f')}, {emotion['scored']} of {emotion['items']} scored")
    for name, title in (("success", "successes"), ("failure", "failures")):
        typer.echo(f"{title:<14} {metrics[name]['count']}, {with_share(metrics[name], '.1f', 100)} %")


@evaluate.command()
def compare(
    first: Path = argument("The folder of a run."),
    second: Path = argument("Another run's, on the same scenarios, of another supporter."),
    seed: int = option("Of the resampling for intervals.", 0),
    out: Path | None = JSON,
) -> None:
    """Compare two supporters on the same scenarios: differences and win rates by dimension, with paired intervals."""
    from compeer.evaluate.compare import compare_runs, read_run

    found = compare_runs(read_run(first), read_run(second), seed)
    typer.echo(f"{found.protocol}, {found.pairs:,} pairs of conversations about {found.scenarios:,} scenarios")
    typer.echo(f"A: {found.first}\nB: {found.second}")
    for remark in found.notes:
        typer.echo(f"Note: {remark}")
    rows = []
    for name, one in found.dimensions.items():
        means = ["–" if value is None else f"{value:.1f}" for value in (one.first, one.second)]
        differences = [with_bounds(one.difference, "+.1f"), with_bounds(one.win_rate, ".0%")]
        rows.append([name, *means, *differences, f"{one.wins}-{one.ties}-{one.losses}"])
    print_table(["", "A", "B", "A − B", "A wins", "won-tied-lost"], rows)
    typer.echo("95 % intervals over scenarios; where one holds 0 (50 % for wins), chance may explain the difference.")
    write_metrics(out, {"seed": seed, "folders": [str(first), str(second)], **found.model_dump()})


@evaluate.command()
def diversity(
    sets: list[str] = argument("Runs' folders, files of outputs, corpora; several are counted alike.", metavar="FILE…"),
    speaker: Literal["supporter", "seeker"] = option("Whose replies.", "supporter"),
    records: Path | None = option("The SER records that outputs answer; else each history stands for itself."),
    language: str = option("The language of outputs without records.", "en"),
    embedder: str = option("'embedded', or a sentence-transformers folder.", "embedded"),
    seed: int = SEED,
    out: Path | None = JSON,
) -> None:
    """Measure how varied replies are: distinct-n, self-BLEU, openings, similarity; at equal sizes, with intervals."""
    from compeer.evaluate.diversity import HALVES, compare_diversity, read_replies
    from compeer.models.embedder import Embedder
    from compeer.ser.record import read_records

    known = list(read_records(records)) if records else []
    read = [read_replies(name, speaker, known, language) for name in sets]
    note(f"  {sum(len(one) for one in read):,} replies are read and embedded")
    found = compare_diversity(read, Embedder(embedder), seed)
    for code in sorted({metrics.language for one in found for metrics in one}):
        chosen = [(name, f) for name, one in zip(sets, found, strict=True) for f in one if f.language == code]
        _print_diversity(code, chosen, embedder == "embedded")
    content = {
        **{"speaker": speaker, "seed": seed, "halves": HALVES},
        "bleu": "sacrebleu, effective order, exponential smoothing, case kept; zh for Chinese, else 13a",
        "embedder": embedder,
        "sets": [
            {"name": name, "figures": [metrics.model_dump() for metrics in one]}
            for name, one in zip(sets, found, strict=True)
        ],
    }
    write_metrics(out, content)


ROWS = {
    **{f"distinct-{n}": f"distinct_{n}" for n in (1, 2, 3)},
    **{"self-BLEU": "self_bleu", "open alike": "open_alike", "largest opening": "largest_opening"},
    **{"similarity in a dialogue": "in_dialogue", "similarity across": "across_dialogues"},
}


def _print_diversity(language: str, found: Sequence[tuple[str, DiversityMetrics]], packaged: bool) -> None:
    first, every = found[0][1], [metrics for _, metrics in found]
    typer.echo(
        f"{language}: distinct-n over {first.at_words:,} words, self-BLEU and openings over {first.at_replies:,} "
        "replies of each; 95 % intervals over dialogues."
    )
    rows = [[name, *(f"{getattr(metrics, name):,}" for metrics in every)] for name in ("replies", "dialogues")]
    rows.append(["characters" if language == "zh" else "words", *(f"{metrics.words:.1f}" for metrics in every)])
    for title, name in ROWS.items():
        form = ".1f" if name == "self_bleu" else ".3f"
        rows.append([title, *(with_bounds(getattr(metrics, name), form) for metrics in every)])
    print_table(["", *(name for name, _ in found)], rows)
    if packaged and language != "en":
        typer.echo("The packaged embedder knows English only: similarity here is that of wording, not of meaning.")
    if first.dialogues == first.replies:
        typer.echo("No dialogue has two replies, so there is no similarity within one.")
    typer.echo()


evaluate.command(epilog=GOES_ON)(decisions)
evaluate.command()(safety)
