"""Run by test_distributed in two processes: trains with the weights on both by FSDP2 or ZeRO-3, on a CPU.

`accelerate` takes FSDP's settings for GPUs alone. So processes on a CPU are passed off as such here; what follows,
PyTorch's sharding, `accelerate`'s gathering and the trainers' checkpoints, is what a GPU would do. DeepSpeed needs no
such help.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from compeer.models.training import SftSettings, run_trainer, save_trained, train_sft
from compeer.policy.grpo import GrpoSettings, grpo_trainer
from compeer.ser import read_records
from tests.support.grpo_worker import Scripted, scripted_scorer

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "word " * n}, {"role": "assistant", "content": f"marmalade {n}"}] for n in range(1, 9)
]
FULL: dict[str, Any] = {"steps": 2, "learning_rate": 1e-3, "lora_rank": 0, "save_every": 1}
KINDS = {"full": FULL, "lora": FULL | {"lora_rank": 4, "learning_rate": 1e-2}}


def spread_on_cpu() -> None:
    begin = PartialState.__init__

    def passed_off(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = passed_off


def main() -> None:
    model, records, folder = (Path(word) for word in sys.argv[1:4])
    if "ACCELERATE_USE_FSDP" in os.environ:
        spread_on_cpu()
    for name, values in KINDS.items():
        train_sft(model, CHATS, SftSettings(batch=2, **values), folder / name, 0, name, {})
        if torch.distributed.get_rank() == 0:
            shutil.copytree(folder / name / "checkpoints/checkpoint-1", folder / f"{name}-on/checkpoints/checkpoint-1")
        torch.distributed.barrier()
        train_sft(model, CHATS, SftSettings(batch=2, **values), folder / f"{name}-on", 0, name, {})
    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}
    settings = GrpoSettings(**FULL | {"steps": 1}, group=4, prompts=3, max_tokens=8, history=1)
    trainer = grpo_trainer(model, scripted_scorer(chosen), chosen, settings, folder / "grpo", 0, kind=Scripted)
    run_trainer(trainer, folder / "grpo", settings, "grpo")
    save_trained(trainer, trainer.processing_class, folder / "grpo", {}, model)


if __name__ == "__main__":
    main()
