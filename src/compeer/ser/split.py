"""Which dialogues train the judge, which train the supporter, and which only measure: no dialogue serves two.

Dialogues that tell the same story stay together, else a test would ask what training has answered: those of the same
situation, and those whose texts, or whose openings (the seeker's first message of at least 12 words), have half of
their word sequences in common. Groups are put into an order by the seed and fill one split after the other up to its
share.

A text becomes a *sketch*, a short row of bytes: two texts agree in about as many of them as they are alike. Texts that
share a whole band of it are candidates, and the whole sketch then says how alike the two are, to about 0.04; so the
time grows with the number of texts. Unrelated dialogues of ESConv have at most 0.05 of their word sequences in common,
re-tokenised copies at least 0.93. Sketches stand in files beside the splits, so that a stopped run goes on.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from compeer.corpora import read_corpus
from compeer.corpora.items import id_hash
from compeer.dialogue import Dialogue, Utterance
from compeer.errors import InputError
from compeer.io import Frozen, read_numbered
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.ser.asking import run_stage
from compeer.ser.record import SPLITS, Split
from compeer.statistics import Indices, Numbers, generator, words

Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]
Keys = npt.NDArray[np.uint32]
ReadRows = Callable[[slice | Indices], Bytes]  # gives the sketches of some texts, a row a text

LETTERS, CHARACTERS = 20, 6
OPENING_WORDS = 12
_POWERS = np.cumprod(np.full(LETTERS, 0x100000001B3, dtype=np.uint64))
_BANDS_AT_ONCE, _ROWS_AT_ONCE, _PAIRS_AT_ONCE = 16, 8192, 65536
_NEIGHBOURS = 16
"""A text is compared with this many that follow it among those with its key; where more share one, other bands help."""
_DIALOGUES_A_UNIT, _LINES_A_UNIT, _HEAD = 200, 5_000, 16


def words_hash(text: str) -> int:
    """Eight bytes that stand for a text's words, whatever its case, spacing and punctuation; never 0."""
    return id_hash(" ".join(words(text))) or 1


def mixed(hashes: Hashes) -> Hashes:
    """The hashes scattered over all 64 bits (the end of SplitMix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


@cache
def _kinds() -> Bytes:
    """For each code point of the basic plane: 0 for what stands between words, 1 for letters and digits, 2 for Han."""
    kinds = np.fromiter((chr(code).isalnum() for code in range(2**16)), dtype=np.uint8)
    for first, last in ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)):
        kinds[first : last + 1] *= 2
    return kinds


def shingles(text: str) -> Keys:
    """Hashes of the 20 letters (of Chinese 6) from each beginning of a word, whatever stands between the letters."""
    text = text.lower().replace("'", "").replace("’", "")
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = _kinds()[np.where(codes < 2**16, codes, 0)]
    begins = kinds > 0
    begins[1:] &= (kinds[1:] == 2) | (kinds[:-1] != 1)
    starts = np.flatnonzero(begins[kinds > 0])
    count = int(np.count_nonzero(kinds))
    size = LETTERS if count > 2 * len(starts) else CHARACTERS
    letters = np.zeros(count + size, dtype=np.uint64)
    letters[:count] = codes[kinds > 0]
    hashes: Hashes = (letters[starts[:, None] + np.arange(size)] * _POWERS[:size]).sum(axis=1, dtype=np.uint64)
    return (mixed(hashes) >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True)
class WordSketch:
    """MinHash over shingles, a byte a hash, `hashes` of them a band; from `bound` on texts count as near-duplicates.

    With 48 bands of 4 hashes 1 pair in 20 is missed that has half its shingles in common, and 1 in 700 at 0.6. More
    hashes a band keep texts apart that only share stock phrases: else these would make candidates of all pairs.
    """

    bands: int
    hashes: int
    bound: float

    @property
    def width(self) -> int:
        """Bytes of a sketch."""
        return self.hashes * self.bands

    @cached_property
    def _multipliers(self) -> Keys:
        sampled = np.random.default_rng(0).integers(0, 2**32, (self.width, 1), dtype=np.uint32)
        return sampled | np.uint32(1)

    def of(self, text: str) -> Bytes:
        """The text's sketch; zeros where there is no word in it."""
        hashes = shingles(text)
        if not len(hashes):
            return np.zeros(self.width, dtype=np.uint8)
        least = np.full(self.width, 2**32 - 1, dtype=np.uint32)
        for start in range(0, len(hashes), 2048):
            least = np.minimum(least, (self._multipliers * hashes[start : start + 2048]).min(axis=1))
        found = (least >> np.uint32(8)).astype(np.uint8)
        return found if found.any() else np.ones(self.width, dtype=np.uint8)

    def keys(self, rows: Bytes, first: int, last: int) -> Keys:
        """The keys of the bands from `first` up to `last`, a row a text."""
        bytes_of_bands = rows.reshape(len(rows), self.bands, self.hashes)[:, first:last].astype(np.uint32)
        powers = np.uint32(256) ** np.arange(self.hashes, dtype=np.uint32)
        found: Keys = (bytes_of_bands * powers).sum(axis=2, dtype=np.uint32)
        return found

    def alike(self, one: Bytes, other: Bytes) -> Numbers:
        """How alike the texts of each pair of rows are, as estimated from their sketches."""
        agreeing: Numbers = np.mean(one == other, axis=1)
        chance_level = 1 / 256
        return (agreeing - chance_level) / (1 - chance_level)


