"""What a supporter is asked: its task, what an operator wants of it, and the history so far.

A model's card says which task it was trained with: `supporter` names the four lines, `guided` their vocabulary as
well; an untrained model gets two examples on top (`shown`). A history holds utterances, never earlier reasoning.
Pictures stand inside an utterance's line, before the words. A direct supporter is asked for its words only.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from compeer.dialogue import Utterance, language_of, transcript
from compeer.errors import InputError
from compeer.io import table
from compeer.models import Message
from compeer.policy.control import Control, instructions
from compeer.reward.conversation import pictures_of as pictures_of
from compeer.ser.asking import prompt

Task = Literal["supporter", "guided", "shown"]


@cache
def _examples(language: str) -> tuple[Message, ...]:
    """Two short conversations, each with the turn that answers it."""
    found: list[Message] = []
    for example in table("policy/prompts/examples")[language]:
        found.append({"role": "user", "content": "\n".join(example["history"])})
        found.append({"role": "assistant", "content": example["output"].strip()})
    return tuple(found)


def supporter_prompt(
    history: Sequence[Utterance],
    last: int | None = None,
    control: Control | None = None,
    *,
    images: bool = False,
    task: Task = "supporter",
) -> list[Message]:
    """The messages that ask for the next turn after the `last` utterances; with `images`, where there are any."""
    wanted = instructions(control) if control else ""
    text = (
        f"{prompt('supporter', 'policy')} {wanted}"
        if task == "supporter"
        else f"{prompt('guided', 'policy')}\n{wanted}"
    )
    system, asked = _messages(text.strip(), history, last, images)
    examples = _examples(language_of(history[-1].text) if history else "en") if task == "shown" else ()
    return [system, *examples, asked]


def direct_prompt(history: Sequence[Utterance], last: int | None = None, *, images: bool = False) -> list[Message]:
    """The messages that ask for the next response alone, without steps; `last` and `images` as above."""
    return _messages(prompt("direct", "policy"), history, last, images)


def refuse_direct(folder: Path) -> None:
    """An error if the folder's supporter was trained to reply at once: for whoever needs its steps."""
    from compeer.models.training import model_card  # torch is heavy

    if model_card(folder).get("direct"):
        do = "Give one that was trained without direct=true. This one answers in: compeer policy generate"
        raise InputError("this supporter was trained to reply at once, and writes no steps.", file=folder, do=do)


def _messages(task: str, history: Sequence[Utterance], last: int | None, images: bool) -> list[Message]:
    visible = history[-last:] if last is not None else history
    content = _with_pictures(visible) if images and pictures_of(visible) else transcript(visible)
    return [{"role": "system", "content": task}, {"role": "user", "content": content}]


def _with_pictures(history: Sequence[Utterance]) -> list[dict[str, Any]]:
    """The transcript cut into blocks, with each picture behind its speaker's name."""
    blocks: list[dict[str, Any]] = []
    text = ""
    for utterance in history:
        speaker, colon, words = transcript([utterance]).partition(":")
        text += ("\n" if text or blocks else "") + speaker + colon
        for path in pictures_of([utterance]):
            if text:
                blocks.append({"type": "text", "text": text})
            blocks.append({"type": "image", "url" if "://" in path else "path": path})
            text = ""
        text += words
    return [*blocks, {"type": "text", "text": text}] if text else blocks
