"""A lexical estimate of DISC traits: what words and habits of writing suggest of a manner, where no model is at hand.

Each habit is a rate (most of them per 100 words; in Chinese a character is a word), standardised against reference
values measured once on public corpora, so that one dialogue never depends on others. A trait is a weighted sum of
habits. This is crude: it describes how someone wrote in one conversation, and is neither a test nor a diagnosis.
docs/personality.md says what counts toward which trait, and how little that proves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compeer.dialogue import Speaker
from compeer.statistics import words

Trait = Literal["dominance", "influence", "steadiness", "compliance"]
TRAITS: tuple[Trait, ...] = ("dominance", "influence", "steadiness", "compliance")

LEAST_WORDS = 25
"""Who said less than this gets the neutral 3 on every trait."""
TRUST = 60
"""Words at which an estimate counts half; the more was said, the less it is drawn toward the neutral 3."""
NEUTRAL = 3.0
MOST = 2.5
"""Standard deviations; a habit counts no further than this."""
SCALE = 1.2
"""Points of a score for one standard deviation of a trait."""

WEIGHTS: dict[Trait, dict[str, float]] = {
    "dominance": {"commands": 1.0, "decisions": 1.0, "contradiction": 1.0, "hedges": -0.7, "courtesy": -0.5},
    "influence": {"exclamations": 1.0, "company": 0.7, "warmth": 1.0, "emphasis": 0.7, "talk": 0.5},
    "steadiness": {"courtesy": 1.0, "agreement": 1.0, "listening": 1.0, "contradiction": -0.7, "exclamations": -0.3},
    "compliance": {
        "reasons": 1.0,
        "figures": 0.7,
        "hedges": 0.4,
        "sentences": 0.7,
        "finish": 0.6,
        "detail": 0.6,
        "questions": 0.4,
    },
}
"""What counts toward which trait, and against it."""

_ENGLISH = {
    "commands": r"(?:you (?:should|must|need to|have to|ought to|better)|(?:^|[.!?\n] *)(?:please |just |so |then )?"
    r"(?:try|go|take|tell|stop|do|don't|make|get|talk|call|ask|let's|let|keep|give|start|think|focus|find|look|"
    r"write|remember|listen|come|stay|be|leave|forget|imagine|use|set) )",
    "decisions": r"\bi(?:'ll| will|'m going to| am going to| want| need| decided| refuse| insist| know|'m sure| am sure"
    r"| won't| demand| chose| choose)\b",
    "contradiction": r"\b(?:but|no|never|wrong|however|disagree|hate|stupid|ridiculous|damn|hell|nonsense|whatever|"
    r"can't stand|sick of|actually)\b",
    "hedges": r"\b(?:maybe|perhaps|possibly|probably|might|could|i think|i guess|i suppose|kind of|sort of|kinda|"
    r"not sure|somewhat|a bit|a little|seems?|apparently)\b",
    "courtesy": r"\b(?:thank you|thanks|thank|please|sorry|appreciate|welcome|grateful|excuse me|would you mind)\b",
    "company": r"\b(?:we|us|our|together|everyone|everybody|people|others|anyone|someone)\b",
    "warmth": r"\b(?:great|wonderful|awesome|amazing|love|lovely|fun|happy|glad|excited|nice|good|beautiful|fantastic|"
    r"haha|lol|hope|proud|best|enjoy|cool)\b",
    "emphasis": r"\b(?:so|very|really|totally|absolutely|super|definitely|completely|extremely|truly|always|ever)\b",
    "agreement": r"\b(?:yes|yeah|yep|ok|okay|right|true|exactly|agree|agreed|sure|of course|indeed|alright)\b",
    "listening": r"\b(?:i see|i understand|i hear|i get it|understandable|sounds? (?:like|as if)|that must|i know how|"
    r"i can imagine|how (?:are|do|did) you|you feel|you're feeling|take your time|no rush|here for you|here to)\b",
    "reasons": r"\b(?:because|since|therefore|thus|if|so that|in order to|due to|reason|means|which|although|whether|"
    r"for example|first|second|instead|rather|depends)\b",
    "figures": r"(?:\d[\d.,:]*|\b(?:two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|hundred|half|percent|"
    r"minutes?|hours?|weeks?|months?|years?|daily|weekly)\b)",
}
_CHINESE = {
    "commands": r"你?(?:应该|必须|需要|一定要|得要|务必|不要|别再|不妨|试着|试试|去做|记得|请你|让我们|你可以)",
    "decisions": r"我(?:要|会|想要|决定|一定|必须|不会|打算|知道|确定|需要|坚持|选择)",
    "contradiction": r"但是|可是|不过|然而|并不|不对|不是|讨厌|从来不|根本|凭什么|其实|却",
    "hedges": r"也许|可能|或许|大概|好像|似乎|我觉得|我想|应该是|不确定|有点|有些|不太|差不多|说不定",
    "courtesy": r"谢谢|感谢|请问|抱歉|对不起|不好意思|麻烦|您|感激",
    "company": r"我们|咱们|大家|一起|朋友|别人|他们|有人|人们|家人",
    "warmth": r"很好|很棒|真好|开心|高兴|快乐|喜欢|加油|希望|美好|幸福|哈哈|太好|不错|欣赏|骄傲|祝",
    "emphasis": r"非常|真的|特别|十分|太|很|极其|完全|绝对|总是|一直|超级|好多",
    "agreement": r"是的|对的|嗯|好的|没错|确实|同意|当然|有道理|说得对|的确|行|可以的",
    "listening": r"我理解|我明白|理解你|听起来|我能感受|能感觉到|感受到|听到你|你觉得|你的感受|我知道你|陪|慢慢",
    "reasons": r"因为|所以|由于|因此|如果|为了|导致|原因|例如|比如|首先|其次|虽然|而且|从而|意味着|使得",
    "figures": r"\d[\d.,:]*|[两三四五六七八九十百千万几半]+(?:个|年|天|月|次|点|岁|小时|分钟|周|种|块|元)",
}
_PATTERNS = {
    language: {habit: re.compile(pattern) for habit, pattern in table.items()}
    for language, table in {"en": _ENGLISH, "zh": _CHINESE}.items()
}
_SENTENCE = re.compile(r"[.!?。！？…\n]+")
_FINISHED = re.compile(r"[.!?。！？…～~\"”）)]\s*$")

_MEASURED = """
              en seeker       en supporter    zh seeker       zh supporter
