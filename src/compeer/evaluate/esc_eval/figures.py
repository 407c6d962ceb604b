"""From scores to the figures of ESC-Eval: 100·Σ/(4N) for each dimension, their average, how sure, and how many.

An item is one dimension of one conversation. Its score is the mean over the judges that scored it; an item that no
judge scored is left out of Σ and N and counted. A dimension's figure is 100·Σ/(4N), the average is the mean of the
seven figures. Scenarios are drawn anew, with all their repeats and judges together, for 95 % intervals: conversations
of one scenario are alike, and counting them one by one would make the figures look surer than they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from compeer.errors import InputError
from compeer.evaluate.esc_eval.rubric import DIMENSIONS, HIGHEST, Dimension
from compeer.io import Frozen
from compeer.statistics import Numbers, drawn_interval, group_weights, ratio, reweighted

Unscored = Literal["unreadable", "refused", "failed", "nothing said"]
Item = tuple[str, int, Dimension]
"""A scenario's id, the repeat, and the dimension."""


class ScoreRow(Frozen):
    """What one judge gave one conversation in one dimension, or why there is no score."""

    conversation: str = Field(description="the scenario's id")
    repeat: int = Field(default=1, ge=1, description="which conversation of the scenario")
    language: str
    judge: str
    dimension: Dimension
    score: int | None = Field(default=None, ge=0, le=HIGHEST)
    unscored: Unscored | None = Field(
        default=None,
        description="unreadable: what the judge wrote; refused: the question cannot be answered as it is, being too "
        "long, say; failed: the judge could not be reached; nothing said: there is no supporter's message",
    )
    reason: str | None = Field(default=None, description="more on why it is unscored")
    answer: str | None = Field(default=None, description="the judge's answer as it was")
    tries: int = Field(default=0, ge=0, description="how often the judge answered")

    @model_validator(mode="after")
    def _scored_or_not(self) -> Self:
        if (self.score is None) == (self.unscored is None):
            raise ValueError("a row has a score, or says why it has none")
        return self


class Figure(Frozen):
    """A figure from 0 to 100 with its 95 % interval, and how many of the items it rests on."""

    score: float | None = Field(description="none: nothing was scored")
    low: float | None = Field(default=None, description="none: fewer than two scenarios were scored")
    high: float | None = None
    scored: int
    items: int


class DimensionFigure(Figure):
    """The figure of a dimension."""

    unscored: dict[str, int] = Field(description="judges' answers without a score, by kind")
    judges: dict[int, int] = Field(description="items by the number of judges that scored them")


class Averages(Frozen):
    """The seven figures and their mean, of a part of the scores."""

    dimensions: dict[Dimension, float | None]
    average: float | None
    scored: int = Field(description="scores that were given")
    asked: int


class EscEvalFigures(Frozen):
    """Everything ESC-Eval says of one supporter."""

    scenarios: int
    conversations: int
    dimensions: dict[Dimension, DimensionFigure]
    average: Figure = Field(description="the mean of the seven; scored counts conversations with all seven")
    by_judge: dict[str, Averages]
    by_repeat: dict[int, Averages]
    repeat_deviation: float | None = Field(
        description="the standard deviation of the average between repeats; none with fewer than two"
    )
    all_alike: dict[str, float] = Field(
        description="by judge: the share of its conversations, all seven scored, that got one score seven times"
    )


def all_alike(rows: Sequence[ScoreRow]) -> dict[str, float]:
    """How often a judge gives a conversation the same score in all seven dimensions: it then tells none apart."""
    by_judge: dict[str, dict[tuple[str, int], list[int]]] = {}
    for row in rows:
        if row.score is not None:
            talks = by_judge.setdefault(row.judge, {})
            talks.setdefault((row.conversation, row.repeat), []).append(row.score)
    found = {}
    for judge, talks in sorted(by_judge.items()):
        whole = [scores for scores in talks.values() if len(scores) == len(DIMENSIONS)]
        if whole:
            found[judge] = sum(len(set(scores)) == 1 for scores in whole) / len(whole)
    return found


def item_scores(rows: Sequence[ScoreRow]) -> dict[Item, float]:
    """Each item's mean over the judges that scored it, 0 to 4; items that nobody scored are left out."""
    by_item: dict[Item, list[int]] = {}
    for row in rows:
        if row.score is not None:
            by_item.setdefault((row.conversation, row.repeat, row.dimension), []).append(row.score)
    return {item: sum(by_item[item]) / len(by_item[item]) for item in sorted(by_item)}


