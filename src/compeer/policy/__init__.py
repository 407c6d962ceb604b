"""The supporter: supervised fine-tuning, then GRPO with redundancy-aware rewards."""

from compeer.policy.prompt import supporter_prompt
from compeer.policy.redundancy import reweight
from compeer.policy.rollout import Output, generate_turns
from compeer.policy.sft import SupporterSettings, train_supporter

__all__ = ["Output", "SupporterSettings", "generate_turns", "reweight", "supporter_prompt", "train_supporter"]
