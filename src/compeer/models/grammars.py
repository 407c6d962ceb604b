"""Grammars that outputs are held to, followed token by token (llguidance)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

_KEPT = 64
"""So many compiled grammars are kept at most."""


class Grammars:
    """Compiles grammars for a vocabulary of so many tokens, each once. May be asked from several threads."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._tokens: Any = None
        self._compiled: dict[str, Any] = {}
        self._preparing = threading.Lock()

    def matcher(self, grammar: str, prefix: Sequence[int] = ()) -> Any:
        """Follows a grammar of which the tokens of a prefix were read; `is_error()` if they, or it, cannot be."""
        from llguidance import LLMatcher

        with self._preparing:
            if self._tokens is None:
                self._tokens = _tokens(self._tokenizer, self._vocabulary)
            if grammar not in self._compiled:
                if len(self._compiled) >= _KEPT:
                    self._compiled.clear()
                self._compiled[grammar] = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(grammar))
            own = self._compiled[grammar].deep_copy()
        if prefix and not own.is_error():
            own.consume_tokens(list(prefix))
        return own


def _tokens(tokenizer: Any, vocabulary: int) -> Any:
    """The vocabulary as llguidance reads it, told by the decoder which bytes a token stands for.

    Tokenizers that split by bytes yet come with a decoder for pieces as well (transformers 5.17 makes such of GGUF
    files), would be read as pieces: then no token begins with a blank.
    """
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    if isinstance(own.pre_tokenizer, pre_tokenizers.ByteLevel):
        own.decoder = decoders.ByteLevel()
    return LLTokenizer(own.to_str(), n_vocab=vocabulary, eos_token=tokenizer.eos_token_id)
