"""What conversations took, by the logs of the engine, and what that costs where prices are known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from compeer.dialogue import Speaker
from compeer.errors import InputError
from compeer.evaluate.players import Player, Players
from compeer.simulate.running import Entry


def dialogues_took(folder: Path) -> dict[str, dict[str, int]]:
    """Calls and tokens of the supporter and the seeker, in all conversations of an evaluation's folder."""
    took: dict[str, dict[str, int]] = {
        role: {"calls": 0, "prompt_tokens": 0, "tokens": 0} for role in ("supporter", "seeker")
    }
    for path in sorted((folder / "dialogues").glob("*.jsonl")):
        for speaker, entry in _entries(path):
            told = took[speaker]
            told["calls"] += len(entry.calls)
            told["prompt_tokens"] += sum(call.prompt_tokens for call in entry.calls)
            told["tokens"] += sum(call.tokens for call in entry.calls)
    return took


def finished_dialogues(folder: Path) -> int:
    """How many conversations of a folder are over, so that another call would not touch them."""
    return sum(_finished(path) for path in (folder / "dialogues").glob("*.jsonl"))


def _finished(path: Path) -> bool:
    entries = [entry for _, entry in _entries(path)]
    outcome = entries[-1].outcome if entries else None
    return outcome is not None and not outcome.may_pass


def _entries(path: Path) -> Iterator[tuple[Speaker, Entry]]:
    """The whole lines of a log after its head, and whose they are; it ends where it cannot be read."""
    turns = 0
    for line in path.read_bytes().split(b"\n")[1:-1]:
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError:
            return
        yield "supporter" if turns % 2 else "seeker", entry
        turns += entry.turn is not None


# --- prices -----------------------------------------------------------------------------------------------------------

_PRICE = re.compile(r"(?:(?P<name>.+)=)?(?P<prompt>[0-9.]+)/(?P<answer>[0-9.]+)")


@dataclass(frozen=True)
class Prices:
    """Money for a million prompt tokens and a million answer tokens, by model; "" stands for all other endpoints."""

    by_model: Mapping[str, tuple[float, float]]
    currency: str = "USD"

    def of(self, player: Player, took: Mapping[str, int]) -> float | None:
        """What these tokens cost; None if there is no price for the model. Models in this process cost nothing."""
        price = self.by_model.get(player.name, self.by_model.get(""))
        if price is None or player.kind != "endpoint":
            return None
        return (took["prompt_tokens"] * price[0] + took["tokens"] * price[1]) / 1e6


def cost_of(players: Players, took: Mapping[str, Mapping[str, int]], prices: Prices | None) -> dict[str, Any]:
    """What each role took, and the price of it all where prices are known."""
    roles = {role: dict(counts) for role, counts in took.items()}
    if not prices or not prices.by_model:
        return {"roles": roles}
    spent = [prices.of(players.by_role[role], counts) for role, counts in took.items()]
    return {"roles": roles, "price": round(sum(one or 0.0 for one in spent), 6), "currency": prices.currency}


def read_prices(texts: Sequence[str], currency: str = "USD") -> Prices:
    """Prices as a person writes them: `0.15/0.60` for all endpoints, `NAME=2.5/10` for one model."""
    found: dict[str, tuple[float, float]] = {}
    for text in texts:
        match = _PRICE.fullmatch(text.strip())
        try:
            prices = (float(match["prompt"]), float(match["answer"])) if match else None
        except ValueError:
            prices = None
        if match is None or prices is None or not all(map(math.isfinite, prices)):
            do = "Write the price of a million prompt tokens, a slash, and that of a million answer tokens: 0.15/0.60"
            raise InputError(f"'{text}' is no price.", field="price", do=f"{do}, or NAME=0.15/0.60 for one model.")
        found[match["name"] or ""] = prices
    return Prices(found, currency)
