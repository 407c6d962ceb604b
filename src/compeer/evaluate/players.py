"""Who plays in an evaluation: the supporter under test, the seeker, the judges, each by the name a person gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compeer.models.catalogue import base_file, is_base
from compeer.models.packaged import is_packaged
from compeer.models.resolve import ModelSettings, display_name, folder_mark, model_mark, open_model

if TYPE_CHECKING:
    from compeer.models.base import TextModel

Kind = Literal["embedded", "base", "folder", "endpoint"]
Part = Literal["supporter", "structured supporter", "seeker", "sentient seeker", "judge"]
LONGEST: dict[Part, int] = {
    "supporter": 512,
    "structured supporter": 768,
    "seeker": 256,
    "sentient seeker": 400,
    "judge": 400,
}
"""Tokens of the longest answer. Models that think before they answer need more."""
LONGEST_EMBEDDED: dict[Part, int] = {
    "supporter": 48,
    "structured supporter": 160,
    "seeker": 40,
    "sentient seeker": 128,
    "judge": 160,
}
"""The same for the embedded model, which has little to say and seldom stops by itself: it should take minutes."""


@dataclass(frozen=True)
class Player:
    """A model by the name that a person gave it: `supporter`, `embedded`, `qwen-1.5b`, a folder, or NAME@URL."""

    given: str

    @property
    def kind(self) -> Kind:
        if is_base(self.given):
            return "base"
        if model_mark(self.given):
            return "embedded"
        return "endpoint" if "@http" in self.given else "folder"

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.kind in ("embedded", "base"):
            return display_name(self.given)
        return self.given.partition("@http")[0]

    @property
    def history(self) -> int | None:
        """How many utterances it was trained to see, where it was trained here as a supporter; None: all."""
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
        return "structured" if is_packaged(self.given) else "plain"

    def longest(self, part: Part) -> int:
        """Tokens of its longest answer in a part, where nothing else is asked for."""
        return (LONGEST_EMBEDDED if self.kind == "embedded" else LONGEST)[part]

    def longest_reply(self, mode: Literal["plain", "structured"]) -> int:
        """The same of a supporter that is asked in this mode."""
        return self.longest("supporter" if mode == "plain" else "structured supporter")

    def check(self, settings: ModelSettings) -> None:
        """Stops where there is no such model, as far as that can be told without loading or asking it."""
        if self.kind == "base":
            base_file(self.given)
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
        """Whether a model runs in this process."""
        return any(player.kind != "endpoint" for player in self.all)

    @property
    def by_role(self) -> dict[str, Player]:
        """The players by what tables call their role; several judges are told apart by their names."""
        one = len(self.judges) == 1
        judges = {"judge" if one else f"judge {judge.name}": judge for judge in self.judges}
        return {"supporter": self.supporter, "seeker": self.seeker, **judges}

    @property
    def described(self) -> dict[str, Any]:
        """What marks the models, by their role."""
        return {role: player.described for role, player in self.by_role.items()}
