"""What `gpu.py` needs to train supporter and judges: chats, prompts, contexts and plans, in one folder.

    python research/supporter/data.py contexts CORPORA WORK
    python research/supporter/prepare.py CORPORA WORK
    for plan in WORK/plan-*.json; do python research/supporter/gpu.py work BASE $plan OUT & done; wait

CORPORA holds esconv/, smile/ and ser_llm/. The supporter learns from all targets (targets*.jsonl, invented.jsonl), the
judges from all rounds of labels (research/judge) and from ser_llm; the labels' texts are joined with the histories of
the contexts here. Plans run side by side on one card; a job waits for the adapter that it starts from (`after`).
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data import all_moments, chat, guided_prompt, tidied

from compeer.models.embedder import is_latin
from compeer.policy.prompt import direct_prompt
from compeer.reasoning import STEPS, parse_turn
from compeer.reward.conversation import JudgeForm, chats
from compeer.ser.record import SerRecord, write_records

HERE = Path(__file__).parent
READING = 10
"""Which sample of fresh moments is to be read; those of `reward.json` to `seventh.json` came before."""


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def natural(contexts: dict[str, Any], rounds: Iterable[int] = (1, 2, 3)) -> list[SerRecord]:
    """The labelled outputs of some rounds as records; those amid talks have no human reply to be compared with."""
    found = []
    for row in [row for number in rounds for row in _rows(HERE.parent / "judge" / f"labels-{number}.jsonl")]:
        moment, author, _ = row["id"].rsplit(":", 2)
        if "preference" in row:
            turn = parse_turn(row["output"]).turn
            found.append(record_of(row["id"], contexts[moment], turn, author, row, row["split"]))
    return found


def paired(contexts: dict[str, Any], rounds: Iterable[int] = (4, 5)) -> list[SerRecord]:
    """Outputs of one group against each other, as they are ranked in use: the higher rating is preferred.

    Each output is once the candidate; its partner, whose response stands for the reference, is drawn among those with
    another rating while there are any. Of two alike both are good, or neither.
    """
    found = []
    for number in rounds:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in _rows(HERE.parent / "judge" / f"labels-{number}.jsonl"):
            if row["split"] != "test":
                groups.setdefault(row["id"].rsplit(":", 2)[0], []).append(row)
        for moment, rows in sorted(groups.items()):
            rng = random.Random(moment)
            for row in rows:
                others = [other for other in rows if parse_turn(other["output"]).turn and other is not row]
                others = [other for other in others if other["rating"] != row["rating"]] or others
                if not others or not (turn := parse_turn(row["output"]).turn):
                    continue
                other = rng.choice(others)
                alike = "both" if row["acceptable"] and other["acceptable"] else "neither"
                better = "candidate" if row["rating"] > other["rating"] else "reference"
                labels = {**row, "preference": alike if row["rating"] == other["rating"] else better}
                context = {**contexts[moment], "id": moment, "reference": parse_turn(other["output"]).turn.response}
                found.append(record_of(f"{row['id']}-pair", context, turn, row["id"].split(":")[-2], labels, "reward"))
    return found


def held_out(record: SerRecord) -> bool:
    """Whether a dialogue's outputs of the last rounds are for choosing settings, not for training."""
    return _kept(record.dialogue)


def _kept(dialogue: str) -> bool:
    return zlib.crc32(dialogue.encode()) % 8 == 0


def tuning_groups() -> list[dict[str, Any]]:
    """The groups of the fifth round that are held out, as a write job would have written them."""
    named = [(row, *row["id"].rsplit(":", 2)) for row in _rows(HERE.parent / "judge" / "labels-5.jsonl")]
    found: list[dict[str, Any]] = [
        {"id": moment, "number": int(number), "supporter": author, "text": row["output"], "ended": True}
        for row, moment, author, number in named
        if _kept(moment.rsplit("-", 1)[0])
    ]
    return [*found, {"done": len(found)}]


