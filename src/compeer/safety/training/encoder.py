"""Trains the low-rank changes to MiniLM and the heads on top; the lower layers stay, and are gone through once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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

STILL = 4
"""Lower layers that are left as they are."""
RANK = 16
ROUNDS, BATCH, RATE = 3, 32, 1.5e-3


def fit(texts: Sequence[Text], seed: int, tell: Callable[[str], None] = lambda _: None) -> Arrays:
    """The changes and the heads, learnt from English texts; what is not exactly kept in the file is rounded."""
    import torch

    encoder = Encoder()
    rng = generator(seed, "low-rank changes")
    # Texts of like length go together, so that little is filled up.
    order = np.argsort([len(as_text(text.messages)) for text in texts], kind="stable")
    batches = [
        _Batch(encoder, [texts[place] for place in order[start : start + BATCH]])
        for start in range(0, len(texts), BATCH)
    ]
    changes = _fresh(encoder, rng)
    head = torch.from_numpy(rng.normal(0, 0.02, (WIDTH, len(COLUMNS))).astype(np.float32)).requires_grad_()
    bias = torch.zeros(len(COLUMNS), requires_grad=True)
    groups = [
        {"params": list(changes.values()), "lr": RATE, "weight_decay": 0.01},
        {"params": [head, bias], "lr": RATE * 2, "weight_decay": 0.01},
    ]
    optimiser = torch.optim.AdamW(groups)
    steps = ROUNDS * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=[RATE, RATE * 2], total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    for turn in range(ROUNDS):
        losses = []
        for place in rng.permutation(len(batches)):
            batch = batches[place]
            pooled = _above(encoder, batch.state.float(), batch.there, changes)
            keep = torch.from_numpy((rng.random(pooled.shape) > 0.1).astype(np.float32)) / 0.9
            loss = batch.loss((pooled * keep) @ head + bias)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        tell(f"round {turn + 1} of {ROUNDS}: loss {np.mean(losses):.3f}")
    arrays: Arrays = {name: change.detach().numpy().astype(np.float16) for name, change in changes.items()}
    arrays["heads"] = np.vstack([head.detach().numpy(), bias.detach().numpy()[None]]).astype(np.float32)
    return arrays


def _fresh(encoder: Encoder, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Changes that change nothing yet: A is small noise, B is zero."""
    import torch

    changes = {}
    for number in range(STILL, LAYERS):
        for matrix in CHANGED:
            name = f"encoder.layer.{number}.{matrix}"
            out, inner = encoder.weights[f"{name}.weight"].shape
            noise = rng.normal(0, inner**-0.5, (RANK, inner)).astype(np.float32)
            changes[f"{name}.A"] = torch.from_numpy(noise).requires_grad_()
            changes[f"{name}.B"] = torch.zeros((out, RANK)).requires_grad_()
    return changes


def _above(encoder: Encoder, state: Any, there: Any, changes: dict[str, torch.Tensor]) -> torch.Tensor:
    for number in range(STILL, LAYERS):
        state = encoder.layer(state, there, number, changes)
    return encoder.pooled(state, there)


class _Batch:
    """Some texts after the lower layers, and what is true of them."""

    def __init__(self, encoder: Encoder, texts: Sequence[Text]) -> None:
        import torch

        with torch.no_grad():
            state, self.there = encoder.below([as_text(text.messages) for text in texts], STILL)
        self.state = state.half()  # kept for all rounds, so it is kept small
        self._danger = torch.tensor([text.level != "none" for text in texts])
        self._levels = torch.stack([self._danger, torch.tensor([text.level == "crisis" for text in texts])], 1).float()
        self._kinds = torch.tensor([KINDS.index(text.kind) if text.kind else 0 for text in texts])

    def loss(self, scores: torch.Tensor) -> torch.Tensor:
        """How wrong the scores are: of danger and crisis, and of the kind where there is danger."""
        import torch

        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, :2], self._levels)
        if self._danger.any():
            kinds = torch.nn.functional.cross_entropy(scores[self._danger, 2:], self._kinds[self._danger])
            loss = loss + 0.2 * kinds * self._danger.float().mean()
        return loss
