"""How GRPO is set: our settings, and TRL's made from them.

A step samples `prompts` groups of `group` outputs and has all of them scored at once. What is learnt from them may be
computed in parts, to save memory. The loss is a mean over outputs, of each output's mean over its own tokens, so parts
of the same size change nothing, even where they cut a group.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from trl import GRPOConfig

from compeer.errors import InputError
from compeer.io import Frozen
from compeer.models.training import WeightSettings, trainer_arguments
from compeer.policy.redundancy import Negatives
from compeer.reward import JudgeForm


class SourceSettings(Frozen, use_attribute_docstrings=True):
    """One source of rewards: a judge, a process and an outcome judge, a simulated seeker, decisions, or the plan."""

    judge: str = "run"
    """'run': the judge that the run trains; or a judge's folder, or NAME@URL of a server"""
    outcome: str | None = None
    """another judge for the responses (ORM); `judge` then judges the steps (PRM)"""
    seeker: str | None = None
    """who plays a seeker, named as `judge`, or 'embedded': the score is its change of emotion, -10 to 10 points"""
    decisions: bool = False
    """whether stage, emotion and strategy are those of the corpus (-3 to 3); no judge is asked"""
    beyond_chance: bool = False
    """with `decisions`: less how common one is in the corpus, so that one answer for every history earns nothing"""
    plan: bool = False
    """whether the response does what step 3 says, by words learnt from reference turns (-1 to 1); no judge is asked"""
    weight: float = Field(default=1.0, ge=0, description="what its score counts; 0: it is only logged")
    trained: bool = False
    """whether the model behind a URL was trained as a judge, in the `form` given"""
    form: JudgeForm = JudgeForm()
    """how a judge behind a URL is asked; a folder's card says it itself"""

    @model_validator(mode="after")
    def _is_one_thing(self) -> SourceSettings:
        if sum((self.seeker is not None, self.decisions, self.plan)) > 1:
            raise ValueError("seeker, decisions and plan are sources of their own: give each a name and a table")
        if self.beyond_chance and not self.decisions:
            raise ValueError("beyond_chance says how decisions are counted: set decisions as well")
        return self


class GrpoSettings(WeightSettings):
    """How the supporter is trained by reward."""

    group: int = Field(default=4, ge=2, description="outputs for one history (G)")
    prompts: int = Field(default=8, ge=1, description="histories an optimiser step")
    max_tokens: int = Field(default=256, ge=1, description="longest output, in tokens; a longer one is cut off")
    temperature: float = Field(default=1.0, gt=0, description="of the rollouts")
    at_once: int = Field(default=0, ge=0)
    """outputs learnt from at a time by a process, to save memory; 0: all of a step"""
    epsilon: float = Field(default=0.2, gt=0, description="clip range of the probability ratio")
    alpha: float = Field(default=0.5, description="steepness of the length gate (equation 7)")
    beta: float = Field(default=5.0, description="length, in words, at which the gate is half open (equation 7)")
    negatives: Negatives = Field(default="mirrored", description="how negative rewards are reweighted")
    history: int | None = Field(default=None, ge=1, description="utterances of the history it sees; none: all")
    media: str = Field(default="", description="the folder from which paths of pictures count, for a multimodal model")
    guard: bool = Field(default=True, description="whether a response that the safety guard rejects gets the floor")
    rewards: dict[str, SourceSettings] = Field(default={"judge": SourceSettings()}, min_length=1)
    """the sources of rewards by name"""
    outage: float = Field(default=600.0, ge=0)
    """seconds that a judge behind a server may stay away before training stops"""
    vllm: Literal["off", "server", "colocate"] = "off"
    """whether vLLM writes the rollouts: on a server, or on the GPUs that train"""
    vllm_server: str = Field(default="http://localhost:8000", pattern="^https?://")
    """address of the vLLM server for rollouts"""
    vllm_memory: float = Field(default=0.3, gt=0, lt=1)
    """share of a GPU's memory for vLLM where it shares the GPUs that train"""


def grpo_config(settings: GrpoSettings, folder: Path, seed: int) -> GRPOConfig:
    """TRL's settings for one of the processes of a training."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    outputs = settings.group * settings.prompts
    if outputs % processes:
        raise InputError(f"{outputs} outputs a step cannot be spread evenly over {processes} processes.", field="grpo")
    here = outputs // processes
    part = part_size(here, settings.at_once)
    return GRPOConfig(
        **trainer_arguments(settings, folder, seed),
        use_vllm=settings.vllm != "off",
        vllm_mode="colocate" if settings.vllm == "off" else settings.vllm,
        vllm_server_base_url=settings.vllm_server if settings.vllm == "server" else None,
        vllm_gpu_memory_utilization=settings.vllm_memory,
        per_device_train_batch_size=part,
        gradient_accumulation_steps=here // part,
        num_generations=settings.group,
        max_completion_length=settings.max_tokens,
        temperature=settings.temperature,
        epsilon=settings.epsilon,
        loss_type="grpo",
        beta=0.0,
    )


def part_size(outputs: int, at_once: int) -> int:
    """The largest size, up to `at_once` (0: all), of equal parts of so many outputs."""
    return max(size for size in range(1, min(at_once or outputs, outputs) + 1) if outputs % size == 0)


def check_vllm(settings: GrpoSettings) -> None:
    """Refuses rollouts by vLLM where it is not installed: also with a server, it carries the weights there."""
    if settings.vllm != "off" and importlib.util.find_spec("vllm") is None:
        what = f"rollouts are to come from vLLM ('{settings.vllm}'), which is not installed here."
        do = 'Install it (pip install vllm), on the machine that trains too, or set vllm = "off".'
        raise InputError(what, field="vllm", do=do)
