"""The replies that lie in a run's folder, in a file of generated outputs or in a corpus, with where each was given.

A run's folder holds simulated conversations, those that failed among them: they are left out. Outputs that
`compeer policy generate` wrote give their responses; the records they answer say which dialogue each belongs to, and
without those each history stands for itself. Of a corpus the blocks of one speaker are taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from compeer.corpora import corpus_path, read_corpus
from compeer.dialogue import Speaker, merge_consecutive
from compeer.errors import InputError
from compeer.evaluate.diversity import Reply
from compeer.policy.selection import read_candidates
from compeer.reasoning import parse_turn
from compeer.ser.record import SerRecord
from compeer.simulate import read_conversations

CONVERSATIONS = "conversations.jsonl"


def read_replies(
    path: str | Path, speaker: Speaker = "supporter", records: Sequence[SerRecord] = (), language: str = "en"
) -> list[Reply]:
    """All replies of a run's folder, of a file of outputs, of conversations, or of a corpus.

    `records` and `language` are for outputs: what they answer, and the language of those whose record is not there.
    """
    place = Path(path)
    runs = sorted(place.rglob(CONVERSATIONS)) if place.is_dir() else []
    if runs:
        found = [reply for file in runs for reply in _of_conversations(file, str(file.parent), speaker)]
    elif place.is_file() and (kind := _kind(place)) != "corpus":
        found = list(
            _of_outputs(place, records, language) if kind == "outputs" else _of_conversations(place, "", speaker)
        )
    else:
        place = place if place.is_dir() else corpus_path(path)
        found = list(_of_corpus(str(path), speaker))
    if not found:
        do = "Give a run's folder, a file of outputs, or a corpus."
        raise InputError(f"there is no reply of a {speaker} in it.", file=place, do=do)
    return found


def _kind(file: Path) -> str:
    """What the first object of a file looks like; whatever is not ours is left to the corpus readers."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        keys = set(json.loads(first))
    except (ValueError, TypeError):
        return "corpus"
    if {"scenario", "turns", "outcome"} <= keys:
        return "conversations"
    return "outputs" if "record" in keys and keys & {"output", "failure"} else "corpus"


def _of_conversations(file: Path, run: str, speaker: Speaker) -> Iterator[Reply]:
    conversations = read_conversations(file)
    names = {one.scenario for one in conversations}
    for one in conversations:
        if one.outcome.status == "ended":
            first, _, repeat = one.scenario.rpartition("#")  # how a run names later talks about the same scenario
            unit = first if first in names and repeat.isdecimal() else one.scenario
            for turn in one.turns:
                if turn.speaker == speaker:
                    yield Reply(turn.text, f"{run}/{one.scenario}", unit, one.language)


def _of_outputs(file: Path, records: Sequence[SerRecord], language: str) -> Iterator[Reply]:
    known = {record.id: record for record in records}
    for candidate in read_candidates(file):
        response = parse_turn(candidate.output, cut_off=candidate.cut_off).parts.get("response")
        if isinstance(response, str):
            record = known.get(candidate.record)
            dialogue = record.dialogue if record else candidate.record
            yield Reply(response, dialogue, dialogue, record.language if record else language)


def _of_corpus(path: str, speaker: Speaker) -> Iterator[Reply]:
    for dialogue in read_corpus(path):
        for block in merge_consecutive(dialogue.utterances):
            if block.speaker == speaker:
                yield Reply(block.text, dialogue.id, dialogue.id, dialogue.language)
