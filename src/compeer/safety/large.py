"""The large reader: an adapter to the 1.5B base that reads a whole conversation, run by the CPU engine.

It answers with a level, and where there is danger with its kind ("crisis: suicide"). Nothing is generated: the
probabilities of the words that it may answer with are read off where the answer begins. The conversation stands right
behind the instruction, so that of a conversation that goes on only the new messages are computed. It is there if the
base was fetched (`compeer models get qwen-1.5b`) and the adapter lies in `weights/guard-1.5b`. Where it is not sure, a
second adapter (`second/` in its folder), trained otherwise, is asked too, and the mean of both counts. A few words must
be plainer than a long message to count. They also read what the supporter is about to say, and name its fault.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from compeer.errors import InputError
from compeer.io import file_hash, loaded_once
from compeer.models.catalogue import BASES
from compeer.safety.reader import SUPPORTER, Guess, Window
from compeer.safety.risk import CATEGORIES, KINDS, LEVELS, Category, Finding
from compeer.safety.text import length

NAME, BASE, SECOND = "guard-1.5b", "qwen-1.5b", "second"
MOST_LETTERS = 6_000  # of a longer conversation the end is read; a Chinese character counts as three letters
MOST_BEFORE = 600  # characters of the seeker's message that are read beside a reply
FINE = "fine"  # the answer for a reply without a fault
SHORT = 130  # letters below which a conversation counts from the threshold `short` on
LEAST = 0.5  # a guess that finds less danger raises no level
UNSURE = 0.02, 0.98  # between these probabilities that nothing is wrong the second adapter is asked too
READ = "large reader"  # stands for a rule's name where it found something
SURE, VERY_SURE = 0.5, 0.98  # the probability of no fault from which on a rule's finding is taken back, and that for:
FIRM_FAULTS: tuple[Category, ...] = ("harmful method", "encouragement of harm")  # what does most harm


def prompt(messages: Sequence[str]) -> list[dict[str, str]]:
    """The chat that asks for the level of a conversation; training and use share it."""
    kept: list[str] = []
    letters = 0
    for message in reversed(messages):
        text = message.removeprefix(SUPPORTER)
        line = f"{'Seeker' if text == message else 'Supporter'}: {' '.join(text.split())}"
        letters += length(line)
        if kept and letters > MOST_LETTERS:
            break
        kept.append(line[-MOST_LETTERS:])
    return _chat("reader", "\n".join(reversed(kept)))


def reply_prompt(seeker: Sequence[str], reply: str) -> list[dict[str, str]]:
    """The chat that asks whether a reply may be shown: the seeker's last message, and the reply as far as it is."""
    last = " ".join(seeker[-1].split())[-MOST_BEFORE:] if seeker else ""
    return _chat("reply", f"Seeker: {last}\nProgram: {' '.join(reply.split())}")


def _chat(instruction: str, asked: str) -> list[dict[str, str]]:
    system = files("compeer.safety").joinpath("prompts", f"{instruction}.txt").read_text("utf-8").strip()
    return [{"role": "system", "content": system}, {"role": "user", "content": asked}]


