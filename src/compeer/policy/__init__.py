"""The supporter: supervised fine-tuning, then GRPO with redundancy-aware rewards."""

from compeer.policy.prompt import supporter_prompt
from compeer.policy.redundancy import reweight
from compeer.policy.selection import Output, generate_turns
from compeer.policy.sft import SupporterSettings, train_supporter
from compeer.policy.trl_rewards import judged_by, redundant, unifireward

__all__ = ["Output", "SupporterSettings", "generate_turns", "judged_by", "redundant", "reweight", "supporter_prompt"]
__all__ += ["train_supporter", "unifireward"]
