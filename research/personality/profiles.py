"""How each participant of a dialogue speaks: a profile of DISC traits, with a description in words.

    python research/personality/profiles.py screened.jsonl profiles.jsonl    # clusters.json, elbow.svg beside it

A model that is given reads the whole dialogue and answers with both profiles as JSON. Without one they are estimated
from words and habits of writing; every profile says which it was. Descriptions are English in either case, since they
are what is embedded and clustered (`clusters.py`), and what a rewrite is steered by.

In the lexical estimate each habit is a rate, standardised against reference values measured once on public corpora, and
a trait is a weighted sum of habits (`tables/traits.toml`). It describes how someone wrote in one conversation, and is
neither a test nor a diagnosis.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Cache, Call, Seed, Written, run_command
from research.personality.clusters import PARTICIPANTS, cluster_profiles

from compeer.cli.options import CACHE
from compeer.cli.printing import print_counts
from compeer.cli.ser import ask_models
from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, Speaker, merge_consecutive, transcript
from compeer.io import Frozen, json_line, text_hash
from compeer.models.base import Failure, Generation, Sampling, TextModel
from compeer.pipeline import Done, Stage, in_blocks
from compeer.policy.persona import TRAITS, Profile, Scores, Trait
from compeer.reasoning import one_line
from compeer.ser import asking
from compeer.statistics import words

HERE = Path(__file__).parent
DIALOGUES_A_UNIT = 200
SAMPLING = Sampling(temperature=0.3, max_tokens=400)
PROMPT = (HERE / "prompts" / "personality.txt").read_text(encoding="utf-8").strip()


async def profile_stage(
    dialogues: Path, out: Path, model: TextModel | None, retries: int, seed: int, workers: int = 1
) -> dict[str, Any]:
    """Writes the profiles of both participants of each dialogue, by the model or, without one, by the lexical estimate.

    A participant who said nothing has no profile. Returns the stage's manifest.
    """
    settings: dict[str, Any] = {"model": model.name if model else None}
    if model is None:
        units = in_blocks(read_corpus(dialogues), DIALOGUES_A_UNIT)
        return asking.run_stage(Stage(out, settings, {"dialogues": dialogues}), units, _estimated, workers)
    settings |= {"retries": retries, "seed": seed, "prompt": text_hash(PROMPT)}
    stage = Stage(out, settings, {"dialogues": dialogues})
    units = in_blocks(read_corpus(dialogues), model.batch_size)
    return await asking.ask_stage(stage, units, partial(_asked, model, retries, seed), model.at_once)


def _spoken(dialogue: Dialogue) -> dict[Speaker, list[str]]:
    """What each participant who said something wrote, a text a block."""
    blocks = merge_consecutive(dialogue.utterances)
    texts = {who: [block.text for block in blocks if block.speaker == who] for who in PARTICIPANTS}
    return {who: own for who, own in texts.items() if any(text.strip() for text in own)}


def _done(profiles: Sequence[Profile], counts: dict[str, Counter[str]] | None = None) -> Done:
    by_participant = Counter[str](profile.participant for profile in profiles)
    return Done([json_line(profile) for profile in profiles], counts={"profiles": by_participant, **(counts or {})})


# --- by a model -------------------------------------------------------------------------------------------------------


async def _asked(model: TextModel, retries: int, seed: int, block: list[Dialogue]) -> Done:
    requests = []
    for dialogue in block:
        text = PROMPT.format(conversation=transcript(merge_consecutive(dialogue.utterances)))
        requests.append(asking.ask_user(text, seed, "profile", dialogue.id, grammar=answer_grammar()))
    answers = await asking.ask_until_read(model, requests, read_answer, SAMPLING, retries)
    profiles: list[Profile] = []
    counts: dict[str, Counter[str]] = {"failed": Counter(), "dropped": Counter()}
    for dialogue, answer in zip(block, answers, strict=True):
        if isinstance(answer, asking.Read):
            for who in _spoken(dialogue):
                scores = getattr(answer.value, who).model_dump()
                text, by = one_line(scores.pop("description")), {"source": "llm", "model": model.name}
                profiles.append(Profile(dialogue=dialogue.id, participant=who, scores=scores, description=text, **by))
        elif isinstance(answer, Failure):
            asking.count_failure(answer, counts)
        else:
            counts["dropped"]["unread"] += 1
    return _done(profiles, counts)


def answer_grammar() -> str:
    """A Lark grammar of the answer that the prompt asks for, for models that can decode under one."""
    scores = " ".join(f'", \\"{trait}\\": " SCORE' for trait in TRAITS)
    return "\n".join(
        [
            r'start: "{\"seeker\": " person ", \"supporter\": " person "}"',
            r'person: "{\"description\": \"" TEXT ' + scores + ' "}"',
            # the closing quote belongs to the text: a lexer is greedy, and would only stop at the greatest length
            r'TEXT: /[A-Z][^"\\\n]{19,299}"/',
            "SCORE: /[1-5]/",
        ]
    )


class Described(Scores):
    """What a model says of one participant."""

    description: str = Field(min_length=10, max_length=1000)


class DescribedBoth(Frozen):
    """What a model says of both."""

    seeker: Described
    supporter: Described


def read_answer(_: int, generation: Generation) -> DescribedBoth | asking.AnswerFault:
    """What the model says of both participants, or what is wrong with the answer; words around it do no harm."""
    text = generation.text
    return asking.read_object(text[text.find("{") : text.rfind("}") + 1], DescribedBoth, generation.cut_off)


# --- by the lexical estimate ------------------------------------------------------------------------------------------

LEAST_WORDS = 25
"""Who wrote less than this gets the neutral 3 on every trait."""
TRUST = 60
"""Words at which an estimate counts half; the more was written, the less it is shrunk toward the neutral 3."""
NEUTRAL = 3.0
MOST = 2.5
"""Standard deviations; a habit counts no further than this."""
SCALE = 1.2
"""Points of a score for one standard deviation of a trait."""
MARKED, STRONG = 0.5, 1.3
"""How far from the neutral 3 a trait must lie to be put into words, and in strong ones."""
_TABLE = tomllib.loads((HERE / "tables" / "traits.toml").read_text(encoding="utf-8"))
_PATTERNS = {
    language: {habit: re.compile(asking.regex(pattern)) for habit, pattern in patterns.items()}
    for language, patterns in _TABLE["habits"].items()
}
_SIDES: tuple[tuple[str, Speaker], ...] = tuple((language, who) for language in ("en", "zh") for who in PARTICIPANTS)
_REFERENCES = {
    side: {habit: (row[2 * index], row[2 * index + 1]) for habit, row in _TABLE["measured"].items()}
    for index, side in enumerate(_SIDES)
}
"""Mean and standard deviation of each habit, by language and participant."""
_SENTENCE = re.compile(r"[.!?。！？…\n]+")
_FINISHED = re.compile(r"[.!?。！？…～~\"”）)]\s*$")


def lexical_profiles(dialogue: Dialogue) -> list[Profile]:
    """The profiles of a dialogue's participants, estimated from their words alone."""
    found = []
    for who, texts in _spoken(dialogue).items():
        estimated = estimate(texts, dialogue.language, who)
        scores, text = Scores.model_validate(estimated.scores), describe(estimated)
        found.append(Profile(dialogue=dialogue.id, participant=who, scores=scores, description=text, source="lexical"))
    return found


