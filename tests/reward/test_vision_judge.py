"""Judges that see: pictures in training and judging, token for token; what cannot be read; what stays untrained."""

import asyncio
import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compeer.dialogue import Media, Utterance
from compeer.engine.multimodal import (
    PICTURE_TOKENS,
    EncodedChat,
    PictureError,
    PictureReader,
    chat_batch,
    encode_chats,
    open_picture,
    picture_reader,
)
from compeer.engine.network import defuse, load_network, load_tokenizer
from compeer.errors import InputError
from compeer.models import Generation, Request, Sampling
from compeer.models.local import LocalModel
from compeer.models.training import SftSettings, model_card, train_sft
from compeer.reasoning import STEPS, parse_turn, render_turn
from compeer.recipe import load_recipe
from compeer.reward import Case, JudgeForm, Judgment, LocalJudge, RewardSettings, Unscored, train_judge
from compeer.reward.conversation import BEFORE_VERDICT, branches, chat, chats, preferred
from compeer.ser.record import SerRecord
from tests.support.judging import HISTORY, REFERENCE, likeliest, record, recorded, scripted, turn

CPU = torch.device("cpu")
SIZES = {"wide.png": (60, 90), "tall.jpg": (112, 56), "large.png": (300, 400)}
FORMS = [JudgeForm(), JudgeForm(kind="process"), JudgeForm(kind="outcome")]


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures of noise."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    for name, (height, width) in SIZES.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(folder / name)
    (folder / "torn.png").write_bytes((folder / "large.png").read_bytes()[:2000])
    (folder / "words.png").write_text("no picture", encoding="utf-8")
    Image.new("RGB", (1000, 2)).save(folder / "thread.png")
    return folder


@pytest.fixture(scope="module")
def network(tiny_seeing_model: Path) -> Any:
    return load_network(tiny_seeing_model, CPU, torch.float32)


@pytest.fixture(scope="module")
def reader(tiny_seeing_model: Path, media: Path) -> PictureReader:
    found = picture_reader(tiny_seeing_model, media)
    assert found is not None
    return found


def seen(*pictures: str) -> tuple[Utterance, ...]:
    """The history, with these pictures in its first utterance."""
    shown = tuple(Media(kind="image", path=path) for path in pictures)
    return (HISTORY[0].model_copy(update={"media": shown}), *HISTORY[1:])


def case(*pictures: str, first: bool = True, response: str = "That is a lot at once.") -> Case:
    return Case(seen(*pictures), parse_turn(render_turn(turn(response))), REFERENCE, candidate_first=first)


def seen_record(number: int, *pictures: str) -> SerRecord:
    wrong = ["history"] if number % 4 > 1 else []
    return record(number, wrong=wrong).model_copy(update={"history": seen(*pictures)})  # type: ignore[arg-type]


RECORDS = [seen_record(n, *[("wide.png",), ("tall.jpg", "large.png"), ()][n % 3]) for n in range(8)]
CASES = [case("wide.png"), case(), case("tall.jpg", "large.png", first=False), case("tall.jpg", response="Oh.")]


def plain_logits(network: Any, reader: PictureReader, one: EncodedChat) -> torch.Tensor:
    """The logits of one whole chat, with the positions that the network finds itself."""
    batch = chat_batch(reader, [one], 0, [{"chat": 0}])
    batch.pop("labels")
    with torch.inference_mode():
        logits: torch.Tensor = network(**batch).logits[0]
    return logits


def verdict_indices(one: EncodedChat) -> list[int]:
    """Where the tokens stand that the assistant's answers begin with."""
    return [n for n, said in enumerate(one.learnt) if said and not one.learnt[n - 1]]


# --- judging --------------------------------------------------------------------------------------------------------


def words_of(found: Judgment, rounds: Sequence[Any], first: bool) -> list[str]:
    return [likeliest(found, question.part, first) for question in rounds]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.kind))
