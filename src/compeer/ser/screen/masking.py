"""Personal data in dialogues, found by pattern and masked: `[email]`, `[phone]`, `[name]` stand where it stood.

Masked are e-mail and street addresses, phone numbers, links, IP addresses, card and account numbers, identity numbers,
handles, QQ and WeChat ids, and the names by which the two present or greet each other, wherever such a name comes
again in the dialogue. A number is masked only where its form or its checksum says what it is: years, ages, money,
scores and dates stay. So do what belongs to institutions and may save a life: emergency and crisis lines, toll-free
numbers, and plain domains (`example.org`). Names of other people, told in passing, are not found.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from compeer.dialogue import Dialogue, Notes, Utterance

MASKED = ("email", "phone", "url", "ip", "card", "iban", "id", "handle", "address", "account", "name")
"""The kinds of masks."""

HELP_LINES = frozenset({"01082951332", "02164383562", "85223892222", "23892222"})
"""Digits of crisis lines that look like anybody's number; short ones (988, 116 123, 12320) never do."""
_TOLL_FREE = re.compile(r"1?8(?:00|88|77|66|55|44|33)\d{7}|(?:0|44)80[08]\d{4,7}|(?:61)?1?800\d{6}|(?:86)?[48]00\d{7}")
HELP_SITES = (
    "988lifeline.org",
    "suicidepreventionlifeline.org",
    "samaritans.org",
    "crisistextline.org",
    "befrienders.org",
)

# --- numbers and addresses --------------------------------------------------------------------------------------------

_BEFORE = r"(?<![A-Za-z0-9_$€£¥￥#])(?<!\d[-.,/:])(?<![$€£¥￥] )"
_AFTER = r"(?![A-Za-z0-9_%％])(?![-.,/:]\d)(?! ?(?:元|块|万|亿|人|次|dollars|euros|pounds|people|points|steps|%))"
_CALL = (
    r"(?:(?:call|text|phone|dial|ring|reach|whatsapp)(?: me| us)?(?: at| on|:)?|(?:phone|cell|mobile|my|contact) number"
    r"(?: is|'s|:)?|\btel[.:]?|(?:电话|手机)(?:号码?)?(?:是|为|[:：])?)[ ]{0,2}"
)


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _is_phone(text: str) -> bool:
    number = _digits(text)
    if not 7 <= len(number) <= 15 or len(set(number)) < 3:
        return False
    return number not in HELP_LINES and not _TOLL_FREE.fullmatch(number)


def _is_called(text: str) -> bool:
    """Whether a number after "call me at" is one: not a span of years."""
    return _is_phone(text) and not re.fullmatch(r"(?:19|20)\d\d[ -](?:19|20)\d\d", text)


