"""A simulated seeker as a source of rewards: the change of its emotion, to the number, and what is unscored."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from compeer.dialogue import Utterance
from compeer.models import Request
from compeer.models.base import Failure, Generation, Sampling
from compeer.policy.rewards import JudgeAway, Scorer, Weighted
from compeer.policy.sources import SeekerSource, facts_from_history
from compeer.reasoning import ParsedTurn, parse_turn
from compeer.reward import Score
from compeer.ser.asking import WordEmbedder
from compeer.ser.record import SerRecord
from compeer.simulate import AgentTurn, View
from compeer.simulate.emotion import RLVER, SAGE
from compeer.simulate.sentient import SentientSeeker
from tests.support.scripted_agent import ScriptedAgent
from tests.support.scripted_model import ScriptedModel

OUTPUT = (
    "History: Just began. [exploration]\nEmotion: Tense. [negative, anxiety, 3]\n"
    "Strategy: Ask first. [Question]\nResponse: {}"
)


def record(name: str = "r", history_texts: Sequence[str] = ("I lost my job.",), language: str = "en") -> SerRecord:
    turn = parse_turn(OUTPUT.format("What happened?")).turn
    assert turn is not None
    return SerRecord(
        id=name,
        dialogue=name,
        round=1,
        language=language,
        source="test",
        split="policy",
        history=tuple(
            Utterance(speaker="seeker" if n % 2 == 0 else "supporter", text=t) for n, t in enumerate(history_texts)
        ),
        candidate=turn,
        author="corpus",
        reference=turn.response,
        candidate_first=True,
    )


def output(response: str) -> ParsedTurn:
    return parse_turn(OUTPUT.format(response))


def content(request: Request) -> str:
    return str(request.messages[-1]["content"])


def sentient(answer: Callable[[Request], str], **more: Any) -> SentientSeeker:
    return SentientSeeker(ScriptedModel(answer), **more)


def test_a_better_response_moves_the_seeker_further() -> None:
    def answer(request: Request) -> str:
        kind = "I am glad you told me" in content(request)
        return f"Reasons: It {'was kind' if kind else 'brushed me off'}.\nChange: {'+6' if kind else '-4'}"

    seeker = sentient(answer)
    source = SeekerSource(seeker, seed=0)
    scores = source.score([record()] * 2, [output("I am glad you told me."), output("Just get over it.")])
    assert scores == [
        Score(total=6, more={"change 1": 6, "emotion": 46}),
        Score(total=-4, more={"change 1": -4, "emotion": 36}),
    ]
    assert isinstance(seeker.model, ScriptedModel)
    assert len(seeker.model.requests) == 2  # on the last turn it is only asked what it feels
    assert len({request.seed for request in seeker.model.requests}) == 1  # outputs of a group meet the same draws
    assert "I lost my job." in content(seeker.model.requests[0])


def test_the_rules_of_the_seeker_hold() -> None:
    def answer(_: Request) -> str:
        return "Reasons: It was so very good.\nChange: +25"

    held = SeekerSource(sentient(answer), seed=0).score([record()], [output("Yes.")])[0]
    free = SeekerSource(sentient(answer, rules=RLVER), seed=0, start=30)
    assert held.total is not None
    assert held.total == 10  # SAGE clamps
    found = free.score([record()], [output("Yes.")])[0]
    assert found.total is not None
    assert (found.total, found.more["emotion"]) == (25, 55)


def test_a_missing_response_gets_the_worst_without_a_call() -> None:
    seeker = sentient(lambda _: "Reasons: Fine enough.\nChange: 0")
    cut = parse_turn(OUTPUT.format("I am"), cut_off=True)
    scores = SeekerSource(seeker, seed=0).score([record()] * 3, [parse_turn("?"), cut, output("Yes.")])
    assert scores[:2] == [Score(total=-10), Score(total=-10)]
    assert scores[2].total is not None
    assert scores[2].total == 0
    assert isinstance(seeker.model, ScriptedModel)
    assert len(seeker.model.requests) == 1


def test_a_seeker_that_is_won_stays_on_the_scale() -> None:
    won = SeekerSource(sentient(lambda _: "Reasons: All is well.\nChange: +10"), seed=0, start=95)
    assert won.score([record()], [output("Yes.")]) == [Score(total=5, more={"change 1": 5, "emotion": 100})]


def test_a_failing_seeker_leaves_the_output_unscored() -> None:
    unreadable = SeekerSource(sentient(lambda _: "I feel fine, thanks"), seed=0)
    assert unreadable.score([record()], [output("Yes.")]) == [
        Score(unscored="the seeker gave nothing of use: unparsable")
    ]
    away = SeekerSource(SentientSeeker(ScriptedModel([])), seed=0)
    assert away.score([record()], [output("Yes.")]) == [Score(unscored="the seeker gave nothing of use: script")]
    plain = SeekerSource(ScriptedAgent(["hm"]), seed=0)
    silent = SeekerSource(ScriptedAgent(lambda _: AgentTurn("hm", extra={})), seed=0)
    for source in (plain, silent):
        assert source.score([record()], [output("Yes.")]) == [Score(unscored="the seeker noted no emotion")]


def test_a_server_that_stays_away_stops_the_training() -> None:
    class Away(ScriptedModel):
        async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
            raise JudgeAway("it cannot be asked")

    with pytest.raises(JudgeAway):
        SeekerSource(SentientSeeker(Away([])), seed=0).score([record()], [output("Yes.")])


def test_any_agent_that_notes_its_emotion_will_do() -> None:
    def feels(view: View) -> AgentTurn:
        before = next(turn.extra["emotion"] for turn in reversed(view.own) if "emotion" in turn.extra)
        return AgentTurn("" if view.over else "hm", extra={"emotion": before + len(view.turns[-1].text)})

    agent = ScriptedAgent(feels)
    history_texts = ("It began.", "When?", "In May.")
    scores = SeekerSource(agent, seed=0, start=10).score([record(history_texts=history_texts)], [output("four")])
    assert scores == [Score(total=4, more={"change 1": 4, "emotion": 14})]


def test_what_is_known_of_a_seeker_is_what_it_said() -> None:
    facts = facts_from_history(record(history_texts=("I {lost} my\njob.", "Oh.", "Twice.")))
    assert set(facts) == {"person", "scene", "intention"}
    assert "- I {lost} my job.\n- Twice." in facts["scene"]
    assert "Oh." not in facts["scene"]
    assert "理解" in facts_from_history(record(language="zh"))["intention"]


def test_the_scorer_adds_it_to_other_sources() -> None:
    def answer(request: Request) -> str:
        return f"Reasons: So it is.\nChange: {'+8' if 'glad' in content(request) else '-2'}"

    source = SeekerSource(sentient(answer, rules=SAGE), seed=0)
    one = record()
    scorer = Scorer([Weighted(source, 0.5)], WordEmbedder(), {"r": one}, 0)
    texts = [OUTPUT.format("I am glad you said it."), OUTPUT.format("So what now then?"), "nothing"]
    rollouts = scorer(["r"] * 3, texts, [False] * 3)
    assert [rollout.raw for rollout in rollouts] == [4, -1, -5]
    assert rollouts[0].score.sources == {"seeker": 8}
    assert rollouts[0].score.given()["emotion"] == 48
    assert np.isfinite(rollouts[2].raw)
