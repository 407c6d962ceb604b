"""ESC-Eval's rubric, and the scores in a judge's answer, read right or not at all.

Each of the seven dimensions has whole scores from 0 to 4 with a description each, in English and in Chinese
(`prompts/*.toml`, in our own words). Judges are asked for JSON and sometimes write something else. What is read: JSON,
also in a code fence, with numbers as text, with a score inside an object; and a line that is nothing but a score, bare
or behind `Score:` or the dimension's name: "3", "Score: 3/4", "Empathy: 3", "评分：3分". What is refused: another scale
than 0 to 4, a fraction, two scores that differ, and any other number in the words beside a score, which could be meant
instead. Nothing is clamped and nothing is guessed: what is refused is asked again, and then unscored.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from compeer.simulate.seekers import LANGUAGES, prompt_language

Dimension = Literal["fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
HIGHEST = 4  # the highest score; the lowest is 0


def rubric_texts() -> dict[str, str]:
    """The prompt files as they are, by language, for hashes and manifests."""
    folder = files("compeer.evaluate").joinpath("prompts")
    return {language: folder.joinpath(f"{language}.toml").read_text(encoding="utf-8") for language in LANGUAGES}


@cache
def rubric(language: str) -> dict[str, Any]:
    """The wording of a language's prompts and, under each dimension, its names, its question and its five levels."""
    return tomllib.loads(rubric_texts()[prompt_language(language)])


@cache
def dimension_names() -> dict[str, Dimension]:
    """What a judge may call each dimension, in lower case, in either language."""
    return {
        name: dimension
        for language in LANGUAGES
        for dimension in DIMENSIONS
        for name in (dimension, *rubric(language)[dimension]["names"])
    }


_SCORE_KEYS = {"score", "rating", "grade", "value", "分数", "评分", "得分"}
# What could be a number, and so a score, in words beside one:
_NUMBER = re.compile(r"\d|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten)\b|[零〇一二两三四五六七八九十百]")
_OTHER_SCALE = re.compile(r"(?:/|out of|满分)\s*(?!4\b)\d|\d-point|\d\s*%|[十百]分制")


@cache
def _score_line() -> re.Pattern[str]:
    """A line that is a score and nothing else, bare or behind a label, which a list mark may stand before."""
    names = "|".join(re.escape(name) for name in sorted(dimension_names(), key=len, reverse=True))
    words = "|".join(sorted(_SCORE_KEYS))
    return re.compile(
        r"(?:(?:(?:[-•]|[0-9]+[.)])\s+(?=\D))?"
        rf"(?P<name>{names})?\s*(?:final\s+)?(?:{words})?\s*(?:[:=|]|\bis\b|是|为)\s*)?"
        rf"(?P<score>[0-{HIGHEST}])(?:\.0)?\s*(?:(?:/|out of)\s*{HIGHEST}|points?|分)?\s*[.!。]?"
    )


def read_lines(text: str) -> dict[Dimension | None, set[int | None]]:
    """The scores that whole lines of a text give, by the dimension named before them, None where there is no name.

    Nothing where a number stands anywhere else: it could be the score, another scale, or a second thought.
    """
    found: dict[Dimension | None, set[int | None]] = {}
    for line in _normal(text).splitlines():
        if match := _score_line().fullmatch(line.strip(" \t|[](){}")):
            found.setdefault(dimension_names().get(match["name"] or ""), set()).add(int(match["score"]))
        elif _NUMBER.search(line):
            return {}
    return found


def _normal(text: str) -> str:
    """Text in small letters and one spelling of signs, without emphasis."""
    return re.sub(r"[*_`#\"']", "", unicodedata.normalize("NFKC", text).lower())


LONGEST = 20_000  # characters of the longest answer that is read at all
_FENCE = re.compile(r"```[a-z]*[^\S\n]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
_SCALE_KEYS = {"scale", "max", "maximum", "max_score", "out_of", "满分"}


def read_score(text: str, dimension: Dimension) -> int | None:
    """The score in the answer to a question about one dimension, or None where it is not certain what it is."""
    objects, lines = _read(text)
    if objects:
        return _only({_in_object(value, dimension) for value in objects}.union(*lines.values()))
    return _only(lines.get(dimension, set()) | lines.get(None, set()))


def read_scores(text: str) -> dict[Dimension, int]:
    """The scores in the answer to a question about several dimensions; those that are not certain are left out."""
    objects, lines = _read(text)
    found = {} if objects else {name: scores for name, scores in lines.items() if name}
    for value in objects:
        for dimension, score in _all_in_object(value):
            found.setdefault(dimension, set()).add(score)
    return {dimension: score for dimension, scores in found.items() if (score := _only(scores)) is not None}


def _read(text: str) -> tuple[list[_Pairs], dict[Dimension | None, set[int | None]]]:
    """JSON objects and lines' scores after the thoughts; nothing where these do not end, or a scale is not ours."""
    answer = text.rpartition("</think>")[2]
    if len(text) > LONGEST or "<think>" in answer:
        return [], {}
    objects, beside = _json_objects(answer.strip())
    return ([], {}) if _OTHER_SCALE.search(_normal(beside)) else (objects, read_lines(beside))


def _only(values: set[int | None]) -> int | None:
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


def _in_object(pairs: _Pairs, dimension: Dimension) -> int | None:
    """The one score that an object holds for a dimension, under its name or as plain "score"."""
    named = {score for key, score in _all_in_object(pairs) if key == dimension}
    plain = {_json_score(value) for key, value in pairs if _key(key) in _SCORE_KEYS}
    about = [value for key, value in pairs if _key(key) in ("dimension", "维度")]
    if any(not isinstance(value, str) or dimension_names().get(_key(value)) != dimension for value in about):
        return None
    return None if _scaled_otherwise(pairs) else _only(named | plain)


def _all_in_object(pairs: _Pairs, deep: int = 2) -> Iterator[tuple[Dimension, int | None]]:
    """Each dimension that an object names, with its score or None; also in an object or list inside it."""
    if _scaled_otherwise(pairs):
        return
    about = [value for key, value in pairs if _key(key) in ("dimension", "维度")]
    if len(about) == 1 and isinstance(about[0], str) and (dimension := dimension_names().get(_key(about[0]))):
        yield dimension, _only({_json_score(value) for key, value in pairs if _key(key) in _SCORE_KEYS})
        return
    for key, value in pairs:
        if dimension := dimension_names().get(_key(key)):
            yield dimension, _json_score(value)
            continue
        for inner in [value] if isinstance(value, _Pairs) else value if isinstance(value, list) else []:
            if isinstance(inner, _Pairs) and deep:
                yield from _all_in_object(inner, deep - 1)


def _json_score(value: Any) -> int | None:
    if isinstance(value, _Pairs):
        inner = [one for key, one in value if _key(key) in _SCORE_KEYS]
        if _scaled_otherwise(value) or len(inner) != 1 or isinstance(inner[0], _Pairs):
            return None
        value = inner[0]
    if isinstance(value, str):
        return _only(read_lines(value).get(None, set()))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if 0 <= value <= HIGHEST and value == int(value) else None


def _scaled_otherwise(pairs: _Pairs) -> bool:
    return any(_key(key) in _SCALE_KEYS and value not in (HIGHEST, str(HIGHEST), "0-4") for key, value in pairs)


def _key(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().lower()
