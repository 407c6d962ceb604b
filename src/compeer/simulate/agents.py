"""Who talks in a simulated conversation: agents, each of which makes its next turn from its own view alone.

An agent's `turn` is a generator. It yields an `Ask` for each question to its model, is sent what was read of the
answer, and returns an `AgentTurn`. The engine puts the questions, asks again where an answer cannot be used, and
records everything; so an agent holds no conversation, no random numbers and no waiting. What it must remember from one
turn to the next (an emotion, a plan) it notes in the `extra` of its turns, where it finds it again in its view: a
conversation that was stopped can then be taken up from what was saved.

The simplest seeker asks once a turn and says what it was answered:

    class Brief(SeekerAgent):
        def turn(self, view: View) -> Turning:
            return (yield Ask(chat(view, f"You are {view.facts['who']}. Say one sentence."), read_plain))
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Protocol

from compeer.dialogue import Utterance
from compeer.io import table, value_hash
from compeer.models.base import Generation, Message, Sampling, TextModel
from compeer.reasoning import STEPS, parse_turn, render_step
from compeer.simulate.conversation import View

Mode = Literal["plain", "structured"]
Prompt = Callable[[Sequence[Utterance]], list[Message]]  # asks for a supporter's next turn, given the utterances

SPEAKING = Sampling(temperature=0.7, max_tokens=512)
_THINKING = re.compile(r".*</think(?:ing)?>|\s*<think(?:ing)?>.*", re.DOTALL | re.IGNORECASE)
_MARKS = re.compile(r"<think(?:ing)?>|</think(?:ing)?>\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Complaint:
    """Why an answer cannot be used: a word for tables, and a sentence that helps the model to mend it."""

    kind: Literal["empty", "unparsable", "out of role"]
    text: str


@dataclass(frozen=True)
class Ask:
    """A question to the agent's model, and how its answer is read; `sampling` replaces the agent's own."""

    messages: Sequence[Message]
    read: Callable[[Generation], Any]  # the value that the agent is sent, or a `Complaint`: the model is asked again
    grammar: str | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True)
class AgentTurn:
    """What an agent says, and notes for itself. `stop` ends the conversation, and says why in a word or two."""

    text: str  # without any, only `stop` and the notes count: the agent leaves without a word
    reasoning: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    stop: str | None = None


Turning = Generator[Ask, Any, AgentTurn]


class Agent(Protocol):
    """One side of a conversation."""

    sampling: Sampling
    wants_closing_turn: bool  # with a view that is `over`

    @property
    def model(self) -> TextModel | None: ...  # whom it asks; None if it needs nobody
    @property
    def described(self) -> dict[str, Any]:
        """What its turns depend on beside its view: model, sampling, prompt, rules. Only the same is resumed."""

    def turn(self, view: View) -> Turning:
        """Makes its next turn."""


class SeekerAgent:
    """What seekers that a model plays have in common; each makes its own `turn`."""

    wants_closing_turn = False

    def __init__(self, model: TextModel, sampling: Sampling = SPEAKING) -> None:
        self.model, self.sampling = model, sampling

    @property
    def described(self) -> dict[str, Any]:
        """Its kind, model and sampling; a seeker with a prompt or rules of its own adds them (`mark_of`)."""
        return {"agent": type(self).__name__, "model": self.model.name, "sampling": self.sampling.model_dump()}


class SupporterAgent:
    """A supporter under test, asked plainly as in a chat, or by a prompt as `compeer.policy.supporter_prompt`."""

    wants_closing_turn = False

    def __init__(
        self,
        model: TextModel,
        *,
        prompt: Prompt | None = None,
        sampling: Sampling = SPEAKING,
        grammar: str | None = None,
    ) -> None:
        self.model, self.sampling, self._prompt, self._grammar = model, sampling, prompt, grammar

    @property
    def described(self) -> dict[str, Any]:
        return {
            "agent": "supporter",
            "model": self.model.name,
            "mode": "structured" if self._prompt else "plain",
            "prompt": mark_of(self._prompt(()) if self._prompt else plain_prompt()),
            "sampling": self.sampling.model_dump(),
            "grammar": mark_of(self._grammar),
            "keeps_reasoning": False,  # as in the logs of earlier versions, which then go on
        }

    def turn(self, view: View) -> Turning:
        messages = self._prompt(view.utterances) if self._prompt else chat(view, plain_prompt())
        read = read_structured if self._prompt else read_plain
        reply: AgentTurn = yield Ask(messages, read, grammar=self._grammar)
        return reply


def pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(table("simulate/patterns")[name]))


@cache
def prompt_file(name: str) -> str:
    """A file of the folder `prompts`, as it is."""
    return files("compeer.simulate").joinpath("prompts", name).read_text(encoding="utf-8")


def plain_prompt() -> str:
    """The system message of a supporter that is asked plainly."""
    return prompt_file("plain.txt").strip()


def chat(view: View, system: str, cue: str = "") -> list[Message]:
    """The view as a chat in which its own turns are the assistant's; `cue` lets the other side begin."""
    messages: list[Message] = [{"role": "system", "content": system}]
    messages += [{"role": "user", "content": cue}] if cue else []
    for turn in view.turns:
        messages.append({"role": "assistant" if turn.speaker == view.speaker else "user", "content": turn.text})
    return messages


def mark_of(value: Any) -> str | None:
    """A short mark that changes when a prompt or a table of rules does; None for None."""
    return None if value is None else value_hash(value)[:16]


def split_thinking(text: str) -> tuple[str | None, str]:
    """What a reasoning model thought (None if nothing is marked so) and what it says after that.

    Where the thinking has no end nothing is said. Where it has several, all but what follows the last is thinking: no
    thought may be taken for words to the other side.
    """
    thought = _THINKING.match(text)
    if thought is None:
        return None, text.strip()
    return _MARKS.sub("", thought[0]).strip() or None, text[thought.end() :].strip()


def read_plain(answer: Generation) -> AgentTurn | Complaint:
    """The answer as the words to say, thinking set apart."""
    reasoning, text = split_thinking(answer.text)
    if not text:
        return Complaint("empty", "there are no words to the other person in it")
    return AgentTurn(text, reasoning, {"cut_off": True} if answer.cut_off else {})


def read_structured(answer: Generation) -> AgentTurn | Complaint:
    """The response of a structured turn, with the steps that could be read as its reasoning."""
    _, text = split_thinking(answer.text)
    if not text:
        return Complaint("empty", "it is empty")
    parsed = parse_turn(text, cut_off=answer.cut_off)
    # A response that was cut off is still what the seeker would hear, as it is in the plain mode.
    response = parsed.parts.get("response") or parse_turn(text).parts.get("response")
    if not isinstance(response, str):
        missing = "; ".join(f"{part}: {reason}" for part, reason in parsed.missing.items())
        return Complaint("unparsable", f"no response can be read ({missing})")
    extra = {"cut_off": answer.cut_off, "missing": dict(parsed.missing)}
    steps = [(part, parsed.parts[part]) for part in STEPS if part in parsed.parts]
    written = "\n".join(render_step(part, step) for part, step in steps if not isinstance(step, str))
    return AgentTurn(response, written or None, {name: value for name, value in extra.items() if value})
