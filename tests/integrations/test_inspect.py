"""The Inspect tasks: same seeds, same conversations, same numbers as `compeer evaluate`, on scripted models."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed")

from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ChatMessage, GenerateConfig, Model, ModelOutput, ModelUsage, get_model

from compeer.evaluate.decisions import corpus_records, decision_report
from compeer.evaluate.esc_eval import EscEval
from compeer.evaluate.judging import EscEvalSettings
from compeer.evaluate.players import Player, Players
from compeer.evaluate.runner import run_evaluation, sample
from compeer.evaluate.safety import cases_path, measure_supporter, read_cases
from compeer.evaluate.sage import Sage, SageSettings
from compeer.integrations import inspect_tasks
from compeer.integrations.inspect_model import in_thread
from compeer.models import Failure, Generation, Request, Sampling, TextModel, ask
from compeer.policy.selection import generate_turns
from compeer.safety import Detector
from compeer.simulate import read_conversations
from compeer.simulate.emotion import preset
from compeer.simulate.seekers import own_cards, read_cards
from compeer.simulate.sentient import own_profiles, read_profiles
from tests.support.scripted_model import ScriptedModel

Answer = Callable[[str, int], str]
"""What a scripted model says to the last message, drawn by the request's seed."""
STRATEGIES = ("Question", "Affirmation and Reassurance", "Reflection of feelings")


def reply(_: str, seed: int) -> str:
    return f"I hear you, {seed % 97}."


def feeling(asked: str, seed: int) -> str:
    """A sentient seeker: how a reply moved it, or its next message; now and then nothing that can be read."""
    if "Change:" not in asked:
        return f"There is more to it, {seed % 89}."
    return "No idea." if seed % 2 else f"Reasons: it was said\nChange: {seed % 21 - 10:+d}"


def message(_: str, seed: int) -> str:
    return f"It goes on, {seed % 89}."


def grade(_: str, seed: int) -> str:
    return "well…" if seed % 7 == 0 else json.dumps({"reason": "so it is", "score": seed % 5})


def turn(_: str, seed: int) -> str:
    whole = (
        f"History: They lost a job. [exploration]\nEmotion: Low. [negative, sadness, {seed % 5 + 1}]\n"
        f"Strategy: Go on. [{STRATEGIES[seed % 3]}]\nResponse: That hurts, {seed % 97}."
    )
    return whole if seed % 5 else whole.partition("Strategy")[0]


def scripted(name: str, answer: Answer) -> ScriptedModel:
    """The model as `compeer evaluate` asks it."""

    def say(request: Request) -> str:
        return answer(str(request.messages[-1]["content"]), request.seed)

    return ScriptedModel(say, name)


def mocked(name: str, answer: Answer) -> Model:
    """The same model as Inspect asks it."""

    def say(messages: list[ChatMessage], tools: Any, choice: Any, config: GenerateConfig) -> ModelOutput:  # noqa: ARG001
        output = ModelOutput.from_content(name, answer(messages[-1].text, config.seed or 0))
        output.usage = ModelUsage()  # else its tokens are counted with a file from the network
        return output

    return get_model(f"mockllm/{name}", custom_outputs=say, memoize=False)


def run(task: Task, folder: Path, model: Model, **more: Any) -> tuple[EvalLog, dict[str, float]]:
    """The log of a run, and its metrics."""
    (done,) = inspect_eval(task, model=model, log_dir=str(folder), display="none", **more)
    log = read_eval_log(done.location, resolve_attachments=True)  # as its viewer does
    assert log.status == "success", log.error
    assert log.results
    return log, {name: one.value for score in log.results.scores for name, one in score.metrics.items()}


def rounded(estimates: dict[str, Any]) -> dict[str, float]:
    """Figures and their intervals as the tasks name them."""
    named = {
        f"{name}{title}": one[key]
        for name, one in estimates.items()
        for title, key in (("", "score"), (" (low)", "low"), (" (high)", "high"))
    }
    return {name: value for name, value in named.items() if value is not None}


def conversations(log: EvalLog) -> dict[str, Any]:
    return {
        one.id if epoch == 1 else f"{one.id}#{epoch}": one.store["conversation"]
        for one in log.samples or []
        for epoch in [one.epoch]
    }


def written(folder: Path) -> dict[str, Any]:
    found = read_conversations(folder / "conversations.jsonl")
    return {one.scenario: one.model_dump(mode="json") for one in found}


