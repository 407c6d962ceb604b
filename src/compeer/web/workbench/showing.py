"""Items as they are told over HTTP: where their pictures are fetched, what each question takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compeer.annotate.queue import Task
from compeer.annotate.tasks import PREFERENCE, QUESTIONS
from compeer.web.workbench.answers import MediaShown, OtherLabel, QuestionShown, Said, StepShown, TaskShown

_PLACES = ["first", "second", "both", "neither"]


def shown_task(task: Task) -> TaskShown:
    """An item in front of one person."""
    asked = {question.name: question for question in QUESTIONS[task.task]}
    return TaskShown(
        item=task.item,
        project=task.project,
        task=task.task,
        kind=task.role,
        language=task.language,
        crisis=task.crisis,
        expires=task.expires,
        guidelines=task.guideline,
        history=shown_history(task.item, task.content["history"]),
        steps=shown_steps(task.content.get("steps", {})),
        responses=task.content.get("responses", []),
        questions=[
            QuestionShown(
                name=name,
                values=_PLACES if name == PREFERENCE else list(asked[name].values),
                ordered=asked[name].ordered,
            )
            for name in task.questions
        ],
        answers=dict(task.answers),
        note=task.remark,
        others=[OtherLabel(answers=one["answers"], note=one["remark"]) for one in task.others],
        labelled=task.labelled,
        changeable=task.changeable,
    )


def shown_history(item: int, history: Sequence[Mapping[str, Any]]) -> list[Said]:
    """A history, with addresses in place of its pictures and clips."""
    return [
        Said(
            speaker=said["speaker"],
            text=said["text"],
            media=[
                MediaShown(kind=one["kind"], url=f"/api/media/{item}/{place}/{number}{_part(one)}")
                for number, one in enumerate(said["media"])
            ],
        )
        for place, said in enumerate(history)
    ]


def shown_steps(steps: Mapping[str, Mapping[str, Any]]) -> list[StepShown]:
    """The steps of a turn, each with its decisions apart from its text."""
    return [
        StepShown(name=name, text=step["text"], decisions={key: value for key, value in step.items() if key != "text"})
        for name, step in steps.items()
    ]


def _part(one: Mapping[str, Any]) -> str:
    """The part of a clip that belongs to the message, as browsers understand it."""
    start, end = one.get("start"), one.get("end")
    if start is None and end is None:
        return ""
    return f"#t={start or 0:g}" + (f",{end:g}" if end is not None else "")
