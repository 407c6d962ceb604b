"""What the filter drops of rewrites made with care, and which planted faults it finds: rewrites.json beside this file.

    python research/results/traits/rewrites.py DATA

DATA is a folder with `ser_llm/ser_llm.jsonl`, `ser_llm/rewrites_plain.jsonl` and `ser_llm/rewrites_personality.jsonl`,
written by language models.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from research.personality.drift import LEAST_ALIKE, LONG_ENOUGH, Line, likeness, why_not

from compeer.io import read_json_lines
from compeer.models.embedder import Embedder, Embeds
from compeer.reasoning import one_line
from compeer.statistics import generator, wilson, words

KINDS = ("plain", "personality")
PLANTED = 300
"""Lines that a fault is planted in at most."""
UNCHANGED = "hardly changed"
"""The filter's reason for whole histories; of a single line it says nothing about the meaning."""


@dataclass(frozen=True)
class Pair:
    """One rewrite: lines of the history and responses, before and after."""

    context: str
    history: tuple[list[Line], list[Line]]
    responses: tuple[list[Line], list[Line]]

    @property
    def lines(self) -> list[tuple[Line, Line]]:
        """All lines before and after, those of the history first."""
        before, after = (one + other for one, other in zip(self.history, self.responses, strict=True))
        return list(zip(before, after, strict=True))


def pairs(data: Path, kind: str) -> Iterator[Pair]:
    """The rewrites of a kind, each beside its original."""
    folder = data / "ser_llm"
    originals = {value["id"]: value for _, value in read_json_lines(folder / "ser_llm.jsonl")}
    for _, value in read_json_lines(folder / f"rewrites_{kind}.jsonl"):
        old, new = _lines(originals[value["rewritten_from"]]), _lines(value)
        yield Pair(value["rewritten_from"], (old[0], new[0]), (old[1], new[1]))


def _lines(value: dict[str, Any]) -> tuple[list[Line], list[Line]]:
    history = [Line(said["speaker"], one_line(said["text"])) for said in value["history"]]
    written = value["candidates"]
    responses = [Line("supporter", one_line(one["response"]), one["strategy"] == "Question") for one in written]
    return history, [*responses, Line("supporter", one_line(value["reference"]))]


def measure_rewrites(data: Path) -> dict[str, Any]:
    """What the filter drops of rewrites made with care, and what it finds of faults planted in those it keeps."""
    embedder = Embedder(device="cpu")
    found: dict[str, Any] = {}
    good: list[tuple[Line, Line]] = []
    exchanged: list[tuple[Line, Line]] = []
    for kind in KINDS:
        made = list(pairs(data, kind))
        similar = iter(_alike([both for pair in made for both in pair.lines], embedder))
        histories: Counter[str] = Counter()
        responses: Counter[str] = Counter()
        lines_found: Counter[str] = Counter()
        for pair in made:
            alike = [next(similar) for _ in pair.lines]
            old, new = pair.history
            dropped = why_not(old, new, alike[: len(old)])
            reasons = [why_not([one], [other], [value]) for (one, other), value in zip(pair.lines, alike, strict=True)]
            histories.update([dropped] if dropped else [])
            responses.update(reason for reason in reasons[len(old) :] if reason)
            lines_found.update(reason for reason in reasons if reason and reason != UNCHANGED)
            if not dropped:
                good += [both for both, reason in zip(pair.lines, reasons, strict=True) if not reason]
                exchanged += _exchanged(pair, kind)
        found[kind] = {
            "rewrites": len(made),
            "lines": sum(len(pair.lines) for pair in made),
            "responses": sum(len(pair.responses[0]) for pair in made),
            "histories_dropped": _counted(histories),
            "responses_dropped": _counted(responses),
            "lines_found": _counted(lines_found),
        }
    below = sum(value < LEAST_ALIKE for value in _alike(_some(exchanged, "exchanged"), embedder))
    return {
        **found,
        "together": {
            "rewrites": sum(found[kind]["rewrites"] for kind in KINDS),
            "lines": sum(found[kind]["lines"] for kind in KINDS),
            **{
                figure: sum(found[kind][figure]["value"] for kind in KINDS)
                for figure in ("histories_dropped", "responses_dropped", "lines_found")
            },
        },
        "planted": {name: _planted(good, name, change, embedder) for name, change in FAULTS.items()},
        "exchanged_below_the_bound": _share(below, len(_some(exchanged, "exchanged"))),
    }


