"""Does rewriting help the judge? UnifiReward taught by the same records: alone, twice, or with their rewrites.

    python research/results/personality/measure.py prepare FOLDER …   training and test records, as README.md says
    python research/results/personality/measure.py train FOLDER       what is done is not done again; --parallel, --only
    python research/results/personality/measure.py table FOLDER       results.json and tables.md beside this file

Four training sets stem from the same contexts: `original`, and, twice as large, `duplicated`, `plain` (with plain
rewrites) and `personality` (with rewrites by personality). A set holds the turns as language models judged them and the
matched pairs made of them: a right turn stands in its own and in another history. Who is paired with whom, and which
steps are mixed, is decided on the originals, so a rewritten record says what its original says, in other words. All
judges are trained for equally many steps of equally many records, as recipes/claims/personality.toml says. They are
called `set-seed`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from compeer.models.embedder import Embeds
    from compeer.reward.train import RewardSettings
    from compeer.ser.record import SerRecord

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3])]

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SEEDS = (1, 2, 3)
MIXTURES, DRAW = 2, 7
"""As the test sets were matched: mixtures of a pair's steps, and the seed that pairs and mixes."""
TESTS = ("near", "random", "llm", "esconv")
TRANSFER = 5
"""Every fifth record of the ESConv test set is judged: some of each dialogue, in a fifth of the time."""
TRAINING = {
    "original": "original.jsonl",
    "duplicated": "duplicated.jsonl",
    "plain": "with-plain.jsonl",
    "personality": "with-personality.jsonl",
}
PAIRS = (
    ("duplicated", "original"),
    ("plain", "duplicated"),
    ("personality", "duplicated"),
    ("personality", "plain"),
)


# --- the data ---------------------------------------------------------------------------------------------------------


def prepare(folder: Path, llm: Path, plain: Path, personality: Path, tests: Path) -> None:
    """Writes the four training sets and the test sets; dialogues of the test split train nothing."""
    import torch
    from research.personality.sets import equal_sets

    from compeer.models.embedder import Embedder
    from compeer.ser.record import read_records, write_records

    torch.set_num_threads(1)  # the last bits depend on the number of threads, and with them who is nearest
    embedder = Embedder()
    folder.mkdir(parents=True, exist_ok=True)
    originals = {record.id: record for record in read_records(llm) if record.split == "reward"}
    rewrites = {"plain": _by_original(plain), "personality": _by_original(personality)}
    shared = [record for key, record in originals.items() if all(key in made for made in rewrites.values())]
    reasons = {
        kind: sifted(shared, [made[record.id] for record in shared], embedder) for kind, made in rewrites.items()
    }
    kept = [record for record in shared if not any(record.id in dropped for dropped in reasons.values())]
    pairs = chosen_pairs(kept, embedder)
    write_records(folder / TRAINING["original"], taught(kept, pairs))
    for kind, made in rewrites.items():
        # Under the originals' ids the same steps are mixed; the suffix is put back once that is done.
        told = taught([made[record.id].model_copy(update={"id": record.id}) for record in kept], pairs)
        named = (record.model_copy(update={"id": f"{record.id}~{kind}"}) for record in told)
        write_records(folder / f"{kind}.jsonl", named)
    equal_sets(folder / TRAINING["original"], folder, folder / "plain.jsonl", folder / "personality.jsonl")
    for test in TESTS:
        records = list(read_records(tests / f"{test}.jsonl"))
        write_records(folder / f"test-{test}.jsonl", records[::TRANSFER] if test == "esconv" else records)
    counts = {
        "records with both rewrites": len(shared),
        "dropped by the filter": {kind: dict(Counter(dropped.values())) for kind, dropped in reasons.items()},
        "records kept": len(kept),
        "contexts kept": len({record.dialogue for record in kept}),
        "pairs": len(pairs),
        "training records": {name: sum(1 for _ in read_records(folder / file)) for name, file in TRAINING.items()},
    }
    (folder / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(counts, indent=1))


def _by_original(path: Path) -> dict[str, SerRecord]:
    from compeer.ser.record import read_records

    return {record.id.removesuffix(f"~{record.rewritten}"): record for record in read_records(path)}


def sifted(originals: Sequence[SerRecord], rewrites: Sequence[SerRecord], embedder: Embeds) -> dict[str, str]:
    """Why rewrites are dropped, by the original's id: the filter of `research/personality/rewriting.py`."""
    from research.personality.drift import Line, likeness, why_not

    from compeer.reasoning import one_line

    def history(record: SerRecord) -> list[Line]:
        return [Line(said.speaker, one_line(said.text)) for said in record.history]

    def responses(record: SerRecord) -> list[Line]:
        asks = record.candidate.strategy.strategy == "Question"
        return [
            Line("supporter", one_line(record.candidate.response), asks),
            Line("supporter", one_line(record.reference)),
        ]

    found: dict[str, str] = {}
    for before, after in zip(originals, rewrites, strict=True):
        compared = [(history(before), history(after))]
        compared += [([old], [new]) for old, new in zip(responses(before), responses(after), strict=True)]
        for old, new in compared:
            if len(old) != len(new):
                found[before.id] = "other lines or speakers"
            elif reason := why_not(old, new, likeness(old, new, embedder)):
                found[before.id] = reason
            else:
                continue
            break
    return found


