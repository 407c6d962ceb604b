"""Who plays in an evaluation, what that costs, and the folder that it writes.

The supporter under test, the seeker and the judges are each given by the name that a person gave them. What
conversations took is counted by their logs. A folder belongs to one evaluation: its manifest says which.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from compeer.errors import InputError
from compeer.io import LOCK, read_json, table, write_json
from compeer.models.base import TextModel
from compeer.models.catalogue import BASES, PACKAGED_MODELS, base_file
from compeer.models.resolve import ModelSettings, display_name, folder_mark, model_mark, open_model
from compeer.simulate import Conversation
from compeer.simulate.runner import read_log

Kind = Literal["embedded", "base", "folder", "endpoint"]
Part = Literal["plain", "structured", "seeker", "sentient seeker", "judge"]
LONGEST: dict[Any, tuple[int, int]] = table("evaluate/longest")  # tokens, and those of the embedded model


@dataclass(frozen=True)
class Player:
    """A model by the name that a person gave it: `supporter`, `embedded`, `qwen-1.5b`, a folder, or NAME@URL."""

    given: str

    @property
    def kind(self) -> Kind:
        if self.given in BASES:
            return "base"
        if model_mark(self.given):
            return "embedded"
        return "endpoint" if "@http" in self.given else "folder"

    @property
    def name(self) -> str:
        """What tables call it."""
        return display_name(self.given) if self.kind in ("embedded", "base") else self.given.partition("@http")[0]

    @property
    def history(self) -> int | None:
        """How many utterances it was trained on at most, where it was trained here as a supporter; None: all."""
        if self.kind != "folder":
            return None
        from compeer.models.training import model_card  # torch is heavy

        found: int | None = model_card(Path(self.given)).get("history")
        return found

    @property
    def described(self) -> dict[str, Any]:
        """What marks the model: for an endpoint nothing but its name is known."""
        if self.kind == "endpoint":
            return {"name": self.name, "kind": self.kind, "url": self.given.removeprefix(f"{self.name}@")}
        mark = model_mark(self.given) or folder_mark(Path(self.given))
        return {"name": self.name, "kind": self.kind, "mark": mark}

    @property
    def mode(self) -> Literal["plain", "structured"]:
        """How it is asked as a supporter where nobody says: the packaged one knows our form."""
        return "structured" if self.given in PACKAGED_MODELS else "plain"

    def longest(self, part: Part) -> int:
        """Tokens of its longest answer in a part, where nothing else is asked for."""
        return LONGEST[part][self.kind == "embedded"]

    def check(self, settings: ModelSettings) -> None:
        """Stops where there is no such model, as far as that can be known without loading or asking it."""
        if self.kind == "base":
            base_file(BASES[self.given])
        if self.kind == "endpoint" or (self.kind == "folder" and not (Path(self.given) / "config.json").is_file()):
            open_model(self.given, settings=settings)

    def open(self, settings: ModelSettings, answers: Path) -> TextModel:
        """The model. A server's answers are kept in the file; what a model here answers depends on its batches."""
        return open_model(self.given, settings=settings, cache=answers if self.kind == "endpoint" else None)


@dataclass(frozen=True)
class Players:
    """All who play in an evaluation; the judges may be none."""

    supporter: Player
    seeker: Player
    judges: Sequence[Player] = ()

    @property
    def all(self) -> list[Player]:
        """Each once, by the name given."""
        return list(dict.fromkeys([self.supporter, self.seeker, *self.judges]))

    @property
    def any_local(self) -> bool:
        return any(player.kind != "endpoint" for player in self.all)

    @property
    def by_role(self) -> dict[str, Player]:
        """The players by what tables call their role; several judges differ by their names."""
        judges = {f"judge {judge.name}" if len(self.judges) > 1 else "judge": judge for judge in self.judges}
        return {"supporter": self.supporter, "seeker": self.seeker, **judges}


def named_players(
    supporter: str | None, seeker: str | None, judges: Sequence[str] | None, endpoint: str | None
) -> Players:
    """Who plays: as named, else the endpoint, else what is packaged. `judges` is None where there are none."""
    if endpoint is not None and "@http" not in endpoint:
        do = "Write the model's name and the server's base URL: NAME@http://host:8000/v1"
        raise InputError(f"'{endpoint}' names no model behind a server.", field="endpoint", do=do)
    other = endpoint or "embedded"
    players = [] if judges is None else [Player(one) for one in judges or [other]]
    if len({player.name for player in players}) < len(players):
        raise InputError("two judges have the same name.", field="judge", do="Name each once, by a name of its own.")
    return Players(Player(supporter or endpoint or "supporter"), Player(seeker or other), players)


