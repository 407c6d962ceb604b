"""`compeer evaluate esc-eval`: role-playing seekers talk with a supporter, and judges score the conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compeer.cli.evaluate import conversing
from compeer.cli.evaluate.conversing import AT_ONCE, conduct


def esc_eval(
    supporter: conversing.Supporter = None,
    seeker: conversing.Seeker = None,
    judge: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Who scores: named alike; several are averaged.")
    ] = None,
    endpoint: conversing.Endpoint = None,
    mode: conversing.ModeOption = None,
    cards: Annotated[Path | None, typer.Option(metavar="FILE", help="Role cards; ours, if not given.")] = None,
    language: conversing.Languages = None,
    limit: conversing.Limit = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a conversation.")] = 5,
    repeats: conversing.Repeats = 1,
    one_call: Annotated[
        bool | None,
        typer.Option(
            "--one-call/--seven-calls",
            help="Judges score all seven dimensions in one call, or one a call.  [default: seven; one if embedded]",
        ),
    ] = None,
    seed: conversing.Seed = 0,
    at_once: conversing.AtOnce = AT_ONCE,
    max_tokens: conversing.MaxTokens = None,
    call: conversing.Call = None,
    price: conversing.Price = None,
    currency: conversing.Currency = "USD",
    yes: conversing.Yes = False,
    out: Annotated[Path, typer.Option(help="The folder to write; called again, it goes on there.")] = Path("esc-eval"),
) -> None:
    """Score a supporter from 0 to 100 in seven dimensions. Without options: the packaged models in all roles."""
    from compeer.evaluate.esc_eval import EscEval, EscEvalSettings
    from compeer.evaluate.players import read_prices
    from compeer.evaluate.runner import choose
    from compeer.simulate.seekers import LANGUAGES, own_cards, read_cards

    players = conversing.named_players(supporter, seeker, judge or [], endpoint)
    languages = language or ([] if cards else ["en"])
    files = [cards] if cards else [own_cards(one) for one in LANGUAGES]
    read = [card.scenario for file in files for card in read_cards(file)]
    scenarios = choose(conversing.in_languages(read, languages), limit, seed)
    calling = conversing.call_settings(call, at_once)
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
        typer.echo(f"{name:<12} {conversing.shown(one):<22} {one['scored']} of {one['items']} scored")