def _estimated(block: list[Dialogue]) -> Done:
    return _done([profile for dialogue in block for profile in lexical_profiles(dialogue)])


def habits(texts: Sequence[str], language: str) -> dict[str, float]:
    """How often a participant shows each habit, over the messages given; English ("en") or Chinese ("zh")."""
    text = "\n".join(texts).replace("’", "'").lower()
    count = max(1, len(words(text)))
    sentences = max(1, sum(1 for part in _SENTENCE.split(text) if part.strip()))
    found = {habit: 100 * len(pattern.findall(text)) / count for habit, pattern in _PATTERNS[language].items()}
    marks = len(re.findall("[!！]+", text))
    finished = sum(1 for one in texts if _FINISHED.search(one))
    details = sum(1 for word in words(text) if len(word) > 6) if language == "en" else text.count("，")
    return found | {
        "exclamations": marks / sentences,
        "questions": len(re.findall("[?？]+", text)) / sentences,
        "talk": count / max(1, len(texts)),
        "sentences": count / sentences,
        "finish": finished / max(1, len(texts)),
        "detail": 100 * details / count,
    }


@dataclass(frozen=True)
class TraitEstimate:
    """Scores of 1 to 5, and the habits that stand out, the strongest first, each with whether it is frequent."""

    scores: dict[Trait, float]
    marked: tuple[tuple[str, bool], ...] = ()


