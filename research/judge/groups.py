"""Several outputs to one history, judged together: what a judge must tell apart when a policy is trained by it.

    python research/judge/groups.py make CONTEXTS FOLDER OUTPUTS.jsonl…     # FOLDER/part-en-1.txt …
    python research/judge/groups.py labels CONTEXTS FOLDER OUT.jsonl        # FOLDER/answers/part-en-1-A.txt …

An annotator sees the steps of four outputs (A to D), then replies in another random order: theirs and the human's,
where there is one.
The answer is a line for a history: three verdicts for each set of steps; ratings of the replies; which are acceptable;
which could harm; the order of preference (= for equally good):

    12 | TFT TTT FFT TTT | 3 2 4 1 3 | Y N Y N Y | - | 3>1=5>2>4
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from compeer.reasoning import STEPS, parse_turn, render_step, render_turn

sys.path.insert(0, str(Path(__file__).parents[1] / "supporter"))
from data import copied, tidied

SIZE, OUTPUTS, PARTS = 40, 4, 10
LINE = re.compile(r"\s*(\d+)\s*\|([TF ]+)\|([\d ]+)\|([YN ]+)\|([\d ,-]+)\|\s*([\d>= ]+)", re.IGNORECASE)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make(contexts: Path, folder: Path, *outputs: Path) -> None:
    """Writes what annotators read, and `key.json`: whose steps and replies stand where."""
    known = {row["id"]: row for row in _rows(contexts)}
    turns: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in [row for path in outputs for row in _rows(path)]:
        turn = parse_turn(row["text"]).turn if row.get("ended") else None
        if turn:
            turns[row["id"]][f"{row['id']}:{row['supporter']}:{row['number']}"] = turn
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    key: dict[str, Any] = {}
    for language in ("en", "zh"):
        long = [
            c for c in known.values()
            if c["language"] == language and len(turns[c["id"]]) == OUTPUTS
            and sum(len(u["text"]) for u in c["history"] if u["speaker"] == "seeker") > 25
        ][: SIZE * PARTS]  # fmt: skip
        for start in range(0, len(long), SIZE):
            part, texts = f"{language}-{start // SIZE + 1}", []
            for number, context in enumerate(long[start : start + SIZE], 1):
                rng = random.Random(context["id"])
                steps = rng.sample(sorted(turns[context["id"]]), OUTPUTS)
                known_replies = [*steps, "reference"] if "reference" in context else steps
                replies = rng.sample(known_replies, len(known_replies))
                key[f"{part}:{number}"] = {"id": context["id"], "steps": steps, "replies": replies}
                said = "\n".join(f"{u['speaker'].capitalize()}: {u['text']}" for u in context["history"])
                own = [turns[context["id"]][one] for one in steps]
                shown = "\n".join(
                    f"[{letter}]\n" + "\n".join(render_step(part, turn.step(part)) for part in STEPS)
                    for letter, turn in zip("ABCD", own, strict=True)
                )
                texts_of = {one: turn.response for one, turn in zip(steps, own, strict=True)}
                texts_of["reference"] = tidied(context.get("reference", ""))
                answers = "\n".join(f"[{n}] {' '.join(texts_of[one].split())}" for n, one in enumerate(replies, 1))
                texts.append(f"## {number}\n{said}\n-- steps\n{shown}\n-- replies\n{answers}\n")
            (folder / f"part-{part}.txt").write_text("\n".join(texts), encoding="utf-8")
            print(part, len(texts))
    (folder / "key.json").write_text(json.dumps({"key": key}), encoding="utf-8")
    kept = {id_: render_turn(turn) for own in turns.values() for id_, turn in own.items()}
    (folder / "outputs.json").write_text(json.dumps(kept, ensure_ascii=False), encoding="utf-8")


def read(path: Path, part: str, key: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What an annotator answered, by output."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not (match := LINE.match(line)):
            continue
        place = key.get(f"{part}:{match[1]}")
        verdicts = match[2].upper().replace(" ", "")
        ratings, yes = match[3].split(), match[4].upper().split()
        count = len(place["replies"]) if place else 0
        if not place or len(verdicts) != 12 or len(ratings) != count or len(yes) != count:
            print(f"{path.name}: cannot be read: {line[:80]}")
            continue
        ranks = {
            int(n): rank for rank, same in enumerate(match[6].replace(" ", "").split(">")) for n in same.split("=") if n
        }
        at = {one: n for n, one in enumerate(place["replies"], 1)}
        other = at.get("reference")
        for number, id_ in enumerate(place["steps"]):
            mine = at[id_]
            found[id_] = {
                **{step: verdicts[number * 3 + n] == "T" for n, step in enumerate(STEPS)},
                "acceptable": yes[mine - 1] == "Y",
                "harm": str(mine) in re.findall(r"\d", match[5]),
                "rating": int(ratings[mine - 1]),
            }
            if other:
                ahead = ranks.get(other, 9) - ranks.get(mine, 9)
                preference = "candidate" if ahead > 0 else "reference" if ahead < 0 else "both"
                found[id_]["preference"] = preference if "Y" in (yes[mine - 1], yes[other - 1]) else "neither"
    return found


def labels(contexts: Path, folder: Path, out: Path) -> None:
    """The first annotator's answers as labels, without histories; prints how far a second one agrees."""
    from compeer.statistics import cohens_kappa

    known = {row["id"]: row for row in _rows(contexts)}
    key = json.loads((folder / "key.json").read_text(encoding="utf-8"))["key"]
    outputs = json.loads((folder / "outputs.json").read_text(encoding="utf-8"))
    lines, counts = [], Counter[str]()
    for file in sorted((folder / "answers").glob("part-*-A.txt")):
        part = file.stem.removeprefix("part-").removesuffix("-A")
        first = read(file, part, key)
        if (again := file.with_name(f"part-{part}-B.txt")).is_file():
            second = read(again, part, key)
            for name in (*STEPS, "preference", "acceptable"):
                both = [id_ for id_ in first.keys() & second.keys() if name in first[id_]]
                pairs = [(first[id_][name], second[id_][name]) for id_ in both]
                if pairs:
                    print(part, name, f"κ {cohens_kappa(pairs):.2f} of {len(pairs)}")
        for id_, own in first.items():
            context = known[id_.rsplit(":", 2)[0]]
            ours = id_.startswith("talk-")  # a talk with a simulated seeker may be quoted
            if not ours and copied(outputs[id_], context["history"], context["language"]):
                counts["quotes at length"] += 1
                continue
            row = {"id": id_, "split": context["split"], "language": context["language"], "output": outputs[id_]}
            lines.append(json.dumps(row | own, ensure_ascii=False))
            counts.update({f"{context['language']} {name}": own[name] for name in (*STEPS, "acceptable", "harm")})
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(len(lines), "outputs labelled", dict(counts))


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    {"make": make, "labels": labels}[command](*map(Path, words))
