"""Our rewards for a plain TRL trainer: `GRPOTrainer(reward_funcs=[redundant(unifireward, num_generations=8)], …)`.

Of the dataset they need the column `history`, a list of `{"speaker": "seeker" | "supporter", "text": …}`, and for the
judge `reference`, the response to compare with (None: only the steps are judged). `compeer.policy.grpo` does more:
groups that straddle processes, several sources, the safety floor, metrics and resuming.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from compeer.dialogue import Utterance
from compeer.models.embedder import Embedder, Embeds
from compeer.pipeline import in_blocks
from compeer.policy.redundancy import Negatives, reweight, tied
from compeer.policy.rewards import completion_text, embed_together
from compeer.reasoning import parse_turn
from compeer.reward import Case, Judge, open_judge, score
from compeer.statistics import generator, words

RewardFunction = Callable[..., list[float | None]]
Histories = Sequence[Sequence[Mapping[str, Any]]]


def judged_by(judge: str | Path | Judge, *, seed: int = 0, max_completion_length: int | None = None) -> RewardFunction:
    """A reward function for TRL: a judge's total of each output, −5 to 5, or None where the judge failed.

    `judge` is a folder, `NAME@URL`, or an opened judge. The seed samples whether the response or the reference comes
    first. An output of `max_completion_length` tokens counts as cut off, and so as broken.
    """

    @cache
    def opened() -> Judge:
        return open_judge(judge) if isinstance(judge, str | Path) else judge

    def reward(
        completions: Sequence[Any], history: Histories, reference: Sequence[str | None], **kwargs: Any
    ) -> list[float | None]:
        tokens = kwargs.get("completion_ids") or [()] * len(completions)
        limit = max_completion_length or math.inf
        cases = []
        for completion, ids, utterances, other in zip(completions, tokens, history, reference, strict=True):
            parsed = parse_turn(completion_text(completion), cut_off=len(ids) >= limit)
            first = bool(generator(seed, "order", str(parsed.parts.get("response"))).random() < 0.5)
            cases.append(Case(_utterances(utterances), parsed, other, candidate_first=first))
        judgments = opened().judge(cases)
        return [score(case.output, judgment).total for case, judgment in zip(cases, judgments, strict=True)]

    reward.__name__ = "unifireward"
    return reward


unifireward = judged_by("judge")  # the packaged judge as a reward function; it is opened at the first call


def redundant(
    reward_func: RewardFunction,
    *,
    num_generations: int,
    alpha: float = 0.5,
    beta: float = 5.0,
    negatives: Negatives = "mirrored",
    embedder: Embeds | None = None,
) -> RewardFunction:
    """The reward function with its rewards reweighted by redundancy, group by group (`redundancy.reweight`).

    A group is `num_generations` rows of one prompt, which must all be on one process: let
    `per_device_train_batch_size` times `steps_per_generation` be a multiple of it. Tied groups are left as they are.
    """

    @cache
    def opened() -> Embeds:
        return embedder or Embedder()

    def reward(prompts: Sequence[Any], completions: Sequence[Any], history: Histories, **kwargs: Any) -> Any:
        raw = reward_func(prompts=prompts, completions=completions, history=history, **kwargs)
        responses = [_response(completion_text(completion)) for completion in completions]
        starts = range(0, len(raw), num_generations)
        mixed = any(prompt != group[0] for group in in_blocks(prompts, num_generations) for prompt in group)
        if mixed or len(raw) % num_generations:
            raise ValueError(f"the rows are not whole groups of {num_generations} outputs for one prompt")
        texts = {str(start): [one.text for one in _utterances(history[start])] for start in starts}
        rows, histories = embed_together(opened(), responses, texts)
        found: list[float | None] = []
        for start in starts:
            group = slice(start, start + num_generations)
            rewards = [math.nan if value is None else float(value) for value in raw[group]]
            if not tied(rewards):
                lengths = [len(words(response)) for response in responses[group]]
                rewards = reweight(rewards, rows[group], histories[str(start)], lengths, alpha, beta, negatives)
            found += [None if math.isnan(value) else value for value in rewards]
        return found

    reward.__name__ = f"redundant_{getattr(reward_func, '__name__', 'reward')}"
    return reward


def _response(text: str) -> str:
    """The response of a turn; a completion without any of our lines is a response as a whole."""
    parsed = parse_turn(text)
    return str(parsed.parts.get("response", "")) if parsed.parts else text


def _utterances(history: Sequence[Mapping[str, Any]]) -> tuple[Utterance, ...]:
    return tuple(Utterance.model_validate({k: v for k, v in one.items() if v is not None}) for one in history)
