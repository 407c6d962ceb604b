"""Which dialogues train the judge, which train the supporter, and which only measure: no dialogue serves two.

Dialogues that tell the same story stay together, else a test would ask what training has answered. They form a group
when one of these joins them, directly or through others:

- the same situation, as the corpus gives it;
- texts that have half of their word sequences in common (`WordSketch` of all that was said);
- openings that have half of theirs in common: the seeker's first message of at least 12 words (Chinese: characters).
  Corpora made from single questions hold several dialogues on the same one;
- where an embedder is given, seekers whose first words (30, in whole messages) have a cosine of at least 0.85.

Groups are put into an order by the seed and fill one split after the other up to its share of the dialogues.

Measured on public corpora: unrelated dialogues of ESConv have at most 0.05 of their word sequences in common, ESConv's
valid part and its re-tokenised copy in MultiESC at least 0.93. From cosine 0.85 on ESConv's seekers tell the same story
in other words. SMILE's 2,000 dialogues hold about a hundred pairs that open alike.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from compeer.corpora import read_corpus
from compeer.corpora.seen import SeenIds
from compeer.dialogue import Dialogue, Utterance
from compeer.errors import InputError
from compeer.io import read_json_lines
from compeer.models.embedder import Embeds
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.ser.record import SPLITS, Split
from compeer.ser.split.duplicates import (
    Bytes,
    Groups,
    Hashes,
    Indices,
    MeaningSketch,
    WordSketch,
    join_alike,
    mixed,
    text_hash,
)
from compeer.statistics import generator, words

TEXTS = WordSketch(bands=48, hashes=4, bound=0.5)
OPENINGS = WordSketch(bands=32, hashes=3, bound=0.5)
MEANINGS = MeaningSketch(bands=80, bound=0.85)
OPENING_WORDS, MEANING_WORDS = 12, 30
_DIALOGUES_A_UNIT, _LINES_A_UNIT = 200, 5_000
_HEAD = 16


def split_stage(
    dialogues: Path,
    out: Path,
    shares: Sequence[float],
    seed: int,
    embedder: Embeds | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Writes the split and the group of each dialogue, in the file's order; returns the stage's manifest.

    `shares` are those of the dialogues for judge, supporter and test. A group is named by its first dialogue.
    """
    if len(shares) != len(SPLITS) or min(shares) < 0 or not sum(shares) > 0:
        raise InputError(f"{len(SPLITS)} shares are needed, for {', '.join(SPLITS)}, none below 0.", field="shares")
    bounds = {"texts": TEXTS.bound, "openings": OPENINGS.bound, "meanings": MEANINGS.bound if embedder else None}
    stage = Stage(out, {"shares": list(shares), "seed": seed, "bounds": bounds}, {"dialogues": dialogues})
    if found := stage.finished():
        return found
    sketches = _Sketches(dialogues, out, bounds)
    sketches.make(embedder, workers)
    with stage:
        count, heads = sketches.heads()
        groups = Groups(count)
        joined = {"situation": groups.join_equal(heads[:, 1])}
        joined["texts"] = join_alike(groups, TEXTS, sketches.reader("texts", TEXTS.width), count)
        joined["openings"] = join_alike(groups, OPENINGS, sketches.reader("openings", OPENINGS.width), count)
        if embedder:
            joined["meanings"] = join_alike(groups, MEANINGS, sketches.reader("meanings", MEANINGS.width), count)
        firsts = groups.firsts()
        splits = _fill(firsts, heads[:, 0], shares, seed)
        sizes = np.bincount(firsts, minlength=count)
        names = {number: name for number, name in enumerate(sketches.ids()) if sizes[number] > 1}
        units = in_blocks(zip(sketches.ids(), firsts.tolist(), splits.tolist(), strict=True), _LINES_A_UNIT)
        work_through(stage, units, partial(_lines_of, names))
        alone = int(np.count_nonzero(sizes == 1))
        stage.counts["groups"] = Counter(
            {"groups": int(np.count_nonzero(sizes)), "largest": int(sizes.max(initial=0)), "together": count - alone}
        )
        stage.counts["joined by"] = Counter(joined)
        manifest = stage.finish()
    sketches.remove()
    return manifest


def _lines_of(names: dict[int, str], block: list[tuple[str, int, int]]) -> Done:
    lines, counts = [], Counter[str]()
    for dialogue, first, split in block:
        counts[SPLITS[split]] += 1
        line = {"dialogue": dialogue, "split": SPLITS[split], "group": names.get(first, dialogue)}
        lines.append(json.dumps(line, ensure_ascii=False))
    return Done(lines, counts={"split": counts})


def _fill(firsts: Indices, hashes: Hashes, shares: Sequence[float], seed: int) -> Indices:
    """The number of the split of each dialogue, given the first dialogue of its group and a hash of its id."""
    roots, belonging, sizes = np.unique(firsts, return_inverse=True, return_counts=True)
    keys = np.full(len(roots), 2**64 - 1, dtype=np.uint64)
    np.minimum.at(keys, belonging, hashes)  # of all its members, so that the order of the file does not matter
    order = np.argsort(mixed(keys ^ generator(seed, "split").integers(0, 2**64, dtype=np.uint64)), kind="stable")
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    bounds = np.cumsum(shares) / sum(shares) * len(firsts)
    splits = np.zeros(len(roots), dtype=np.int64)
    splits[order] = np.searchsorted(bounds[:-1], middles, side="right")
    return splits[belonging]


# --- the sketches of a file of dialogues ------------------------------------------------------------------------------


