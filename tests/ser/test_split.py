"""Splits: what tells the same story stays together, the shares are filled, and the bytes are the same for all."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.corpora import read_corpus, write_jsonlines
from compeer.dialogue import Dialogue, Utterance
from compeer.errors import InputError
from compeer.ser import split as split_module
from compeer.ser.split import (
    OPENINGS,
    TEXTS,
    Groups,
    WordSketch,
    first_message,
    iter_splits,
    join_alike,
    read_splits,
    shingles,
    split_stage,
    words_hash,
)

ESCONV = Path(__file__).parents[3] / "shared" / "data" / "esconv"
VOCABULARY = [
    f"{a}{b}{c}" for a in ("ba", "de", "ki", "lo", "mu") for b in ("ran", "sil", "tov", "nel") for c in "aeiou"
]
HAN = "我你他她们今天明天工作学校妈妈爸爸朋友难过开心害怕压力考试失眠生气想哭不知道怎么办房子钱路上雨雪风花"


def speech(rng: random.Random, count: int, vocabulary: Sequence[str] = VOCABULARY) -> str:
    return (" " if len(vocabulary[0]) > 1 else "").join(rng.choice(vocabulary) for _ in range(count))


def dialogue(
    id: str, seed: str | None = None, situation: str | None = None, vocabulary: Sequence[str] = VOCABULARY
) -> Dialogue:
    """A dialogue of eight messages of 15 words; another seed gives other words."""
    rng = random.Random(seed or id)
    said = [speech(rng, 15, vocabulary) for _ in range(8)]
    utterances = [Utterance(speaker="seeker" if n % 2 == 0 else "supporter", text=text) for n, text in enumerate(said)]
    return Dialogue(id=id, language="en", source="test", situation=situation, utterances=tuple(utterances))


def with_texts(one: Dialogue, id: str, change: Any) -> Dialogue:
    utterances = tuple(u.model_copy(update={"text": change(u.text)}) for u in one.utterances)
    return one.model_copy(update={"id": id, "utterances": utterances})


def grouped(dialogues: Sequence[Dialogue], folder: Path, **settings: Any) -> dict[str, str]:
    """The group of each dialogue; checks on the way that a group has one split."""
    write_jsonlines(dialogues, folder / "dialogues.jsonl")
    split_stage(
        folder / "dialogues.jsonl", folder / "splits.jsonl", **{"shares": (0.5, 0.3, 0.2), "seed": 1, **settings}
    )
    splits, groups = (
        read_splits(folder / "splits.jsonl"),
        {line.dialogue: line.group or "" for line in iter_splits(folder / "splits.jsonl")},
    )
    for group in set(groups.values()):
        assert len({splits[id] for id, own in groups.items() if own == group}) == 1
    assert list(groups) == [one.id for one in dialogues]
    return groups


# --- near-duplicates --------------------------------------------------------------------------------------------------


def jaccard(one: str, other: str) -> float:
    a, b = set(shingles(one).tolist()), set(shingles(other).tolist())
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("vocabulary", [VOCABULARY, HAN], ids=["words", "Han"])
def test_a_sketch_estimates_the_share_of_common_word_sequences(vocabulary: Sequence[str]) -> None:
    rng, errors = random.Random(1), []
    for kept in (0, 60, 150, 240, 290, 300):
        for _ in range(5):
            one = [rng.choice(vocabulary) for _ in range(300)]
            other = one[:kept] + [rng.choice(vocabulary) for _ in range(300 - kept)]
            glue = " " if vocabulary is VOCABULARY else ""
            a, b = glue.join(one), glue.join(other)
            errors.append(float(TEXTS.alike(TEXTS.of(a)[None], TEXTS.of(b)[None])[0]) - jaccard(a, b))
    # √(0.25 / 192) = 0.036 is the standard deviation of the worst case
    assert abs(float(np.mean(errors))) < 0.02
    assert max(map(abs, errors)) < 0.15


def test_tokens_case_and_punctuation_change_little() -> None:
    text = "I don't know; it's been hard since my sister's wedding, and I can't sleep at all anymore..." * 1
    again = "I do n't know ; It 's been hard since my sister 's wedding , and i ca n't SLEEP at all anymore"
    assert jaccard(text, again) > 0.6
    assert jaccard(text, text.upper().replace(",", " —")) == 1
    assert not len(shingles("… !?"))
    assert not TEXTS.of("… !?").any()


@given(st.text(max_size=60))
def test_any_text_has_a_sketch(text: str) -> None:
    sketch = OPENINGS.of(text)
    assert sketch.shape == (OPENINGS.width,)
    assert sketch.any() == bool(len(shingles(text)))
    assert 0 < words_hash(text) < 2**64


def test_a_long_text_is_sketched_in_parts() -> None:
    text = speech(random.Random(1), 9000)
    halves = [text[: len(text) // 2], text[len(text) // 2 :]]
    assert 0.35 < float(TEXTS.alike(TEXTS.of(text)[None], TEXTS.of(halves[0])[None])[0]) < 0.65


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30))
def test_groups_are_what_is_joined_directly_or_through_others(pairs: list[tuple[int, int]]) -> None:
    groups = Groups(20)
    groups.join(np.array([a for a, _ in pairs], dtype=np.int64), np.array([b for _, b in pairs], dtype=np.int64))
    belongs = [{number} for number in range(20)]
    for a, b in pairs:
        together = belongs[a] | belongs[b]
        for number in together:
            belongs[number] = together
    assert groups.firsts.tolist() == [min(together) for together in belongs]


def test_most_near_duplicates_are_found_and_nothing_else() -> None:
    """200 texts and a copy of each of which a fifth of the words were changed at one end: 0.6 in common."""
    rng, texts = random.Random(3), []
    for _ in range(200):
        words = [rng.choice(VOCABULARY) for _ in range(120)]
        texts += [" ".join(words), " ".join(words[:95] + [rng.choice(VOCABULARY) for _ in range(25)])]
    rows = np.stack([TEXTS.of(text) for text in texts])
    groups = Groups(len(texts))
    joined = join_alike(groups, TEXTS, rows.__getitem__)
    firsts = groups.firsts.reshape(-1, 2)
    assert joined == 200
    assert (firsts[:, 0] == firsts[:, 1]).all()
    assert len(set(firsts[:, 0].tolist())) == 200


def test_a_thousand_copies_are_one_group() -> None:
    sketch = WordSketch(bands=8, hashes=3, bound=0.5)
    rows = np.repeat(sketch.of(speech(random.Random(1), 50))[None], 1000, axis=0)
    groups = Groups(1000)
    assert join_alike(groups, sketch, rows.__getitem__) == 999
    assert not groups.firsts.any()


# --- what stays together ----------------------------------------------------------------------------------------------


def test_copies_and_near_copies_stay_together(tmp_path: Path) -> None:
    known = [dialogue(f"d{number}") for number in range(30)]
    han = [dialogue(f"h{number}", vocabulary=HAN) for number in range(30)]
    half = known[3].model_copy(update={"id": "half", "utterances": known[3].utterances[:5]})
    later = known[4].utterances[1:]
    copies = [
        with_texts(known[0], "copy", str),
        with_texts(known[1], "retold", lambda text: text.upper().replace(" ", " , ")),
        with_texts(han[0], "抄", lambda text: "，".join(text)),
        half,
        known[5].model_copy(update={"id": "other end", "utterances": known[5].utterances[:1] + later}),
    ]
    groups = grouped([*known, *han, *copies], tmp_path)
    assert {id: groups[id] for id in ("copy", "retold", "抄", "half", "other end")} == {
        "copy": "d0",
        "retold": "d1",
        "抄": "h0",
        "half": "d3",  # five of its eight messages
        "other end": "d4",  # all but the opening are another's; that it opens like d5 joins these two
    }
    assert groups["d5"] == "d4"
    assert len(set(groups.values())) == 60 - 1


def test_greetings_and_stock_phrases_join_nobody(tmp_path: Path) -> None:
    def greeted(one: Dialogue) -> Dialogue:
        first = Utterance(speaker="seeker", text="Hello, good evening. How are you doing today?")
        second = Utterance(speaker="supporter", text="Hi there! I am well, thank you for asking. What brings you here?")
        last = Utterance(speaker="supporter", text="I am sorry to hear that. That must be really hard for you.")
        return one.model_copy(update={"utterances": (first, second, *one.utterances, last)})

    dialogues = [greeted(dialogue(f"d{number}")) for number in range(60)]
    assert first_message(dialogues[0].utterances) == dialogues[0].utterances[2].text
    assert grouped(dialogues, tmp_path) == {one.id: one.id for one in dialogues}


def test_the_same_situation_stays_together(tmp_path: Path) -> None:
    dialogues = [
        dialogue(f"d{n}", situation=["My dog died.", "my dog  died", "I lost my job.", None][n % 4]) for n in range(12)
    ]
    groups = grouped(dialogues, tmp_path)
    assert len({groups[f"d{n}"] for n in range(12) if n % 4 < 2}) == 1
    assert len({groups[f"d{n}"] for n in range(12) if n % 4 == 2}) == 1
    assert [groups[f"d{n}"] for n in (3, 7, 11)] == ["d3", "d7", "d11"]


# --- shares, order and bytes ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.tuples(*[st.floats(0, 1)] * 3), st.integers(0, 3))
def test_shares_are_filled_as_far_as_groups_allow(groups: list[int], shares: tuple[float, ...], seed: int) -> None:
    if sum(shares) < 0.01:
        return
    firsts = np.array([groups.index(group) for group in groups])
    hashes = np.array([words_hash(f"d{n}") for n in range(len(groups))], dtype=np.uint64)
    splits = split_module._fill(firsts, hashes, shares, seed)
    largest = max(Counter(groups).values())
    for number, share in enumerate(shares):
        assert abs(int((splits == number).sum()) - share / sum(shares) * len(groups)) <= largest + 1e-6
    assert all(len(set(splits[firsts == first].tolist())) == 1 for first in set(firsts.tolist()))
    order = np.random.default_rng(seed).permutation(len(groups))
    moved = [groups[place] for place in order]
    again = split_module._fill(np.array([moved.index(group) for group in moved]), hashes[order], shares, seed)
    assert again.tolist() == splits[order].tolist()


def test_another_seed_splits_otherwise_and_none_may_be_negative(tmp_path: Path) -> None:
    write_jsonlines([dialogue(f"d{n}") for n in range(40)], tmp_path / "d.jsonl")
    found = []
    for seed in (1, 2):
        split_stage(tmp_path / "d.jsonl", tmp_path / f"{seed}.jsonl", (2, 1, 1), seed)
        found.append(read_splits(tmp_path / f"{seed}.jsonl"))
        assert Counter(found[-1].values()) == {"reward": 20, "policy": 10, "test": 10}
    assert found[0] != found[1]
    with pytest.raises(InputError, match="3 shares"):
        split_stage(tmp_path / "d.jsonl", tmp_path / "3.jsonl", (1, -1, 1), 1)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "dialogues.jsonl"
    # the second half repeats a part of the first, so that groups reach across units
    write_jsonlines((dialogue(f"d{n}", seed=f"d{n % 90}" if n % 3 else None) for n in range(150)), path)
    return path


def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_module, "_DIALOGUES_A_UNIT", 20)
    monkeypatch.setattr(split_module, "_LINES_A_UNIT", 20)


@pytest.mark.parametrize("where", ["_sketch", "_lines_of"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_killed_half_way_and_run_again_gives_the_same_bytes(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, after: int
) -> None:
    small_units(monkeypatch)
    undisturbed = split_stage(many, tmp_path / "undisturbed.jsonl", (0.5, 0.3, 0.2), 1)
    work, calls = getattr(split_module, where), iter(range(100))

    def dies(*arguments: Any) -> Any:
        if next(calls) == after:
            raise KeyboardInterrupt
        return work(*arguments)

    monkeypatch.setattr(split_module, where, dies)
    out = tmp_path / "splits.jsonl"
    with pytest.raises(KeyboardInterrupt):
        split_stage(many, out, (0.5, 0.3, 0.2), 1)
    assert not out.exists()
    monkeypatch.setattr(split_module, where, work)
    manifest = split_stage(many, out, (0.5, 0.3, 0.2), 1)
    assert out.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    assert manifest["counts"] == undisturbed["counts"]
    assert sum(manifest["counts"]["split"].values()) == 150
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("splits")} == {
        "splits.jsonl",
        "splits.jsonl.manifest.json",
    }


def test_more_workers_give_the_same_bytes(many: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        manifest = split_stage(many, tmp_path / f"{workers}.jsonl", (0.5, 0.3, 0.2), 1, workers=workers)
        assert manifest["counts"]["groups"]["largest"] > 1
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()


def test_what_is_done_is_not_done_again(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = split_stage(many, tmp_path / "splits.jsonl", (0.5, 0.3, 0.2), 1)
    monkeypatch.setattr(split_module, "_sketch", None)
    assert split_stage(many, tmp_path / "splits.jsonl", (0.5, 0.3, 0.2), 1) == first


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"split": "test"}, "dialogue"),
        ({"dialogue": "a", "split": "train"}, "split"),
        ({"dialogue": "d", "split": "test"}, "dialogue"),
    ],
)
def test_a_bad_line_of_splits_is_named(tmp_path: Path, line: dict[str, str], field: str) -> None:
    path = tmp_path / "splits.jsonl"
    path.write_text(json.dumps({"dialogue": "d", "split": "test", "group": "d"}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(InputError, match=f"line 2, field '{field}'"):
        read_splits(path)
    with pytest.raises(InputError, match="no such file of splits"):
        read_splits(tmp_path / "nowhere.jsonl")


@pytest.mark.skipif(not ESCONV.is_dir(), reason="the public corpora are not at hand")
def test_every_dialogue_of_esconv_is_found_again_in_multiesc(tmp_path: Path) -> None:
    """MultiESC's file is ESConv's valid part, re-tokenised and merged; the situations are taken away."""
    ours = [one.model_copy(update={"situation": None}) for one in read_corpus(ESCONV / "valid.jsonl")]
    theirs = [
        one.model_copy(update={"id": f"again {one.id}", "situation": None})
        for one in read_corpus(ESCONV / "multiesc_valid_with_feedback.txt")
    ]
    groups = grouped([*ours, *theirs], tmp_path)
    assert all(not groups[one.id].startswith("again") for one in theirs)
    assert Counter(Counter(groups.values()).values()) == {2: 195}
