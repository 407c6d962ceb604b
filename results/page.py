"""docs/results.md and its plots, made of the figures in results/: one section a claim of the paper.

    python results/page.py

What is measured stands in results/*/*.json; claims.py chooses what is shown, verdicts.py says when a claim holds, and
page.md.jinja has the words. A section whose file is missing says so and nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import claims  # noqa: E402
from verdicts import Claim  # noqa: E402


def read(results: Path, name: str) -> Any:
    """A file of figures, or None where there is none yet."""
    path = results / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def claims_of(results: Path) -> dict[str, Claim]:
    """The seven claims in their order, each with what was measured of it so far."""
    supporter = read(results, "supporter/results.json")
    reading = read(results, "supporter/read.json") or {}
    files = {
        "reasoning": (claims.reasoning, read(results, "reasoning/results.json")),
        "judges": (
            claims.judges,
            read(results, "judges/results.json"),
            read(results, "judges/cost_cpu.json"),
            read(results, "judges/cost_gpu.json"),
            read(results, "judges/looks.json") or {},
        ),
        "personality": (claims.personality, read(results, "personality/results.json")),
        "by_reward": (claims.by_reward, supporter, reading),
        "alike": (claims.alike, supporter, reading, read(results, "supporter/earlier.json") or {}),
        "best_of": (claims.best_of, read(results, "best_of/results.json"), reading),
        "transfer": (
            claims.transfer,
            read(results, "transfer/results.json"),
            read(results, "weights/figures.json"),
            supporter,
        ),
    }
    return {name: Claim(None) if None in found else make(*found) for name, (make, *found) in files.items()}


def written(results: Path = HERE) -> dict[str, str]:
    """The page and its plots by their paths below docs/."""
    found = claims_of(results)
    environment = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    page = environment.get_template("page.md.jinja").render(claims=found).rstrip() + "\n"
    drawn = {f"plots/{name}.svg": svg for claim in found.values() for name, svg in claim.plots.items()}
    return {"results.md": page, **drawn}


def main() -> None:
    docs = HERE.parent / "docs"
    found = written()
    (docs / "plots").mkdir(exist_ok=True)
    for old in (docs / "plots").glob("*.svg"):
        if f"plots/{old.name}" not in found:
            old.unlink()
    for name, text in found.items():
        (docs / name).write_text(text, encoding="utf-8")
    print(f"docs/results.md and {len(found) - 1} plots")


if __name__ == "__main__":
    main()
