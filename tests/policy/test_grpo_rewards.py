"""Where rewards come from: sources and weights, judges of all kinds as sources, and the figures of a step."""

import json
import math
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.models.base import Request
from compeer.models.training import run_trainer
from compeer.policy import grpo
from compeer.policy.grpo import GrpoSettings, Rollout, Scorer, grpo_trainer
from compeer.policy.grpo_settings import SourceSettings
from compeer.policy.metrics import JUDGED, group_metrics, sample_rows, still_parts
from compeer.policy.redundancy import advantages
from compeer.policy.rewards import (
    DecisionSource,
    JudgeSource,
    PlanSource,
    RewardSource,
    Weighted,
    reward_group,
    weighted_sum,
)
from compeer.policy.sources import SeekerSource, open_sources
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES, ParsedTurn, parse_turn, render_turn
from compeer.recipe import explain, judges_hash, load_recipe
from compeer.reward import Case, JudgeForm, Judgment, PairJudge, Score, Unscored
from compeer.reward.endpoint import ModelJudge
from compeer.ser.record import SerRecord
from tests.support.grpo_worker import HashSource, WordRows, scripted_scorer, whole
from tests.support.judging import record, words_of
from tests.support.scripted_model import ScriptedModel

SETTINGS = GrpoSettings(steps=1, learning_rate=1e-3, lora_rank=0, prompts=1, max_tokens=8, history=1)
RECORD = record(1)
OUTPUT = parse_turn(render_turn(RECORD.candidate))
WHOLE = dict.fromkeys(("history", "emotion", "strategy", "response", "format"), 1)


class Fixed:
    """Gives what it is told to."""

    def __init__(self, name: str, *scores: float | None) -> None:
        self.name, self._scores = name, scores

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        return [
            Score(unscored="no idea") if s is None else Score(total=s, more={"warmth": s / 2}) for s in self._scores
        ]


def opened(
    sources: Mapping[str, SourceSettings], judge: Path | None, batch: int, records: Sequence[SerRecord] = ()
) -> list[Weighted]:
    return open_sources(SETTINGS.model_copy(update={"rewards": sources}), judge, batch, 1, records)


# --- composing --------------------------------------------------------------------------------------------------------


def combined(*sources: Weighted) -> list[Score]:
    scores = [weighted.source.score([], []) for weighted in sources]
    return [weighted_sum(sources, row) for row in zip(*scores, strict=True)]


def test_the_weighted_sum_by_hand() -> None:
    first, second, third = combined(
        Weighted(Fixed("a", 3, -5, None)), Weighted(Fixed("b", 2, None, 4), 0.5), Weighted(Fixed("c", None, 1, 1), 0)
    )
    assert first.total == 3 + 0.5 * 2
    assert first.sources == {"a": 3, "b": 2, "c": None}
    assert first.unscored is None, "a source of weight 0 may fail"
    assert first.given() == {"warmth": 1.5, "b/warmth": 1.0}
    assert (second.total, second.unscored) == (None, "b: no idea")
    assert (third.total, third.unscored) == (None, "a: no idea")
    assert third.sources == {"a": None, "b": 4, "c": 1}


def test_the_corpus_own_decisions_are_a_source() -> None:
    gold = RECORD.candidate
    other = gold.model_copy(update={"history": gold.history.model_copy(update={"stage": "action"})})
    assert gold.history.stage != "action"
    outputs = [OUTPUT, parse_turn(render_turn(other)), parse_turn("no turn at all")]
    same, apart, nothing = DecisionSource().score([RECORD] * 3, outputs)
    assert same == Score(total=3, more={"stage": 1, "emotion": 1, "strategy": 1})
    assert apart == Score(total=1, more={"stage": -1, "emotion": 1, "strategy": 1})
    assert nothing == Score(total=-3, more={"stage": -1, "emotion": -1, "strategy": -1})
    (weighted,) = opened({"labels": SourceSettings(decisions=True, weight=0.5)}, None, 1)
    assert (weighted.source.name, weighted.weight) == ("labels", 0.5)