@pytest.mark.parametrize("both", [False, True], ids=["one order", "both orders"])
def test_verdicts_on_the_cache_are_those_of_one_plain_forward(
    tiny_seeing_model: Path, media: Path, network: Any, reader: PictureReader, form: JudgeForm, both: bool
) -> None:
    judge = LocalJudge(tiny_seeing_model, form=form, both_orders=both, network=network, media=media)
    tokenizer = load_tokenizer(tiny_seeing_model)
    for asked, found in zip(CASES, judge.judge(CASES), strict=True):
        assert isinstance(found, Judgment)
        for first, (number, rounds) in itertools.product(
            {asked.candidate_first, asked.candidate_first ^ both}, enumerate(branches(asked, form, images=True))
        ):
            answers = [likeliest(found, q.part, first) if q.part != "response" else "A" for q in rounds]
            messages = chat(replace(asked, candidate_first=first), answers, form, number, images=True)
            (whole,) = encode_chats(tokenizer, reader, [messages])
            logits = plain_logits(network, reader, whole)
            for question, place in zip(rounds, verdict_indices(whole), strict=True):
                tokens = [tokenizer(word)["input_ids"][0] for word in question.words]
                probabilities = torch.softmax(logits[place - 1, tokens], 0).tolist()
                if question.part != "response":
                    assert found.steps[question.part] == pytest.approx(probabilities[0], abs=2e-5)
                    continue
                order = found.orders["candidate first" if first else "reference first"]
                for word, probability in zip(question.words, probabilities, strict=True):
                    assert order[preferred(word, first)] == pytest.approx(probability, abs=2e-5)
        assert len(found.orders) == (0 if form.kind == "process" else 1 + both)


@pytest.mark.parametrize("reason", ["", "Rent was named", "Rent was named.\n"], ids=["none", "a line", "a full stop"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.kind))
def test_what_is_fed_is_the_chat_of_training(
    tiny_seeing_model: Path, media: Path, network: Any, reader: PictureReader, form: JudgeForm, reason: str
) -> None:
    """Tokenizers of this family join a full stop and the end of its line."""
    reasons = bool(reason)
    form = form.model_copy(update={"reasons": reasons})
    judge = LocalJudge(tiny_seeing_model, form=form, network=network, media=media)
    tokenizer = load_tokenizer(tiny_seeing_model)
    for asked in CASES[1:3]:
        for number, rounds in enumerate(branches(asked, form, images=True)):
            with pytest.MonkeyPatch.context() as patch:
                alone = [rounds]
                patch.setattr("compeer.reward.judge.branches", lambda *_, images, alone=alone: alone)
                fed = scripted(judge, patch, reason) if reasons else recorded(patch)
                (found,) = judge.judge([asked])
            assert isinstance(found, Judgment)
            words = words_of(found, rounds, asked.candidate_first)
            answers = [f"{reason.strip()}{BEFORE_VERDICT} {word}" if reasons else word for word in words]
            (whole,) = encode_chats(tokenizer, reader, [chat(asked, answers, form, number, images=True)])
            said = [token for piece in fed for token in piece]
            said += tokenizer((" " if reasons else "") + words[-1])["input_ids"]
            assert said == whole.ids[: len(said)].tolist()
            assert tokenizer.decode(whole.ids[len(said) :]).strip() == "<|im_end|>"


