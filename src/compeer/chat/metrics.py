"""What a server counts, in Prometheus' text format: requests, turns, tokens, seconds. Never a word of a dialogue.

All labels come from short lists of our own, so that nobody can fill the server's memory with new ones.
"""

from collections import Counter

from compeer.io import table

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_METERS: dict[str, list[str]] = table("chat/metrics")


class Metrics:
    def __init__(self) -> None:
        self._values: dict[str, Counter[tuple[tuple[str, str], ...]]] = {name: Counter() for name in _METERS}
        timed = [name for name, (kind, _) in _METERS.items() if kind == "histogram"]
        self._buckets = {name: [0] * len(_SECONDS) for name in timed}
        self._sums = {name: [0.0, 0] for name in timed}

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        self._values[name][tuple(sorted(labels.items()))] += amount

    def observe(self, name: str, seconds: float) -> None:
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
                under = [*zip(_SECONDS, self._buckets[name], strict=True), ("+Inf", f"{count:g}")]
                lines += [f'{name}_bucket{{le="{bound}"}} {one}' for bound, one in under]
                lines += [f"{name}_sum {total:.6f}", f"{name}_count {count:g}"]
                continue
            for labels, value in sorted((self._values[name] or {(): 0}).items()):
                text = ",".join(f'{label}="{one}"' for label, one in labels)
                lines.append(f"{name}{{{text}}} {value:.15g}" if text else f"{name} {value:.15g}")
        return "\n".join(lines) + "\n"