class _Sketches:
    """The sketches of a file's dialogues, kept in files beside the splits until these are written.

    They are lines of hexadecimal digits of one length, so that any dialogue's can be read without the others'.
    """

    def __init__(self, dialogues: Path, out: Path, bounds: dict[str, float | None]) -> None:
        self._dialogues, self._out = dialogues, out
        self._names = ["heads", "texts", "openings", *(["meanings"] if bounds["meanings"] else [])]
        self._ids = out.with_name(out.name + ".ids")
        beside = [self._file(name).name for name in self._names]
        self._stage = Stage(self._ids, bounds, {"dialogues": dialogues}, beside=beside)

    def make(self, embedder: Embeds | None, workers: int) -> None:
        """Writes the files, or goes on where a stopped run was."""
        if self._stage.finished():
            return
        with self._stage as stage:
            units = in_blocks(read_corpus(self._dialogues), _DIALOGUES_A_UNIT)
            work = partial(_sketch, embedder, {name: self._file(name).name for name in self._names})
            work_through(stage, units, work, 1 if embedder else workers)
            stage.finish()

    def heads(self) -> tuple[int, Hashes]:
        """How many dialogues there are; the hashes of each one's id and situation (0 where it has none)."""
        count = self._file("heads").stat().st_size // (2 * _HEAD + 1)
        return count, self.reader("heads", _HEAD)(0, count).copy().view(">u8").astype(np.uint64)

    def reader(self, name: str, width: int) -> Any:
        """A function that reads the sketches from one dialogue up to another."""
        return partial(_read_rows, self._file(name), width)

    def ids(self) -> Iterator[str]:
        """The dialogues' ids, in their order."""
        with self._ids.open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def remove(self) -> None:
        """Takes the files away."""
        for path in (self._ids, *map(self._file, self._names)):
            path.unlink(missing_ok=True)
        self._ids.with_name(self._ids.name + ".manifest.json").unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._out.with_name(f"{self._out.name}.{name}")


def _read_rows(path: Path, width: int, start: int, stop: int) -> Bytes:
    with path.open("rb") as file:
        file.seek(start * (2 * width + 1))
        text = file.read((stop - start) * (2 * width + 1)).decode("ascii")
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8).reshape(-1, width)  # line breaks are passed over


def _sketch(embedder: Embeds | None, files: dict[str, str], block: list[Dialogue]) -> Done:
    lines: dict[str, list[str]] = {
        files["heads"]: [_head(dialogue) for dialogue in block],
        files["texts"]: [TEXTS.of("\n".join(u.text for u in one.utterances)).tobytes().hex() for one in block],
        files["openings"]: [OPENINGS.of(opening(one.utterances)).tobytes().hex() for one in block],
    }
    if embedder:
        rows = MEANINGS.of(embedder.embed([first_words(dialogue) for dialogue in block]))
        lines[files["meanings"]] = [row.tobytes().hex() for row in rows]
    return Done([json.dumps(dialogue.id) for dialogue in block], beside=lines)


def _head(dialogue: Dialogue) -> str:
    own = hashlib.blake2b(dialogue.id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return own + (f"{text_hash(dialogue.situation):016x}" if dialogue.situation else "0" * 16)


def opening(utterances: Iterable[Utterance]) -> str:
    """The seeker's first message that says more than a greeting, or nothing; utterances in a row are one message."""
    for speaker, block in groupby(utterances, key=lambda utterance: utterance.speaker):
        text = "\n".join(utterance.text for utterance in block)
        if speaker == "seeker" and len(words(text)) >= OPENING_WORDS:
            return text
    return ""


def first_words(dialogue: Dialogue) -> str:
    """The seeker's first messages, as many as it takes to say something."""
    said: list[str] = []
    count = 0
    for utterance in dialogue.utterances:
        if utterance.speaker == "seeker" and count < MEANING_WORDS:
            said.append(utterance.text)
            count += len(words(utterance.text))
    return " ".join(said)


# --- reading ----------------------------------------------------------------------------------------------------------


def iter_splits(path: Path) -> Iterator[tuple[str, Split]]:
    """Each dialogue's id and split, one at a time; an error names the file, line and field."""
    for dialogue, split, _ in _lines(path):
        yield dialogue, split


def read_splits(path: Path) -> dict[str, Split]:
    """The split of each dialogue of a file, by its id."""
    return dict(iter_splits(path))


def read_groups(path: Path) -> dict[str, str]:
    """The group of each dialogue of a file, by its id: dialogues of one group were kept together."""
    return {dialogue: group for dialogue, _, group in _lines(path)}


def _lines(path: Path) -> Iterator[tuple[str, Split, str]]:
    if not path.is_file():
        raise InputError("there is no such file of splits.", file=path, do="Make it with: compeer ser split")
    seen = SeenIds()
    for number, value in read_json_lines(path):
        if not isinstance(value, dict):
            raise InputError("this line is not an object.", file=path, line=number)
        dialogue, split, group = (value.get(field) for field in ("dialogue", "split", "group"))
        if not isinstance(dialogue, str) or not dialogue:
            raise InputError("the dialogue's id is missing.", file=path, line=number, field="dialogue")
        if seen.before(dialogue, number) is not None:
            raise InputError("this dialogue has a line already.", file=path, line=number, field="dialogue")
        if split not in SPLITS:
            raise InputError(f"this is none of {', '.join(SPLITS)}.", file=path, line=number, field="split")
        yield dialogue, split, group if isinstance(group, str) else dialogue
