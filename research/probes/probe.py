"""Blind probes: how well a record's labels can be predicted without its history. Near chance is what we want.

    python research/probes/probe.py ser/records.jsonl --out ser/probes.json --seed 7
    compeer ser card ser                                  # the dataset card, now with what the probes found

A judge that scores well without reading has learnt how mistakes are worded, not whether they are mistakes. So
classifiers that get no history are trained on the reward and policy splits and tried on the test split. For each step
they get its words, its decision, its length, those of the whole turn, or a model of the turn (vectors of its parts and
how alike they are), which finds steps that betray each other. For the preference they get the words, lengths or a model
of the two responses: which is better where one is (chance 0.5), whether the candidate is acceptable (0.5), which of the
four classes in the order given (0.25). Each is tried again *with the reasoning*, without a limit: a true step tells
what the history is about, so a response that fits the steps may rightly be preferred. Vectors come from latent semantic
analysis, and where there is an embedder from it, on as many records as its share of texts allows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import Field, computed_field
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Records, Seed, run_command
from research.probes import blind
from research.reservoir import Reservoir

from compeer.cli.printing import plain
from compeer.io import Frozen, write_json
from compeer.models.embedder import Embedder, Embeds
from compeer.progress import console
from compeer.reasoning import STEPS, Part
from compeer.ser.record import ACCEPTABLE, SerRecord, read_records
from compeer.statistics import (
    balanced_accuracy_of,
    confusion_by_group,
    generator,
    group_weights,
    percentile_interval,
    reweighted,
)

STEP_LIMIT, PREFERENCE_LIMIT = 0.55, 0.58
FEWEST = 20
"""Labels of each class that a test needs, and twice as many to train on; with fewer a probe says nothing."""
TEST_SHARE = 0.3


class Probe(Frozen):
    """How well one probe predicted one label. `passed` is None where it has no limit or too few labels to say."""

    label: str = Field(description="what it tells: a step's True or False, or something of the preference")
    sees: str = Field(description="what it looks at")
    trained: int
    tested: int
    chance: float
    limit: float | None
    balanced_accuracy: float | None = None
    low: float | None = Field(default=None, description="95 % interval, resampled by dialogue")
    high: float | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool | None:
        if self.limit is None or self.balanced_accuracy is None or self.low is None:
            return None
        # Of few labels a figure above the limit may be chance: it counts only where the interval excludes that.
        return self.balanced_accuracy <= self.limit or self.low <= self.chance


class Probes(Frozen):
    """What all probes found."""

    records: int
    sources: dict[str, int] = Field(description="records by the source of their preference")
    probes: tuple[Probe, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return all(probe.passed is not False for probe in self.probes)


def probe_records(
    records: Path, seed: int, embedder: Embeds | None = None, limit: int = 12_000, embedded_texts: int = 3_000
) -> Probes:
    """Tries all probes on a file of records, on at most `limit` of them, chosen by the seed.

    The embedder is given at most `embedded_texts` different texts.
    """
    import sklearn.ensemble  # noqa: F401, before the limit below, which holds for libraries that are loaded
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    train, test, sources = _sampled(records, seed, limit)
    if not train or not test:
        return Probes(records=len(train) + len(test), sources=sources, probes=())
    few, few_test = _with_few_texts(train, 0.6 * embedded_texts), _with_few_texts(test, 0.4 * embedded_texts)
    embedded = blind.embedded_vectors([*few, *few_test], embedder) if embedder else None
    found: list[Probe] = []
    with threadpool_limits(1):  # threads that wait for each other in small tasks make a busy machine crawl
        vectors = blind.latent_vectors(train, test, seed)
        for task in _TASKS:
            views = (*_plain_views(task), *_model_views(task, vectors, ""))
            found += [_try(task, view, train, test) for view in views]
            if embedded:
                found += [_try(task, view, few, few_test) for view in _model_views(task, embedded, ", embedded")]
    return Probes(records=len(train) + len(test), sources=sources, probes=tuple(found))


def _sampled(records: Path, seed: int, limit: int) -> tuple[list[SerRecord], list[SerRecord], dict[str, int]]:
    """Records with a preference, without their histories: for training and for the test, in the file's order."""
    rng, tested = generator(seed, "probes"), round(limit * TEST_SHARE)
    kept: dict[bool, Reservoir[tuple[int, SerRecord]]] = {
        True: Reservoir(tested, rng),
        False: Reservoir(limit - tested, rng),
    }
    sources: Counter[str] = Counter()
    for number, record in enumerate(read_records(records)):
        if record.preference is not None:
            sources[record.preference.source] += 1
            kept[record.split == "test"].offer((number, record.model_copy(update={"history": ()})))
    train, test = ([case for _, case in sorted(kept[part].items, key=lambda entry: entry[0])] for part in (False, True))
    return train, test, dict(sources)


