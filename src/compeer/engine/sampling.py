"""How a row's next token is chosen: its grammar rules tokens out, and one number a row picks by inverse CDF.

The number comes from the row's own generator, so what is sampled does not depend on which other rows share the batch,
but for rounding. Grammars are followed token by token by llguidance.
"""

import threading
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch

from compeer.engine.rows import Row

_WORD = 32  # so many tokens' bits come in a number, the first in its lowest
_COMPILED = 64  # so many compiled grammars are kept at most


def allowed(scores: torch.Tensor, matchers: Sequence[Any], end: int) -> torch.Tensor:
    """Scores, (rows, tokens), at -inf where a row's grammar, if any, does not go on; at its end it may only end."""
    if not any(matchers):
        return scores
    width = scores.shape[1]
    words = np.full((len(matchers), -(-width // _WORD)), -1, dtype=np.int32)  # a bit a token: a GPU gets little to copy
    for row, matcher in enumerate(matchers):
        if matcher is None:
            continue
        if matcher.is_stopped() or matcher.is_error():
            words[row] = 0
            words[row].view(np.uint32)[end // _WORD] = 1 << end % _WORD
        else:
            words[row] = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: words.shape[1]]
    packed = torch.from_numpy(words).to(scores.device)
    bits = packed[:, :, None] >> torch.arange(_WORD, device=scores.device, dtype=torch.int32)
    return scores.masked_fill((bits & 1).flatten(1)[:, :width] == 0, -torch.inf)


def sample(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """A token for each row of probabilities, (rows, 1); `uniform` holds a number in [0, 1) a row, (rows, 1)."""
    sums = probabilities.cumsum(-1, dtype=torch.float64)
    # `right`: the first token whose sum is above the number, so that one without probability is never sampled
    return torch.searchsorted(sums, uniform * sums[:, -1:], right=True).clamp_(max=sums.shape[1] - 1)


def next_tokens(logits: torch.Tensor, rows: Sequence[Row], end: int) -> list[int]:
    """A token for each row, by its own grammar, temperature, cuts and numbers."""
    scores = allowed(logits.float(), [row.matcher for row in rows], end)

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, device=scores.device)[:, None]

    probabilities = torch.softmax(scores / column([row.sampling.temperature or 1.0 for row in rows]), -1)
    top_p = [row.sampling.top_p for row in rows]
    if min(top_p) < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        # a token is kept while those before it have not reached the share, so that the first always is
        cut = ordered.cumsum(-1) - ordered >= column(top_p)
        probabilities = probabilities.masked_fill(cut.gather(1, order.argsort(-1)), 0.0)
    min_p = [row.sampling.min_p for row in rows]
    if max(min_p) > 0:
        floor = column(min_p) * probabilities.max(-1, keepdim=True).values
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    uniform = torch.tensor([[row.uniform.random()] for row in rows], dtype=torch.float64, device=scores.device)
    tokens = sample(probabilities, uniform)[:, 0]
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=scores.device)
    found: list[int] = torch.where(greedy, scores.argmax(-1), tokens).tolist()
    return found


class Grammars:
    """Compiles grammars for a vocabulary of so many tokens, each once. May be asked from several threads."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokens = cache(partial(_tokens, tokenizer, vocabulary))
        self._compiled = lru_cache(_COMPILED)(self._compile)
        self._preparing = threading.Lock()

    def matcher(self, grammar: str, prefix: Sequence[int] = ()) -> Any:
        """Follows a grammar of which the tokens of a prefix were read; `is_error()` if they, or it, cannot be."""
        with self._preparing:
            own = self._compiled(grammar).deep_copy()
        if prefix and not own.is_error():
            own.consume_tokens(list(prefix))
        return own

    def _compile(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        return LLMatcher(self._tokens(), LLMatcher.grammar_from_lark(grammar))


def _tokens(tokenizer: Any, vocabulary: int) -> Any:
    """The vocabulary as llguidance reads it; the decoder says which bytes a token stands for."""
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    if isinstance(own.pre_tokenizer, pre_tokenizers.ByteLevel):
        # transformers 5.17 gives tokenizers of GGUF files another one, by which no token begins with a blank
        own.decoder = decoders.ByteLevel()
    return LLTokenizer(own.to_str(), n_vocab=vocabulary, eos_token=tokenizer.eos_token_id)
