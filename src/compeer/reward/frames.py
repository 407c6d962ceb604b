"""Chats as a judge is fed them: its tokenizer's template is asked once, and then only filled in.

A template puts the same text around every message. Rendering it for each of a thousand outputs takes longer than a GPU
needs to judge them, so the text around the messages is kept, for each number of rounds. Where a template does more than
that (a probe and the first chat of each length are rendered both ways and compared), or a message begins or ends with
blanks, which some cut off, the template itself renders the chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from compeer.engine.network import broken_up, control_tokens, defuse
from compeer.reward.conversation import Question

_PLACE = "\u241f"
"""Stands for a message while a chat is rendered; taken out of whatever the chat quotes."""


_PROBE = "What it is,\nand 1 long enough message to see what a template makes of it."


class Frames:
    """Renders chats up to each answer of the judge, after the message that opens them all."""

    def __init__(self, tokenizer: Any, system: Mapping[str, Any]) -> None:
        self._tokenizer, self._system = tokenizer, system
        self._control = control_tokens(tokenizer)
        self._around: dict[int, list[str] | None] = {}

    def texts(self, rounds: Sequence[Question]) -> list[str]:
        """What is fed before each answer."""
        said = [question.text.replace(_PLACE, "") for question in rounds]
        if rounds[0].images or any(text != text.strip() for text in said):
            return self._rendered(rounds)
        said = [broken_up(text, self._control) for text in said]
        if len(rounds) not in self._around:
            self._around[len(rounds)] = self._learnt(rounds, said)
        around = self._around[len(rounds)]
        return self._rendered(rounds) if around is None else _filled(around, said)

    def _learnt(self, rounds: Sequence[Question], said: Sequence[str]) -> list[str] | None:
        """What stands around the messages of such a chat; None where filling it in is not what the template does."""
        around = self._render([_PLACE] * len(rounds)).split(_PLACE)
        probes = [_PROBE] * len(rounds)
        probed = self._render(probes).split(_PLACE)[: len(rounds)]
        same = _filled(around, said) == self._rendered(rounds) and _filled(around, probes) == probed
        return around if same else None

    def _rendered(self, rounds: Sequence[Question]) -> list[str]:
        """The same by the template itself."""
        contents = [replace(question, text=question.text.replace(_PLACE, "")).content for question in rounds]
        return self._render(contents).split(_PLACE)[: len(rounds)]

    def _render(self, contents: Sequence[Any]) -> str:
        messages = [self._system]
        for content in contents:
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": _PLACE})
        text: str = self._tokenizer.apply_chat_template(defuse(self._tokenizer, messages), tokenize=False)
        return text


def _filled(around: Sequence[str], said: Sequence[str]) -> list[str]:
    """What stands before and after each message, with the message between."""
    return [around[2 * number] + text + around[2 * number + 1] for number, text in enumerate(said)]
