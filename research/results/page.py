"""docs/results.md, a page for each claim and their plots, made of the figures in research/results/.

    python research/results/page.py

What is measured stands in results/*/*.json; claims.py chooses what is shown, verdicts.py says when a claim holds, and
pages/ has the words. A claim whose file is missing has no page, and the summary says "not measured yet".
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import claims  # noqa: E402
import plots  # noqa: E402
from verdicts import Claim  # noqa: E402

from compeer.report.wording import percent  # noqa: E402


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


TITLES = {
    "reasoning": "Structured reasoning before the reply helps",
    "judges": "One unified judge beats a judge of steps and a judge of responses",
    "personality": "Rewriting by personality helps the judge, plain rewriting does not",
    "by_reward": "Training by the judge's rewards improves on fine-tuning",
    "alike": "It makes replies alike, and reweighting prevents that without losing quality",
    "best_of": "Choosing the best of n by the judge improves on one output",
    "transfer": "Judge and supporter hold on what they were not trained on",
}


def written(results: Path = HERE) -> dict[str, str]:
    """The pages and their plots by their paths below docs/: a summary, and a page for each claim that was measured."""
    found = claims_of(results)
    environment = Environment(
        loader=FileSystemLoader(HERE / "pages"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    names = {name: f"{number}-{name.replace('_', '-')}.md" for number, name in enumerate(TITLES, 1)}
    pages = {
        f"results/{names[name]}": environment.get_template(f"{names[name]}.jinja").render(claims=found, claim=claim)
        for name, claim in found.items()
        if claim.measured
    }
    rows = [summary_row(number, name, names[name], found[name]) for number, name in enumerate(TITLES, 1)]
    pages["results.md"] = environment.get_template("results.md.jinja").render(claims=found, rows=rows)
    charts = {f"plots/{name}.svg": svg for claim in found.values() for name, svg in claim.plots.items()}
    bars = {f"Claim {row['number']}": [row["share"]] for row in rows if row["share"] is not None}
    if bars:
        charts["plots/claims.svg"] = plots.bars("claims", "Conditions met, by claim", bars, percent)
    return {name: wrapped(text) for name, text in pages.items()} | charts


def summary_row(number: int, name: str, page: str, claim: Claim) -> dict[str, Any]:
    """What the summary says of a claim: its first condition that counts, and how many are met."""
    counted = [one for one in claim.conditions if one.met is not None]
    met = sum(bool(one.met) for one in counted)
    return {
        "number": number,
        "title": TITLES[name],
        "page": page,
        "claim": claim,
        "effect": f"{counted[0].name}: {counted[0].estimate}" if counted else "–",
        "met": f"{met} of {len(counted)}" if counted else "–",
        "share": met / len(counted) if counted else None,
    }


def wrapped(text: str, width: int = 120) -> str:
    """Prose in lines of at most `width` characters; tables, headings, images, comments and code stay as they are."""
    blocks = re.split(r"\n{2,}", text.strip())
    return "\n\n".join(_wrapped_block(block, width) for block in blocks) + "\n"


def _wrapped_block(block: str, width: int) -> str:
    lines: list[str] = []
    for line in block.split("\n"):
        starts = re.match(r"[|#!<`]|[-*] |\d+\. ", line)
        joined = lines and not starts and not re.match(r"[|#!<`]", lines[-1])
        lines[-1:] = [f"{lines[-1]} {line.strip()}"] if joined else [*lines[-1:], line]
    return "\n".join(
        line
        if re.match(r"[|#!<`]", line)
        else textwrap.fill(
            line,
            width,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )


def main() -> None:
    docs = HERE.parents[1] / "docs"
    found = written()
    for folder in ("plots", "results"):
        (docs / folder).mkdir(exist_ok=True)
        for old in (docs / folder).iterdir():
            if f"{folder}/{old.name}" not in found:
                old.unlink()
    for name, text in found.items():
        (docs / name).write_text(text, encoding="utf-8")
    print(f"docs/results.md and {len(found) - 1} files beside it")


if __name__ == "__main__":
    main()
