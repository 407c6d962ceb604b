"""Used by test_grpo, and run by it in two processes: three steps of GRPO with scripted outputs and scores.

Every output is fixed by its history and its place in the group, and every score by its record and text, so that one
process and two must come to the same rewards, advantages and parameters.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from compeer.engine.gguf import chat_template
from compeer.models.training import run_trainer
from compeer.policy.grpo import GrpoSettings, RedundancyGRPOTrainer, Rollout, Scorer, grpo_trainer
from compeer.policy.rewards import Weighted
from compeer.reasoning import ParsedTurn, parse_turn
from compeer.reward import Case, Judgment, Score, Unscored
from compeer.ser import SerRecord, read_records
from compeer.ser.record import write_records
from compeer.statistics import words

OUTPUTS = ["good morning to you", "I see what you mean, go on", "tell me more", "go on then, tell me"]


def small_model(tiny: Path, seeing: Path, folder: Path) -> Path:
    """A folder with a random network like `tiny_model`, but with the few hundred tokens of `tiny_seeing_model`.

    The loss takes time for each token that could be said: with the embedded model's 49,152 it is ten times as slow.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(seeing)
    tokenizer.chat_template = chat_template()
    config = AutoConfig.from_pretrained(tiny)
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 2048
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def small_records(path: Path) -> Path:
    """A file of sixteen records, each with a history of its own."""
    worries = ["the rent", "my exam", "a row at home", "the night shifts"]
    said = ["I cannot stop thinking about", "nobody asks me about", "it is all down to", "I am tired of"]
    records = []
    for count, (worry, words_) in enumerate(itertools.product(worries, said)):
        turn = parse_turn(whole(f"What about {worry} is the worst?")).turn
        history = [
            {"speaker": "supporter", "text": "Hello. How have you been?"},
            {"speaker": "seeker", "text": f"{words_} {worry}"},
        ]
        values = {"round": 1, "language": "en", "source": "test", "split": "policy", "author": "corpus"}
        values |= {"id": f"r{count}", "dialogue": f"d{count}", "history": history, "candidate": turn}
        records.append(
            SerRecord.model_validate({**values, "reference": f"How long has it been {worry}?", "candidate_first": True})
        )
    write_records(path, records)
    return path


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


def whole(text: str) -> str:
    """The text as the response of a whole turn; one that is a turn already stays."""
    if text.startswith("History:"):
        return text
    response = " ".join(text.split()) or "Hm."
    return (
        "History: They talk about their day. [exploration]\nEmotion: They are worn out. [negative, sadness, 3]\n"
        f"Strategy: Ask about it. [Question]\nResponse: {response}"
    )


class HashSource:
    """Totals from −5 to 5 by source, record and response; one in `fails` is unscored."""

    def __init__(self, name: str, fails: int = 0) -> None:
        self.name, self._fails = name, fails

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        keys = [
            self.name + record.id + str(turn.parts.get("response"))
            for record, turn in zip(records, outputs, strict=True)
        ]
        return [
            Score(unscored="scripted")
            if self._fails and number(key + "!") % self._fails == 0
            else Score(total=number(key) % 11 - 5, more={"history": number(key) % 2 * 2 - 1, "format": 1})
            for key in keys
        ]


class LengthEmbedder:
    def embed(self, texts: list[str]) -> Any:
        return np.array([[1.0, len(text)] for text in texts], dtype=np.float32)


class FixedJudge:
    """Says True to everything, prefers the candidate, and fails where told to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.cases: list[Case] = []

    def judge(self, cases: list[Case]) -> list[Judgment | Unscored]:
        self.cases.extend(cases)
        if self.fails:
            return [Unscored("out of order") for _ in cases]
        verdicts = {"history": 0.9, "emotion": 0.2, "strategy": 0.8}
        return [Judgment(verdicts, {"candidate": 0.7, "reference": 0.3}) for _ in cases]  # type: ignore[arg-type]


def fixed_scorer(record: SerRecord, judge: FixedJudge) -> Scorer:
    return Scorer(judge, LengthEmbedder(), {record.id: record}, 0)  # type: ignore[arg-type]


class WordRows:
    """Embeddings by words."""

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.zeros((len(texts), 32), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in words(text):
                row[number(word) % 32] += 1
        return rows


SOURCES = [
    Weighted(HashSource("first", fails=7)),
    Weighted(HashSource("second"), 0.5),
    Weighted(HashSource("seen", 2), 0),
]


def scripted_scorer(records: Mapping[str, SerRecord]) -> Any:
    """Three sources, of which the last only looks on; whatever was written is made a whole turn."""
    scorer = Scorer(SOURCES, WordRows(), records, 0)

    def scored(ids: Sequence[str], texts: Sequence[str], _: Sequence[bool]) -> list[Rollout]:
        return scorer(ids, [whole(text) for text in texts], [False] * len(texts))

    return scored


class Scripted(RedundancyGRPOTrainer):
    """Outputs by rule instead of sampling; keeps what it computed."""

    rewards: ClassVar[list[Any]] = []
    advantages: ClassVar[list[Any]] = []
    drawn: ClassVar[list[int]] = []

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        Scripted.drawn.append(len(prompt_ids))
        size = self.num_generations
        start = self.accelerator.process_index * len(prompt_ids)
        completions = []
        for row in range(len(prompt_ids)):
            text = OUTPUTS[(start + row) % size]
            completions.append([*self.processing_class(text)["input_ids"], self.processing_class.eos_token_id])
        return completions, None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        Scripted.rewards.append([None if value != value else round(value, 5) for value in rewards[:, 0].tolist()])
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        Scripted.advantages.append(self.accelerator.gather(output["advantages"]).tolist())
        return output


def train(model: Path, records: Path, folder: Path, at_once: int = 0) -> None:
    """Leaves rewards, advantages and how many outputs were drawn and scored in each call; and the weights."""
    # twelve outputs: on two processes the second group is cut in the middle
    settings = GrpoSettings(
        steps=3, learning_rate=1e-3, lora_rank=0, group=4, prompts=3, max_tokens=16, history=2, at_once=at_once
    )
    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}
    scorer, scored = scripted_scorer(chosen), []

    def counting(ids: Sequence[str], texts: Sequence[str], cut_off: Sequence[bool]) -> list[Rollout]:
        scored.append(len(ids))
        found: list[Rollout] = scorer(ids, texts, cut_off)
        return found

    for kept in (Scripted.rewards, Scripted.advantages, Scripted.drawn):
        kept.clear()
    trainer = grpo_trainer(model, counting, chosen, settings, folder, 0, kind=Scripted)
    run_trainer(trainer, folder, settings, "scripted")
    if trainer.accelerator.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        torch.save(network.state_dict(), folder / "parameters.pt")
        result = {"rewards": Scripted.rewards, "advantages": Scripted.advantages}
        result |= {"drawn": Scripted.drawn, "scored": scored}
        (folder / "result.json").write_text(json.dumps(result))


def main() -> None:
    train(*(Path(word) for word in sys.argv[1:4]))