def estimate(texts: Sequence[str], language: str, participant: Speaker) -> TraitEstimate:
    """The traits that a participant's messages suggest; neutral for few words and for languages without word lists."""
    count = sum(len(words(text)) for text in texts)
    reference = _REFERENCES.get((language, participant))
    if reference is None or count < LEAST_WORDS:
        return TraitEstimate(dict.fromkeys(TRAITS, NEUTRAL))
    found = habits(texts, language)
    standing = {
        habit: max(-MOST, min(MOST, (found[habit] - mean) / deviation))
        for habit, (mean, deviation) in reference.items()
    }
    trust = count / (count + TRUST)
    scores: dict[Trait, float] = {}
    for trait, weights in _TABLE["weights"].items():
        total = sum(weight * standing[habit] for habit, weight in weights.items())
        deviation = math.sqrt(sum(weight**2 for weight in weights.values()))
        scores[trait] = round(max(1.0, min(5.0, NEUTRAL + SCALE * trust * total / deviation)), 1)
    marked = sorted((habit for habit in standing if abs(standing[habit]) >= 1), key=lambda habit: -abs(standing[habit]))
    return TraitEstimate(scores, tuple((habit, standing[habit] > 0) for habit in marked))


def describe(estimated: TraitEstimate) -> str:
    """The estimate as a short description: the two traits that stand out most, and the habit that does.

    Only the manner is described, never what the talk was about. There are a few thousand such descriptions in all, so
    that embedding each of them once is cheap.
    """
    away = {trait: estimated.scores[trait] - NEUTRAL for trait in TRAITS}
    marked = sorted((trait for trait in TRAITS if abs(away[trait]) >= MARKED), key=lambda trait: -abs(away[trait]))
    sentences = []
    for trait in marked[:2]:
        strong = abs(away[trait]) >= STRONG
        sentences.append(_TABLE["manners"][trait][2 + strong if away[trait] > 0 else 1 - strong])
    sentences = sentences or ["an even manner in which no trait stands out"]
    wordings = [_TABLE["frequent" if often else "rare"].get(habit) for habit, often in estimated.marked]
    sentences += [wording for wording in wordings if wording][:1]
    return " ".join(sentence[0].upper() + sentence[1:] + "." for sentence in sentences)


def main(
    dialogues: Annotated[Path, typer.Argument(help="A file of dialogues.")],
    out: Written,
    model: Annotated[str | None, typer.Option(help="A model that describes people; none: by words.")] = None,
    workers: Annotated[int, typer.Option(help="Processes at work; they change nothing but the time.", min=1)] = 1,
    call: Call = [],  # noqa: B006
    cache: Cache = CACHE,
    seed: Seed = 0,
) -> None:
    """Describe both participants by DISC, and cluster the descriptions (clusters.json, elbow.svg beside them)."""
    stage = partial(profile_stage, dialogues, retries=2, seed=seed, workers=workers)
    if model:
        ask_models(stage, out=out, model=model, call=call, cache=cache)
    else:
        print_counts(asyncio.run(stage(out=out, model=None)), out)
    clusters = out.with_name("clusters.json")
    print_counts(cluster_profiles(out, clusters, seed), clusters)


if __name__ == "__main__":
    run_command(main)
