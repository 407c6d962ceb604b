"""ESC-Eval's rubric, and the scores in a judge's answer, read right or not at all.

Each of the seven dimensions has whole scores from 0 to 4 with a description each, in English and in Chinese
(`prompts/*.toml`). Judges are asked for JSON and sometimes write something else. What is read: JSON, also in a code
fence or with numbers as text; and a line that is nothing but a score, bare or behind a name: "3", "Score: 3/4".
What is refused: another scale than 0 to 4, a fraction, two scores that differ, and any other number in the words beside
a score, which could be meant instead. Nothing is guessed: what is refused is asked again, and then unscored.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar, get_args

from compeer.io import table
from compeer.ser.asking import regex
from compeer.simulate.seekers import LANGUAGES, prompt_language

Dimension = Literal["fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
HIGHEST = 4  # the highest score; the lowest is 0
Value = TypeVar("Value")
Named = tuple[Dimension | None, int | None]  # a score, None where it cannot be read, and the dimension named with it


def rubric_texts() -> dict[str, str]:
    """The prompt files as they are, by language, for hashes and manifests."""
    folder = files("compeer.evaluate").joinpath("prompts")
    return {language: folder.joinpath(f"{language}.toml").read_text(encoding="utf-8") for language in LANGUAGES}


def rubric(language: str) -> dict[str, Any]:
    """The wording of a language's prompts and, under each dimension, its names, its question and its five levels."""
    return table(f"evaluate/prompts/{prompt_language(language)}")


@cache
def dimension_names() -> dict[str, Dimension]:
    """What a judge may call each dimension, in lower case, in either language."""
    return {
        name: dimension
        for language in LANGUAGES
        for dimension in DIMENSIONS
        for name in (dimension, *rubric(language)[dimension]["names"])
    }


_TABLE = table("evaluate/answers")
_SCORE_KEYS, _SCALE_KEYS = _TABLE["score_keys"], _TABLE["scale_keys"]
_NUMBER, _OTHER_SCALE, _FENCE = (re.compile(_TABLE[name]) for name in ("number", "other_scale", "fence"))


@cache
def _score_line() -> re.Pattern[str]:
    names = "|".join(re.escape(name) for name in sorted(dimension_names(), key=len, reverse=True))
    return re.compile(regex(_TABLE["line"], {"names": names, "words": "|".join(sorted(_SCORE_KEYS))}))


def read_lines(text: str) -> list[Named]:
    """The scores that whole lines of a text give; nothing where another number stands, which could be meant instead."""
    found: list[Named] = []
    for line in _normal(text).splitlines():
        if match := _score_line().fullmatch(line.strip(" \t|[](){}")):
            found.append((dimension_names().get(match["name"] or ""), int(match["score"])))
        elif _NUMBER.search(line):
            return []
    return found


def _normal(text: str) -> str:
    """Text in small letters and one spelling of signs, without emphasis."""
    return re.sub(r"[*_`#\"']", "", unicodedata.normalize("NFKC", text).lower())


LONGEST = 20_000  # characters of the longest answer that is read at all


def read_score(text: str, dimension: Dimension) -> int | None:
    """The score in the answer to a question about one dimension, or None where it is not certain what it is."""
    return _only({score for name, score in _read(text) if name in (dimension, None)})


def read_scores(text: str) -> dict[Dimension, int]:
    """The scores in the answer to a question about several dimensions; those that are not certain are left out."""
    found: dict[Dimension, set[int | None]] = {}
    for dimension, score in _read(text):
        if dimension:
            found.setdefault(dimension, set()).add(score)
    return {dimension: score for dimension, scores in found.items() if (score := _only(scores)) is not None}


def _read(text: str) -> list[Named]:
    """The scores of JSON objects and lines after the thoughts; none where these do not end, or a scale is not ours."""
    answer = text.rpartition("</think>")[2]
    if len(text) > LONGEST or "<think>" in answer:
        return []
    objects, beside = _json_objects(answer.strip())
    if _OTHER_SCALE.search(_normal(beside)):
        return []
    lines = read_lines(beside)
    if not objects:
        return lines
    return [*(one for value in objects for one in _in_object(value)), *((None, score) for _, score in lines)]


def _only(values: set[Value]) -> Value | None:
    return next(iter(values)) if len(values) == 1 else None


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, since a key may come twice."""


def _json_objects(answer: str) -> tuple[list[_Pairs], str]:
    """The JSON objects in an answer, and the text beside them."""
    text = _FENCE.sub(r"\1", answer)
    decoder = json.JSONDecoder(object_pairs_hook=_Pairs)
    objects: list[_Pairs] = []
    beside: list[str] = []
    position = 0
    for _ in range(64):  # more braces than that are no answer
        start = text.find("{", position)
        if start < 0:
            break
        beside.append(text[position:start])
        try:
            value, position = decoder.raw_decode(text, start)
            objects.append(value)
        except (ValueError, RecursionError):
            position = start + 1
    return objects, " ".join([*beside, text[position:]])


def _in_object(pairs: _Pairs, depth: int = 0) -> Iterator[Named]:
    """Each score that an object holds under a dimension's name, also in an object or list inside it, or as "score"."""
    if _scaled_otherwise(pairs):
        yield from [] if depth else [(None, None)]
        return
    titles = [value for key, value in pairs if _key(key) in ("dimension", "维度")]
    known = dimension_names()
    about = _only({known.get(_key(title)) if isinstance(title, str) else None for title in titles})
    for key, value in pairs:
        if _key(key) in _SCORE_KEYS and (about if titles else not depth):
            yield about, _json_score(value)
        if dimension := known.get(_key(key)):
            yield dimension, _json_score(value)
            continue
        for inner in [value] if isinstance(value, _Pairs) else value if isinstance(value, list) else []:
            if isinstance(inner, _Pairs) and depth < 2:
                yield from _in_object(inner, depth + 1)


def _json_score(value: Any) -> int | None:
    if isinstance(value, _Pairs):
        inner = [one for key, one in value if _key(key) in _SCORE_KEYS]
        if _scaled_otherwise(value) or len(inner) != 1 or isinstance(inner[0], _Pairs):
            return None
        value = inner[0]
    if isinstance(value, str):
        return _only({score for name, score in read_lines(value) if name is None})
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value in range(HIGHEST + 1) else None


def _scaled_otherwise(pairs: _Pairs) -> bool:
    return any(_key(key) in _SCALE_KEYS and value not in (HIGHEST, str(HIGHEST), "0-4") for key, value in pairs)


def _key(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().lower()