def _with_few_texts(cases: blind.Cases, most: float) -> list[SerRecord]:
    """The first cases that have at most so many different texts; neighbours share many."""
    texts: set[str] = set()
    for number, case in enumerate(cases):
        texts.update(blind.all_texts(case))
        if len(texts) > most:
            return list(cases[:number])
    return list(cases)


# --- which labels are predicted, and from what ------------------------------------------------------------------------


@dataclass(frozen=True)
class _ProbeTask:
    """One label to tell: the answer of a case (None: it has none), and for preferences the two responses."""

    label: str
    answer: Callable[[SerRecord], blind.Label | None]
    limit: float = PREFERENCE_LIMIT
    chance: float = 0.5
    part: int | None = None
    pair: blind.PairOf = blind.responses


def _class(record: SerRecord) -> str:
    value = record.preference.value if record.preference else ""
    if value not in ("candidate", "reference"):
        return value
    return "first" if (value == "candidate") == record.candidate_first else "second"


def _better(record: SerRecord) -> str | None:
    return found if (found := _class(record)) in ("first", "second") else None


def _acceptable(record: SerRecord) -> bool:
    return record.preference is not None and record.preference.value in ACCEPTABLE


def _step_label(part: Part, record: SerRecord) -> bool | None:
    return getattr(record.labels, part).value if record.labels else None


_TASKS = (
    *(_ProbeTask(f"{s} step", partial(_step_label, s), STEP_LIMIT, part=part) for part, s in enumerate(STEPS)),
    _ProbeTask("preference: the better one", _better),
    _ProbeTask(
        "preference: candidate acceptable", _acceptable, pair=lambda case: (case.candidate.response, case.reference)
    ),
    _ProbeTask("preference: four classes", _class, chance=0.25),
)


@dataclass(frozen=True)
class _View:
    """What a probe gets: features of the cases for training and test, and who learns from them."""

    sees: str
    features: Callable[[blind.Cases, blind.Cases], tuple[Any, Any]]
    learner: Callable[[Any, Sequence[blind.Label], Any, Sequence[str]], Sequence[blind.Label]]
    limited: bool = True


def _plain_views(task: _ProbeTask) -> list[_View]:
    part, pair = task.part, task.pair
    if part is None:
        return [
            _View("words", partial(blind.pair_word_features, pair), blind.linear),
            _View("lengths", partial(blind.shape_features, pair), blind.trees),
            _View("words, with the reasoning", partial(blind.words_with_reasoning, pair), blind.linear, limited=False),
        ]

    def line(case: SerRecord) -> list[str]:
        return blind.step_lines(case)[part : part + 1]

    def text(case: SerRecord) -> list[str]:
        return blind.step_texts(case)[part : part + 1]

    return [
        _View("words of the step", partial(blind.word_features, line), blind.linear),
        _View("words of the turn", partial(blind.word_features, blind.step_lines), blind.linear),
        _View(
            "decision of the step",
            partial(blind.token_features, lambda case: blind.decisions(case)[part]),
            blind.linear,
        ),
        _View("decisions of the turn", partial(blind.token_features, blind.decision_tokens), blind.linear),
        _View("length of the step", partial(blind.shape_features, text), blind.trees),
    ]


