"""A message in the form that the rules read: lower case, plain letters, contractions and slang written out.

People in danger write in a hurry, and some hide what they say from filters. So letters of other alphabets that look
Latin, small capitals, letters in squares, circles and flags, HTML's names for letters, zero-width signs and fillers,
digits for letters ("su1cide"), stars ("k*ll"), letters apart, by blanks, lines or emoji ("k i l l"), drawn-out words
("diiiie") and slang ("unalive", 自鲨) are all brought to the plain word before any rule looks; the tables of slang and
spelling are data, beside the rules. Everything here takes time in proportion to the text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

_LOOKALIKES = str.maketrans(
    "абвгдезіїјкӏмнорѕтухсԁһԛԝэ" + "αβεηικνορτυχγωɑɡıłøđ" + "‘’‚‛`´ʼ＇“”„‟«»「」『』《》",
    "abbrdeziijklmhopstyxcdhqwe" + "abenikvoptuxywagilod" + "''''''''" + '""""""""""""',
)
_FRAMED = {start + offset: 97 + offset for start in (0x249C, 0x1F150, 0x1F170) for offset in range(26)}
"""Letters in brackets, circles and squares that NFKD leaves as they are, or takes apart."""
_SMALL_CAPITALS = str.maketrans("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz")
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]+")
_EMOJI = "\u2190-\u2bff\u3030\u303d\U0001f000-\U0001faff"
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u2800\u3164\uffa0\ufffc\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
_MARKS = re.compile("[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+")
_TRADITIONAL = str.maketrans(
    "殺傷個們這裡裏說話會來時間過還沒對開關門車樓藥買賣邊現發進讓聽見覺應該當點無為後從給與學樣種變經結繼續離"
    "別謝愛戀歲這錢難過還遺書遠帶著東西準備夠麼嗎媽爺奶兒孫親樂記憶憂鬱壓單獨擔負輕鬆飛躍窗橋頂繩頸臉頭腦燒農劑"
    "鐵軌沖衝殘劃腕臟體藏儲積攢壞絕斷盡歸處長靜靈魂葬墳寫訊號碼醫療診喫嚥氣險緊張暈厥強姦嚇脅報復槍彈滅屍國電視劇戲"
    "遊電腦認識誰總終於種將將轉見鐘頭實際願麗許請總讀寧養貓狗鑰匙帳號數據夢覺轉陽臺纏虐圍繞羅",
    "杀伤个们这里里说话会来时间过还没对开关门车楼药买卖边现发进让听见觉应该当点无为后从给与学样种变经结继续离"
    "别谢爱恋岁这钱难过还遗书远带着东西准备够么吗妈爷奶儿孙亲乐记忆忧郁压单独担负轻松飞跃窗桥顶绳颈脸头脑烧农剂"
    "铁轨冲冲残划腕脏体藏储积攒坏绝断尽归处长静灵魂葬坟写讯号码医疗诊吃咽气险紧张晕厥强奸吓胁报复枪弹灭尸国电视剧戏"
    "游电脑认识谁总终于种将将转见钟头实际愿丽许请总读宁养猫狗钥匙账号数据梦觉转阳台缠虐围绕罗",
)
_LEET = [str.maketrans("013457@$!|€", f"o{one}eastas{one}{one}e") for one in "il"]
_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_SPACE_IN_HAN = re.compile(rf"(?<=[{_HAN}])[ \t·•\-_*/\\|~^&+=.]+(?=[{_HAN}])")
_APART = re.compile(rf"(?<![a-z0-9@$])[a-z0-9@$](?:[\s.\-_*~/|{_EMOJI}]{{1,3}}[a-z0-9@$](?![a-z0-9@$])){{2,}}")
_SPLIT = re.compile(rf"[a-z]{{1,30}}(?:[{_EMOJI}]{{1,3}}[a-z]{{1,30}}){{1,12}}")
_ODD = re.compile(  # a word of letters and other signs, or a whole one with a letter at least
    r"(?<![\w@$*#!|€])(?=[\w@$!|*#€]{0,30}[a-z])(?=[a-z]{0,30}[0-9@$!|*#€_])[\w@$*#€](?:[\w@$!|*#€]{0,30}[\w@$*#€])?(?![\w@$*#])"
)
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_REPEATED = re.compile(r"([a-z])\1{2,}")
_REPEATED_HAN = re.compile(rf"([{_HAN}])\1{{2,}}")
_CONTRACTIONS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\b(?:wo|will)n'?t\b|\bwont\b"), "will not"),
    (re.compile(r"\bcan'?t\b|\bcannot\b"), "can not"),
    (re.compile(r"\bain'?t\b"), "is not"),
    (re.compile(r"\b(do|does|did|is|was|were|are|would|could|should|have|has|had|must|need)n'?t\b"), r"\1 not"),
    (re.compile(r"\bi'?m\b"), "i am"),
    (re.compile(r"\bi'd\b"), "i would"),
    (re.compile(r"\bi'll\b"), "i will"),
    (re.compile(r"\b(you|they|we|who)'re\b"), r"\1 are"),
    (re.compile(r"\b(\w+)'ve\b|\bive\b"), lambda found: f"{found[1] or 'i'} have"),
    (re.compile(r"\b(\w+)'ll\b"), r"\1 will"),
    (re.compile(r"\b(he|she|it|that|there|what|who|how|everything|nothing|someone|everyone|here|where)'s\b"), r"\1 is"),
    (re.compile(r"\b(he|she|they|you|we)'d\b"), r"\1 would"),
    (re.compile(r"'"), ""),
]
_MASKED_SIGNS = frozenset("*#_")
_LONGEST_JOINED = 60
_GAP = 2
"""What a letter that belongs to no known word costs, beside a word, where letters written as one are cut."""
_TELLTALE = 4
_PIECE = 1_000


def length(text: str) -> int:
    """How much is written: letters, of which a Chinese character counts as three."""
    return sum(3 if character > "\u2e80" else 1 for character in text)


def letters(text: str) -> str:
    """The text in lower case and in the letters it looks like: no zero-width signs, no marks, simplified characters."""
    if "&" in text:
        text = html.unescape(text)
    text = _MARKS.sub("", _INVISIBLE.sub("", text))
    text = _FLAG_LETTERS.sub(_spelt, text.translate(_FRAMED).translate(_SMALL_CAPITALS))
    # In pieces: putting a long run of marks in order takes time that grows with its square.
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    text = "".join(_MARKS.sub("", unicodedata.normalize("NFKD", piece)) for piece in pieces)
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    text = (
        "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)
        .lower()
        .translate(_LOOKALIKES)
        .translate(_TRADITIONAL)
    )
    return _SPACE_IN_HAN.sub("", _REPEATED_HAN.sub(r"\1\1", text))


class Spelling:
    """Brings a text to the form the rules read, with tables of what a word or a phrase stands for.

    `words` maps a word of slang or a common mistake to what it stands for, `phrases` the same for whole phrases by
    pattern, `known` are the words that are looked for where letters are hidden, drawn out, apart or mistaken.
    """

    def __init__(
        self, words: Mapping[str, str], phrases: Mapping[str, str], known: Iterable[str], fillers: Iterable[str]
    ) -> None:
        self._words = dict(words)
        self._phrases = [(re.compile(pattern), plain) for pattern, plain in phrases.items()]
        self._known = frozenset(known)
        self._squeezed = {_squeeze(word): word for word in self._known}
        self._by_length: dict[int, list[str]] = {}
        for word in self._known:
            self._by_length.setdefault(len(word), []).append(word)
        # Long words only: a short one with one letter changed is soon another word.
        for word in self._known:
            if len(word) >= 6:
                for mistake in _mistakes(word):
                    if mistake not in self._known:
                        self._words.setdefault(mistake, word)
        self._fillers = frozenset(fillers)

    def plain(self, text: str) -> str:
        """The text as the rules read it."""
        return self.words(letters(text))

    def words(self, text: str) -> str:
        """A text whose letters are plain already, with its words made plain too."""
        text = _APART.sub(self._together, text)
        text = _SPLIT.sub(self._together, text)
        text = _ODD.sub(self._unmasked, text)
        text = _written_out(text)
        text = _WORD.sub(self._word, text)
        text = re.sub(r"[^\S\n]+", " ", text)
        for pattern, plain in self._phrases:
            text = pattern.sub(plain, text)
        return text

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        if word in self._fillers:
            return ""
        if plain := self._words.get(word):
            return plain
        if _REPEATED.search(word) and word not in self._known:
            squeezed = _squeeze(word)
            plain = self._squeezed.get(squeezed) or _REPEATED.sub(r"\1", word)
            return self._words.get(plain, plain)
        if self._known and len(word) >= 8 and word not in self._known:
            return _written_out(" ".join(self._cut(word) or self._cut(word, gaps=True) or [word]))
        return word

    def _unmasked(self, found: re.Match[str]) -> str:
        """A word with digits or signs among its letters, if that makes a word we look for."""
        word = found[0]
        if any(sign in _MASKED_SIGNS for sign in word):
            if any(character.isalpha() for character in word):
                for known in self._by_length.get(len(word), []):
                    if all(sign in _MASKED_SIGNS or sign == letter for sign, letter in zip(word, known, strict=True)):
                        return known
            word = word.replace("*", "").replace("_", "").replace("#", "")
        for table in _LEET:
            plain = word.translate(table)
            if plain in self._known or plain in self._words:
                return plain
        return self._squeezed.get(_squeeze(word.translate(_LEET[0])), found[0])

    def _together(self, found: re.Match[str]) -> str:
        """Letters apart, joined and cut into words we know; left as they are where that does not work out."""
        joined = re.sub(r"[^a-z0-9@$]", "", found[0]).translate(_LEET[0])
        words = self._cut(joined)
        return " ".join(words) if words and any(len(word) > 1 for word in words) else found[0]

    def _cut(self, joined: str, gaps: bool = False) -> list[str] | None:
        """The fewest known words that letters written as one are made of, if they are.

        With `gaps` some letters may belong to none, as long as several longer words are found in it.
        """
        if len(joined) > _LONGEST_JOINED:
            return None
        best: list[tuple[int, list[str]] | None] = [(0, [])] + [None] * len(joined)
        for end in range(1, len(joined) + 1):
            for start in range(max(0, end - 12), end):
                before, word = best[start], joined[start:end]
                known = word in self._known or word in self._words
                if before is None or not (known or gaps):
                    continue
                cost = before[0] + (_GAP * len(word) if not known or (gaps and len(word) == 1) else 1)
                found = best[end]
                if found is None or cost < found[0]:
                    best[end] = (cost, [*before[1], self._words.get(word, word) if known else word])
        if (whole := best[-1]) is None:
            return None
        telltale = [word for word in " ".join(whole[1]).split() if len(word) >= _TELLTALE and word in self._known]
        if gaps and (len(telltale) < 2 or 3 * sum(map(len, telltale)) < len(joined)):
            return None
        return whole[1]


def _spelt(found: re.Match[str]) -> str:
    """The letters of signs that make flags; two alone are a flag."""
    signs = found[0]
    return " " if len(signs) == 2 else "".join(chr(ord(sign) - 0x1F1E6 + 97) for sign in signs)


def _written_out(text: str) -> str:
    for pattern, plain in _CONTRACTIONS:
        text = pattern.sub(plain, text)
    return text


def _squeeze(word: str) -> str:
    return "".join(letter for letter, _ in groupby(word))


def _mistakes(word: str) -> Iterable[str]:
    """The word with one letter missing, doubled or changed, or two swapped; its first letter always stands."""
    for index in range(1, len(word)):
        yield word[:index] + word[index + 1 :]
        yield word[:index] + word[index] + word[index:]
        if index + 1 < len(word):
            yield word[:index] + word[index + 1] + word[index] + word[index + 2 :]
        for letter in "aeiouscyzt":
            yield word[:index] + letter + word[index + 1 :]
            yield word[:index] + letter + word[index:]
