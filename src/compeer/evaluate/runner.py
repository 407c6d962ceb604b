"""What ESC-Eval and SAGE share when they are run: who plays, which scenarios, the folder, the talk, and what it took.

An evaluation is a supporter, a seeker and, for ESC-Eval, judges; scenarios, each talked through `repeats` times; and
settings. `run_evaluation` lets them talk, has the conversations judged, and writes one folder:

    manifest.json        settings, seed, versions, hashes; written first, so that only the same evaluation goes on here
    dialogues/           a log a conversation; conversations.jsonl: all of them, written when all are over
    judged.jsonl         ESC-Eval: what each judge answered
    scores.jsonl         a line a scenario and repeat
    figures.json         the metrics with their intervals, coverage, failures and cost

Killed at any moment and called again, it goes on, and comes to the same bytes (but for the seconds in figures.json).
The second conversation about a scenario has the scenario's name and `#2` in logs, the third `#3`, and so on.
"""

import json
import platform
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from pydantic import Field

from compeer import __version__
from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS
from compeer.evaluate.players import (
    MANIFEST,
    METRICS,
    SCORES,
    Part,
    Players,
    Prices,
    Talk,
    check_folder,
    claim_folder,
    cost_of,
    dialogues_took,
    nothing_taken,
)
from compeer.io import Frozen, only_one, read_json, text_hash, write_json, write_lines
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.models.costs import prompt_tokens
from compeer.policy import supporter_prompt
from compeer.progress import progress
from compeer.reasoning import turn_grammar
from compeer.ser.record import SerRecord
from compeer.simulate import Agent, Conversation, DialogueSettings, Scenario, SupporterAgent, run_dialogues
from compeer.simulate.agents import Mode, plain_prompt
from compeer.statistics import Estimate, generator

TEMPERATURE = 0.7  # of seekers and supporters; judges take the most probable token


class RunSettings(Frozen):
    """What every evaluation settles."""

    mode: Mode = Field(default="plain", description="how the supporter is asked: plainly, or for steps and a response")
    rounds: int = Field(default=5, ge=1, description="seeker turns at most, each with the supporter's answer")
    repeats: int = Field(default=1, ge=1, description="conversations about each scenario")
    retries: int = Field(default=2, ge=0, description="further tries when an answer cannot be used")
    supporter_tokens: int = Field(default=512, ge=1, description="the supporter's longest answer")
    seeker_tokens: int = Field(default=512, ge=1, description="the seeker's longest answer")
    batch: int | None = Field(default=None, ge=1, description="requests together, of a model in this process")


