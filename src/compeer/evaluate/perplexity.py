"""How surprised a model is by what human supporters said, given its prompt and the history.

A supporter that is asked plainly is given the conversation as a chat and the human's response as its own. One that
reasons first is given the reference steps too, and only the tokens of the response count. Perplexity is
exp(mean negative log-probability of a token); since tokens differ between models, bits a character are given beside it,
which can be compared between them. Both need a model in this process: servers do not tell probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from compeer.engine.network import position_limit
from compeer.evaluate.diversity import Measured, measured
from compeer.models.base import Message
from compeer.models.local import LocalModel
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import render_turn
from compeer.ser.record import SerRecord
from compeer.simulate import Scenario, Turn, chat
from compeer.simulate.agents import Mode, plain_prompt
from compeer.simulate.conversation import view_of
from compeer.statistics import group_weights, ratio


class PerplexityFigures(BaseModel):
    """How probable a model finds human responses; the lower, the more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    given: str = Field(description="what the model was given")
    responses: int
    tokens: int
    too_long: int = Field(description="responses left out, since the model takes no such long prompt")
    perplexity: Measured
    bits_per_character: Measured


def perplexity_figures(
    model: LocalModel,
    records: Sequence[SerRecord],
    mode: Mode = "structured",
    last: int | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> PerplexityFigures:
    """The perplexity of the records' own responses; intervals over dialogues."""
    dialogues = {name: number for number, name in enumerate(dict.fromkeys(record.dialogue for record in records))}
    surprise, tokens, characters = np.zeros((3, len(dialogues)))
    known = too_long = 0
    for record in records:
        messages, said, response = _asked(record, mode, last)
        found = response_surprise(model, messages, said, response)
        advance(1)
        if found is None:
            too_long += 1
            continue
        known += 1
        place = dialogues[record.dialogue]
        surprise[place] += sum(found)
        tokens[place] += len(found)
        characters[place] += len(response)
    weights = group_weights(len(dialogues), seed=seed)
    total = weights @ surprise
    return PerplexityFigures(
        given="prompt and history" if mode == "plain" else "prompt, history and reference steps",
        responses=known,
        tokens=int(tokens.sum()),
        too_long=too_long,
        perplexity=measured(np.exp(ratio(total, weights @ tokens)), len(dialogues)),
        bits_per_character=measured(ratio(total / np.log(2), weights @ characters), len(dialogues)),
    )


def _asked(record: SerRecord, mode: Mode, last: int | None) -> tuple[list[Message], str, str]:
    """The messages, what the model has said before the response, and the response as it would write it."""
    if mode == "structured":
        written = render_turn(record.candidate)
        steps = render_turn(record.candidate.model_copy(update={"response": "x"})).removesuffix("x")
        return supporter_prompt(record.history, last), steps, written.removeprefix(steps)
    shown = record.history[-last:] if last else record.history
    turns = [Turn(speaker=one.speaker, text=one.text) for one in shown if one.text.strip()]
    view = view_of(Scenario(id=record.id), turns, "supporter")
    return chat(view, plain_prompt()), "", record.candidate.response


@torch.inference_mode()
def response_surprise(model: LocalModel, messages: Sequence[Message], said: str, response: str) -> list[float] | None:
    """−log p of each token of the response, in nats; None if the model cannot take so many tokens."""
    before = model.prompt_text(messages, said)
    encoded = model.tokenizer(before + response, add_special_tokens=False, return_offsets_mapping=True)
    ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
    if len(ids) > position_limit(model.network):
        return None
    # A token that holds the blank before the response and its first word belongs to the response.
    first = max(1, next(number for number, end in enumerate(ends) if end > len(before)))
    rows = torch.tensor([ids], device=model.device)
    count = len(ids) - first
    kept = model.network(input_ids=rows, use_cache=False, logits_to_keep=count + 1).logits[0]
    scores = kept[-count - 1 : -1].float()
    return torch.nn.functional.cross_entropy(scores, rows[0, first:], reduction="none").tolist()
