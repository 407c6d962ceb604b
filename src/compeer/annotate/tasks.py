"""What annotators are asked, and how an answer is shown and kept.

There are three tasks: `steps` (each step of a supporter's turn true or false, and which of two responses is better),
`compare` (which of two models' responses is better) and `rating` (a whole conversation from 0 to 4 along ESC-Eval's
dimensions). Two responses are shown in an order that is drawn for each annotator: they answer by place, "first" or
"second", and what is kept names the response itself, so that answers given in different orders can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from compeer.annotate.store import Refused
from compeer.reasoning import STEPS

TaskKind = Literal["steps", "compare", "rating"]
TASKS: tuple[TaskKind, ...] = get_args(TaskKind)
Answer = bool | str | int
Answers = Mapping[str, Answer]
DIMENSIONS = ("fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall")
"""ESC-Eval's dimensions, by the names that its own room gives them."""
PREFERENCE = "preference"


@dataclass(frozen=True)
class Question:
    """One question: its name, the values that are kept, and whether they have an order."""

    name: str
    values: tuple[Answer, ...]
    ordered: bool = False


RESPONSES: dict[TaskKind, tuple[str, ...]] = {
    "steps": ("candidate", "reference"),
    "compare": ("one", "other"),
    "rating": (),
}
"""What the two responses of an item are called where answers are kept."""
QUESTIONS: dict[TaskKind, tuple[Question, ...]] = {
    "steps": (
        *(Question(step, (True, False)) for step in STEPS),
        Question(PREFERENCE, (*RESPONSES["steps"], "both", "neither")),
    ),
    "compare": (Question(PREFERENCE, (*RESPONSES["compare"], "both", "neither")),),
    "rating": tuple(Question(name, (0, 1, 2, 3, 4), ordered=True) for name in DIMENSIONS),
}


def kept_answers(
    task: TaskKind, given: Mapping[str, Any], shown: Sequence[str], wanted: Sequence[str] | None = None
) -> dict[str, Answer]:
    """The answers as they are kept; `wanted` are the questions that must be answered, without it any may be."""
    questions = {question.name: question for question in QUESTIONS[task]}
    places = dict(zip(("first", "second"), shown, strict=False))
    kept: dict[str, Answer] = {}
    for name, value in given.items():
        if name not in questions:
            raise Refused("invalid", f"there is no question '{name}'.", do=f"Known: {', '.join(questions)}")
        if name == PREFERENCE:
            choices: tuple[Answer, ...] = ("first", "second", "both", "neither")
            known = isinstance(value, str) and value in choices
            answer: Answer | None = places.get(value, value) if known else None
        else:
            choices = questions[name].values
            answer = next((one for one in choices if type(one) is type(value) and one == value), None)
        if answer is None:
            what = f"'{str(value)[:40]}' is no answer to '{name}'."
            raise Refused("invalid", what, do=f"Known: {', '.join(json.dumps(choice) for choice in choices)}")
        kept[name] = answer
    if wanted is not None and (missing := [name for name in wanted if name not in kept]):
        raise Refused("invalid", f"'{missing[0]}' is not answered.", do="Answer all questions, or skip the item.")
    return {name: answer for name, answer in kept.items() if wanted is None or name in wanted}


def shown_answers(kept: Answers, shown: Sequence[str]) -> dict[str, Answer]:
    """Kept answers as someone sees them to whom the responses are shown in this order."""
    places = dict(zip(shown, ("first", "second"), strict=False))
    return {
        name: places.get(value, value) if name == PREFERENCE and isinstance(value, str) else value
        for name, value in kept.items()
    }


def view(task: TaskKind, content: Mapping[str, Any], shown: Sequence[str]) -> dict[str, Any]:
    """What an annotator sees of an item: nothing tells who wrote it, or what others think of it."""
    history = [
        {"speaker": said["speaker"], "text": said["text"], "media": [_media(one) for one in said.get("media", ())]}
        for said in content["history"]
    ]
    if task == "rating":
        return {"history": history}
    if task == "compare":
        texts = dict(zip(RESPONSES["compare"], content["responses"], strict=True))
        return {"history": history, "responses": [texts[name] for name in shown]}
    turn = content["candidate"]
    texts = {"candidate": turn["response"], "reference": content["reference"]}
    return {
        "history": history,
        "steps": {step: turn[step] for step in STEPS},
        "responses": [texts[name] for name in shown],
    }


def _media(one: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a picture or clip: not its path, which can tell where it comes from."""
    return {name: one[name] for name in ("kind", "start", "end") if one.get(name) is not None}
