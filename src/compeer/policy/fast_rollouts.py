"""TRL's GRPO trainer with rollouts by our own decoder.

Outputs are sampled fast wherever the weights stand whole on each device: one GPU, several with a copy each, a CPU.
Elsewhere TRL generates as ever, with vLLM best of all.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from compeer.engine.network import Mirror
from compeer.engine.rollouts import Decoder, Prompt, RolloutSampling
from compeer.policy.multimodal import PICTURE_FIELDS
from compeer.statistics import generator

_log = logging.getLogger(__name__)


class FastRollouts:
    """Fast rollouts for TRL's `GRPOTrainer`, before which it stands in a trainer's bases.

    TRL 1.16 generates in one private method, given the tokens of this process's prompts, each repeated for its group.
    `trl` is pinned, and a test holds the contract. A row is seeded by the run's seed, the optimiser step and its number
    among the rows of all processes, so one process and two sample the same but for rounding.
    """

    rollout_rows = 512  # outputs sampled at a time by a process; each takes memory for its keys and values

    _mirror: Mirror | None = None
    _decoder: Decoder | None = None
    _warned = False

    def _generate_single_turn(
        self: Any,
        prompt_ids: list[list[int]],
        images: list[Any] | None,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        why = self._why_not_fast(multimodal_fields, has_tool_images)
        if why:
            if not self._warned and not self.use_vllm:
                _log.warning("rollouts are sampled by TRL's own generation: %s", why)
            self._warned = True
            found: tuple[list[list[int]], list[list[float]] | None] = super()._generate_single_turn(  # type: ignore[misc]
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
            return found
        if self._mirror is None:
            precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision)
            self._mirror = Mirror(self.model, precision)
            self._decoder = Decoder(self._mirror.network, _sampling(self), precision, self.rollout_rows)
        elif self._mirror.follow(self.model):
            self._decoder.stepper.forget()
        mode = "train" if self.model.training else "eval"
        first = self.accelerator.process_index * len(prompt_ids)
        seeds = [
            int(generator(self.args.seed, "rollout", mode, str(self.state.global_step), str(row)).integers(1 << 62))
            for row in range(first, first + len(prompt_ids))
        ]
        return self._decoder.sample(_prompts(prompt_ids, images, multimodal_fields), seeds), None

    def _why_not_fast(self: Any, fields: Mapping[str, Any], has_tool_images: bool) -> str | None:
        """What stands against it, or None."""
        if self.use_vllm:
            return "vLLM is set"
        if self.use_transformers_continuous_batching:
            return "continuous batching is set"
        kind = str(self.accelerator.distributed_type.value)
        if not (kind == "NO" or kind.startswith("MULTI_")):
            return f"weights are distributed over processes ({kind})"
        usual = {"repetition_penalty": 1.0, "do_sample": True}
        for name, value in self.generation_kwargs.items():
            if name not in _KNOWN and value not in (None, usual.get(name)):
                return f"{name} is {value}"
        layers = set(getattr(self.model.config.get_text_config(), "layer_types", None) or ["full_attention"])
        if layers != {"full_attention"}:
            return "its layers do not all attend to everything"
        if has_tool_images or not set(fields) <= set(PICTURE_FIELDS):
            return f"prompts hold {', '.join(sorted(fields))}"
        return None


_KNOWN = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "suppress_tokens",
    "eos_token_id", "pad_token_id", "bos_token_id",
}  # fmt: skip


def _sampling(trainer: Any) -> RolloutSampling:
    own = trainer.generation_kwargs
    return RolloutSampling(
        max_tokens=own["max_new_tokens"],
        ends=tuple(trainer.eos_token_ids),
        temperature=own["temperature"],
        top_p=1.0 if own["top_p"] is None else own["top_p"],
        top_k=own["top_k"] or 0,
        min_p=own["min_p"] or 0.0,
        never=tuple(own.get("suppress_tokens") or ()),
    )


def _prompts(
    prompt_ids: Sequence[Sequence[int]], images: Sequence[Any] | None, fields: Mapping[str, Any]
) -> list[Prompt]:
    """The prompts with their own pictures, which TRL passes one after the other for all rows together."""
    pixels, grids = fields.get("pixel_values"), fields.get("image_grid_thw")
    if images is None or pixels is None or grids is None:
        return [Prompt(tuple(ids)) for ids in prompt_ids]
    pixels, grids = torch.as_tensor(np.asarray(pixels)), torch.as_tensor(np.asarray(grids))
    found: list[Prompt] = []
    picture = patch = 0
    for ids, own in zip(prompt_ids, images, strict=True):
        grid = grids[picture : picture + len(own or ())]
        patches = int(grid.prod(1).sum())
        found.append(Prompt(tuple(ids), *((pixels[patch : patch + patches], grid) if len(grid) else ())))
        picture, patch = picture + len(grid), patch + patches
    return found
