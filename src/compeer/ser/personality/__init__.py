"""How each participant of a dialogue speaks: a profile of DISC traits, with a description in words.

A model that is given reads the whole dialogue and answers with both profiles as JSON. Without one they are estimated
from words and habits of writing (`compeer.ser.personality.traits`); every profile says which it was. Descriptions are
English in either case, since they are what is embedded and clustered (`compeer.ser.personality.clusters`), and what a
rewrite is steered by.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, Speaker, merge_consecutive, transcript
from compeer.errors import InputError, from_validation
from compeer.io import Frozen, read_json_lines
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.pipeline import Done, Stage, ask_through, in_blocks, work_through
from compeer.reasoning import one_line
from compeer.ser.asking import Complaint, Read, ask_until_read
from compeer.ser.personality.traits import TRAITS, describe, estimate
from compeer.statistics import generator

PARTICIPANTS: tuple[Speaker, ...] = ("seeker", "supporter")
DIALOGUES_A_UNIT = 200
SAMPLING = Sampling(temperature=0.3, max_tokens=400)


class Scores(Frozen):
    """The four DISC traits, each from 1 (hardly there) to 5 (very marked)."""

    dominance: float = Field(ge=1, le=5)
    influence: float = Field(ge=1, le=5)
    steadiness: float = Field(ge=1, le=5)
    compliance: float = Field(ge=1, le=5)


class Profile(Frozen):
    """How one participant of one dialogue speaks, and who says so."""

    dialogue: str = Field(min_length=1)
    participant: Speaker
    scores: Scores
    description: str = Field(min_length=1)
    source: Literal["llm", "lexical"]
    model: str | None = None


def read_profiles(path: Path) -> Iterator[Profile]:
    """The profiles of a file, one at a time; an error names the file, line and field."""
    if not path.is_file():
        raise InputError("there is no such file of profiles.", file=path, do="Make it with: compeer ser personality")
    for number, value in read_json_lines(path):
        try:
            yield Profile.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None


async def profile_stage(
    dialogues: Path, out: Path, model: TextModel | None, retries: int, seed: int, workers: int = 1
) -> dict[str, Any]:
    """Writes the profiles of both participants of each dialogue, by the model or, without one, by the lexical estimate.

    A participant who said nothing has no profile. Returns the stage's manifest.
    """
    settings: dict[str, Any] = {"model": model.name if model else None}
    if model is not None:
        settings |= {"retries": retries, "seed": seed, "prompt": hashlib.sha256(_prompt().encode()).hexdigest()}
    stage = Stage(out, settings, {"dialogues": dialogues})
    if found := stage.finished():
        return found
    with stage:
        if model is None:
            work_through(stage, in_blocks(read_corpus(dialogues), DIALOGUES_A_UNIT), _estimated, workers)
            return stage.finish()
        units = in_blocks(read_corpus(dialogues), model.batch_size)
        await ask_through(stage, units, partial(_asked, model, retries, seed), model.at_once)
        return stage.finish(failed=sum(stage.counts.get("failed", Counter()).values()))


def _spoken(dialogue: Dialogue) -> dict[Speaker, list[str]]:
    """What each participant who said something wrote, a text a block."""
    blocks = merge_consecutive(dialogue.utterances)
    said: dict[Speaker, list[str]] = {
        who: [block.text for block in blocks if block.speaker == who] for who in PARTICIPANTS
    }
    return {who: texts for who, texts in said.items() if any(text.strip() for text in texts)}


# --- by the lexical estimate ------------------------------------------------------------------------------------------


def lexical_profiles(dialogue: Dialogue) -> list[Profile]:
    """The profiles of a dialogue's participants, estimated from their words alone."""
    found = []
    for participant, texts in _spoken(dialogue).items():
        estimated = estimate(texts, dialogue.language, participant)
        profile = Profile(
            dialogue=dialogue.id,
            participant=participant,
            scores=Scores.model_validate(estimated.scores),
            description=describe(estimated),
            source="lexical",
        )
        found.append(profile)
    return found


def _estimated(block: list[Dialogue]) -> Done:
    profiles = [profile for dialogue in block for profile in lexical_profiles(dialogue)]
    return Done([_line(profile) for profile in profiles], counts={"profiles": _by_participant(profiles)})


