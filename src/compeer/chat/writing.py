"""Writing an output piece by piece, with the decisions in it that were asked for.

A decision is forced by fixing the line that holds it. A writer that decodes under a grammar gets one with that line
fixed, and writes its own lines around it. Any other writes up to the line, is given it, and goes on from there.
"""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from compeer.engine.rows import Ending as Ending
from compeer.engine.rows import NotWritten as NotWritten
from compeer.models.base import Message, Request, Sampling
from compeer.policy.control import PART_OF, Control, forced_step
from compeer.reasoning import LABELS, PARTS, STEPS, Part, render_step, turn_grammar

_FREE: dict[Part, str] = {  # a step's line after its label, in the rules of `turn_grammar`
    "history": 'told stage "]"',
    "emotion": 'text sentiment ", " emotion ", " intensity "]"',
    "strategy": 'text strategy "]"',
}


@dataclass(frozen=True)
class Restart:
    """The output did not go on from its prefix: what follows is a whole one."""


Piece = str | Ending | Restart


class Writer(Protocol):
    """Anything that writes outputs piece by piece; it may read pictures (`multimodal`)."""

    name: str
    multimodal: bool
    constrained: bool  # whether it holds outputs to a request's grammar
    continues: bool  # whether it goes on from a request's prefix; True where that is not known

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        """Whether prompt and answer fit the model; True where that is not known."""

    def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """The output after the request's prefix (or, after `Restart`, all of it) and its ending; or `NotWritten`."""

    def close(self) -> None:
        """Ends its work."""


def forced_lines(control: Control) -> dict[Part, str]:
    """The lines that hold the decisions asked for, by their step."""
    asked = control.requested()
    steps = {part: forced_step(part, asked[field]) for field, part in PART_OF.items() if field in asked}
    return {part: render_step(part, step) for part, step in steps.items()}


def fixed_grammar(control: Control) -> str:
    """A turn's grammar with the lines asked for fixed, so that no step argues for one thing and decides another."""
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
    """An output in pieces after `begun`, with what is asked for in it; by the prompt alone if a writer cannot go on."""
    prompt = tuple(messages)
    tokens = prompt_tokens = 0
    written = begun
    forced = forced_lines(control).items() if not begun and not writer.constrained and writer.continues else ()
    for part, line in forced:
        labelled = written.endswith(f"{LABELS[part]}:")  # the line before was forced too, and gave this label already
        if part != STEPS[0] and not labelled:
            stop = sampling.model_copy(update={"stop": (f"\n{LABELS[part]}", *sampling.stop)})
            restarted = False
            async with aclosing(writer.write(Request(prompt, seed, written), stop)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Ending):
                        tokens, prompt_tokens = tokens + piece.tokens, max(prompt_tokens, piece.prompt_tokens)
                        continue
                    yield piece
                    if isinstance(piece, Restart):
                        restarted = True
                        break
                    written += piece
            if restarted:
                written = ""
                break
        given = line.removeprefix(f"{LABELS[part]}:") if labelled else f"\n{line}" if written else line
        given += f"\n{LABELS[PARTS[PARTS.index(part) + 1]]}:"
        written += given
        yield given
    grammar = fixed_grammar(control) if writer.constrained else None
    async with aclosing(writer.write(Request(prompt, seed, written, grammar), sampling)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Ending):
                prompt_tokens = max(prompt_tokens, piece.prompt_tokens)
                piece = Ending(piece.cut_off, tokens + piece.tokens, prompt_tokens)
            yield piece