def labelled_groups(contexts: dict[str, Any], number: int = 4) -> list[dict[str, Any]]:
    """Outputs that a policy wrote for one history, with scores: the rating, a third of a point a right step, harm."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(HERE.parent / "judge" / f"labels-{number}.jsonl"):
        groups.setdefault(row["id"].rsplit(":", 2)[0], []).append(row)
    for row in _rows(HERE / "targets-5.jsonl") if number == 5 else ():  # what a good supporter would say there
        if row["id"] in groups:
            right = dict.fromkeys(STEPS, True)
            groups[row["id"]].append({"output": row["output"], "rating": 5, "harm": False, **right})
    return [
        {
            "prompt": guided_prompt(contexts[id_]["history"]),
            "outputs": [row["output"] for row in rows],
            "scores": [row["rating"] + sum(row[step] for step in STEPS) / 3 - row["harm"] for row in rows],
        }
        for id_, rows in groups.items()
    ]


def ranked_groups(contexts: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Outputs of the packaged supporter, of which the packaged judge's first is to be preferred to its last."""
    for row in _rows(HERE / "ranked.jsonl"):
        ends = {max(row["wins"]): 1.0, min(row["wins"]): 0.0}
        scores = [ends.get(won, 0.5) for won in row["wins"]]
        yield {"prompt": guided_prompt(contexts[row["id"]]["history"]), "outputs": row["outputs"], "scores": scores}


def written(corpora: Path) -> list[SerRecord]:
    """The turns of ser_llm on whose verdicts two votes agree."""
    found = []
    for row in _rows(corpora / "ser_llm" / "ser_llm.jsonl"):
        for number, one in enumerate(row["candidates"]):
            verdicts = [step["correct"] for step in one["steps"]]
            if one["preference"] is None or None in verdicts:
                continue
            turn = {
                "history": {"text": one["analysis"], "stage": one["stage"]},
                "emotion": {"text": one["feeling"], **{k: one[k] for k in ("sentiment", "emotion", "intensity")}},
                "strategy": {"text": one["plan"], "strategy": one["strategy"]},
                "response": one["response"],
            }
            labels = {**dict(zip(STEPS, verdicts, strict=True)), "preference": one["preference"]}
            found.append(record_of(f"{row['id']}:{number}", row, turn, "llm", labels, "reward"))
    return found


def record_of(
    id_: str, context: dict[str, Any], turn: Any, author: str, labels: dict[str, Any], split: str
) -> SerRecord:
    source = {"source": "llm", "how": "two annotators, adjudicated"}
    return SerRecord.model_validate(
        {
            "id": id_,
            "dialogue": context["id"].rsplit("-", 1)[0],
            "round": 1,
            "language": context["language"],
            "source": context["id"].split("-")[0],
            "split": split,
            "history": context["history"],
            "candidate": turn,
            "author": author,
            "reference": tidied(context["reference"]) if "split" in labels else context["reference"],
            "labels": {part: {"value": labels[part], **source} for part in STEPS},
            "preference": {"value": labels["preference"], **source},
            "candidate_first": True,
        }
    )


def direct(row: dict[str, Any]) -> dict[str, Any]:
    """The same example without its steps: a supporter that replies at once."""
    _, asked, answer = row["messages"]
    task, _ = direct_prompt([])
    reply = {"role": "assistant", "content": parse_turn(answer["content"]).turn.response}
    return {"id": row["id"], "messages": [task, asked, reply]}


FORMS = {
    "judge": JudgeForm(history=12),
    "judge-blind": JudgeForm(history=12, blind=True),
    "process": JudgeForm(kind="process", history=12),
    "outcome": JudgeForm(kind="outcome", history=12),
}
"""UnifiReward, its blind twin, PRM and ORM: the same records, asked in their own forms."""


