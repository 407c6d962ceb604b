"""Sampling a token: what a grammar forbids is never sampled, and a number picks by inverse CDF."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from compeer.engine.sampling import allowed, sample


class Matcher:
    """Allows what it is told to, as a string of bits, a token a bit, the first lowest."""

    def __init__(self, tokens: set[int], width: int, stopped: bool = False) -> None:
        self._tokens, self._width, self._stopped = tokens, width, stopped

    def is_stopped(self) -> bool:
        return self._stopped

    def is_error(self) -> bool:
        return False

    def compute_bitmask(self) -> bytes:
        bits = np.zeros(-(-self._width // 32) * 32, dtype=bool)
        bits[list(self._tokens)] = True
        return np.packbits(bits, bitorder="little").tobytes()


@given(st.integers(2, 100).flatmap(lambda width: st.tuples(st.just(width), rows(width), st.integers(0, width - 1))))
def test_only_what_the_grammar_allows_keeps_its_score(case: tuple[int, list[set[int] | str | None], int]) -> None:
    width, asked, end = case
    scores = torch.arange(len(asked) * width, dtype=torch.float32).reshape(len(asked), width)
    matchers = [
        None if one is None else Matcher(set(), width, True) if isinstance(one, str) else Matcher(one, width)
        for one in asked
    ]
    found = allowed(scores, matchers, end)
    for row, one in enumerate(asked):
        kept = set(range(width)) if one is None else {end} if isinstance(one, str) else one
        assert {token for token in range(width) if found[row, token] > -torch.inf} == kept
        assert all(found[row, token] == scores[row, token] for token in kept)


def rows(width: int) -> st.SearchStrategy[list[set[int] | str | None]]:
    """For each row the tokens that are allowed, None for all of them, or that its grammar has come to its end."""
    one = st.none() | st.just("stopped") | st.sets(st.integers(0, width - 1))
    return st.lists(one, min_size=1, max_size=4)


PROBABILITY = st.just(0.0) | st.floats(2**-10, 1, width=32)


@given(st.lists(PROBABILITY, min_size=1, max_size=40).filter(any), st.floats(0, 0.999999))
def test_a_number_picks_by_the_sums(probabilities: list[float], number: float) -> None:
    token = int(sample(torch.tensor([probabilities]), torch.tensor([[number]], dtype=torch.float64)))
    assert torch.tensor(probabilities)[token] > 0, "what has no probability is never sampled"
    sums = torch.tensor([probabilities]).cumsum(-1, dtype=torch.float64)[0]
    wanted = number * float(sums[-1])
    assert float(sums[token]) > wanted
    assert token == 0 or float(sums[token - 1]) <= wanted
