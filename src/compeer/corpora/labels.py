"""How other corpora's labels map to ours: the tables of `labels.toml`, one a corpus, and nothing that guesses."""

from collections.abc import Mapping
from typing import Any

from compeer.dialogue import Emotion, Speaker, Strategy
from compeer.io import table

_LABELS = table("corpora/labels")


def normal(label: str) -> str:
    """A label as the tables write it: lower case, single blanks."""
    return " ".join(label.casefold().split())


def _tables(kind: str) -> dict[str, dict[str, Any]]:
    """For each corpus what its labels are called by us; None: our vocabulary has no counterpart."""
    found: dict[str, dict[str, Any]] = {}
    for corpus, labels in _LABELS[kind].items():
        found[corpus] = dict(found[labels["like"]]) if "like" in labels else {}
        for ours, theirs in labels.items():
            if ours != "like":
                found[corpus].update(dict.fromkeys(theirs, None if ours == "none" else ours))
    return found


PROBLEMS: tuple[str, ...] = tuple(_LABELS["problems"])
SPEAKERS: Mapping[str, Mapping[str, Speaker]] = _tables("speakers")
STRATEGIES: Mapping[str, Mapping[str, Strategy | None]] = _tables("strategies")
EMOTIONS: Mapping[str, Mapping[str, Emotion | None]] = _tables("emotions")
PROBLEM_TYPES: Mapping[str, Mapping[str, str]] = _tables("problem_types")