def dialogues_took(folder: Path) -> dict[str, Counter[str]]:
    """Calls and tokens of the supporter and the seeker, in all conversations of an evaluation's folder."""
    took = {role: nothing_taken() for role in ("supporter", "seeker")}
    for path in sorted((folder / "dialogues").glob("*.jsonl")):
        for number, entry in enumerate(read_log(path)):
            counts = took["supporter" if number % 2 else "seeker"]
            counts.update(calls=len(entry.calls), prompt_tokens=entry.prompt_tokens, tokens=entry.tokens)
    return took


def nothing_taken() -> Counter[str]:
    """What is counted of a role: `calls`, `prompt_tokens` and `tokens`."""
    return Counter(calls=0, prompt_tokens=0, tokens=0)


def finished_dialogues(folder: Path) -> int:
    """How many conversations of a folder are over, so that another call would not touch them."""
    logs = [read_log(path) for path in (folder / "dialogues").glob("*.jsonl")]
    outcomes = [entries[-1].outcome for entries in logs if entries]
    return sum(outcome is not None and not outcome.may_pass for outcome in outcomes)


_MONEY = r"[0-9]{1,12}(?:\.[0-9]*)?|\.[0-9]+"
_PRICE = re.compile(rf"(?:(?P<name>.+)=)?(?P<prompt>{_MONEY})/(?P<answer>{_MONEY})")


@dataclass(frozen=True)
class Prices:
    """Money for a million prompt tokens and a million answer tokens, by model; "" stands for all other endpoints."""

    by_model: Mapping[str, tuple[float, float]]
    currency: str = "USD"


def cost_of(players: Players, took: Mapping[str, Mapping[str, int]], prices: Prices | None) -> dict[str, Any]:
    """What each role took, and the price of it all where prices are known; models in this process cost nothing."""
    roles = {role: dict(counts) for role, counts in took.items()}
    if not prices or not prices.by_model:
        return {"roles": roles}
    spent = 0.0
    for role, counts in took.items():
        player = players.by_role[role]
        price = prices.by_model.get(player.name, prices.by_model.get(""))
        if price is not None and player.kind == "endpoint":
            spent += (counts["prompt_tokens"] * price[0] + counts["tokens"] * price[1]) / 1e6
    return {"roles": roles, "price": round(spent, 6), "currency": prices.currency}


def read_prices(texts: Sequence[str], currency: str = "USD") -> Prices:
    """Prices as a person writes them: `0.15/0.60` for all endpoints, `NAME=2.5/10` for one model."""
    found: dict[str, tuple[float, float]] = {}
    for text in texts:
        match = _PRICE.fullmatch(text.strip())
        if match is None:
            do = "Write the price of a million prompt tokens, a slash, and that of a million answer tokens: 0.15/0.60"
            raise InputError(f"'{text}' is no price.", field="price", do=f"{do}, or NAME=0.15/0.60 for one model.")
        found[match["name"] or ""] = (float(match["prompt"]), float(match["answer"]))
    return Prices(found, currency)


MANIFEST, CONVERSATIONS, SCORES, METRICS = "manifest.json", "conversations.jsonl", "scores.jsonl", "figures.json"


def check_folder(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Stops where the folder holds another evaluation, and names what differs; or something else altogether."""
    if folder.is_file():
        raise InputError("this is a file.", file=folder, do="Give a folder to write to.")
    path = folder / MANIFEST
    if not path.is_file():
        if folder.is_dir() and any(one.name != LOCK for one in folder.iterdir()):
            do = "Give a new folder, or that of an evaluation to go on with."
            raise InputError("there is something else in this folder.", file=folder, do=do)
        return
    found = read_json(path)
    if found is None:
        raise InputError("this cannot be read.", file=path, do="Give another folder, or remove this one.")
    before, now = dict(_leaves(found)), dict(_leaves(json.loads(json.dumps(manifest))))
    keys = [key for key in {**now, **before} if not key.startswith("versions") and not key.endswith(".url")]
    if other := [key for key in keys if before.get(key) != now.get(key)]:
        text = [f"{key} (there: {_short(before.get(key))}, now: {_short(now.get(key))})" for key in other[:3]]
        what = f"another evaluation was begun here; what differs: {', '.join(text)}{', …' * (len(other) > 3)}."
        raise InputError(what, file=folder, do="Give another folder, or the same settings as before.")


def claim_folder(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Makes the folder with its manifest, or checks that it belongs to this evaluation."""
    check_folder(folder, manifest)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).is_file():
        write_json(folder / MANIFEST, manifest)


def _short(value: str | None) -> str:
    text = value or "nothing"
    return text if len(text) <= 40 else f"{text[:40]}…"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """What a tree of settings holds, by dotted names; lists as they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Talk:
    """One conversation of an evaluation. `failed` says why it came to no end, the model or the infrastructure."""

    scenario: str
    repeat: int
    conversation: Conversation

    @property
    def failed(self) -> str | None:
        outcome = self.conversation.outcome
        return None if outcome.status == "ended" else f"{outcome.status}: {outcome.who}: {outcome.why}"
