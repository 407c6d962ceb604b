"""Outputs as they are written: what writes them, how they are forced, and what happens when they are not written.

A `Writer` gives an output in pieces. Decisions that an operator wants are forced by the lines that hold them: a writer
that decodes under a grammar is given one in which such a line is fixed, and writes its own lines around it; any other
writes up to the line, is given it, and goes on from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from compeer.engine.rows import Ending as Ending
from compeer.engine.rows import NotWritten as NotWritten
from compeer.models.base import Message, Request, Sampling
from compeer.policy.control import Control, forced_prefix
from compeer.reasoning import EMOTIONS, LABELS, PARTS, STAGES, STEPS, STRATEGIES, Part, turn_grammar

_FIELD_OF: dict[Part, str] = {"history": "stage", "emotion": "emotion", "strategy": "strategy"}
_FREE: dict[Part, str] = {
    "history": 'told stage "]"',
    "emotion": 'text sentiment ", " emotion ", " intensity "]"',
    "strategy": 'text strategy "]"',
}
"""A step's line after its label, in the rules of `turn_grammar`."""


@dataclass(frozen=True)
class Anew:
    """The output did not go on from its beginning: what follows is a whole one."""


Piece = str | Ending | Anew


class Writer(Protocol):
    """Anything that writes outputs piece by piece."""

    @property
    def name(self) -> str:
        """What to call the model."""

    @property
    def sees(self) -> bool:
        """Whether it is shown pictures."""

    @property
    def constrained(self) -> bool:
        """Whether it holds outputs to a request's grammar."""

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        """Whether the model can take so much, and answer with so many tokens; True where that is not known."""

    @property
    def continues(self) -> bool:
        """Whether it goes on from a request's prefix; True where that is not known."""

    def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """The output after the request's prefix, in pieces, and its ending; raises `NotWritten`.

        `Anew` comes first where it turns out that the prefix was not heeded.
        """

    def close(self) -> None:
        """Ends its work."""


def forced_lines(control: Control) -> dict[Part, str]:
    """The lines that hold the wanted decisions, by the step they stand for."""
    wishes = control.requested()
    filled = {"stage": STAGES[0], "emotion": EMOTIONS[0], "strategy": STRATEGIES[0]} | wishes
    lines = forced_prefix(Control.model_validate(filled)).split("\n")
    return {part: line for part, line in zip(STEPS, lines, strict=False) if _FIELD_OF[part] in wishes}


def fixed_grammar(control: Control) -> str:
    """The grammar of a turn in which the lines of the wanted decisions are fixed; an emotion's intensity is left open.

    Unlike `forced_grammar`, it leaves no room for a step that argues for one thing and decides for another.
    """
    fixed = forced_lines(control)
    rules = []
    for part in STEPS:
        if part not in fixed:
            rules.append(f'"{LABELS[part]}: " {_FREE[part]}')
        elif part == "emotion":
            rules.append(json.dumps(re.sub(r"\d\]$", "", fixed[part])) + ' intensity "]"')
        else:
            rules.append(json.dumps(fixed[part]))
    start = r' "\n" '.join([*rules, f'"{LABELS["response"]}: " response'])
    return "\n".join([f"start: {start}", *turn_grammar().split("\n")[1:]])


async def write_turn(
    writer: Writer, messages: list[Message], control: Control, sampling: Sampling, seed: int, begun: str = ""
) -> AsyncGenerator[Piece, None]:
    """An output in pieces, with the wanted decisions in it; `begun` is how it begins, and is not told again.

    A writer that does not go on from a beginning is only asked for the decisions, by the prompt.
    """
    asked = tuple(messages)
    tokens = prompt_tokens = 0
    written, anew = begun, False
    forced = forced_lines(control).items() if not begun and not writer.constrained and writer.continues else ()
    for part, line in forced:
        opened = written.endswith(f"{LABELS[part]}:")  # the line before was forced too, and gave this label already
        if part != STEPS[0] and not opened:
            stop = sampling.model_copy(update={"stop": (f"\n{LABELS[part]}", *sampling.stop)})
            async with aclosing(writer.write(Request(asked, seed, written), stop)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Ending):
                        tokens, prompt_tokens = tokens + piece.tokens, max(prompt_tokens, piece.prompt_tokens)
                    elif isinstance(piece, Anew):
                        anew = True
                        break
                    else:
                        written += piece
                        yield piece
        if anew:
            written = ""
            yield Anew()
            break
        given = line.removeprefix(f"{LABELS[part]}:") if opened else f"\n{line}" if written else line
        given += f"\n{LABELS[PARTS[PARTS.index(part) + 1]]}:"
        written += given
        yield given
    grammar = fixed_grammar(control) if writer.constrained else None
    async with aclosing(writer.write(Request(asked, seed, written, grammar), sampling)) as pieces:
        async for piece in pieces:
            yield (
                Ending(piece.cut_off, tokens + piece.tokens, max(prompt_tokens, piece.prompt_tokens))
                if isinstance(piece, Ending)
                else piece
            )
