"""Outputs of supporters, judged blind by two annotators and an adjudicator in the workbench, through its API.

    python research/judge/annotate.py select CONTEXTS FOLDER OUTPUTS.jsonl…  # FOLDER/records.jsonl
    python research/judge/annotate.py batches FOLDER                         # what each annotator reads, in which order
    python research/judge/annotate.py adjudicate FOLDER                      # what a third one decides
    python research/judge/annotate.py post FOLDER http://127.0.0.1:8020      # answers into the workbench
    python research/judge/annotate.py labels FOLDER OUT.jsonl                # consensus, without texts of the corpora

An annotator answers `number | T F T | 1 | Y N | - | reason` a line (docs/guidelines.md): three steps, the better reply
(1, 2, both, neither), which replies are acceptable, which could harm. The workbench keeps steps and preference;
acceptability and harm go into its note. Annotators are programs: the source of every label is `llm`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from compeer.reasoning import STEPS, parse_turn, render_step
from compeer.ser.record import SerRecord, read_records, write_records

sys.path.insert(0, str(Path(__file__).parents[1] / "supporter"))
from data import copied, tidied

SIZE = 100
LINE = re.compile(
    r"(\d+) *\| *([TF]) *([TF]) *([TF]) *\| *(1|2|both|neither) *\| *([YN]) *([YN]) *\| *(-|1|2|12|1 2|1,2) *\|? *(.*)",
    re.IGNORECASE,
)
WANTED = {("en", "reward"): 450, ("zh", "reward"): 450, ("en", "test"): 150, ("zh", "test"): 150}
SHARE = 0.75
"""Of the outputs, so many are the first supporter's; the others spread the quality."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def select(contexts: Path, folder: Path, *outputs: Path) -> None:
    """Whole outputs, one a context, as records without labels."""
    known = {row["id"]: row for row in rows_of(contexts)}
    rng = random.Random(7)
    by_file = []
    for path in outputs:
        whole: dict[str, Any] = {}
        for row in rows_of(path):
            turn = parse_turn(row["text"]).turn if row.get("ended") else None
            if turn and row["id"] not in whole:
                whole[row["id"]] = (row["supporter"], row["number"], turn)
        by_file.append(whole)
    records, taken = [], set()
    for (language, split), wanted in WANTED.items():
        fitting = [c for c in known.values() if c["language"] == language and c["split"] == split]
        rng.shuffle(fitting)
        for number, whole in enumerate(by_file):
            share = SHARE if number == 0 else (1 - SHARE) / max(1, len(by_file) - 1)
            chosen = [c for c in fitting if c["id"] in whole and c["id"] not in taken][: round(wanted * share)]
            taken |= {c["id"] for c in chosen}
            records += [_record(c, *whole[c["id"]], split, rng) for c in chosen]
    folder.mkdir(parents=True, exist_ok=True)
    print(write_records(folder / "records.jsonl", records), Counter((r.language, r.split, r.author) for r in records))


def _record(context: dict[str, Any], author: str, number: int, turn: Any, split: str, rng: random.Random) -> SerRecord:
    return SerRecord.model_validate(
        {
            "id": f"{context['id']}:{author}:{number}",
            "dialogue": context["id"].rsplit("-", 1)[0],
            "round": 1 + sum(one["speaker"] == "supporter" for one in context["history"]),
            "language": context["language"],
            "source": context["id"].split("-")[0],
            "split": split,
            "history": [{"speaker": one["speaker"], "text": one["text"]} for one in context["history"]],
            "candidate": turn,
            "author": author,
            "reference": tidied(context["reference"]),
            "candidate_first": rng.random() < 0.5,
        }
    )


def batches(folder: Path) -> None:
    """Files `batches/K-A.txt` and `K-B.txt`, with the order of replies that each annotator is shown."""
    (folder / "batches").mkdir(exist_ok=True)
    groups = defaultdict(list)
    for record in read_records(folder / "records.jsonl"):
        groups[record.language].append(record)
    number, orders = 0, {}
    for language, records in sorted(groups.items()):
        random.Random(11).shuffle(records)
        for start in range(0, len(records), SIZE):
            number += 1
            for who in "AB":
                rng = random.Random(f"{number}{who}")
                own = list(enumerate(records[start : start + SIZE], 1))
                orders[f"{number}-{who}"] = {str(n): [r.id, rng.random() < 0.5] for n, r in own}
                _write(folder / "batches" / f"{number}-{who}.txt", own, orders[f"{number}-{who}"])
        print(language, "up to batch", number)
    (folder / "orders.json").write_text(json.dumps(orders), encoding="utf-8")


