"""Screening: what is dropped and why, what is masked and what is left alone, and a model's verdict."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.corpora import read_corpus, write_jsonlines
from compeer.dialogue import Dialogue, Media, Notes, Utterance
from compeer.errors import InputError
from compeer.models import Failure, Generation, Request, Sampling, ask
from compeer.ser import screen
from compeer.ser.asking import AnswerFault, prompt
from compeer.ser.masking import is_machine_phrase, is_mojibake, is_other_language, mask_dialogue, mask_text
from compeer.ser.screen import (
    KINDS,
    KeptDialogue,
    ScreenSettings,
    ScreenVerdict,
    read_verdict,
    screen_dialogue,
    screen_stage,
    verdict_grammar,
    verdict_stage,
)
from tests.support.scripted_model import ScriptedModel

REAL = Path(__file__).parents[3] / "shared" / "data"
SETTINGS = ScreenSettings()
TALK = (
    "My landlord wants me out by the end of the month.",
    "That is very little time. What did he say exactly?",
    "He said his son needs the flat and that I should be glad about the notice.",
    "Glad is a strange word for it. How are you holding up?",
)


def dialogue(*texts: str, language: str = "en", first: str = "seeker", **more: Any) -> Dialogue:
    """A dialogue in which the two take turns."""
    speakers = ["seeker", "supporter"] if first == "seeker" else ["supporter", "seeker"]
    said = [Utterance(speaker=speakers[index % 2], text=text) for index, text in enumerate(texts)]  # type: ignore[arg-type]
    return Dialogue(**{"id": "a", "language": language, "source": "test", "utterances": tuple(said), **more})


def kept(one: Dialogue, settings: ScreenSettings = SETTINGS) -> KeptDialogue:
    found = screen_dialogue(one, settings)
    assert isinstance(found, KeptDialogue), found
    return found


def reasons(one: Dialogue, settings: ScreenSettings = SETTINGS) -> tuple[str, ...]:
    found = screen_dialogue(one, settings)
    return tuple(found) if isinstance(found, list) else ()


# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_plain_dialogue_goes_on_as_it_is() -> None:
    assert kept(dialogue(*TALK)).dialogue == dialogue(*TALK)


def test_a_language_that_is_not_wanted_is_dropped() -> None:
    wanted = ScreenSettings(languages=("zh", "de"))
    assert reasons(dialogue(*TALK), wanted) == ("language not wanted",)
    assert reasons(dialogue(*TALK), ScreenSettings(languages=("en",))) == ()


def test_what_is_no_dialogue_is_dropped() -> None:
    one = Utterance(speaker="seeker", text="Is anybody there at all?")
    assert reasons(Dialogue(id="a", language="en", source="test", utterances=(one, one))) == ("one speaker",)
    assert reasons(dialogue(*TALK[:2])) == ("too few rounds",)
    assert reasons(dialogue(*TALK), ScreenSettings(rounds=3)) == ("too few rounds",)
    assert reasons(dialogue(TALK[0] * 9, "Yes.", TALK[2] * 9, "I see.")) == ("monologue",)
    assert reasons(dialogue("Hm.", TALK[1], "Yes.", TALK[3])) == ()


def test_few_empty_utterances_go_and_many_take_the_dialogue_with_them() -> None:
    found = kept(dialogue(*TALK, "", "Are you still there?", "Yes, sorry."))
    assert [u.text for u in found.dialogue.utterances] == [*TALK, "Are you still there?", "Yes, sorry."]
    assert found.mended == {"empty utterances": 1}
    assert reasons(dialogue(*TALK, "\u200b", " \n", "")) == ("empty utterances",)
    assert reasons(dialogue("", "", "")) == ("empty utterances",)
    assert reasons(dialogue(*TALK, "\u200b", " \n", ""), ScreenSettings(empty=0.5)) == ()


def test_a_picture_without_words_is_not_empty() -> None:
    picture = Utterance(speaker="seeker", text="", media=(Media(kind="image", path="cat.png"),))
    one = dialogue(*TALK)
    found = kept(one.model_copy(update={"utterances": (*one.utterances, picture)}))
    assert found.dialogue.utterances[-1] == picture


def test_a_message_sent_twice_is_kept_once() -> None:
    one = dialogue(*TALK)
    again = one.utterances[1].model_copy(update={"text": TALK[1].upper()})
    twice = one.model_copy(update={"utterances": (*one.utterances[:2], again, *one.utterances[2:])})
    found = kept(twice)
    assert found.dialogue == one
    assert found.mended == {"sent twice": 1}
    said = Utterance(speaker="seeker", text="yes")
    short = one.model_copy(update={"utterances": (*one.utterances, said, said)})
    assert kept(short).dialogue == short


def test_the_same_line_again_and_again_is_dropped() -> None:
    line = "I am sorry that you feel this way!"
    assert reasons(dialogue("One.", line, "Two.", line.lower(), "Three.", f" {line} ")) == ("repeated lines",)
    assert reasons(dialogue("One.", "Yes.", "Two.", "Yes.", "Three.", "Yes.", "Four.", "Why do you say so?")) == ()
    # the same words by the other speaker, or once more at the end of a long talk, are no loop
    assert reasons(dialogue(TALK[0], TALK[0], TALK[1], TALK[1])) == ()
    assert reasons(dialogue(*TALK, *TALK[:1], "Yes, you said so.")) == ()


BROKEN = [
    "Itâ€™s hard to sleep.",
    "We met at the cafÃ© again.",
    "Â£50 is all I have.",
    "So tired ðŸ˜ž",
    "I feel \ufffd\ufffd today",
    "lost\x00byte",
    "锟斤拷锟斤拷",
    "我烫烫烫烫",
    "浣犲ソ锛屾垜寰堥毦杩囥€",
    "ÄãºÃÎÒºÜÄÑ¹ý",
    "ÐŸÑ€Ð¸Ð²ÐµÑ‚",
]
WHOLE = [
    "I wait in São Paulo, naïve as ever — “fine”, she said… ½ an hour, 30 °C, £50 or €60.",
    "«CAFÉ» stood on the door. À bientôt! NÃO, ÄÖÜ, Ünlü, smörgåsbord",
    "Ääääh, nein. éééé 😞🙏🏽 ❤️",
    "我很难过，不知道怎么办……“没事”，他说。",
    "Привет, как дела? Ёлка.",
    "two\tthree\nfour\r\n",
    "烫伤了手，很疼。",
]


@pytest.mark.parametrize("text", BROKEN)
def test_broken_encoding_is_seen(text: str) -> None:
    assert is_mojibake(text)
    assert reasons(dialogue(*TALK, text)) == ("broken encoding",)


@pytest.mark.parametrize("text", WHOLE)
def test_other_scripts_are_not_broken(text: str) -> None:
    assert not is_mojibake(text)


@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=2, max_size=8))
def test_utf8_read_as_latin1_is_seen_whatever_it_was(text: str) -> None:
    assert is_mojibake(text.encode().decode("latin-1"))


@pytest.mark.parametrize("text", ["Fine. Supporter: Tell me more.", "Supporter: Oh?", "没事。支持者：说说看。"])
def test_both_speakers_in_one_message_are_seen(text: str) -> None:
    assert reasons(dialogue(*TALK, text)) == ("both speakers in one message",)
    # the writer's own label, or the word inside a sentence, is harmless
    assert reasons(dialogue(*TALK[:3], text)) == ()
    assert reasons(dialogue(*TALK, "I need a good Therapist: where? 我想找心理咨询师：怎么找？")) == ()
    assert reasons(dialogue(*TALK[:3], text.replace("Supporter", "Seeker").replace("支持者", "求助者"))) != ()


MACHINE = [
    "As an AI language model, I cannot feel that.",
    "I'm just a computer program, but I can listen.",
    "I am an AI, so I have no family.",
    "I’m an AI assistant and here to help.",
    "As a large language model I have no opinion.",
    "I don't have personal experiences or emotions, but I understand.",
    "I'm really sorry, but I'm unable to provide the help that you need.",
    "Dear [your name], thank you for writing.",
    "作为一个人工智能，我没有感情。",
    "作为AI助手，我建议你休息。",
    "我只是一个语言模型，不能代替医生。",
]
PERSON = [
    "Oi! I am NOT a bot",
    "Are you a real person or a computer program?",
    "I'm an AI engineer, so I know those deadlines.",
    "I find chatbots and AI interesting.",
    "Sometimes I feel like a robot at work.",
    "If I'm a chatbot then you are one too, ha.",
    "I don't have feelings for him and that is fine.",
    "My name is [name], how can I help?",
    "I said I'm unable to provide for them.",
    "我不是机器人，放心。",
    "我是程序员，也常常加班。",
    "作为一个人工智能专业的学生，我懂这种压力。",
    "我觉得自己像一个机器人。",
]


@pytest.mark.parametrize("text", MACHINE)
def test_a_supporter_that_calls_itself_a_machine_is_dropped(text: str) -> None:
    assert is_machine_phrase(text)
    assert reasons(dialogue(*TALK[:3], text)) == ("machine phrases",)
    # a seeker may say what they like about machines
    assert reasons(dialogue(*TALK, f"It wrote: {text}")) == ()


@pytest.mark.parametrize("text", PERSON)
def test_a_person_may_speak_of_machines(text: str) -> None:
    assert not is_machine_phrase(text)


FOREIGN = {
    "fr": "Je ne sais pas quoi faire, mon mari est parti hier soir et les enfants ne dorment plus depuis. On a essayé "
    "de leur parler, mais rien ne marche et je suis très fatiguée de tout ça, tu comprends ce que je veux dire ?",
    "de": "Ich weiß nicht, was ich machen soll, mein Mann ist gestern gegangen und die Kinder schlafen nicht mehr. Wir "
    "haben versucht, mit ihnen zu reden, aber nichts hilft und ich bin so müde von allem, verstehst du das?",
    "nl": "Ik weet niet wat ik moet doen, mijn man is gisteren weggegaan en de kinderen slapen niet meer. We hebben "
    "geprobeerd met hen te praten maar niets helpt en ik ben zo moe van alles, begrijp je wat ik bedoel?",
    "es": "No sé qué hacer, mi marido se fue ayer y los niños ya no duermen. Hemos intentado hablar con ellos, pero "
    "nada funciona y estoy muy cansada de todo esto, no sé si entiendes lo que quiero decir con eso.",
    "zh": "我不知道该怎么办，我丈夫昨天走了，孩子们再也睡不着了。",
    "ru": "Я не знаю, что делать, муж вчера ушёл, а дети больше не спят ночью совсем.",
}


@pytest.mark.parametrize("language", FOREIGN)
def test_another_language_than_declared_is_seen(language: str) -> None:
    assert is_other_language([FOREIGN[language]], "en")
    assert not is_other_language([FOREIGN[language]], language)


def test_gibberish_is_not_english() -> None:
    assert is_other_language(["asdf jkl qwe rty uio"] * 10, "en")


@pytest.mark.parametrize(
    "texts",
    [
        ["hi", "hello", "sad", "why?", "exam tmrw", "oh no", "yeah", "lol", "thx", "bye"],
        ["aye so im sat here in ma car greetin ma eyes oot, whit can ye dae", "ach hen, thats rotten. whit happened?"]
        * 2,
        ["omg 😞😞😞", "...", "?", "no1 txts me bk & i h8 it", "that sounds lonely, how long has it been like this?"]
        * 3,
        ["12 34 56 78 90"] * 20,
        [],
    ],
)
def test_short_or_slangy_chats_pass_as_english(texts: list[str]) -> None:
    assert not is_other_language(texts, "en")


def test_a_language_without_a_rule_passes() -> None:
    assert not is_other_language([FOREIGN["ru"]], "mn")
    assert is_other_language([" ".join(TALK)], "zh")


# --- masking ----------------------------------------------------------------------------------------------------------

PERSONAL = {
    "email": ["write to jo.lee+x@mail.example.org please", "邮箱是abc123@example.com谢谢"],
    "phone": [
        "call 415-555-2671",
        "(415) 555-2671 is mine",
        "+1 415 555 2671",
        "+44 7700 900123",
        "0044 no, 07700 900123",
        "+49 (0) 30 12345678",
        "my number is 4155552671.",
        "打我电话13812345678吧",
        "138 1234 5678",
        "call me at 555-2671",
        "手机号：+86 138-1234-5678",
        "06 12 34 56 78",
    ],
    "url": ["see https://example.com/me?x=1.", "www.example.org/a", "it's on facebook.com/jo.lee"],
    "ip": ["from 192.168.1.20 again", "2001:0db8:85a3:0000:0000:8a2e:0370:7334"],
    "card": ["4111 1111 1111 1111", "5500005555555559", "3714 496353 98431"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "id": ["123-45-6789", "my ssn is 123456789", "身份证11010519491231002X"],
    "handle": ["I post as @jo_lee88", "加我@xiao_ming"],
    "address": [
        "I live at 12 North Elm Street, Apt 4",
        "221B Baker Street",
        "Springfield, IL 62704",
        "我家住在中山路123号5栋302室",
    ],
    "account": ["我的QQ是123456789", "加微信abc_12345", "my wechat id is jo_lee88", "QQ:1234567"],
    "name": [
        "my name is Jo Lee",
        "My name's jolanda",
        "I'm called Tariq",
        "我叫王小明，今年20岁",
        "我叫小芳。",
        "叫我小李就行",
    ],
}
HARMLESS = [
    "call 988 or 911, or 116 123, or text HOME to 741741",
    "1-800-273-8255 is free, so is 0800 1111, 1 (888) 555-0100 and 400-161-9995",
    "拨打12320或者12355，紧急情况打120",
    "北京的热线是010-82951332",
    "for 2 years, since 2019, from 2015-2019 and 2020 2021",
    "$1,200 a month, €4155552671, 7000-8000 a month, 4155552671元",
    "on 2020-12-31, 31.12.2020, 12/31/2020 at 10:30-11:30 or 10.30-11.30",
    "we lost 3-2 and 105-99, 99.9996% sure, version 1.2.3, 5/10",
    "I am 25, 1m80, 70 kg, 100-200 hours, 20 hour drive, 10,000,000 people, 123456",
    "16 GB, B12, 3 km down the road, a 2 Way street, Catch 22",
    "3号脚受伤，4号看医生，坐10号线，8路车，花了13800块",
    "I'm on indeed.com and google.com, and/or at home",
    "I am@home, it's 5 @ 3 dollars, @home",
    "用微信聊天，QQ密码，微信message，加了我微信。wechat is amazing",
    "my name is not on the list, they call me crazy, call me back tomorrow",
    "I'm Catholic. I'm OK. I'm British, and I'm So tired. Hi there, How are you?",
    "我叫他起床，我叫停了几次，今天他来找我叫我帮忙，叫我老师吧。我叫车了。",
    "12:30:45 and 1:2 and ::",
    "a share of 0.4155552671 or 4155552671.5",
    "1111 1111 1111 1111, 0000000000",
]


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PERSONAL.items() for text in texts])
def test_personal_data_is_masked(kind: str, text: str) -> None:
    found, counts = mask_dialogue(dialogue(text, *TALK))
    masked = found.utterances[0].text
    assert f"[{kind}]" in masked
    assert set(counts) == {kind}
    assert mask_dialogue(found) == (found, {})


def test_only_the_datum_is_masked() -> None:
    assert mask_text("call 415-555-2671, ok?")[0] == "call [phone], ok?"
    assert mask_text("see https://example.com/me?x=1.")[0] == "see [url]."
    assert mask_text("我的QQ是123456789，加我")[0] == "我的QQ是[account]，加我"
    assert mask_text("我家住在中山路123号5栋302室，很远")[0] == "我家住在[address]，很远"
    assert mask_text("my ssn is 123-45-6789 and I am 40")[0] == "my ssn is [id] and I am 40"
    assert mask_text("a@b.example.com b@b.example.com") == ("[email] [email]", {"email": 2})


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_personal_data_stays(text: str) -> None:
    assert mask_dialogue(dialogue(text, *TALK))[0].utterances[0].text == text


@pytest.mark.parametrize(
    "text", ["4111 1111 1111 1112", "GB82WEST12345698765431", "身份证110105194912310021", "300.1.1.1"]
)
def test_a_wrong_checksum_is_no_number_of_that_kind(text: str) -> None:
    assert mask_text(text) == (text, {})


@given(st.integers(0, 999_999), st.sampled_from(["{} years", "in {}", "${}", "{}%", "{} people", "{}元", "score {}"]))
def test_short_numbers_stay(number: int, form: str) -> None:
    text = form.format(number)
    assert mask_text(text) == (text, {})


@given(
    st.dates(), st.times(), st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%y", "%d %b %Y", "%Y%m%d", "%Y年%m月%d日"])
)
def test_dates_and_times_stay(date: Any, time: Any, form: str) -> None:
    text = f"on {date.strftime(form)} at {time:%H:%M:%S} or {time:%H.%M}"
    assert mask_text(text) == (text, {})


@given(st.integers(0, 9_999_999_999), st.sampled_from("$€£¥"))
def test_money_stays(amount: int, sign: str) -> None:
    for text in (f"{sign}{amount}", f"{sign}{amount:,}", f"{sign} {amount:,}.50"):
        assert mask_text(text) == (text, {})


digits = st.text("0123456789", min_size=8, max_size=8)


@given(
    digits, st.sampled_from("3456789"), st.sampled_from(["", "+86 ", "电话"]), st.sampled_from(["，", " ", "。", ""])
)
def test_any_chinese_mobile_number_is_masked(rest: str, second: str, before: str, after: str) -> None:
    number = f"1{second}9{rest}"
    masked, counts = mask_text(f"{before}{number}{after}")
    assert rest not in masked
    assert counts.total() == 1


@given(st.integers(200, 999), st.integers(200, 999), st.integers(1, 9999), st.sampled_from("-. "))
def test_any_american_number_is_masked_unless_it_is_toll_free(area: int, exchange: int, line: int, sign: str) -> None:
    text = f"{area}{sign}{exchange}{sign}{line:04d}"
    free = area in (800, 888, 877, 866, 855, 844, 833)
    assert mask_text(text)[0] == (text if free or len(set(text) - {sign}) < 3 or area == 400 else "[phone]")


pieces = st.sampled_from([*HARMLESS, *(text for texts in PERSONAL.values() for text in texts)])
scraps = st.one_of(pieces, st.text(max_size=6), st.text("0123456789 -.@/", max_size=12))


@given(st.lists(scraps, max_size=5).map(" ".join))
def test_masking_a_text_again_changes_nothing(text: str) -> None:
    once, counts = mask_text(text)
    assert mask_text(once) == (once, {})
    assert all(once.count(f"[{kind}]") == count for kind, count in counts.items())


def test_a_name_is_masked_wherever_it_comes_again() -> None:
    one = dialogue("Hi, I'm Noor.", "Hello Noor, this is Kester. What is it?", "It's noor's boss.", "Noor, tell me.")
    texts = [u.text for u in mask_dialogue(one)[0].utterances]
    assert texts == [
        "Hi, I'm [name].",
        "Hello [name], this is [name]. What is it?",
        "It's [name]'s boss.",
        "[name], tell me.",
    ]
    chinese = dialogue("我叫王小明，很难过。", "王小明你好。", language="zh")
    assert [u.text for u in mask_dialogue(chinese)[0].utterances] == ["我叫[name]，很难过。", "[name]你好。"]


def test_people_present_themselves_at_the_opening() -> None:
    assert mask_dialogue(dialogue("I'm Noor.", *TALK))[1] == {"name": 1}
    assert mask_dialogue(dialogue(*TALK, *TALK, "I'm Presbyterian."))[1] == {}


def test_an_answer_to_the_question_for_a_name_is_a_name() -> None:
    one = dialogue("What's your name?", "delphina", "So, Delphina, what brings you here?", first="supporter")
    assert [u.text for u in mask_dialogue(one)[0].utterances][1:] == ["[name]", "So, [name], what brings you here?"]
    other = dialogue("What's your name?", "why do you ask?", "Just so.", first="supporter")
    assert mask_dialogue(other)[0] == other


def test_a_name_that_is_also_a_word_leaves_the_word() -> None:
    one = dialogue("My name is Hope.", "Hi Hope. I hope we can talk. Hope is a good name.")
    assert [u.text for u in mask_dialogue(one)[0].utterances] == [
        "My name is [name].",
        "Hi [name]. I hope we can talk. Hope is a good name.",
    ]


def test_all_texts_of_a_dialogue_are_masked() -> None:
    mail = "jo@example.com"
    said = Utterance(
        speaker="supporter",
        text="Hm.",
        notes=Notes(history=f"Wrote {mail}.", strategy="Wait."),
        extra={"raw": [mail, {"deep": f"to {mail}"}], "feedback": 3, mail: True},
    )
    one = dialogue("I'm Noor.", *TALK, situation=f"Noor, {mail}", extra={"survey": f"Noor: {mail}", "score": 1.5})
    one = one.model_copy(update={"utterances": (*one.utterances, said)})
    found, counts = mask_dialogue(one)
    last = found.utterances[-1]
    assert last.notes == Notes(history="Wrote [email].", strategy="Wait.")
    assert last.extra == {"raw": ["[email]", {"deep": "to [email]"}], "feedback": 3, mail: True}
    assert found.situation == "[name], [email]"
    assert found.extra == {"survey": "[name]: [email]", "score": 1.5}
    assert counts == {"email": 5, "name": 3}


# --- the stage --------------------------------------------------------------------------------------------------------


def corpus(path: Path, count: int = 40, prefix: str = "d") -> str:
    """A file of dialogues: some good, some bad, some with something to mask."""
    odd = [(*TALK,), TALK[:2], (*TALK, "Itâ€™s hard."), (*TALK[:3], "I'm Noor. Mail me: n@example.com")]
    write_jsonlines((dialogue(*odd[i % 4], id=f"{prefix}{i}") for i in range(count)), path)
    return str(path)


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "DIALOGUES_A_UNIT", 3)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder / "screened.jsonl"


def test_the_stage_writes_what_is_kept_and_says_what_is_not(tmp_path: Path) -> None:
    out = make(tmp_path / "out")
    manifest = screen_stage([corpus(tmp_path / "c.jsonl")], out, SETTINGS)
    assert manifest["counts"]["screen"] == {"read": 40, "kept": 20, "dropped": 20}
    assert manifest["counts"]["dropped"] == {"too few rounds": 10, "broken encoding": 10}
    assert manifest["counts"]["masked"] == {"name": 10, "email": 10}
    found = list(read_corpus(out))
    assert [one.id for one in found] == [f"d{i}" for i in range(40) if i % 4 in (0, 3)]
    assert found[1].utterances[-1].text == "I'm [name]. Mail me: [email]"
    dropped = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text("utf-8").splitlines()]
    assert dropped[0] == {"dialogue": "d1", "source": "test", "reasons": ["too few rounds"]}
    assert len(dropped) == 20
    assert TALK[0] not in (tmp_path / "out" / "dropped.jsonl").read_text("utf-8")


def test_a_finished_stage_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, source = make(tmp_path / "out"), corpus(tmp_path / "c.jsonl")
    first = screen_stage([source], out, SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(screen, "_screen", lambda *_: pytest.fail("done again"))
        assert screen_stage([source], out, SETTINGS) == first
    assert screen_stage([source], out, ScreenSettings(rounds=1))["counts"]["screen"]["kept"] == 30
    corpus(tmp_path / "c.jsonl", count=4)
    assert screen_stage([source], out, SETTINGS)["counts"]["screen"]["read"] == 4


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("units", [1, 5, 13])
def test_a_killed_stage_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    source = corpus(tmp_path / "c.jsonl")
    whole = make(tmp_path / "whole")
    screen_stage([source], whole, SETTINGS)
    out = make(tmp_path / "killed")
    done = 0

    def killed(settings: ScreenSettings, block: Any) -> Any:
        nonlocal done
        if done == units:
            raise KeyboardInterrupt
        done += 1
        return work(settings, block)

    work = screen._screen
    with monkeypatch.context() as patch:
        patch.setattr(screen, "_screen", killed)
        with pytest.raises(KeyboardInterrupt):
            screen_stage([source], out, SETTINGS)
        assert not out.exists()
    screen_stage([source], out, SETTINGS)
    assert outputs(tmp_path / "killed") == outputs(tmp_path / "whole")


@pytest.mark.usefixtures("small_units")
def test_more_workers_give_the_same_bytes(tmp_path: Path) -> None:
    source = corpus(tmp_path / "c.jsonl")
    screen_stage([source], make(tmp_path / "one"), SETTINGS)
    screen_stage([source], make(tmp_path / "two"), SETTINGS, workers=2)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "two")


def test_ids_that_clash_between_corpora_get_a_prefix(tmp_path: Path) -> None:
    one, two = corpus(tmp_path / "one.jsonl", 8), corpus(tmp_path / "two.jsonl", 8)
    other = corpus(tmp_path / "three.jsonl", 4, prefix="2-d")
    screen_stage([other, one, two], make(tmp_path / "out"), SETTINGS)
    ids = [found.id for found in read_corpus(tmp_path / "out" / "screened.jsonl")]
    assert len(ids) == len(set(ids)) == 10
    assert ids == ["2-d0", "2-d3", "d0", "d3", "d4", "d7", "3-d0", "3-d3", "3-d4", "3-d7"]


def test_a_folder_of_corpora_counts_with_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "corpora"
    folder.mkdir()
    corpus(folder / "a.jsonl", 4)
    corpus(folder / "b.jsonl", 4, prefix="e")
    out = make(tmp_path / "out")
    assert screen_stage([str(folder)], out, SETTINGS)["counts"]["screen"]["read"] == 8
    corpus(folder / "b.jsonl", 5, prefix="e")
    assert screen_stage([str(folder)], out, SETTINGS)["counts"]["screen"]["read"] == 9


def test_the_output_may_not_lie_among_the_corpora(tmp_path: Path) -> None:
    source = corpus(tmp_path / "c.jsonl")
    for out in (tmp_path / "screened.jsonl", Path(source)):
        with pytest.raises(InputError, match="into a corpus"):
            screen_stage([str(tmp_path) if out.name != "c.jsonl" else source], out, SETTINGS)
    with pytest.raises(InputError, match="no such corpus"):
        screen_stage([str(tmp_path / "no.jsonl")], tmp_path / "x.jsonl", SETTINGS)


@pytest.mark.usefixtures("small_units")
def test_bad_dialogues_are_counted_where_they_are_skipped(tmp_path: Path) -> None:
    source = tmp_path / "c.jsonl"
    corpus(source, 4)
    lines = source.read_text("utf-8").splitlines()
    bad = [line.replace('"seeker"', '"nobody"') for line in lines]
    source.write_text("\n".join([lines[0], bad[0], bad[1], *lines[1:], bad[2], "{"]), "utf-8")
    with pytest.raises(InputError, match="line 2"):
        screen_stage([str(source)], make(tmp_path / "strict"), SETTINGS)
    manifest = screen_stage([str(source)], make(tmp_path / "out"), SETTINGS, skip_bad=True)
    assert manifest["counts"]["screen"]["read"] == 4
    assert sum(manifest["counts"]["unreadable"].values()) == 4


@pytest.mark.skipif(not REAL.is_dir(), reason="the public corpora are not at hand")
def test_real_dialogues_are_seldom_dropped(tmp_path: Path) -> None:
    esconv = screen_stage([str(REAL / "esconv" / "valid.jsonl")], make(tmp_path / "one"), SETTINGS)["counts"]
    assert esconv["screen"] == {"read": 195, "kept": 195, "dropped": 0}
    assert 5 < esconv["masked"]["name"] < 40
    failed = screen_stage([str(REAL / "esconv" / "FailedESConv.json")], make(tmp_path / "two"), SETTINGS)["counts"]
    assert failed["dropped"] == {"too few rounds": 8, "not the declared language": 2}


def test_nothing_of_the_sample_corpus_is_dropped_or_masked(tmp_path: Path) -> None:
    counts = screen_stage(["sample"], make(tmp_path / "out"), SETTINGS)["counts"]
    assert counts["screen"] == {"read": 96, "kept": 96, "dropped": 0}
    assert counts["masked"] == counts["mended"] == {}


# --- a model's verdict ------------------------------------------------------------------------------------------------

GOOD = '{"reason": "They talk.", "kind": "coherent", "keep": true}'
BAD = '{"reason": "Nonsense.", "kind": "incoherent", "keep": false}'


@pytest.mark.parametrize("text", [GOOD, f"\n{GOOD}\n", f"```json\n{GOOD}\n```", f"```\n{GOOD}```"])
def test_a_verdict_is_read(text: str) -> None:
    assert read_verdict(0, Generation(text)) == ScreenVerdict(reason="They talk.", kind="coherent", keep=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not one JSON object"),
        ("keep", "not one JSON object"),
        (f"Here it is: {GOOD}", "not one JSON object"),
        (f"[{GOOD}]", "not one JSON object"),
        (GOOD + GOOD, "not one JSON object"),
        (GOOD.replace("true", '"true"'), "keep"),
        (GOOD.replace("true", "1"), "keep"),
        (GOOD.replace("coherent", "fine"), "kind"),
        (GOOD.replace("They talk.", ""), "reason"),
        (GOOD.replace("}", ', "more": 1}'), "more"),
        ('{"keep": true}', "reason"),
        (GOOD.replace("true", "false"), "contradict"),
        (BAD.replace("false", "true"), "contradict"),
        ("[" * 100_000, "not one JSON object"),
    ],
)
def test_anything_else_is_a_complaint(text: str, complaint: str) -> None:
    found = read_verdict(0, Generation(text))
    assert isinstance(found, AnswerFault)
    assert complaint in found.text


@given(st.text(max_size=40))
def test_reading_never_raises(text: str) -> None:
    assert isinstance(read_verdict(0, Generation(text)), AnswerFault)


def screened(path: Path, count: int = 6) -> Path:
    write_jsonlines((dialogue(*TALK, f"Number {i}. {{braces}}", id=f"d{i}") for i in range(count)), path)
    return path


def number(request: Request) -> int:
    return int(str(request.messages[0]["content"]).split("Number ")[1].split(".")[0])


def run_verdicts(source: Path, out: Path, model: Any, **more: Any) -> dict[str, Any]:
    return asyncio.run(verdict_stage(source, out, model, **more))


def test_the_model_s_verdict_decides(tmp_path: Path) -> None:
    out = make(tmp_path / "out")
    model = ScriptedModel(lambda request: BAD if number(request) % 3 == 0 else GOOD, batch_size=2)
    manifest = run_verdicts(screened(tmp_path / "in.jsonl"), out, model)
    assert manifest["counts"]["screen"] == {"read": 6, "kept": 4, "dropped": 2}
    assert manifest["counts"]["dropped"] == {"incoherent": 2}
    assert [one.id for one in read_corpus(out)] == ["d1", "d2", "d4", "d5"]
    verdicts = [json.loads(line) for line in (tmp_path / "out" / "verdicts.jsonl").read_text("utf-8").splitlines()]
    assert verdicts[0] == {"dialogue": "d0", "kind": "incoherent", "keep": False, "reason": "Nonsense.", "tries": 1}
    asked = str(model.requests[0].messages[0]["content"])
    assert TALK[0] in asked
    assert "{braces}" in asked
    assert "{{" not in asked.replace("{{braces}}", "")
    assert len({request.seed for request in model.requests}) == 6


def test_an_unread_verdict_keeps_the_dialogue_and_is_counted(tmp_path: Path) -> None:
    answers = ["hm", "hm", "hm", "hm", GOOD]
    model = ScriptedModel(answers)
    manifest = run_verdicts(screened(tmp_path / "in.jsonl", 2), make(tmp_path / "out"), model, retries=2)
    assert manifest["counts"]["verdicts"] == {"verdict unread": 1, "coherent": 1}
    assert manifest["counts"]["screen"] == {"read": 2, "kept": 2}
    assert "not one JSON object" in str(model.requests[1].messages[-1]["content"])
    first = json.loads((tmp_path / "out" / "verdicts.jsonl").read_text("utf-8").splitlines()[0])
    assert first["text"] == "hm"
    assert first["tries"] == 3


class Failing(ScriptedModel):
    """Fails for one dialogue as it is told to."""

    failure: Failure | None = None

    def _answer(self, request: Request, sampling: Sampling) -> Any:
        return self.failure if self.failure and number(request) == 1 else super()._answer(request, sampling)


def test_a_failure_leaves_the_stage_unfinished_and_it_is_tried_again(tmp_path: Path) -> None:
    source, out = screened(tmp_path / "in.jsonl"), make(tmp_path / "out")
    model = Failing(lambda _: GOOD)
    model.failure = Failure("timeout", "too slow")
    manifest = run_verdicts(source, out, model)
    assert manifest["failed"] == 1
    assert manifest["counts"]["failed"] == {"timeout": 1}
    assert [one.id for one in read_corpus(out)] == ["d0", "d2", "d3", "d4", "d5"]
    model.failure = None
    manifest = run_verdicts(source, out, model)
    assert manifest["failed"] == 0
    assert len(list(read_corpus(out))) == 6
    asked = len(model.requests)
    assert run_verdicts(source, out, model) == manifest
    assert len(model.requests) == asked


def test_a_dialogue_that_cannot_be_asked_about_is_kept(tmp_path: Path) -> None:
    model = Failing(lambda _: BAD)
    model.failure = Failure("refused", "too long")
    manifest = run_verdicts(screened(tmp_path / "in.jsonl"), make(tmp_path / "out"), model)
    assert manifest["counts"]["verdicts"] == {"incoherent": 5, "not asked": 1}
    assert [one.id for one in read_corpus(tmp_path / "out" / "screened.jsonl")] == ["d1"]
    assert manifest["failed"] == 0


def test_killed_verdicts_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    source = screened(tmp_path / "in.jsonl", 9)

    def answer(request: Request) -> str:
        return BAD if number(request) % 4 == 0 else GOOD

    run_verdicts(source, make(tmp_path / "whole"), ScriptedModel(answer, batch_size=2, at_once=2))
    asked = 0

    def dying(request: Request) -> str:
        nonlocal asked
        asked += 1
        if asked > 5:
            raise RuntimeError("killed")
        return answer(request)

    out = make(tmp_path / "killed")
    with pytest.raises(RuntimeError):
        run_verdicts(source, out, ScriptedModel(dying, batch_size=2, at_once=2))
    assert (tmp_path / "killed" / "screened.jsonl.unfinished").stat().st_size > 0
    again = ScriptedModel(answer, batch_size=2, at_once=2)
    run_verdicts(source, out, again)
    assert len(again.requests) < 9
    assert outputs(tmp_path / "killed") == outputs(tmp_path / "whole")


def test_an_answer_under_the_grammar_is_read(tiny_model: Path) -> None:
    import torch

    from compeer.models.local import LocalModel

    model = LocalModel(tiny_model, device=torch.device("cpu"))
    grammar = verdict_grammar(reason_characters=40)
    requests = [Request(({"role": "user", "content": "hello"},), seed=seed, grammar=grammar) for seed in range(6)]
    found = ask(model, requests, Sampling(temperature=1.0, max_tokens=200))
    read = [read_verdict(0, one) for one in found if not isinstance(one, Failure) and not one.cut_off]
    assert len(read) >= 4
    assert all(isinstance(one, ScreenVerdict) for one in read), found
    forced = '{"reason": "Good.", "kind": "not a'
    (one,) = ask(model, [Request(requests[0].messages, prefix=forced, grammar=grammar)], Sampling(max_tokens=60))
    assert not isinstance(one, Failure)
    assert read_verdict(0, one) == ScreenVerdict(reason="Good.", kind="not a dialogue", keep=False)


def test_the_prompt_names_every_kind() -> None:
    assert all(f"- {kind}:" in prompt("screen") for kind in KINDS)


def test_the_embedded_model_is_not_asked_for_verdicts(tmp_path: Path) -> None:
    model = ScriptedModel([], name="SmolLM2-135M-Instruct")
    with pytest.raises(InputError, match="too small"):
        asyncio.run(verdict_stage(tmp_path / "in.jsonl", tmp_path / "out.jsonl", model))
    assert not model.requests
