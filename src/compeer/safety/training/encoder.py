"""Trains the low-rank changes to MiniLM and the heads on top: about a minute on a GPU, an hour on two cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compeer.safety.classifier import as_text
from compeer.safety.encoder import CHANGED, LAYERS, WIDTH, Encoder
from compeer.safety.phrases import COLUMNS
from compeer.safety.risk import KINDS
from compeer.safety.training.texts import Text
from compeer.safety.weights import Arrays
from compeer.statistics import generator

if TYPE_CHECKING:
    import torch

RANK = 32
ROUNDS, BATCH, RATE = 3, 32, 1e-3
DROPPED = 0.1
"""The share of a layer's results, and of the row that the heads see, that is left out at random in training."""


def fit(texts: Sequence[Text], seed: int, tell: Callable[[str], None] = lambda _: None) -> Arrays:
    """The changes and the heads, learnt from English texts; what is not exactly kept in the file is rounded."""
    import torch

    from compeer.engine.network import best_device

    encoder = Encoder(device=best_device())
    rng = generator(seed, "low-rank changes")
    torch.manual_seed(seed)
    changes = _fresh(encoder, rng)
    noise = rng.normal(0, 0.02, (WIDTH, len(COLUMNS))).astype(np.float32)
    head = torch.from_numpy(noise).to(encoder.device).requires_grad_()
    bias = torch.zeros(len(COLUMNS), device=encoder.device, requires_grad=True)
    groups = [
        {"params": list(changes.values()), "lr": RATE, "weight_decay": 0.01},
        {"params": [head, bias], "lr": RATE * 2, "weight_decay": 0.01},
    ]
    optimiser = torch.optim.AdamW(groups)
    steps = ROUNDS * -(-len(texts) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=[RATE, RATE * 2], total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    for turn in range(ROUNDS):
        losses = []
        for batch in _batches(texts, rng):
            state, there = encoder.opened([as_text(text.messages) for text in batch])
            for number in range(LAYERS):
                state = encoder.layer(state, there, number, changes, DROPPED)
            pooled = torch.nn.functional.dropout(encoder.pooled(state, there), DROPPED)
            loss = _loss(pooled @ head + bias, batch)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
        tell(f"round {turn + 1} of {ROUNDS}: loss {float(torch.stack(losses).mean()):.3f}")
    arrays: Arrays = {name: change.detach().cpu().numpy().astype(np.float16) for name, change in changes.items()}
    arrays["heads"] = np.vstack([head.detach().cpu().numpy(), bias.detach().cpu().numpy()[None]]).astype(np.float32)
    return arrays


def _fresh(encoder: Encoder, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Changes that change nothing yet: A is small noise, B is zero."""
    import torch

    changes = {}
    for number in range(LAYERS):
        for matrix in CHANGED:
            name = f"encoder.layer.{number}.{matrix}"
            out, inner = encoder.weights[f"{name}.weight"].shape
            noise = rng.normal(0, inner**-0.5, (RANK, inner)).astype(np.float32)
            changes[f"{name}.A"] = torch.from_numpy(noise).to(encoder.device).requires_grad_()
            changes[f"{name}.B"] = torch.zeros((out, RANK), device=encoder.device).requires_grad_()
    return changes


def _batches(texts: Sequence[Text], rng: np.random.Generator) -> Iterator[list[Text]]:
    """All texts once, in random batches of texts of about the same length, so that little is filled up."""
    lengths = np.array([len(as_text(text.messages)) for text in texts]) * rng.uniform(0.8, 1.2, len(texts))
    order = np.argsort(lengths, kind="stable")
    starts = np.arange(0, len(texts), BATCH)
    for start in rng.permutation(starts):
        yield [texts[place] for place in order[start : start + BATCH]]


def _loss(scores: torch.Tensor, texts: Sequence[Text]) -> torch.Tensor:
    """How wrong the scores are: of danger and crisis, and of the kind where there is danger."""
    import torch

    levels = torch.tensor([[text.level != "none", text.level == "crisis"] for text in texts], device=scores.device)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, :2], levels.float())
    danger = levels[:, 0]
    if danger.any():
        kinds = torch.tensor([KINDS.index(text.kind) if text.kind else 0 for text in texts], device=scores.device)
        about = torch.nn.functional.cross_entropy(scores[danger, 2:], kinds[danger])
        loss = loss + 0.2 * about * danger.float().mean()
    return loss
