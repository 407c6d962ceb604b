"""Diversity: self-BLEU as sacreBLEU counts it, equal sizes, honest intervals, and where replies come from."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from compeer.cli import app
from compeer.corpora import write_jsonlines
from compeer.dialogue import Dialogue, Speaker, Utterance
from compeer.errors import InputError
from compeer.evaluate.diversity import (
    MOST_REPLIES,
    Reply,
    compare_diversity,
    ngrams,
    pair_mean,
    read_replies,
    self_bleu,
)
from compeer.models.embedder import Matrix
from compeer.reasoning import parse_turn
from compeer.ser.asking import WordEmbedder

TEXT = st.lists(st.sampled_from(["a", "b", "c", "d.", "The"]), min_size=1, max_size=9).map(" ".join)
HAN = st.text(alphabet="我你很难过ok 。", min_size=1, max_size=9).filter(lambda text: text.strip() != "")


def by_sacrebleu(texts: list[str], tokenize: str) -> float:
    bleu = sacrebleu.BLEU(effective_order=True, tokenize=tokenize)
    others = [texts[:place] + texts[place + 1 :] for place in range(len(texts))]
    return float(np.mean([bleu.sentence_score(text, rest).score for text, rest in zip(texts, others, strict=True)]))


@given(st.lists(TEXT, min_size=2, max_size=7))
def test_self_bleu_is_what_sacrebleu_gives_each_against_all_others(texts: list[str]) -> None:
    assert self_bleu([ngrams(text, "en") for text in texts]) == pytest.approx(by_sacrebleu(texts, "13a"))


@given(st.lists(HAN, min_size=2, max_size=5))
def test_self_bleu_of_chinese_goes_by_characters(texts: list[str]) -> None:
    assert self_bleu([ngrams(text, "zh") for text in texts]) == pytest.approx(by_sacrebleu(texts, "zh"))


def test_self_bleu_at_its_ends() -> None:
    same, other = "we could try that together now", "nobody ever asked me such things"
    assert self_bleu([ngrams(same, "en")] * 3) == pytest.approx(100)
    assert self_bleu([ngrams(same, "en")]) is None
    mixed = self_bleu([ngrams(same, "en"), ngrams(other, "en")])
    assert mixed is not None
    assert mixed < 10


def replies(dialogues: int, each: int, vocabulary: int, seed: int = 0, language: str = "en") -> list[Reply]:
    """Replies of eight random words."""
    rng = np.random.default_rng(seed)
    return [
        Reply(" ".join(f"w{word}" for word in rng.integers(0, vocabulary, 8)), f"d{number}", f"d{number}", language)
        for number in range(dialogues)
        for _ in range(each)
    ]


def test_sets_of_other_sizes_are_counted_at_the_same_size() -> None:
    small, large = replies(12, 4, 60, 1), replies(60, 4, 60, 2)
    (of_small,), (of_large,) = compare_diversity([small, large], WordEmbedder(), halves=60)
    assert of_small.at_words == of_large.at_words == 12 // 2 * 4 * 8
    assert of_small.at_replies == of_large.at_replies == 12 // 2 * 4
    assert of_small.distinct_2.value == pytest.approx(of_large.distinct_2.value, abs=0.02)
    assert of_small.self_bleu.value == pytest.approx(of_large.self_bleu.value, abs=3)
    assert of_small.whole["distinct_2"] > of_large.whole["distinct_2"] + 0.1  # the size alone makes this
    (single,) = compare_diversity([large], WordEmbedder(), halves=10)
    assert single[0].at_words > of_large.at_words
    assert single[0].at_replies <= MOST_REPLIES


def test_an_interval_of_halves_covers_the_truth_about_as_often_as_it_says() -> None:
    """The truth: distinct-2 at the same number of words, taken from a very large set of the same kind."""
    rng = np.random.default_rng(5)

    def sampled_replies(dialogues: int) -> list[Reply]:
        """Each dialogue has a vocabulary of its own size, so that dialogues differ."""
        sizes = rng.integers(15, 200, dialogues)
        return [
            Reply(" ".join(f"w{word}" for word in rng.integers(0, size, 10)), str(number), str(number), "en")
            for number, size in enumerate(sizes)
            for _ in range(3)
        ]

    many = compare_diversity([sampled_replies(10), sampled_replies(400)], WordEmbedder(), halves=400)
    truth = many[1][0].distinct_2.value
    hits = 0
    for _ in range(25):
        (metrics,) = compare_diversity([sampled_replies(10)], WordEmbedder(), halves=80)[0]
        assert metrics.distinct_2.low is not None
        assert metrics.distinct_2.high is not None
        assert metrics.at_words == many[0][0].at_words
        hits += metrics.distinct_2.low <= truth <= metrics.distinct_2.high  # type: ignore[operator]
    assert hits >= 19


def test_openings_and_similarity_by_hand() -> None:
    texts = ["I am sorry about that", "I am sorry to hear", "What did she say", "It is late now"]
    single = [Reply(text, "d", "d", "en") for text in texts]
    (metrics,) = compare_diversity([single], WordEmbedder())[0]
    assert metrics.open_alike.value == 0.5
    assert metrics.largest_opening.value == 0.5
    assert metrics.open_alike.low is None  # one dialogue says nothing of others
    assert metrics.across_dialogues.value is None
    rows = np.array([[1.0, 0], [0, 1], [0.6, 0.8]])
    assert pair_mean(rows) == pytest.approx((0 + 0.6 + 0.8) / 3)


class Fixed:
    """Embeds `x` and `y` at right angles."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        return np.array([[1, 0] if text == "x" else [0, 1] for text in texts], dtype=np.float32)