def _is_card(text: str) -> bool:
    number = [int(digit) for digit in _digits(text)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in number[-2::-2]]
    return len(set(number)) > 1 and (sum(number[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    plain = re.sub(r"\s", "", text).upper()
    return 15 <= len(plain) <= 34 and int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


def _is_chinese_id(text: str) -> bool:
    """Whether the last character is the checksum of the first 17 (GB 11643)."""
    total = sum(int(digit) * (2 ** (17 - place) % 11) for place, digit in enumerate(text[:17]))
    return "10X98765432"[total % 11] == text[17].upper()


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_link(text: str) -> bool:
    return not any(site in text.lower() for site in HELP_SITES)


_LINK = (
    r"(?:[^\s<>\"'\u3000-\u9fff\uff00-\uffef)]*[^\s<>\"'\u3000-\u9fff\uff00-\uffef).,;:!?])?"  # not the stop after it
)
_ROAD = (
    "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Place|Terrace|Crescent|Square|Highway|Hwy"
)
_SIGNS: tuple[tuple[str, str, Callable[[str], bool] | None], ...] = (
    ("url", rf"(?i:\b(?:https?://|www\.)[a-z0-9]{_LINK})", _is_link),
    ("email", r"[A-Za-z0-9][\w.+-]*@[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}", None),
    (
        "url",
        rf"(?i:(?<![\w@])[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*\.(?:com|org|net|gov|me|io|co|cn|uk)/[\w@]{_LINK})",
        _is_link,
    ),
    ("handle", r"(?<![A-Za-z0-9_.@])@(?!home\b|work\b|school\b|all\b)[A-Za-z_][A-Za-z0-9_.]{2,29}", None),
    (
        "account",
        r"(?P<keep>(?i:(?<![a-z])qq(?:号码?|群| number| id)?(?: is |是|为|[:： ]){0,2}))[1-9]\d{4,10}(?!\d)",
        None,
    ),
    (
        "account",
        r"(?P<keep>(?i:(?:微信|(?<![a-z])(?:wechat|weixin|vx|v信))(?:号|账号| ?id)?(?: is |是|为|[:： ]){0,2}))"
        r"(?=[A-Za-z0-9_-]*[0-9_])[A-Za-z][A-Za-z0-9_-]{5,19}",
        None,
    ),
)
_NUMBERS: tuple[tuple[str, str, Callable[[str], bool] | None], ...] = (
    ("iban", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", _is_iban),
    ("id", r"(?<![A-Za-z0-9])[1-9]\d{5}(?:19|20)\d{9}[\dXx](?![A-Za-z0-9])", _is_chinese_id),
    ("card", _BEFORE + r"[2-6]\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}" + _AFTER, _is_card),
    ("card", _BEFORE + r"3[47]\d{2}[ -]?\d{6}[ -]?\d{5}" + _AFTER, _is_card),
    ("id", _BEFORE + r"(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}" + _AFTER, None),
    ("id", r"(?P<keep>(?i:\b(?:ssn|social security(?: number)?)(?: is|:)? ))\d{3}[ -]?\d{2}[ -]?\d{4}(?!\d)", None),
    ("phone", r"(?<![\w+])\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,5}" + _AFTER, _is_phone),
    ("phone", _BEFORE + r"(?:1[ .-]?)?(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-]?)[2-9]\d\d[ .-]?\d{4}" + _AFTER, _is_phone),
    ("phone", _BEFORE + r"(?:86[ -]?)?1[3-9]\d[ -]?\d{4}[ -]?\d{4}" + _AFTER, _is_phone),
    ("phone", _BEFORE + r"0\d{1,4}[ -]?\d{3,4}[ -]?\d{3,4}" + _AFTER, _is_phone),
    ("phone", _BEFORE + r"0\d(?:[ .-]\d\d){4}" + _AFTER, _is_phone),
    ("phone", rf"(?P<keep>(?i:{_CALL}))\d{{3,5}}(?:[ -]?\d{{3,5}}){{1,3}}(?!\d)", _is_called),
    ("ip", r"(?<![\w.:])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)", _is_ip),
    ("ip", r"(?<![\w.:])(?=[0-9A-Fa-f:]*\d)(?:[0-9A-Fa-f]{0,4}:){4,7}[0-9A-Fa-f]{1,4}(?![\w:])", _is_ip),
    (
        "address",
        r"(?<![\w$€£])\d{1,5}[A-Za-z]? (?:[NSEW]{1,2}\.? |(?:North|South|East|West) )?(?:[A-Z][a-z]+ ){1,3}"
        rf"(?:{_ROAD})\b\.?(?:,? (?:Apt|Apartment|Unit|Suite|Flat|#)\.? ?\w+)?"
        r"(?:,? (?:[A-Z][a-z]+ ){0,2}[A-Z][a-z]+,? [A-Z]{2},? \d{5}(?:-\d{4})?)?",
        None,
    ),
    ("address", r"\b[A-Z][a-z]+, [A-Z]{2},? \d{5}(?:-\d{4})?\b", None),
    (
        "address",
        r"(?:(?![在住到去是于我他她你家的])[\u4e00-\u9fff]){1,8}(?:路|街|大道|巷|弄)\d{1,5}(?:号|弄)"
        r"(?:[\d\u4e00-\u9fff-]{0,6}?\d+(?:号楼|栋|幢|楼|单元|室|号)){0,4}",
        None,
    ),
)


# --- names ------------------------------------------------------------------------------------------------------------

OPENING = 8
"""Utterances; people say "I'm Rob" when they begin. Later on it is more likely "I'm Catholic"."""

_NOT_NAMES = """
a african all also always am american an and anonymous are asian at atheist australian back being bisexual black bob's
british but by bye called can canadian catholic chinese christian christmas covid crazy dad dear do doctor doing dutch
english european everybody everyone female for french friend from gay gday german getting glad god going good gosh
great guys happy have hello help her here hey hi hindu his hispanic how i im in indian irish is it italian its
japanese jesus jewish just keen korean later latina latino lesbian lord ma'am madam male man mate maybe me merry
mexican miss mom mormon mum muslim my never nigerian no not nothing now of off ok okay on one pal please polish
portuguese private really right russian scottish secret she single sir so sorry spanish still sure swedish thank
thanks that the there they this to today tomorrow tonight trans trying turkish unimportant vegan very was we welcome
well what whats when white why will with yes you your
"""
NO_NAMES = frozenset(_NOT_NAMES.split())
"""Words that follow "my name is", "I'm" or "hi" and are no names."""

_WORDS_AND_NAMES = """
angel april art august autumn bill bliss brook buck candy carol chance chase chip chuck clay cliff crystal daisy dale
dawn dean destiny dick don drew earl eve faith forest frank gale gene ginger glen grace grant guy harmony hazel
heather heaven holly hope hunter iris ivy jack jay jean jewel joy june kit lane lily love luke mark mat max may melody
mercy mike miles nick olive pat patience pearl penny peter pierce poppy precious queen ray reed rich river rob rock
rose ruby rusty sandy serenity skip sky star stone sue summer sunny terry trinity tuesday victor viola violet wade
ward will willow winter wren
"""
NAMES_AND_WORDS = frozenset(_WORDS_AND_NAMES.split())
"""Masked only where somebody is addressed or presented: elsewhere they may be the word."""

_NAME = r"[A-Z][a-z]+(?:-[A-Z][a-z]+)?|[A-Z]{2,3}"
_FULL = rf"(?P<name>{_NAME})(?: (?P<more>[A-Z][a-z]+))?(?![\w'’])"
_SURNAME = (
    "[王李张刘陈杨黄赵吴周徐孙马朱胡郭何林罗高郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘蒋蔡余杜叶程苏魏吕丁任沈姚"
    "卢姜崔钟谭陆汪范金石廖贾夏韦傅方邹熊孟秦邱侯江尹薛闫段雷龙陶贺顾毛郝龚邵万钱严武戴莫孔向汤"
    "]"
)
_END = r"(?=[\s，。！？、；,.!?;~～]|$)"
_ANYWHERE = (
    r"\b(?i:my name(?: is|[’']?s)) (?P<name>[A-Za-z][A-Za-z’'-]*[A-Za-z])(?: (?P<more>[A-Z][a-z]+))?",
    rf"\b(?i:(?:i am|i[’']?m) called) {_FULL}",
    rf"(?:\b(?i:(?:you can|just|please|people) call me)|^[Cc]all me) {_FULL}",
    rf"^(?i:hi|hello|hey|thanks|thank you|goodbye|bye)(?: there)?,? (?P<name>{_NAME})(?=[.,!]|$)",
    rf"^(?i:hi|hello|hey)\b[^.!?]{{0,20}}(?i:this is) {_FULL}(?=[.,!]|$)",
    rf"(?<![找对跟向让帮给是])(?:我叫|我的名字(?:叫|是)|我名叫|本人叫)(?P<name>{_SURNAME}[\u4e00-\u9fff]{{1,2}}|[小阿][\u4e00-\u9fff]){_END}",
    rf"(?:我叫|我的名字(?:叫|是)) ?(?P<name>[A-Z][A-Za-z]{{1,15}}){_END}",
    rf"(?:叫我|我是|喊我)(?P<name>[小老阿]{_SURNAME})(?=吧|就|[\s，。！,.!]|$)",
)
_AT_THE_OPENING = rf"\b(?i:i am|i[’']?m) {_FULL}(?=[.,!]|$| (?:and you|by the way|how are|your|from|here)\b)"
_ASKED = re.compile(r"\byour (?:good |sweet |first )?name(?: please| sir| ma'am)?\W*$", re.IGNORECASE)
_ANSWERED = re.compile(r"(?:(?i:it[’']?s|i[’']?m|i am) )?(?P<name>[A-Za-z]{2,})(?:[.!]?$|,)")
_ADDRESSED = (
    r"(?P<keep>(?i:\b(?:hi|hello|hey|thanks|thank you|bye|goodbye|dear|i am|i[’']?m|name is|name[’']?s|call me|called|"
    r"this is|meet you|meet)(?: there)?,? ))"
)


def names_in(utterances: Sequence[Utterance]) -> list[str]:
    """The names by which the two present, answer or greet each other, longest first."""
    found: set[str] = set()
    before: Utterance | None = None
    for index, utterance in enumerate(utterances):
        text = utterance.text.strip()
        matches = [match for pattern in _PRESENTED for match in pattern.finditer(text)]
        asked = before is not None and before.speaker != utterance.speaker and _ASKED.search(before.text)
        if index < OPENING or asked:
            matches += _PRESENTED_EARLY.finditer(text)
        if asked and (answer := _ANSWERED.match(text)):
            matches.append(answer)
        for match in matches:
            if match["name"].lower() not in NO_NAMES:
                found.update(name for name in match.groupdict().values() if name)
        before = utterance
    return sorted(found, key=lambda name: (-len(name), name))


def _name_pattern(name: str) -> str:
    edge_before, edge_after = ("", "") if not name.isascii() else ("(?<![A-Za-z])", "(?![A-Za-z])")
    if name.lower() in NAMES_AND_WORDS or (len(name) < 3 and name.isascii()):
        return f"{_ADDRESSED}{re.escape(name)}{edge_after}"
    return f"{edge_before}(?i:{re.escape(name)}){edge_after}"


_PRESENTED = [re.compile(pattern) for pattern in _ANYWHERE]
_PRESENTED_EARLY = re.compile(_AT_THE_OPENING)

# --- masking ----------------------------------------------------------------------------------------------------------

_Rule = tuple[str, re.Pattern[str], Callable[[str], bool] | None]
_SIGN_RULES: list[_Rule] = [(kind, re.compile(pattern), check) for kind, pattern, check in _SIGNS]
_NUMBER_RULES: list[_Rule] = [(kind, re.compile(pattern), check) for kind, pattern, check in _NUMBERS]
_SIGN = re.compile(r"@|://|www\.|\.\w+/|qq|微信|wechat|weixin|vx|v信", re.IGNORECASE)
_DIGIT = re.compile(r"\d")


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
            value = [masked(inner) for inner in value]
        elif isinstance(value, Notes):
            value = Notes(**{part: masked(text) for part, text in value})
        return value

    utterances = tuple(
        utterance.model_copy(update={key: masked(getattr(utterance, key)) for key in ("text", "notes", "extra")})
        for utterance in dialogue.utterances
    )
    update = {"situation": masked(dialogue.situation), "extra": masked(dialogue.extra), "utterances": utterances}
    return dialogue.model_copy(update=update), counts