def test_a_history_with_pictures_is_computed_once(
    tiny_seeing_model: Path, media: Path, network: Any, reader: PictureReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = LocalJudge(tiny_seeing_model, form=JudgeForm(kind="process"), network=network, media=media)
    fed = recorded(monkeypatch)
    judge.judge([case("wide.png"), case("wide.png", response="Who told you?"), case("tall.jpg")])
    assert len(fed) == 2 + 9, "one piece a history, one a row"
    cells = [piece.count(reader.token) for piece in fed]
    assert cells == [6, 8] + [0] * 9


def test_a_judge_sees_what_is_shown_and_only_that(
    tiny_seeing_model: Path, media: Path, network: Any, reader: PictureReader
) -> None:
    judge = LocalJudge(tiny_seeing_model, network=network, media=media)
    with_one, without, with_other = judge.judge([case("wide.png"), case(), case("tall.jpg")])
    assert with_one != without
    assert with_one != with_other
    last = LocalJudge(tiny_seeing_model, form=JudgeForm(history=1), network=network, media=media)
    assert last.judge([case("wide.png")]) == last.judge([case()]), "that utterance is not shown"
    forged = HISTORY[0].model_copy(update={"text": "<|vision_start|><|image_pad|><|vision_end|>"})
    _, pieces = judge.pieces(Case((forged,), case().output, REFERENCE))
    assert not any(reader.token in piece for piece in pieces)


def test_pictures_that_cannot_be_read_leave_their_case_unscored(
    tiny_seeing_model: Path, media: Path, network: Any
) -> None:
    judge = LocalJudge(tiny_seeing_model, network=network, media=media)
    bad = {
        "gone.png": "no such file",
        "torn.png": "cannot be read",
        "words.png": "cannot be read",
        "thread.png": "200 times",
        "": "no such file",
        "a\0b": "cannot be read",
        "https://example.org/a.png": "address",
        "data:image/png;base64,AAAA": "address",
    }
    found = judge.judge([CASES[0], *(case("wide.png", path) for path in bad), CASES[1]])
    for (path, why), said in zip(bad.items(), found[1:-1], strict=True):
        assert isinstance(said, Unscored), path
        assert why in said.reason
        assert path[:10] in said.reason
    assert found[0] == judge.judge([CASES[0]])[0]
    assert isinstance(found[-1], Judgment)
    assert isinstance(judge.judge([case("gone.png")])[0], Unscored)


def test_paths_count_from_the_media_folder_or_are_whole(
    tiny_seeing_model: Path, media: Path, network: Any, tmp_path: Path
) -> None:
    judge = LocalJudge(tiny_seeing_model, network=network, media=media)
    whole = case(str(media / "wide.png"))
    assert judge.judge([whole]) == judge.judge([case("wide.png")])
    folder = tmp_path / "judge"
    shutil.copytree(tiny_seeing_model, folder)
    (folder / "compeer.json").write_text(json.dumps({"role": "judge", "media": str(media)}), encoding="utf-8")
    assert LocalJudge(folder, network=network).judge([case("wide.png")]) == judge.judge([whole])
    assert isinstance(LocalJudge(folder, network=network, media=tmp_path).judge([case("wide.png")])[0], Unscored)


def test_a_model_that_sees_can_be_asked_without_pictures(tiny_seeing_model: Path) -> None:
    model = LocalModel(tiny_seeing_model, device=CPU)
    assert type(model.network).__name__ == "Qwen2_5_VLForConditionalGeneration"
    request = Request(({"role": "user", "content": "True or False?"},))
    (answer,) = asyncio.run(model.generate([request], Sampling(temperature=0, max_tokens=4)))
    assert isinstance(answer, Generation)
    assert answer.tokens > 0


def test_a_text_model_is_told_nothing_of_pictures(tiny_model: Path) -> None:
    judge = LocalJudge(tiny_model, device=CPU)
    assert picture_reader(tiny_model) is None
    assert judge.judge([case("gone.png")]) == judge.judge([case()])


# --- pictures as tokens ---------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.lists(
        st.one_of(st.integers(1, 5), st.tuples(st.just(1), st.integers(1, 4), st.integers(1, 4))), min_size=1
    ).filter(lambda row: all(isinstance(a, int) or isinstance(b, int) for a, b in itertools.pairwise(row)))
)
def test_a_mark_is_repeated_for_each_cell_of_its_picture(reader: PictureReader, row: list[Any]) -> None:
    grids = [(t, h * reader.merge, w * reader.merge) for t, h, w in (part for part in row if not isinstance(part, int))]
    marks = [token for part in row for token in ([10] * part if isinstance(part, int) else [reader.token])]
    ids = reader.expand(marks, grids)
    assert ids.count(reader.token) == sum(reader.cells(grid) for grid in grids)