def chosen_pairs(records: Sequence[SerRecord], embedder: Embeds) -> list[tuple[str, str]]:
    """The ids of right turns that are put into each other's histories, near ones and random ones, each pair once."""
    from research.judge.matching import Pairs, is_right, pair_records

    right: dict[tuple[str, int], SerRecord] = {}
    for record in records:
        if is_right(record):
            right.setdefault((record.dialogue, record.round), record)
    turns = list(right.values())
    found: dict[frozenset[str], tuple[str, str]] = {}
    for how in get_args(Pairs):
        for one, other in pair_records(turns, embedder, DRAW, how):
            pair = turns[one].id, turns[other].id
            found.setdefault(frozenset(pair), pair)
    return list(found.values())


def taught(records: Iterable[SerRecord], pairs: Iterable[tuple[str, str]]) -> Iterator[SerRecord]:
    """The records themselves and the matched ones of the pairs, those that have all labels a judge learns from."""
    from research.judge.matching import matched_records

    from compeer.ser.record import is_judged

    named = {record.id: record for record in records}
    yield from filter(is_judged, named.values())
    for one, other in pairs:
        yield from filter(is_judged, matched_records(named[one], named[other], MIXTURES, DRAW))


# --- the judges -------------------------------------------------------------------------------------------------------


def how_trained() -> RewardSettings:
    """The settings of every judge here, with one checkpoint at the end."""
    from compeer.recipe import load_recipe

    settings = load_recipe(RECIPES / "claims" / "personality.toml").judge
    return settings.model_copy(update={"save_every": settings.steps})


def train_one(folder: Path, name: str) -> None:
    """Trains one judge and lets it judge all test sets."""

    from compeer.reward.conversation import record_case
    from compeer.reward.judge import LocalJudge
    from compeer.reward.judgments import write_judgments
    from compeer.reward.train import train_judge
    from compeer.ser.record import read_records

    training, seed = name.split("-")
    settings = how_trained()
    start = time.monotonic()
    records = list(read_records(folder / TRAINING[training]))
    figures: dict[str, Any] = {"records": len(records)}
    figures |= train_judge(records, settings, folder / name, int(seed))
    figures["training_seconds"] = round(time.monotonic() - start)
    start = time.monotonic()
    judge = LocalJudge(folder / name / "model", batch_size=48, both_orders=True)
    (folder / "said").mkdir(exist_ok=True)
    for test in TESTS:
        asked = list(read_records(folder / f"test-{test}.jsonl"))
        said = judge.judge([record_case(record) for record in asked])
        write_judgments(folder / "said" / f"{name}.{test}.jsonl", asked, said)
    from side_by_side import done

    done(folder, name, figures | {"judging_seconds": round(time.monotonic() - start)})


def train(folder: Path, chosen: Sequence[str], parallel: int) -> None:
    """Trains those judges that are not there yet, several at a time."""
    from side_by_side import side_by_side

    side_by_side(__file__, folder, chosen, parallel)


# --- what came out ----------------------------------------------------------------------------------------------------


def table(folder: Path) -> None:
    """All figures of what has been judged so far, as results.json and tables.md beside this file."""
    from research.judge.compare import JudgedSet, compare_judges
    from research.judge.comparison_table import as_markdown, comparison_tables

    from compeer.reward.judgments import read_judgments
    from compeer.ser.record import read_records

    own = how_trained()
    settings = {"steps": own.steps, "records_a_step": own.batch, "learning_rate": own.learning_rate}
    settings["response_weight"] = own.response_weight
    counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {"settings": settings, "data": counts, "tests": {}}
    text = ["# Judges taught with and without rewrites, as measured"]
    for test in TESTS:
        records = list(read_records(folder / f"test-{test}.jsonl"))
        rows: dict[str, JudgedSet] = {}
        for name in TRAINING:
            paths = {seed: folder / "said" / f"{name}-{seed}.{test}.jsonl" for seed in SEEDS}
            said = {seed: read_judgments(path, records) for seed, path in paths.items() if path.is_file()}
            if said:
                rows[name] = JudgedSet(records, said)
        pairs = [pair for pair in PAIRS if rows.keys() >= set(pair)]
        found["tests"][test] = compare_judges(rows, pairs)
        # The paper's own figures for the four stand beside the test set that is most like its own.
        shown = comparison_tables(found["tests"][test], with_published=test == "llm")
        text += [f"## {test}", as_markdown(shown).rstrip()]
    found["trainings"] = _trainings(folder)
    here = Path(__file__).parent
    (here / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (here / "tables.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


def _trainings(folder: Path) -> Mapping[str, Any]:
    paths = sorted((folder / "said").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def main() -> None:
    from side_by_side import parser as command_line

    parser = command_line(__doc__)
    parser.add_argument("--llm", type=Path, help="prepare: the original records")
    parser.add_argument("--plain", type=Path, help="prepare: their plain rewrites")
    parser.add_argument("--personality", type=Path, help="prepare: their rewrites by personality")
    parser.add_argument("--tests", type=Path, help="prepare: the folder prepared by research/results/judges/measure.py")
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder, options.llm, options.plain, options.personality, options.tests)
    elif options.what == "train":
        every = [f"{name}-{seed}" for seed in SEEDS for name in TRAINING]
        train(options.folder, options.only or every, options.parallel)
    elif options.what == "one":
        (name,) = options.only
        train_one(options.folder, name)
    else:
        table(options.folder)


if __name__ == "__main__":
    main()
