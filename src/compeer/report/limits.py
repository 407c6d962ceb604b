"""What a run does not show: warnings computed from its figures, and limits that hold for every run of this kind.

A warning appears only if its figures call for it, and names them. The thresholds stand here, in one place, with their
reasons; none of them decides anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compeer.reasoning import LABELS, STEPS
from compeer.report.reading import STAGES, RunFigures, find
from compeer.report.wording import BEST_OF, decimal, language_name, listing, percent, plural, supporter_name

NEAR_CHANCE = 0.6
"""A judge with less balanced accuracy than this is wrong in two of five cases: its rewards are mostly noise."""
FEW_HISTORIES = 50
"""With fewer, the interval of a share is wider than a quarter."""
FEW_RECORDS = 100
FEW_STEPS = 100
"""Training by reward moves a model slowly; published runs take hundreds of steps."""
WIDE_SCORE, WIDE_SHARE = 1.0, 0.25
MANY_TIED = 0.25
_PARTS = ("history", "emotion", "strategy", "response", "format")


@dataclass(frozen=True)
class Caution:
    """A short name of what is wrong, and what follows from it."""

    title: str
    text: str


def warnings_of(figures: RunFigures) -> list[Caution]:
    """The warnings that this run's own figures call for, gravest first."""
    return [
        *_missing_stages(figures),
        *_collapsed(figures),
        *_near_chance(figures),
        *_response_at_majority(figures),
        *_few(figures),
        *_wide(figures),
        *_training_by_reward(figures),
        *_unscored(figures),
        *_incomplete(figures),
    ]


def limits_of(figures: RunFigures) -> list[Caution]:
    """What holds whatever the figures are: where labels, scores and words come from."""
    found = [
        Caution(
            "The judge measures its own pupil.",
            "The judge whose verdicts were the reward also gives the scores here. A higher score can mean a better "
            "supporter, or one that has learnt what this judge likes.",
        ),
        Caution("No person read the responses.", "Whether they would help a seeker was not asked."),
        Caution(
            "One seed.",
            "Intervals count the chance of which histories were drawn. They do not count the chance of training: "
            "another seed gives another model.",
        ),
        Caution(
            "No blind twin.",
            "A judge can do well from wording alone. How much this one owes to the history would show only beside a "
            "twin that was trained without histories.",
        ),
    ]
    if any(name.startswith(BEST_OF) for name in figures.supporters):
        chose = "It chose them without seeing the corpus' reply, but it likes in the score what it liked in choosing."
        found.insert(1, Caution("The judge also chose the best outputs.", chose))
    if figures.of("1-ser", "label_source") == "silver":
        silver = "Labels are silver: a rule made them from the corpus, not people. The judge can be no wiser than that."
        found.insert(0, Caution("No person labelled anything.", silver))
    if find(figures.recipe, "ser", "corpus") == "sample":
        sample = "The sample corpus was written for this project. It is small, and real seekers may speak otherwise."
        found.append(Caution("A written corpus.", sample))
    languages = find(figures.recipe, "ser", "languages")
    if isinstance(languages, list | tuple) and len(languages) == 1:
        only = language_name(str(languages[0]))
        found.append(Caution(f"{only} only.", "Nothing here says how any other language would fare."))
    return found


def _part(name: str) -> str:
    return {str(key): label for key, label in LABELS.items()}.get(name, name.capitalize())


def _missing_stages(figures: RunFigures) -> Iterator[Caution]:
    missing = [stage for stage in STAGES if stage not in figures.manifests]
    if missing:
        yield Caution("The run is not whole.", f"There are no figures of {listing(missing)}.")


def _collapsed(figures: RunFigures) -> Iterator[Caution]:
    parts = [_part(name) for name in figures.names("5-evaluate", "judge_says_the_same_to_all")]
    if parts:
        yield Caution(
            f"The judge says the same to everything: {listing(parts)}.",
            "There it can teach nothing, and its scores there say nothing about any supporter.",
        )


def _near_chance(figures: RunFigures) -> Iterator[Caution]:
    values = {step: figures.number("5-evaluate", "judge", step, "balanced_accuracy") for step in STEPS}
    near = [
        f"{LABELS[step]} ({percent(value)})"
        for step, value in values.items()
        if value is not None and value < NEAR_CHANCE
    ]
    if near:
        yield Caution(
            f"The judge is near chance: {listing(near)}.",
            "Its balanced accuracy is under 60 %, where 50 % is chance. Rewards for these parts are mostly noise, and "
            "so are their scores below.",
        )