class Evaluation(ABC):
    """One evaluation, ready to run: ESC-Eval and SAGE say how the seeker plays, and what the scores are."""

    protocol: str
    form: type[RunSettings]
    longest: ClassVar[Mapping[str, Part]]  # which part's longest answer a setting of its own is by default

    def __init__(self, players: Players, scenarios: Sequence[Scenario], settings: RunSettings, seed: int) -> None:
        self.players, self.scenarios, self.settings, self.seed = players, tuple(scenarios), settings, seed

    @classmethod
    def named(
        cls,
        players: Players,
        scenarios: Sequence[Scenario],
        languages: Sequence[str] | None,
        limit: int | None,
        seed: int,
        *,
        mode: Mode,
        tokens: int | None = None,
        **settings: Any,
    ) -> Self:
        """What a person asks for: a sample of the scenarios, and `tokens` as the longest answer of all who play."""
        chosen = [one for one in scenarios if not languages or one.language in languages]
        if not chosen:
            there = ", ".join(sorted({one.language for one in scenarios}))
            what = f"there is nothing in {' or '.join(languages or [])}; there is: {there}."
            raise InputError(what, field="language", do="Name one of those, or give another file.")
        longest = {"supporter_tokens": players.supporter.longest(mode)}
        for name, part in cls.longest.items():
            played = players.judges if part == "judge" and players.judges else [players.seeker]
            longest[name] = max(one.longest(part) for one in played)
        given = {**{name: tokens or own for name, own in longest.items()}, **settings}
        return cls(players, sample(chosen, limit, seed), cls.form(mode=mode, **given), seed)

    @abstractmethod
    def seeker(self, model: TextModel) -> Agent:
        """The seeker, played by the model."""

    @abstractmethod
    def prompts(self) -> dict[str, str]:
        """The texts that seekers and judges are asked with, by name."""

    async def judge(
        self, talks: Sequence[Talk], judges: Sequence[TextModel], folder: Path, advance: Callable[[int], None]
    ) -> None:
        """Has the conversations that ended judged, where the protocol has judges."""
        return

    @abstractmethod
    def scores(self, talks: Sequence[Talk], folder: Path) -> list[dict[str, Any]]:
        """A line for each talk, without what all protocols say alike."""

    @abstractmethod
    def metrics(self, lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
        """`figures`, `coverage`, and counts of the judges' failures, by the lines of `scores.jsonl`."""

    def judges_took(self, talks: Sequence[Talk], folder: Path) -> dict[str, Counter[str]]:
        """Calls and tokens of each judge, by its role; nothing where there are none."""
        return {}

    def supporter(self, model: TextModel) -> SupporterAgent:
        """The supporter under test, asked in the run's mode."""
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=self.settings.supporter_tokens)
        if self.settings.mode == "plain":
            return SupporterAgent(model, sampling=sampling)
        # about four characters to a token, most of them for the steps; none must be cut off before its response
        characters = 3 * self.settings.supporter_tokens
        grammar = turn_grammar(min(160, characters // 6), min(600, characters // 3))
        prompt = partial(supporter_prompt, last=self.players.supporter.history)
        return SupporterAgent(model, prompt=prompt, sampling=sampling, grammar=grammar)

    @property
    def limits(self) -> DialogueSettings:
        return DialogueSettings(rounds=self.settings.rounds, retries=self.settings.retries)

    @property
    def repeated(self) -> list[Scenario]:
        """The scenarios as they are talked through: each for the first time, then each once more, and so on."""
        return [
            one if repeat == 1 else one.model_copy(update={"id": f"{one.id}#{repeat}"})
            for repeat in range(1, self.settings.repeats + 1)
            for one in self.scenarios
        ]

    def talks(self, conversations: Sequence[Conversation]) -> list[Talk]:
        """The conversations with the scenario and the repeat that they belong to."""
        count = len(self.scenarios)
        return [Talk(self.scenarios[at % count].id, at // count + 1, one) for at, one in enumerate(conversations)]

    def manifest(self) -> dict[str, Any]:
        """What the results depend on, and what they were made with."""
        texts = {"supporter plain.txt": plain_prompt(), "supporter structured": json.dumps(supporter_prompt(()))}
        prompts = {**texts, **self.prompts()}
        written = [one.model_dump_json() for one in self.scenarios]
        packages = ("torch", "transformers") if self.players.any_local else ()
        own = {"compeer": __version__, "python": platform.python_version()}
        return {
            "protocol": self.protocol,
            "settings": self.settings.model_dump(mode="json"),
            "seed": self.seed,
            "models": {role: player.described for role, player in self.players.by_role.items()},
            "scenarios": {"ids": [one.id for one in self.scenarios], "sha256": text_hash("\n".join(written))},
            "prompts": {name: text_hash(text) for name, text in sorted(prompts.items())},
            "versions": {**own, **{name: version(name) for name in packages}},
        }


Item = TypeVar("Item", Scenario, SerRecord)


def sample(items: Sequence[Item], count: int | None, seed: int, purpose: str = "scenario") -> list[Item]:
    """Up to `count` of the items (none: all), chosen by the seed and their ids alone, in the order they stand in."""
    keys = {one.id: generator(seed, purpose, one.id).random() for one in items}
    chosen = set(sorted(keys, key=keys.__getitem__)[:count])
    return [one for one in items if one.id in chosen]


async def run_evaluation(
    evaluation: Evaluation, folder: Path, models: Mapping[str, TextModel], prices: Prices | None = None
) -> dict[str, Any]:
    """Does what is not done yet in the folder, and returns the metrics, which `figures.json` then holds.

    Another process that is at work in the folder is an error: two would write into one another's files.
    `models` are the players' models by the names that a person gave them; `prices` put a sum of money to the cost.
    """
    start = time.monotonic()
    manifest = evaluation.manifest()
    check_folder(folder, manifest)  # before anything is made
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder):
        claim_folder(folder, manifest)  # another process may have been quicker
        players = evaluation.players
        seeker = evaluation.seeker(models[players.seeker.given])
        supporter = evaluation.supporter(models[players.supporter.given])
        scenarios, limits = evaluation.repeated, evaluation.limits
        with progress("Talking (rounds)", len(scenarios) * limits.rounds) as advance:
            made = await run_dialogues(scenarios, seeker, supporter, limits, folder, evaluation.seed, advance)
        talks = evaluation.talks(made)
        if players.judges:
            ended = [talk for talk in talks if not talk.failed]
            with progress("Judging", len(ended)) as advance:
                await evaluation.judge(ended, [models[judge.given] for judge in players.judges], folder, advance)
        lines = [
            {"scenario": talk.scenario, "repeat": talk.repeat, "language": talk.conversation.language}
            | found
            | {"failed": talk.failed}
            for talk, found in zip(talks, evaluation.scores(talks, folder), strict=True)
        ]
        write_lines(folder / SCORES, lines)
        cost = cost_of(players, {**dialogues_took(folder), **evaluation.judges_took(talks, folder)}, prices)
        return _write_metrics(evaluation, folder, talks, lines, {**cost, "seconds": round(time.monotonic() - start, 1)})


def scored_metric(found: Estimate, scored: int, items: int) -> dict[str, Any]:
    """A metric with its 95 % interval, if two scenarios were scored, and how many of the items it rests on."""
    return {"score": found.value, "low": found.low, "high": found.high, "scored": scored, "items": items}


def repeat_deviation(by_repeat: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The standard deviation of the average between repeats; None with fewer than two."""
    averages = [part["average"] for part in by_repeat.values() if part["average"] is not None]
    return float(np.std(averages, ddof=1)) if len(averages) > 1 else None


def _write_metrics(
    evaluation: Evaluation, folder: Path, talks: list[Talk], lines: list[dict[str, Any]], cost: dict[str, Any]
) -> dict[str, Any]:
    manifest, players = read_json(folder / MANIFEST) or {}, evaluation.players
    found = evaluation.metrics(lines, folder)
    failures = {"model": Counter(found["unread"]), "infrastructure": Counter(found["unreached"])}
    for talk in talks:
        if talk.failed:
            status, _, why = talk.failed.partition(" failed: ")
            failures[status][why] += 1
    metrics = {
        "protocol": evaluation.protocol,
        "supporter": players.supporter.name,
        "seeker": players.seeker.name,
        "judges": [judge.name for judge in players.judges],
        "mode": evaluation.settings.mode,
        "settings": manifest["settings"],
        "seed": evaluation.seed,
        "versions": manifest["versions"],
        "scenarios": len(evaluation.scenarios),
        "repeats": evaluation.settings.repeats,
        "figures": found["figures"],
        "coverage": found["coverage"],
        "failures": {kind: dict(sorted(counts.items())) for kind, counts in failures.items()},
        "cost": cost,
        "hashes": {name: manifest[name] for name in ("prompts", "scenarios", "models")},
    }
    before = read_json(folder / METRICS)
    if before and _timeless(before) == _timeless(json.loads(json.dumps(metrics))):
        return before  # nothing was left to do: the seconds are those that it took
    write_json(folder / METRICS, metrics)
    return metrics


def _timeless(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {**metrics, "cost": {**metrics["cost"], "seconds": None}}


# --- what it will cost ------------------------------------------------------------------------------------------------
#
# A few conversations are rehearsed with made-up answers, through the same agents, engine and judges as the run, so that
# every prompt is as long as it will be. Answers have a typical length, or as many tokens as they may have: the first
# gives what to expect, the second what it cannot exceed, retries apart. Token counts may be off by a third.

# Tokens of an answer, as larger models tend to give it; those that think before they answer take far more:
TYPICAL = {"plain": 120, "structured": 220, "seeker": 50, "judge": 80}
LONGEST_SPOKEN = 600
REHEARSED = 6  # scenarios that are rehearsed; the others are taken to be like them
Took = dict[str, int]


async def rehearse(evaluation: Evaluation, dialogues: int, judged: int) -> dict[str, tuple[Took, Took]]:
    """What so many conversations will take, by role, if so many are to be judged: as expected, and at most."""
    step = max(1, len(evaluation.scenarios) / REHEARSED)
    indices = sorted({int(number * step) for number in range(REHEARSED)})
    few = [evaluation.scenarios[index] for index in indices if index < len(evaluation.scenarios)]
    typical, most = [await _rehearsed(evaluation, few, at_most) for at_most in (False, True)]

    def scaled(role: str, took: Took) -> Took:
        scale = (dialogues if role in ("supporter", "seeker") else judged) / len(few)
        return {name: round(scale * count) for name, count in took.items()}

    return {role: (scaled(role, typical[role]), scaled(role, most[role])) for role in typical}


async def _rehearsed(evaluation: Evaluation, scenarios: Sequence[Scenario], at_most: bool) -> dict[str, Took]:
    kinds = {"supporter": evaluation.settings.mode, "seeker": "seeker"}
    models = {
        role: RehearsingModel(TYPICAL[kinds.get(role, "judge")], at_most, player.name)
        for role, player in evaluation.players.by_role.items()
    }
    supporter, seeker, *judges = models.values()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agents = evaluation.seeker(seeker), evaluation.supporter(supporter)
        found = await run_dialogues(scenarios, *agents, evaluation.limits, folder, evaluation.seed)
        if judges:
            talks = [Talk(one.scenario, 1, one) for one in found]
            await evaluation.judge(talks, judges, folder, lambda _: None)
    return {role: model.took for role, model in models.items()}


class RehearsingModel:
    """Stands in for a model: gives a made-up answer of the wanted length, and counts."""

    batch_size = 1
    at_once = 64

    def __init__(self, typical: int, at_most: bool, name: str) -> None:
        self.name, self._typical, self._at_most = name, typical, at_most
        self.took = nothing_taken()

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        tokens = sampling.max_tokens if self._at_most else min(self._typical, sampling.max_tokens)
        read = sum(map(prompt_tokens, requests))
        self.took.update(calls=len(requests), prompt_tokens=read, tokens=tokens * len(requests))
        return [Generation(_made_up(request.grammar or "", tokens)) for request in requests]


def _made_up(grammar: str, tokens: int) -> str:
    """An answer of about so many tokens, of four characters each, in the form that the grammar asks for."""
    words = ("word " * min(tokens, LONGEST_SPOKEN))[: 4 * tokens].strip()
    if "REASON:" in grammar:
        return json.dumps({"reason": "word", **{key: 2 for key in ("score", *DIMENSIONS) if f'\\"{key}\\"' in grammar}})
    if "\nchange:" in grammar:
        return f"Reasons: {words}\nChange: +0"  # which ends nothing
    if grammar:  # of a structured turn a third is said aloud, and so in later prompts
        steps = "History: word [exploration]\nEmotion: word [negative, sadness, 3]\nStrategy: word [Question]"
        return f"{steps}\nResponse: {words[: 4 * (tokens // 3)].strip()}"
    return words
