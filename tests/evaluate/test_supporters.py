"""Supporters side by side: what a training is compared with, and which of several outputs counts as the best."""

from collections.abc import Sequence
from pathlib import Path

from compeer.dialogue import Utterance
from compeer.evaluate.supporters import choose_best, starting_supporters
from compeer.models import Failure
from compeer.models.resolve import model_folder
from compeer.models.training import model_card
from compeer.policy import Output, SupporterSettings, train_supporter
from compeer.reasoning import STEPS, parse_turn
from compeer.reward import Case, Judgment, Unscored
from compeer.ser.record import SerRecord

TURN = (
    "History: Blamed before others. [exploration]\nEmotion: Fury. [negative, anger, 4]\n"
    "Strategy: Ask first. [Question]\nResponse: {}"
)


class LikesShort:
    """A judge that finds the shorter response better and all steps right."""

    name = "likes short"

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return [self._one(case) for case in cases]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)

    def _one(self, case: Case) -> Judgment:
        shorter = float(len(str(case.output.parts["response"])) < len(case.reference or ""))
        return Judgment(dict.fromkeys(STEPS, 1.0), {"candidate": shorter, "reference": 1 - shorter})


def record(name: str) -> SerRecord:
    turn = parse_turn(TURN.format("Go on.")).turn
    assert turn is not None
    history = (Utterance(speaker="seeker", text="It was not even my bay."),)
    return SerRecord(
        id=name,
        dialogue=name,
        round=1,
        language="en",
        source="here",
        split="test",
        history=history,
        candidate=turn,
        author="corpus",
        reference="Go on.",
        candidate_first=True,
    )


def output(name: str, text: str) -> Output:
    return Output(name, text, False, parse_turn(text))


def test_the_judge_chooses_among_what_was_answered() -> None:
    long, short = (output("a", TURN.format(words)) for words in ("Whose bay was it, then?", "Whose was it?"))
    broken, failed = output("a", "So?"), Failure("refused", "no answer")
    groups: list[list[Output | Failure]] = [[long, broken, short, failed], [broken, long], [failed, failed]]
    moved: list[int] = []
    chosen = list(choose_best(LikesShort(), [record(name) for name in "abc"], groups, 0, moved.append))
    assert chosen == [short, long, failed]
    assert moved == [1, 1, 1]


def test_what_the_guard_would_not_show_is_not_the_best_of_several() -> None:
    human, long = (output("a", TURN.format(words)) for words in ("I am human.", "Whose bay was it, do you know that?"))
    groups: list[list[Output | Failure]] = [[human, long], [human, human]]
    chosen = list(choose_best(LikesShort(), [record("a"), record("a")], groups, 0, lambda done: None))
    assert chosen == [long, human]


def test_a_supporter_that_comes_trained_stands_beside_what_it_was_trained_from() -> None:
    def names(model: str, steps: int) -> list[str]:
        return list(starting_supporters(SupporterSettings(model=model, steps=steps, learning_rate=1e-5)))

    assert names("supporter", 0) == ["untrained"]
    assert names("supporter", 3) == ["untrained", "packaged"]
    assert names(str(model_folder("supporter")), 3) == ["untrained"]


def test_no_step_leaves_the_model_as_it_is_with_the_card_of_its_role(tiny_model: Path, tmp_path: Path) -> None:
    settings = SupporterSettings(model=str(tiny_model), steps=0, learning_rate=1e-5, history=2)
    metrics = train_supporter([record("a")], settings, tmp_path, seed=0)
    assert (metrics["steps"], metrics["chats"], metrics["loss_last"]) == (0, 1, None)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (tiny_model / "model.safetensors").read_bytes()
    assert model_card(tmp_path / "model") == model_card(tiny_model) | {"role": "supporter", "history": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
