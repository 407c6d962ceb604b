"""Outputs of a supporter for given histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compeer.errors import InputError
from compeer.models import Failure, Message, Request, Sampling, TextModel, ask
from compeer.policy.control import Control, forced_grammar
from compeer.policy.prompt import direct_prompt, supporter_prompt
from compeer.policy.repeats import told_once
from compeer.reasoning import LABELS, ParsedTurn, parse_turn
from compeer.ser.record import SerRecord
from compeer.statistics import generator


@dataclass(frozen=True)
class Output:
    """What a supporter wrote for a record's history, and what could be read of it."""

    record: str
    text: str
    cut_off: bool
    parsed: ParsedTurn


def generate_turns(
    model: TextModel,
    records: Sequence[SerRecord],
    sampling: Sampling,
    seed: int,
    last: int | None = None,
    constrained: bool = False,
    *,
    control: Control | None = None,
    candidates: int = 1,
    direct: bool = False,
) -> list[Output | Failure]:
    """`candidates` outputs for each record, one after the other, drawn by the seed, the record's id and their number.

    A `control` is asked for in the prompt; `constrained` holds an output to the turn's form and to what is asked for,
    and ends it before it repeats itself.
    A model that sees is shown the pictures of a history. A `direct` one, as its card says, is asked for the response
    alone: all that it writes is the response, and steps are missing.
    """
    if direct and (constrained or control):
        what = "this supporter replies at once: it writes no decisions, so none can be asked for."
        raise InputError(what, do="Leave out --control and --constrained, or give a supporter that writes steps.")
    sees = bool(getattr(model, "sees", False))
    grammar = forced_grammar(control) if constrained else None

    def prompt(record: SerRecord) -> list[Message]:
        if direct:
            return direct_prompt(record.history, last, images=sees)
        return supporter_prompt(record.history, last, control, images=sees)

    requests = [
        Request(
            messages=tuple(prompt(record)),
            seed=_seed(seed, record, number),
            grammar=grammar,
        )
        for record in records
        for number in range(1, candidates + 1)
    ]
    asked = [record.id for record in records for _ in range(candidates)]
    found: list[Output | Failure] = []
    for record, answer in zip(asked, ask(model, requests, sampling), strict=True):
        if isinstance(answer, Failure):
            found.append(answer)
        else:
            written = _as_response(answer.text) if direct else answer.text
            written, over = told_once(written) if constrained else (written, False)
            cut_off = answer.cut_off and not over
            found.append(Output(record, written if over else answer.text, cut_off, parse_turn(written, cut_off)))
    return found


def _as_response(text: str) -> str:
    """The text as the response of a turn; behind a backslash no line of it is taken for a label."""
    return f"{LABELS['response']}: " + "\n".join("\\" + line for line in text.splitlines())


def _seed(seed: int, record: SerRecord, number: int) -> int:
    names = [record.id] if number == 1 else [record.id, str(number)]
    return int(generator(seed, "rollout", *names).integers(2**31))
