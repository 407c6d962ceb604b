"""Which charts the report has: curves of the three trainings, and dots with intervals of what was measured."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from compeer.reasoning import LABELS, STEPS
from compeer.report.charts import Dot, Series, dot_chart, line_chart
from compeer.report.differences import balanced_interval, decision_interval
from compeer.report.headlines import CHANCE
from compeer.report.reading import RunFigures, as_number
from compeer.report.wording import percent, signed, supporter_name

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SCORES = (-5.0, -3.0, -1.0, 1.0, 3.0, 5.0)


def _series(figures: RunFigures, stage: str, names: Mapping[str, str]) -> list[Series]:
    """The logged figures by their keys, each under a name that people read."""
    rows = figures.curves.get(stage, [])
    steps = [as_number(row.get("step")) for row in rows]
    return [
        Series(
            name, [(step, as_number(row.get(key))) for step, row in zip(steps, rows, strict=True) if step is not None]
        )
        for key, name in names.items()
    ]


def supervised_charts(figures: RunFigures, stage: str) -> list[Markup]:
    """Loss and token accuracy of a supervised training; none of a model that was taken as it is."""
    if figures.number(stage, "steps") == 0:
        return []
    loss = _series(figures, stage, {"loss": "loss"})
    accuracy = _series(figures, stage, {"mean_token_accuracy": "share of tokens"})
    return [
        line_chart(f"{stage}-loss", "Loss (lower is better)", loss, y_label="cross-entropy"),
        line_chart(f"{stage}-accuracy", "Tokens predicted rightly (higher is better)", accuracy, y_label="share"),
    ]


_REWARD_CHARTS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "score",
        "Mean score, and reward after reweighting (higher is better)",
        "−5 to +5",
        {"raw/total": "score", "reward": "reward"},
    ),
    (
        "parts",
        "Mean score by part (higher is better)",
        "−1 to +1",
        {f"raw/{part}": part.capitalize() for part in ("history", "emotion", "strategy", "response", "format")},
    ),
    (
        "redundancy",
        "Redundancy (s_in and s_hi: lower is better)",
        "0 to 1",
        {
            "redundancy/s_in": "s_in, within the group",
            "redundancy/s_hi": "s_hi, to the history",
            "redundancy/tau": "τ, the length gate",
        },
    ),
    (
        "shares",
        "Lost: tied groups, outputs cut off or unscored (lower is better)",
        "share",
        {
            "raw/tied_groups": "tied groups",
            "completions/clipped_ratio": "outputs cut off",
            "raw/unscored_share": "outputs unscored",
        },
    ),
    (
        "diversity",
        "Diversity of a step's responses (higher is better)",
        "share",
        {"response/distinct_1": "distinct-1", "response/distinct_2": "distinct-2"},
    ),
    ("entropy", "Entropy (near 0: it always says the same)", "nats a token", {"entropy": "entropy"}),
    ("length", "Length of a response", "words", {"response/words": "words"}),
)


def reward_charts(figures: RunFigures) -> list[Markup]:
    """The curves of training by reward."""
    return [
        line_chart(f"grpo-{key}", title, _series(figures, "4-grpo", names), y_label=unit)
        for key, title, unit, names in _REWARD_CHARTS
    ]


def judge_chart(figures: RunFigures) -> Markup:
    """The judge's balanced accuracy by step, beside chance."""
    dots = [
        Dot(
            LABELS[step],
            figures.number("5-evaluate", "judge", step, "balanced_accuracy"),
            *balanced_interval(figures, step),
        )
        for step in STEPS
    ]
    title = "Balanced accuracy by step (higher is better)"
    return dot_chart("judge-balanced", title, dots, SHARES, ("chance", CHANCE), percent)


def supporter_charts(figures: RunFigures) -> list[Markup]:
    """Each supporter's score and decisions, with intervals."""
    if not figures.supporters:
        return []

    charts = [dot_chart("score", "Mean score (higher is better)", _dots_of_score(figures), SCORES, words=_points)]
    for decision in ("stage", "emotion", "intensity", "strategy"):
        majority = figures.number("5-evaluate", "supporters", figures.supporters[0], "decisions", decision, "majority")
        title = f"{decision.capitalize()} as in the corpus (higher is better)"
        mark = ("always the most frequent", majority)
        charts.append(dot_chart(decision, title, _dots_of(figures, decision), SHARES, mark, percent))
    return charts


def _points(value: float | None) -> str:
    return signed(value).removesuffix(".00")


def _dots_of_score(figures: RunFigures) -> list[Dot]:
    keys = ("total", "low", "high")
    return [
        Dot(_short(name), *(figures.number("5-evaluate", "supporters", name, "reward", key) for key in keys))
        for name in figures.supporters
    ]


def _dots_of(figures: RunFigures, decision: str) -> list[Dot]:
    return [
        Dot(
            _short(name),
            figures.number("5-evaluate", "supporters", name, "decisions", decision, "accuracy"),
            *decision_interval(figures, name, decision),
        )
        for name in figures.supporters
    ]


def _short(name: str) -> str:
    """A supporter's name that fits beside its row; the tables have it whole."""
    name = supporter_name(name)
    return name if len(name) <= 12 else f"{name[:11]}…"
