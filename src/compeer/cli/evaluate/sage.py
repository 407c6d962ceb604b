"""`compeer evaluate sage`: conversations with a seeker whose emotion is followed, and transcripts scored again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compeer.cli.evaluate import conversing
from compeer.cli.evaluate.conversing import AT_ONCE, conduct

sage = typer.Typer(rich_markup_mode=None)


@sage.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    supporter: conversing.Supporter = None,
    seeker: conversing.Seeker = None,
    endpoint: conversing.Endpoint = None,
    mode: conversing.ModeOption = None,
    profiles: Annotated[Path | None, typer.Option(metavar="FILE", help="Profiles; ours, if not given.")] = None,
    language: conversing.Languages = None,
    limit: conversing.Limit = None,
    rules: Annotated[
        str, typer.Option(help="sage, sage-released (the last reply is not scored), sage-paper (20 turns), rlver.")
    ] = "sage",
    turns: Annotated[int | None, typer.Option(min=1, help="The seeker's messages; as the rules say, if none.")] = None,
    repeats: conversing.Repeats = 1,
    seed: conversing.Seed = 0,
    at_once: conversing.AtOnce = AT_ONCE,
    max_tokens: conversing.MaxTokens = None,
    call: conversing.Call = None,
    price: conversing.Price = None,
    currency: conversing.Currency = "USD",
    yes: conversing.Yes = False,
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

    players = conversing.named_players(supporter, seeker, None, endpoint)
    chosen = preset(rules).model_copy(update={"turns": turns} if turns else {})
    read = [profile.scenario for profile in read_profiles(profiles or own_profiles())]
    scenarios = choose(conversing.in_languages(read, language), limit, seed)
    calling = conversing.call_settings(call, at_once)
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
    typer.echo(
        f"final emotion  {conversing.shown(emotion, digits=2)}, {emotion['scored']} of {emotion['items']} scored"
    )
    for name, title in (("success", "successes"), ("failure", "failures")):
        typer.echo(f"{title:<14} {figures[name]['count']}, {conversing.shown(figures[name], 100)} %")


@sage.command()
def rescore(transcripts: Annotated[Path, typer.Argument(help="Transcripts of the released kind, one a line.")]) -> None:
    """Mean final emotion, successes and failures of transcripts that somebody else made."""
    from compeer.evaluate.sage import rescore_command

    typer.echo(rescore_command(transcripts))
