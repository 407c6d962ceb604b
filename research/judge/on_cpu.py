"""Lets the packaged large judge answer on this CPU what a GPU was asked: some records of the frozen test, both orders.

    python research/judge/on_cpu.py WORK/test-records.jsonl cpu-judge.jsonl [126]

WORK is made by `research/supporter/prepare.py`; a job {"judge": …} of `research/supporter/gpu.py` writes what a GPU
says of all of them, and `engines` in `research/supporter/figures.py` counts how far both lie apart. It goes on where it
was ended.
"""

import json
import sys
from pathlib import Path

from compeer.progress import progress
from compeer.reward.conversation import record_case
from compeer.reward.judges import open_judge
from compeer.reward.score import Judgment
from compeer.ser.record import read_records


def main(given: Path, out: Path, count: int = 126) -> None:
    records = list(read_records(given))
    chosen = [records[round(number * len(records) / count)] for number in range(count)]
    done = {json.loads(line)["id"] for line in out.open(encoding="utf-8")} if out.is_file() else set()
    judge = open_judge("judge-1.5b", both_orders=True)
    with out.open("a", encoding="utf-8") as file, progress("Judging", count) as advance:
        for record in chosen:
            if record.id not in done:
                [found] = judge.judge([record_case(record)])
                if not isinstance(found, Judgment) or found.response is None:
                    raise SystemExit(f"{record.id}: {found}")
                row = {"id": record.id, "steps": dict(found.steps), "response": dict(found.response)}
                file.write(json.dumps(row) + "\n")
                file.flush()
            advance(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
