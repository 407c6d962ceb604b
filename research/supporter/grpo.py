"""GRPO of an adapter to the 1.5B base by a judge's probabilities: a job of `gpu.py`, one process, one GPU.

    {"grpo": "grpo-a", "start": "sft-c", "judge": "judge-b", "contexts": "policy.jsonl", "steps": 40, "seed": 1}

A step samples `histories` contexts, writes `group` outputs for each as the policy stands (merged into a second
network), scores them, reweights each group (equations 5 to 7) and takes one on-policy step on the adapter, with a KL
term to where it started. What a job does not name stands in `DEFAULTS`. The adapter is saved every `save` steps, so
that a machine that goes away takes little with it.

A reward is the judge's opinion as probabilities: 2 p − 1 for each step and for "acceptable" (times
`response_weight`), and 1 for the form. Beside
it the corpus' own strategy counts beyond chance: an answer earns its hit less the strategy's share, so that one answer
for every history earns nothing. A strategy that the step's outputs use more often than the targets do (`shares`, by
language) costs the logarithm of the ratio: a judge that likes questions must not make a supporter that only asks. What
is unsafe, copied, far too long or short, or not in the form gets the floor.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

DEFAULTS: dict[str, Any] = {
    "histories": 24,
    "group": 8,
    "rate": 2e-5,
    "kl": 0.05,
    "temperature": 0.9,
    "tokens": 224,
    "micro": 8,
    "save": 10,
    "alpha_gate": 0.5,
    "beta_gate": 5.0,
    "negatives": "mirrored",
    "strategy_weight": 1.0,
    "response_weight": 1.0,
    "balance": 0.5,
    "shares": {},
    "floor": -5.0,
    "rows": 256,
    "compile": False,
    "longest": {"en": 70, "zh": 130},
}
Score = Callable[[Sequence[dict[str, Any]], Sequence[str], Sequence[bool]], list[dict[str, float]]]
"""Contexts, texts and whether each ended, to the parts of each reward; their sum is the reward."""


# --- rewards ----------------------------------------------------------------------------------------------------------


def judged_rewards(judge: Any, job: dict[str, Any], contexts: Sequence[dict[str, Any]]) -> Score:
    """Rewards by a judge; `contexts` are all that are trained on, for the shares of their strategies."""
    from data import copied
    from prepare import record_of

    from compeer.reasoning import STEPS, parse_turn
    from compeer.reward.conversation import record_case
    from compeer.reward.score import Judgment
    from compeer.safety.output import check_reply
    from compeer.statistics import words

    counts = Counter(one for context in contexts for one in set(context.get("strategies", ())))
    total = max(1, sum(bool(context.get("strategies")) for context in contexts))

    def fault(context: dict[str, Any], turn: Any) -> str | None:
        if turn is None:
            return "form"
        length = len(words(turn.response))
        if not 3 <= length <= job["longest"][context["language"]]:
            return "length"
        if copied(turn.response, context["history"], context["language"]):
            return "copied"
        seeker = [one["text"] for one in context["history"] if one["speaker"] == "seeker"]
        return "unsafe" if check_reply(turn.response, seeker) else None

    def score(rows: Sequence[dict[str, Any]], texts: Sequence[str], ended: Sequence[bool]) -> list[dict[str, float]]:
        turns = [parse_turn(text, cut_off=not end).turn for text, end in zip(texts, ended, strict=True)]
        faults = [fault(context, turn) for context, turn in zip(rows, turns, strict=True)]
        good = [n for n, one in enumerate(faults) if one is None]
        labels = {**dict.fromkeys(STEPS, True), "preference": "both"}  # no judge reads them
        cases = [
            record_case(record_of(f"{rows[n]['id']}:{n}", rows[n], turns[n], "policy", labels, "policy")) for n in good
        ]
        found: list[dict[str, float]] = [{one or "": job["floor"]} for one in faults]
        used = Counter((rows[n]["language"], turns[n].strategy.strategy) for n in good)
        all_used = Counter(rows[n]["language"] for n in good)
        for n, verdict in zip(good, judge.judge(cases), strict=True):
            if not isinstance(verdict, Judgment) or verdict.response is None:
                found[n] = {"unscored": float("nan")}
                continue
            accepted = verdict.response["candidate"] + verdict.response["both"]
            found[n] = {part: 2 * verdict.steps[part] - 1 for part in STEPS} | {
                "response": job["response_weight"] * (2 * accepted - 1),
                "form": 1.0,
            }
            if own := rows[n].get("strategies"):
                chosen = turns[n].strategy.strategy
                beyond = float(chosen in own) - counts[chosen] / total
                found[n]["decision"] = job["strategy_weight"] * beyond
            language, chosen = rows[n]["language"], turns[n].strategy.strategy
            if wanted := job["shares"].get(language, {}).get(chosen):
                over = math.log(used[language, chosen] / all_used[language] / wanted)
                found[n]["balance"] = -job["balance"] * max(-1.5, min(1.5, over))
        return found

    return score


class MeanStates:
    """Embeddings by the base itself, for both languages: mean hidden states of a middle layer, less their own mean."""

    def __init__(self, network: Any, tokenizer: Any, layer: float = 0.6) -> None:
        self._network, self._tokenizer = network, tokenizer
        self._layer = round(layer * network.config.num_hidden_layers)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        found = torch.zeros((len(texts), self._network.config.hidden_size))
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        for start in range(0, len(order), 256):
            chosen = order[start : start + 256]
            own = [self._tokenizer(texts[n] or " ", add_special_tokens=False)["input_ids"][:256] for n in chosen]
            ids = torch.zeros((len(own), max(map(len, own))), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, one in enumerate(own):
                ids[row, : len(one)], mask[row, : len(one)] = torch.tensor(one), 1
            ids, mask = ids.to(self._network.device), mask.to(self._network.device)
            states = self._network.model(input_ids=ids, output_hidden_states=True).hidden_states[self._layer].float()
            means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            found[chosen] = means.cpu()
        return found - found.mean(0, keepdim=True)


def group_rewards(
    job: dict[str, Any], context: dict[str, Any], texts: Sequence[str], raw: Sequence[float], embed: Any
) -> list[float]:
    """The rewards of one group, reweighted by how alike its responses are."""
    from compeer.policy import redundancy
    from compeer.reasoning import parse_turn
    from compeer.statistics import words

    if redundancy.tied(raw) or job["negatives"] == "off":
        return list(raw)
    responses = [str(parse_turn(text).parts.get("response", "")) for text in texts]
    history = [one["text"] for one in context["history"]]
    rows = embed([*responses, *history]).numpy()
    lengths = [len(words(one)) for one in responses]
    return redundancy.reweight(
        raw, rows[: len(texts)], rows[len(texts) :], lengths, job["alpha_gate"], job["beta_gate"], job["negatives"]
    )


# --- training ---------------------------------------------------------------------------------------------------------


def log_probabilities(
    network: Any, prompt: Sequence[int], outputs: Sequence[Sequence[int]], temperature: float
) -> torch.Tensor:
    """The log probability of every token of a group's outputs after their common prompt, in one vector.

    The group is one sequence: the prompt, which is read once, then the outputs, each of which sees the prompt and
    itself and stands where it would stand alone.
    """
    device, start, sizes = network.device, len(prompt), [len(one) for one in outputs]
    ids = torch.tensor([*prompt, *(token for one in outputs for token in one)], device=device)
    whose = torch.tensor([-1] * start + [n for n, size in enumerate(sizes) for _ in range(size)], device=device)
    places = [*range(start), *(start + n for size in sizes for n in range(size))]
    seen = torch.ones((len(ids), len(ids)), dtype=torch.bool, device=device).tril()
    seen &= (whose[:, None] == whose[None, :]) | (whose[None, :] == -1)
    mask = torch.zeros(seen.shape, dtype=network.dtype, device=device)
    mask.masked_fill_(~seen, torch.finfo(network.dtype).min)
    hidden = network.model(
        input_ids=ids[None],
        position_ids=torch.tensor([places], device=device),
        attention_mask=mask[None, None],
        use_cache=False,
    ).last_hidden_state[0]
    before, at = [], start
    for size in sizes:  # an output's first token follows the prompt's last
        before += [start - 1, *range(at, at + size - 1)] if size else []
        at += size
    logits = network.lm_head(hidden[before]).float() / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[start:, None])[:, 0]


def start_low(network: Any, adapter: Path) -> tuple[dict[str, Any], int, float]:
    """Puts trainable corrections on the network that begin as a saved adapter."""
    from gpu import add_low
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    weights = load_file(adapter / "adapter_model.safetensors", device=str(network.device))
    low = add_low(network, config["r"], config["lora_alpha"])
    with torch.no_grad():
        for name, own in low.items():
            own.a.copy_(weights[f"base_model.model.{name}.lora_A.weight"])
            own.b.copy_(weights[f"base_model.model.{name}.lora_B.weight"])
    return low, config["r"], config["lora_alpha"]


@torch.no_grad()
def merge_low(twin: Any, low: dict[str, Any]) -> None:
    """Makes the other network the one in training, with its corrections merged in."""
    for name, own in low.items():
        merged = own.linear.weight.float() + own.scale * (own.b @ own.a)
        twin.get_submodule(name).weight.copy_(merged)


def train_by_reward(
    network: Any,
    tokenizer: Any,
    job: dict[str, Any],
    folder: Path,
    log: Any,
    contexts: Sequence[dict[str, Any]],
    score: Score,
) -> None:
    """Trains `job["grpo"]` from `job["start"]`; the network comes back as it was."""
    from data import guided_prompt
    from gpu import compile_layers, drop_low, encode, save_low

    from compeer.engine.rollouts import Decoder, Prompt, RolloutSampling
    from compeer.policy import redundancy
    from compeer.statistics import generator

    job = {**DEFAULTS, **job}
    where = folder / "adapters" / job["grpo"]
    if (where / "job.json").is_file():
        return
    torch.manual_seed(job["seed"])
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    twin = copy.deepcopy(network)
    reference = copy.deepcopy(network)
    low, rank, alpha = start_low(network, folder / "adapters" / job["start"])
    merge_low(reference, low)
    for one in (network, reference):  # fused attention with a mask gave gradients that were not numbers (torch 2.11)
        one.set_attn_implementation("eager")
    compile_layers(network, job["compile"])
    embed = MeanStates(reference, tokenizer)
    trained = [p for own in low.values() for p in (own.a, own.b)]
    optimiser = torch.optim.AdamW(trained, lr=job["rate"], weight_decay=0.0, betas=(0.9, 0.99))
    ends = (tokenizer.eos_token_id,)
    decoder = Decoder(
        twin, RolloutSampling(max_tokens=job["tokens"], ends=ends, temperature=job["temperature"]), rows=job["rows"]
    )
    order = generator(job["seed"], "contexts").permutation(len(contexts)).tolist()
    started = time.time()
    for step in range(job["steps"]):
        at = [time.time()]
        merge_low(twin, low)
        first = step * job["histories"] % len(order)
        chosen = [contexts[(order + order)[first + n]] for n in range(min(job["histories"], len(order)))]
        prompts = [encode(tokenizer, guided_prompt(one["history"]))[0] for one in chosen]
        rows = [n for n in range(len(chosen)) for _ in range(job["group"])]
        seeds = [int(s) for s in generator(job["seed"], "outputs", str(step)).integers(1 << 31, size=len(rows))]
        outputs = decoder.sample([Prompt(tuple(prompts[n])) for n in rows], seeds)
        ended = [bool(ids) and ids[-1] in ends for ids in outputs]
        texts = [tokenizer.decode(ids[:-1] if end else ids) for ids, end in zip(outputs, ended, strict=True)]
        at.append(time.time())
        parts = score([chosen[n] for n in rows], texts, ended)
        raw = [sum(one.values()) for one in parts]
        size, wanted = job["group"], []
        for n, context in enumerate(chosen):
            own = slice(n * size, (n + 1) * size)
            wanted += redundancy.advantages(group_rewards(job, context, texts[own], raw[own], embed))
        at.append(time.time())
        taught = [n for n, one in enumerate(wanted) if one]
        count = sum(len(outputs[n]) for n in taught)
        divergence = 0.0
        for number, prompt in enumerate(prompts):
            own_rows = [n for n in taught if rows[n] == number]
            for start in range(0, len(own_rows), job["micro"]):
                block = own_rows[start : start + job["micro"]]
                texts_ids = [outputs[n] for n in block]
                own = log_probabilities(network, prompt, texts_ids, job["temperature"])
                with torch.no_grad():
                    before = log_probabilities(reference, prompt, texts_ids, job["temperature"])
                weight = torch.tensor([wanted[n] for n in block for _ in outputs[n]], device=own.device)
                # on policy the ratio is one: its gradient is that of the log probability
                gain = torch.exp(own - own.detach()) * weight
                apart = torch.exp(before - own) - (before - own) - 1
                (-(gain - job["kl"] * apart).sum() / max(1, count)).backward()
                divergence += float(apart.detach().sum())
        norm = float(torch.nn.utils.clip_grad_norm_(trained, 1.0))
        for group in optimiser.param_groups:
            group["lr"] = job["rate"] * min(1.0, (step + 1) / 5)
        if norm == norm and taught:  # a gradient that is not a number changes nothing
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        names = sorted({name for one in parts for name in one})
        means = {name: [one[name] for one in parts if name in one] for name in names}
        log(
            {
                "grpo": job["grpo"],
                "step": step + 1,
                "reward": round(sum(r for r in raw if r == r) / max(1, sum(r == r for r in raw)), 3),
                **{name: [round(sum(own) / len(own), 3), len(own)] for name, own in means.items()},
                "kl": round(divergence / max(1, count), 4),
                "norm": round(norm, 3),
                "tokens": round(sum(map(len, outputs)) / max(1, len(outputs)), 1),
                "seconds": round(time.time() - started, 1),
                "sampling_scoring_training": [round(b - a, 1) for a, b in pairwise([*at, time.time()])],
            }
        )
        if (step + 1) % job["save"] == 0 and step + 1 < job["steps"]:
            save_low(low, rank, alpha, folder / "adapters" / f"{job['grpo']}-{step + 1}")
    save_low(low, rank, alpha, where)
    compile_layers(network, False)
    network.set_attn_implementation("sdpa")
    drop_low(network, low)
    (where / "job.json").write_text(json.dumps({**job, "seconds": round(time.time() - started)}, indent=1))


def run(network: Any, tokenizer: Any, base: Path, job: dict[str, Any], folder: Path, log: Any) -> None:
    """The job as a plan names it: contexts from its file, rewards by its judge."""
    from gpu import lay_on

    from compeer.reward.conversation import JudgeForm
    from compeer.reward.judge import LocalJudge

    contexts = [json.loads(line) for line in Path(job["contexts"]).read_text(encoding="utf-8").splitlines()]
    judging = copy.deepcopy(network)
    lay_on(judging, network, folder / "adapters" / job["judge"], 1.0)
    judge = LocalJudge(base, 48, form=JudgeForm(**job["form"]), network=judging, tokenizer=tokenizer)
    settings = {**DEFAULTS, **job}
    train_by_reward(network, tokenizer, job, folder, log, contexts, judged_rewards(judge, settings, contexts))