def _alike(lines: Sequence[tuple[Line, Line]], embedder: Embeds) -> list[float]:
    """The similarity of each pair; 1 for those that the filter takes for too short to compare."""
    asked = [both for both in lines if len(words(both[0].text)) >= LONG_ENOUGH]
    found = iter(likeness([before for before, _ in asked], [after for _, after in asked], embedder))
    return [next(found) if len(words(before.text)) >= LONG_ENOUGH else 1.0 for before, _ in lines]


def _counted(reasons: Counter[str]) -> dict[str, Any]:
    return {"value": reasons.total(), "reasons": dict(reasons.most_common())}


def _share(hits: int, of: int) -> dict[str, Any]:
    return {"lines": of, "found": hits, "value": hits / of, "interval": wilson(hits, of)}


def _some(lines: Sequence[tuple[Line, Line]], name: str) -> list[tuple[Line, Line]]:
    """At most `PLANTED` of the lines, drawn by lot."""
    chosen = generator(0, "planted", name).permutation(len(lines))[:PLANTED]
    return [lines[index] for index in sorted(chosen)]


def _exchanged(pair: Pair, kind: str) -> Iterator[tuple[Line, Line]]:
    """Each line of ten words or more with another reworded line of the same history in the place of its own."""
    old, new = pair.history
    rng = generator(0, "exchanged", kind, pair.context)
    for place, before in enumerate(old):
        others = [line for at, line in enumerate(new) if at != place and len(words(line.text)) >= LONG_ENOUGH]
        if others and len(words(before.text)) >= 10:
            yield before, others[int(rng.integers(len(others)))]


def _planted(
    good: Sequence[tuple[Line, Line]], name: str, change: Callable[[str], str], embedder: Embeds
) -> dict[str, Any]:
    """The share of reworded lines with the fault that the filter drops; in how many it could be planted, too."""
    changed = [(before, replace(after, text=change(after.text))) for before, after in good]
    possible = [both for both, (_, was) in zip(changed, good, strict=True) if both[1].text != was.text]
    drawn = _some(possible, name)
    reasons = [
        why_not([before], [after], [value])
        for (before, after), value in zip(drawn, _alike(drawn, embedder), strict=True)
    ]
    hits = sum(reason is not None and reason != UNCHANGED for reason in reasons)
    return {"possible": len(possible), **_share(hits, len(drawn))}


def _without_negation(text: str) -> str:
    """The first negation taken out."""
    plain = re.sub(r"\bwon['’]t\b", "will", text, count=1)
    plain = plain if plain != text else re.sub(r"\bcan['’]t\b|\bcannot\b", "can", text, count=1)
    return plain if plain != text else re.sub(r"n['’]t\b| not\b| never\b", "", text, count=1)


def _with_negation(text: str) -> str:
    """The first auxiliary negated, where it is not already."""
    return re.sub(r"\b(is|are|was|were|am|can|will|would|should|could|have|has)\b(?! not|n)", r"\1 not", text, count=1)


_OPPOSITES = {"good": "bad", "great": "terrible", "happy": "sad", "glad": "sad", "better": "worse"}
FAULTS: dict[str, Callable[[str], str]] = {
    "number changed": lambda text: re.sub(r"\d+", lambda found: str(int(found[0]) + 3), text, count=1),
    "negation removed": _without_negation,
    "negation added": _with_negation,
    "feeling turned": lambda text: re.sub(
        rf"\b({'|'.join(_OPPOSITES)})\b", lambda found: _OPPOSITES[found[0]], text, count=1
    ),
}
"""How a reworded line is spoilt; a line that stays the same holds no place for the fault."""


def main() -> None:
    import torch

    torch.set_num_threads(1)  # the last bits depend on the number of threads
    found = measure_rewrites(Path(sys.argv[1]))
    Path(__file__).with_name("rewrites.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
