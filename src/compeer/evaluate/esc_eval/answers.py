"""The scores in a judge's answer, read right or not at all.

Judges are asked for JSON and often write something else. What is read: JSON, also in a code fence, with numbers as
text, with a score inside an object; and plain text that announces one score (`plain.py`). What is refused: another
scale than 0 to 4, a fraction, a range, a score that is hedged or made conditional, two scores that differ, and any
other number nearby that could be meant instead. Nothing is clamped and nothing is guessed: what is refused is unscored.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from compeer.evaluate.esc_eval.plain import by_dimension, prepared, read_plain, valid_score, words_before_names
from compeer.evaluate.esc_eval.rubric import HIGHEST, Dimension, dimension_names

LONGEST = 20_000
"""Characters of the longest answer that is read at all."""

_FENCE = re.compile(r"```[a-z]*[^\S\n]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
_SCORE_KEYS = {"score", "rating", "grade", "value", "分数", "评分", "得分"}
_SCALE_KEYS = {"scale", "max", "maximum", "max_score", "out_of", "满分"}


def read_score(text: str, dimension: Dimension) -> int | None:
    """The score in the answer to a question about one dimension, or None where it is not certain what it is."""
    answer = _answer_in(text)
    if answer is None:
        return None
    objects, beside = _json_objects(answer)
    if objects:
        found = {_in_object(value, dimension) for value in objects}
        said = read_plain(prepared(beside))
        score = found.pop() if len(found) == 1 else None
        return score if said in (None, score) and prepared(beside) is not None else None
    plain = prepared(answer)
    if plain is None:
        return None
    named = by_dimension(plain)
    if named.get(dimension):
        said = read_plain(words_before_names(plain))
        return _only(named[dimension] | ({said} if said is not None else set()))
    return None if named else read_plain(plain)


def read_scores(text: str) -> dict[Dimension, int]:
    """The scores in the answer to a question about several dimensions; those that are not certain are left out."""
    answer = _answer_in(text)
    if answer is None:
        return {}
    objects, beside = _json_objects(answer)
    found: dict[Dimension, set[int | None]] = {}
    if objects:
        if prepared(beside) is None:
            return {}
        for value in objects:
            for dimension, score in _all_in_object(value):
                found.setdefault(dimension, set()).add(score)
    else:
        plain = prepared(answer)
        for dimension, scores in by_dimension(plain or "").items():
            found[dimension] = set(scores)
    return {dimension: score for dimension, scores in found.items() if (score := _only(scores)) is not None}


def _answer_in(text: str) -> str | None:
    """The answer after a model's thoughts; None if they do not end, or if there is too much to read."""
    if len(text) > LONGEST:
        return None
    answer = text.rpartition("</think>")[2]
    return None if "<think>" in answer else answer.strip()


def _only(values: set[int] | set[int | None]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


# --- JSON -------------------------------------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, since a key may come twice."""


def _json_objects(answer: str) -> tuple[list[_Pairs], str]:
    """The JSON objects in an answer that hold scores, and the text beside them."""
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
