"""What a supporter writes to held-out histories, and what judges, gold labels and the guard think of it.

The judge that gave the rewards (`judge-1`) never measures alone: a second one of other weights (`judge-2`), one that
was taught by seekers' ratings and by nothing else (`feedback`), the corpus' own decisions and diversity stand by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

HISTORIES, GROUP, CANDIDATES = 256, 4, 16
BATCH = 256
SERVED = 64
TOKENS = 224
DECISIONS = ("stage", "emotion", "strategy")


def assessed(folder: Path, name: str, test: str = "test", group: int = GROUP) -> dict[str, Any]:
    """`group` outputs at temperature 1 for each history, a row of figures a history; and the likeliest output's."""
    import torch

    from compeer.evaluate.decisions import measure_decisions
    from compeer.evaluate.runner import sample
    from compeer.models import Sampling
    from compeer.models.local import LocalModel
    from compeer.policy import Output, generate_turns
    from compeer.ser.record import read_records
    from compeer.statistics import distinct, mean

    own = [record for record in read_records(folder / f"{test}.jsonl") if record.author == "corpus"]
    asked = sample(own, HISTORIES, 1, "supporters")
    model = LocalModel(folder / name / "model", batch_size=BATCH)

    def written(temperature: float, count: int) -> list[Output]:
        sampling = Sampling(temperature=temperature, max_tokens=TOKENS)
        answers = generate_turns(model, asked, sampling, seed=1, candidates=count)
        assert all(isinstance(answer, Output) for answer in answers), "a local model answers everything"
        return [answer for answer in answers if isinstance(answer, Output)]

    outputs, likeliest = written(1.0, group), written(0.0, 1)
    rows = _rows(folder, asked, outputs, group)
    gold = [record.candidate for record in asked]
    for row, output, turn in zip(rows, likeliest, gold, strict=True):
        found = measure_decisions([output.parsed], [turn])
        row["likeliest"] = {"whole": found["format_complete"]} | {key: found[key]["accuracy"] for key in DECISIONS}
    responses = [str(output.parsed.parts.get("response", "")) for output in outputs]
    by_history = [distinct(responses[start : start + group], 2) for start in range(0, len(responses), group)]
    whole = measure_decisions([output.parsed for output in outputs], [turn for turn in gold for _ in range(group)])
    return {
        "rows": rows,
        "majority": {key: whole[key]["majority"] for key in DECISIONS},
        "distinct_1": distinct(responses, 1),
        "distinct_2": distinct(responses, 2),
        "distinct_2_by_history": mean(by_history),
        "texts": [output.text for output in outputs],
        "cut_off": [output.cut_off for output in outputs],
        "records": [record.id for record in asked],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }


def judged_again(folder: Path, name: str) -> dict[str, Any]:
    """What FOLDER/said has under a name, its outputs judged once more by the judges that FOLDER has now."""
    import json

    from compeer.policy import Output
    from compeer.reasoning import parse_turn
    from compeer.ser.record import read_records

    measured: dict[str, Any] = json.loads((folder / "said" / f"{name}.json").read_text(encoding="utf-8"))
    by_id = {record.id: record for record in read_records(folder / "test.jsonl")}
    asked = [by_id[one] for one in measured["records"]]
    broken = [parts["format"] < 0 for row in measured["rows"] for parts in row["parts_1"]]
    whole = [parse_turn(text).turn is not None for text in measured["texts"]]
    # Not kept at first: an output was cut off if it looks whole and was found broken.
    ended = measured.get("cut_off") or [one and other for one, other in zip(broken, whole, strict=True)]
    group = len(ended) // len(asked)
    outputs = [
        Output(measured["records"][place // group], text, cut, parse_turn(text, cut))
        for place, (text, cut) in enumerate(zip(measured["texts"], ended, strict=True))
    ]
    rows = _rows(folder, asked, outputs, group)
    likeliest = [{"likeliest": row["likeliest"]} for row in measured["rows"]]
    return {**measured, "rows": [{**row, **one} for row, one in zip(rows, likeliest, strict=True)]}


def decided(folder: Path, name: str, test: str, held: bool) -> dict[str, Any]:
    """The decisions of the likeliest output for every turn of the corpus in FOLDER/TEST.jsonl, against its own.

    An output is written freely, or `held` to a turn's form and ended before it repeats itself, by the very engine with
    which people talk. That takes long without a GPU: each output is kept at once, and a second call goes on.
    """
    import torch

    from compeer.chat.turn import SAMPLING as SPEAKING
    from compeer.evaluate.decisions import decision_report
    from compeer.models import Sampling
    from compeer.ser.record import read_records

    asked = [record for record in read_records(folder / f"{test}.jsonl") if record.author == "corpus"]
    sampling = Sampling(temperature=0, max_tokens=SPEAKING.max_tokens if held else TOKENS)
    model, kept = folder / name / "model", folder / "said" / f"held-{name}@{test}.jsonl"
    written = _read(as_served(model, asked, sampling, kept)) if held else _free(model, asked, sampling)
    return {
        "report": decision_report(asked, [parsed for parsed, _ in written]).model_dump(),
        "cut_off": sum(cut_off for _, cut_off in written) / len(written),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }


def _free(model: Path, asked: Sequence[Any], sampling: Any) -> list[tuple[Any, bool]]:
    """Each output as it was read, and whether it was cut off."""
    from compeer.models.local import LocalModel
    from compeer.policy import Output, generate_turns

    answers = generate_turns(LocalModel(model, batch_size=BATCH), asked, sampling, seed=1)
    assert all(isinstance(answer, Output) for answer in answers), "a local model answers everything"
    return [(answer.parsed, answer.cut_off) for answer in answers if isinstance(answer, Output)]


def _read(said: Sequence[dict[str, Any]]) -> list[tuple[Any, bool]]:
    from compeer.reasoning import parse_turn

    return [(parse_turn(one["text"], one["cut_off"]), one["cut_off"]) for one in said]


def as_served(model: Path, asked: Sequence[Any], sampling: Any, kept: Path) -> list[dict[str, Any]]:
    """An output each by the engine that serves conversations; turns of one dialogue in a row share what was computed.

    Each is written to `kept` as soon as it is there; what that file has is not asked for again.
    """
    import asyncio
    import json

    from compeer.chat.local import LocalWriter
    from compeer.chat.writing import Ending, write_turn
    from compeer.policy.control import Control
    from compeer.policy.prompt import supporter_prompt

    lines = kept.read_text(encoding="utf-8").split("\n")[:-1] if kept.is_file() else []  # a stop may cut the last one
    known = {one["id"]: one for one in map(json.loads, lines)}
    kept.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    writer = LocalWriter(model, rows=SERVED)

    async def turn(record: Any, places: asyncio.Semaphore) -> None:
        async with places:
            text, ending = "", Ending()
            async for piece in write_turn(writer, supporter_prompt(record.history), Control(), sampling, 1):
                if isinstance(piece, Ending):
                    ending = piece
                else:
                    text += piece
            known[record.id] = {"id": record.id, "text": text, "cut_off": ending.cut_off}
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[record.id]) + "\n")

    async def every() -> None:
        places = asyncio.Semaphore(2 * SERVED)
        await asyncio.gather(*(turn(record, places) for record in asked if record.id not in known))

    try:
        asyncio.run(every())
    finally:
        writer.close()
    return [known[record.id] for record in asked]


