"""ESC-Eval's rubric, and the scores in a judge's answer, read right or not at all.

Each of the seven dimensions has whole scores from 0 to 4 with a description each, in English and in Chinese
(`prompts/*.toml`, in our own words). Judges are asked for JSON and often write something else. What is read: JSON, also
in a code fence, with numbers as text, with a score inside an object; and plain text that announces one score. What is
refused: another scale than 0 to 4, a fraction, a range, a score that is hedged or made conditional, two scores that
differ, and any other number nearby that could be meant instead. Nothing is clamped and nothing is guessed: what is
refused is unscored.

Of plain text, read are digits, English words and Chinese ones: "3", "three", "三分"; "Score: 3", "I'd say 3",
"评分：三分"; a number with its scale, "3/4". The text is first prepared: one spelling for digits and signs, no emphasis
or list marks, scales taken out. Then every announced score is found; it must end there ("3 issues" is no score), stand
without a hedge ("3 or so", "not a 3", "a 4 if …"), and agree with all the others. Last, any other number from 0 to 10
that neither counts something nor names a turn makes it uncertain.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from compeer.ser.asking import regex

Dimension = Literal["fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
HIGHEST = 4
"""The highest score; the lowest is 0."""
LANGUAGES = ("en", "zh")
"""Languages that the rubric is written in; judges of conversations in any other read it in English."""


@cache
def rubric(language: str) -> dict[str, Any]:
    """The wording of a language's prompts and, under each dimension, its names, its question and its five levels."""
    code = "zh" if language.split("-")[0] == "zh" else "en"
    text = files("compeer.evaluate").joinpath("prompts", f"{code}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def rubric_texts() -> dict[str, str]:
    """The prompt files as they are, by language, for hashes and manifests."""
    folder = files("compeer.evaluate").joinpath("prompts")
    return {language: folder.joinpath(f"{language}.toml").read_text(encoding="utf-8") for language in LANGUAGES}


@cache
def dimension_names() -> dict[str, Dimension]:
    """What a judge may call each dimension, in lower case, in either language."""
    return {
        name: dimension
        for language in LANGUAGES
        for dimension in DIMENSIONS
        for name in (dimension, *rubric(language)[dimension]["names"])
    }


_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_HAN = {
    character: value for value, characters in enumerate(("零〇", "一", "二两", "三", "四")) for character in characters
}
_HAN |= {"五": 5, "六": 6, "七": 7, "八": 8, "九": 9, "十": 10}
_HAN_DIGIT = rf"(?<![{''.join(_HAN)}百千])[{''.join(_HAN)}](?![{''.join(_HAN)}百千点])"
_DIGITS = r"(?<![0-9.])[0-9]+(?:\.[0-9]+)?"
_NUMBER = rf"(?:{_DIGITS}|\b(?:{'|'.join(_WORDS)})\b|{_HAN_DIGIT})"
_OPEN, _CLOSE = "\ue000", "\ue001"
"""Around a number that came with its scale, in text prepared for reading."""
_TABLE = tomllib.loads(files("compeer.evaluate").joinpath("score_patterns.toml").read_text(encoding="utf-8"))
_FRAGMENTS = {**_TABLE["fragments"], "NUMBER": _NUMBER, "DIGITS": _DIGITS, "OPEN": _OPEN, "CLOSE": _CLOSE}
_ONE = {name: re.compile(regex(one, _FRAGMENTS), re.MULTILINE) for name, one in _TABLE["one"].items()}
_SEVERAL = {
    name: [re.compile(regex(one, _FRAGMENTS), re.MULTILINE) for one in several]
    for name, several in _TABLE["several"].items()
}
_NEAR = 80
"""Characters before a number that can change what it means."""


def prepared(text: str) -> str | None:
    """Plain lower-case text without emphasis, list marks and scales; None if a scale is not ours."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'").replace("−", "-")
    text = re.sub(r"[–—]", "-", re.sub(rf"[*_`#{_OPEN}{_CLOSE}“”]", "", text)).strip()
    text = re.sub(r"[^\S\n]+", " ", re.sub(r"\s*\n\s*", "\n", text))
    if "百分制" in text:
        return None
    without_ranges = _without_scales(_SEVERAL["ranges"], text)
    if without_ranges is None:
        return None
    for match in _ONE["with_scale"].finditer(without_ranges):
        if _number(match["high"]) != HIGHEST and _number(match["value"]) <= _number(match["high"]):
            return None
    text = _ONE["with_scale"].sub(
        lambda match: f"{_OPEN}{match['value']}{_CLOSE}" if _number(match["high"]) == HIGHEST else match[0],
        without_ranges,
    )
    without_scales = _without_scales(_SEVERAL["highest_named"], text)
    return None if without_scales is None else _ONE["listed"].sub("", without_scales).strip()


def _without_scales(patterns: Sequence[re.Pattern[str]], text: str) -> str | None:
    """The text without the scales that it names, or None if one of them is not from 0 to 4."""
    for pattern in patterns:
        for match in pattern.finditer(text):
            if _number(match["high"]) != HIGHEST or _number(match.groupdict().get("low") or "0") != 0:
                return None
        text = pattern.sub(" ", text)
    return text


def read_plain(text: str | None) -> int | None:
    """The one score that a prepared text announces, if no other number in it could be meant."""
    if not text:
        return None
    found: dict[tuple[int, int], float] = {}
    for pattern in _SEVERAL["mentions"]:
        for match in pattern.finditer(text):
            if not _ONE["ended"].match(text, match.end()):
                continue
            if _ONE["hedged_after"].match(text, match.end()) or _before(_ONE["hedged_before"], text, match.start()):
                return None
            found[match.span("value")] = _number(match["value"])
    values = set(found.values())
    if len(values) != 1:
        return None
    score = values.pop()
    return None if _rivals(text, score, set(found)) else valid_score(score)


def _rivals(text: str, score: float, read: set[tuple[int, int]]) -> bool:
    """Whether another number in the text could be the score: one of 0 to 10 that neither counts nor places anything."""
    return any(
        match.span() not in read
        and _number(match[0]) != score
        and _number(match[0]) <= 10
        and not _before(_ONE["place"], text, match.start())
        and (not _ONE["counted"].match(text, match.end()) or _before(_ONE["weighed"], text, match.start()))
        for match in _ONE["other"].finditer(text)
    )


def _before(pattern: re.Pattern[str], text: str, place: int) -> bool:
    """Whether the words just before a place are such."""
    return pattern.search(text, max(0, place - _NEAR), place) is not None


def valid_score(value: float) -> int | None:
    """A number as a score, if it is one."""
    return int(value) if 0 <= value <= HIGHEST and value == int(value) else None


def _number(text: str) -> float:
    if text in _HAN:
        return _HAN[text]
    return _WORDS.index(text) if text in _WORDS else float(text)


@cache
def _labels() -> re.Pattern[str]:
    """A dimension's name where a score is to follow."""
    names = "|".join(re.escape(name) for name in sorted(dimension_names(), key=len, reverse=True))
    return re.compile(
        rf"(?<![a-z])(?P<name>{names})(?![a-z])[\"']?(?:\s*(?:score|rating|评分|得分|分数))?[\"']?"
        rf"(?:\s*(?::|=|\||->|→|\bis\b|\s-\s|是|为)\s*|\s*(?=[0-9{_OPEN}][0-9{_CLOSE}.]*\s*(?:分|[,;\n]|\Z)))"
    )


def words_before_names(text: str) -> str:
    """What stands before the first dimension's name."""
    match = _labels().search(text)
    return text[: match.start()] if match else text


def by_dimension(text: str) -> dict[Dimension, set[int | None]]:
    """The scores that follow each dimension's name; a name without one is left out."""
    labels = list(_labels().finditer(text))
    found: dict[Dimension, set[int | None]] = {}
    for label, end in zip(labels, [*(label.start() for label in labels[1:]), len(text)], strict=False):
        score = read_plain(text[label.end() : end].strip())
        if score is not None:
            found.setdefault(dimension_names()[label["name"]], set()).add(score)
    return found


LONGEST = 20_000
"""Characters of the longest answer that is read at all."""

_FENCE = re.compile(r"```[a-z]*[^\S\n]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
_SCORE_KEYS = {"score", "rating", "grade", "value", "分数", "评分", "得分"}
_SCALE_KEYS = {"scale", "max", "maximum", "max_score", "out_of", "满分"}


def read_score(text: str, dimension: Dimension) -> int | None:
    """The score in the answer to a question about one dimension, or None where it is not certain what it is."""
    objects, plain = _read(text)
    if plain is None:
        return None
    if objects:
        return _only({_in_object(value, dimension) for value in objects} | _announced(plain))
    named = by_dimension(plain)
    if named.get(dimension):
        return _only(named[dimension] | _announced(words_before_names(plain)))
    return None if named else read_plain(plain)


def read_scores(text: str) -> dict[Dimension, int]:
    """The scores in the answer to a question about several dimensions; those that are not certain are left out."""
    objects, plain = _read(text)
    if plain is None:
        return {}
    found: dict[Dimension, set[int | None]] = {} if objects else by_dimension(plain)
    for value in objects:
        for dimension, score in _all_in_object(value):
            found.setdefault(dimension, set()).add(score)
    return {dimension: score for dimension, scores in found.items() if (score := _only(scores)) is not None}


def _read(text: str) -> tuple[list[_Pairs], str | None]:
    """The JSON objects after a model's thoughts, and the prepared words beside them.

    The words are None if the thoughts do not end, if there is too much to read, or if a scale is not ours.
    """
    answer = text.rpartition("</think>")[2]
    if len(text) > LONGEST or "<think>" in answer:
        return [], None
    objects, beside = _json_objects(answer.strip())
    return objects, prepared(beside if objects else answer.strip())


def _announced(plain: str) -> set[int | None]:
    """The score that words announce, if they do."""
    score = read_plain(plain)
    return set() if score is None else {score}


def _only(values: set[int | None]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


# --- JSON -------------------------------------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, since a key may come twice."""


def _json_objects(answer: str) -> tuple[list[_Pairs], str]:
    """The JSON objects in an answer, and the text beside them."""
    text = _FENCE.sub(r"\1", answer)
    decoder = json.JSONDecoder(object_pairs_hook=_Pairs)
    objects: list[_Pairs] = []
    beside: list[str] = []
    place = 0
    for _ in range(64):  # more braces than that are no answer
        start = text.find("{", place)
        if start < 0:
            break
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            objects.append(value)
        beside.append(text[place:start])
        place = end
    beside.append(text[place:])
    return objects, " ".join(beside)


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
        return read_plain(prepared(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return valid_score(value)


def _scaled_otherwise(pairs: _Pairs) -> bool:
    return any(_key(key) in _SCALE_KEYS and value not in (HIGHEST, str(HIGHEST), "0-4") for key, value in pairs)


def _key(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().lower()