# --- by a model -------------------------------------------------------------------------------------------------------


async def _asked(model: TextModel, retries: int, seed: int, block: list[Dialogue]) -> Done:
    requests = [_request(dialogue, seed) for dialogue in block]
    answers = await ask_until_read(model, requests, lambda _, generation: read_answer(generation), SAMPLING, retries)
    profiles: list[Profile] = []
    counts: dict[str, Counter[str]] = {"failed": Counter(), "dropped": Counter()}
    for dialogue, answer in zip(block, answers, strict=True):
        if isinstance(answer, Read):
            for participant in _spoken(dialogue):
                scores, description = answer.value[participant]
                profile = Profile(
                    dialogue=dialogue.id,
                    participant=participant,
                    scores=scores,
                    description=description,
                    source="llm",
                    model=model.name,
                )
                profiles.append(profile)
        elif isinstance(answer, Failure):
            counts["dropped" if answer.kind == "refused" else "failed"][answer.kind] += 1
        else:
            counts["dropped"]["unread"] += 1
    return Done([_line(profile) for profile in profiles], counts={"profiles": _by_participant(profiles), **counts})


def _prompt() -> str:
    return files("compeer.ser").joinpath("prompts", "personality.txt").read_text(encoding="utf-8").strip()


def _request(dialogue: Dialogue, seed: int) -> Request:
    text = _prompt().format(conversation=transcript(merge_consecutive(dialogue.utterances)))
    drawn = int(generator(seed, "profile", dialogue.id).integers(2**31))
    return Request(({"role": "user", "content": text},), seed=drawn, grammar=answer_grammar())


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


class _Described(Scores):
    description: str = Field(min_length=10, max_length=1000)


class _Both(Frozen):
    seeker: _Described
    supporter: _Described


def read_answer(generation: Generation) -> dict[Speaker, tuple[Scores, str]] | Complaint:
    """Scores and description of both participants, or what is wrong with the answer."""
    text = generation.text
    if generation.cut_off:
        return Complaint("it was cut off before it ended; be brief")
    start, end = text.find("{"), text.rfind("}")
    try:
        both = _Both.model_validate(json.loads(text[start : end + 1]))
    except ValidationError as error:
        first = error.errors()[0]
        return Complaint(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
    except (ValueError, RecursionError):
        return Complaint("it is not one JSON object")
    found: dict[Speaker, _Described] = {"seeker": both.seeker, "supporter": both.supporter}
    return {
        who: (Scores.model_validate({trait: getattr(one, trait) for trait in TRAITS}), one_line(one.description))
        for who, one in found.items()
    }


def _line(profile: Profile) -> str:
    return profile.model_dump_json(exclude_defaults=True)


def _by_participant(profiles: Sequence[Profile]) -> Counter[str]:
    return Counter(profile.participant for profile in profiles)


# --- made elsewhere ---------------------------------------------------------------------------------------------------


def import_profiles(path: Path) -> Iterator[Profile]:
    """The profiles of a file in the shape that step-labelled turns come with, a line a context of ESConv:

    `{"id": "esconv-train-73-6", "seeker": {"description", "D", "I", "S", "C"}, "supporter": {…}}`, where 73 is the
    dialogue's line, counted from 0. They get the ids that our reader gives to ESConv's dialogues.
    """
    if not path.is_file():
        raise InputError("there is no such file of profiles.", file=path)
    for number, value in read_json_lines(path):
        try:
            corpus, split, line, _ = str(value["id"]).rsplit("-", 3)
            dialogue = f"{corpus}-{split}-{int(line) + 1:04d}"
            for who in PARTICIPANTS:
                given = value[who]
                scores = {trait: given[trait[0].upper()] for trait in TRAITS}
                yield Profile.model_validate(
                    {
                        "dialogue": dialogue,
                        "participant": who,
                        "scores": scores,
                        "description": given["description"],
                        "source": "llm",
                    }
                )
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None
        except (KeyError, TypeError, ValueError) as error:
            what = f"this is no pair of profiles: {error!r}"
            raise InputError(what, file=path, line=number, do="See docs/personality.md for the shape.") from None