def decided(stage: str, emotion: str, strategy: str) -> SerRecord:
    gold = RECORD.candidate
    turn = gold.model_copy(
        update={
            "history": gold.history.model_copy(update={"stage": stage}),
            "emotion": gold.emotion.model_copy(update={"emotion": emotion}),
            "strategy": gold.strategy.model_copy(update={"strategy": strategy}),
        }
    )
    return RECORD.model_copy(update={"candidate": turn, "author": "corpus"})


DECIDED = st.builds(decided, st.sampled_from(STAGES), st.sampled_from(EMOTIONS), st.sampled_from(STRATEGIES))


def beyond_chance(records: Sequence[SerRecord]) -> RewardSource:
    source = SourceSettings(decisions=True, beyond_chance=True)
    return opened({"labels": source}, None, 1, records)[0].source


@given(st.lists(DECIDED, min_size=1, max_size=30), DECIDED)
def test_beyond_chance_one_answer_for_every_history_earns_nothing(records: list[SerRecord], one: SerRecord) -> None:
    answer = parse_turn(render_turn(one.candidate))
    scores = beyond_chance(records).score(records, [answer] * len(records))
    assert sum(score.total or 0 for score in scores) == pytest.approx(0, abs=1e-9)


def test_beyond_chance_a_rare_decision_that_is_right_earns_more() -> None:
    records = [decided("comforting", "sadness", "Question")] * 3 + [decided("comforting", "sadness", "Information")]
    outputs = [parse_turn(render_turn(one.candidate)) for one in records]
    rewritten = RECORD.model_copy(update={"author": "model"})
    source = beyond_chance([*records, rewritten])
    common, rare, wrong, nothing = source.score(
        [records[0], records[3], records[3], records[0]], [outputs[0], outputs[3], outputs[0], parse_turn("nothing")]
    )
    assert common == Score(total=0.5, more={"stage": 0, "emotion": 0, "strategy": 0.5}), (
        "the corpus' own turns are counted"
    )
    assert rare == Score(total=1.5, more={"stage": 0, "emotion": 0, "strategy": 1.5})
    assert wrong == Score(total=-1.5, more={"stage": 0, "emotion": 0, "strategy": -1.5})
    assert nothing == Score(total=-6, more={"stage": -2, "emotion": -2, "strategy": -2}), (
        "no better than anything that is said"
    )
    with pytest.raises(ValueError, match="set decisions as well"):
        SourceSettings(beyond_chance=True)


class Probabilities:
    """Takes a reply with a question mark for a question, and knows nothing of others."""

    def carried_out(self, turns: Sequence[tuple[str, str]]) -> list[float]:
        return [
            1.0 if "?" in text and strategy == "Question" else 1 / 8 if "?" in text else 0.0 for text, strategy in turns
        ]


def test_a_response_that_does_what_its_plan_says_gains() -> None:
    def output(strategy: str, response: str) -> ParsedTurn:
        step = RECORD.candidate.strategy.model_copy(update={"strategy": strategy})
        return parse_turn(render_turn(RECORD.candidate.model_copy(update={"strategy": step, "response": response})))

    outputs = [output("Question", "Why?"), output("Others", "Why?"), output("Question", "Oh."), parse_turn("nothing")]
    found = PlanSource(Probabilities()).score([RECORD] * 4, outputs)  # type: ignore[arg-type]
    assert found == [Score(total=1), Score(total=0), Score(total=-1), Score(total=-1)]


def test_the_plan_is_learnt_from_the_reference_turns_at_hand() -> None:
    replies = {"Question": "How are you, and why?", "Providing Suggestions": "You could try to rest."}
    records = []
    for number in range(60):
        strategy = sorted(replies)[number % 2]
        step = RECORD.candidate.strategy.model_copy(update={"strategy": strategy})
        turn = RECORD.candidate.model_copy(update={"strategy": step, "response": replies[strategy]})
        records.append(RECORD.model_copy(update={"candidate": turn, "author": "corpus", "dialogue": f"d{number}"}))
    (weighted,) = opened({"plan": SourceSettings(plan=True)}, None, 1, records)
    does, other = (parse_turn(render_turn(one.candidate)) for one in records[:2])
    swapped = parse_turn(
        render_turn(records[0].candidate.model_copy(update={"response": records[1].candidate.response}))
    )
    totals = [one.total for one in weighted.source.score(records[:3], [does, other, swapped])]  # type: ignore[union-attr]
    assert min(totals[:2]) > 0 > totals[2]
    unseen = records[0].candidate.strategy.model_copy(update={"strategy": "Others"})
    never = parse_turn(render_turn(records[0].candidate.model_copy(update={"strategy": unseen})))
    assert weighted.source.score(records[:1], [never]) == [Score(total=0)], "nothing can be said about it"
    with pytest.raises(ValueError, match="sources of their own"):
        SourceSettings(plan=True, decisions=True)
    with pytest.raises(InputError, match="too few"):
        opened({"plan": SourceSettings(plan=True)}, None, 1)


