"""`compeer evaluate esc-eval` and `sage`: who plays, what it will cost, the run, and what came out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.evaluate.players import Players, Prices
    from compeer.evaluate.runner import Evaluation, Expected
    from compeer.models.resolve import ModelSettings
    from compeer.simulate import Scenario

_MODEL = "'supporter' (packaged, trained), 'embedded' (untrained), a model's folder, or NAME@http://host:8000/v1"
Supporter = Annotated[str | None, typer.Option(metavar="MODEL", help=f"The supporter under test: {_MODEL}.")]
Seeker = Annotated[str | None, typer.Option(metavar="MODEL", help="Who plays the seekers: named alike.")]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="NAME@URL", help="One model behind a server for all roles that are not named otherwise."),
]
ModeOption = Annotated[
    Literal["plain", "structured"] | None,
    typer.Option(
        help="Ask the supporter plainly, or for our three steps and a response.  [default: plain; "
        "structured for the packaged supporter]"
    ),
]
Languages = Annotated[
    list[str] | None, typer.Option("--language", metavar="CODE", help="en or zh; may be given twice.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many scenarios, drawn by the seed.")]
Repeats = Annotated[int, typer.Option(min=1, help="Conversations about each scenario.")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
AtOnce = Annotated[
    int, typer.Option(min=1, help="Calls under way at a server; dialogues in a batch of a model in this process.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=16, help="Longest answer of every role; give more to models that think before they answer."),
]
Call = Annotated[
    list[str] | None,
    typer.Option("--call", metavar="KEY=VALUE", help="How servers are called, as key_variable=MY_KEY."),
]
Price = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]IN/OUT", help="Price of a million prompt and answer tokens, as 0.15/0.60."),
]
Currency = Annotated[str, typer.Option(help="What the prices are in.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a server is called.")]

AT_ONCE = 16


def named_players(
    supporter: str | None, seeker: str | None, judges: Sequence[str] | None, endpoint: str | None
) -> Players:
    """Who plays: as named, else the endpoint, else what is packaged. `judges` is None where there are none."""
    from compeer.evaluate.players import Player, Players

    if endpoint is not None and "@http" not in endpoint:
        do = "Write the model's name and the server's base URL: NAME@http://host:8000/v1"
        raise InputError(f"'{endpoint}' names no model behind a server.", field="endpoint", do=do)
    other = endpoint or "embedded"
    named = [] if judges is None else list(judges) or [other]
    players = [Player(one) for one in named]
    if len({player.name for player in players}) < len(players):
        raise InputError("two judges have the same name.", field="judge", do="Name each once, by a name of its own.")
    return Players(Player(supporter or endpoint or "supporter"), Player(seeker or other), players)


def call_settings(call: Sequence[str] | None, at_once: int) -> ModelSettings:
    """How models are called: what `--call` says, with `--at-once` for both kinds of models."""
    from compeer.cli.training import read_settings
    from compeer.models.resolve import ModelSettings

    return read_settings(ModelSettings, {"concurrency": at_once, "batch": at_once}, call)


def in_languages(scenarios: Sequence[Scenario], languages: Sequence[str] | None) -> list[Scenario]:
    """The scenarios in the languages; all if none is named. An error if there is none."""
    chosen = [one for one in scenarios if not languages or one.language in languages]
    if not chosen:
        there = ", ".join(sorted({one.language for one in scenarios}))
        what = f"there is nothing in {' or '.join(languages or [])}; there is: {there}."
        raise InputError(what, field="language", do="Name one of those, or give another file.")
    return chosen


def conduct(evaluation: Evaluation, out: Path, calling: ModelSettings, prices: Prices, yes: bool) -> dict[str, Any]:
    """Says what it will cost, asks, runs, writes the report, and says what came out."""
    from compeer.evaluate.players import check_folder, claim_folder
    from compeer.evaluate.runner import run_evaluation
    from compeer.report.evaluation import write_evaluation

    for player in evaluation.players.all:
        player.check(calling)
    check_folder(out, evaluation.manifest())
    _announce(evaluation, out, prices, yes)
    claim_folder(out, evaluation.manifest())
    if evaluation.players.any_local:
        silence_libraries()
    models = {player.given: player.open(calling, out / "answers.sqlite") for player in evaluation.players.all}
    figures = asyncio.run(run_evaluation(evaluation, out, models, prices))
    report = write_evaluation(out)
    _print_failures(figures)
    console.print(f"  written: {plain(str(report))}", highlight=False, soft_wrap=True)
    if broken := sum(figures["failures"]["infrastructure"].values()):
        what = f"{broken:,} times a model could not be asked; what came is kept, and the figures hold it."
        raise InputError(what, do="Call the same command again: only what is missing is asked for.")
    return figures


def _announce(evaluation: Evaluation, out: Path, prices: Prices, yes: bool) -> None:
    """Shows what is left to do and what it will take; a person agrees before a server is called."""
    from compeer.evaluate.players import finished_dialogues
    from compeer.evaluate.runner import rehearse

    dialogues = len(evaluation.repeated)
    done = finished_dialogues(out)
    if done >= dialogues and (out / "figures.json").is_file():
        return
    console.print(
        f"{dialogues:,} conversations of up to {evaluation.settings.rounds} rounds"
        + (f", {done:,} of them done already" if done else ""),
        highlight=False,
    )
    expected = asyncio.run(rehearse(evaluation, max(0, dialogues - done), dialogues))
    _print_expected(evaluation.players, expected, prices)
    servers = [player.name for player in evaluation.players.all if player.kind == "endpoint"]
    if not servers or yes:
        return
    if not sys.stdin.isatty():
        raise InputError("nobody can be asked whether to go on.", do="Give --yes to call the server without asking.")
    if not typer.confirm(f"Call {', '.join(servers)}?", err=True):
        raise typer.Exit(1)


def _print_expected(players: Players, expected: Mapping[str, Expected], prices: Prices) -> None:
    from rich.table import Table

    from compeer.evaluate.players import cost_of

    table = Table("role", "model", "calls", "prompt tokens", "answer tokens", "at most", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for role, one in expected.items():
        table.add_row(
            plain(role),
            plain(players.by_role[role].name),
            f"{one.calls:,}",
            f"about {one.prompt_tokens[0]:,}",
            f"about {one.tokens[0]:,}",
            f"{one.tokens[1]:,}",
        )
    console.print(table)
    if prices.by_model:
        about, most = (
            cost_of(players, {role: one.took(place) for role, one in expected.items()}, prices)["price"]
            for place in (0, 1)
        )
        console.print(f"about {about:,.2f} {plain(prices.currency)}, at most {most:,.2f}", highlight=False)
    console.print("Estimated; answers that must be asked for again come on top.", highlight=False)


def _print_failures(figures: Mapping[str, Any]) -> None:
    for kind, counts in figures["failures"].items():
        for why, count in counts.items():
            console.print(f"  {kind} failure, {count:,} times: {plain(why)}", highlight=False)


def with_bounds(figure: Mapping[str, Any], scale: float = 1, digits: int = 1) -> str:
    """A figure with its interval."""
    if figure["score"] is None:
        return "–"
    bounds = ""
    if figure["low"] is not None:
        bounds = f" [{scale * figure['low']:.{digits}f}, {scale * figure['high']:.{digits}f}]"
    return f"{scale * figure['score']:.{digits}f}{bounds}"


# --- the commands -----------------------------------------------------------------------------------------------------


def esc_eval(
    supporter: Supporter = None,
    seeker: Seeker = None,
    judge: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Who scores: named alike; several are averaged.")
    ] = None,
    endpoint: Endpoint = None,
    mode: ModeOption = None,
    cards: Annotated[Path | None, typer.Option(metavar="FILE", help="Role cards; ours, if not given.")] = None,
    language: Languages = None,
    limit: Limit = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a conversation.")] = 5,
    repeats: Repeats = 1,
    one_call: Annotated[
        bool | None,
        typer.Option(
            "--one-call/--seven-calls",
            help="Judges score all seven dimensions in one call, or one a call.  [default: seven; one if embedded]",
        ),
    ] = None,
    seed: Seed = 0,
    at_once: AtOnce = AT_ONCE,
    max_tokens: MaxTokens = None,
    call: Call = None,
    price: Price = None,
    currency: Currency = "USD",
    yes: Yes = False,
    out: Annotated[Path, typer.Option(help="The folder to write; called again, it goes on there.")] = Path("esc-eval"),
) -> None:
    """Score a supporter from 0 to 100 in seven dimensions. Without options: the packaged models in all roles."""
    from compeer.evaluate.esc_eval import EscEval, EscEvalSettings
    from compeer.evaluate.players import read_prices
    from compeer.evaluate.runner import choose
    from compeer.simulate.seekers import LANGUAGES, own_cards, read_cards

    players = named_players(supporter, seeker, judge or [], endpoint)
    languages = language or ([] if cards else ["en"])
    files = [cards] if cards else [own_cards(one) for one in LANGUAGES]
    read = [card for file in files for card in read_cards(file)]
    scenarios = choose(in_languages(read, languages), limit, seed)
    calling = call_settings(call, at_once)
    settings = EscEvalSettings(
        mode=mode or players.supporter.mode,
        rounds=rounds,
        repeats=repeats,
        supporter_tokens=max_tokens or players.supporter.longest_reply(mode or players.supporter.mode),
        seeker_tokens=max_tokens or players.seeker.longest("seeker"),
        judge_tokens=max_tokens or max(one.longest("judge") for one in players.judges),
        batch=calling.batch if players.any_local else None,
        one_call=any(one.kind == "embedded" for one in players.judges) if one_call is None else one_call,
    )
    evaluation = EscEval(players, scenarios, settings, seed)
    figures = conduct(evaluation, out, calling, read_prices(price or (), currency), yes)["figures"]
    for name, one in {**figures["dimensions"], "average": figures["average"]}.items():
        typer.echo(f"{name:<12} {with_bounds(one):<22} {one['scored']} of {one['items']} scored")


sage = typer.Typer(rich_markup_mode=None)


@sage.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    supporter: Supporter = None,
    seeker: Seeker = None,
    endpoint: Endpoint = None,
    mode: ModeOption = None,
    profiles: Annotated[Path | None, typer.Option(metavar="FILE", help="Profiles; ours, if not given.")] = None,
    language: Languages = None,
    limit: Limit = None,
    rules: Annotated[
        str, typer.Option(help="sage, sage-released (the last reply is not scored), sage-paper (20 turns), rlver.")
    ] = "sage",
    turns: Annotated[int | None, typer.Option(min=1, help="The seeker's messages; as the rules say, if none.")] = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    at_once: AtOnce = AT_ONCE,
    max_tokens: MaxTokens = None,
    call: Call = None,
    price: Price = None,
    currency: Currency = "USD",
    yes: Yes = False,
    out: Annotated[Path, typer.Option(help="The folder to write; called again, it goes on there.")] = Path("sage"),
) -> None:
    """SAGE: seekers with an emotion, which the supporter should lift. Without options: the packaged models."""
    if context.invoked_subcommand:
        return
    from compeer.evaluate.players import read_prices
    from compeer.evaluate.runner import choose
    from compeer.evaluate.sage import Sage, SageSettings
    from compeer.simulate.emotion import preset
    from compeer.simulate.sentient import own_profiles, read_profiles

    players = named_players(supporter, seeker, None, endpoint)
    chosen = preset(rules).model_copy(update={"turns": turns} if turns else {})
    read = read_profiles(profiles or own_profiles())
    scenarios = choose(in_languages(read, language), limit, seed)
    calling = call_settings(call, at_once)
    settings = SageSettings(
        mode=mode or players.supporter.mode,
        rounds=chosen.turns,
        repeats=repeats,
        supporter_tokens=max_tokens or players.supporter.longest_reply(mode or players.supporter.mode),
        seeker_tokens=max_tokens or players.seeker.longest("sentient seeker"),
        message_tokens=max_tokens or players.seeker.longest("seeker"),
        batch=calling.batch if players.any_local else None,
        rules=chosen,
    )
    evaluation = Sage(players, scenarios, settings, seed)
    figures = conduct(evaluation, out, calling, read_prices(price or (), currency), yes)["figures"]
    emotion = figures["emotion"]
    typer.echo(f"final emotion  {with_bounds(emotion, digits=2)}, {emotion['scored']} of {emotion['items']} scored")
    for name, title in (("success", "successes"), ("failure", "failures")):
        typer.echo(f"{title:<14} {figures[name]['count']}, {with_bounds(figures[name], 100)} %")


@sage.command()
def rescore(transcripts: Annotated[Path, typer.Argument(help="Transcripts of the released kind, one a line.")]) -> None:
    """Mean final emotion, successes and failures of transcripts that somebody else made."""
    from compeer.evaluate.sage import rescore_command

    typer.echo(rescore_command(transcripts))
