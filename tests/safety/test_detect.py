"""Detection of danger: plain and hidden words, contexts that take it back, whole conversations, failures, speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.safety import Detector, detect
from compeer.safety.reader import Guess, Window
from compeer.safety.risk import LEVELS, Level
from compeer.safety.rules import READ_WHOLE, Rules, language_rules, languages_of, scanned
from tests.support.growth import grows_with_length

RULES = Detector(classifier=None)
"""Rules and weighted phrases, without the encoder."""


def level(*messages: str) -> Level:
    return RULES.detect(messages).level


CRISES = [
    "I want to kill myself",
    "I can't promise I won't hurt myself tonight",
    "I don't want to live anymore",
    "I just swallowed a whole bottle of pills",
    "how many pills does it take to die",
    "I'm standing on the ledge of the roof",
    "I tried to hang myself last night",
    "I'm not joking, I will end my life",
    "I can't stop thinking about killing myself",
    "My dad collapsed and he's not breathing",
    "He said he will kill me if I leave",
    "My wife will kill me tonight",
    "My wife will kill me if I leave her",
    "I'm going to stab my boss tomorrow",
    "I cut too deep and the bleeding won't stop",
    "我不想活了",
    "我想自杀",
    "我已经写好了遗书",
    "我刚吞了一整瓶安眠药",
    "吃多少安眠药会死",
    "老公昨晚掐住我的脖子",
    "我爸突然晕倒了，叫不醒",
    "I'm going to kill my boss, I have the gun in my car",
    "I took about thirty of my mum's pills",
    "Tomorrow after work I'm going to jump.",
    "By the time you read this it will be over.",
    "I don't want to live in this nightmare anymore",
    "I'm being held in his apartment",
    "he is outside my mom's house screaming",
    "他在门外，我好怕",
    "希望能够死去",
    "我被他关在房间里",
]
HIDDEN = [
    "I want to k\u3164ill my\uffa0self",  # fillers of Hangul
    "I want to k\u2800ill myself",
    "ɪ ᴡᴀɴᴛ ᴛᴏ ᴋɪʟʟ ᴍʏꜱᴇʟꜰ",
    "🅸 🆆🅰🅽🆃 🆃🅾 🅺🅸🅻🅻 🅼🆈🆂🅴🅻🅵",
    "🅘 🅦🅐🅝🅣 🅣🅞 🅓🅘🅔",
    "🄸 🅆🄰🄽🅃 🅃🄾 🄳🄸🄴",
    "I want to ⒦⒤⒧⒧ myself",
    "I want to 🇩🇮🇪",
    "I want to 🇰 🇮 🇱 🇱 myself",
    "\n".join("iwanttodie"),
    "I want to\nk\ni\nl\nl\nm\ny\ns\ne\nl\nf",
    "I want to k🔪i🔪l🔪l myself",
    "I want to ki🙂ll my🙂self",
    "I want to k 😀 i 😀 l 😀 l myself",
    "I want to &#107;&#105;ll myself",
    "I want to &#x6b;i&#108;l my&shy;self",
    "wo xiang zisha",
    "wǒ xiǎng zì shā",
    "wo3 xiang3 si3",
    "wo bu xiang huo le",
    "su1c1dal again",
    "i wanna k1ll mys3lf",
    "k i l l m y s e l f",
    "Iwanttokillmyselfandimgoingtodoit",
    "wanttodietonightplease",
    "i want to d.i.e",
    "thinking about s*icide",
    "gonna unalive myself",
    "kms tonight",
    "i want to diiiiie",
    "I w\u200bant to k\u200bill my\u200bself",
    "I wаnt to dіe",  # Cyrillic a and i
    "Ｉ ｗａｎｔ ｔｏ ｄｉｅ",
    "i want to kill myslef",
    "iwanttodie",
    "想紫砂",
    "我想自鲨",
    "想4了",
    "我想自殺",
    "自 杀 的念头",
    "我好想重开",
]
CONCERNS = [
    "Everyone would be better off without me.",
    "I wish I could go to sleep and never wake up.",
    "You won't have to worry about me anymore.",
    "My friend says she wants to die.",
    "Sometimes I get the urge to cut.",
    "My husband hits me when he drinks.",
    "没有我，大家会过得更好。",
    "真希望明天不要醒来。",
    "我朋友说她不想活了",
    "我又开始自残了",
    "I feel like nothing can help me",
    "he just hit me when I came home",
]
NONE = [
    "I would never kill myself.",
    "I'm not suicidal, just sad.",
    "I'm not suicidal",
    "我没有想自杀",
    'My daughter wrote "I want to die" about her maths homework, as a joke, and we laughed.',
    "This job is killing me.",
    "I'm dying to see you.",
    "My mom is going to kill me when she sees my grades.",
    "My aunty will kill me if it gets taken at the airport.",
    "The cooker is broken, wife will kill me if I don't get a new one.",
    "I tried to kill myself years ago, I'm fine now.",
    "My uncle killed himself when I was a child.",
    "In the movie the hero wants to kill himself.",
    "What does kms mean?",
    'The lyrics say "I want to die" and everyone sings along.',
    "I cut myself while chopping onions.",
    "I miss my grandmother so much since she died.",
    "I feel hopeless and worthless since the breakup.",
    "I'm so angry I could scream.",
    "My husband has never hit me.",
    "我不会自杀的，只是难过。",
    "笑死我了",
    "作业多得要死",
    "我想死你了",
    "电影里的主角最后自杀了",
    "买了一把紫砂壶",
    "奶奶去世了，我很难过。",
    "",
    "   ",
    "I don't want to live in constant fear of him",
    "the presentation is being held on campus",
    "it really hit me when I moved away",
    "they sleep at his house and he gets them off the bus",
    "希望能够走出困境",
]


@pytest.mark.parametrize("message", [*CRISES, *HIDDEN])
def test_a_crisis_is_found(message: str) -> None:
    assert level(message) == "crisis"


@pytest.mark.parametrize("message", CONCERNS)
def test_a_concern_is_found(message: str) -> None:
    assert level(message) == "concern"


@pytest.mark.parametrize("message", NONE)
def test_what_is_no_danger_raises_nothing(message: str) -> None:
    assert RULES.detect(message).reasons == ()


def test_a_denial_that_leaves_a_doubt_is_not_passed_over() -> None:
    assert level("I won't kill myself tonight.") != "none"


def test_signs_are_gathered_over_messages() -> None:
    first, last = "I have been saving my grandmother's sleeping pills.", "Thank you for everything."
    assert level(last) == "none"
    assert level(first, last) == "crisis"
    assert level("I gave my guitar away to my brother.") == "none"
    assert level("I feel hopeless.", "I gave my guitar away to my brother.", "Thank you for listening.") != "none"


FRAGMENTS = [["I want to", "kill", "myself"], ["i", "want", "to", "die"], list("iwanttodie"), ["我", "不想", "活了"]]


@pytest.mark.parametrize("messages", FRAGMENTS)
def test_a_sentence_in_fragments_is_read_as_one(messages: list[str]) -> None:
    assert level(*messages) == "crisis"
    assert level(*messages[:1], "Never mind, I found my keys.", *messages[-1:]) == "none"


def test_a_crisis_holds_and_a_joke_does_not_delete_it() -> None:
    told = "I am going to kill myself tonight."
    assert level(told, "The weather is nice.") == "crisis"
    assert level(told, "just kidding lol") == "concern"
    assert level(told, *["The weather is nice."] * 6) == "concern"
    assert level(told, *["The weather is nice."] * 30) == "concern"
    assert level("我今晚要自杀", "开玩笑的") == "concern"


def test_a_crisis_ends_when_help_is_there() -> None:
    told = "I am going to kill myself tonight."
    assert level(told, "I am safe now, my sister is with me.") == "concern"
    assert level(told, "I am safe now, my sister is with me.", "I feel safe now.") == "none"
    assert level(told, "I feel safe now.", "I want to die.") == "crisis"


def test_a_trigger_names_a_rule_and_never_the_words() -> None:
    risk = RULES.detect(["hello", "I want to kill myself with xylophones"])
    assert {trigger.message for trigger in risk.reasons} == {1}
    rules = (*language_rules("en")._rules, *language_rules("zh")._rules)
    assert {trigger.by for trigger in risk.reasons} <= {*(match.rule for match, _, _ in rules), "weighted phrases"}
    assert "xylophones" not in repr(risk)


def test_a_broken_rule_fails_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_rules: Rules, message: str) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(Rules, "scan", breaks)
    risk = Detector(classifier=None).detect("hello from nowhere")
    assert risk.level == "concern"
    assert [trigger.by for trigger in risk.reasons] == ["failure"]
    assert risk.degraded
    assert "nowhere" not in repr(risk)


def test_a_bad_rule_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "en.toml"
    with pytest.raises(InputError, match="cannot be read"):
        Rules("en", path)
    for text, complaint in (("heeds = []\nhot = ''\nrules = []", "words"), ("= no toml", "no TOML")):
        path.write_text(text)
        with pytest.raises(InputError, match=complaint):
            Rules("en", path)


@pytest.mark.parametrize(
    "filler", ["la ", "kill ", "a", "不", "i want to ", "~ ", "k i l l ", "\u0301", "my ", "****", "\u0591\u05b0"]
)
def test_a_megabyte_does_not_stall(filler: str) -> None:
    RULES.detect("warm. 热。")
    message = filler * (1_000_000 // len(filler))
    risk = RULES.detect(message)
    assert grows_with_length(RULES.detect, message)
    assert risk.level != "none"
    assert any("too long" in part for part in risk.degraded)


def test_of_a_long_message_all_that_could_matter_is_read() -> None:
    filler = "We talked about the garden and the weather. " * 500
    assert len(filler) > READ_WHOLE
    risk = RULES.detect(filler)
    assert (risk.level, risk.degraded) == ("none", ())
    assert RULES.detect(f"{filler} I want to kill myself. {filler}").level == "crisis"
    assert RULES.detect(f"{filler} 我想自杀。 {filler}").level == "crisis"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=80), max_size=4))
def test_any_text_gives_an_answer(messages: list[str]) -> None:
    risk = RULES.detect(messages)
    assert risk.level in LEVELS
    assert risk.degraded == ()
    assert (risk.level == "none") == (not risk.reasons)


@pytest.mark.parametrize(
    "message",
    [
        "Greetings from 🇺🇸 and 🇩🇪🇫🇷!",
        "My zisha teapot broke, and I liked it.",
        "wo xiang si ni le",
        "wo xiang ni",
        "Plan:\na\nb\nc\nd",
        "love❤you❤all",
        "Fish & chips &c., R&D; AT&T",
        "I ❤ U ❤ 2",
    ],
)
def test_odd_signs_alone_are_no_danger(message: str) -> None:
    assert level(message) == "none"


@pytest.mark.parametrize("message", CRISES)
@pytest.mark.parametrize("around", ["", " ", "...", "!!!", "\n", " ok. ", "嗯。"])
def test_what_stands_around_a_crisis_does_not_hide_it(message: str, around: str) -> None:
    assert level(f"{around}{message}{around}") == "crisis"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("If you're reading this it's already over", "crisis"),
        ("ok. By the time they find me it'll be too late. ok.", "crisis"),
        ("By the time you read this I'll be gone and I'm sorry", "crisis"),
        ("By the time you read this it will be over between us", "concern"),
        ("In the novel she writes: by the time you read this it will be over", "none"),
    ],
)
def test_a_farewell_note(message: str, expected: Level) -> None:
    assert level(message) == expected


def test_a_laugh_does_not_hide_a_wish_to_die() -> None:
    assert level("lol I want to kill myself lol") == "crisis"
    assert level("My dad collapsed and he's not breathing lol") == "crisis"


def test_detect_asks_the_packaged_detector() -> None:
    assert detect("I want to die") == RULES.detect(["I want to die"])


class SureOfNothing:
    """A reader of whole conversations that is sure that nobody is in danger."""

    whole = True

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        return [Guess("suicide", 0.0, 0.0) for _ in windows]


@pytest.mark.parametrize("text", ["I want to kill myself", "I want to die tonight", "我要自杀", "我想死"])
def test_no_reader_overrules_a_crisis_that_a_rule_finds(text: str) -> None:
    assert Detector(SureOfNothing()).detect([text]).level == "crisis"


@pytest.mark.parametrize(
    ("idiom", "plain"),
    [
        ("论文又被退回来，我想死的心都有", "我想死"),
        ("网上教程看得我想上吊", "我想上吊"),
        ("my mom phoned me crying like i was gonna jump", "i am gonna jump off the bridge"),
    ],
)
def test_beside_a_doubtful_turn_of_phrase_nothing_is_firm(idiom: str, plain: str) -> None:
    language = languages_of(idiom)[0]
    assert any(match.firm for match in scanned(plain, language).matches)
    assert not any(match.firm for match in scanned(idiom, language).matches)


@pytest.mark.parametrize(
    "message", ["胸口像压着石头，左胳膊都麻了，一身冷汗", "there's pressure on my chest and my left arm's gone numb"]
)
def test_a_heart_attack_is_a_crisis_however_it_is_asked_about(message: str) -> None:
    risk = Detector(None).detect([message, "我缓五分钟再走没事吧？"])
    assert risk.level == "crisis"
    assert risk.reasons[0].kind == "medical emergency"


def test_reassurance_that_is_a_question_takes_nothing_back() -> None:
    danger = "我今晚就要自杀，药都准备好了"
    assert Detector(None).detect([danger, "没事了，开玩笑的"]).level == "concern"
    assert Detector(None).detect([danger, "没事吧？"]).level == "crisis"