class LargeReader:
    """Reads with the adapter in a folder; its card may say from where on danger, crisis and faults of replies count."""

    whole = True

    def __init__(self, folder: Path) -> None:
        from compeer.engine.cpu_table import CpuEngine
        from compeer.engine.network import first_tokens, load_tokenizer, token_ids
        from compeer.engine.rows import common
        from compeer.models.resolve import prepare

        card = _card(folder)
        prepared = [prepare(own) for own in (folder, folder / SECOND) if own == folder or own.is_dir()]
        if not all(prepared):
            raise InputError("the CPU engine cannot run this reader.", file=folder)
        self._tokenizer: Any = load_tokenizer(prepared[0].tokenizer)  # type: ignore[union-attr]
        self._engine, *self._second = [CpuEngine(own, self._tokenizer.eos_token_id) for own in prepared if own]
        self._thresholds = {"danger": 0.5, "crisis": 0.5, **card.get("thresholds", {})}
        self._ids = partial(token_ids, self._tokenizer)
        self._levels = first_tokens(self._tokenizer, LEVELS, folder)
        self._kinds = first_tokens(self._tokenizer, [f" {kind}" for kind in KINDS], folder)
        self.checks_replies = "reply_thresholds" in card  # else it was not trained to
        self._fault_thresholds: dict[Category, float] = card.get("reply_thresholds", {})
        self._faults = first_tokens(self._tokenizer, (FINE, *CATEGORIES), folder) if self.checks_replies else []
        for asked in (prompt, lambda words: reply_prompt(words, words[0])) if self.checks_replies else (prompt,):
            one, other = (self._prompt_ids(asked([words])) for words in ("A", "It"))
            for engine in (self._engine, *self._second):
                engine.keep(one[: common(one, other)])

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        return [self._read(messages) for messages in windows]

    def fault(self, reply: str, seeker: Sequence[str], by_rule: Finding | None = None) -> Finding | None:
        """The likeliest fault of a reply, if likely enough; else what is left of a rule's finding."""
        found = self._asked(self._prompt_ids(reply_prompt(seeker, reply)), self._faults)
        return as_finding(found, self._fault_thresholds) or kept_finding(by_rule, found[0])

    def close(self) -> None:
        for engine in (self._engine, *self._second):
            engine.close()

    def _read(self, messages: Window) -> Guess:
        ids = self._prompt_ids(prompt(messages))
        levels = self._asked(ids, self._levels)
        guess = as_guess(levels, (), self._thresholds, messages)
        if guess.danger < LEAST:  # what kind it is does not matter: it is no danger by any count
            return guess
        ids += self._ids("crisis:" if levels[2] > levels[1] else "concern:")
        return as_guess(levels, self._engine.probabilities(ids, self._kinds), self._thresholds, messages)

    def _asked(self, ids: list[int], answers: list[int]) -> Sequence[float]:
        """The probabilities of the answers, of which the first is that nothing is wrong."""
        found = self._engine.probabilities(ids, answers)
        unsure = self._second and is_unsure(found[0])
        return mean(found, self._second[0].probabilities(ids, answers)) if unsure else found

    def _prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return self._ids(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def is_unsure(harmless: float) -> bool:
    """Whether a second adapter is to be asked, by the first one's probability that nothing is wrong."""
    return UNSURE[0] < harmless < UNSURE[1]


def mean(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [(one + other) / 2 for one, other in zip(first, second, strict=True)]


def as_guess(levels: Sequence[float], kinds: Sequence[float], limits: Mapping[str, float], messages: Window) -> Guess:
    """The probabilities of none, concern, crisis, of each kind if asked, as a guess; it counts from one half on."""
    kind = max(zip(kinds, KINDS, strict=True))[1] if kinds else KINDS[0]
    counts = {"short": limits["danger"], **limits}["short" if sum(map(length, messages)) < SHORT else "danger"]
    return Guess(kind, _scaled(levels[1] + levels[2], counts), _scaled(levels[2], limits["crisis"]))


def as_finding(probabilities: Sequence[float], thresholds: Mapping[Category, float]) -> Finding | None:
    """The likeliest of the faults that reach their thresholds, by the probabilities of no fault and of each."""
    found = [one for one in zip(probabilities[1:], CATEGORIES, strict=True) if one[0] >= thresholds.get(one[1], 2.0)]
    return Finding(READ, max(found)[1]) if found else None


def kept_finding(by_rule: Finding | None, fine: float) -> Finding | None:
    """What a rule found, unless the reader is sure that nothing is wrong and may take it back."""
    sure = VERY_SURE if by_rule and by_rule.category in FIRM_FAULTS else SURE
    return by_rule if fine < sure else None


def _scaled(probability: float, threshold: float) -> float:
    """The probability on a scale on which one half is where it counts: its odds over those of the threshold."""
    reached, bound = (min(max(value, 1e-6), 1 - 1e-6) for value in (probability, threshold))
    return reached * (1 - bound) / (reached * (1 - bound) + bound * (1 - reached))


def _card(folder: Path) -> dict[str, Any]:
    """The card of the adapters in a folder; an error if one is not the one that was meant."""
    path = folder / "compeer.json"
    card: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    adapter = folder / "adapter_model.safetensors"
    if "sha256" in card and file_hash(adapter) != card["sha256"]:
        raise InputError("this is not the adapter we know: its hash differs.", file=adapter)
    if (folder / SECOND).is_dir():
        _card(folder / SECOND)
    return card


@loaded_once
def large_reader() -> LargeReader | None:
    """The packaged large reader, loaded once; None where it or its base is missing, or for `COMPEER_GUARD=small`."""
    folder = packaged_folder()
    wanted = os.environ.get("COMPEER_GUARD") != "small"
    return LargeReader(folder) if wanted and folder.is_dir() and BASES[BASE].path.is_file() else None


def packaged_folder() -> Path:
    return Path(str(files("compeer").joinpath("weights", NAME)))
