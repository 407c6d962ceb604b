"""ESC-Eval end to end: seekers that play role cards talk with the supporter, and judges score the conversations."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from compeer.evaluate.answers import DIMENSIONS, HIGHEST, rubric_texts
from compeer.evaluate.judging import EscEvalSettings, ScoreRow, judge_request, read_rows, score_stage
from compeer.evaluate.players import CONVERSATIONS, Part, Talk, nothing_taken
from compeer.evaluate.runner import TEMPERATURE, Evaluation, repeat_deviation, scored_metric
from compeer.models.base import Sampling, TextModel
from compeer.models.costs import prompt_tokens, text_tokens
from compeer.simulate import Scenario
from compeer.simulate.seekers import LANGUAGES, CardSeeker, own_cards, read_cards, seeker_prompts
from compeer.statistics import Estimate, Numbers, group_weights, ratio, reweighted


def measure_esc_eval(rows: Sequence[ScoreRow], repeats: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Everything ESC-Eval says of one supporter, by rows that may stand in any order.

    Metrics go from 0 to 100. A dimension also has the judges' answers without a score by kind (`unscored`) and the
    items by the number of judges that scored them (`judges`). `average` is the mean of the seven; its `scored` counts
    conversations with all seven. `all_alike` is how often a judge gives a conversation the same score seven times.
    """
    scenarios, scenario = np.unique([row.conversation for row in rows], return_inverse=True)
    numbers, number = np.unique([row.repeat for row in rows], return_inverse=True)
    judges, judge = np.unique([row.judge for row in rows], return_inverse=True)
    shape = (len(scenarios), len(numbers), len(judges), len(DIMENSIONS))
    scores, asked = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    indices = scenario, number, judge, [DIMENSIONS.index(row.dimension) for row in rows]
    scores[indices], asked[indices] = [np.nan if row.score is None else row.score for row in rows], True
    values = _metrics(scores, group_weights(len(scenarios), repeats, seed))
    known = np.isfinite(scores).any(axis=2)
    average = Estimate.of_resamples(values.mean(axis=1), int(known.any(axis=1).sum(axis=0).min()))
    by_repeat = {str(name): _averages(scores[:, [at]], asked[:, [at]]) for at, name in enumerate(numbers)}
    whole = np.isfinite(scores).all(axis=-1)
    alike = (scores == scores[..., :1]).all(axis=-1)
    conversations = int(asked.any(axis=(2, 3)).sum())
    return {
        "scenarios": len(scenarios),
        "conversations": conversations,
        "dimensions": {
            name: _dimension([row for row in rows if row.dimension == name], values[:, at], scores[..., at])
            for at, name in enumerate(DIMENSIONS)
        },
        "average": scored_metric(average, int(known.all(axis=-1).sum()), conversations),
        "by_judge": {str(name): _averages(scores[:, :, [at]], asked[:, :, [at]]) for at, name in enumerate(judges)},
        "by_repeat": by_repeat,
        "repeat_deviation": repeat_deviation(by_repeat),
        "all_alike": {
            str(name): float(alike[:, :, at][whole[:, :, at]].mean())
            for at, name in enumerate(judges)
            if whole[:, :, at].any()
        },
    }


def _dimension(rows: Sequence[ScoreRow], values: Numbers, scores: Numbers) -> dict[str, Any]:
    """The metric of a dimension, with what its rows cover; `scores` by scenario, repeat and judge."""
    scored = Counter((row.conversation, row.repeat) for row in rows if row.score is not None)
    judges = Counter(scored[item] for item in {(row.conversation, row.repeat) for row in rows})
    unscored = Counter(row.unscored for row in rows if row.unscored is not None)
    estimate = Estimate.of_resamples(values, int(np.isfinite(scores).any(axis=(1, 2)).sum()))
    return {
        **scored_metric(estimate, len(scored), judges.total()),
        "unscored": dict(sorted(unscored.items())),
        "judges": {str(number): items for number, items in sorted(judges.items())},
    }


