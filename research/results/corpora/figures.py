"""What documents count in corpora: the sample corpus, and the records that language models labelled.

python research/results/corpora/figures.py sample            sample.json beside this file
python research/results/corpora/figures.py llm llm.jsonl     llm_records.json; how llm.jsonl is made, README.md says
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from compeer.corpora import read_corpus
from compeer.corpora.counting import count_corpus
from compeer.dialogue import Dialogue
from compeer.reasoning import STEPS
from compeer.ser.record import read_records
from compeer.statistics import distinct, mean, words


def sample_figures() -> dict[str, Any]:
    """How large the sample corpus is, what it is labelled with, and how varied its English supporters are."""
    dialogues = list(read_corpus("sample"))
    counts = count_corpus(dialogues)
    said = {
        speaker: [one for dialogue in dialogues for one in dialogue.utterances if one.speaker == speaker]
        for speaker in ("seeker", "supporter")
    }
    english = [
        one.text
        for dialogue in dialogues
        if dialogue.language == "en"
        for one in dialogue.utterances
        if one.speaker == "supporter"
    ]
    openings = Counter(" ".join(words(text)[:2]) for text in english)
    opening, often = openings.most_common(1)[0]
    return {
        "dialogues": len(dialogues),
        "utterances": sum(counts.lengths),
        "shortest": min(counts.lengths),
        "longest": max(counts.lengths),
        "by_language": {
            language: {
                "dialogues": number,
                "help": sum(_helps(one) for one in dialogues if one.language == language),
                "do_not_help": sum(not _helps(one) for one in dialogues if one.language == language),
            }
            for language, number in counts.languages.items()
        },
        "written_to_fail": sum(one.id.startswith("en-x") for one in dialogues),
        "supporter_messages": len(said["supporter"]),
        "with_strategy_stage_and_notes": sum(
            all((one.strategy, one.stage, one.notes and all(one.notes.model_dump().values())))
            for one in said["supporter"]
        ),
        "seeker_messages": len(said["seeker"]),
        "with_emotion_and_intensity": sum(all((one.emotion, one.intensity)) for one in said["seeker"]),
        "ratings": counts.feedback.total(),
        "english_supporter_messages": {
            "messages": len(english),
            "distinct": {str(n): distinct(english, n) for n in (1, 2, 3)},
            "opening": opening,
            "opening_share": often / len(english),
            "words": mean([len(words(text)) for text in english]),
        },
    }


def _helps(dialogue: Dialogue) -> bool:
    """Whether what the seeker feels is weaker at the end."""
    strength = dialogue.intensity
    return strength is not None and strength.final is not None and strength.final < (strength.initial or 0)


def llm_figures(path: Path) -> dict[str, Any]:
    """How many judged records train a judge, and how many of them have a wrong step."""
    records = [record for record in read_records(path) if record.preference and record.labels]
    training = [record for record in records if record.split == "reward"]
    wrong = [r for r in training if r.labels and not all(getattr(r.labels, step).value for step in STEPS)]
    test = sum(record.split == "test" for record in records)
    return {"training": len(training), "training_with_a_wrong_step": len(wrong), "test": test}


if __name__ == "__main__":
    chosen, *paths = sys.argv[1:]
    name, found = (
        ("sample.json", sample_figures()) if chosen == "sample" else ("llm_records.json", llm_figures(Path(paths[0])))
    )
    Path(__file__).with_name(name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
