"""A seeker of one's own: trained with the words it is asked with, and measured beside human seekers."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from research.seeker.seeker import (
    SeekerDialogue,
    SeekerSettings,
    card_text,
    hold_out,
    measure_seeker,
    role_slips,
    seeker_dialogue,
    training_chat,
)
from research.seeker.train import main
from typer import Typer
from typer.testing import CliRunner

from compeer.corpora import write_jsonlines
from compeer.dialogue import Dialogue, Speaker, Utterance
from compeer.errors import InputError
from compeer.models import Request
from compeer.models.training import model_card
from compeer.ser.asking import WordEmbedder
from compeer.simulate.seekers import card_messages
from tests.support.scripted_model import ScriptedModel


def dialogue(number: int, said: Sequence[tuple[Speaker, str]] = (), **more: str | None) -> Dialogue:
    said = said or [("seeker", f"my cat number {number} died"), ("supporter", "Oh no"), ("seeker", "it was old")]
    known = {"situation": f"Cat {number} died.", "problem": "grief", "emotion": "sadness", "language": "en", **more}
    utterances = tuple(Utterance(speaker=who, text=text) for who, text in said)
    return Dialogue.model_validate({"id": f"d{number}", "source": "test", "utterances": utterances, **known})


def seen(one: Dialogue, rounds: int = 5) -> SeekerDialogue:
    found = seeker_dialogue(one, rounds)
    assert found is not None
    return found


def test_training_and_playing_see_the_same_words() -> None:
    one = seen(dialogue(1))
    chat = training_chat(one)
    playing = card_messages(one.view(1))
    assert chat[: len(playing)] == playing
    assert [message["content"] for message in chat if message["role"] == "assistant"] == one.said
    assert chat[-1]["role"] == "assistant"
    assert "Cat 1 died." in str(chat[0]["content"])
    assert card_messages(one.view(0)) == chat[:2]


def test_the_supporters_opening_is_left_out_and_blocks_are_merged() -> None:
    said: list[tuple[Speaker, str]] = [
        ("supporter", "Hi there"),
        ("seeker", "hello"),
        ("seeker", "  "),
        ("seeker", "I am\nsad"),
        ("supporter", "Why?"),
        ("seeker", "no idea"),
        ("supporter", "I see"),
    ]
    one = seen(dialogue(1, said))
    assert one.said == ["hello I am sad", "no idea"]
    assert training_chat(one)[-1]["content"] == "no idea"
    assert seen(dialogue(1, said), rounds=1).said == ["hello I am sad"]
    assert one.view(1).turns[-1].text == "Why?"


def test_what_cannot_be_learnt_from_is_none() -> None:
    assert seeker_dialogue(dialogue(1, situation=None), 5) is None
    assert seeker_dialogue(dialogue(1, [("supporter", "Hi")]), 5) is None
    assert card_text(dialogue(1, problem=None)) == "Cat 1 died.\nWhat you feel most: sadness."
    assert "感受" in card_text(dialogue(1, language="zh"))


def test_held_out_dialogues_share_no_situation_with_the_others() -> None:
    dialogues = [dialogue(number, situation=f"Cat {number // 2} died.") for number in range(20)]
    settings = SeekerSettings(steps=1, learning_rate=1, held_out=0.3)
    training, held = hold_out(dialogues, settings, 0)
    assert (len(training), len(held)) == (14, 6)
    cards = [{str(one.scenario.facts["card"]) for one in part} for part in (training, held)]
    assert not cards[0] & cards[1]
    assert hold_out(dialogues, settings, 0)[1] == held
    assert hold_out(dialogues, settings, 1)[1] != held
    with pytest.raises(InputError, match="0 of 1 dialogues"):
        hold_out([dialogue(1, situation=None)], settings, 0)


def human(count: int) -> list[SeekerDialogue]:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in rng.integers(0, 50, 8)) for _ in range(3 * count)]
    return [
        seen(dialogue(n, [("seeker", texts[3 * n]), ("supporter", "ok"), ("seeker", texts[3 * n + 1])]))
        for n in range(count)
    ]


def test_one_who_writes_like_people_cannot_be_told_apart() -> None:
    people = human(30)
    rng = np.random.default_rng(1)
    alike = ScriptedModel(lambda _: " ".join(f"w{word}" for word in rng.integers(0, 50, 8)))
    found = measure_seeker(alike, people, WordEmbedder(), 0)
    assert (found.dialogues, found.messages) == (30, 60)
    assert found.told_apart.low is not None
    assert found.told_apart.low < 0.55
    assert found.words.value == found.human_words.value == 8
    assert found.closeness.value == pytest.approx(found.closeness_of_humans.value, abs=0.05)
    assert found.diversity[0].at_words == found.human_diversity[0].at_words


def test_one_who_repeats_itself_and_falls_out_of_its_role_is_found_out() -> None:
    people = human(12)
    answers = iter(["How can I help you today?", ""] * 12)
    found = measure_seeker(ScriptedModel(lambda _: next(answers)), people, WordEmbedder(), 0)
    assert found.unusable == {"empty": 12}
    assert found.messages == 12
    assert found.told_apart.value == 1
    assert found.out_of_role.share.value == 1
    assert found.out_of_role.kinds == {"offers": 12}
    assert found.human_out_of_role.share.value == 0
    assert found.diversity[0].distinct_1.value < found.human_diversity[0].distinct_1.value  # type: ignore[operator]


def test_one_who_writes_what_the_human_wrote_is_near() -> None:
    people = human(6)
    words = {str(training_chat(one)[: 2 + 2 * n]): text for one in people for n, text in enumerate(one.said)}

    def copy(request: Request) -> str:
        return words[str([dict(message) for message in request.messages])] + "\nSupporter: And then?"

    found = measure_seeker(ScriptedModel(copy), people, WordEmbedder(), 0)
    assert found.closeness.value == pytest.approx(1, abs=1e-3)
    assert found.spoke_for_both == 12
    nothing = measure_seeker(ScriptedModel([]), people, WordEmbedder(), 0)
    assert nothing.unusable == {"script": 12}
    assert nothing.words.value is None


@pytest.mark.parametrize(
    ("text", "language", "kinds"),
    [
        ("How can I help you?", "en", ["offers"]),
        ("I'm here to listen, and I suggest you see a doctor.", "en", ["offers", "advises"]),
        ("It sounds like you had a hard day. Thank you for sharing.", "en", ["comforts"]),
        ("As an AI I cannot feel that.", "en", ["machine"]),
        ("I don't know how to help her, can you help me?", "en", []),
        ("she said you should have known", "en", []),
        ("thank you for listening", "en", []),
        ("请问有什么可以帮您？", "zh", ["offers"]),
        ("听起来你很难过，建议你早点休息。", "zh", ["advises", "comforts"]),
        ("我不知道该怎么办，能帮帮我吗？", "zh", []),
    ],
)
def test_falling_out_of_the_role(text: str, language: str, kinds: list[str]) -> None:
    assert role_slips(text, language) == kinds


def test_the_command_trains_measures_and_goes_on(tmp_path: Path, tiny_learner: Path) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "seeker"
    write_jsonlines([dialogue(number) for number in range(10)], corpus)
    settings = [f"model={tiny_learner}", "steps=2", "batch=2", "learning_rate=1e-3", "save_every=1", "held_out=0.3"]
    command = Typer()
    command.command()(main)
    call = [str(corpus), str(out), "--measure", "3", "--max-tokens", "8"]
    call += [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(command, call)
    assert done.exit_code == 0, done.output
    assert "told from humans" in done.output
    figures = json.loads((out / "realism.json").read_text())
    assert figures["trained"]["dialogues"] == figures["before"]["dialogues"] == 3
    assert figures["training"]["dialogues"] == 7
    assert model_card(out / "model")["role"] == "seeker"
    before = (out / "realism.json").read_bytes()
    assert CliRunner().invoke(command, [*call, "--no-beside"]).exit_code == 0
    assert json.loads((out / "realism.json").read_bytes())["trained"] == json.loads(before)["trained"]
    other = CliRunner().invoke(command, [*call, "--seed", "1"])
    assert isinstance(other.exception, InputError)
