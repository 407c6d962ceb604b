"""What annotators are asked, which answers there are, and how an answer is kept.

There are three tasks: `steps` (each step of a supporter's turn true or false, and which of two responses is better),
`compare` (which of two models' responses is better) and `rating` (a whole conversation from 0 to 4 along ESC-Eval's
dimensions). Each annotator gets the two responses in a random order and answers "first" or "second"; what is kept names
the response itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from compeer.annotate.store import Refused
from compeer.reasoning import STEPS

TaskKind = Literal["steps", "compare", "rating"]
Answer = bool | str | int
Answers = Mapping[str, Answer]
DIMENSIONS = ("fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall")
"""ESC-Eval's dimensions, by the names that its own room gives them."""
PREFERENCE = "preference"
POSITIONS = ("first", "second")


@dataclass(frozen=True)
class LabelQuestion:
    """A question and the answers it takes; `ordered` says whether they have an order."""

    name: str
    values: tuple[Answer, ...]
    ordered: bool = False

    def asked(self) -> Self:
        """The question as annotators get it: a preference goes by position."""
        return replace(self, values=(*POSITIONS, "both", "neither")) if self.name == PREFERENCE else self


RESPONSES: dict[TaskKind, tuple[str, ...]] = {  # what an item's two responses are called where answers are kept
    "steps": ("candidate", "reference"),
    "compare": ("one", "other"),
    "rating": (),
}
QUESTIONS: dict[TaskKind, tuple[LabelQuestion, ...]] = {
    "steps": (
        *(LabelQuestion(step, (True, False)) for step in STEPS),
        LabelQuestion(PREFERENCE, (*RESPONSES["steps"], "both", "neither")),
    ),
    "compare": (LabelQuestion(PREFERENCE, (*RESPONSES["compare"], "both", "neither")),),
    "rating": tuple(LabelQuestion(name, (0, 1, 2, 3, 4), ordered=True) for name in DIMENSIONS),
}


def kept_answers(
    task: TaskKind, given: Mapping[str, Any], order: Sequence[str], wanted: Sequence[str] | None = None
) -> dict[str, Answer]:
    """The answers as they are kept; `wanted` are the questions that must be answered, without it any may be."""
    questions = {question.name: question.asked() for question in QUESTIONS[task]}
    names = dict(zip(POSITIONS, order, strict=False))
    kept: dict[str, Answer] = {}
    for name, value in given.items():
        if name not in questions:
            raise Refused("invalid", f"there is no question '{name}'.", do=f"Known: {', '.join(questions)}")
        choices = questions[name].values
        answer = next((one for one in choices if type(one) is type(value) and one == value), None)
        if answer is None:
            what = f"'{str(value)[:40]}' is no answer to '{name}'."
            raise Refused("invalid", what, do=f"Known: {', '.join(json.dumps(choice) for choice in choices)}")
        kept[name] = names.get(str(answer), answer) if name == PREFERENCE else answer
    if wanted is not None and (missing := [name for name in wanted if name not in kept]):
        raise Refused("invalid", f"'{missing[0]}' is not answered.", do="Answer all questions, or skip the item.")
    return {name: answer for name, answer in kept.items() if wanted is None or name in wanted}


def by_position(kept: Answers, order: Sequence[str]) -> dict[str, Answer]:
    """Kept answers for someone who gets the responses in this order."""
    positions = dict(zip(order, POSITIONS, strict=False))
    return {name: positions.get(str(value), value) if name == PREFERENCE else value for name, value in kept.items()}