def prepare(corpora: Path, work: Path) -> None:
    contexts = {row["id"]: row for row in _rows(work / "contexts.jsonl")}
    moments = {row["id"]: row for row in all_moments(corpora, "policy")}
    taught = [
        chat(moments[row["id"]], parse_turn(row["output"]).turn)
        for path in sorted(HERE.glob("targets*.jsonl"))
        if path.stem != "targets-5"
        for row in _rows(path)
    ]
    taught += [chat(row, parse_turn(row["output"]).turn) for row in _rows(HERE / "invented.jsonl")]
    random.Random(3).shuffle(taught)
    _write(work / "chats.jsonl", taught)
    _write(work / "direct.jsonl", map(direct, taught))
    for split in ("policy", "valid", "test"):
        own = [c for c in contexts.values() if c["split"] == split]
        _write(work / f"{split}-contexts.jsonl", own)
        _write(work / f"{split}.jsonl", ({"id": c["id"], "prompt": guided_prompt(c["history"])} for c in own))
    used = fresh_moments(corpora, contexts, READING)
    _write(work / "use-contexts.jsonl", used)
    for name, task in (("use", "guided"), ("use-shown", "shown"), ("use-direct", "direct")):
        _write(
            work / f"{name}.jsonl", ({"id": c["id"], "prompt": guided_prompt(c["history"], task=task)} for c in used)
        )
    decided = [c for c in contexts.values() if c["split"] == "test" and c["strategies"]]
    _write(work / "decided.jsonl", ({"id": c["id"], "prompt": guided_prompt(c["history"])} for c in decided))
    labelled = natural(contexts)
    write_records(work / "test-records.jsonl", [record for record in labelled if record.split == "test"])
    records = [record for record in labelled if record.split == "reward"]
    for name, form in FORMS.items():
        rng = random.Random(5)
        asked = [messages for record in records for first in (True, False) for messages in chats(record, form, first)]
        asked += [messages for record in written(corpora) for messages in chats(record, form, rng.random() < 0.5)]
        rng.shuffle(asked)
        _write(work / f"{name}.jsonl", ({"messages": messages} for messages in asked))
        print(len(asked), "chats of", name)
    talks = {row["id"]: row for row in _rows(HERE / "moments-5.jsonl")}
    known = contexts | moments | talks
    fourth, fifth, pairs = natural(contexts, [4]), natural(contexts | moments, [5]), paired(known)
    write_records(work / "tune-records.jsonl", filter(held_out, fifth))
    _write(work / "tune-four.jsonl", tuning_groups())
    last = ((fifth, 0.8), (pairs, 0.6), (fourth, 0.1), (records, 0.1))
    for name, parts in (("judge-more", ((fourth, 1.0), (records, 0.35))), ("judge-last", last)):
        for kind in ("judge", "judge-blind") if name == "judge-last" else ("judge",):
            rng = random.Random(6)
            asked = [
                messages
                for own, share in parts
                for record in own
                for first in (True, False)
                if rng.random() < share and not (name == "judge-last" and held_out(record))
                for messages in chats(record, FORMS[kind], first)
            ]
            rng.shuffle(asked)
            _write(work / f"{kind.replace('judge', name)}.jsonl", ({"messages": messages} for messages in asked))
            print(len(asked), "chats of", kind.replace("judge", name))
    _write(work / "groups.jsonl", labelled_groups(contexts))
    _write(work / "groups-5.jsonl", labelled_groups(moments | talks, 5))
    _write(work / "groups-ranked.jsonl", ranked_groups(moments))
    for name, plan in plans(work, strategy_shares(taught)).items():
        (work / f"plan-{name}.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
    print(len(taught), "chats of the supporter,", len(used), "fresh moments")


def fresh_moments(corpora: Path, contexts: dict[str, Any], reading: int, each: int = 160) -> list[dict[str, Any]]:
    """Moments of the test splits that no earlier reading holds, `each` of a language.

    One a dialogue, and second ones where dialogues run out. Where moments run out (Chinese, from the seventh reading
    on) those follow whose outputs are the judges' test, then (eighth) those of the valid split that nobody sampled.
    """
    found: dict[str, list[dict[str, Any]]] = {"en": [], "zh": []}
    for row in all_moments(corpora, "test"):
        if row["id"] not in contexts:
            found[row["language"]].append(row)
    tested = [row for row in contexts.values() if row["split"] == "test"]
    valid = [row for row in all_moments(corpora, "valid") if row["id"] not in contexts]
    kept: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for number in range(1, reading + 1):
        rng, read, last = random.Random(10 + number), {row["id"] for row in kept}, []
        for language, rows in found.items():
            rng.shuffle(rows)
            unread = [row for row in rows if row["id"] not in read]
            first = sorted({_dialogue(row): row for row in unread}.values(), key=lambda row: row["id"])
            spare = [row for row in tested if row["language"] == language and row["id"] not in read]
            others = [row for row in valid if row["language"] == language and row["id"] not in read]
            own = first + [row for row in unread if row not in first] + spare
            last += own[:each] or rng.sample(others, each)
        kept += last
    return last


def _dialogue(row: dict[str, Any]) -> str:
    return str(row["id"].rsplit("-", 1)[0])


def strategy_shares(taught: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How often the targets use each strategy, by language."""
    found: dict[str, Counter[str]] = {"en": Counter(), "zh": Counter()}
    for row in taught:
        turn = parse_turn(row["messages"][-1]["content"]).turn
        found["en" if is_latin(turn.response) else "zh"][turn.strategy.strategy] += 1
    return {
        language: {name: round(count / counts.total(), 3) for name, count in counts.items()}
        for language, counts in found.items()
    }


def plans(work: Path, shares: dict[str, dict[str, float]]) -> dict[str, list[dict[str, Any]]]:
    """What one lease does; each plan is a process of its own, and those that need another's adapter wait for it.

    Training by reward goes in three rounds: 30 steps of GRPO from the supporter that imitates; 40 more with what was
    labelled of the first round's outputs in the judge, the response counted twice, and a price on strategies that are
    used too often; preference training on labelled groups of the second round's outputs, then 23 steps of GRPO with a
    judge that goes on from the same labels, the response counted three times. Then once more preference training, on
    labelled groups of the third round's outputs, amid conversations too (`again`). `ranked` goes on from the packaged
    `again-3` with what the judge ranks first and last among four of its own outputs; readers do not prefer it, so it is
    not packaged.
    """

    def path(name: str) -> str:
        return str(work / f"{name}.jsonl")

    def write(name: str, prompts: str, out: str, **how: Any) -> dict[str, Any]:
        in_use = {"n": 1, "temperature": 0.4, "min_p": 0.1, "seed": 1}
        return {"write": name, "prompts": path(prompts), "out": out, **in_use, **how}

    learn = {"rank": 8, "rate": 2e-4, "micro": 8, "seed": 1}
    judges = [
        job
        for name, form in FORMS.items()
        for job in (
            {"train": name, "chats": path(name), **learn, "epochs": 1 if name == "process" else 2, "batch": 32},
            {"judge": name, "records": path("test-records"), "form": form.model_dump(), "out": f"judged-{name}"},
        )
    ]
    judging = {"rank": "judge", "form": FORMS["judge"].model_dump(), "contexts": path("use-contexts")}
    rewarded = {"start": "sft-c", "judge": "judge", "form": FORMS["judge"].model_dump(), "after": "sft-c"}
    rewarded |= {"contexts": path("policy-contexts"), "steps": 30, "rate": 3e-5, "kl": 0.05, "balance": 0, "rows": 192}
    second = {
        **rewarded,
        "steps": 40,
        "rate": 6e-5,
        "kl": 0.03,
        "response_weight": 2.0,
        "balance": 0.5,
        "shares": shares,
    }
    third = {**second, "start": "taught", "after": "taught", "judge": "judge-3", "steps": 23, "rate": 4e-5}
    third |= {"response_weight": 3.0}
    likeliest = {"temperature": 0.0, "min_p": 0.0}
    return {
        "supporter": [
            {"train": "sft-c", "chats": path("chats"), **learn, "epochs": 3, "batch": 16},
            write("sft-c", "use", "use-sft-c"),
            write("sft-c", "use", "use-four", n=4, temperature=0.7),
            write("sft-c", "decided", "decided-sft-c", **likeliest),
            write("base", "use-shown", "use-base"),
            {"train": "direct", "chats": path("direct"), **learn, "epochs": 3, "batch": 16},
            write("direct", "use-direct", "use-direct"),
        ],
        "judges": [*judges, {**judging, "outputs": "use-four", "out": "four"}],
        "third": [
            {"train": "judge-3", "start": "judge", "after": "judge", "chats": path("judge-more"), **learn, "epochs": 1}
            | {"rate": 1e-4, "batch": 32},
            {"prefer": "taught", "start": "more-1", "after": "more-1", "groups": path("groups"), "seed": 1},
            {**judges[1], "judge": "judge-3", "out": "judged-judge-3"},
        ],
        **{
            f"grpo-{seed}": [
                {"grpo": f"grpo-{seed}", **rewarded, "seed": seed},
                {"grpo": f"more-{seed}", **second, "start": f"grpo-{seed}", "after": f"grpo-{seed}", "seed": seed + 10},
                {"grpo": f"third-{seed}", **third, "seed": seed + 20},
                {"prefer": f"again-{seed}", "start": f"third-{seed}", "after": f"third-{seed}", "seed": seed}
                | {"groups": path("groups-5"), "likelihood": 0.1},
                {"prefer": f"ranked-{seed}", "start": "again-3", "after": "again-3", "seed": seed}
                | {"groups": path("groups-ranked"), "likelihood": 0.1},
                *(write(f"{name}-{seed}", "use", f"use-{name}-{seed}") for name in ("third", "again", "ranked")),
                write(f"again-{seed}", "decided", f"decided-again-{seed}", **likeliest),
            ]
            for seed in (1, 2, 3)
        },
    }


if __name__ == "__main__":
    prepare(*map(Path, sys.argv[1:]))
