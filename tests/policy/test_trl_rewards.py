"""Rewards for a plain TRL trainer: the code in docs/policy.md as printed, and what the functions give."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compeer.policy import judged_by, redundant, reweight
from compeer.reasoning import render_turn
from compeer.reward import Case, Judgment, Unscored
from compeer.ser.record import write_records
from tests.support.judging import record, turn

DOCS = Path(__file__).parents[2] / "docs" / "policy.md"
HISTORY = [{"speaker": "seeker", "text": "they let me go", "strategy": None}]


class LengthJudge:
    """Accepts all steps, and the longer of two responses; fails where the response asks it to."""

    name = "length"

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        self.cases += cases
        return [self._judged(case) for case in cases]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)

    def _judged(self, case: Case) -> Judgment | Unscored:
        response = str(case.output.parts.get("response", ""))
        if "fail" in response:
            return Unscored("asked to")
        better = len(response) > len(case.reference or "")
        return Judgment(
            dict.fromkeys(("history", "emotion", "strategy"), 0.9), {"candidate": float(better), "reference": 0.5}
        )  # type: ignore[arg-type]


class Rows:
    def embed(self, texts: Sequence[str]) -> Any:
        return np.array([[1.0, len(text) % 3] for text in texts], dtype=np.float32)


def completion(response: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": render_turn(turn(response))}]


def test_totals_of_a_judge() -> None:
    judge = LengthJudge()
    reward = judged_by(judge, max_completion_length=9)
    found = reward(
        prompts=["p"] * 4,
        completions=[completion("A long answer to that."), completion("Oh."), completion("fail"), "nonsense"],
        history=[HISTORY] * 4,
        reference=["What happened?"] * 4,
        completion_ids=[[1] * 8] * 4,
        trainer_state=None,
    )
    assert found == [5, 3, None, -5]
    assert judge.cases[0].history[0].text == "they let me go"
    cut = reward(
        completions=[completion("A long answer to that.")],
        history=[HISTORY],
        reference=[None],
        completion_ids=[[1] * 9],
    )
    assert cut == [3 - 2], "what is as long as it may be was cut off: no response, no whole form"


def test_redundancy_is_that_of_training() -> None:
    rewards: list[float | None] = [5.0, -3.0, 1.0, None, 2.0, 2.0, 2.0, 2.0]
    texts = ["one two three four", "five", "six seven", "eight", *["same"] * 4]

    def given(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float | None]:
        assert len(prompts) == len(completions)
        return rewards

    function = redundant(given, num_generations=4, embedder=Rows(), beta=1.0)
    columns: dict[str, Any] = {"completions": texts, "history": [HISTORY] * 8, "reference": [None] * 8}
    found = function(prompts=["a"] * 4 + ["b"] * 4, **columns)
    rows, history = Rows().embed(texts[:4]), Rows().embed(["they let me go"])
    wanted = reweight([5.0, -3.0, 1.0, math.nan], rows, history, [4, 1, 2, 1], beta=1.0)
    assert found[:3] == wanted[:3]
    assert found[3] is None
    assert found[4:] == [2.0] * 4, "a tied group is left as it is"
    assert function.__name__ == "redundant_given"
    with pytest.raises(ValueError, match="whole groups of 4"):
        function(prompts=["a"] * 3 + ["b"] * 5, **columns)


def test_the_printed_code_trains(tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = DOCS.read_text(encoding="utf-8").split("## With a plain TRL trainer")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "model").symlink_to(tiny_learner)
    write_records(tmp_path / "records.jsonl", [record(0)])
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(code, found)
    rows = found["trainer"].state.log_history
    assert [row["step"] for row in rows if "reward" in row] == [1]
    assert any("rewards/redundant_unifireward/mean" in row for row in rows)
