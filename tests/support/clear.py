"""Whether outputs are decided clearly, so that rounding cannot change a token of them.

Batches, padding and processors add up floating-point numbers in different orders, and a draw near a border then turns
over. Tests that compare outputs token by token make sure, by the same network in double precision, that every token
stands well away from any border: such outputs are the same in any batch and on any machine.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch

from compeer.models import Request, Sampling
from compeer.statistics import generator

GAP = 1e-3
"""Between the two highest logits, for the likeliest token to be clear; rounding moves them by far less."""
DISTANCE = 1e-5
"""From the number that is drawn to the next border between two tokens, as a share of all probability."""


def decided(
    network: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 0.0, seed: int = 0, **seen: Any
) -> bool:
    """Whether the network clearly says these tokens after the prompt; `seen` are pictures, given to it too."""
    if "mm_token_type_ids" in seen:
        kinds = seen["mm_token_type_ids"]
        seen["mm_token_type_ids"] = torch.cat([kinds, torch.zeros((1, len(ids)), dtype=kinds.dtype)], 1)
    with torch.no_grad():
        logits = _exact(network)(input_ids=torch.tensor([[*prompt, *ids]]), **seen).logits[0, len(prompt) - 1 : -1]
    numbers = generator(seed, "tokens").random(len(ids))
    return all(
        _clear(row, temperature, number) == token for row, number, token in zip(logits, numbers, ids, strict=True)
    )


def clear_requests(model: Any, requests: Iterable[Request], sampling: Sampling) -> Iterator[Request]:
    """Those of the requests that a `LocalModel` answers clearly."""
    network = _exact(model.network)
    for request in requests:
        text = model.rows.text(request.messages, request.prefix)
        ids = torch.tensor([model.tokenizer(text, add_special_tokens=False)["input_ids"]])
        cache = None
        for number in generator(request.seed, "tokens").random(sampling.max_tokens):
            with torch.no_grad():
                output = network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = _clear(output.logits[0, -1], sampling.temperature, number)
            if token is None:
                break
            ids, cache = torch.tensor([[token]]), output.past_key_values
        else:
            yield request


def clearly_drawn(model: Any, request: Request, sampling: Sampling, wanted: int) -> list[Request]:
    """The request with the first seeds with which it is answered clearly."""
    seeded = (Request(request.messages, seed=seed, prefix=request.prefix) for seed in count())
    return list(islice(clear_requests(model, seeded, sampling), wanted))


def _clear(logits: torch.Tensor, temperature: float, number: float) -> int | None:
    """The token that is said, or None if rounding could make it another."""
    if temperature == 0:
        best = logits.topk(2)
        return int(best.indices[0]) if best.values[0] - best.values[1] > GAP else None
    sums = torch.softmax(logits / temperature, -1).cumsum(-1)
    token = int(torch.searchsorted(sums, number, right=True).clamp(max=len(sums) - 1))
    below = number - float(sums[token - 1]) if token else 1.0
    return token if min(below, float(sums[token]) - number) > DISTANCE else None


_made: list[tuple[Any, Any]] = []


def _exact(network: Any) -> Any:
    """The network in double precision; the last one is kept."""
    if not _made or _made[0][0] is not network:
        config = copy.deepcopy(network.config)
        config._attn_implementation = "eager"
        with torch.random.fork_rng(devices=[]):
            exact = type(network)(config).double().eval()
        exact.load_state_dict(network.state_dict())
        _made[:] = [(network, exact)]
    return _made[0][1]