def _write(
    path: Path, records: list[tuple[int, SerRecord]], orders: dict[str, Any], beside: dict[int, str] | None = None
) -> None:
    texts = []
    for number, record in records:
        replies = [record.candidate.response, record.reference]
        one, two = replies if orders[str(number)][1] else replies[::-1]
        said = "\n".join(f"{u.speaker.capitalize()}: {u.text}" for u in record.history)
        steps = "\n".join(render_step(part, record.candidate.step(part)) for part in STEPS)
        more = f"\n{beside[number]}" if beside else ""
        shown = "\n".join(f"{place}: {' '.join(reply.split())}" for place, reply in (("1", one), ("2", two)))
        texts.append(f"## {number}\n{said}\n-- steps\n{steps}\n-- replies\n{shown}{more}\n")
    path.write_text("\n".join(texts), encoding="utf-8")


def read_answers(path: Path, orders: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What an annotator answered, by record: steps, preference, acceptability and harm of the candidate."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not (match := LINE.match(line.strip())):
            if line.strip():
                print(f"{path.name}: cannot be read: {line[:80]}")
            continue
        number, *steps, better, yes1, yes2, harm, reason = match.groups()
        if number not in orders:
            continue
        id_, first = orders[number]
        mine, other = ("1", "2") if first else ("2", "1")
        preference = {mine: "candidate", other: "reference"}.get(better, better.lower())
        yes = dict(zip("12", (yes1.upper() == "Y", yes2.upper() == "Y"), strict=True))
        found[id_] = {
            **{part: value.upper() == "T" for part, value in zip(STEPS, steps, strict=True)},
            "preference": preference, "acceptable": yes[mine], "reference_acceptable": yes[other], "harm": mine in harm,
            "reason": reason.strip(), "first": first,
        }  # fmt: skip
    return found


def disputed(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The questions on which two annotators differ."""
    return [name for name in (*STEPS, "preference", "acceptable") if a[name] != b[name]]


def adjudicate(folder: Path) -> None:
    """Writes `batches/K-C.txt`, what a third annotator decides: the items on which two differ."""
    orders = json.loads((folder / "orders.json").read_text())
    records = {record.id: record for record in read_records(folder / "records.jsonl")}
    for name in [key for key in orders if key.endswith("-A")]:
        batch = name.split("-")[0]
        files = [folder / "answers" / f"{batch}-{who}.txt" for who in "AB"]
        if not all(file.is_file() for file in files):
            continue
        a, b = (read_answers(file, orders[f"{batch}-{who}"]) for file, who in zip(files, "AB", strict=True))
        own, beside, chosen = [], {}, {}
        rng = random.Random(f"{batch}C")
        for number, (id_, _) in orders[name].items():
            if id_ in a and id_ in b and (names := disputed(a[id_], b[id_])):
                first = rng.random() < 0.5
                chosen[number] = [id_, first]
                own.append((int(number), records[id_]))
                beside[int(number)] = f"-- they differ on: {', '.join(names)}"
        orders[f"{batch}-C"] = chosen
        _write(folder / "batches" / f"{batch}-C.txt", own, chosen, beside)
        print(batch, len(own), "to adjudicate")
    (folder / "orders.json").write_text(json.dumps(orders), encoding="utf-8")


# --- the workbench ----------------------------------------------------------------------------------------------------


def post(folder: Path, url: Path) -> None:
    """Brings the answers into the workbench, a project a batch; annotators A, B and the adjudicator C are programs.

    The admin's name and password stand in COMPEER_ADMIN and COMPEER_ADMIN_PASSWORD.
    """
    import os

    import httpx

    address = str(url).replace(":/", "://", 1) + "/api"
    orders = json.loads((folder / "orders.json").read_text())
    records = {record.id: record for record in read_records(folder / "records.jsonl")}
    admin = httpx.Client(base_url=address, timeout=60)
    who = {"name": os.environ["COMPEER_ADMIN"], "password": os.environ["COMPEER_ADMIN_PASSWORD"]}
    admin.headers["X-CSRF-Token"] = _ok(admin.post("/login", json=who))["csrf"]
    people = {}
    for name, role in (("A", "annotator"), ("B", "annotator"), ("C", "adjudicator")):
        people[name] = httpx.Client(base_url=address, timeout=60)
        invited = {"roles": [role], "languages": ["en", "zh"], "program": True}
        token = _ok(admin.post("/invitations", json=invited))["invitation"]
        joined = _ok(
            people[name].post(
                "/join", json={"invitation": token, "name": f"reader {name}", "password": os.urandom(12).hex()}
            )
        )
        people[name].headers["Authorization"] = f"Bearer {joined['token']}"
    guidelines = (Path(__file__).parents[2] / "docs/guidelines.md").read_text(encoding="utf-8")
    for batch in sorted({key.split("-")[0] for key in orders if key.endswith("-C")}, key=int):
        made = {
            "name": f"outputs {batch}",
            "task": "steps",
            "guidelines": guidelines,
            "settings": {"daily_cap": None, "correction_seconds": 0},
        }
        project = _ok(admin.post("/projects", json=made))["id"]
        own = [records[id_] for id_, _ in orders[f"{batch}-A"].values()]
        lines = "".join(record.model_dump_json(exclude_defaults=True) + "\n" for record in own)
        _ok(admin.post(f"/projects/{project}/items", content=lines.encode()))
        by_steps = {
            (record.history[-1].text, record.candidate.history.text, record.candidate.response): record
            for record in own
        }
        for name, client in people.items():
            file = folder / "answers" / f"{batch}-{name}.txt"
            answers = read_answers(file, orders[f"{batch}-{name}"]) if file.is_file() else {}
            print(f"batch {batch} {name}:", _give(client, project, by_steps, answers), "labels")
        agreement = _ok(admin.get("/agreement", params={"project": project}))
        (folder / f"agreement-{batch}.json").write_text(json.dumps(agreement, indent=1), encoding="utf-8")


def _ok(response: Any) -> Any:
    if response.status_code >= 400:
        raise SystemExit(
            f"{response.request.method} {response.request.url}: {response.status_code} {response.text[:300]}"
        )
    return response.json()


def _give(client: Any, project: int, by_steps: dict[Any, SerRecord], answers: dict[str, Any]) -> int:
    """Gives one annotator's labels to what the workbench asks for; what there is no answer to is passed on."""
    given = 0
    while task := _ok(client.post("/next", json={"project": project}))["task"]:
        first = task["steps"][0]["text"]
        key = next(
            k for k in by_steps if k[0] == task["history"][-1]["text"] and k[1] == first and k[2] in task["responses"]
        )
        answer = answers.get(by_steps[key].id)
        if answer is None:
            client.post(f"/items/{task['item']}/skip", json={"reason": "no answer"})
            continue
        mine = task["responses"].index(key[2])
        place = {"candidate": ("first", "second")[mine], "reference": ("second", "first")[mine]}
        said = {part: answer[part] for part in STEPS}
        said["preference"] = place.get(answer["preference"], answer["preference"])
        found = "acceptable" if answer["acceptable"] else "not acceptable"
        note = f"candidate {found}{', harmful' if answer['harm'] else ''}: {answer['reason']}"
        _ok(client.put(f"/items/{task['item']}/labels", json={"answers": said, "seconds": 5, "note": note[:400]}))
        given += 1
    return given


def labels(folder: Path, out: Path) -> None:
    """The consensus: two equal answers to a question, or the adjudicator's; what lacks one is left out and counted."""
    from compeer.reasoning import render_turn

    orders = json.loads((folder / "orders.json").read_text())
    said: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, order in orders.items():
        if (file := folder / "answers" / f"{key}.txt").is_file():
            for id_, answer in read_answers(file, order).items():
                said[id_][key[-1]] = answer
    lines, counts = [], Counter()
    for record in read_records(folder / "records.jsonl"):
        votes = said[record.id]
        if not {"A", "B"} <= votes.keys():
            counts["not judged twice"] += 1
            continue
        found: dict[str, Any] = {}
        for name in (*STEPS, "preference", "acceptable"):
            given = Counter(vote[name] for vote in votes.values()).most_common(1)[0]
            if given[1] >= 2:
                found[name] = given[0]
        if len(found) < 5:
            counts["no consensus"] += 1
            continue
        found["harm"] = sum(vote["harm"] for vote in votes.values()) >= 2
        text = render_turn(record.candidate)
        if copied(text, [u.model_dump() for u in record.history], record.language):
            counts["quotes at length"] += 1
            continue
        reasons = [vote["reason"] for vote in votes.values()]
        split = [[vote[name] for vote in (votes["A"], votes["B"])] for name in (*STEPS, "preference", "acceptable")]
        row = {
            "id": record.id,
            "split": record.split,
            "language": record.language,
            "output": text,
            **found,
            "votes": split,
            "reasons": reasons,
        }
        lines.append(json.dumps(row, ensure_ascii=False))
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(len(lines), "outputs labelled", dict(counts))


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    commands = {"select": select, "batches": batches, "adjudicate": adjudicate, "post": post, "labels": labels}
    commands[command](*map(Path, words))
