"""What a supporter is asked, by the task that its card names."""

from __future__ import annotations

import pytest

from compeer.dialogue import Utterance, language_of
from compeer.policy.control import Control
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES, parse_turn

ENGLISH = [Utterance(speaker="seeker", text="I lost my keys again.")]
CHINESE = [Utterance(speaker="seeker", text="我又把钥匙丢了。")]


def test_the_guided_task_names_the_whole_vocabulary() -> None:
    system, asked = supporter_prompt(ENGLISH, task="guided")
    assert all(word in str(system["content"]) for word in (*STAGES, *EMOTIONS, *STRATEGIES))
    assert asked == {"role": "user", "content": "Seeker: I lost my keys again."}


@pytest.mark.parametrize(("history", "language"), [(ENGLISH, "en"), (CHINESE, "zh"), ([], "en")])
def test_an_untrained_model_is_shown_turns_in_the_language_of_the_seeker(
    history: list[Utterance], language: str
) -> None:
    system, *examples, asked = supporter_prompt(history, task="shown")
    assert [system, asked] == supporter_prompt(history, task="guided")
    assert [message["role"] for message in examples] == ["user", "assistant"] * 2
    for message in examples[1::2]:
        turn = parse_turn(str(message["content"])).turn
        assert turn is not None
        assert language_of(turn.response) == language


@pytest.mark.parametrize("task", ["supporter", "guided", "shown"])
def test_what_is_wanted_stands_at_the_end_of_the_task(task: str) -> None:
    system = supporter_prompt(ENGLISH, control=Control(strategy="Question"), task=task)[0]  # type: ignore[arg-type]
    assert str(system["content"]).endswith("Choose the strategy Question.")
