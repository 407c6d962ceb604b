"""Control words: what an operator wants a turn to be, and how to get it.

The mildest way is to say so in the prompt (`instructions`), which a supporter learns from samples whose prompt asks for
what the reference turn does anyway (`sampled_control`). A grammar can hold a model to the decisions (`forced_grammar`),
and any model can go on from a step that is written for it (`forced_step`), as `compeer.chat` has it do. `obedience`
measures how often a supporter does what it is asked for.

A persona (`persona.py`) is not written down in an output, so it can be asked for but neither forced nor checked here.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from compeer import reasoning
from compeer.dialogue import Emotion, Stage, Strategy
from compeer.errors import InputError
from compeer.io import Frozen, table
from compeer.policy.persona import PERSONAS, Persona
from compeer.reasoning import EMOTIONS, STAGES, STEPS, STRATEGIES, ParsedTurn, Part, Step, SupportTurn

VALUES: dict[str, tuple[str, ...]] = {"strategy": STRATEGIES, "stage": STAGES, "emotion": EMOTIONS, "persona": PERSONAS}
PART_OF: dict[str, Part] = {"stage": "history", "emotion": "emotion", "strategy": "strategy"}  # where a decision stands
_WORDS: dict[str, Any] = table("policy/prompts/control")
_ANOTHER_FIELD = 0.25  # how probable it is that each further field is asked for in a sample: mostly one at a time
_MIDDLE = 3  # the intensity of a forced emotion


class Control(Frozen):
    """What a turn is wanted to be; a field that is None is left to the supporter."""

    strategy: Strategy | None = Field(default=None, description="the strategy to choose")
    stage: Stage | None = Field(default=None, description="the stage to take the conversation to be in")
    emotion: Emotion | None = Field(default=None, description="the emotion to take the seeker to feel")
    persona: Persona | None = Field(default=None, description="the manner to speak in")

    def requested(self) -> dict[str, str]:
        return self.model_dump(exclude_none=True)


def read_control(words: Iterable[str]) -> Control:
    """The control that words `field=value` ask for; a value may be in any case, or the beginning of one name only."""
    found: dict[str, Any] = {}
    for word in words:
        field, equals, value = (part.strip() for part in word.partition("="))
        if not equals or field not in VALUES:
            what = f"'{word}' asks for nothing that can be controlled."
            raise InputError(what, do=f"Write strategy=Question, say. Known fields: {', '.join(VALUES)}")
        known = VALUES[field]
        same = [one for one in known if one.lower() == value.lower()]
        meant = same or [one for one in known if value and one.lower().startswith(value.lower())]
        if len(meant) != 1:
            raise InputError(f"unknown {field} '{value}'.", field=field, do=f"Known: {', '.join(known)}")
        found[field] = meant[0]
    return Control.model_validate(found)


def instructions(control: Control) -> str:
    """The requests as sentences for the prompt; nothing for none."""
    return " ".join(_WORDS[field].format(value=value) for field, value in control.requested().items())


def sampled_control(
    turn: SupportTurn, persona: Persona | None, share: float, rng: np.random.Generator
) -> Control | None:
    """In a `share` of cases a control that asks for what the turn is already, in one random field or in more."""
    own = Control.model_validate({**decisions_of(turn), "persona": persona}).requested()
    if rng.random() >= share:
        return None
    count = 1 + int(rng.binomial(len(own) - 1, _ANOTHER_FIELD))
    chosen = rng.permutation(list(own))[:count].tolist()
    return Control.model_validate({field: own[field] for field in chosen})


def forced_grammar(control: Control | None = None) -> str:
    """The grammar of a turn in which the decisions that are asked for are the only ones allowed."""
    grammar = reasoning.turn_grammar()
    wanted = control.requested() if control else {}
    if control and control.emotion:  # or the step could contradict itself
        wanted["sentiment"] = reasoning.sentiment_of(control.emotion)
    for field in wanted.keys() & {*PART_OF, "sentiment"}:
        grammar = re.sub(rf"^{field}: .*$", f'{field}: "{wanted[field]}"', grammar, flags=re.MULTILINE)
    return grammar


def forced_step(part: Part, value: Any) -> Step:
    """The step that holds a wanted decision, worded here, since the decision stands at its end."""
    text = _WORDS["step"][part].format(value=value)
    if part == "history":
        return reasoning.HistoryStep(text=text, stage=value)
    if part == "strategy":
        return reasoning.StrategyStep(text=text, strategy=value)
    return reasoning.EmotionStep(text=text, sentiment=reasoning.sentiment_of(value), emotion=value, intensity=_MIDDLE)


def obedience(outputs: Sequence[ParsedTurn], controls: Sequence[Control | None]) -> dict[str, float]:
    """The share of outputs whose decision is the one asked for, in each field that was, and in "all" of a control."""
    hits: dict[str, list[bool]] = {}
    for parsed, control in zip(outputs, controls, strict=True):
        wanted = control.requested() if control else {}
        found = {field: decisions(parsed).get(field) == value for field, value in wanted.items() if field in PART_OF}
        for field, hit in found.items():
            hits.setdefault(field, []).append(hit)
        if found:
            hits.setdefault("all", []).append(all(found.values()))
    return {field: sum(own) / len(own) for field, own in hits.items()}


def decisions_of(turn: SupportTurn) -> dict[str, str]:
    """The stage, emotion and strategy of a whole turn."""
    return {"stage": turn.history.stage, "emotion": turn.emotion.emotion, "strategy": turn.strategy.strategy}


def decisions(output: ParsedTurn | SupportTurn) -> dict[str, str | int]:
    """The decisions of a turn, or those that could be read of an output, by name."""
    found: dict[str, str | int] = {}
    parts = output.parts if isinstance(output, ParsedTurn) else dict(output)
    for part in STEPS:
        step = parts.get(part)
        if step is not None and not isinstance(step, str):
            found |= step.model_dump(exclude={"text"})
    return found
