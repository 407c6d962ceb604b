"""The API on a real port: the official client, streams, what is told of a turn, judging, images."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from compeer.chat.app import create_app
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.history import read_state, state_text
from compeer.reasoning import SupportTurn, render_turn
from compeer.safety.detect import Detector
from compeer.safety.guard import Guard, GuardState
from tests.support.scripted_supporter import CRISIS_REPLY, PASSAGE, ScriptedJudge, ScriptedSupporter
from tests.support.scripted_writer import TURN as WRITTEN
from tests.support.scripted_writer import ScriptedWriter
from tests.support.served import FREE, Post, Served, events, http, poster, served, text

SECRET = "the-seekers-own-words-7291"


@pytest.fixture(scope="module")
def supporter() -> ScriptedSupporter:
    return ScriptedSupporter()


@pytest.fixture(scope="module")
def server(supporter: ScriptedSupporter) -> Iterator[Served]:
    with served(create_app(supporter, judge=ScriptedJudge(), settings=FREE)) as started:
        yield started


@pytest.fixture
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def post(server: Served) -> Post:
    return poster(server)


def own(chunks: list[dict[str, Any]], kind: str) -> list[Any]:
    return [chunk["compeer"][kind] for chunk in chunks if kind in chunk.get("compeer", {})]


# --- the official client --------------------------------------------------------------------------------------------


def test_the_official_client_gets_an_answer_in_one_piece(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted",
        messages=[
            {"role": "system", "content": "You are a pirate."},
            {"role": "user", "content": "I failed."},
            {"role": "assistant", "content": "What happened?"},
            {"role": "user", "content": "Twice now"},
        ],
        temperature=0.2,
        presence_penalty=0.5,
    )
    assert answer.choices[0].message.content == "Message 3 had 9 characters. What then?"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 160
    reasoning = answer.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert reasoning.splitlines()[1] == "Tense and unsure. [negative, anxiety, 2]"
    decided = answer.compeer  # type: ignore[attr-defined]
    assert decided["turn"]["strategy"]["strategy"] == "Question"
    assert decided["ignored"] == ["messages.0 (system)", "presence_penalty"]


def test_the_official_client_gets_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "I failed."}],
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"strategy": "Information", "persona": "steady"},
        )
    )
    words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert words == "Message 1 had 9 characters in a steady manner. What then?"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 60
    assert chunks[-2].compeer["turn"]["strategy"]["strategy"] == "Information"  # type: ignore[attr-defined]
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_official_client_lists_the_supporter(client: openai.OpenAI) -> None:
    (found,) = client.models.list().data
    assert (found.id, found.sees, found.language, found.guard) == ("scripted", False, "en", True)  # type: ignore[attr-defined]
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_the_official_client_understands_refusals(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "Hi"}], n=2)
    assert refused.value.param == "n"


# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_stream_tells_the_steps_as_they_are_made(post: Post) -> None:
    chunks = events(post(stream=True, stage="action", emotion="hope"))
    assert [step["part"] for step in own(chunks, "step")] == ["history", "emotion", "strategy"]
    assert own(chunks, "step")[1]["sentiment"] == "positive"
    assert text(chunks, "reasoning_content").splitlines()[0] == "Something weighs on them. [action]"
    indices = [number for number, chunk in enumerate(chunks) if "part" in chunk.get("compeer", {})]
    first_reply = next(n for n, chunk in enumerate(chunks) if chunk["choices"][0]["delta"].get("content"))
    assert max(indices) < first_reply
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert own(chunks, "risk") == ["none"]


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_can_be_left_out(post: Post, stream: bool) -> None:
    answer = post(stream=stream, show_reasoning=False, best_of=2)
    assert answer.status_code == 200
    assert "then?" in answer.text
    assert "weighs" not in answer.text
    assert "exploration" not in answer.text


@pytest.mark.parametrize("stream", [True, False])
def test_in_a_crisis_there_is_only_the_fixed_reply(post: Post, stream: bool) -> None:
    answer = post("crisis", stream=stream, best_of=4)
    reported = events(answer) if stream else [answer.json()]
    final = reported[-1]["compeer"]
    assert final["risk"] == "crisis"
    assert final["hide_reasoning"] is True
    assert final["turn"] is None
    assert (final["replaced"], final["passage"]) == ("crisis: suicide", CRISIS_REPLY)
    assert "reasoning_content" not in answer.text or not stream
    words = text(reported) if stream else reported[0]["choices"][0]["message"]["content"]
    assert words == CRISIS_REPLY


def test_the_state_comes_back_with_the_next_request(post: Post, supporter: ScriptedSupporter) -> None:
    state = post("crisis").json()["compeer"]["state"]
    post("And now?", state=state, conversation="case 12")
    assert supporter.requests[-1].state == GuardState(("suicide",), concern_shown=True)
    assert supporter.requests[-1].conversation == "case 12"


def test_without_a_state_the_guard_goes_by_what_was_said(client: openai.OpenAI, supporter: ScriptedSupporter) -> None:
    guarded = Guard(locale="GB").respond(["I am going to kill myself tonight."], lambda _: "")
    messages: list[Any] = [{"role": "user", "content": "crisis"}, {"role": "assistant", "content": guarded.reply}]
    client.chat.completions.create(model="scripted", messages=[*messages, {"role": "user", "content": "And now?"}])
    assert supporter.requests[-1].state == guarded.state == GuardState(("suicide",), concern_shown=True)


@pytest.mark.parametrize(
    "state", ["?", "e30=x", "bnVsbA==", "eyJhIjoxfQ==", "\U0001f642", state_text(GuardState())[:-7]]
)
def test_a_state_that_cannot_be_read_starts_anew_and_says_so(post: Post, state: str) -> None:
    answer = post(state=state).json()
    assert answer["choices"][0]["message"]["content"]
    assert any("state" in one for one in answer["compeer"]["ignored"])


def test_a_long_conversation_in_crisis_keeps_a_state_that_can_be_sent() -> None:
    state = GuardState(("medical emergency",) * 5_000, handed_over=True)
    assert len(state_text(state)) < 16_384
    again = read_state(state_text(state))
    assert again is not None
    assert again.handed_over


def test_words_that_are_withdrawn_are_marked(post: Post) -> None:
    chunks = events(post("withdraw", stream=True))
    at = next(n for n, chunk in enumerate(chunks) if chunk.get("compeer", {}).get("retracted"))
    assert text(chunks[:at]) == "These words are taken back."
    assert text(chunks[at + 1 :]) == "Message 1 had 8 characters. What then?"
    assert post("withdraw").json()["choices"][0]["message"]["content"] == "Message 1 had 8 characters. What then?"


def test_concern_and_problems_are_reported(post: Post) -> None:
    answer = post("concern").json()
    assert answer["choices"][0]["message"]["content"].endswith(PASSAGE)
    assert (answer["compeer"]["risk"], answer["compeer"]["passage"]) == ("concern", PASSAGE)
    broken = post("broken").json()["compeer"]
    assert broken["turn"] is None
    assert broken["problems"] == ["response: missing"]


def test_best_of_tells_the_candidates(post: Post) -> None:
    found = own(events(post(stream=True, best_of=3)), "candidate")
    assert [one["number"] for one in found] == [1, 2, 3]
    assert found[0]["score"]["total"] == 4
    assert len(post(best_of=3).json()["compeer"]["candidates"]) == 3


def test_without_a_judge_best_of_and_judging_are_refused() -> None:
    with served(create_app(ScriptedSupporter(judges=False), settings=FREE)) as started:
        message = [{"role": "user", "content": "Hello."}]
        answer = http.post(f"{started.url}/v1/chat/completions", json={"messages": message, "best_of": 2})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")
        answer = http.post(f"{started.url}/v1/judge", json={"messages": message, "output": "x"})
        assert answer.status_code == 404
        assert "--judge" in answer.json()["error"]["message"]


def test_the_seed_decides_and_is_sampled_where_none_is_given(post: Post, supporter: ScriptedSupporter) -> None:
    post(seed=5)
    post(seed=-5)
    post(), post()
    seeds = [request.seed for request in supporter.requests[-4:]]
    assert seeds[0] == 5
    assert all(seed >= 0 for seed in seeds)
    assert seeds[2] != seeds[3]


# --- judging --------------------------------------------------------------------------------------------------------

TURN = {
    "history": {"text": "Told off.", "stage": "exploration"},
    "emotion": {"text": "Angry.", "sentiment": "negative", "emotion": "anger", "intensity": 4},
    "strategy": {"text": "Ask.", "strategy": "Question"},
    "response": "What happened?",
}


def test_a_turn_is_judged_with_and_without_a_reference(post: Post) -> None:
    single = post(path="/v1/judge", turn=TURN).json()
    assert single["steps"]["emotion"] == {"right": True, "probability": 0.9, "reason": None}
    assert single["response"] is None
    assert single["score"]["total"] == 4
    text = render_turn(SupportTurn.model_validate(TURN))
    compared = post(path="/v1/judge", output=text, reference="Oh no.").json()
    assert compared["response"]["preferred"] == "candidate"
    assert compared["score"]["total"] == 5


def test_a_broken_turn_and_a_judge_that_fails_are_kept_apart(post: Post) -> None:
    broken = post(path="/v1/judge", output="History: a [exploration]").json()
    assert broken["missing"].keys() == {"emotion", "strategy", "response"}
    assert broken["score"]["total"] == -3
    failed = post("unscored", path="/v1/judge", turn=TURN).json()
    assert failed["score"]["total"] is None
    assert failed["score"]["unscored"] == "the script says so"


@pytest.mark.parametrize(
    "body", [{}, {"turn": TURN, "output": "x"}, {"turn": {**TURN, "response": " "}}, {"outputs": 1}]
)
def test_a_request_for_a_judgment_must_be_clear(post: Post, body: dict[str, Any]) -> None:
    answer = post(path="/v1/judge", **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"]


# --- images ---------------------------------------------------------------------------------------------------------


def data_url(image: Image.Image | None = None, data: bytes = b"", kind: str = "png") -> str:
    if image is not None:
        buffer = BytesIO()
        image.save(buffer, "JPEG" if kind == "jpeg" else kind.upper())
        data = buffer.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def with_images(*urls: str) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "This is me."}, *parts]}]


def test_a_supporter_that_does_not_see_says_so(server: Served) -> None:
    messages = with_images(data_url(Image.new("RGB", (4, 4))))
    answer = http.post(f"{server.url}/v1/chat/completions", json={"messages": messages})
    assert answer.json()["compeer"]["dropped"] == ["messages.0.content.1.image_url (cannot_see)"]
    del messages[0]["content"][0]
    answer = http.post(f"{server.url}/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400  # there is nothing else in the message
    assert answer.json()["error"]["param"] == "messages.0.content.0.image_url"
    assert "text only" in answer.json()["error"]["message"]


class Looking(ScriptedSupporter):
    """Notes what the pictures are while they are there."""

    def __init__(self) -> None:
        super().__init__(multimodal=True)
        self.seen: list[tuple[Path, tuple[int, int], bool]] = []

    def converse(self, request: Any) -> Any:
        for media in request.history[-1].media:
            with Image.open(media.path) as image:
                self.seen.append((Path(media.path), image.size, bool(image.getexif()) or bool(image.info)))
        return super().converse(request)


@pytest.fixture(scope="module")
def looking() -> Looking:
    return Looking()


@pytest.fixture(scope="module")
def multimodal(looking: Looking) -> Iterator[Served]:
    with served(create_app(looking, settings=FREE)) as started:
        yield started


def test_a_supporter_that_sees_gets_a_small_clean_file_while_the_turn_lasts(
    multimodal: Served, looking: Looking
) -> None:
    photo = Image.new("RGB", (3000, 1500), "red")
    photo.getexif()[0x010E] = SECRET
    answer = http.post(
        f"{multimodal.url}/v1/chat/completions", json={"messages": with_images(data_url(photo, kind="jpeg"))}
    )
    assert "I see 1 picture" in answer.text
    ((path, size, extras),) = looking.seen
    assert size == (1024, 512)
    assert not extras
    assert not path.exists()


def bomb() -> bytes:
    """A PNG of 30,000 by 30,000 pixels in some hundred kilobytes."""
    import struct
    import zlib

    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", head) + piece(b"IDAT", zlib.compress(b"\0" * 10**6)) + piece(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://127.0.0.1/secret.png", "image_not_inline"),
        ("file:///etc/passwd", "image_not_inline"),
        ("../../etc/passwd", "image_not_inline"),
        ("data:text/html;base64,PGI+", "image_not_inline"),
        ("data:image/png;base64,%%%", "image_unreadable"),
        (data_url(data=b"no image"), "image_unreadable"),
        (data_url(data=b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", kind="svg+xml"), "image_unreadable"),
        (data_url(Image.new("RGB", (40, 40)))[:90], "image_unreadable"),
        (data_url(data=bomb()), "image_too_large"),
        (data_url(data=b"\x89PNG" + bytes(5 * 2**20)), "image_too_large"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_bad_images_are_dropped_and_refused_if_there_is_nothing_else(
    multimodal: Served, url: str, code: str, stream: bool
) -> None:
    messages = with_images(url)
    address = f"{multimodal.url}/v1/chat/completions"
    answer = http.post(address, json={"messages": messages, "stream": stream})
    assert answer.status_code == 200
    last = events(answer)[-1] if stream else answer.json()
    (dropped,) = last["compeer"]["dropped"]
    assert dropped.startswith("messages.0.content.1.image_url")
    assert dropped.endswith(f"({code})")
    del messages[0]["content"][0]
    answer = http.post(address, json={"messages": messages, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_of_too_many_images_the_oldest_are_dropped(multimodal: Served, looking: Looking) -> None:
    urls = [data_url(Image.new("RGB", (size, 4))) for size in (4, 5, 6, 7, 8)]
    looking.seen.clear()
    answer = http.post(f"{multimodal.url}/v1/chat/completions", json={"messages": with_images(*urls)})
    assert answer.json()["compeer"]["dropped"] == ["messages.0.content.1.image_url (too_many_images)"]
    assert [size[0] for _, size, _ in looking.seen] == [5, 6, 7, 8]


# --- too much ---------------------------------------------------------------------------------------------------------


def users(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


DANGER = "I am going to kill myself tonight."
TOO_MUCH: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a picture for a model without eyes": (
        [*with_images(data_url(data=b"x")), *users(DANGER)],
        "messages.0.content.1.image_url (cannot_see)",
    ),
    "501 messages": (users(*["Hm."] * 500, DANGER), "messages.0 (history_too_long)"),
    "2,000 messages": (users(*["Hm."] * 1999, DANGER), "messages.0 to messages.1499 (history_too_long)"),
    "too long together": (users(*["word " * 10_000] * 5, DANGER), "messages.0 to messages.1 (history_too_long)"),
    "a very long message": (users(DANGER + " word" * 5_000), ""),
    "a message that is too long": (users(" word" * 45_000 + " " + DANGER), "messages.0.content (message_too_long)"),
    "no judge": (users(DANGER), ""),
}


@pytest.fixture(scope="module")
def real_guard() -> Iterator[Served]:
    """The guard, without its classifier, around a writer that says the same each time."""
    guard = Guard(Detector(classifier=None), locale="en-US")
    with served(create_app(GuardedSupporter(ScriptedWriter(WRITTEN), guard), settings=FREE)) as started:
        yield started


@pytest.mark.parametrize(
    "body",
    [
        '{"messages": [{"role": "user", "content": "DANGER \\ud83d"}]}',
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\udc00 DANGER"}]}]}',
        '{"messages": [{"role": "user", "content": "DANGER"}], "conversation": "\\ud800"}',
        '{"messages": [{"role": "user", "content": "DANGER"}], "state": "\\ud800"}',
        '{"messages": [{"role": "user", "content": "DANGER"}], "\\ud800": 1}',
        '{"messages": [{"role": "assistant", "content": "\\ud800"}, {"role": "user", "content": "DANGER"}]}',
    ],
)
def test_half_a_character_is_mended(real_guard: Served, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = http.post(f"{real_guard.url}/v1/chat/completions", content=body.replace("DANGER", DANGER), headers=headers)
    assert answer.status_code == 200
    assert "988" in answer.text


@pytest.mark.parametrize(("what", "stream"), [(what, n % 2 == 0) for n, what in enumerate(TOO_MUCH)])
def test_nobody_in_danger_is_refused_for_sending_too_much(real_guard: Served, what: str, stream: bool) -> None:
    messages, dropped = TOO_MUCH[what]
    body = {"messages": messages, "stream": stream, "best_of": 2 if what == "no judge" else 1}
    answer = http.post(f"{real_guard.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert "988" in answer.text
    own_part = (events(answer)[-1] if stream else answer.json())["compeer"]
    assert own_part["risk"] == "crisis"
    assert own_part.get("dropped", []) == ([dropped] if dropped else [])
