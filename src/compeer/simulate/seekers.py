"""The seeker that plays a role card: who the person is, what happened, how they write; and the cards themselves.

Our own cards (`cards/*.jsonl`, described in `cards/README.md`) give the first message and say what comes out only
slowly. Cards of the kind that ESC-Eval released are read too: a JSON list, or an object a line, of `base` (the whole
card as text), `res`, `source`, `language` and `id`; their seeker makes up its first message. Any model can play.

    run_dialogues(read_cards(own_cards("en")), CardSeeker(open_model("embedded")), supporter, …)

A card becomes a `Scenario` whose facts are the player's alone: `card`, all that it knows of the person, and
`problem`, which results can be grouped by.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from compeer.corpora.items import json_items
from compeer.dialogue import language_of
from compeer.errors import InputError, from_validation
from compeer.io import Frozen, table
from compeer.models.base import Generation, Message
from compeer.simulate.agents import (
    AgentTurn,
    Ask,
    Complaint,
    SeekerAgent,
    Turning,
    chat,
    mark_of,
    pattern,
    prompt_file,
    read_plain,
)
from compeer.simulate.conversation import Scenario, View

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)


class _OwnCard(Frozen):
    """A card as our files hold it."""

    id: str = Field(min_length=1)
    language: Language
    age: int = Field(ge=0, le=130)
    gender: str = Field(min_length=1)
    occupation: str = Field(min_length=1)
    problem: str
    situation: str = Field(min_length=1)
    manner: str = Field(min_length=1)
    opening: str = Field(min_length=1)
    resistance: Literal["low", "middle", "high"]
    secrets: tuple[str, ...] = ()

    def scenario(self) -> Scenario:
        words = phrases("seeker", self.language)
        parts = [
            words["who"].format(age=self.age, gender=self.gender, occupation=self.occupation),
            self.situation,
            f"{words['manner'].format(manner=self.manner)}\n{words['resistance'][self.resistance]}",
            *listed(words["secrets"], self.secrets),
        ]
        facts = {"card": "\n\n".join(parts), "problem": self.problem}
        return Scenario(id=self.id, language=self.language, opening=self.opening, facts=facts)


class _ReleasedCard(BaseModel):
    """A card as ESC-Eval released it; what else it holds is not needed."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    id: str = Field(min_length=1)
    base: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    language: str | None = None
    res: Any = None

    def scenario(self) -> Scenario:
        language = _LANGUAGE_NAMES.get((self.language or "").strip().lower()) or language_of(self.base)
        facts = {"card": self.base, "problem": self.res if isinstance(self.res, str) else ""}
        return Scenario(id=f"{language}-{self.id}", language=language, facts=facts)  # the two may count alike


_LANGUAGE_NAMES: dict[str, Language] = {
    **dict.fromkeys(("en", "eng", "english", "英文", "英语"), "en"),
    **dict.fromkeys(("zh", "cn", "chinese", "中文", "汉语"), "zh"),
}


def listed(title: str, points: Sequence[str]) -> list[str]:
    """A title with its points below, as one part of a text; nothing where there are no points."""
    return ["\n".join([title, *(f"- {point}" for point in points)])] if points else []


def own_cards(language: str) -> Path:
    return Path(__file__).with_name("cards") / f"{language}.jsonl"


def read_scenarios(path: Path, key: str, with_key: type[Any], form: type[Any], noun: str, needs: str) -> list[Scenario]:
    """The cards or profiles of a file, those with a key in their own form; an error names the item and the field."""
    give = f"Give a file of {noun}s, one JSON object a line."
    if not path.is_file():
        raise InputError("there is no such file.", file=path, do=give)
    found: dict[str, Scenario] = {}
    for item in json_items(path):
        if isinstance(item, InputError):
            raise item
        try:
            own = with_key if isinstance(item.value, dict) and key in item.value else form
            one: Scenario = own.model_validate(item.value).scenario()
        except ValidationError as error:
            plain = from_validation(error)
            do = f"A {noun} needs {needs}, or the fields that the README beside our own cards names."
            raise item.bad(plain.what, plain.field, do=do) from None
        if one.id in found:
            raise item.bad(f"the {noun} '{one.id}' was there before.", "id", do="Give each its own id.")
        found[one.id] = one
    if not found:
        raise InputError(f"there is no {noun} in it.", file=path, do=give)
    return list(found.values())


def read_cards(path: Path) -> list[Scenario]:
    """The cards of a file, ours or the released ones."""
    return read_scenarios(path, "base", _ReleasedCard, _OwnCard, "card", "id and base")


_OWN_NAME, _NEXT_NAME = pattern("card_own_name"), pattern("card_next_name")


class CardSeeker(SeekerAgent):
    """Plays the card of its scenario. It never stops by itself: ESC-Eval's conversations have a number of rounds."""

    @property
    def described(self) -> dict[str, Any]:
        return {**super().described, "prompts": mark_of(seeker_prompts())}

    def turn(self, view: View) -> Turning:
        message: AgentTurn = yield Ask(card_messages(view), read_card_message)
        return message


def card_messages(view: View) -> list[Message]:
    """What the player of a card is asked."""
    language = prompt_language(view.language)
    system = prompt_file(f"seeker.{language}.txt").strip().format(card=view.facts["card"].strip())
    return chat(view, system, cue=phrases("seeker", language)["cue"])


def read_card_message(answer: Generation) -> AgentTurn | Complaint:
    """Its words. Where it goes on to speak for both sides, only its own first message is taken, and that noted."""
    message = read_plain(answer)
    if isinstance(message, Complaint):
        return message
    text = _OWN_NAME.sub("", message.text)
    if other := _NEXT_NAME.search(text):
        text = text[: other.start()]
        message.extra["spoke_for_both"] = True
    if not text.strip():
        return Complaint("empty", "there is no message of the seeker in it")
    return AgentTurn(text.strip(), message.reasoning, message.extra)


def prompt_language(language: str) -> Language:
    """The language of the prompts for a conversation: Chinese for Chinese, else English."""
    return "zh" if language.split("-")[0] == "zh" else "en"


def seeker_prompts() -> dict[str, str]:
    """The prompt files as they are, by name, for hashes and manifests."""
    return {name: prompt_file(name) for name in ("seeker.en.txt", "seeker.zh.txt", "seeker.toml")}


def phrases(name: str, language: str) -> dict[str, Any]:
    """The words that prompts are put together of, in a language."""
    found: dict[str, Any] = table(f"simulate/prompts/{name}")[prompt_language(language)]
    return found