TEXTS = WordSketch(bands=48, hashes=4, bound=0.5)
OPENINGS = WordSketch(bands=32, hashes=3, bound=0.5)


class Groups:
    """Which things belong together; `firsts` has for each thing the first one of its group, at the start itself."""

    def __init__(self, count: int) -> None:
        self.firsts: Indices = np.arange(count, dtype=np.int64)

    def join(self, one: Indices, other: Indices) -> int:
        """Joins each pair; returns by how many the number of groups fell."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if not len(one):
            return 0
        before, everything = len(np.unique(self.firsts)), np.arange(len(self.firsts))
        ends = np.concatenate([everything, one]), np.concatenate([self.firsts, other])
        size = len(everything), len(everything)
        count, group = connected_components(coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), size), False)
        firsts = np.full(count, len(everything))
        np.minimum.at(firsts, group, everything)
        self.firsts = firsts[group]
        return before - int(count)

    def join_equal(self, hashes: Hashes) -> int:
        """Joins things whose hashes are the same, except 0, which stands for none."""
        order = np.argsort(hashes, kind="stable")
        ranked = hashes[order]
        same = np.flatnonzero((ranked[1:] == ranked[:-1]) & (ranked[1:] != 0))
        return self.join(order[same], order[same + 1])


def join_alike(groups: Groups, sketch: WordSketch, read: ReadRows) -> int:
    """Joins the texts that are alike; returns how many pairs brought two groups together."""
    joined = 0
    for first in range(0, sketch.bands, _BANDS_AT_ONCE):
        for one, other in _candidates(sketch, read, len(groups.firsts), first):
            apart = groups.firsts[one] != groups.firsts[other]
            one, other = one[apart], other[apart]
            alike = np.zeros(len(one), dtype=bool)
            for start in range(0, len(one), _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                alike[part] = sketch.alike(read(one[part]), read(other[part])) >= sketch.bound
            joined += groups.join(one[alike], other[alike])
    return joined


def _candidates(sketch: WordSketch, read: ReadRows, count: int, first: int) -> Iterator[tuple[Indices, Indices]]:
    """Pairs of texts that share the key of one of the bands from `first` on, those of the bands together, each once."""
    last = min(first + _BANDS_AT_ONCE, sketch.bands)
    keys = np.zeros((last - first, count), dtype=np.uint32)
    there = np.zeros(count, dtype=bool)
    for start in range(0, count, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rows = read(part)
        keys[:, part], there[part] = sketch.keys(rows, first, last).T, rows.any(axis=1)
    present = np.flatnonzero(there)
    found: list[Indices] = []
    for band in keys:
        order = present[np.argsort(band[present], kind="stable")]
        ranked = band[order]
        for shift in range(1, _NEIGHBOURS + 1):
            same = np.flatnonzero(ranked[shift:] == ranked[:-shift])
            if not len(same):
                break
            found.append(order[same] * count + order[same + shift])
        if sum(map(len, found)) > _PAIRS_AT_ONCE:
            yield np.divmod(np.unique(np.concatenate(found)), count)
            found = []
    if found:
        yield np.divmod(np.unique(np.concatenate(found)), count)


def split_stage(dialogues: Path, out: Path, shares: Sequence[float], seed: int, workers: int = 1) -> dict[str, Any]:
    """Writes split and group of each dialogue, in order, by shares for judge, supporter, test; returns the manifest."""
    if len(shares) != len(SPLITS) or min(shares) < 0 or not sum(shares) > 0:
        raise InputError(f"{len(SPLITS)} shares are needed, for {', '.join(SPLITS)}, none below 0.", field="shares")
    bounds = {"texts": TEXTS.bound, "openings": OPENINGS.bound}
    stage = Stage(out, {"shares": list(shares), "seed": seed, "bounds": bounds}, {"dialogues": dialogues})
    if found := stage.finished():
        return found
    kinds = {"texts": TEXTS, "openings": OPENINGS}
    rows, ids = out.with_name(f"{out.name}.sketches"), out.with_name(f"{out.name}.ids")
    sketching = Stage(rows, bounds, {"dialogues": dialogues}, beside=[ids.name])
    units = in_blocks(read_corpus(dialogues), _DIALOGUES_A_UNIT)
    run_stage(sketching, units, partial(_sketch, ids.name), workers)
    ends = np.cumsum([_HEAD, *(sketch.width for sketch in kinds.values())]).tolist()
    count = rows.stat().st_size // (2 * ends[-1] + 1)
    digits = np.memmap(rows, np.uint8, "r", shape=(count, 2 * ends[-1] + 1)) if count else np.zeros((0, 1), np.uint8)
    with stage:
        heads = _bytes_of(digits, 0, _HEAD, slice(None)).view(">u8").astype(np.uint64)
        groups = Groups(count)
        joined = {"situation": groups.join_equal(heads[:, 1])}
        for (name, sketch), start, end in zip(kinds.items(), ends, ends[1:], strict=False):
            joined[name] = join_alike(groups, sketch, partial(_bytes_of, digits, start, end))
        splits = _fill(groups.firsts, heads[:, 0], shares, seed)
        sizes = np.bincount(groups.firsts, minlength=count)
        names = {number: name for number, name in enumerate(_ids(ids)) if sizes[number] > 1}
        lines = zip(_ids(ids), groups.firsts.tolist(), splits.tolist(), strict=True)
        work_through(stage, in_blocks(lines, _LINES_A_UNIT), partial(_lines_of, names))
        together = count - int(np.count_nonzero(sizes == 1))
        groups_of = {"groups": int(np.count_nonzero(sizes)), "largest": int(sizes.max(initial=0)), "together": together}
        stage.counts["groups"] = Counter(groups_of)
        stage.counts["joined by"] = Counter(joined)
        manifest = stage.finish()
    for path in (rows, ids, rows.with_name(f"{rows.name}.manifest.json")):
        path.unlink(missing_ok=True)
    return manifest


def _ids(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


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


def _sketch(ids: str, block: list[Dialogue]) -> Done:
    """Hashes of ids and situations (0: none) and sketches, as hexadecimal digits, a line of one length a dialogue."""
    columns = (
        [f"{id_hash(one.id):016x}{words_hash(one.situation) if one.situation else 0:016x}" for one in block],
        [TEXTS.of("\n".join(u.text for u in one.utterances)).tobytes().hex() for one in block],
        [OPENINGS.of(first_message(one.utterances)).tobytes().hex() for one in block],
    )
    lines = ["".join(cells) for cells in zip(*columns, strict=True)]
    return Done(lines, beside={ids: [json.dumps(dialogue.id) for dialogue in block]})


def _bytes_of(digits: Bytes, start: int, end: int, rows: slice | Indices) -> Bytes:
    """The bytes from `start` to `end` of some rows of hexadecimal digits."""
    own = digits[rows, 2 * start : 2 * end]
    return np.frombuffer(bytes.fromhex(own.tobytes().decode("ascii")), dtype=np.uint8).reshape(len(own), end - start)


def first_message(utterances: Iterable[Utterance]) -> str:
    """The seeker's first message that says more than a greeting, or nothing; utterances in a row are one message."""
    for speaker, block in groupby(utterances, key=lambda utterance: utterance.speaker):
        text = "\n".join(utterance.text for utterance in block)
        if speaker == "seeker" and len(words(text)) >= OPENING_WORDS:
            return text
    return ""


class SplitLine(Frozen):
    """A line of a file of splits; dialogues of one group were kept together."""

    dialogue: str = Field(min_length=1)
    split: Split
    group: str | None = None


def iter_splits(path: Path) -> Iterator[SplitLine]:
    """The lines of a file of splits, one at a time; an error names the file, line and field."""
    known: set[int] = set()
    for number, line in read_numbered(path, SplitLine, "file of splits", "Make it with: compeer ser split"):
        if (mark := id_hash(line.dialogue)) in known:
            raise InputError("this dialogue has a line already.", file=path, line=number, field="dialogue")
        known.add(mark)
        yield line


def read_splits(path: Path) -> dict[str, Split]:
    """The split of each dialogue of a file, by its id."""
    return {line.dialogue: line.split for line in iter_splits(path)}
