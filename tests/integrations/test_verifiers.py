"""The verifiers environment: tasks, rewards by part, redundancy over the group, conversations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verifiers", reason="verifiers is not installed")

import verifiers.v1 as vf

from compeer.integrations import verifiers_env
from compeer.integrations.verifiers_env import Reweighting, SupportEnv, SupportTask
from compeer.policy.redundancy import reweight
from compeer.reasoning import STEPS
from compeer.reward import Case, Judgment, Unscored
from compeer.ser.record import SerRecord
from compeer.statistics import words

ENVIRONMENT = Path(__file__).parents[2] / "environments" / "compeer_support"


def turn(strategy: str, response: str) -> str:
    return (
        "History: They lost a job. [exploration]\nEmotion: Low. [negative, sadness, 4]\n"
        f"Strategy: Go on. [{strategy}]\nResponse: {response}"
    )


class Scripted:
    """A judge that dislikes questions, and fails where it is asked about a storm."""

    name = "scripted"

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return [self._verdict(case) for case in cases]

    def _verdict(self, case: Case) -> Judgment | Unscored:
        response = str(case.output.parts.get("response", ""))
        if "storm" in response:
            return Unscored("a storm")
        good = "?" not in response
        steps = {part: 0.9 if good else 0.2 for part in STEPS if part in case.output.parts}
        compared = {"candidate": 0.7, "reference": 0.1, "both": 0.1, "neither": 0.1} if case.reference else None
        return Judgment(steps, compared)  # type: ignore[arg-type]


class Letters:
    """Embeds a text by its letters."""

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.array([[text.lower().count(chr(97 + n)) for n in range(26)] for text in texts], dtype=np.float32)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers_env, "judge_of", lambda _: Scripted())
    monkeypatch.setattr(verifiers_env, "embedder", lambda: Letters())
    monkeypatch.syspath_prepend(str(ENVIRONMENT))
    sys.modules.pop("compeer_support", None)


def environment(**settings: Any) -> SupportEnv:
    import compeer_support  # type: ignore[import-not-found]

    found: SupportEnv = compeer_support.load_environment(**settings)
    return found


def trace_of(task: SupportTask, *messages: str) -> vf.Trace:
    """A finished trace in which seeker and supporter spoke in turn; the supporter's words were sampled."""
    nodes = []
    for number, text in enumerate(messages):
        message = vf.AssistantMessage(content=text) if number % 2 else vf.UserMessage(content=text)
        parent = number - 1 if number else None
        nodes.append(vf.MessageNode(parent=parent, message=message, sampled=bool(number % 2)))
    about = vf.TraceTask(type="SupportTask", data=task.data, key=task.key, hash=task.hash)
    return vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig(), name="supporter"), nodes=nodes, ok=True)


def test_a_history_is_a_task_with_our_prompt() -> None:
    task = next(iter(environment().taskset))
    record = SerRecord.model_validate(task.data.record)
    assert task.data.id == record.id
    assert record.history[-1].text in task.data.prompt_text
    assert "Strategy" in str(task.data.system_prompt)


def test_a_groups_rewards_are_those_of_training() -> None:
    env = environment(group=3)
    task = next(iter(env.taskset))
    record = SerRecord.model_validate(task.data.record)
    responses = [
        "That hurts, and you are not alone in it.",
        "That hurts, and you are not alone.",
        "Why did you not go?",
    ]
    names = ["Reflection of feelings", "Reflection of feelings", "Question"]
    outputs = [turn(name, response) for name, response in zip(names, responses, strict=True)]
    outputs[0] = outputs[0].partition("Emotion")[0] + "Strategy" + outputs[0].partition("Strategy")[2]
    traces = [trace_of(task, task.data.prompt_text, output) for output in outputs]
    episode = vf.Episode(task=traces[0].task, traces=traces)
    asyncio.run(env.finalize(task, episode))

    raw = [1.0, 5.0, -1.0]  # no emotion: steps +1 −1 +1, response +1, form −1
    history = Letters().embed([one.text for one in record.history])
    lengths = [len(words(response)) for response in responses]
    wanted = reweight(raw, Letters().embed(responses), history, lengths, 0.5, 5.0, "mirrored")
    assert [trace.metrics["unifireward"] for trace in traces] == raw
    assert [trace.reward for trace in traces] == pytest.approx(wanted, rel=1e-12)
    assert [sorted(trace.rewards) for trace in traces][1] == sorted([*STEPS, "response", "format", "safety"])
    assert traces[1].metrics["redundancy_factor"] < 1 < traces[2].metrics["redundancy_factor"]


def test_a_turn_by_itself_is_not_reweighted() -> None:
    task = next(iter(environment().taskset))
    trace = trace_of(task, task.data.prompt_text, turn("Question", "That hurts."))
    asyncio.run(task.score(trace))
    assert trace.reward == 5


def test_a_turn_that_the_judge_failed_on_is_no_number() -> None:
    env = environment(group=1)
    task = next(iter(env.taskset))
    trace = trace_of(task, task.data.prompt_text, turn("Question", "A storm."))
    with pytest.raises(ValueError, match="the judge failed: a storm"):
        asyncio.run(env.finalize(task, vf.Episode(task=trace.task, traces=[trace])))
    assert not trace.rewards


def test_a_conversation_is_scored_turn_by_turn() -> None:
    task = next(iter(environment(taskset={"source": "cards"}).taskset))
    assert task.data.card
    messages = ["I failed.", turn("Question", "That hurts."), "It does.", turn("Question", "Why?")]
    trace = trace_of(task, *messages)
    asyncio.run(task.score(trace))
    parts = {name: one.score for name, one in trace.rewards.items() if one}
    assert parts == {"history": 0, "emotion": 0, "strategy": 0, "format": 1}
    ((first, _), (second, _)) = verifiers_env.spoken(trace)
    assert [one.text for one in second] == [first[0].text, "That hurts.", "It does."]


def test_settings_have_the_defaults_of_training() -> None:
    from compeer.policy.grpo_settings import GrpoSettings

    ours = GrpoSettings.model_fields
    for name, value in Reweighting().model_dump().items():
        assert ours[name].default == value, name
