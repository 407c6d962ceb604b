"""ESC-Eval end to end: seekers that play role cards talk with the supporter, and judges score the conversations."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from compeer.evaluate.answers import DIMENSIONS, HIGHEST, Dimension, rubric_texts
from compeer.evaluate.judging import EscEvalSettings, ScoreRow, judge_messages, read_rows, score_stage
from compeer.evaluate.players import CONVERSATIONS, Part, Talk, nothing_taken
from compeer.evaluate.runner import TEMPERATURE, Evaluation, repeat_deviation, scored_metric
from compeer.models.base import Request, Sampling, TextModel
from compeer.models.costs import prompt_tokens, text_tokens
from compeer.simulate import Scenario
from compeer.simulate.seekers import LANGUAGES, CardSeeker, own_cards, read_cards, seeker_prompts
from compeer.statistics import Estimate, Numbers, group_weights, ratio, reweighted

Item = tuple[str, int, Dimension]  # a scenario's id, the repeat, and the dimension


def all_alike(rows: Sequence[ScoreRow]) -> dict[str, float]:
    """How often a judge gives a conversation the same score in all seven dimensions: it then tells none apart."""
    by_talk: dict[tuple[str, str, int], list[int]] = {}
    for row in rows:
        if row.score is not None:
            by_talk.setdefault((row.judge, row.conversation, row.repeat), []).append(row.score)
    alike: dict[str, list[bool]] = {}
    for (judge, _, _), scores in sorted(by_talk.items()):
        if len(scores) == len(DIMENSIONS):
            alike.setdefault(judge, []).append(len(set(scores)) == 1)
    return {judge: sum(found) / len(found) for judge, found in alike.items()}


def item_scores(rows: Sequence[ScoreRow]) -> dict[Item, float]:
    """Each item's mean over the judges that scored it, 0 to 4; items that nobody scored are left out."""
    by_item: dict[Item, list[int]] = {}
    for row in rows:
        if row.score is not None:
            by_item.setdefault((row.conversation, row.repeat, row.dimension), []).append(row.score)
    return {item: sum(by_item[item]) / len(by_item[item]) for item in sorted(by_item)}


def measure_esc_eval(rows: Sequence[ScoreRow], repeats: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Everything ESC-Eval says of one supporter, by rows that may stand in any order.

    Figures go from 0 to 100. A dimension also has the judges' answers without a score by kind (`unscored`) and the
    items by the number of judges that scored them (`judges`). `average` is the mean of the seven; its `scored` counts
    conversations with all seven.
    """
    scores = item_scores(rows)
    scenarios = sorted({row.conversation for row in rows})
    conversations = {(row.conversation, row.repeat) for row in rows}
    values = _metrics(scores, scenarios, group_weights(len(scenarios), repeats, seed))
    known = {dimension: {item[0] for item in scores if item[2] == dimension} for dimension in DIMENSIONS}
    whole = [one for one in conversations if all((*one, dimension) in scores for dimension in DIMENSIONS)]
    repeats_there, judges = sorted({row.repeat for row in rows}), sorted({row.judge for row in rows})
    by_repeat = {str(number): _averages([row for row in rows if row.repeat == number]) for number in repeats_there}
    average = Estimate.of_resamples(values.mean(axis=1), min(len(found) for found in known.values()))
    return {
        "scenarios": len(scenarios),
        "conversations": len(conversations),
        "dimensions": {
            name: _dimension([row for row in rows if row.dimension == name], values[:, index], len(known[name]))
            for index, name in enumerate(DIMENSIONS)
        },
        "average": scored_metric(average, len(whole), len(conversations)),
        "by_judge": {judge: _averages([row for row in rows if row.judge == judge]) for judge in judges},
        "by_repeat": by_repeat,
        "repeat_deviation": repeat_deviation(by_repeat),
        "all_alike": all_alike(rows),
    }


def _dimension(rows: Sequence[ScoreRow], values: Numbers, scenarios: int) -> dict[str, Any]:
    """The figure of a dimension, with what its rows cover."""
    judges = {(row.conversation, row.repeat): 0 for row in rows}
    for row in rows:
        judges[row.conversation, row.repeat] += row.score is not None
    unscored = Counter(row.unscored for row in rows if row.unscored is not None)
    return {
        **scored_metric(Estimate.of_resamples(values, scenarios), sum(map(bool, judges.values())), len(judges)),
        "unscored": dict(sorted(unscored.items())),
        "judges": {str(number): items for number, items in sorted(Counter(judges.values()).items())},
    }


def _metrics(scores: dict[Item, float], scenarios: Sequence[str], weights: Numbers) -> Numbers:
    """100·Σ/(4N) of each dimension, a row for each row of weights; NaN where nothing was scored."""
    index_of = {scenario: number for number, scenario in enumerate(scenarios)}
    sums, counts = np.zeros((2, len(scenarios), len(DIMENSIONS)))
    for (scenario, _, dimension), score in scores.items():
        sums[index_of[scenario], DIMENSIONS.index(dimension)] += score
        counts[index_of[scenario], DIMENSIONS.index(dimension)] += 1
    return ratio(100 * reweighted(weights, sums), HIGHEST * reweighted(weights, counts))


def _averages(rows: Sequence[ScoreRow]) -> dict[str, Any]:
    """The seven figures and their mean, of a part of the rows."""
    scenarios = sorted({row.conversation for row in rows})
    metrics = _metrics(item_scores(rows), scenarios, np.ones((1, len(scenarios))))[0]
    known = [float(value) if np.isfinite(value) else None for value in metrics]
    return {
        "dimensions": dict(zip(DIMENSIONS, known, strict=True)),
        "average": float(metrics.mean()) if np.isfinite(metrics).all() else None,
        "scored": sum(row.score is not None for row in rows),
        "asked": len(rows),
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
        by_talk: dict[tuple[str, int], list[ScoreRow]] = {}
        for row in read_rows(folder / JUDGED):
            by_talk.setdefault((row.conversation, row.repeat), []).append(row)
        return [_score_line(by_talk.get((talk.scenario, talk.repeat), [])) for talk in talks]

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
        for row in read_rows(folder / JUDGED):
            asked = next(one for one in self.settings.questions if row.dimension in one)
            if row.dimension != asked[0]:
                continue  # the other dimensions came from the same answers
            question = judge_messages(by_key[row.conversation, row.repeat], asked)
            tokens = {"prompt_tokens": prompt_tokens(Request(question)), "tokens": text_tokens(row.answer or "")}
            took[role_of[row.judge]].update({name: row.tries * one for name, one in {"calls": 1, **tokens}.items()})
        return took


def cards_of(file: Path | None) -> list[Scenario]:
    """The role cards of a file; ours in all languages, if none is given."""
    return [card for one in ([file] if file else map(own_cards, LANGUAGES)) for card in read_cards(one)]


def _score_line(rows: Sequence[ScoreRow]) -> dict[str, Any]:
    """What the judges gave one conversation, and why they gave nothing."""
    judges: dict[str, dict[str, int | None]] = {}
    unscored: dict[str, dict[str, str]] = {}
    for row in rows:
        judges.setdefault(row.judge, {})[row.dimension] = row.score
        if row.unscored:
            unscored.setdefault(row.judge, {})[row.dimension] = row.unscored
    return {"judges": judges, "unscored": unscored}