def _rows(folder: Path, asked: Sequence[Any], outputs: Sequence[Any], group: int) -> list[dict[str, Any]]:
    """By history: each output's totals by all judges, its parts, what seekers would think, what was right."""
    from compeer.evaluate.decisions import measure_decisions
    from compeer.models.embedder import Embedder
    from compeer.policy.grpo import Scorer
    from compeer.policy.redundancy import in_group_similarity
    from compeer.reward import LocalJudge
    from compeer.statistics import mean

    ids = [record.id for record in asked for _ in range(group)]
    embedder, by_id = Embedder(), {record.id: record for record in asked}
    rows: list[dict[str, Any]] = [{"dialogue": record.dialogue} for record in asked]
    texts, cut_off = [output.text for output in outputs], [output.cut_off for output in outputs]
    for number in (1, 2, 3):
        if not (folder / f"judge-{number}" / "model").is_dir():
            continue
        judge = LocalJudge(folder / f"judge-{number}" / "model", batch_size=BATCH)
        rollouts = Scorer(judge, embedder, by_id, 1)(ids, texts, cut_off)
        for place, row in enumerate(rows):
            own = rollouts[group * place : group * (place + 1)]
            row[f"judge_{number}"] = [rollout.score.total for rollout in own]
            row[f"parts_{number}"] = [rollout.score.parts() for rollout in own]
            row["s_in"] = mean(list(in_group_similarity([rollout.response for rollout in own])))
            row["words"] = mean([rollout.length for rollout in own])
            row["rejected"] = [rollout.rejected for rollout in own]
    for place, (row, opinions) in enumerate(zip(rows, _opinions(folder, asked, outputs, group), strict=True)):
        row["feedback"] = opinions
        found = [measure_decisions([output.parsed], [asked[place].candidate]) for output in _of(outputs, place, group)]
        row["right"] = {name: [one[name]["accuracy"] for one in found] for name in DECISIONS}
    return rows


def _of(outputs: Sequence[Any], place: int, group: int) -> Sequence[Any]:
    return outputs[group * place : group * (place + 1)]


def _opinions(folder: Path, asked: Sequence[Any], outputs: Sequence[Any], group: int) -> list[list[float | None]]:
    """For each history how good its outputs' responses are to a judge taught by seekers alone, against an anchor."""
    from research.judge.people import ANCHORS

    from compeer.reward import LocalJudge
    from compeer.reward.conversation import Case
    from compeer.reward.score import Judgment

    model = folder / "feedback" / "model"
    if not model.is_dir():
        return [[] for _ in asked]
    judge = LocalJudge(model, batch_size=BATCH, both_orders=True)
    histories = [record.history for record in asked for _ in range(group)]
    cases = [Case(history, output.parsed, ANCHORS[0]) for history, output in zip(histories, outputs, strict=True)]
    found = [
        one.response["candidate"] + one.response["both"] if isinstance(one, Judgment) and one.response else None
        for one in judge.judge(cases)
    ]
    return [list(_of(found, place, group)) for place in range(len(asked))]
