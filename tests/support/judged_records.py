"""Records with labels, and judgments of them, for tests of metrics."""

from __future__ import annotations

import numpy as np

from compeer.dialogue import Strategy, Utterance
from compeer.reasoning import STEPS, EmotionStep, HistoryStep, Part, StrategyStep, SupportTurn
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import PREFERENCES, LabelSource, PreferenceLabel, Preferred, SerRecord, StepLabel, StepLabels


def turn(strategy: Strategy = "Question", response: str = "What happened?") -> SupportTurn:
    return SupportTurn(
        history=HistoryStep(text="Lost her job.", stage="exploration"),
        emotion=EmotionStep(text="Afraid.", sentiment="negative", emotion="fear", intensity=4),
        strategy=StrategyStep(text="More has to be known.", strategy=strategy),
        response=response,
    )


def record(
    number: int = 0,
    dialogue: str = "d",
    false: tuple[str, ...] = (),
    preferred: Preferred | None = "candidate",
    source: LabelSource = "human",
    kind: str | None = None,
    candidate: SupportTurn | None = None,
) -> SerRecord:
    def label(part: str) -> StepLabel:
        return StepLabel(value=part not in false, source=source, how="test", kind=kind if part in false else None)

    return SerRecord(
        id=f"r{number}",
        dialogue=dialogue,
        round=1,
        language="en",
        source="test",
        split="test",
        history=(Utterance(speaker="seeker", text="they let me go"),),
        candidate=candidate or turn(),
        author="test",
        reference="And then?",
        labels=StepLabels(history=label("history"), emotion=label("emotion"), strategy=label("strategy")),
        preference=PreferenceLabel(value=preferred, source=source, how="test") if preferred else None,
        candidate_first=True,
    )


def said(step: float = 0.9, response: Preferred | None = "candidate", **steps: float) -> Judgment:
    probabilities: dict[Preferred, float] = {value: 0.7 if value == response else 0.1 for value in PREFERENCES}
    found: dict[Part, float] = {part: steps.get(part, step) for part in STEPS}
    return Judgment(steps=found, response=probabilities if response else None)


def random_set(
    count: int, dialogues: int, skill: float, seed: int
) -> tuple[list[SerRecord], list[Judgment | Unscored]]:
    """Records with random labels, and a judge that knows them the better the greater its skill."""
    labels = np.random.default_rng(5)
    rng = np.random.default_rng(seed)
    records, judgments = [], []
    for number in range(count):
        false = tuple(part for part in STEPS if labels.random() < 0.3)
        preferred = PREFERENCES[labels.integers(4)]
        kind = "swapped" if number % 2 else "stage"
        source: LabelSource = "human" if number % 3 else "silver"
        records.append(record(number, f"d{number % dialogues}", false, preferred, source, kind))
        steps: dict[Part, float] = {
            part: float(1 / (1 + np.exp(-(skill * (-1 if part in false else 1) + rng.normal())))) for part in STEPS
        }
        raw = np.exp(rng.normal(size=4) + skill * (np.array(PREFERENCES) == preferred))
        response: dict[Preferred, float] = {v: float(p) for v, p in zip(PREFERENCES, raw / raw.sum(), strict=True)}
        judgments.append(Judgment(steps=steps, response=response))
    return records, judgments
