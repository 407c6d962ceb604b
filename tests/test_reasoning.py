"""The turn's text form: what is rendered reads back, and whatever a model writes is read or named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.reasoning import (
    EMOTIONS,
    PARTS,
    SENTIMENTS,
    STAGES,
    STRATEGIES,
    EmotionStep,
    HistoryStep,
    StrategyStep,
    SupportTurn,
    parse_turn,
    render_turn,
)
from tests.support.growth import grows_with_length

TURN = SupportTurn(
    history=HistoryStep(text="New here, has not said what is wrong.", stage="exploration"),
    emotion=EmotionStep(text="Tense about opening up.", sentiment="negative", emotion="anxiety", intensity=3),
    strategy=StrategyStep(text="A plain welcome first.", strategy="Others"),
    response="No form to fill in.\nWhat brings you tonight?",
)
CANONICAL = render_turn(TURN)


def a_turn() -> st.SearchStrategy[SupportTurn]:
    alphabet = st.one_of(st.characters(codec="utf-8"), st.sampled_from("[]【】()：:\\\n#*<>/`~ "))
    words = st.lists(
        st.one_of(
            st.text(alphabet), st.sampled_from(["History:", "\nEmotion: x [a]", "</response>", "\\", "```", "**"])
        )
    ).map("".join)
    text = words.filter(lambda t: _accepted(HistoryStep, text=t, stage="action"))
    return st.builds(
        SupportTurn,
        history=st.builds(HistoryStep, text=text, stage=st.sampled_from(STAGES)),
        emotion=st.builds(
            EmotionStep,
            text=text,
            sentiment=st.sampled_from(SENTIMENTS),
            emotion=st.sampled_from(EMOTIONS),
            intensity=st.integers(1, 5),
        ),
        strategy=st.builds(StrategyStep, text=text, strategy=st.sampled_from(STRATEGIES)),
        response=words.filter(lambda t: _accepted(SupportTurn, **{**dict(TURN), "response": t})),
    )


def _accepted(kind: type, **fields: object) -> bool:
    try:
        kind(**fields)
    except ValueError:
        return False
    return True


@given(a_turn())
def test_render_then_parse_is_the_identity(turn: SupportTurn) -> None:
    parsed = parse_turn(render_turn(turn))
    assert parsed.turn == turn
    assert not parsed.missing
    assert not parsed.problems


@given(st.text(), st.booleans())
def test_any_text_parses(text: str, cut_off: bool) -> None:
    parsed = parse_turn(text, cut_off=cut_off)
    assert set(parsed.parts) | set(parsed.missing) == set(PARTS)
    assert (parsed.turn is None) == bool(parsed.missing)


@given(st.lists(st.sampled_from([*CANONICAL.split("\n"), "[", "]", "```", "History：", "oh well", "Response:"])))
def test_any_shuffle_of_lines_parses(lines: list[str]) -> None:
    parsed = parse_turn("\n".join(lines))
    assert set(parsed.parts) | set(parsed.missing) == set(PARTS)


def test_canonical_form_is_compact() -> None:
    assert CANONICAL == (
        "History: New here, has not said what is wrong. [exploration]\n"
        "Emotion: Tense about opening up. [negative, anxiety, 3]\n"
        "Strategy: A plain welcome first. [Others]\n"
        "Response: No form to fill in.\nWhat brings you tonight?"
    )


@pytest.mark.parametrize(
    "text",
    [
        "```\n" + CANONICAL + "\n```",
        "Sure! Here is my turn.\n\n" + CANONICAL,
        CANONICAL.replace("History:", "**History Analysis**:").replace("Emotion:", "2. Emotional state:"),
        CANONICAL.replace("History:", "### Step 1: History analysis\n").replace("Response:", "**Response:**"),
        CANONICAL.replace(": ", "：").replace("[", "【").replace("]", "】").replace(", ", "，", 2),
        CANONICAL.replace("History:", "历史分析：").replace("[exploration]", "【探索】").replace("Others", "其他"),
        CANONICAL.replace("[negative, anxiety, 3]", "[消极、焦虑、3]").replace("Response:", "回复："),
        CANONICAL.replace("[exploration]", "[exploration"),
        CANONICAL.replace("[Others]", "(others)."),
        CANONICAL.replace("History:", "<history>").replace("[exploration]", "[exploration]</history>"),
        CANONICAL.replace("anxiety, 3", "Anxiety, intensity: 3/5"),
    ],
)
def test_reads_what_models_write(text: str) -> None:
    turn = parse_turn(text).turn
    assert turn is not None, parse_turn(text)
    assert (turn.history.stage, turn.emotion.emotion, turn.emotion.intensity) == ("exploration", "anxiety", 3)
    assert turn.strategy.strategy == "Others"
    assert turn.response.endswith("What brings you tonight?")


def test_other_order_is_read_and_noted() -> None:
    lines = CANONICAL.replace("\nWhat", " What").split("\n")
    parsed = parse_turn("\n".join(reversed(lines)))
    assert parsed.turn is not None
    assert any("order" in problem for problem in parsed.problems)


@pytest.mark.parametrize(
    ("text", "part", "reason"),
    [
        ("", "response", "empty"),
        ("I am so sorry.", "history", "not there"),
        (CANONICAL.replace("anxiety", "melancholy"), "emotion", "'melancholy' is not one of"),
        (CANONICAL.replace("[Others]", "[Question, Others]"), "strategy", "is not one of"),
        (CANONICAL.replace(" [exploration]", ""), "history", "no decision"),
        (CANONICAL.replace(", 3]", ", 7]"), "emotion", "from 1 to 5"),
        (CANONICAL.replace("negative, ", ""), "emotion", "needs sentiment, emotion and intensity"),
        (CANONICAL.split("Response:")[0] + "Response:  \n ", "response", "empty"),
        (CANONICAL.split("Response:")[0], "response", "not there"),
        (CANONICAL + "\nStrategy: Now ask. [Question]", "strategy", "given 2 times, differently"),
        ("Strategy: [Question]", "strategy", "no text"),
    ],
)
def test_names_what_is_missing(text: str, part: str, reason: str) -> None:
    parsed = parse_turn(text)
    assert parsed.turn is None
    assert reason in parsed.missing[part]  # type: ignore[index]


def test_the_same_step_twice_is_noted_and_read() -> None:
    parsed = parse_turn(CANONICAL.replace("Response:", "Strategy: A plain welcome first. [Others]\nResponse:"))
    assert parsed.turn == TURN
    assert parsed.problems == ("strategy is given 2 times",)


def test_a_cut_off_output_lacks_its_last_part() -> None:
    parsed = parse_turn(CANONICAL, cut_off=True)
    assert "cut off" in parsed.missing["response"]
    assert set(parsed.parts) == {"history", "emotion", "strategy"}


@pytest.mark.parametrize("piece", ["[", "History: [", "x", "# ", "\\", "Response: a\n", "***", "1. ", "<history>", " "])
def test_a_megabyte_of_nonsense_is_read_quickly(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    assert parse_turn(text).turn is None
    assert grows_with_length(parse_turn, text)


def test_half_a_character_is_read_and_named() -> None:
    text = (
        "History: Oh \ud800 dear, so much. [exploration]\nEmotion: Tense. [negative, anxiety, 3]\n"
        "Strategy: Ask. [Question]\nResponse: Oh \ud800 dear."
    )
    parsed = parse_turn(text)
    assert parsed.turn is not None
    assert parsed.turn.response == "Oh ? dear."
    assert any("half characters" in problem for problem in parsed.problems)


def test_a_step_of_a_closing_tag_only_is_missing() -> None:
    assert parse_turn("History: </history> [exploration]").missing["history"] == "no text beside the decision"
