"""What rules find in texts: personal data, which is masked, and faults for which a dialogue is dropped.

Masked are addresses, numbers and ids of people (`tables/masking.toml`), and the names by which the two present or greet
each other, wherever such a name comes again in the dialogue. A number is masked only where its form or its checksum
says what it is. What belongs to institutions and may save a life stays: crisis lines, toll-free numbers, plain domains.
Names of other people, mentioned in passing, are not found. Each rule for faults (`tables/faults.toml`) is meant to be
wrong seldom rather than to find everything: short chats, dialect, slang and people who talk about machines must pass.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from compeer.dialogue import Dialogue, Notes, Utterance
from compeer.ser.asking import regex, table
from compeer.statistics import words

_TABLE, _FAULTS = table("ser/tables/masking"), table("ser/tables/faults")
_HELP_LINES, _TOLL_FREE = frozenset(_TABLE["helps"]["lines"]), re.compile(_TABLE["helps"]["toll_free"])
_HELP_SITES = re.compile(_TABLE["helps"]["sites"], re.IGNORECASE)
EARLY = 8  # utterances; people say "I'm Rob" when they begin. Later on it is more likely "I'm Catholic"


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _is_phone(text: str) -> bool:
    number = _digits(text)
    if not 7 <= len(number) <= 15 or len(set(number)) < 3:
        return False
    return number not in _HELP_LINES and not _TOLL_FREE.fullmatch(number)


def _is_card(text: str) -> bool:
    number = [int(digit) for digit in _digits(text)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in number[-2::-2]]
    return len(set(number)) > 1 and (sum(number[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    plain = re.sub(r"\s", "", text).upper()
    return 15 <= len(plain) <= 34 and int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


def _is_chinese_id(text: str) -> bool:
    """Whether the last character is the checksum of the first 17 (GB 11643)."""
    total = sum(int(digit) * (2 ** (17 - index) % 11) for index, digit in enumerate(text[:17]))
    return "10X98765432"[total % 11] == text[17].upper()


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_link(text: str) -> bool:
    return not _HELP_SITES.search(text)


Rule = tuple[str, re.Pattern[str], Callable[[str], bool] | None]
_FUNCTIONS = (_is_phone, _is_card, _is_iban, _is_chinese_id, _is_ip, _is_link)
_CHECKS: dict[str, Callable[[str], bool]] = {check.__name__.removeprefix("_is_"): check for check in _FUNCTIONS}


def _compiled(pattern: str | Sequence[str]) -> re.Pattern[str]:
    return re.compile(regex(pattern, _TABLE["fragments"]))


def _rules(name: str) -> list[Rule]:
    return [(rule["kind"], _compiled(rule["pattern"]), _CHECKS.get(rule.get("check", ""))) for rule in _TABLE[name]]


_SIGN_RULES, _NUMBER_RULES = _rules("signs"), _rules("numbers")
_SIGN = re.compile(r"@|://|www\.|\.\w+/|qq|微信|wechat|weixin|vx|v信", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_NAMES = _TABLE["names"]
_PRESENTED, _PRESENTED_EARLY = [_compiled(pattern) for pattern in _NAMES["anywhere"]], _compiled(_NAMES["early"])
_ASKED, _ANSWERED = re.compile(regex(_NAMES["asked"]), re.IGNORECASE), _compiled(_NAMES["answered"])
_NO_NAMES, _NAMES_AND_WORDS = frozenset(_NAMES["no_names"].split()), frozenset(_NAMES["names_and_words"].split())


def names_in(utterances: Sequence[Utterance]) -> list[str]:
    """The names by which the two present, answer or greet each other, longest first."""
    found: set[str] = set()
    for index, utterance in enumerate(utterances):
        before = utterances[index - 1] if index else None
        text = utterance.text.strip()
        matches = [match for pattern in _PRESENTED for match in pattern.finditer(text)]
        asked = before is not None and before.speaker != utterance.speaker and _ASKED.search(before.text)
        if index < EARLY or asked:
            matches += _PRESENTED_EARLY.finditer(text)
        if asked and (answer := _ANSWERED.match(text)):
            matches.append(answer)
        for match in matches:
            if match["name"].lower() not in _NO_NAMES:
                found.update(name for name in match.groupdict().values() if name)
    return sorted(found, key=lambda name: (-len(name), name))


def _name_pattern(name: str) -> str:
    edge_before, edge_after = ("(?<![A-Za-z])", "(?![A-Za-z])") if name.isascii() else ("", "")
    if name.lower() in _NAMES_AND_WORDS or (len(name) < 3 and name.isascii()):
        return f"{regex(_NAMES['addressed'])}{re.escape(name)}{edge_after}"
    return f"{edge_before}(?i:{re.escape(name)}){edge_after}"


def mask_text(text: str, names: Sequence[str] = ()) -> tuple[str, Counter[str]]:
    """The text with personal data masked, and how often each kind was."""
    counts: Counter[str] = Counter()
    rules = [*(_SIGN_RULES if _SIGN.search(text) else ()), *(_NUMBER_RULES if _DIGIT.search(text) else ())]
    rules += [("name", re.compile(_name_pattern(name)), None) for name in names if name.lower() in text.lower()]
    for kind, pattern, check in rules:

        def masked(match: re.Match[str], kind: str = kind, check: Callable[[str], bool] | None = check) -> str:
            kept = match.groupdict().get("keep") or ""
            if check and not check(match.group()[len(kept) :]):
                return match.group()
            counts[kind] += 1
            return f"{kept}[{kind}]"

        text = pattern.sub(masked, text)
    return text, counts


def mask_dialogue(dialogue: Dialogue) -> tuple[Dialogue, Counter[str]]:
    """The dialogue with personal data masked in all its texts, and how often each kind was."""
    names, counts = names_in(dialogue.utterances), Counter[str]()

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            value, found = mask_text(value, names)
            counts.update(found)
        elif isinstance(value, dict):
            value = {key: masked(inner) for key, inner in value.items()}
        elif isinstance(value, list):
            value = [*map(masked, value)]
        elif isinstance(value, Notes):
            value = Notes(**{part: masked(text) for part, text in value})
        return value

    utterances = tuple(
        utterance.model_copy(update={key: masked(getattr(utterance, key)) for key in ("text", "notes", "extra")})
        for utterance in dialogue.utterances
    )
    update = {"situation": masked(dialogue.situation), "extra": masked(dialogue.extra), "utterances": utterances}
    return dialogue.model_copy(update=update), counts


_MOJIBAKE = re.compile("|".join(regex(pattern, _FAULTS["fragments"]) for pattern in _FAULTS["encoding"]["patterns"]))
_LATIN_RUN = re.compile("[\xa1-\xff]{4,}")


def is_mojibake(text: str) -> bool:
    """Whether the text was decoded with the wrong encoding somewhere on its way, or lost characters."""
    if text.isascii() and text.isprintable():
        return False
    return bool(_MOJIBAKE.search(text)) or any(_is_gbk(run) for run in _LATIN_RUN.findall(text))


def _is_gbk(run: str) -> bool:
    """Whether Latin letters in a row are Chinese in GBK; four different ones in a row are no European word."""
    try:
        found = run.encode("latin-1").decode("gbk")
    except UnicodeDecodeError:
        return False
    return len(set(run)) > 3 and all("\u4e00" <= character <= "\u9fff" for character in found)


_BEFORE = r"(?:^|[.!?。！？…~\n])\s*"
_LABELLED = {one: re.compile(f"{_BEFORE}(?:{labels}) ?[:：]") for one, labels in _FAULTS["labels"].items()}


def speaks_for_both(utterance: Utterance) -> bool:
    """Whether a message goes on with the other's words, under the other's label: a transcript that was cut badly."""
    other = "supporter" if utterance.speaker == "seeker" else "seeker"
    return bool(_LABELLED[other].search(utterance.text))


_MACHINE = [re.compile(regex(p, _FAULTS["fragments"]), re.IGNORECASE) for p in _FAULTS["machine"].values()]


def is_machine_phrase(text: str) -> bool:
    """Whether the writer says of itself what only a language model says. A person may well speak *about* one."""
    return any(pattern.search(text.replace("’", "'")) for pattern in _MACHINE)


_SCRIPTS = {languages: re.compile(f"[{letters}]") for languages, letters in _FAULTS["scripts"].items()}
_IN_SCRIPT = {language: script for languages, script in _SCRIPTS.items() for language in languages.split()}
_ENGLISH_WORDS = frozenset(_FAULTS["english"]["words"].split())
FEWEST_WORDS, FEWEST_ENGLISH_WORDS = 12, 30  # below these nothing can be decided


def is_other_language(texts: Sequence[str], language: str) -> bool:
    """Whether the words are not of the declared language: by their script and, for English, by its commonest words."""
    found = [word for word in words("\n".join(texts).replace("’", "'")) if not word.isdigit()]
    script = _IN_SCRIPT.get(language)
    if script and len(found) >= FEWEST_WORDS and sum(bool(script.search(word)) for word in found) < len(found) / 2:
        return True
    common = sum(word in _ENGLISH_WORDS for word in found)
    return language == "en" and len(found) >= FEWEST_ENGLISH_WORDS and common < 0.15 * len(found)
