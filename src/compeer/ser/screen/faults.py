"""Faults of a text that a rule can tell: broken encoding, both speakers in one, words of a machine, another language.

Each rule is meant to be wrong seldom rather than to find everything: short chats, dialect, slang and people who talk
about machines must pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from compeer.dialogue import Speaker, Utterance
from compeer.statistics import words

_CONTINUED = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"  # the bytes 80 to BF as Latin-1 or Windows-1252 show them
_MOJIBAKE = re.compile(
    "\ufffd|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"  # the mark of a lost character; controls that are no white space
    # UTF-8 read as Latin-1, of two, three and four bytes; two bytes of other scripts only if twice in a row
    f"|[ÂÃ][{_CONTINUED}]|[â-ï][{_CONTINUED}]{{2}}|ð[{_CONTINUED}]{{3}}|(?:[Ä-ß][{_CONTINUED}]){{2}}"
    "|锟斤|斤拷|烫烫烫|屯屯屯|[锛銆鈥]"  # lost characters, unset memory, and UTF-8 punctuation, each read as GBK
)
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


_LABELS: dict[Speaker, str] = {
    "seeker": "Seeker|Client|User|Help-seeker|求助者|来访者|来询者|用户",
    "supporter": "Supporter|Therapist|Counsell?or|Assistant|Listener|支持者|咨询师|助手|倾听者",
}
_LABELLED = {
    speaker: re.compile(rf"(?:^|[.!?。！？…~\n])\s*(?:{labels}) ?[:：]") for speaker, labels in _LABELS.items()
}


def speaks_for_both(utterance: Utterance) -> bool:
    """Whether a message goes on with the other's words, under the other's label: a transcript that was cut badly."""
    other: Speaker = "supporter" if utterance.speaker == "seeker" else "seeker"
    return bool(_LABELLED[other].search(utterance.text))


_MODEL = r"(?:(?:large |ai )?language model|artificial intelligence|computer program|(?:ai )?chat ?bot)\b"
_AI = r"ai(?=[.,;:!?)]|$| (?:language|model|assistant|chat|system|and|so|but|here|that|created|designed|trained)\b)"
"""Not an AI engineer."""
_MACHINE_ENGLISH = re.compile(
    rf"\bas (?:an?|your) (?:{_MODEL}|{_AI})"
    rf"|\b(?<!if )(?<!like )(?<!think )i(?: a|')m (?:just |only |merely |actually )?an? (?:{_MODEL}|{_AI})"
    r"|\bi (?:do not|don't) (?:have|experience|possess) (?:personal |human |real )?(?:feelings|emotions|experiences)"
    r" (?:or|and) (?:personal |human )?(?:feelings|emotions|experiences|opinions|beliefs|consciousness)"
    r"|\bmy (?:knowledge cutoff|training data)\b|\bi was (?:trained|created|developed) by (?:openai|anthropic|google)"
    r"|\bi(?: a|')m unable to provide the help that you need"
    r"|\bhere(?: i|')s an? (?:possible|sample|revised|suggested|empathetic) (?:response|reply|dialogue)\b"
    r"|\[(?:insert|your) [a-z ]+\]|\bregenerate response\b",
    re.IGNORECASE,
)
_MODEL_CHINESE = (
    r"(?:AI|人工智能|大?(?:型)?语言模型|(?:聊天|对话|智能|AI|人工智能)机器人|(?:智能|虚拟|AI)助手|计算机程序|电脑程序)"
    r"(?!专业|工程|行业|方向|领域|公司|课|研究|从业|开发|爱好|产品|程序员|学)"
)
_MACHINE_CHINESE = re.compile(
    rf"(?:作为|身为)(?:你的)?(?:一个|一名|一款|一种|个)?{_MODEL_CHINESE}"
    rf"|(?<!像)(?<!以为)(?<!如果)(?<!觉得)我(?:只|仅仅|其实|毕竟|不过)?是(?:一个|一名|一款|个)?{_MODEL_CHINESE}"
    r"|我是由?(?:OpenAI|百度|阿里|腾讯|谷歌)[^，。]{0,8}(?:开发|训练|研发)|我没有(?:真实的|人类的)?(?:情感|感情)(?:和|或)(?:意识|身体|体验)",
    re.IGNORECASE,
)


def is_machine_phrase(text: str) -> bool:
    """Whether the writer says of itself what only a language model says. A person may well speak *about* one."""
    return bool(_MACHINE_ENGLISH.search(text.replace("’", "'")) or _MACHINE_CHINESE.search(text))


_SCRIPTS = {
    "zh": "\u3400-\u9fff",
    "ja": "\u3040-\u30ff\u3400-\u9fff",
    "ko": "\uac00-\ud7af\u1100-\u11ff",
    "ru": "\u0400-\u04ff",
    "uk": "\u0400-\u04ff",
    "ar": "\u0600-\u06ff",
    "fa": "\u0600-\u06ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
    "el": "\u0370-\u03ff",
    **dict.fromkeys(
        ("en", "fr", "de", "es", "it", "pt", "nl", "pl", "sv", "id", "tr", "vi"), "a-z\xdf-\u024f\u1e00-\u1eff"
    ),
}
_IN_SCRIPT = {language: re.compile(f"[{letters}]") for language, letters in _SCRIPTS.items()}
_ENGLISH = """
the and but if to of for with from about is are were be been being does did have has had not i you he she it we they him
us them my your his our their this that these those what who how when where why which there here can could would should
might just really very some any more too than then because i'm it's don't that's i've you're can't im dont its ive thats
"""
ENGLISH_WORDS = frozenset(_ENGLISH.split())
"""Words that make up two fifths of any English chat; those that other languages spell alike are left out."""
FEWEST_WORDS, FEWEST_ENGLISH_WORDS = 12, 30
"""Below these nothing can be told."""


def is_other_language(texts: Sequence[str], language: str) -> bool:
    """Whether the words are not of the declared language: by their script and, for English, by its commonest words."""
    found = [word for word in words("\n".join(texts).replace("’", "'")) if not word.isdigit()]
    script = _IN_SCRIPT.get(language)
    if script and len(found) >= FEWEST_WORDS and sum(bool(script.search(word)) for word in found) < len(found) / 2:
        return True
    common = sum(word in ENGLISH_WORDS for word in found)
    return language == "en" and len(found) >= FEWEST_ENGLISH_WORDS and common < 0.15 * len(found)
