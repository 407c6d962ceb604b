"""What `compeer reward evaluate` measures on request: how often a judge contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from compeer.errors import InputError

if TYPE_CHECKING:
    from compeer.dialogue import Dialogue
    from compeer.reward.compare import Said
    from compeer.ser.record import SerRecord

_MEND = "Mend it (docs/data.md), or write a corpus without it: compeer corpus convert CORPUS OUT --skip-bad"


def contradictions(records: Sequence[SerRecord], said: Said, corpora: Sequence[str]) -> dict[str, Any]:
    """A judge's contradictions beside those of the labels themselves, and how good the classifier is that finds them.

    The classifier learns from the corpora's dialogues, those left out that were judged.
    """
    from compeer.reasoning import STEPS
    from compeer.reward.contradiction import StrategyClassifier, contradiction_figures
    from compeer.reward.score import Judgment, Unscored

    if not any(isinstance(one, Judgment) and one.steps and one.response for one in said):
        what = "contradictions are between steps and responses, and no record was judged in both."
        raise InputError(what, field="corpus", do="Leave --corpus out, or give the judgments of a unified judge.")
    judged = {record.dialogue for record in records}
    dialogues = list(_dialogues(corpora))
    taught = [dialogue for dialogue in dialogues if dialogue.id not in judged]
    if not taught:
        what = "every dialogue of the corpus was judged, so none is left to learn from."
        raise InputError(what, field="corpus", do="Give a larger one, or another.")
    classifier = StrategyClassifier.train(taught, seed=0)
    labels: list[Judgment | Unscored] = [
        Judgment({part: float(getattr(record.labels, part).value) for part in STEPS}, {record.preference.value: 1.0})
        if record.labels and record.preference
        else Unscored("no labels")
        for record in records
    ]
    found = contradiction_figures(
        [record.dialogue for record in records],
        classifier.follows([record.candidate for record in records]),
        {"judge": {0: said}, "the labels themselves": {0: labels}},
    )
    return {
        **found,
        "classifier": {
            "dialogues": len(taught),
            "left_out_as_judged": len(dialogues) - len(taught),
            **classifier.report,
        },
    }


def _dialogues(corpora: Sequence[str]) -> Iterator[Dialogue]:
    from compeer.corpora import read_corpus

    def stop(error: InputError) -> None:
        raise InputError(error.what, file=error.file, line=error.line, field=error.field, do=_MEND)

    for corpus in corpora:
        yield from read_corpus(corpus, skip_bad=stop)
