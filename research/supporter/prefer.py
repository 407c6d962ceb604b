"""Preference training on labelled groups: a job of `gpu.py` that needs no judge.

    {"prefer": "taught", "start": "more-1", "groups": "groups.jsonl", "rate": 3e-5, "epochs": 2, "seed": 1}

A group is {"prompt": messages, "outputs": [texts], "scores": [numbers]}: outputs of the policy that is trained, with
what annotators thought of them. Every pair of a group whose scores differ by `apart` or more is a comparison; the loss
is DPO's, -log sigmoid(beta * (gain of the better - gain of the worse)), where a gain is the log probability less that
of the start. A share of the best output's own likelihood (`likelihood`) keeps it from falling with the worse one's.
"""

from __future__ import annotations

import copy
import json
import math
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from grpo import log_probabilities, merge_low, start_low

DEFAULTS: dict[str, Any] = {
    "rate": 3e-5, "epochs": 2, "batch": 16, "beta": 0.1, "apart": 1.0, "likelihood": 0.05, "seed": 1,
}  # fmt: skip


def comparisons(scores: list[float], apart: float) -> list[tuple[int, int]]:
    """Pairs (better, worse) of a group."""
    pairs = [(a, b) if scores[a] >= scores[b] else (b, a) for a, b in combinations(range(len(scores)), 2)]
    return [(a, b) for a, b in pairs if scores[a] - scores[b] >= apart]


def train_by_preference(network: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """Trains `job["prefer"]` from `job["start"]`; the network comes back as it was."""
    from gpu import drop_low, encode, save_low

    job = {**DEFAULTS, **job}
    where = folder / "adapters" / job["prefer"]
    if (where / "job.json").is_file():
        return
    torch.manual_seed(job["seed"])
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    low, rank, alpha = start_low(network, folder / "adapters" / job["start"])
    reference = copy.deepcopy(network)
    drop_low(reference, {name: reference.get_submodule(name) for name in low})
    merge_low(reference, low)
    for one in (network, reference):  # fused attention with a mask gave gradients that were not numbers (torch 2.11)
        one.set_attn_implementation("eager")
    groups = []
    for line in Path(job["groups"]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if pairs := comparisons(row["scores"], job["apart"]):
            texts = [tokenizer(t + "<|im_end|>", add_special_tokens=False)["input_ids"] for t in row["outputs"]]
            best = max(range(len(texts)), key=lambda n: row["scores"][n])
            groups.append((encode(tokenizer, row["prompt"])[0], texts, pairs, best))
    trained = [p for own in low.values() for p in (own.a, own.b)]
    optimiser = torch.optim.AdamW(trained, lr=job["rate"], weight_decay=0.0, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(job["seed"])
    order = [n for _ in range(job["epochs"]) for n in torch.randperm(len(groups), generator=generator).tolist()]
    total = math.ceil(len(order) / job["batch"])
    known: dict[int, torch.Tensor] = {}
    started = time.time()
    for step in range(total):
        chosen = order[step * job["batch"] : (step + 1) * job["batch"]]
        count = sum(len(groups[n][2]) for n in chosen)
        right, loss_sum = 0, 0.0
        for n in chosen:
            prompt, texts, pairs, best = groups[n]
            sizes = [len(one) for one in texts]
            if n not in known:
                with torch.no_grad():
                    known[n] = log_probabilities(reference, prompt, texts, 1.0)
            now = log_probabilities(network, prompt, texts, 1.0)
            gains = torch.stack([one.sum() for one in (now - known[n]).split(sizes)])
            margins = torch.stack([gains[a] - gains[b] for a, b in pairs])
            loss = -torch.nn.functional.logsigmoid(job["beta"] * margins).sum() / count
            loss = loss - job["likelihood"] * now.split(sizes)[best].mean() / len(chosen)
            loss.backward()
            right += int((margins > 0).sum())
            loss_sum += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(trained, 1.0))
        for group in optimiser.param_groups:
            group["lr"] = job["rate"] * min(1.0, (step + 1) / 5, 1.05 - step / total)
        if norm == norm:
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % 5 == 0 or step + 1 == total:
            own = {"prefer": job["prefer"], "step": step + 1, "of": total, "loss": round(loss_sum, 4)}
            own |= {
                "right": round(right / count, 3),
                "norm": round(norm, 3),
                "seconds": round(time.time() - started, 1),
            }
            log(own)
    save_low(low, rank, alpha, where)
    network.set_attn_implementation("sdpa")
    drop_low(network, low)
    own = {**job, "groups_used": len(groups), "seconds": round(time.time() - started)}
    (where / "job.json").write_text(json.dumps(own, indent=1), encoding="utf-8")
