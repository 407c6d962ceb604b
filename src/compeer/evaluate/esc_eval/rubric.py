"""The seven dimensions of ESC-Eval, what each score means, and the question that a judge is asked.

Each dimension has whole scores from 0 to 4 with a description each, in English and in Chinese (`prompts/*.toml`, in our
own words). A judge is asked about one dimension a call, or about all seven at once. It answers with a small JSON
object, its reason before its scores so that they can follow from it; a model that decodes under a grammar can give
nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Protocol, get_args

from compeer.dialogue import Speaker
from compeer.errors import InputError
from compeer.models.base import Message

Dimension = Literal["fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
HIGHEST = 4
"""The highest score; the lowest is 0."""
LANGUAGES = ("en", "zh")
"""Languages that the rubric is written in; judges of conversations in any other read it in English."""


class Conversation(Protocol):
    """What is scored. Repeats of one scenario have the same `id` and differ in `repeat`, counted from 1."""

    @property
    def id(self) -> str: ...
    @property
    def repeat(self) -> int: ...
    @property
    def language(self) -> str: ...
    @property
    def said(self) -> Sequence[tuple[Speaker, str]]: ...


def judge_messages(conversation: Conversation, dimensions: Sequence[Dimension]) -> tuple[Message, ...]:
    """The question to a judge: about the one dimension given, or about several at once."""
    wording = rubric(conversation.language)
    shown = _shown(conversation, wording)
    if len(dimensions) == 1:
        one = wording[dimensions[0]]
        content = wording["one"].format(
            conversation=shown, name=one["name"], question=one["question"], levels=_levels(one)
        )
    else:
        described = "\n\n".join(
            wording["dimension"].format(
                name=wording[key]["name"], key=key, question=wording[key]["question"], levels=_levels(wording[key])
            )
            for key in dimensions
        )
        keys = ", ".join(f'"{key}": ...' for key in dimensions)
        content = wording["all"].format(conversation=shown, dimensions=described, keys=keys)
    return ({"role": "system", "content": wording["system"].strip()}, {"role": "user", "content": content.strip()})


def answer_grammar(dimensions: Sequence[Dimension], reason_characters: int = 240) -> str:
    """A Lark grammar of the answer to `judge_messages`, for models that can decode under one."""
    keys = ["score"] if len(dimensions) == 1 else list(dimensions)
    scores = " ".join(rf'", \"{key}\": " SCORE' for key in keys)
    return "\n".join(
        [
            rf'start: "{{\"reason\": \"" REASON {scores} "}}"',
            # the closing quote belongs to the reason: a lexer is greedy, and would only stop at the greatest length
            rf'REASON: /[A-Za-z\p{{Han}}][^"\\\x00-\x1f]{{3,{reason_characters}}}"/',
            f"SCORE: /[0-{HIGHEST}]/",
        ]
    )


@cache
def rubric(language: str) -> dict[str, Any]:
    """The wording of a language's prompts and, under each dimension, its names, its question and its five levels."""
    code = "zh" if language.split("-")[0] == "zh" else "en"
    text = files("compeer.evaluate.esc_eval").joinpath("prompts", f"{code}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def rubric_texts() -> dict[str, str]:
    """The prompt files as they are, by language, for hashes and manifests."""
    folder = files("compeer.evaluate.esc_eval").joinpath("prompts")
    return {language: folder.joinpath(f"{language}.toml").read_text(encoding="utf-8") for language in LANGUAGES}


@cache
def dimension_names() -> dict[str, Dimension]:
    """What a judge may call each dimension, in lower case, in either language."""
    return {
        name: dimension
        for language in LANGUAGES
        for dimension in DIMENSIONS
        for name in (dimension, *rubric(language)[dimension]["names"])
    }


def _levels(one: dict[str, Any]) -> str:
    return "\n".join(f"{score}: {text}" for score, text in enumerate(one["levels"]))


def _shown(conversation: Conversation, wording: dict[str, Any]) -> str:
    """A line a message. What was said cannot end the conversation's block or begin a line of its own."""
    return "\n".join(
        f"{wording[speaker]}{wording['colon']}{' '.join(text.split()).replace('conversation>', 'conversation >')}"
        for speaker, text in conversation.said
    )


def check_speakers(conversation: Conversation) -> None:
    """Stops where somebody speaks who is neither seeker nor supporter."""
    for place, (speaker, _) in enumerate(conversation.said, start=1):
        if speaker not in get_args(Speaker):
            raise InputError(
                f"message {place} of conversation '{conversation.id}' is by '{speaker}'.",
                field="said",
                do="A speaker is 'seeker' or 'supporter'.",
            )
