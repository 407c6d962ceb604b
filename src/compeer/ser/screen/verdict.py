"""A model's verdict on each dialogue that passed the rules: is it coherent, or not fit to learn from, and why.

The answer is one small JSON object, constrained by a grammar where the model can be. It is read without guessing: a
code fence around it is taken off, anything else that is not exactly what was asked for is a complaint, and the model is
asked again. A dialogue whose verdict could not be read, or that is too long to be asked about, is kept and counted: it
passed the rules, and dropping it would punish it for the model's mistake. `verdicts.jsonl` beside the dialogues holds
every verdict. A model of the embedded one's size cannot judge: its answers are in form and mean nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, transcript
from compeer.errors import from_validation
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.pipeline import Done, Stage, ask_through, in_blocks
from compeer.ser.asking import Answer, Complaint, Read, Unread, ask_until_read, refuse_embedded
from compeer.statistics import generator

VERDICTS = "verdicts.jsonl"
Kind = Literal["coherent", "incoherent", "machine-styled", "not a dialogue", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SAMPLING = Sampling(temperature=0, max_tokens=160)


class Verdict(BaseModel):
    """What the model says of a dialogue."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reason: str = Field(min_length=1)
    kind: Kind
    keep: bool


def verdict_grammar(reason_characters: int = 200) -> str:
    """A Lark grammar of the answer, in which `keep` cannot contradict `kind`."""
    bad = " | ".join(rf'"{kind}"' for kind in KINDS if kind != "coherent")
    return "\n".join(
        [
            # the closing quote belongs to the reason: a lexer is greedy, and would only stop at the greatest length
            r'start: "{\"reason\": \"" reason ", \"kind\": \"" (good | poor)',
            rf'reason: /[A-Za-z\p{{Han}}][^"\\\x00-\x1f]{{3,{reason_characters}}}"/',
            r'good: "coherent\", \"keep\": true}"',
            rf'poor: ({bad}) "\", \"keep\": false}}"',
        ]
    )


def read_verdict(text: str) -> Verdict | Complaint:
    """The verdict in an answer, or what is wrong with it."""
    plain = re.sub(r"\A```(?:json)?[^\S\n]*\n(.*?)\n?```\Z", r"\1", text.strip(), flags=re.DOTALL)
    try:
        value = json.loads(plain)
    except (ValueError, RecursionError):
        return Complaint("it is not one JSON object")
    if not isinstance(value, dict):
        return Complaint("it is not one JSON object")
    try:
        verdict = Verdict.model_validate(value)
    except ValidationError as error:
        plain_error = from_validation(error)
        return Complaint(f"'{plain_error.field}': {plain_error.what}")
    if verdict.keep != (verdict.kind == "coherent"):
        return Complaint(f"'keep' and 'kind' contradict each other: {str(verdict.keep).lower()}, {verdict.kind}")
    return verdict


async def verdict_stage(
    dialogues: Path, out: Path, model: TextModel, retries: int = 2, seed: int = 0
) -> dict[str, Any]:
    """Writes the dialogues that the model finds fit, and every verdict beside them; returns the stage's manifest."""
    refuse_embedded(model, "judge which dialogues are fit: its answers are in form and mean nothing")
    told = {"model": model.name, "retries": retries, "seed": seed, "prompt": _prompt()}
    stage = Stage(out, told, {"dialogues": dialogues}, beside=[VERDICTS])
    if found := stage.finished():
        return found

    async def ask(block: list[Dialogue]) -> Done:
        requests = [_request(dialogue, seed, model.name) for dialogue in block]
        answers = await ask_until_read(model, requests, lambda _, answer: _read(answer), SAMPLING, retries)
        return _done(block, answers)

    with stage:
        await ask_through(stage, in_blocks(read_corpus(dialogues), model.batch_size), ask, model.at_once)
        return stage.finish(failed=sum(stage.counts.get("failed", {}).values()))


def _read(answer: Generation) -> Verdict | Complaint:
    return Complaint("it is too long and was cut off") if answer.cut_off else read_verdict(answer.text)


def _prompt() -> str:
    return files("compeer.ser").joinpath("prompts", "screen.txt").read_text(encoding="utf-8").strip()


def _request(dialogue: Dialogue, seed: int, model: str) -> Request:
    content = _prompt().format(conversation=transcript(dialogue.utterances))
    own = int(generator(seed, "verdict", model, dialogue.id).integers(2**31))
    return Request(({"role": "user", "content": content},), seed=own, grammar=verdict_grammar())


def _done(block: list[Dialogue], answers: list[Answer[Verdict]]) -> Done:
    lines, verdicts = [], []
    counts: dict[str, Counter[str]] = {
        "screen": Counter(),
        "dropped": Counter(),
        "verdicts": Counter(),
        "failed": Counter(),
    }
    for dialogue, answer in zip(block, answers, strict=True):
        counts["screen"]["read"] += 1
        if isinstance(answer, Failure) and answer.kind != "refused":
            counts["failed"][answer.kind] += 1
            continue
        kind, keep, told = _told(answer)
        counts["verdicts"][kind] += 1
        counts["screen"]["kept" if keep else "dropped"] += 1
        verdicts.append(json.dumps({"dialogue": dialogue.id, "kind": kind, "keep": keep, **told}, ensure_ascii=False))
        if keep:
            lines.append(dialogue.model_dump_json(exclude_defaults=True))
        else:
            counts["dropped"][kind] += 1
    return Done(lines, {VERDICTS: verdicts}, counts)


def _told(answer: Answer[Verdict]) -> tuple[str, bool, dict[str, Any]]:
    """The kind of a verdict, whether the dialogue is kept, and what there is to tell."""
    if isinstance(answer, Read):
        return answer.value.kind, answer.value.keep, {"reason": answer.value.reason, "tries": answer.tries}
    if isinstance(answer, Unread):
        return "verdict unread", True, {"text": answer.text, "complaint": answer.complaint, "tries": answer.tries}
    return "not asked", True, {"reason": answer.reason}
