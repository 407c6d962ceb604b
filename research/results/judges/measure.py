"""UnifiReward, PRM and ORM, each with its blind twin, trained with several seeds side by side on one GPU, and judged.

    python research/results/judges/measure.py prepare FOLDER …      training and test records, as README.md says
    python research/results/judges/measure.py train FOLDER          what is done is not done again; --parallel, --only
    python research/results/judges/measure.py table FOLDER …        results.json and tables.md beside this file

Every judge sees the same records, equally many times: a process judge has three chats a record, so three times as many
chats a step. Judges are called `kind[-unmarked][-alone][-watched][-weighed][-lora][-reasons][-blind]-seed`: the kind is
one in recipes/claims, and the marks are what is changed in it. Those with reasons write some hundred words an output,
and are tried on two of the test sets. Those called `unified-apart` are `unified-unmarked` ones trained in another
folder, prepared from the independent turns. `alone` and `watched` ones leave a tenth of the dialogues to be judged at
the end; what was said there is kept, and looks.py reads it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3])]

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SEEDS = (1, 2, 3)
TESTS = ("esconv", "near", "random", "llm", "independent")
SLOW_TESTS = ("esconv", "near")
KINDS = ("process", "unified", "outcome")


def names() -> list[str]:
    """All judges, the longest trainings first."""
    own = [f"{kind}-{seed}" for kind in KINDS for seed in SEEDS]
    twins = [f"{kind}-blind-{seed}" for kind in KINDS for seed in SEEDS]
    others = [
        f"unified-{mark}-{seed}"
        for mark in ("weighed", "unmarked-weighed", "reasons", "weighed-lora")
        for seed in SEEDS
    ]
    return [*own, *twins, *others]


def prepare(folder: Path, esconv: Path, near: Path, random: Path, llm: Path, independent: Path) -> None:
    """Training records of all sets together, and a file a test set; dialogues of the test split train nothing."""
    from compeer.ser.record import read_records, write_records

    folder.mkdir(parents=True, exist_ok=True)
    sets = {"esconv": esconv, "near": near, "random": random, "llm": llm}
    training = {}
    for name, path in sets.items():
        records = [record for record in read_records(path) if record.preference and record.labels]
        write_records(folder / f"{name}.jsonl", [record for record in records if record.split == "test"])
        training.update({record.id: record for record in records if record.split == "reward"})
    write_records(folder / "train.jsonl", list(training.values()))
    apart = [record for record in read_records(independent) if record.preference and record.split == "test"]
    write_records(folder / "independent.jsonl", apart)


def settings_of(kind: str, marks: Sequence[str] = ()) -> Any:
    """How a judge is trained: the settings of its recipe, changed as its marks say, with one checkpoint at the end."""
    from compeer.recipe import load_recipe

    usual = load_recipe(RECIPES / "h200.toml").judge
    watched = f"judge.evaluate_every={load_recipe(RECIPES / 'claims' / f'{kind}.toml').judge.steps}"
    changes = {
        "reasons": ["judge.reasons=true"],
        "unmarked": ["judge.marked=false"],
        "blind": ["judge.blind=true"],
        "alone": ["judge.alone=true", f"judge.batch={2 * usual.batch}", watched],  # a record is two chats
        "watched": [watched],
        "weighed": [f"judge.response_weight={usual.response_weight}"],
        "lora": [f"judge.learning_rate={usual.learning_rate}", f"judge.lora_rank={usual.lora_rank}"],
    }
    chosen = [change for mark in marks for change in changes[mark]]
    settings = load_recipe(RECIPES / "claims" / f"{kind}.toml", chosen).judge
    return settings.model_copy(update={"save_every": settings.steps})


def train_one(folder: Path, name: str) -> None:
    """Trains one judge and lets it judge all test sets."""

    from compeer.reward.conversation import record_case
    from compeer.reward.judge import LocalJudge
    from compeer.reward.judgments import write_judgments
    from compeer.reward.train import train_judge
    from compeer.ser.record import read_records

    kind, *marks, number = name.split("-")
    seed, settings = int(number), settings_of(kind, marks)
    start = time.monotonic()
    figures: dict[str, Any] = train_judge(list(read_records(folder / "train.jsonl")), settings, folder / name, seed)
    figures["training_seconds"] = round(time.monotonic() - start)
    batch_size = 256 if settings.reasons else 48
    judge = LocalJudge(folder / name / "model", batch_size=batch_size, both_orders=kind != "process", threshold=0.5)
    if (folder / name / "validated.jsonl").is_file():
        shutil.copy(folder / name / "validated.jsonl", folder / "said" / f"{name}.validated.jsonl")
    start = time.monotonic()
    for test in SLOW_TESTS if settings.reasons else TESTS:
        records = list(read_records(folder / f"{test}.jsonl"))
        write_judgments(
            folder / "said" / f"{name}.{test}.jsonl", records, judge.judge([record_case(r) for r in records])
        )
    figures["judging_seconds"] = round(time.monotonic() - start)
    if kind != "process" and not {"blind", "reasons"} & set(marks):
        opinions(folder, name, judge, rated_by_seekers(folder))
    if kind == "unified" and not marks:
        from tampered import tampered

        figures["tampered"] = tampered(judge, list(read_records(folder / "esconv.jsonl"))[:300])
    from side_by_side import done

    done(folder, name, figures)


def train(folder: Path, chosen: list[str], parallel: int) -> None:
    """Trains those judges that are not there yet, several at a time."""
    from side_by_side import side_by_side

    side_by_side(__file__, folder, chosen, parallel)


def feedback_judge(folder: Path, name: str) -> None:
    """A judge trained on seekers' ratings alone, and its opinions of the rated replies held back from it."""
    from research.judge.feedback import feedback_records, is_held_back

    from compeer.reward.judge import LocalJudge
    from compeer.reward.train import RewardSettings, train_judge

    seed = int(name.split("-")[1])
    rated = rated_by_seekers(folder)
    training = [record for record in feedback_records(rated, seed) if record.split == "reward"]
    settings = RewardSettings(
        kind="outcome", steps=150, batch=16, learning_rate=1e-4, lora_rank=0, order="drawn", max_length=2048
    )
    figures = train_judge(training, settings, folder / name, seed)
    held = [entry for entry in rated if is_held_back(entry, seed)]
    opinions(folder, name, LocalJudge(folder / name / "model", batch_size=48), held)
    shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)
    (folder / "said" / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def rated_by_seekers(folder: Path) -> list[Any]:
    """The rated replies of the corpora in FOLDER/rated, none of a dialogue that a judge was trained on."""
    from research.judge.people import held_out, rated_replies

    from compeer.corpora import read_corpus
    from compeer.ser.record import read_records

    trained = {record.dialogue for record in read_records(folder / "train.jsonl")}
    rated = [one for path in sorted((folder / "rated").iterdir()) for one in rated_replies(read_corpus(str(path)))]
    return held_out(rated, trained, json.loads((folder / "situations.json").read_text(encoding="utf-8")))


def opinions(folder: Path, name: str, judge: Any, rated: list[Any]) -> None:
    """Keeps what a judge of responses thinks of replies that seekers rated."""
    from research.judge.people import as_good, preferences

    found = [as_good(one) for one in preferences(judge, rated)]
    rows = dict(zip([entry.context.id for entry in rated], found, strict=True))
    (folder / "said" / f"{name}.people.json").write_text(json.dumps(rows) + "\n", encoding="utf-8")


ROWS = {
    "UnifiReward": "unified",
    "UnifiReward, unmarked": "unified-unmarked",
    "UnifiReward, taught by independent turns": "unified-apart",
    "UnifiReward, with reasons": "unified-reasons",
    "UnifiReward, response weighed 3": "unified-weighed",
    "UnifiReward, response weighed 3, unmarked": "unified-unmarked-weighed",
    "UnifiReward, response weighed 3, by LoRA": "unified-weighed-lora",
    "PRM": "process",
    "ORM": "outcome",
}


def table(folder: Path, corpus: list[Path], contexts: Path) -> None:
    """All figures of what has been judged so far, as results.json and tables.md beside this file.

    `corpus` teaches the classifier of strategies that contradictions are counted with; its dialogues must not be those
    of the test set. `contexts` are those that the records were made of: they know the strategy of each reply.
    """
    from research.judge.compare import JudgedSet, combined, compare_judges
    from research.judge.comparison_table import as_markdown, comparison_tables

    from compeer.reward.judgments import read_judgments
    from compeer.ser.record import read_records

    own = settings_of("unified")
    settings = {"steps": own.steps, "records_a_step": own.batch, "learning_rate": own.learning_rate}
    found: dict[str, Any] = {"settings": settings, "tests": {}}
    text = []
    for test in TESTS:
        records = list(read_records(folder / f"{test}.jsonl"))

        def said(kind: str, test: str = test, records: Any = records) -> dict[int, Any]:
            paths = {seed: folder / "said" / f"{kind}-{seed}.{test}.jsonl" for seed in SEEDS}
            return {seed: read_judgments(path, records) for seed, path in paths.items() if path.is_file()}

        rows = {name: JudgedSet(records, said(kind), said(f"{kind}-blind")) for name, kind in ROWS.items()}
        rows = {name: row for name, row in rows.items() if row.seeds}
        if "PRM" not in rows:
            continue
        rows["PRM + ORM"] = combined(rows["PRM"], rows["ORM"])
        pairs = [(name, "PRM + ORM") for name in rows if name.startswith("UnifiReward")]
        comparison = compare_judges(rows, pairs)
        found["tests"][test] = comparison
        text += [f"## {test}", as_markdown(comparison_tables(comparison, with_published=test == "esconv"))]
        if test == "esconv":
            comparison |= _more(records, rows)
        if test in ("esconv", "independent"):
            comparison["contradictions"] = _contradictions(records, rows, corpus, contexts)
            comparison["steps_for_responses"] = _steps_for_responses(records, rows["ORM"].seeds)
    found["people"] = _agreement(folder)
    found["trainings"] = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "said").glob("*.json"))
        if not path.stem.endswith(".people")
    }
    here = Path(__file__).parent
    (here / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (here / "tables.md").write_text("# Judges, as measured\n\n" + "\n\n".join(text) + "\n", encoding="utf-8")


def _more(records: Any, rows: Any) -> dict[str, Any]:
    """Calibration and position bias, of the first seed."""
    from compeer.reward.metrics import calibration_metrics, position_metrics

    first = {name: next(iter(row.seeds.values())) for name, row in rows.items() if name != "PRM + ORM"}
    return {
        "calibration": {name: calibration_metrics(records, said) for name, said in first.items()},
        "position": {name: position_metrics(records, said) for name, said in first.items() if name != "PRM"},
    }


def _contradictions(records: Any, rows: Any, corpus: list[Path], contexts: Path) -> dict[str, Any]:
    """Contradictions of the judges, and of the labels themselves, which is as low as the measure can go.

    What a response does is told by a classifier, where it can, and by the corpus' annotators, who saw the reply in its
    own place.
    """
    from research.judge.compare import contradiction_metrics
    from research.judge.strategies import DecidingClassifier, strategy_replies

    from compeer.corpora import read_corpus
    from compeer.reasoning import STEPS as PARTS
    from compeer.reward.score import Judgment

    dialogues_with_strategies = (dialogue for path in corpus for dialogue in read_corpus(str(path)))
    classifier = DecidingClassifier(strategy_replies(dialogues_with_strategies), seed=0)
    judges = {name: row.seeds for name, row in rows.items() if name not in ("PRM", "ORM")}
    judges["the labels themselves"] = {
        0: [
            Judgment(
                {part: float(getattr(record.labels, part).value) for part in PARTS}, {record.preference.value: 1.0}
            )
            for record in records
        ]
    }
    dialogues = [record.dialogue for record in records]
    annotated = _annotated(contexts)
    told = {
        "by the classifier": classifier.follows([record.candidate for record in records]),
        "by the annotators": [
            record.candidate.strategy.strategy in annotated.get(record.candidate.response, ()) for record in records
        ],
    }
    found = {
        name: contradiction_metrics(dialogues, follows, judges, rival="PRM + ORM") for name, follows in told.items()
    }
    return {**found, "classifier": classifier.report}


def _steps_for_responses(records: Any, seeds: Any) -> dict[str, Any]:
    """What the true step labels would add to the ORM: accuracy of a classifier of its probabilities, without and with.

    Half of the dialogues teach it and the other half are told, and the other way round.
    """
    import numpy as np
    from sklearn.ensemble import GradientBoostingClassifier

    from compeer.reasoning import STEPS as PARTS
    from compeer.ser.record import PREFERENCES
    from compeer.statistics import generator

    truth = np.array([PREFERENCES.index(record.preference.value) for record in records])
    steps = np.array([[float(getattr(record.labels, part).value) for part in PARTS] for record in records])
    half = np.array([generator(0, "halves", record.dialogue).random() < 0.5 for record in records])
    found = {}
    for seed, said in seeds.items():
        chances = np.array([[one.response.get(value, 0.0) for value in PREFERENCES] for one in said])
        right = {}
        for name, seen in (("without", chances), ("with", np.hstack([chances, steps]))):
            told = np.zeros(len(truth), dtype=int)
            for own in (half, ~half):
                model = GradientBoostingClassifier(n_estimators=80, max_depth=3, random_state=0)
                told[own] = model.fit(seen[~own], truth[~own]).predict(seen[own])
            right[name] = float((told == truth).mean())
        found[str(seed)] = right
    return found


def _annotated(contexts: Path) -> dict[str, set[str]]:
    """The strategies that annotators gave to each reply of a corpus, and so to its halves."""
    from compeer.ser.sampling import read_contexts
    from compeer.ser.wording import halves

    found: dict[str, set[str]] = {}
    for context in read_contexts(contexts):
        text = context.reply.text.strip()
        for part in (text, *(halves(text) or ())):
            found.setdefault(part, set()).add(str(context.reply.strategy))
    return found


def _agreement(folder: Path) -> dict[str, Any]:
    """How judges' opinions go together with seekers' ratings; of the feedback judges only what was held back."""
    from research.judge.people import agreement

    rated = {entry.context.id: entry for entry in rated_by_seekers(folder)}
    found = {}
    for path in sorted((folder / "said").glob("*.people.json")):
        opinions = json.loads(path.read_text(encoding="utf-8"))
        entries = [rated[key] for key in opinions]
        rows = agreement(entries, [opinions[key] for key in opinions], seed=0)
        found[path.name.split(".")[0]] = [row.model_dump() for row in rows]
    return found


def main() -> None:
    from side_by_side import parser as command_line

    parser = command_line(__doc__)
    parser.add_argument("--corpus", type=Path, nargs="+", help="table: dialogues with strategies, none of the test set")
    parser.add_argument("--contexts", type=Path, help="table: contexts.jsonl of the build")
    parser.add_argument("--esconv", type=Path, help="prepare: records of a build")
    parser.add_argument("--near", type=Path, help="prepare: a matched set of near pairs")
    parser.add_argument("--random", type=Path, help="prepare: a matched set of random pairs")
    parser.add_argument("--llm", type=Path, help="prepare: the records that the matched sets were made of")
    parser.add_argument("--independent", type=Path, help="prepare: the records of the build with --coherent 0")
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder, options.esconv, options.near, options.random, options.llm, options.independent)
    elif options.what == "train":
        train(options.folder, options.only or [*names(), *(f"feedback-{seed}" for seed in SEEDS)], options.parallel)
    elif options.what == "one":
        (name,) = options.only
        feedback_judge(options.folder, name) if name.startswith("feedback") else train_one(options.folder, name)
    else:
        table(options.folder, options.corpus, options.contexts)


if __name__ == "__main__":
    main()