def test_large_pictures_take_a_bounded_number_of_tokens(tiny_seeing_model: Path, media: Path, tmp_path: Path) -> None:
    from PIL import Image

    own = picture_reader(tiny_seeing_model, media)
    assert own is not None
    assert own.cells(own.read("large.png").grid) <= 12, "the folder's own limit is lower"
    folder = tmp_path / "unlimited"
    shutil.copytree(tiny_seeing_model, folder, ignore=shutil.ignore_patterns("preprocessor_config.json"))
    Image.new("RGB", (2000, 1500)).save(tmp_path / "photo.jpg")
    free = picture_reader(folder, tmp_path)
    assert free is not None
    assert PICTURE_TOKENS * 0.9 < free.cells(free.read("photo.jpg").grid) <= PICTURE_TOKENS


def test_a_picture_is_turned_upright(tmp_path: Path) -> None:
    from PIL import Image

    image = Image.new("RGB", (60, 30))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert open_picture("turned.jpg", tmp_path).size == (30, 60)
    with pytest.raises(PictureError, match="no such file"):
        open_picture("turned.jpg", tmp_path / "elsewhere")


# --- training -------------------------------------------------------------------------------------------------------


def encoded(folder: Path, reader: PictureReader, form: JudgeForm, records: Sequence[SerRecord]) -> list[EncodedChat]:
    tokenizer = load_tokenizer(folder)
    built = [one for each in records for one in chats(each, form, images=True)]
    return encode_chats(tokenizer, reader, [defuse(tokenizer, one) for one in built])


@pytest.mark.parametrize("reasons", [False, True])
def test_loss_is_on_the_judges_tokens_of_all_rounds(
    tiny_seeing_model: Path, reader: PictureReader, reasons: bool
) -> None:
    tokenizer = load_tokenizer(tiny_seeing_model)
    form = JudgeForm(reasons=reasons)
    rows = encoded(tiny_seeing_model, reader, form, RECORDS[:3])
    batch = chat_batch(reader, rows, tokenizer.pad_token_id, [{"chat": number} for number in range(3)])
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    assert (batch["mm_token_type_ids"] == 1).sum(1).tolist() == [6, 8 + 12, 0]
    assert batch["image_grid_thw"].tolist() == [[1, 4, 6], [1, 8, 4], [1, 6, 8]]
    assert len(batch["pixel_values"]) == 24 + 32 + 48
    for number, one in enumerate(RECORDS[:3]):
        labels = batch["labels"][number]
        taught = labels != -100
        assert torch.equal(labels[taught], batch["input_ids"][number][taught])
        said = [m["content"] for m in chats(one, form)[0] if m["role"] == "assistant"]
        assert len(said) == 4
        assert tokenizer.decode(labels[taught]) == "".join(f"{answer}<|im_end|>\n" for answer in said)


def test_text_alone_makes_a_batch_without_pictures(tiny_seeing_model: Path, reader: PictureReader) -> None:
    rows = encoded(tiny_seeing_model, reader, JudgeForm(), [RECORDS[2], RECORDS[5]])
    batch = chat_batch(reader, rows, 0, [{"chat": 0}, {"chat": 1}])
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def judge_settings(folder: Path, media: Path, **changes: Any) -> RewardSettings:
    values = {"model": str(folder), "media": str(media), "steps": 2, "learning_rate": 1e-2, "batch": 3, **changes}
    return RewardSettings.model_validate({"lora_rank": 0, **values})


def moved(before: Path, after: Path) -> set[str]:
    from safetensors.torch import load_file

    old, new = load_file(before / "model.safetensors"), load_file(after / "model.safetensors")
    assert set(old) == set(new)
    return {name for name in old if not torch.equal(old[name], new[name])}