def esc_eval_figures(rows: Sequence[ScoreRow], draws: int = 1000, seed: int = 0) -> EscEvalFigures:
    """The figures of all rows, which may stand in any order."""
    _refuse_twice(rows)
    scores = item_scores(rows)
    scenarios = sorted({row.conversation for row in rows})
    conversations = {(row.conversation, row.repeat) for row in rows}
    drawn = _figures(scores, scenarios, group_weights(len(scenarios), draws, seed))
    known = {dimension: {item[0] for item in scores if item[2] == dimension} for dimension in DIMENSIONS}
    whole = [one for one in conversations if all((*one, dimension) in scores for dimension in DIMENSIONS)]
    by_repeat = {
        repeat: _averages([row for row in rows if row.repeat == repeat]) for repeat in sorted({r.repeat for r in rows})
    }
    averages = [part.average for part in by_repeat.values() if part.average is not None]
    return EscEvalFigures(
        scenarios=len(scenarios),
        conversations=len(conversations),
        all_alike=all_alike(rows),
        dimensions={
            dimension: DimensionFigure(
                **_shown(drawn[:, place], len(known[dimension])),
                scored=sum(item[2] == dimension for item in scores),
                items=len({(row.conversation, row.repeat) for row in rows if row.dimension == dimension}),
                **_coverage([row for row in rows if row.dimension == dimension]),
            )
            for place, dimension in enumerate(DIMENSIONS)
        },
        average=Figure(
            **_shown(drawn.mean(axis=1), min(len(found) for found in known.values())),
            scored=len(whole),
            items=len(conversations),
        ),
        by_judge={
            judge: _averages([row for row in rows if row.judge == judge]) for judge in sorted({r.judge for r in rows})
        },
        by_repeat=by_repeat,
        repeat_deviation=float(np.std(averages, ddof=1)) if len(averages) > 1 else None,
    )


def _figures(scores: dict[Item, float], scenarios: Sequence[str], weights: Numbers) -> Numbers:
    """100·Σ/(4N) of each dimension, a row for each row of weights; NaN where nothing was scored."""
    place = {scenario: number for number, scenario in enumerate(scenarios)}
    sums, counts = np.zeros((2, len(scenarios), len(DIMENSIONS)))
    for (scenario, _, dimension), score in scores.items():
        sums[place[scenario], DIMENSIONS.index(dimension)] += score
        counts[place[scenario], DIMENSIONS.index(dimension)] += 1
    return ratio(100 * reweighted(weights, sums), HIGHEST * reweighted(weights, counts))


def _shown(values: Numbers, scenarios: int) -> dict[str, float | None]:
    """The figure, which comes first, and the interval of its draws."""
    interval = drawn_interval(values[1:]) if scenarios > 1 else None
    low, high = interval or (None, None)
    return {"score": float(values[0]) if np.isfinite(values[0]) else None, "low": low, "high": high}


def _averages(rows: Sequence[ScoreRow]) -> Averages:
    scenarios = sorted({row.conversation for row in rows})
    figures = _figures(item_scores(rows), scenarios, np.ones((1, len(scenarios))))[0]
    known = [float(figure) if np.isfinite(figure) else None for figure in figures]
    return Averages(
        dimensions=dict(zip(DIMENSIONS, known, strict=True)),
        average=float(figures.mean()) if np.isfinite(figures).all() else None,
        scored=sum(row.score is not None for row in rows),
        asked=len(rows),
    )


def _coverage(rows: Sequence[ScoreRow]) -> dict[str, Any]:
    by_item = Counter((row.conversation, row.repeat) for row in rows if row.score is not None)
    judged = Counter(
        by_item[row.conversation, row.repeat] for row in {(r.conversation, r.repeat): r for r in rows}.values()
    )
    unscored = Counter(row.unscored for row in rows if row.unscored is not None)
    return {"unscored": dict(sorted(unscored.items())), "judges": dict(sorted(judged.items()))}


def _refuse_twice(rows: Sequence[ScoreRow]) -> None:
    keys = Counter((row.conversation, row.repeat, row.judge, row.dimension) for row in rows)
    for (conversation, repeat, judge, dimension), count in keys.items():
        if count > 1:
            raise InputError(
                f"conversation '{conversation}' (repeat {repeat}) has {count} rows by judge '{judge}' for {dimension}.",
                do="Give each conversation an id and repeat of its own, and each judge a name of its own.",
            )