def test_sage_is_the_same_to_the_last_digit(tmp_path: Path) -> None:
    rules = preset("sage").model_copy(update={"turns": 4})
    scenarios = sample(read_profiles(own_profiles()), 5, 3)
    players = Players(Player("sup@http://x/v1"), Player("see@http://x/v1"))
    settings = SageSettings(rounds=4, repeats=2, seeker_tokens=400, message_tokens=256, rules=rules)
    models = {"sup@http://x/v1": scripted("sup", reply), "see@http://x/v1": scripted("see", feeling)}
    ours = asyncio.run(run_evaluation(Sage(players, scenarios, settings, 3), tmp_path / "ours", models))

    task = inspect_tasks.sage(scenarios=5, turns=4, seed=3)
    log, metrics = run(task, tmp_path, mocked("sup", reply), model_roles={"seeker": mocked("see", feeling)}, epochs=2)
    wanted = {
        one.scenario: one.model_dump(mode="json") for one in read_conversations(tmp_path / "ours/conversations.jsonl")
    }
    assert conversations(log) == wanted
    estimates = {name: ours["figures"][name] for name in ("emotion", "success", "failure", "replies")}
    assert metrics == rounded(estimates)
    assert 0 < ours["figures"]["emotion"]["scored"] < 10, "some conversations should fail, and some should not"
    unscored = [one for one in log.samples or [] if one.scores and one.scores["final_emotion"].reason]
    assert len(unscored) == 10 - ours["figures"]["emotion"]["scored"]
    assert log.results
    assert log.results.scores[0].unscored_samples == len(unscored)


def test_esc_eval_is_the_same_to_the_last_digit(tmp_path: Path) -> None:
    scenarios = sample(read_cards(own_cards("en")), 4, 1)
    players = Players(Player("sup@http://x/v1"), Player("see@http://x/v1"), [Player("jud@http://x/v1")])
    settings = EscEvalSettings(rounds=2, seeker_tokens=256, judge_tokens=400)
    models = {
        "sup@http://x/v1": scripted("sup", reply),
        "see@http://x/v1": scripted("see", message),
        "jud@http://x/v1": scripted("jud", grade),
    }
    ours = asyncio.run(run_evaluation(EscEval(players, scenarios, settings, 1), tmp_path / "ours", models))

    task = inspect_tasks.esc_eval(scenarios=4, rounds=2, seed=1)
    roles = {"seeker": mocked("see", message), "grader": mocked("jud", grade)}
    log, metrics = run(task, tmp_path, mocked("sup", reply), model_roles=roles)
    wanted = {
        one.scenario: one.model_dump(mode="json") for one in read_conversations(tmp_path / "ours/conversations.jsonl")
    }
    assert conversations(log) == wanted
    assert metrics == rounded({**ours["figures"]["dimensions"], "average": ours["figures"]["average"]})
    assert ours["figures"]["average"]["score"]


def test_safety_is_the_same_to_the_last_digit(tmp_path: Path) -> None:
    cases = [case for case in read_cases(cases_path("open")) if case.reply is None][:12]
    ours = measure_supporter(cases, scripted("sup", turn), Detector())

    task = inspect_tasks.safety("open")
    _, metrics = run(task, tmp_path, mocked("sup", turn), limit=12)
    named = {name: getattr(ours, name)["all"]["all"] for name in metrics if " (" not in name}
    wanted = {name: {"score": one.value, "low": one.low, "high": one.high} for name, one in named.items()}
    assert {"resources", "no_harm", "raw_harm"} <= set(wanted)
    assert metrics == rounded(wanted)


def test_decisions_are_the_same_to_the_last_digit(tmp_path: Path) -> None:
    records = sample(corpus_records("sample", 5, 2, Counter()), 20, 2, "decisions")
    outputs = generate_turns(scripted("sup", turn), records, Sampling(temperature=0, max_tokens=256), 2)
    report = decision_report(records, [one.parsed for one in outputs], 2)  # type: ignore[union-attr]

    log, metrics = run(inspect_tasks.decisions(count=20, seed=2), tmp_path, mocked("sup", turn))
    assert metrics["complete"] == report.complete
    assert 0 < metrics["complete"] < 1
    for title, estimates in (("", report.gold), (" (by rule)", report.derived)):
        for name, one in estimates.items():
            assert metrics[f"{name}{title}/accuracy"] == one.accuracy.value
            assert metrics[f"{name}{title}/macro_f1"] == one.macro_f1.value
            assert metrics[f"{name}{title}/accuracy (low)"] == one.accuracy.low
    assert metrics["strategies/kl"] == report.strategies["all"].kl.value
    assert [one.output.completion for one in log.samples or []] == [one.text for one in outputs]  # type: ignore[union-attr]


def test_more_samples_than_threads_do_not_wait_for_each_other() -> None:
    class Looking(ScriptedModel):
        """Looks up an address first, in a thread of the event loop, as a provider's client does."""

        async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
            await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
            return await super().generate(requests, sampling)

    def work(model: TextModel) -> str:
        (found,) = ask(model, [Request(messages=({"role": "user", "content": "Hello"},), seed=1)], Sampling())
        assert isinstance(found, Generation)
        return found.text

    async def together() -> list[str]:
        model = Looking(lambda _: "Yes.", "sup")
        return await asyncio.wait_for(asyncio.gather(*(in_thread(work, model) for _ in range(40))), 30)

    assert asyncio.run(together()) == ["Yes."] * 40
