"""GRPO of a supporter that sees, with a judge that sees: histories with and without pictures in one batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compeer.dialogue import Media, Utterance
from compeer.engine.multimodal import picture_reader
from compeer.engine.network import load_network, load_tokenizer
from compeer.models.training import model_card
from compeer.policy.grpo import GrpoSettings, RedundancyGRPOTrainer, Rollout, Scorer, grpo_trainer, train_grpo
from compeer.policy.multimodal import MultimodalProcessor, blocks
from compeer.policy.prompt import supporter_prompt
from compeer.policy.rewards import JudgeSource, Weighted
from compeer.reward import LocalJudge
from compeer.ser.record import SerRecord
from tests.support.grpo_worker import HashSource, WordRows, whole
from tests.support.judging import record

CPU = torch.device("cpu")
SETTINGS = GrpoSettings(
    steps=2, learning_rate=1e-2, warmup=0, lora_rank=0, prompts=3, max_tokens=8, history=3, save_every=1
)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    for name, (height, width) in {"wide.png": (60, 90), "tall.png": (112, 56)}.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(folder / name)
    return folder


def pictured(number: int, *pictures: str) -> SerRecord:
    """A turn of the corpus whose history has these pictures in its first utterance."""
    seeker = Utterance(
        speaker="seeker", text="Look at our shed.", media=tuple(Media(kind="image", path=path) for path in pictures)
    )
    history = (
        seeker,
        Utterance(speaker="supporter", text="Oh."),
        Utterance(speaker="seeker", text=f"It fell {number}"),
    )
    return record(number).model_copy(update={"history": history, "author": "corpus", "id": f"seen:{number}"})


@pytest.fixture(scope="module")
def records(media: Path) -> list[SerRecord]:
    wide, tall = str(media / "wide.png"), str(media / "tall.png")
    return [pictured(0, wide), pictured(1), pictured(2, tall, wide), pictured(3), pictured(4), pictured(5, tall)]


def test_two_steps_with_a_judge_that_sees(
    tiny_seeing_model: Path, records: list[SerRecord], media: Path, tmp_path: Path
) -> None:
    """Paths count from `media`; what sees stays as it was, and the trained model can be loaded and asked."""
    local = [
        one.model_copy(update={"history": tuple(_nearer(utterance) for utterance in one.history)}) for one in records
    ]
    judge = LocalJudge(tiny_seeing_model, batch_size=4)
    sources = [Weighted(JudgeSource(judge, 0)), Weighted(HashSource("other"), 0.5)]
    settings = SETTINGS.model_copy(update={"media": str(media)})

    class Whole(Scorer):
        def __call__(self, ids: Any, texts: Any, cut_off: Any) -> list[Rollout]:
            return super().__call__(ids, [whole(text) for text in texts], [False] * len(texts))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compeer.policy.grpo.Scorer", Whole)
        result = train_grpo(tiny_seeing_model, sources, WordRows(), local, settings, tmp_path, 0)
    assert result["steps"] == 2
    assert result["unscored_share"] == 0, "the judge saw every picture"
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    assert len({row["record"] for row in rows}) == 6, "every history was answered, with pictures and without"
    before, after = (
        dict(load_network(path, CPU, torch.float32).named_parameters())
        for path in (tiny_seeing_model, tmp_path / "model")
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any("visual" in name for name in changed)
    assert picture_reader(tmp_path / "model") is not None
    assert model_card(tmp_path / "model")["media"] == str(media)


def _nearer(utterance: Utterance) -> Utterance:
    media = tuple(one.model_copy(update={"path": Path(one.path).name}) for one in utterance.media)
    return utterance.model_copy(update={"media": media})


def test_a_mixed_batch_is_what_its_rows_are_alone(
    tiny_seeing_model: Path, records: list[SerRecord], tmp_path: Path
) -> None:
    """The log-probabilities in training, batches in any mixture, are those of one plain forward a row."""
    kept: list[dict[str, Any]] = []

    class Keeps(RedundancyGRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            kept.append({**output, "records": [row["record"] for row in inputs]})
            return output

        def _get_per_token_logps_and_entropies(self, model: Any, ids: Any, mask: Any, *args: Any, **more: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(model, ids, mask, *args, **more)
            kept[-1].setdefault("batches", []).append((ids, mask, args[0], found[0].detach()))
            return found

    chosen = {one.id: one for one in records}
    scorer = Scorer([Weighted(HashSource("only"))], WordRows(), chosen, 0)
    settings = SETTINGS.model_copy(update={"steps": 1, "prompts": 6, "group": 2, "temperature": 1.0})
    trainer = grpo_trainer(
        tiny_seeing_model,
        lambda ids, texts, cut: scorer(ids, [whole(text) for text in texts], cut),
        chosen,
        settings,
        tmp_path,
        1,
        kind=Keeps,
    )
    trainer.train()
    network = load_network(tiny_seeing_model, CPU, torch.float32)
    tokenizer = load_tokenizer(tiny_seeing_model)
    reader = picture_reader(tiny_seeing_model)
    assert reader is not None
    processor = MultimodalProcessor(tokenizer, reader)
    prompts = {
        key: processor.apply_chat_template(
            [blocks(tokenizer, supporter_prompt(one.history, 3, images=True))],
            tokenize=True,
            add_generation_prompt=True,
        )
        for key, one in chosen.items()
    }
    compared = 0
    for ids, mask, length, found in kept[0]["batches"]:
        for row, own, logps in zip(ids, mask, found, strict=True):
            tokens = row[own.bool()].tolist()
            done = int(own[-length:].sum())
            prompt = next(p for p in prompts.values() if p["input_ids"][0] == tokens[: len(tokens) - done])
            given = {key: prompt[key] for key in ("pixel_values", "image_grid_thw") if key in prompt}
            if given:
                given["mm_token_type_ids"] = torch.tensor([prompt["mm_token_type_ids"][0] + [0] * done])
            with torch.inference_mode():
                logits = network(input_ids=torch.tensor([tokens]), **given).logits[0]
            plain = torch.log_softmax(logits[-done - 1 : -1], -1)
            wanted = plain.gather(1, torch.tensor(tokens[-done:])[:, None])[:, 0]
            assert torch.allclose(logps[:done], wanted, atol=1e-3)
            compared += 1
    assert compared == 12
    assert any(len(prompt["input_ids"][0]) and "pixel_values" in prompt for prompt in prompts.values())


def test_the_processor_pads_and_mixes(tiny_seeing_model: Path, records: list[SerRecord]) -> None:
    tokenizer, reader = load_tokenizer(tiny_seeing_model), picture_reader(tiny_seeing_model)
    assert reader is not None
    processor = MultimodalProcessor(tokenizer, reader)
    chats = [blocks(tokenizer, supporter_prompt(one.history, 3, images=True)) for one in records[:3]]
    encoded = processor.apply_chat_template(chats, tokenize=True, add_generation_prompt=True)
    grids = encoded["image_grid_thw"].tolist()
    assert len(grids) == 3
    cells = [sum(row) for row in encoded["mm_token_type_ids"]]
    assert cells == [reader.cells(grids[0]), 0, reader.cells(grids[1]) + reader.cells(grids[2])]
    texts = [processor.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    paths = [[block["image"] for block in chat[1]["content"] if block["image"]] or None for chat in chats]
    padded = processor(images=paths, text=texts)
    for row, mask, ids in zip(padded["input_ids"], padded["attention_mask"], encoded["input_ids"], strict=True):
        assert row[mask.bool()].tolist() == ids
        assert mask[-1] == 1, "padded on the left"
    assert padded["mm_token_type_ids"].shape == padded["input_ids"].shape
    plain = processor.apply_chat_template([chats[1]], tokenize=True, add_generation_prompt=True)
    assert set(plain) == {"input_ids"}
    assert plain["input_ids"][0] == encoded["input_ids"][1]
