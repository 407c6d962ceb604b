"""Outputs of a supporter for given histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compeer.models import Failure, Request, Sampling, TextModel, ask
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import ParsedTurn, parse_turn, turn_grammar
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
) -> list[Output | Failure]:
    """One output for each record, drawn by the seed and the record's id; `constrained` holds it to the turn's form."""
    grammar = turn_grammar() if constrained else None
    requests = [
        Request(
            messages=tuple(supporter_prompt(record.history, last)),
            seed=int(generator(seed, "rollout", record.id).integers(2**31)),
            grammar=grammar,
        )
        for record in records
    ]
    found: list[Output | Failure] = []
    for record, answer in zip(records, ask(model, requests, sampling), strict=True):
        if isinstance(answer, Failure):
            found.append(answer)
        else:
            parsed = parse_turn(answer.text, cut_off=answer.cut_off)
            found.append(Output(record.id, answer.text, answer.cut_off, parsed))
    return found
