"""MiniLM as the risk classifier uses it: the packaged sentence embedder with small learnt changes to its layers.

A sentence embedder puts texts near each other that are about the same thing; whether somebody wants to die or has read
of it is not what it was trained to tell. So its layers get low-rank changes (LoRA): to a matrix W a product B A of two
thin ones is added, learnt from labelled texts, of which only A and B are kept. The network is written out here, in a
few lines, since training needs to reach into it; at use the changes are added once, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compeer.models.embedder import Matrix
from compeer.models.packaged import packaged_embedder
from compeer.safety.weights import Arrays

if TYPE_CHECKING:
    import torch

LAYERS, HEADS, WIDTH = 6, 12, 384
TOKENS = 160
"""Of a longer text the end is read."""
CHANGED = (
    "attention.self.query",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
"""The matrices of a layer that are changed."""


class Encoder:
    """Gives a row for each text: the mean of its tokens after the last layer."""

    def __init__(self, changes: Arrays | None = None, device: torch.device | str = "cpu") -> None:
        import torch
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        folder = packaged_embedder()
        self.device = device
        self.weights: dict[str, torch.Tensor] = load_file(str(folder / "model.safetensors"), device=str(device))
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS, direction="left")
        for name, thin in (changes or {}).items():
            if name.endswith(".A"):
                name = name.removesuffix(".A")
                wide = (changes or {})[f"{name}.B"]
                change = wide.astype(np.float32) @ thin.astype(np.float32)
                self.weights[f"{name}.weight"] = self.weights[f"{name}.weight"] + torch.from_numpy(change).to(device)

    def embed(self, texts: Sequence[str]) -> Matrix:
        """A row for each text."""
        import torch

        with torch.inference_mode():
            rows = []
            for text in texts:
                state, there = self.opened([text])
                for number in range(LAYERS):
                    state = self.layer(state, there, number)
                rows.append(self.pooled(state, there)[0])
        return np.stack([row.cpu().numpy() for row in rows]).astype(np.float32)

    def opened(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """The texts as the first layer sees them, and where there are tokens."""
        import torch

        tokens = [encoded.ids for encoded in self._tokenizer.encode_batch(list(texts))]
        longest = max(len(ids) for ids in tokens)
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in tokens], device=self.device)
        there = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in tokens], device=self.device)
        state = (
            self.weights["embeddings.word_embeddings.weight"][ids]
            + self.weights["embeddings.position_embeddings.weight"][:longest]
            + self.weights["embeddings.token_type_embeddings.weight"][0]
        )
        return self._normed(state, "embeddings.LayerNorm"), there

    def layer(
        self,
        state: torch.Tensor,
        there: torch.Tensor,
        number: int,
        changes: dict[str, torch.Tensor] | None = None,
        dropped: float = 0.0,
    ) -> torch.Tensor:
        """One layer, with changes that are being learnt beside those added already; in training a share is dropped."""
        import torch

        def some(value: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(value, dropped) if dropped else value

        def linear(name: str, value: torch.Tensor) -> torch.Tensor:
            name = f"encoder.layer.{number}.{name}"
            out = torch.nn.functional.linear(value, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])
            if changes is not None and f"{name}.A" in changes:
                out = out + (value @ changes[f"{name}.A"].T) @ changes[f"{name}.B"].T
            return out

        rows, length, _ = state.shape
        query, key, value = (
            linear(f"attention.self.{name}", state).view(rows, length, HEADS, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=there[:, None, None, :])
        seen = some(linear("attention.output.dense", seen.transpose(1, 2).reshape(rows, length, WIDTH)))
        state = self._normed(state + seen, f"encoder.layer.{number}.attention.output.LayerNorm")
        inner = torch.nn.functional.gelu(linear("intermediate.dense", state))
        return self._normed(state + some(linear("output.dense", inner)), f"encoder.layer.{number}.output.LayerNorm")

    def pooled(self, state: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """The mean over the tokens that are there."""
        weights = there[:, :, None].to(state.dtype)
        return (state * weights).sum(1) / weights.sum(1)

    def _normed(self, state: torch.Tensor, name: str) -> torch.Tensor:
        import torch

        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return torch.nn.functional.layer_norm(state, (WIDTH,), weight, bias, 1e-12)
