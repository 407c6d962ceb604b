"""What a server counts, in Prometheus' text format: requests, turns, tokens, seconds. Never a word of a dialogue.

All labels come from short lists of our own, so that nobody can fill the server's memory with new ones.
"""

from __future__ import annotations

from typing import Literal

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)

_METERS: dict[str, tuple[Literal["counter", "gauge", "histogram"], str]] = {
    "compeer_requests_total": ("counter", "HTTP requests answered, by route and status."),
    "compeer_turns_total": ("counter", "Turns made, by level of risk."),
    "compeer_replaced_total": ("counter", "Turns in which the seeker did not read the supporter's own words, by why."),
    "compeer_degraded_total": ("counter", "Turns in which a part of the guard did not work: to be mended soon."),
    "compeer_problems_total": ("counter", "Turns that could not be read in full."),
    "compeer_tokens_total": ("counter", "Tokens read (prompt) and written (completion)."),
    "compeer_judgments_total": ("counter", "Turns judged, by whether the judge gave a score."),
    "compeer_turns_left_total": ("counter", "Turns that the client did not wait for."),
    "compeer_turns_open": ("gauge", "Turns being made or waiting."),
    "compeer_first_piece_seconds": ("histogram", "Seconds from a request to the first piece of its turn."),
    "compeer_turn_seconds": ("histogram", "Seconds from a request to the end of its turn."),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The counts of one server."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in _METERS}
        self._buckets: dict[str, list[int]] = {
            name: [0] * len(_SECONDS) for name, (kind, _) in _METERS.items() if kind == "histogram"
        }
        self._sums = {name: [0.0, 0.0] for name in self._buckets}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Adds to a counter or a gauge."""
        own = self._values[name]
        key = tuple(sorted(labels.items()))
        own[key] = own.get(key, 0) + amount

    def observe(self, name: str, seconds: float) -> None:
        """Notes a duration."""
        for number, bound in enumerate(_SECONDS):
            self._buckets[name][number] += seconds <= bound
        self._sums[name][0] += seconds
        self._sums[name][1] += 1

    def text(self) -> str:
        """All counts in Prometheus' text format."""
        lines = []
        for name, (kind, meaning) in _METERS.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                total, count = self._sums[name]
                for bound, under in zip(_SECONDS, self._buckets[name], strict=True):
                    lines.append(f'{name}_bucket{{le="{bound}"}} {under}')
                lines += [f'{name}_bucket{{le="+Inf"}} {count:g}', f"{name}_sum {total:.6f}", f"{name}_count {count:g}"]
                continue
            for labels, value in sorted((self._values[name] or {(): 0}).items()):
                text = ",".join(f'{label}="{one}"' for label, one in labels)
                lines.append(f"{name}{{{text}}} {value:.15g}" if text else f"{name} {value:.15g}")
        return "\n".join(lines) + "\n"