def _metrics(scores: Numbers, weights: Numbers) -> Numbers:
    """100·Σ/(4N) of each dimension, a row for each row of weights; an item counts by its mean over the judges."""
    items = ratio(np.nansum(scores, axis=2), np.isfinite(scores).sum(axis=2))
    sums, counts = np.nansum(items, axis=1), np.isfinite(items).sum(axis=1)
    return ratio(100 * reweighted(weights, sums), HIGHEST * reweighted(weights, counts))


def _averages(scores: Numbers, asked: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The seven metrics and their mean, of a part of the scores."""
    metrics = _metrics(scores, np.ones((1, len(scores))))[0]
    known = [float(value) if np.isfinite(value) else None for value in metrics]
    return {
        "dimensions": dict(zip(DIMENSIONS, known, strict=True)),
        "average": float(metrics.mean()) if np.isfinite(metrics).all() else None,
        "scored": int(np.isfinite(scores).sum()),
        "asked": int(asked.sum()),
    }


JUDGED = "judged.jsonl"


class EscEval(Evaluation):
    """A run of ESC-Eval; its scenarios are role cards."""

    protocol, form = "esc-eval", EscEvalSettings
    longest: ClassVar[Mapping[str, Part]] = {"seeker_tokens": "seeker", "judge_tokens": "judge"}
    settings: EscEvalSettings

    def seeker(self, model: TextModel) -> CardSeeker:
        return CardSeeker(model, Sampling(temperature=TEMPERATURE, max_tokens=self.settings.seeker_tokens))

    def prompts(self) -> dict[str, str]:
        rubrics = {f"rubric {language}.toml": text for language, text in rubric_texts().items()}
        return {**seeker_prompts(), **rubrics}

    async def judge(
        self, talks: Sequence[Talk], judges: Sequence[TextModel], folder: Path, advance: Callable[[int], None]
    ) -> None:
        inputs = {"conversations": folder / CONVERSATIONS}
        await score_stage(talks, inputs, folder / JUDGED, judges, self.settings, self.seed, advance)

    def scores(self, talks: Sequence[Talk], folder: Path) -> list[dict[str, Any]]:
        found: dict[tuple[str, int], dict[str, Any]]
        found = {(talk.scenario, talk.repeat): {"judges": {}, "unscored": {}} for talk in talks}
        for row in read_rows(folder / JUDGED):
            line = found[row.conversation, row.repeat]
            line["judges"].setdefault(row.judge, {})[row.dimension] = row.score
            if row.unscored:
                line["unscored"].setdefault(row.judge, {})[row.dimension] = row.unscored
        return list(found.values())

    def metrics(self, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
        rows = read_rows(folder / JUDGED)
        found = measure_esc_eval(rows, seed=self.seed)
        kinds = Counter((row.unscored, f"{row.judge}: {row.unscored}") for row in rows if row.unscored)
        scored = {name: one["scored"] for name, one in found["dimensions"].items()}
        return {
            "figures": found,
            "coverage": {name: {"scored": number, "of": len(lines)} for name, number in scored.items()},
            "unread": {name: count for (kind, name), count in kinds.items() if kind != "failed"},
            "unreached": {name: count for (kind, name), count in kinds.items() if kind == "failed"},
        }

    def judges_took(self, talks: Sequence[Talk], folder: Path) -> dict[str, Counter[str]]:
        """By the rows, in the tokens that the questions and the last answers have by our own count."""
        by_key = {(talk.scenario, talk.repeat): talk for talk in talks}
        role_of = {player.name: role for role, player in self.players.by_role.items() if role.startswith("judge")}
        took = {role: nothing_taken() for role in role_of.values()}
        asked_by = {dimensions[0]: dimensions for dimensions in self.settings.questions}
        for row in read_rows(folder / JUDGED):
            if not (asked := asked_by.get(row.dimension)):
                continue  # it came from the same answers as another dimension
            question = judge_request(by_key[row.conversation, row.repeat], asked)
            tokens = {"prompt_tokens": prompt_tokens(question), "tokens": text_tokens(row.answer or "")}
            took[role_of[row.judge]].update({name: row.tries * one for name, one in {"calls": 1, **tokens}.items()})
        return took


def cards_of(file: Path | None) -> list[Scenario]:
    """The role cards of a file; ours in all languages, if none is given."""
    return [card for one in ([file] if file else map(own_cards, LANGUAGES)) for card in read_cards(one)]