def _response_at_majority(figures: RunFigures) -> Iterator[Caution]:
    accuracy = figures.number("5-evaluate", "judge", "response", "accuracy")
    majority = figures.number("5-evaluate", "judge", "response", "majority_share")
    if accuracy is not None and majority is not None and accuracy <= majority:
        yield Caution(
            f"The judge does not know better responses: right in {percent(accuracy)}.",
            f"Always giving the most frequent answer would be right in {percent(majority)}.",
        )


def _few(figures: RunFigures) -> Iterator[Caution]:
    outputs = [
        number
        for name in figures.supporters
        if (number := figures.number("5-evaluate", "supporters", name, "decisions", "outputs")) is not None
    ]
    if outputs and min(outputs) < FEW_HISTORIES:
        yield Caution(
            f"Few histories: {plural(min(outputs), 'output', 'outputs')} for a supporter.",
            "Small differences between supporters cannot be seen with so few.",
        )
    records = figures.number("5-evaluate", "judge", "records")
    if records is not None and records < FEW_RECORDS:
        counted = plural(records, "record", "records")
        yield Caution(f"The judge was measured on {counted}.", "Its figures may be far off.")


def _wide(figures: RunFigures) -> Iterator[Caution]:
    wide = []
    for name in figures.supporters:
        keys = ("5-evaluate", "supporters", name)
        score = _width(figures, *keys, "reward")
        if score is not None and score > WIDE_SCORE:
            wide.append(f"{supporter_name(name)}'s score ({decimal(score, 1)} points wide)")
        for decision in ("stage", "emotion", "intensity", "strategy"):
            share = _width(figures, *keys, "decisions", decision)
            if share is not None and share > WIDE_SHARE:
                wide.append(f"{supporter_name(name)}'s {decision} ({100 * share:.0f} points)")
    if wide:
        shown = [*wide[:4], f"{len(wide) - 4} more"] if len(wide) > 5 else wide
        yield Caution("Wide intervals.", f"The true figure may lie anywhere in them: {listing(shown)}.")


def _width(figures: RunFigures, *keys: str) -> float | None:
    low, high = figures.number(*keys, "low"), figures.number(*keys, "high")
    return None if low is None or high is None else high - low


def _training_by_reward(figures: RunFigures) -> Iterator[Caution]:
    steps = figures.number("4-grpo", "steps")
    if steps is not None and steps < FEW_STEPS:
        yield Caution(
            f"Training by reward was short: {plural(steps, 'step', 'steps')}.",
            "That shows that it runs. Whether it helps would need hundreds.",
        )
    tied = figures.number("4-grpo", "tied_groups")
    if tied is not None and tied >= MANY_TIED:
        yield Caution(
            f"Groups without a lesson: {percent(tied)}.",
            "All outputs of such a group had the same raw score. None did better than another, so none was taught.",
        )
    still = [_part(name) for name in figures.names("4-grpo", "parts_that_never_varied")]
    if still:
        everything = " Training by reward had nothing to learn from." if len(still) == len(_PARTS) else ""
        yield Caution(
            f"Parts that never varied: {listing(still)}.",
            f"Within every group all outputs got the same mark there, so nothing could be learnt from it.{everything}",
        )


def _unscored(figures: RunFigures) -> Iterator[Caution]:
    share = figures.number("4-grpo", "unscored_share")
    if share:
        yield Caution(
            f"Unscored outputs in training: {percent(share)}.", "The judge failed on them. They were left out."
        )
    for name in figures.supporters:
        keys = ("5-evaluate", "supporters", name)
        outputs, scored = figures.number(*keys, "decisions", "outputs"), figures.number(*keys, "reward", "scored")
        if outputs is not None and scored is not None and scored < outputs:
            left = plural(outputs - scored, "output has", "outputs have")
            yield Caution(f"{supporter_name(name)}: {left} no score.", "The judge failed on them.")
        if failures := figures.names(*keys, "failures"):
            histories = plural(len(failures), "history", "histories")
            yield Caution(f"{supporter_name(name)}: no output for {histories}.", "These are in none of its figures.")


def _incomplete(figures: RunFigures) -> Iterator[Caution]:
    parts = []
    for name in figures.supporters:
        share = figures.number("5-evaluate", "supporters", name, "decisions", "format_complete")
        if share is not None and share < 0.5:
            parts.append(f"{supporter_name(name)} ({percent(share)} complete)")
    if parts:
        yield Caution(
            f"Most outputs are incomplete: {listing(parts)}.",
            "Their scores tell of form more than of empathy. Diversity counts readable responses only.",
        )
