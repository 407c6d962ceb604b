"""How often the guards of responses (`compeer.reward.anti_gaming`) would void what people wrote: guards.json.

python research/results/judges/guards.py esconv=train.jsonl,valid.jsonl,test.jsonl smile=SMILE
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def voided(corpora: list[str]) -> dict[str, Any]:
    """Of all replies of supporters: how many, and how many would be void for which reason."""
    from compeer.corpora import read_corpus
    from compeer.reward.anti_gaming import void_reason

    reasons: Counter[str] = Counter()
    replies = 0
    for corpus in corpora:
        for dialogue in read_corpus(corpus):
            texts = [utterance.text for utterance in dialogue.utterances]
            for place, utterance in enumerate(dialogue.utterances):
                if utterance.speaker == "supporter":
                    replies += 1
                    reasons.update([void_reason(utterance.text, None, texts[:place]) or "nothing"])
    return {"replies": replies, "void": {reason: count for reason, count in reasons.items() if reason != "nothing"}}


if __name__ == "__main__":
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    found = {name: voided(paths.split(",")) for name, paths in named.items()}
    Path(__file__).with_name("guards.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