def _model_views(task: _ProbeTask, vectors: blind.Vectors, how: str) -> list[_View]:
    if task.part is not None:
        features = partial(_both, blind.turn_features, vectors, task.part)
        return [_View(f"model of the turn{how}", features, blind.ridge_and_trees)]
    plain, reasoned = (partial(_both, blind.pair_features, vectors, task.pair, reads) for reads in (False, True))
    return [
        _View(f"model{how}", plain, blind.ridge_and_trees),
        _View(f"model, with the reasoning{how}", reasoned, blind.ridge_and_trees, limited=False),
    ]


def _both(make: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
    """What `make` gives for the cases of training, and for those of the test, which come last."""
    *more, train, test = given
    return make(*more, train), make(*more, test)


def _try(task: _ProbeTask, view: _View, train: blind.Cases, test: blind.Cases) -> Probe:
    train, test = ([case for case in cases if task.answer(case) is not None] for cases in (train, test))
    learnt, truth = ([task.answer(case) for case in cases] for cases in (train, test))
    probe = Probe(
        label=task.label,
        sees=view.sees,
        trained=len(train),
        tested=len(test),
        chance=task.chance,
        limit=task.limit if view.limited else None,
    )
    rarest = [
        min(counts.values()) if len(counts := Counter(those)) == round(1 / task.chance) else 0
        for those in (truth, learnt)
    ]
    if min(rarest[0], rarest[1] / 2) < FEWEST:
        return probe
    ours, theirs = view.features(train, test)
    answers = view.learner(ours, learnt, theirs, [case.dialogue for case in train])  # type: ignore[arg-type]
    from sklearn.metrics import balanced_accuracy_score  # takes seconds

    low, high = interval_by_dialogue(truth, answers, [case.dialogue for case in test])
    return probe.model_copy(
        update={"balanced_accuracy": balanced_accuracy_score(truth, answers), "low": low, "high": high}
    )


def interval_by_dialogue(truth: Sequence[Any], answers: Sequence[Any], dialogues: Sequence[str]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the balanced accuracy, whole dialogues resampled."""
    names, classes = (
        {value: index for index, value in enumerate(dict.fromkeys(values))}
        for values in (dialogues, [*truth, *answers])
    )
    groups = np.array([names[dialogue] for dialogue in dialogues])
    true, predicted = (np.array([classes[value] for value in values]) for values in (truth, answers))
    confusions = confusion_by_group(groups, true, predicted, (len(names), len(classes)))
    interval = percentile_interval(balanced_accuracy_of(reweighted(group_weights(len(names))[1:], confusions)))
    return interval or (0.0, 1.0)


# --- the command ------------------------------------------------------------------------------------------------------

_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}


def main(
    records: Records,
    out: Annotated[Path | None, typer.Option(help="A JSON file to write what was found to.")] = None,
    embedder: Annotated[str, typer.Option(help="'embedded', a sentence-transformers folder, or 'words'.")] = "embedded",
    limit: Annotated[int, typer.Option(help="Records looked at, chosen by the seed.", min=100)] = 20_000,
    seed: Seed = 0,
) -> None:
    """Try to tell the labels without the history; exit code 1 if a probe does better than its limit."""
    found = probe_records(records, seed, None if embedder == "words" else Embedder(embedder), limit, 6_000)
    table = Table("", "what it tells", "what it sees", "balanced accuracy", "limit", "labels", box=None)
    for one in found.probes:
        accuracy = "too few labels"
        if one.balanced_accuracy is not None:
            accuracy = f"{one.balanced_accuracy:.3f} ({one.low:.3f} to {one.high:.3f}), chance {one.chance:g}"
        most = "–" if one.limit is None else f"{one.limit:g}"
        table.add_row(_MARKS[one.passed], plain(one.label), plain(one.sees), accuracy, most, f"{one.tested:,}")
    console.print(table)
    if out:
        write_json(out, found.model_dump(mode="json"))
    if not found.passed:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
