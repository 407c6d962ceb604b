"""Near-duplicates among many texts, found in time that grows with their number, keeping a few bytes a text.

A text becomes a *sketch*, a short row of bytes: two texts agree in about as many of them as they are alike. Sketches
are cut into bands; texts that share a whole band are candidates, and the whole sketch then says how alike the two are.
So nobody compares all pairs, and the texts themselves need not be kept. There are two kinds:

- `WordSketch`, by n-grams: the 20 letters that follow each beginning of a word (6 characters of Chinese), whatever
  stands between them, so that other punctuation or tokens change little. MinHash, one byte a hash, estimates the share
  of these that two texts have in common (Jaccard).
- `MeaningSketch`, by embedding: one bit for the side of each of many random planes on which the vector lies. The share
  of bits that differ gives the angle, and so the cosine.

The estimates are good to about 0.04 at the bounds that the stages set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from compeer.statistics import words

Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]
Keys = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]
Figures = npt.NDArray[np.float64]
Read = Callable[[int, int], Bytes]
"""Gives the sketches of the texts from one number up to another."""

LETTERS, CHARACTERS = 20, 6
_POWERS = np.cumprod(np.full(LETTERS, 0x100000001B3, dtype=np.uint64))
_BANDS_AT_ONCE, _ROWS_AT_ONCE, _PAIRS_AT_ONCE = 16, 8192, 65536
_NEIGHBOURS = 16
"""A text is compared with this many that follow it among those with its key; where more share one, other bands help."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)


def text_hash(text: str) -> int:
    """Eight bytes that stand for a text's words, whatever its case, spacing and punctuation; never 0."""
    return int.from_bytes(hashlib.blake2b(" ".join(words(text)).encode(), digest_size=8).digest()) or 1


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
    """Hashes of the letters that follow each beginning of a word, in their order."""
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
        drawn = np.random.default_rng(0).integers(0, 2**32, (self.width, 1), dtype=np.uint32)
        return drawn | np.uint32(1)

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

    def alike(self, one: Bytes, other: Bytes) -> Figures:
        """How alike the texts of each pair of rows are, as estimated from their sketches."""
        agreeing: Figures = np.mean(one == other, axis=1)
        by_chance = 1 / 256
        return (agreeing - by_chance) / (1 - by_chance)


@dataclass(frozen=True)
class MeaningSketch:
    """Sides of random planes, 18 a band: at cosine 0.9 80 bands miss 6 pairs in 1,000, at 0.85 one in ten."""

    bands: int
    bound: float
    bits = 18

    @property
    def width(self) -> int:
        """Bytes of a sketch."""
        return self.bands * self.bits // 8

    def of(self, vectors: npt.NDArray[np.float32]) -> Bytes:
        """The vectors' sketches, a row each; zeros for a vector of zeros."""
        planes = np.random.default_rng(0).standard_normal((vectors.shape[1], self.width * 8), dtype=np.float32)
        found = np.packbits(vectors @ planes > 0, axis=1)
        found[~vectors.any(axis=1)] = 0
        return found

    def keys(self, rows: Bytes, first: int, last: int) -> Keys:
        """The keys of the bands from `first` up to `last`, a row a text."""
        bits = np.unpackbits(rows, axis=1).reshape(len(rows), self.bands, self.bits)[:, first:last]
        powers = np.uint32(1) << np.arange(self.bits, dtype=np.uint32)
        found: Keys = (bits * powers).sum(axis=2, dtype=np.uint32)
        return found

    def alike(self, one: Bytes, other: Bytes) -> Figures:
        """How alike the texts of each pair of rows are, as estimated from their sketches."""
        differing: Figures = _ONES[one ^ other].sum(axis=1) / (self.width * 8)
        return np.cos(np.pi * differing)


Sketch = WordSketch | MeaningSketch


class Groups:
    """Which things belong together: each starts alone, and `join` brings two groups together."""

    def __init__(self, count: int) -> None:
        self._parent = np.arange(count, dtype=np.int64)

    def join(self, one: Indices, other: Indices) -> int:
        """Joins each pair; returns how many brought two groups together that were apart."""
        joined = 0
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            if a != b:
                self._parent[max(a, b)] = min(a, b)
                joined += 1
        return joined

    def join_equal(self, hashes: Hashes) -> int:
        """Joins things whose hashes are the same, except 0, which stands for none."""
        order = np.argsort(hashes, kind="stable")
        ranked = hashes[order]
        same = np.flatnonzero((ranked[1:] == ranked[:-1]) & (ranked[1:] != 0))
        return self.join(order[same], order[same + 1])

    def firsts(self) -> Indices:
        """For each thing the first one of its group."""
        while not np.array_equal(nearer := self._parent[self._parent], self._parent):
            self._parent = nearer
        return self._parent.copy()

    def _root(self, index: int) -> int:
        while (parent := int(self._parent[index])) != index:
            self._parent[index] = self._parent[parent]
            index = parent
        return index


def join_alike(groups: Groups, sketch: Sketch, read: Read, count: int) -> int:
    """Joins the texts that are alike; returns how many pairs brought two groups together."""
    joined = 0
    for first in range(0, sketch.bands, _BANDS_AT_ONCE):
        last = min(first + _BANDS_AT_ONCE, sketch.bands)
        for one, other in _candidates(sketch, read, count, first, last):
            belonging = groups.firsts()
            apart = belonging[one] != belonging[other]
            one, other = one[apart], other[apart]
            alike = _alike(sketch, read, count, one, other) >= sketch.bound
            joined += groups.join(one[alike], other[alike])
    return joined


def _candidates(sketch: Sketch, read: Read, count: int, first: int, last: int) -> Iterator[tuple[Indices, Indices]]:
    """Pairs of texts that share the key of one of these bands, those of the bands together and each once."""
    keys = np.zeros((last - first, count), dtype=np.uint32)
    there = np.zeros(count, dtype=bool)
    for start in range(0, count, _ROWS_AT_ONCE):
        rows = read(start, min(start + _ROWS_AT_ONCE, count))
        keys[:, start : start + len(rows)] = sketch.keys(rows, first, last).T
        there[start : start + len(rows)] = rows.any(axis=1)
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


def _alike(sketch: Sketch, read: Read, count: int, one: Indices, other: Indices) -> Figures:
    wanted = np.unique(np.concatenate([one, other]))
    rows = np.zeros((len(wanted), sketch.width), dtype=np.uint8)
    for start in range(0, count, _ROWS_AT_ONCE):
        low, high = np.searchsorted(wanted, [start, start + _ROWS_AT_ONCE])
        if low < high:
            rows[low:high] = read(start, min(start + _ROWS_AT_ONCE, count))[wanted[low:high] - start]
    found = np.zeros(len(one))
    for start in range(0, len(one), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        left, right = np.searchsorted(wanted, one[part]), np.searchsorted(wanted, other[part])
        found[part] = sketch.alike(rows[left], rows[right])
    return found