def test_similarity_within_and_across_dialogues_and_its_interval() -> None:
    texts_of = {"a": "xx", "b": "xy", "c": "yy", "d": "xx", "e": "x"}
    spoken = [Reply(text, name, name, "en") for name, texts in texts_of.items() for text in texts]
    (metrics,) = compare_diversity([spoken], Fixed(), halves=4)[0]
    assert metrics.in_dialogue.value == pytest.approx((1 + 0 + 1 + 1) / 4)
    x, y = 6, 3
    pairs = 9 * 8 / 2 - 4  # without the four pairs inside dialogues
    assert metrics.across_dialogues.value == pytest.approx((x * (x - 1) / 2 + y * (y - 1) / 2 - 3) / pairs)
    assert metrics.in_dialogue.low is not None
    assert 0 <= metrics.in_dialogue.low <= 0.75 <= metrics.in_dialogue.high <= 1  # type: ignore[operator]


def test_repeats_of_a_scenario_are_drawn_together_but_are_dialogues_of_their_own() -> None:
    spoken = [Reply(text, f"{run}/s{n}", f"s{n}", "en") for n in range(6) for run in "12" for text in ("x", "y")]
    (metrics,) = compare_diversity([spoken], Fixed(), halves=4)[0]
    assert metrics.dialogues == 6
    assert metrics.in_dialogue.value == 0


# --- where replies come from ------------------------------------------------------------------------------------------

OUTPUT = (
    "History: Just began. [exploration]\nEmotion: Tense. [negative, anxiety, 3]\n"
    "Strategy: Ask first. [Question]\nResponse: {}"
)


def test_replies_of_a_run_leave_out_failed_conversations(tmp_path: Path) -> None:
    def line(scenario: str, status: str) -> str:
        turns = [{"speaker": "seeker", "text": "hm"}, {"speaker": "supporter", "text": f"yes {scenario}"}]
        outcome = {"status": status, "why": "turns reached"}
        return json.dumps({"scenario": scenario, "language": "en", "turns": turns, "outcome": outcome}) + "\n"

    for run in "12":
        folder = tmp_path / "dialogues" / run
        folder.mkdir(parents=True)
        (folder / "conversations.jsonl").write_text(line("a", "ended") + line("b", "model failed"))
    found = read_replies(tmp_path)
    assert [(reply.text, reply.unit) for reply in found] == [("yes a", "a")] * 2
    assert len({reply.dialogue for reply in found}) == 2
    assert [reply.text for reply in read_replies(tmp_path, "seeker")] == ["hm"] * 2
    assert read_replies(tmp_path / "dialogues" / "1" / "conversations.jsonl")[0].text == "yes a"


def test_replies_of_outputs_are_their_responses(tmp_path: Path) -> None:
    file = tmp_path / "outputs.jsonl"
    rows = [
        {"record": "r1", "output": OUTPUT.format("Tell me more?")},
        {"record": "r2", "output": "no form at all"},
        {"record": "r3", "failure": "away"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert parse_turn(rows[0]["output"]).complete
    assert read_replies(file, language="zh") == [Reply("Tell me more?", "r1", "r1", "zh")]
    file.write_text(json.dumps(rows[1]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="no reply of a supporter"):
        read_replies(file)


def test_replies_of_a_corpus_are_blocks(tmp_path: Path) -> None:
    spoken: list[tuple[Speaker, str]] = [
        ("supporter", "Hi"),
        ("seeker", "I"),
        ("seeker", "am sad"),
        ("supporter", "Oh"),
        ("supporter", "no"),
    ]
    utterances = tuple(Utterance(speaker=who, text=text) for who, text in spoken)
    file = tmp_path / "corpus.jsonl"
    write_jsonlines([Dialogue(id="d", language="en", source="test", utterances=utterances)], file)
    assert [reply.text for reply in read_replies(file)] == ["Hi", "Oh\nno"]
    assert [reply.text for reply in read_replies(file, "seeker")] == ["I\nam sad"]
    with pytest.raises(InputError, match="there is no such corpus file"):
        read_replies(tmp_path / "nothing")


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    spoken = [f"reply {number} of {other}" for number in range(2) for other in range(2)]
    for name in ("one", "two"):
        dialogues = [
            Dialogue(
                id=f"d{number}",
                language="en",
                source="test",
                utterances=tuple(Utterance(speaker="supporter", text=text) for text in spoken[number : number + 1]),
            )
            for number in range(4)
        ]
        write_jsonlines(dialogues, tmp_path / f"{name}.jsonl")
    out = tmp_path / "figures.json"
    files = [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]
    done = CliRunner().invoke(app, ["evaluate", "diversity", *files, "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "distinct-n over" in done.output
    metrics = json.loads(out.read_text())
    assert [one["name"] for one in metrics["sets"]] == files
    assert metrics["sets"][0]["figures"] == metrics["sets"][1]["figures"]
    wrong = CliRunner().invoke(app, ["evaluate", "diversity", files[0], "--speaker", "bot"])
    assert wrong.exit_code != 0