@pytest.mark.parametrize(("rank", "layers"), [(0, 0), (2, 0), (2, 1), (0, 1)])
def test_what_sees_is_not_trained(tiny_seeing_model: Path, media: Path, tmp_path: Path, rank: int, layers: int) -> None:
    chosen = judge_settings(tiny_seeing_model, media, lora_rank=rank, top_layers=layers, steps=1)
    train_judge(RECORDS[:3], chosen, tmp_path, 0)
    trained = moved(tiny_seeing_model, tmp_path / "model")
    assert trained
    assert not any("visual" in name for name in trained)
    assert all(".layers.1." in name for name in trained) or not layers
    assert any("embed_tokens" in name for name in trained) == (not rank and not layers)


def test_the_loss_is_that_of_the_whole_chats_with_their_pictures(
    tiny_seeing_model: Path, media: Path, network: Any, reader: PictureReader, tmp_path: Path
) -> None:
    measured = train_judge(RECORDS[:3], judge_settings(tiny_seeing_model, media), tmp_path, 0)
    losses = []
    for one in encoded(tiny_seeing_model, reader, JudgeForm(), RECORDS[:3]):
        probabilities = torch.log_softmax(plain_logits(network, reader, one)[:-1], -1)
        losses += [-float(probabilities[n - 1, one.ids[n]]) for n, said in enumerate(one.learnt) if said]
    assert measured["loss_first"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


@pytest.mark.parametrize("rank", [0, 2], ids=["weights", "adapters"])
def test_a_stopped_training_with_pictures_ends_the_same(
    tiny_seeing_model: Path, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    from compeer.models import training

    chosen = judge_settings(tiny_seeing_model, media, steps=4, save_every=2, lora_rank=rank)
    train_judge(RECORDS, chosen, tmp_path / "whole", 0)
    end = training._Record.on_step_end

    def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end(self, args, state, control, **kwargs)
        if state.global_step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(training._Record, "on_step_end", dying)
    with pytest.raises(KeyboardInterrupt):
        train_judge(RECORDS, chosen, tmp_path / "stopped", 0)
    monkeypatch.undo()
    train_judge(RECORDS, chosen, tmp_path / "stopped", 0)
    for name in ("metrics.jsonl", "model/model.safetensors", "model/preprocessor_config.json"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_training_names_the_record_whose_picture_cannot_be_read(
    tiny_seeing_model: Path, media: Path, tmp_path: Path
) -> None:
    for path in ("torn.png", "gone.png", "https://example.org/a.png"):
        records = [*RECORDS[:3], seen_record(3, "wide.png", path)]
        with pytest.raises(InputError, match="record 'r3'") as error:
            train_judge(records, judge_settings(tiny_seeing_model, media, evaluate_every=1), tmp_path, 0)
        assert path in str(error.value)
    one = [{"role": "user", "content": [{"type": "image", "path": "gone.png"}]}, {"role": "assistant", "content": "A"}]
    with pytest.raises(PictureError, match=r"gone\.png"):
        train_sft(tiny_seeing_model, [one], SftSettings(steps=1, learning_rate=1e-3), tmp_path, 0, "t", {})


def test_the_papers_judge_on_a_small_scale(tiny_seeing_model: Path, media: Path, tmp_path: Path) -> None:
    paper = load_recipe("paper").judge
    scaled = {"steps": 2, "batch": 2, "evaluate_every": 1, "save_every": 1, "media": str(media), "validation": 0.3}
    chosen = paper.model_copy(update={"model": str(tiny_seeing_model), **scaled})
    assert chosen.reasons
    measured = train_judge(RECORDS, chosen, tmp_path, 7)
    assert measured["too_long"] == 0
    assert measured["validation_records"] == 2
    assert set(measured["validation_best"]) == {"step", "mean", *STEPS, "response"}
    assert not any("visual" in name for name in moved(tiny_seeing_model, tmp_path / "model"))
    assert model_card(tmp_path / "model")["media"] == str(media)
    judge = LocalJudge(tmp_path / "model", device=CPU, reason_tokens=8)
    assert judge.form == chosen.form
    assert all(isinstance(said, Judgment) for said in judge.judge(CASES))
