"""What came out, in a handful of sentences: each says what the figures are, and what chance would make of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from compeer.reasoning import LABELS, STEPS
from compeer.report.differences import balanced_interval, complete, decision_interval, overlap, paired, totals, wilson
from compeer.report.reading import RunFigures
from compeer.report.wording import (
    decimal,
    interval,
    listing,
    percent,
    percent_interval,
    plural,
    signed,
    supporter_name,
    with_interval,
)

CHANCE = 0.5


@dataclass(frozen=True)
class Headline:
    """A question, and the sentences that answer it."""

    question: str
    sentences: list[str]


def headlines(figures: RunFigures) -> list[Headline]:
    """The headlines of a run; one without figures is left out."""
    found = [_form(figures), _score(figures), _judge_steps(figures), _judge_response(figures), _strategy(figures)]
    return [headline for headline in found if headline]


def _form(figures: RunFigures) -> Headline | None:
    parts, shares = [], {}
    for name in figures.supporters:
        shares[name] = figures.number("5-evaluate", "supporters", name, "decisions", "format_complete")
        outputs = figures.number("5-evaluate", "supporters", name, "decisions", "outputs")
        bounds = percent_interval(*wilson(shares[name], outputs))
        parts.append(f"{supporter_name(name)}\u00a0{with_interval(percent(shares[name]), bounds)}")
    if all(share is None for share in shares.values()):
        return None
    sentences = [f"Complete outputs: {listing(parts)}."]
    for before, after in pairwise(figures.supporters):
        difference = paired(complete(figures, before), complete(figures, after))
        if difference:
            bounds = interval(100 * difference.low, 100 * difference.high, 0)
            sentences.append(
                f"From {supporter_name(before)} to {supporter_name(after)}: {signed(100 * difference.value, 0)} points "
                f"{bounds} on the same {plural(difference.pairs, 'history', 'histories')}. {difference.verdict}."
            )
    return Headline("Do supporters write all three steps and a response?", sentences)


def _score(figures: RunFigures) -> Headline | None:
    def reward(name: str, key: str) -> float | None:
        return figures.number("5-evaluate", "supporters", name, "reward", key)

    names = figures.supporters
    if all(reward(name, "total") is None for name in names):
        return None
    parts = [
        f"{supporter_name(name)}\u00a0"
        + with_interval(decimal(reward(name, "total")), interval(reward(name, "low"), reward(name, "high")))
        for name in names
    ]
    sentences = [f"Mean score, from −5 to +5: {listing(parts)}."]
    for before, after in pairwise(names):
        pair = f"From {supporter_name(before)} to {supporter_name(after)}"
        if difference := paired(totals(figures, before), totals(figures, after)):
            sentences.append(
                f"{pair}: {signed(difference.value)} {interval(difference.low, difference.high)} on the same "
                f"{plural(difference.pairs, 'history', 'histories')}. {difference.verdict}."
            )
            continue
        first, second = ((reward(name, "low"), reward(name, "high")) for name in (before, after))
        if (touching := overlap(first, second)) is not None:
            means = "overlap: the difference is within what chance gives" if touching else "do not overlap"
            sentences.append(f"{pair}: the intervals {means}.")
    return Headline("Does the judge score them higher?", sentences)


def _judge_steps(figures: RunFigures) -> Headline | None:
    values = {step: figures.number("5-evaluate", "judge", step, "balanced_accuracy") for step in STEPS}
    if all(value is None for value in values.values()):
        return None
    parts: list[str] = []
    apart: list[str] = []
    together: list[str] = []
    for step, value in values.items():
        low, high = balanced_interval(figures, step)
        parts.append(f"{LABELS[step]}\u00a0{with_interval(percent(value), percent_interval(low, high))}")
        if low is not None and high is not None:
            (apart if low > CHANCE else together).append(LABELS[step])
    sentences = [f"Balanced accuracy, where 50 % is chance: {listing(parts)}."]
    if apart:
        sentences.append(f"Above chance: {listing(apart)}.")
    if together:
        sentences.append(f"Not to be told from chance, or below it: {listing(together)}.")
    return Headline("Does the judge know a right step from a wrong one?", sentences)


def _judge_response(figures: RunFigures) -> Headline | None:
    accuracy = figures.number("5-evaluate", "judge", "response", "accuracy")
    majority = figures.number("5-evaluate", "judge", "response", "majority_share")
    if accuracy is None or majority is None:
        return None
    low, high = wilson(accuracy, figures.number("5-evaluate", "judge", "scored"))
    sentences = [
        f"It names the right one of four answers in {with_interval(percent(accuracy), percent_interval(low, high))} "
        f"of cases. Always giving the most frequent answer would be right in {percent(majority)}."
    ]
    if low is not None and high is not None:
        if low > majority:
            sentences.append("The judge does better than that.")
        elif high < majority:
            sentences.append("The judge does worse than that.")
        else:
            sentences.append("The difference is within what chance gives.")
    return Headline("Does the judge know which response is better?", sentences)


def _strategy(figures: RunFigures) -> Headline | None:
    parts, majority = [], None
    for name in figures.supporters:
        keys = ("5-evaluate", "supporters", name, "decisions", "strategy")
        accuracy, bounds = figures.number(*keys, "accuracy"), decision_interval(figures, name, "strategy")
        majority = figures.number(*keys, "majority") if majority is None else majority
        if accuracy is not None:
            parts.append(f"{supporter_name(name)}\u00a0{with_interval(percent(accuracy), percent_interval(*bounds))}")
    if not parts:
        return None
    return Headline(
        "Do supporters choose the strategy that the corpus has?",
        [f"{listing(parts)}. Always naming the most frequent strategy would be right in {percent(majority)}."],
    )
