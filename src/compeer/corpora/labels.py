"""How other corpora's labels map to ours: explicit tables, one a corpus, and nothing that guesses.

A table's left side is written in lower case with single blanks (`normal`), because corpora are careless with both.
`None` on the right says that our vocabulary has no counterpart: the label is known, the field stays empty, and the
original is kept in `extra`. A label that no table holds is an error. Why each label goes where it goes is told in
docs/labels.md, which a test compares with these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from compeer.dialogue import Emotion, Speaker, Strategy

PROBLEMS: tuple[str, ...] = (
    "work",
    "study",
    "breakup",
    "romance",
    "family",
    "friendship",
    "parenting",
    "grief",
    "illness",
    "money",
    "loneliness",
    "depression",
    "self-image",
    "addiction",
    "bullying",
    "sleep",
    "caregiving",
    "relocation",
    "discrimination",
    "retirement",
    "other",
)


def normal(label: str) -> str:
    """A label as the tables write it: lower case, single blanks."""
    return " ".join(label.casefold().split())


# --- who speaks -----------------------------------------------------------------------------------------------------

_ESCONV_SPEAKERS: dict[str, Speaker] = {
    "usr": "seeker",
    "seeker": "seeker",
    "sys": "supporter",
    "supporter": "supporter",
}

SPEAKERS: Mapping[str, Mapping[str, Speaker]] = {
    "esconv": _ESCONV_SPEAKERS,
    "failed-esconv": {**_ESCONV_SPEAKERS, "speaker": "seeker", "listener": "supporter"},
    "mesc": {"client": "seeker", "user": "seeker", "therapist": "supporter", "sys": "supporter"},
    "avamerg": {"speaker": "seeker", "listener": "supporter"},
    "soulchat": {"user": "seeker", "assistant": "supporter"},
    "smile": {"client": "seeker", "counselor": "supporter"},
}

# --- what the supporter does ----------------------------------------------------------------------------------------

_OUR_STRATEGIES: dict[str, Strategy | None] = {strategy.casefold(): strategy for strategy in get_args(Strategy)}

STRATEGIES: Mapping[str, Mapping[str, Strategy | None]] = {
    "esconv": {
        **_OUR_STRATEGIES,
        "greeting": "Others",
        "greetings": "Others",
        "providing suggestions or information": None,
    },
    "failed-esconv": {
        **_OUR_STRATEGIES,
        "questions": "Question",
        "other": "Others",
        "direct guidance": "Providing Suggestions",
        "approval and reassurance": "Affirmation and Reassurance",
        "restatement": "Restatement or Paraphrasing",
    },
    "mesc": {
        "open question": "Question",
        "restatement": "Restatement or Paraphrasing",
        "self-disclosure": "Self-disclosure",
        "approval": "Affirmation and Reassurance",
        "advisement": "Providing Suggestions",
        "interpretation": "Others",
        "communication skills": "Others",
        "guiding the pace and depth of the conversation": "Others",
        "structuring the therapy": "Others",
        "others": "Others",
        "undefined": None,
    },
}

# --- what the seeker feels ------------------------------------------------------------------------------------------

_ESCONV_EMOTIONS: dict[str, Emotion | None] = {
    "anxiety": "anxiety",
    "depression": "depression",
    "sadness": "sadness",
    "anger": "anger",
    "fear": "fear",
    "shame": "shame",
    "disgust": "disgust",
    "guilt": "guilt",
    "nervousness": "anxiety",
    "pain": "hurt",
    "jealousy": None,
}

_AVAMERG_EMOTIONS: dict[Emotion | None, tuple[str, ...]] = {
    "anxiety": (
        *("anxiety", "anxious", "apprehensive", "nervous", "uneasy"),
        *("worried", "worry", "concerned", "concern"),
    ),
    "sadness": (
        *("sadness", "sad", "devastated", "disappointed", "disappointment"),
        *("melancholy", "melancholic", "heavy-hearted"),
    ),
    "anger": ("anger", "angry", "annoyed", "furious"),
    "fear": ("fear", "fearful", "afraid", "terrified"),
    "shame": ("shame", "ashamed", "embarrassed", "inadequacy"),
    "guilt": ("guilt", "guilty", "regret"),
    "disgust": ("disgust", "disgusted", "contempt"),
    "loneliness": ("loneliness", "lonely"),
    "frustration": ("frustration", "frustrated"),
    "hurt": ("hurt",),
    "stress": ("stress", "stressed", "burdened", "overwhelm", "overwhelmed"),
    "relief": ("relief", "relieved"),
    "hope": ("hope", "hopeful", "anticipating"),
    "joy": ("joy", "joyful", "happy", "excited", "content", "proud"),
    "gratitude": ("gratitude", "grateful"),
    "confusion": ("confusion", "confused", "conflicted", "lost"),
    "neutral": ("neutral",),
    "depression": ("depression", "depressed"),
    None: (
        *("caring", "confident", "faithful", "impressed", "jealous", "prepared", "surprised", "trusting"),
        *("sentimental", "nostalgic", "nostalgia", "pensive", "reflective", "thoughtful"),
        *("tired", "tiredness", "weary", "fatigue", "exhausted", "exhaustion"),
        *("vulnerable", "vulnerability", "fragile", "helpless", "helplessness", "upset"),
    ),
}

EMOTIONS: Mapping[str, Mapping[str, Emotion | None]] = {
    "esconv": _ESCONV_EMOTIONS,
    "failed-esconv": _ESCONV_EMOTIONS,
    "mesc": {
        "neutral": "neutral",
        "depression": "depression",
        "anger": "anger",
        "disgust": "disgust",
        "joy": "joy",
        "sadness": "sadness",
        "fear": "fear",
    },
    "avamerg": {theirs: ours for ours, labels in _AVAMERG_EMOTIONS.items() for theirs in labels},
}

# --- what the dialogue is about -------------------------------------------------------------------------------------

_ESCONV_PROBLEMS: dict[str, str] = {
    "ongoing depression": "depression",
    "job crisis": "work",
    "breakup with partner": "breakup",
    "problems with friends": "friendship",
    "academic pressure": "study",
    "sleep problems": "sleep",
    "procrastination": "other",
    "appearance anxiety": "self-image",
    "alcohol abuse": "addiction",
    "conflict with parents": "family",
    "issues with parents": "family",
    "issues with children": "parenting",
    "school bullying": "bullying",
}

PROBLEM_TYPES: Mapping[str, Mapping[str, str]] = {
    "esconv": _ESCONV_PROBLEMS,
    "failed-esconv": _ESCONV_PROBLEMS,
    "mesc": {**_ESCONV_PROBLEMS, "breakups or divorce": "breakup"},
}
