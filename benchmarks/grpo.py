"""What a GRPO step costs: ours against TRL's own trainer with plain `generate` and a judge by four plain calls.

Both train the same model on the same histories with the same trainer settings, one after the other in one process.
Every output is drawn to its full length. Both judges are given the same whole turns, whatever the outputs say: a model
that has not been fine-tuned writes none, and a judge that has nothing to read costs nothing. Ours also embeds and
reweights, which the other does not. The first steps warm up (graphs are recorded then) and do not count; of the others
the median does. On a GPU TRL's trainer is measured twice: as torch comes, which attends by cuDNN and makes a plan for
every new shape, and without that, as everything here runs (`engine/network.py`).

    python benchmarks/grpo.py [--model embedded] [--prompts 32] [--outputs 4] [--tokens 256] [--repeats 3]

Without a GPU the defaults are small, and it takes some minutes. Prints one JSON object: seconds a step, and the seconds
of its parts. Ours embeds while it judges, so the longer of the two counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from judge import plain_calls
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from compeer.engine.network import best_device
from compeer.models.embedder import Embedder
from compeer.models.local import LocalModel
from compeer.models.resolve import model_folder
from compeer.policy.fast_rollouts import FastRollouts
from compeer.policy.grpo import GrpoSettings, RedundancyGRPOTrainer, Rollout, Scorer, grpo_trainer
from compeer.reasoning import parse_turn, render_turn
from compeer.reward import Case, JudgeForm, LocalJudge
from compeer.ser import SerRecord, SerSettings, build_ser, read_records

Records = Mapping[str, SerRecord]


def settled() -> float:
    """The time, once the device has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Clock(TrainerCallback):  # type: ignore[misc]
    """Seconds of every step and of the parts of it that are timed."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.steps.append(defaultdict(float))
        self._begun = settled()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps[-1]["step"] = settled() - self._begun

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, its time counted under a name."""

        def run(*args: Any, **kwargs: Any) -> Any:
            start = settled()
            try:
                return work(*args, **kwargs)
            finally:
                self.steps[-1][name] += settled() - start

        return run

    def medians(self, warm_up: int) -> dict[str, float]:
        """A step and its parts, of the median step after the first ones."""
        rows = sorted(self.steps[warm_up:], key=lambda row: row["step"])
        row = rows[(len(rows) - 1) // 2]
        learning = row["training_step"] - row["inputs"]
        rest = row["step"] - row["rollout"] - max(row["judge"], row["embedding"]) - learning
        parts = {name: row[name] for name in ("step", "rollout", "judge", "embedding")}
        return {name: round(value, 4) for name, value in {**parts, "loss_and_backward": learning, "rest": rest}.items()}


class Turns:
    """Whole turns to judge in place of outputs: the records' own, another for each output of a history."""

    def __init__(self, records: Records) -> None:
        self._texts = [render_turn(record.candidate) for record in records.values()]
        self._records = records

    def texts(self, ids: Sequence[str]) -> list[str]:
        places = {key: place for place, key in enumerate(self._records)}
        return [self._texts[(places[key] + 31 * row) % len(self._texts)] for row, key in enumerate(ids)]

    def cases(self, ids: Sequence[str]) -> list[Case]:
        chosen = [self._records[key] for key in ids]
        pairs = zip(chosen, self.texts(ids), strict=True)
        return [Case(record.history, parse_turn(text), record.reference) for record, text in pairs]


def plain_trainer(turns: Turns, judge: Callable[[Sequence[Case]], object]) -> Any:
    """TRL's trainer, made as ours is, with a plain judge for a reward function."""

    class Plain(GRPOTrainer):  # type: ignore[misc]
        def __init__(self, scorer: Any, settings: Any, samples: Any, **kwargs: Any) -> None:
            def reward(record: list[str], **_: Any) -> list[float]:
                judge(turns.cases(record))
                return [float(row % 5) for row in range(len(record))]

            super().__init__(reward_funcs=[reward], **kwargs)

    return Plain


def fast_trainer() -> Any:
    """Our trainer, drawing rollouts fast."""
    if issubclass(RedundancyGRPOTrainer, FastRollouts):
        return RedundancyGRPOTrainer
    return type("Fast", (FastRollouts, RedundancyGRPOTrainer), {})


def draw_in_full(trainer: Any) -> None:
    """Lets no output end before its last token: the ending token becomes one that there is not."""
    trainer.eos_token_ids = trainer.generation_kwargs["eos_token_id"] = trainer.generation_config.eos_token_id = [-1]


def measured(trainer: Any, clock: Clock, warm_up: int) -> dict[str, float]:
    """Trains, and says what a step cost."""
    draw_in_full(trainer)
    for name, method in (
        ("rollout", "_generate_single_turn"), ("training_step", "training_step"), ("inputs", "_prepare_inputs"),
    ):  # fmt: skip
        setattr(trainer, method, clock.timed(name, getattr(trainer, method)))
    trainer.remove_callback(PrinterCallback)  # it writes where the figures go
    trainer.add_callback(clock)
    trainer.train()
    return clock.medians(warm_up)


def main() -> None:
    cuda = best_device().type == "cuda"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="embedded", help="the supporter; the judge too")
    parser.add_argument("--prompts", type=int, default=32 if cuda else 1, help="histories a step")
    parser.add_argument("--outputs", type=int, default=4, help="outputs a history")
    parser.add_argument("--tokens", type=int, default=256 if cuda else 16, help="tokens an output")
    parser.add_argument("--history", type=int, default=None if cuda else 1, help="utterances of a history; none: all")
    parser.add_argument("--repeats", type=int, default=3 if cuda else 1, help="steps that count")
    parser.add_argument("--warm-up", type=int, default=2 if cuda else 1, help="steps that do not")
    parser.add_argument("--batch", type=int, default=64 if cuda else 16, help="outputs judged at a time, by both")
    parser.add_argument("--lora-rank", type=int, default=0, help="0 trains the weights themselves")
    options = parser.parse_args()
    folder = model_folder(options.model)
    plain = LocalModel(folder, batch_size=options.batch)
    judge = LocalJudge(folder, options.batch, form=JudgeForm(), network=plain.network, tokenizer=plain.tokenizer)
    embedder = Embedder()
    settings = GrpoSettings(
        steps=options.warm_up + options.repeats,
        learning_rate=1e-6,
        lora_rank=options.lora_rank,
        group=options.outputs,
        prompts=options.prompts,
        max_tokens=options.tokens,
        save_every=10_000,
    )
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        build_ser(SerSettings(rounds=2), Path(temporary), 0)
        read = read_records(Path(temporary) / "records.jsonl")
        records = {
            record.id: record.model_copy(update={"history": record.history[-(options.history or 0) :]})
            for record in read
            if record.author == "corpus"
        }
        turns = Turns(records)
        ours, theirs, stock = Clock(), Clock(), Clock()
        judge.judge = ours.timed("judge", judge.judge)  # type: ignore[method-assign]
        embedder.embed = ours.timed("embedding", embedder.embed)  # type: ignore[method-assign]
        scorer = Scorer(judge, embedder, records, 0)

        def scores(ids: Sequence[str], _: Sequence[str], cut_off: Sequence[bool]) -> list[Rollout]:
            return scorer(ids, turns.texts(ids), [False] * len(cut_off))

        clocks = {"ours": ours, "plain": theirs, **({"stock": stock} if cuda else {})}
        for name, clock in clocks.items():
            kind = plain_trainer(turns, clock.timed("judge", plain_calls(plain))) if name != "ours" else fast_trainer()
            trainer = grpo_trainer(folder, scores, records, settings, Path(temporary) / name, 0, kind=kind)
            torch.backends.cuda.enable_cudnn_sdp(name == "stock")
            found[name] = measured(trainer, clock, options.warm_up)
            print(name, found[name], file=sys.stderr, flush=True)  # so that a run that is cut off has said something
            del trainer
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "device": torch.cuda.get_device_name() if cuda else "cpu",
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "settings": vars(options),
                "seconds": found,
                "shares": {name: shares(parts) for name, parts in found.items()},
                "all_steps": {name: [round(row["step"], 3) for row in clock.steps] for name, clock in clocks.items()},
                **{
                    f"{name}_over_ours": round(parts["step"] / found["ours"]["step"], 2)
                    for name, parts in found.items()
                    if name != "ours"
                },
            },
            indent=1,
        )
    )


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Each part's share of the step."""
    return {name: round(value / parts["step"], 3) for name, value in parts.items() if name != "step"}


if __name__ == "__main__":
    main()
