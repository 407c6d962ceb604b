"""What annotators agree on: for each question the answer that two of them gave, or none.

Two people answer every question; a third answers those on which they differ. A question without two equal answers has
no consensus: it is dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compeer.annotate.tasks import Answer, Answers


def consensus(labels: Sequence[Answers], questions: Iterable[str]) -> dict[str, Answer | None]:
    """For each question the first answer that two labels share, or None."""
    return {question: _shared([label[question] for label in labels if question in label]) for question in questions}


def disputed(first: Answers, second: Answers) -> tuple[str, ...]:
    """The questions on which two labels differ, which a third person is asked."""
    return tuple(name for name in first if name in second and first[name] != second[name])


def _shared(answers: Sequence[Answer]) -> Answer | None:
    return next((answer for place, answer in enumerate(answers) if answer in answers[place + 1 :]), None)