@given(st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.floats(0, 3)), min_size=1, max_size=5))
def test_a_row_has_a_total_only_if_all_that_count_gave_one(rows: list[tuple[int | None, float]]) -> None:
    (found,) = combined(*(Weighted(Fixed(str(n), score), weight) for n, (score, weight) in enumerate(rows)))
    if any(score is None and weight for score, weight in rows):
        assert found.total is None
        assert found.unscored
    else:
        assert found.total == pytest.approx(sum((score or 0) * weight for score, weight in rows))


def test_an_unscored_row_has_no_advantage_and_no_part_in_the_baseline() -> None:
    sources = [Weighted(Fixed("a", 3, 1, 2, None)), Weighted(Fixed("b", 1, 1, None, 1))]
    row = np.array([1.0, 0.0], dtype=np.float32)
    rollouts = [Rollout("r", "t", raw, 3, row, np.zeros((0, 2), dtype=np.float32)) for raw in combined(*sources)]
    rewards = reward_group(rollouts, SETTINGS.model_copy(update={"negatives": "off"})).rewards
    assert rewards[:2] == [4, 2]
    assert math.isnan(rewards[2])
    assert math.isnan(rewards[3])
    assert advantages(rewards) == [*advantages([4.0, 2.0]), 0.0, 0.0]


# --- judges as sources ------------------------------------------------------------------------------------------------


class StepsOnly:
    name = "steps"

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return [Judgment({"history": 0.9, "emotion": 0.1, "strategy": 0.9}) for _ in cases]


class ResponsesOnly:
    name = "responses"

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        replies: Any = {"candidate": 0.8, "reference": 0.2}
        return [Unscored("away") if self._fails else Judgment({}, replies) for _ in cases]


def test_prm_and_orm_together_are_a_source() -> None:
    pair: Any = PairJudge(StepsOnly(), ResponsesOnly())  # type: ignore[arg-type]
    (found,) = JudgeSource(pair, 0).score([RECORD], [OUTPUT])
    assert found.total == 3
    assert found.parts() == {**WHOLE, "emotion": -1}
    broken: Any = PairJudge(StepsOnly(), ResponsesOnly(fails=True))  # type: ignore[arg-type]
    assert [one.unscored for one in JudgeSource(broken, 0).score([RECORD], [OUTPUT])] == ["away"]


def test_a_model_that_is_asked_in_words_is_a_source() -> None:
    def answer(request: Request) -> str:
        return "Both" if "Both" in words_of(request) else "True"

    source = JudgeSource(ModelJudge(ScriptedModel(answer)), 0)
    found = source.score([RECORD, RECORD], [OUTPUT, parse_turn("nonsense")])
    assert [one.total for one in found] == [5, -5]
    mute = JudgeSource(ModelJudge(ScriptedModel([])), 0)
    (unscored, broken) = mute.score([RECORD, RECORD], [OUTPUT, parse_turn("nonsense")])
    assert unscored.unscored
    assert broken.total == -5, "a broken output needs no judge"


