"""The texts that the learnt layers are trained on: invented messages and conversations, each with its level and kind.

A line is `level<TAB>kind<TAB>text`; kind is `-` where the level is none, and ` ¶ ` stands between the messages of a
conversation. The language is told by the script. Lines that begin with `#` are for the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from compeer.corpora import read_corpus
from compeer.errors import InputError
from compeer.models.embedder import is_latin
from compeer.safety.risk import KINDS, LEVELS, Kind, Level
from compeer.statistics import generator

BETWEEN = " ¶ "
HARMLESS = 0.35
"""The share of harmless texts that are made longer; of dangers all are."""
NEIGHBOURS = 10
"""Texts of a file, one after the other, that are held out together."""
_WINDOW = 4


@dataclass(frozen=True)
class Text:
    """What a seeker wrote, in one message or several, and how grave it is."""

    messages: tuple[str, ...]
    level: Level
    kind: Kind | None = None
    source: int = -1
    """The text it was made from, where it was made; texts of one source are held out together."""

    @property
    def language(self) -> str:
        """By its script."""
        return "en" if is_latin("".join(self.messages)) else "zh"


def packaged_folder() -> Path:
    """The folder of texts that comes with the package."""
    return Path(str(files("compeer.safety").joinpath("texts")))


def read_texts(folder: Path) -> list[Text]:
    """The texts of all files in a folder, each once; an error names the file and line."""
    if not (paths := sorted(folder.glob("*.txt"))):
        raise InputError("there are no texts (*.txt) in it.", file=folder)
    found: dict[tuple[str, ...], Text] = {}
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                text = _text(line, path, number)
                found.setdefault(text.messages, text)
    return list(found.values())


def _text(line: str, path: Path, number: int) -> Text:
    fields = line.split("\t")
    if len(fields) != 3:
        raise InputError("this is no labelled text.", file=path, line=number, do="Write: level, tab, kind, tab, text.")
    level, kind, text = fields
    if level not in LEVELS:
        raise InputError(
            "no such level.", file=path, line=number, field="level", do=f"Write one of {', '.join(LEVELS)}."
        )
    if (kind != "-" and kind not in KINDS) or (level == "none") != (kind == "-"):
        do = f"Write - where the level is none, else one of {', '.join(KINDS)}."
        raise InputError("no such kind at this level.", file=path, line=number, field="kind", do=do)
    messages = tuple(message.strip() for message in text.split(BETWEEN.strip()) if message.strip())
    if not messages:
        raise InputError("there is no text.", file=path, line=number, field="text")
    return Text(messages, level, None if level == "none" else kind)  # type: ignore[arg-type]


def everyday_texts() -> list[Text]:
    """What the seekers of the sample corpus say, message by message and as they went on: it is all harmless."""
    found = []
    for dialogue in read_corpus("sample"):
        said = [utterance.text for utterance in dialogue.utterances if utterance.speaker == "seeker"]
        found += [Text((message,), "none") for message in said]
        found += [Text(tuple(said[start : start + _WINDOW]), "none") for start in range(0, len(said) - 1, 2 * _WINDOW)]
    return found


def numbered(texts: Iterable[Text]) -> list[Text]:
    """The texts with their numbers as sources."""
    return [Text(text.messages, text.level, text.kind, number) for number, text in enumerate(texts)]


def made_longer(texts: Sequence[Text], seed: int) -> list[Text]:
    """More texts out of the given: the danger of one amid harmless messages, and harmless messages in a row.

    So a danger that is told in passing, or some messages ago, is learnt, and that many harmless words are no danger.
    """
    rng = generator(seed, "texts made longer")
    made: list[Text] = []
    for language in ("en", "zh"):
        own = [text for text in texts if text.language == language]
        harmless = [text for text in own if text.level == "none" and len(text.messages) == 1]
        alone = {text.messages[0] for text in harmless}
        made += [
            Text((message,), "none", None, text.source)
            for text in own
            if text.level == "none" and len(text.messages) > 1
            for message in text.messages
            if message not in alone
        ]
        for text in own:
            if not harmless or len(text.messages) > 3 or (text.level == "none" and rng.random() > HARMLESS):
                continue
            picked = [harmless[place].messages[0] for place in rng.integers(0, len(harmless), int(rng.integers(1, 5)))]
            before = int(rng.integers(len(picked) // 2, len(picked) + 1))
            messages = (*picked[:before], *text.messages, *picked[before:])
            if rng.random() < 0.3:  # all in one message
                messages = (" ".join(messages),)
            made.append(Text(messages, text.level, text.kind, text.source))
    return made


def held_out(texts: Sequence[Text], seed: int, folds: int = 5) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The fold of each text, by its source; neighbours stay together, since a danger often stands beside its double."""
    rng = generator(seed, "folds of texts")
    blocks = sorted({text.source // NEIGHBOURS for text in texts})
    fold_of = dict(zip(blocks, rng.permutation(len(blocks)) % folds, strict=True))
    return np.array([fold_of[text.source // NEIGHBOURS] for text in texts], dtype=np.int64)
