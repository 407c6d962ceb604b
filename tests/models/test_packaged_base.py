"""The embedded language model for real: it loads, ends its answers, and keeps to the turn's form when it must."""

import pytest

from compeer.dialogue import Utterance
from compeer.engine.torch_table import PromptMemory
from compeer.models import Generation, Request, Sampling, ask, model_folder
from compeer.models.local import LocalModel
from compeer.policy import supporter_prompt
from compeer.reasoning import parse_turn, turn_grammar


@pytest.fixture(scope="module")
def model() -> LocalModel:
    return LocalModel("embedded", batch_size=2)


def test_it_answers_and_stops(model: LocalModel) -> None:
    request = Request(({"role": "user", "content": "What is the capital of France? One word."},))
    (answer,) = ask(model, [request], Sampling(temperature=0, max_tokens=24))
    assert isinstance(answer, Generation)
    assert "Paris" in answer.text
    assert not answer.cut_off


def test_under_the_grammar_it_writes_a_whole_turn(model: LocalModel) -> None:
    history = [Utterance(speaker="seeker", text="I lost my job on Friday and have not told my wife yet.")]
    request = Request(tuple(supporter_prompt(history)), seed=3, grammar=turn_grammar(30, 40))
    (answer,) = ask(model, [request], Sampling(temperature=0.7, max_tokens=140))
    assert isinstance(answer, Generation)
    parsed = parse_turn(answer.text, cut_off=answer.cut_off)
    assert {"history", "emotion", "strategy"} <= set(parsed.parts), answer.text
    if not answer.cut_off:
        assert parsed.complete


def test_a_step_can_be_forced_by_a_prefix(model: LocalModel) -> None:
    history = [Utterance(speaker="seeker", text="My exam is tomorrow and I cannot sleep.")]
    prefix = "History: An exam tomorrow, and no sleep. [comforting]\nEmotion:"
    request = Request(tuple(supporter_prompt(history)), seed=1, prefix=prefix, grammar=turn_grammar(60, 80))
    (answer,) = ask(model, [request], Sampling(temperature=0.7, max_tokens=20))
    assert isinstance(answer, Generation)
    step = parse_turn(answer.text).parts.get("history")
    assert step is not None
    assert getattr(step, "stage", None) == "comforting"


def test_it_is_converted_only_once() -> None:
    folder = model_folder("embedded")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder("embedded") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_what_it_remembers_of_a_conversation_changes_no_bit(model: LocalModel) -> None:
    talk = "Seeker: I lost my job on Friday.\nSupporter: That must be hard. " * 6
    prompts = [model.tokenizer(talk * times + "And then?")["input_ids"] for times in (1, 2)]
    warm, cold = PromptMemory(model.network), PromptMemory(model.network)
    warm.prompt(prompts[0])
    read = warm.read
    (found, logits), (expected, wanted) = warm.prompt(prompts[1]), cold.prompt(prompts[1])
    assert warm.read - read <= cold.read - 64
    assert logits.numpy().tobytes() == wanted.numpy().tobytes()
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert one.keys.numpy().tobytes() == other.keys.numpy().tobytes()
        assert one.values.numpy().tobytes() == other.values.numpy().tobytes()
