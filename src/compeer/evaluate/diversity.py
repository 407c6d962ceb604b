"""How varied a supporter's responses are: distinct-n, how many open alike, how alike they are in meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from compeer.models.embedder import Embedder
from compeer.policy.redundancy import in_group_similarity
from compeer.statistics import distinct, mean, words


def diversity_figures(responses: Sequence[str], embedder: Embedder) -> dict[str, Any]:
    """Figures over the responses that are there; None where there are too few to compare."""
    there = [response for response in responses if response.strip()]
    openings = Counter(" ".join(words(response)[:2]) for response in there)
    similar = in_group_similarity(embedder.embed(there)) if len(there) > 1 else []
    return {
        "responses": len(there),
        "words": mean([len(words(response)) for response in there]),
        "distinct_1": distinct(there, 1) if there else None,
        "distinct_2": distinct(there, 2) if there else None,
        "pairwise_similarity": mean(similar),
        "largest_opening": openings.most_common(1)[0][1] / len(there) if there else None,
    }