commands       0.195   0.37    0.768  0.835    0.629  0.542     1.08  0.607
decisions      0.805   0.79    0.308  0.407    0.829  0.614   0.0591  0.117
contradiction   1.68   1.05    0.888    0.7    0.806  0.651    0.559  0.402
hedges          1.35   1.19     1.28  0.985    0.841  0.722    0.528  0.426
courtesy        1.11  0.891    0.606  0.572    0.757  0.621    0.156  0.642
company         1.04    1.1     1.04  0.978    0.919  0.983     1.13  0.865
warmth          1.39   1.07     1.65   1.09    0.513  0.554     0.69  0.492
emphasis        1.85   1.19     1.53  0.994     1.92   1.14     1.02  0.521
agreement       1.81   1.33    0.995  0.925    0.864  0.746    0.532  0.396
listening      0.218   0.37     1.05  0.817    0.327  0.387    0.433  0.395
reasons        0.983  0.782    0.972  0.756    0.564  0.552    0.964  0.523
figures        0.993   1.13    0.472  0.685    0.285   0.49    0.121  0.262
exclamations   0.047 0.0733   0.0883    0.1   0.0404 0.0801   0.0522 0.0682
questions     0.0738 0.0824    0.237  0.123    0.199  0.153   0.0712 0.0974
talk            20.1   9.12     22.5   9.25       59   56.5      116    112
sentences       9.29   2.86     10.7   2.59     23.7   7.13     27.1   5.96
finish         0.584  0.356    0.801   0.25    0.994 0.0501    0.994 0.0523
detail          11.8   3.17     13.4   3.19     5.93   1.46     5.47   1.05
"""
"""Mean and standard deviation of each habit among those who wrote 25 words or more: English on the training split of
ESConv (910 dialogues), Chinese on 2,000 dialogues of SMILE. Seekers and supporters do different things in a
conversation, so each is compared with their like."""


def _references() -> dict[tuple[str, Speaker], dict[str, tuple[float, float]]]:
    sides: tuple[tuple[str, Speaker], ...] = (
        ("en", "seeker"),
        ("en", "supporter"),
        ("zh", "seeker"),
        ("zh", "supporter"),
    )
    found: dict[tuple[str, Speaker], dict[str, tuple[float, float]]] = {side: {} for side in sides}
    for row in _MEASURED.strip().splitlines()[1:]:
        habit, *figures = row.split()
        for side, mean, deviation in zip(sides, figures[::2], figures[1::2], strict=True):
            found[side][habit] = (float(mean), float(deviation))
    return found


_REFERENCES = _references()


def habits(texts: Sequence[str], language: str) -> dict[str, float]:
    """How often a participant shows each habit, over the messages given; English ("en") or Chinese ("zh")."""
    text = "\n".join(texts).replace("’", "'").lower()
    count = max(1, len(words(text)))
    sentences = max(1, sum(1 for part in _SENTENCE.split(text) if part.strip()))
    found = {habit: 100 * len(pattern.findall(text)) / count for habit, pattern in _PATTERNS[language].items()}
    marks = len(re.findall("[!！]+", text))
    finished = sum(1 for said in texts if _FINISHED.search(said))
    details = sum(1 for word in words(text) if len(word) > 6) if language == "en" else text.count("，")
    return found | {
        "exclamations": marks / sentences,
        "questions": len(re.findall("[?？]+", text)) / sentences,
        "talk": count / max(1, len(texts)),
        "sentences": count / sentences,
        "finish": finished / max(1, len(texts)),
        "detail": 100 * details / count,
    }


@dataclass(frozen=True)
class Estimate:
    """Scores of 1 to 5, and the habits that stand out, the strongest first, each with whether it is frequent."""

    scores: dict[Trait, float]
    marked: tuple[tuple[str, bool], ...] = ()


def estimate(texts: Sequence[str], language: str, participant: Speaker) -> Estimate:
    """The traits that a participant's messages suggest; neutral for few words and for languages without word lists."""
    count = sum(len(words(text)) for text in texts)
    reference = _REFERENCES.get((language, participant))
    if reference is None or count < LEAST_WORDS:
        return Estimate(dict.fromkeys(TRAITS, NEUTRAL))
    found = habits(texts, language)
    standing = {
        habit: max(-MOST, min(MOST, (found[habit] - mean) / deviation))
        for habit, (mean, deviation) in reference.items()
    }
    trust = count / (count + TRUST)
    scores = {}
    for trait, weights in WEIGHTS.items():
        total = sum(weight * standing[habit] for habit, weight in weights.items())
        spread = math.sqrt(sum(weight**2 for weight in weights.values()))
        scores[trait] = round(max(1.0, min(5.0, NEUTRAL + SCALE * trust * total / spread)), 1)
    marked = sorted((habit for habit in standing if abs(standing[habit]) >= 1), key=lambda habit: -abs(standing[habit]))
    return Estimate(scores, tuple((habit, standing[habit] > 0) for habit in marked))


