"""Decisions against the corpus: agreement, strategies by stage, perplexity; all against values worked by hand."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from compeer.cli import app
from compeer.corpora import sample_path
from compeer.dialogue import Utterance
from compeer.errors import InputError
from compeer.evaluate.decisions import (
    corpus_records,
    decision_report,
    divergence,
    held_out,
    macro_f1_of,
    measure_perplexity,
    response_surprise,
)
from compeer.models.local import LocalModel
from compeer.reasoning import EMOTIONS, STRATEGIES, SupportTurn, parse_turn, render_turn
from compeer.ser.record import SerRecord, write_records


def turn(stage: str = "exploration", emotion: str = "anxiety", strategy: str = "Question") -> SupportTurn:
    return SupportTurn.model_validate(
        {
            "history": {"text": "It began today.", "stage": stage},
            "emotion": {"text": "Tense.", "sentiment": "negative", "emotion": emotion, "intensity": 3},
            "strategy": {"text": "Ask first.", "strategy": strategy},
            "response": "What happened then?",
        }
    )


def record(number: int, gold: SupportTurn, derived: tuple[str, ...] = ()) -> SerRecord:
    return SerRecord(
        id=f"r{number}",
        dialogue=f"d{number // 2}",
        round=1,
        language="en",
        source="test",
        split="test",
        history=(Utterance(speaker="seeker", text="I cannot sleep."),),
        candidate=gold,
        author="corpus",
        reference=gold.response,
        candidate_first=True,
        derived=derived,
    )


def turns_with(*strategies: str | None) -> list[str]:
    """Outputs with these strategies; None leaves the step out."""
    return [
        render_turn(turn(strategy=name)) if name else render_turn(turn()).replace("Strategy:", "Hm:")
        for name in strategies
    ]


def test_agreement_by_hand_and_beside_the_majority() -> None:
    gold = ["Question", "Question", "Question", "Information"]
    chosen = ["Question", "Information", None, "Information"]
    records = [record(number, turn(strategy=name)) for number, name in enumerate(gold)]
    report = decision_report(records, [parse_turn(text) for text in turns_with(*chosen)])
    found = report.gold["strategy"]
    assert found.accuracy.value == pytest.approx(0.5)
    # F1 of Question: 2·1/(1 + 3); of Information: 2·1/(2 + 1)
    assert found.macro_f1.value == pytest.approx((2 / 4 + 2 / 3) / 2)
    assert found.missing == 1
    assert (found.majority, found.majority_accuracy) == ("Question", 0.75)
    assert found.majority_macro_f1 == pytest.approx((2 * 3 / (4 + 3)) / 2)
    assert found.above_majority.value == pytest.approx(-0.25)
    assert report.complete == 0.75
    assert report.dialogues == 2
    assert found.accuracy.low is None  # two dialogues are too few


def test_what_a_rule_derived_stands_apart() -> None:
    records = [record(0, turn(), ("stage",)), record(1, turn("action"))]
    report = decision_report(records, [parse_turn(render_turn(turn()))] * 2)
    assert report.derived["stage"].accuracy.value == 1
    assert report.gold["stage"].accuracy.value == 0
    assert "strategy" not in report.derived


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcx")), min_size=1, max_size=20))
def test_macro_f1_is_sklearns_over_the_classes_of_the_gold(rows: list[tuple[str, str]]) -> None:
    counts = np.zeros((4, 4))
    for truth, chosen in rows:
        counts["abcx".index(truth), "abcx".index(chosen)] += 1
    gold, turns_with = [truth for truth, _ in rows], [chosen for _, chosen in rows]
    expected = f1_score(gold, turns_with, average="macro", labels=sorted(set(gold)), zero_division=0)
    assert macro_f1_of(counts[None])[0] == pytest.approx(expected)


def test_intervals_hold_dialogues_together() -> None:
    """All turns of a dialogue are right or wrong together, so the interval is that of dialogues, not of turns."""
    many = [record(number, turn()) for number in range(80)]
    separate = [one.model_copy(update={"dialogue": str(number)}) for number, one in enumerate(many)]
    together = [one.model_copy(update={"dialogue": str(number % 8)}) for number, one in enumerate(many)]
    outputs = [parse_turn(text) for text in turns_with(*["Question" if n % 8 < 4 else "Others" for n in range(80)])]
    wide, narrow = (decision_report(rows, outputs).gold["strategy"].accuracy for rows in (together, separate))
    assert wide.value == narrow.value == 0.5
    assert None not in (wide.low, wide.high, narrow.low, narrow.high)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)  # type: ignore[operator]


def test_divergence_by_hand_and_in_its_direction() -> None:
    human, model = np.array([3.0, 1, 0, 0, 0, 0, 0, 0]), np.array([0.0, 4, 0, 0, 0, 0, 0, 0])
    p, q = (human + 0.5) / 8, (model + 0.5) / 8
    assert divergence(human, model) == pytest.approx(float((p * np.log(p / q)).sum()))
    assert divergence(human, 1000 * human) != pytest.approx(float(divergence(1000 * human, human)))
    assert divergence(human, human) == 0


def test_strategies_by_stage_and_what_chance_gives() -> None:
    gold = [turn("action" if n % 2 else "exploration", strategy=STRATEGIES[n % 8]) for n in range(400)]
    records = [record(number, one) for number, one in enumerate(gold)]
    rng = np.random.default_rng(0)
    alike = [STRATEGIES[place] for place in rng.integers(0, 8, 400)]
    same = decision_report(records, [parse_turn(text) for text in turns_with(*alike)]).strategies["all"]
    always = decision_report(records, [parse_turn(text) for text in turns_with(*["Question"] * 400)]).strategies
    assert same.by_chance is not None
    assert same.kl.value == pytest.approx(same.by_chance, abs=0.01)
    assert always["all"].kl.value is not None
    assert always["all"].kl.value > 3
    assert set(always) == {"all", "exploration", "action"}  # no gold turn is of the third stage
    assert always["action"].turns == 200
    assert sum(always["all"].model.values()) == pytest.approx(1)
    nothing = decision_report(records[:4], [parse_turn("?")] * 4).strategies["all"]
    assert (nothing.kl.value, nothing.by_chance, nothing.missing) == (None, None, 4)


# --- held-out turns ---------------------------------------------------------------------------------------------------


def test_a_corpus_gives_held_out_turns_with_its_labels(tmp_path: Path) -> None:
    dropped: Counter[str] = Counter()
    records = corpus_records("sample", 3, 0, dropped)
    assert len(records) > 100
    assert all(one.author == "corpus" and one.candidate.emotion.emotion in EMOTIONS for one in records)
    assert dropped  # badly rated replies are no gold
    assert [one.id for one in corpus_records("sample", 3, 0, dropped)] == [one.id for one in records]
    write_records(tmp_path / "records.jsonl", records[:2])
    assert held_out(tmp_path / "records.jsonl", "test", 3, 0, dropped) == records[:2]
    assert held_out(sample_path(), "all", 3, 0, dropped) == held_out("sample", "test", 3, 0, dropped) == records
    with pytest.raises(InputError, match="in the reward split"):
        held_out(tmp_path / "records.jsonl", "reward", 3, 0, dropped)


# --- perplexity -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tiny_learner: Path) -> LocalModel:
    return LocalModel(tiny_learner)


def test_surprise_is_that_of_each_token_of_the_response(model: LocalModel) -> None:
    import torch

    messages = [{"role": "user", "content": "I cannot sleep."}]
    found = response_surprise(model, messages, "Response: ", "What happened then?")  # type: ignore[arg-type]
    assert found is not None
    text = model.rows.text(messages, "Response: What happened then?")  # type: ignore[arg-type]
    ids = model.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logs = torch.log_softmax(model.network(input_ids=ids).logits[0].float(), -1)
    every = [-float(logs[place - 1, ids[0, place]]) for place in range(1, ids.shape[1])]
    assert found == pytest.approx(every[-len(found) :], abs=1e-4)
    assert model.tokenizer.decode(ids[0, -len(found) :]).strip() == "What happened then?"


def test_perplexity_of_both_modes_and_of_what_is_too_long(model: LocalModel) -> None:
    records = [record(number, turn()) for number in range(4)]
    long = records[3].model_copy(update={"history": (Utterance(speaker="seeker", text="no " * 2000),)})
    found = measure_perplexity(model, [*records[:3], long])
    assert (found.responses, found.too_long) == (3, 1)
    assert found.perplexity.value is not None
    assert found.perplexity.value > 1
    plain = measure_perplexity(model, records[:3], "plain")
    assert plain.given == "prompt and history"
    assert plain.perplexity.value != pytest.approx(found.perplexity.value)
    nats = np.log(plain.perplexity.value or 1) * plain.tokens
    characters = 3 * len("What happened then?")
    assert plain.bits_per_character.value == pytest.approx(nats / np.log(2) / characters)
    assert measure_perplexity(model, [long], last=1).perplexity.value is None


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reads_outputs_and_asks_a_model(tmp_path: Path, tiny_learner: Path) -> None:
    records, outputs, out = tmp_path / "records.jsonl", tmp_path / "outputs.jsonl", tmp_path / "figures.json"
    write_records(records, [record(number, turn()) for number in range(4)])
    rows = [{"record": "r0", "output": render_turn(turn())}, {"record": "r1", "failure": "away"}, {"record": "other"}]
    outputs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    call = ["evaluate", "decisions", str(records), "--json", str(out)]
    done = CliRunner().invoke(app, [*call, "--outputs", str(outputs)])
    assert done.exit_code == 0, done.output
    written = json.loads(out.read_text())
    assert (written["held_out"], written["without_output"]) == (1, 3)
    assert written["gold"]["strategy"]["accuracy"]["value"] == 1
    asked = [*call, "--outputs", str(tmp_path / "new.jsonl"), "--model", str(tiny_learner), "--max-tokens", "8"]
    done = CliRunner().invoke(app, [*asked, "--limit", "2"])
    assert done.exit_code == 0, done.output
    assert "perplexity" in done.output
    written = json.loads(out.read_text())
    assert written["held_out"] == 2
    assert written["gold"]["stage"]["missing"] == 2  # a random model says nothing that can be read


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--split", "nowhere"], "unknown split"),
        (["--split", "policy"], "no turn of the corpus in the policy split"),
        (["--mode", "other"], "'other' is not one of"),
        (["--outputs", "missing.jsonl"], "no such file of outputs"),
        (["--json", "no/such/folder.json"], "no such folder"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, more: list[str], named: str) -> None:
    records = tmp_path / "records.jsonl"
    write_records(records, [record(0, turn())])
    done = CliRunner().invoke(app, ["evaluate", "decisions", str(records), *more])
    assert named in f"{done.exception} {done.output}"
