"""Do the packaged judge and supporter hold on corpora that they were not trained on?

    python research/results/transfer/measure.py prepare FOLDER failed=FailedESConv.json sample=sample  records
    python research/results/transfer/measure.py run FOLDER   the packaged two at work
    python research/results/transfer/measure.py table FOLDER   results.json beside this

FOLDER/said holds what they said. The supporter is measured as in research/results/supporter (`assess.py`): FOLDER/sft,
FOLDER/judge-1 … are the same folders as there, and links will do.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "supporter"), str(Path(__file__).resolve().parents[3])]

ROUNDS, FALSE_SHARE, SEED = 6, 0.25, 7


def prepare(folder: Path, corpora: dict[str, str]) -> None:
    """Silver records of each corpus, made as those of ESConv were; all of them are for testing."""
    from compeer.ser import SerSettings, build_ser, read_records
    from compeer.ser.record import write_records

    for name, corpus in corpora.items():
        settings = SerSettings(corpus=corpus, languages=["en"], rounds=ROUNDS, false_share=FALSE_SHARE)
        (folder / "built" / name).mkdir(parents=True, exist_ok=True)
        build_ser(settings, folder / "built" / name, SEED)
        records = [
            record.model_copy(update={"split": "test"})
            for record in read_records(folder / "built" / name / "records.jsonl")
        ]
        write_records(folder / f"{name}.jsonl", records)
        print(f"{name}: {len(records)} records of {len({record.dialogue for record in records})} dialogues")


def run(folder: Path, only: list[str]) -> None:
    """The judge's verdicts on all labelled records, and the supporter's outputs with their figures, by corpus."""
    from assess import assessed

    from compeer.reward import LocalJudge
    from compeer.reward.conversation import record_case
    from compeer.reward.judgments import write_judgments
    from compeer.ser.record import read_records

    (folder / "said").mkdir(exist_ok=True)
    for name in names(folder):
        said = folder / "said" / f"judge-1.{name}.jsonl"
        if not said.is_file() and (not only or name in only):
            records = [one for one in read_records(folder / f"{name}.jsonl") if one.preference and one.labels]
            judge = LocalJudge(folder / "judge-1" / "model", batch_size=48, both_orders=True)
            write_judgments(said, records, judge.judge([record_case(record) for record in records]))
        told = folder / "said" / f"measure-sft@{name}.json"
        if not told.is_file() and (not only or name in only):
            told.write_text(json.dumps(assessed(folder, "sft", name), indent=1) + "\n", encoding="utf-8")


def names(folder: Path) -> list[str]:
    """The corpora that were prepared."""
    return sorted(path.name for path in (folder / "built").iterdir())


def table(folder: Path) -> None:
    """What the judge got right by corpus, with intervals over dialogues, and the supporter's figures."""
    from measure import intervals, values_by_history
    from research.judge.compare import JudgedSet, compare_judges

    from compeer.reward.judgments import read_judgments
    from compeer.ser.record import read_records

    found: dict[str, Any] = {"judge": {}, "supporter": {}}
    for name in names(folder):
        records = [one for one in read_records(folder / f"{name}.jsonl") if one.preference and one.labels]
        said = read_judgments(folder / "said" / f"judge-1.{name}.jsonl", records)
        found["judge"][name] = compare_judges({"judge": JudgedSet(records, {1: said}, {})}, [])
        told = json.loads((folder / "said" / f"measure-sft@{name}.json").read_text(encoding="utf-8"))
        found["supporter"][name] = {
            **intervals(values_by_history([told])),
            **{key: told[key] for key in ("majority", "distinct_2", "device", "torch")},
            "histories": len(told["rows"]),
        }
    Path(__file__).with_name("results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=["prepare", "run", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpora", nargs="*", help="prepare: NAME=CORPUS …; run: NAME …")
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder, dict(one.split("=", 1) for one in options.corpora))
    elif options.what == "run":
        run(options.folder, options.corpora)
    else:
        table(options.folder)


if __name__ == "__main__":
    main()