# --- in words ---------------------------------------------------------------------------------------------------------

_MANNERS: dict[Trait, tuple[str, str, str, str]] = {
    "dominance": (
        "meek, gives way at once and waits to be led",
        "yielding, leaves the direction to the other",
        "direct and firm, says what should be done",
        "very forceful, commands, insists and contradicts",
    ),
    "influence": (
        "cool and dry, shows no enthusiasm at all",
        "reserved and sober about feelings",
        "warm and lively, shows feeling openly",
        "exuberant, bubbling with warmth and emphasis",
    ),
    "steadiness": (
        "abrupt and impatient, without any courtesy",
        "restless, seldom confirms or thanks",
        "patient and polite, a calm listener",
        "utterly gentle, agrees and thanks all the time",
    ),
    "compliance": (
        "careless, drops bare fragments",
        "casual, without much explanation",
        "careful, gives reasons in orderly sentences",
        "meticulous, reasons at length and in exact detail",
    ),
}
"""How each trait is put into words: very low, low, high, very high. There is one wording for each, because descriptions
in many wordings were clustered by the wording and not by the traits."""
_HABITS: dict[tuple[str, bool], str] = {
    ("commands", True): "gives plain instructions",
    ("decisions", True): "states own wants and decisions",
    ("contradiction", True): "objects often",
    ("hedges", True): "softens much with 'maybe' and 'I think'",
    ("hedges", False): "hardly ever hedges",
    ("courtesy", True): "thanks and apologises often",
    ("company", True): "says 'we' and 'people' a great deal",
    ("warmth", True): "uses many bright words",
    ("emphasis", True): "underlines with 'so' and 'really'",
    ("agreement", True): "says 'yes' and 'right' often",
    ("listening", True): "shows again and again that the other was heard",
    ("reasons", True): "ties thoughts together with 'because' and 'if'",
    ("figures", True): "likes numbers and times",
    ("exclamations", True): "exclaims often",
    ("questions", True): "asks a great deal",
    ("questions", False): "hardly asks anything",
    ("talk", True): "writes long messages",
    ("talk", False): "writes very short messages",
    ("sentences", True): "lets sentences run long",
    ("sentences", False): "uses short sentences",
    ("finish", False): "leaves off the full stops",
    ("detail", True): "prefers long words and many clauses",
}
MARKED, STRONG = 0.5, 1.3
"""How far from the neutral 3 a trait must lie to be put into words, and in strong ones."""


def describe(estimated: Estimate) -> str:
    """The estimate as a short description: the two traits that stand out most, and the habit that does.

    Only the manner is described, never what the talk was about. There are a few thousand such descriptions in all, so
    that embedding each of them once is cheap.
    """
    away = {trait: estimated.scores[trait] - NEUTRAL for trait in TRAITS}
    marked = sorted((trait for trait in TRAITS if abs(away[trait]) >= MARKED), key=lambda trait: -abs(away[trait]))
    sentences = []
    for trait in marked[:2]:
        strong = abs(away[trait]) >= STRONG
        sentences.append(_MANNERS[trait][2 + strong if away[trait] > 0 else 1 - strong])
    sentences = sentences or ["an even manner in which no trait stands out"]
    sentences += [_HABITS[mark] for mark in estimated.marked if mark in _HABITS][:1]
    return " ".join(sentence[0].upper() + sentence[1:] + "." for sentence in sentences)
