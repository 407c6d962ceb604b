"""The report's tables. Each has a caption of one line: what is measured, and which direction is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compeer.reasoning import LABELS, STEPS
from compeer.report.differences import balanced_interval, decision_interval, wilson
from compeer.report.reading import RunFigures
from compeer.report.wording import (
    DASH,
    count,
    decimal,
    interval,
    percent,
    percent_interval,
    supporter_name,
    with_interval,
)

_SPLITS = {"reward": "for the judge", "policy": "for the supporter", "test": "held out"}
PREFERENCE_WORDS = {
    "candidate": "the candidate is better",
    "reference": "the reference is better",
    "both": "both are good",
    "neither": "neither is acceptable",
}


@dataclass(frozen=True)
class Table:
    """A caption, column heads (the first for the rows' names), and rows of text."""

    caption: str
    head: list[str]
    rows: list[list[str]]


def data_tables(figures: RunFigures) -> list[Table]:
    """What the dataset holds and what was left out."""
    no_direction = "Counts; no direction is better."

    def counted(title: str, head: str, key: str, names: dict[str, str] | None = None) -> Table:
        found = figures.counts("1-ser", key)
        rows = [[(names or {}).get(name, name), count(value)] for name, value in found.items()]
        return Table(f"{title} {no_direction}", [head, "number"], rows or [[DASH, DASH]])

    false = figures.counts("1-ser", "false_share")
    return [
        counted("Records by split; no dialogue is in two.", "split", "records_by_split", _SPLITS),
        Table(
            "Share of candidates' steps labelled False. A judge needs both; near 50 % it sees them equally often.",
            ["step", "False"],
            [[LABELS[step], percent(false.get(step))] for step in STEPS],
        ),
        counted("Which of two responses is better, by label.", "label", "preferences", PREFERENCE_WORDS),
        counted("Strategies of the sampled turns.", "strategy", "strategies"),
        counted("Sampled rounds that were dropped, by reason.", "reason", "dropped"),
    ]


def judge_tables(figures: RunFigures) -> list[Table]:
    """The judge on held-out records: steps, then responses."""

    def share(step: str, key: str) -> str:
        return percent(figures.number("5-evaluate", "judge", step, key))

    rows = [
        [
            LABELS[step],
            decimal(figures.number("5-evaluate", "judge", step, "weighted_f1")),
            decimal(figures.number("5-evaluate", "judge", step, "weighted_f1_always_true")),
            share(step, "recall_false"),
            with_interval(share(step, "balanced_accuracy"), percent_interval(*balanced_interval(figures, step))),
            share(step, "false_share"),
            share(step, "said_false"),
        ]
        for step in STEPS
    ]
    accuracy = figures.number("5-evaluate", "judge", "response", "accuracy")
    scored = figures.number("5-evaluate", "judge", "scored")
    said = figures.counts("5-evaluate", "judge", "response", "said")
    return [
        Table(
            "True or False for each step, against the labels. Higher is better; the last two should be alike.",
            [
                "step",
                "Weighted-F1",
                "always True",
                "recall of False",
                "balanced accuracy",
                "labels False",
                "said False",
            ],
            rows,
        ),
        Table(
            "Which response is better, one of four answers, against the labels. Higher is better.",
            ["measure", "value"],
            [
                ["Weighted-F1", decimal(figures.number("5-evaluate", "judge", "response", "weighted_f1"))],
                ["accuracy", with_interval(percent(accuracy), percent_interval(*wilson(accuracy, scored)))],
                ["always the most frequent answer", share("response", "majority_share")],
            ],
        ),
        Table(
            "How often the judge gave each answer. No direction is better; one answer only is a collapse.",
            ["answer", "times"],
            [[PREFERENCE_WORDS.get(name, name), count(value)] for name, value in said.items()] or [[DASH, DASH]],
        ),
    ]


def supporter_tables(figures: RunFigures) -> list[Table]:
    """Supporters side by side: form and decisions, score by part, diversity."""
    return [_decisions(figures), _scores(figures), _diversity(figures)] if figures.supporters else []


def _decisions(figures: RunFigures) -> Table:
    names = figures.supporters

    def figure(name: str, *keys: str) -> float | None:
        return figures.number("5-evaluate", "supporters", name, "decisions", *keys)

    def complete(name: str) -> str:
        share = figure(name, "format_complete")
        return with_interval(percent(share), percent_interval(*wilson(share, figure(name, "outputs"))))

    rows = [
        ["outputs", *(count(figure(name, "outputs")) for name in names), DASH],
        ["complete", *(complete(name) for name in names), DASH],
    ]
    for decision in ("stage", "emotion", "intensity", "strategy"):
        cells = []
        for name in names:
            bounds = percent_interval(*decision_interval(figures, name, decision))
            cells.append(with_interval(percent(figure(name, decision, "accuracy")), bounds))
        majority = [share for name in names if (share := figure(name, decision, "majority")) is not None]
        rows.append([decision, *cells, percent(majority[0] if majority else None)])
    return Table(
        "Share of outputs that are complete, or decide as the corpus does, with 95 % intervals. Higher is better.",
        ["measure", *map(supporter_name, names), "most frequent"],
        rows,
    )


def _scores(figures: RunFigures) -> Table:
    names = figures.supporters

    def figure(name: str, key: str) -> float | None:
        return figures.number("5-evaluate", "supporters", name, "reward", key)

    totals = [
        with_interval(decimal(figure(name, "total")), interval(figure(name, "low"), figure(name, "high")))
        for name in names
    ]
    rows = [["total", *totals]]
    for part in ("history", "emotion", "strategy", "response", "format"):
        rows.append([part, *(decimal(figure(name, part)) for name in names)])
    rows.append(["scored outputs", *(count(figure(name, "scored")) for name in names)])
    return Table(
        "Mean score by the judge: each part −1 to +1, the total −5 to +5 with its 95 % interval. Higher is better.",
        ["part", *map(supporter_name, names)],
        rows,
    )


_DIVERSITY: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("responses", "readable responses", count),
    ("words", "words a response (no direction)", lambda value: decimal(value, 1)),
    ("distinct_1", "distinct-1 (higher)", decimal),
    ("distinct_2", "distinct-2 (higher)", decimal),
    ("pairwise_similarity", "likeness of two responses (lower)", decimal),
    ("largest_opening", "share with the commonest opening (lower)", percent),
)


def _diversity(figures: RunFigures) -> Table:
    rows = [
        [
            title,
            *(words(figures.number("5-evaluate", "supporters", name, "diversity", key)) for name in figures.supporters),
        ]
        for key, title, words in _DIVERSITY
    ]
    return Table(
        "How varied the readable responses are; the better direction stands beside each measure.",
        ["measure", *map(supporter_name, figures.supporters)],
        rows,
    )