def test_sources_of_a_recipe(tiny_learner: Path, tmp_path: Path) -> None:
    judge = shutil.copytree(tiny_learner, tmp_path / "judge")
    (judge / "compeer.json").write_text('{"role": "judge"}')
    changes = ["grpo.rewards.judge.weight=0.5", "grpo.rewards.opinion.judge=m@http://127.0.0.1:9/v1"]
    recipe = load_recipe("demo", changes)
    assert list(recipe.grpo.rewards) == ["judge", "opinion"]
    assert ("grpo.rewards.judge.weight", "0.5") in [(key, value) for key, value, _ in explain(recipe)]
    found = opened(recipe.grpo.rewards, judge, 2)
    assert [(one.source.name, one.weight) for one in found] == [("judge", 0.5), ("opinion", 1.0)]
    with pytest.raises(InputError, match="Did you mean 'weight'"):
        load_recipe("demo", ["grpo.rewards.opinion.wieght=1"])
    with pytest.raises(InputError, match=r"grpo\.rewards"):
        opened({"judge": SourceSettings(weight=0)}, judge, 2)
    with pytest.raises(InputError, match="no run"):
        opened({"judge": SourceSettings()}, None, 2)
    with pytest.raises(InputError, match="the process judge is needed"):
        opened({"judge": SourceSettings(outcome=str(judge))}, judge, 2)
    far = SourceSettings(judge="m@http://127.0.0.1:9/v1", form=JudgeForm(kind="outcome"))
    with pytest.raises(InputError, match="responses only"):
        opened({"judge": far}, None, 2)


def test_a_seeker_of_a_recipe_scores_without_a_judge(tiny_learner: Path) -> None:
    recipe = load_recipe("demo", [f"grpo.rewards.felt.seeker={tiny_learner}", "grpo.rewards.judge.weight=0"])
    assert f"judge {tiny_learner}" in judges_hash(recipe.grpo)
    settings = SourceSettings(seeker=str(tiny_learner), weight=0.2)
    ((source, weight),) = [(one.source, one.weight) for one in opened({"felt": settings}, None, 2)]
    assert isinstance(source, SeekerSource)
    assert (source.name, weight) == ("felt", 0.2)
    spoken, silent = source.score([RECORD] * 2, [parse_turn(whole("a")), parse_turn("nothing of use")])
    assert (spoken.total is None) == (spoken.unscored is not None)  # what a random model says may be nothing of use
    assert silent == Score(total=-10)


def test_the_embedder_works_while_the_judge_does() -> None:
    both = threading.Barrier(2, timeout=20)

    class Waits(HashSource):
        def score(self, records: Any, outputs: Any) -> Any:
            both.wait()
            return super().score(records, outputs)

    class WaitsToo(WordRows):
        def embed(self, texts: Sequence[str]) -> Any:
            both.wait()
            return super().embed(texts)

    scorer = Scorer([Weighted(Waits("a"))], WaitsToo(), {RECORD.id: RECORD}, 0)
    rollouts = scorer([RECORD.id] * 2, [whole("a"), whole("b")], [False] * 2)
    single = Scorer([Weighted(HashSource("a"))], WordRows(), {RECORD.id: RECORD}, 0)
    for mine, other in zip(rollouts, single([RECORD.id] * 2, [whole("a"), whole("b")], [False] * 2), strict=True):
        assert mine.score == other.score
        np.testing.assert_equal(mine.history, other.history)
    assert len(rollouts[0].history) == len(RECORD.history)


def test_what_a_source_raises_is_raised() -> None:
    class Breaks(HashSource):
        def score(self, records: Any, outputs: Any) -> Any:
            raise ZeroDivisionError

    scorer = Scorer([Weighted(Breaks("a"))], WordRows(), {RECORD.id: RECORD}, 0)
    with pytest.raises(ZeroDivisionError):
        scorer([RECORD.id], ["x"], [False])


# --- figures ----------------------------------------------------------------------------------------------------------


def rollout(place: int, parts: dict[str, float], total: float | None, row: Sequence[float]) -> Rollout:
    unscored = None if total is not None else "no"
    score = Score(total=total, unscored=unscored, more=parts, sources={"judge": total})
    text = whole(["one two three", "one two four", "one two three", "five"][place])
    return Rollout("r", text, score, 5, np.array(row, dtype=np.float32), np.zeros((0, 2), dtype=np.float32))


def test_the_figures_by_hand() -> None:
    group = [
        rollout(0, {"history": 1, "format": 1}, 2, [1, 0]),
        rollout(1, {"history": -1, "format": 1}, 0, [0, 1]),
        rollout(2, {"history": -1, "format": -1}, -2, [1, 0]),
        rollout(3, {}, None, [0, 1]),
    ]
    # mean length 5: τ = 0.5. Each is like one of the three others: s_in = 1/3, so the divisor is 1 + 1/6 = 7/6
    rewarded = reward_group(group, SETTINGS)
    rewards = rewarded.rewards
    assert rewards == pytest.approx([2 * 6 / 7, 0, -2 * 7 / 6, math.nan], nan_ok=True)
    measured = group_metrics([rewarded])
    assert measured["raw/total"] == 0
    assert measured["reweighted/total"] == pytest.approx((2 * 6 / 7 - 2 * 7 / 6) / 3)
    assert measured["raw/history"] == pytest.approx(-1 / 3)
    assert measured["reweighted/history"] == pytest.approx((6 / 7 - 6 / 7 - 7 / 6) / 3)
    assert measured["variance/history"] == pytest.approx(8 / 9)
    assert measured["variance/total"] == pytest.approx(8 / 3)
    assert math.isnan(measured["raw/emotion"])
    assert measured["raw/unscored_share"] == 0.25
    assert measured["frac_zero_std"] == measured["raw/tied_groups"] == 0
    assert measured["redundancy/s_in"] == pytest.approx(1 / 3)
    assert measured["redundancy/tau"] == 0.5
    assert measured["source/judge"] == 0
    # ten words, five kinds; pairs: one two, two three, one two, two four, one two, two three: six, of three kinds
    assert measured["response/distinct_1"] == 0.5
    assert measured["response/distinct_2"] == 0.5
    rows = list(sample_rows(4, [rewarded]))
    assert [row["total"] for row in rows] == [2, 0, -2, None]
    assert [row["advantage"] for row in rows] == pytest.approx(advantages(rewards), abs=1e-5)
    assert json.loads(json.dumps(rows))[3]["reward"] is None


def test_a_part_that_never_varies_is_named() -> None:
    rows = [{"variance/history": 0.0, "variance/emotion": 0.0, "variance/response": None, "variance/total": 0.0}] * 3
    assert still_parts(rows, 3) == ["history", "emotion"]
    assert still_parts(rows, 4) == []
    assert still_parts([*rows[:2], {**rows[0], "variance/history": 0.1}], 3) == ["emotion"]
    assert still_parts([{**rows[0], "variance/history": 0.1}, *rows], 3) == ["history", "emotion"]
    assert still_parts([], 0) == []


STABLE = {
    *(f"{kind}/{part}" for kind in ("raw", "reweighted", "variance") for part in (*JUDGED, "total")),
    *("frac_zero_std", "entropy", "completions/mean_length", "response/words", "response/distinct_1"),
    *("response/distinct_2", "redundancy/s_in", "redundancy/s_hi", "redundancy/tau", "raw/tied_groups"),
    *("raw/unscored_share", "guard/rejected_share", "variance/still", "reward", "source/first", "source/second"),
}


def test_every_step_logs_all_figures_and_warns(
    tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpo, "STILL_STEPS", 2)
    chosen = {f"r{n}": record(n).model_copy(update={"id": f"r{n}"}) for n in range(8)}
    settings = SETTINGS.model_copy(update={"steps": 3, "prompts": 2})
    trainer = grpo_trainer(tiny_learner, scripted_scorer(chosen), chosen, settings, tmp_path, 0)
    run_trainer(trainer, tmp_path, settings, "figures")
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        assert set(row) >= STABLE
        assert row["entropy"] > 0
    assert [row["variance/still"] > 0 for row in rows] == [False, True, True], "the scripted format is always whole"
    assert "format" in capfd.readouterr().err
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [(row["step"], row["group"]) for row in samples] == [
        (s, g) for s in range(3) for g in (0, 0, 0, 0, 1, 1, 1, 1)
    ]
    for step in range(3):
        totals = [row["total"] for row in samples if row["step"] == step and row["total"] is not None]
        assert rows[step]["raw/total"] == pytest.approx(np.mean(totals))
