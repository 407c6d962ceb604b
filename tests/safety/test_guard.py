"""The guard: fixed replies in a crisis, safe ones instead of bad ones, hooks, and no part whose failure breaks it."""

import http.server
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from compeer.errors import InputError
from compeer.safety.detect import Detector
from compeer.safety.fixed_replies import LANGUAGES, Replies
from compeer.safety.guard import FOLLOW_UPS, Guard, GuardState
from compeer.safety.hooks import CrisisEvent, HandOver, LogLine, Webhook
from compeer.safety.languages import unread
from compeer.safety.output import check_reply
from compeer.safety.resources import load_resources
from compeer.safety.risk import CATEGORIES, KINDS, Finding, Kind, Level, Risk, Trigger

SECRET = "the words nobody may log"


class Says:
    """A detector that finds what it is told to, in the last message unless told otherwise."""

    def __init__(self, level: Level, *kinds: Kind, message: int | None = None) -> None:
        self.level, self.kinds, self.message = level, kinds or ("suicide",), message

    def detect(self, messages: str | Sequence[str]) -> Risk:
        if self.level == "none":
            return Risk("none", ())
        place = len(messages) - 1 if self.message is None else self.message
        return Risk(self.level, tuple(Trigger(kind, self.level, "a rule", place) for kind in self.kinds))


class Broken:
    def detect(self, messages: str | Sequence[str]) -> Risk:
        raise RuntimeError(f"could not read {messages}")


def never(_: int) -> str:
    raise AssertionError("in a crisis the supporter is not asked")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("message", "number"), [("hello", "911"), ("你好", "911")])
def test_a_crisis_gets_the_fixed_reply(kind: Kind, message: str, number: str) -> None:
    turn = Guard(Says("crisis", kind), locale="en-US").respond([message], never)
    assert number in turn.reply
    assert turn.replaced == f"crisis: {kind}"
    assert turn.hide_reasoning
    assert turn.attempts == 0
    assert turn.state.answered == (kind,)
    assert ("你" in turn.reply) is (message == "你好")


def test_the_conversation_goes_on_in_other_words() -> None:
    guard, state, seen = Guard(Says("crisis"), locale="GB"), GuardState(), []
    for length in range(1, 6):
        turn = guard.respond(["help"] * length, never, state)
        state = turn.state
        seen.append(turn.reply)
        assert "116 123" in turn.reply
    assert all(first != second for first, second in pairwise(seen))
    assert all(len(text) < len(seen[0]) for text in seen[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("message", ["help", "救命"])
def test_what_the_guard_has_said_can_be_told_from_the_conversation(kind: Kind, message: str) -> None:
    crisis, concern = (Guard(Says(level, kind), locale="GB") for level in ("crisis", "concern"))
    state, said = GuardState(), ["That sounds hard.", concern.respond([message], lambda _: "Go on.").reply]
    assert GuardState.of(said) == GuardState(concern_shown=True)
    for length in range(1, 5):
        turn = crisis.respond([message] * length, never, state)
        state, said = turn.state, [*said, turn.reply]
        assert GuardState.of(said) == state
    assert GuardState.of(["I am here.", ""]) == GuardState()


def test_another_kind_of_crisis_gets_its_own_first_reply() -> None:
    state = GuardState(answered=("suicide", "suicide"))
    turn = Guard(Says("crisis", "medical emergency", "suicide"), locale="US").respond(["a", "b"], never, state)
    assert turn.replaced == "crisis: medical emergency"
    assert "medical emergency" in turn.reply
    assert "988" in turn.reply, "the lines of the other kind are there as well"


def test_long_after_the_danger_the_supporter_speaks_again_with_the_numbers_at_hand() -> None:
    guard, state = Guard(Says("crisis", message=0), locale="US"), GuardState(answered=("suicide",))
    assert guard.respond(["x"] * (1 + FOLLOW_UPS), never, state).replaced == "crisis: suicide"
    later = guard.respond(["x"] * (2 + FOLLOW_UPS), lambda _: "How was your day?", state)
    assert later.reply.startswith("How was your day?")
    assert "988" in later.reply
    assert later.hide_reasoning
    assert guard.respond(["x"] * 9, never).replaced == "crisis: suicide", "nobody answered it so far"


def test_concern_adds_resources_once() -> None:
    guard = Guard(Says("concern", "abuse"), locale="US")
    first = guard.respond(["x"], lambda _: "That sounds hard.")
    assert first.reply.startswith("That sounds hard.")
    assert "1-800-799-7233" in first.reply
    second = guard.respond(["x", "y"], lambda _: "Go on.", first.state)
    assert second.reply == "Go on."
    assert not first.hide_reasoning


def test_no_danger_leaves_a_good_reply_alone() -> None:
    turn = Guard(Says("none")).respond(["x"], lambda _: "That sounds hard.")
    assert (turn.reply, turn.replaced, turn.attempts, turn.degraded) == ("That sounds hard.", None, 1, ())


def test_a_bad_reply_is_written_anew() -> None:
    replies = ["You have bipolar disorder.", "", "That sounds tiring."]
    turn = Guard(Says("none")).respond(["x"], lambda attempt: replies[attempt - 1])
    assert (turn.reply, turn.attempts, turn.replaced) == ("That sounds tiring.", 3, None)


@pytest.mark.parametrize(
    ("bad", "category"),
    [
        ("You have bipolar disorder.", "diagnosis"),
        ("I promise I won't tell anyone.", "promise of secrecy"),
        ("I'm a real person.", "claims to be human"),
    ],
)
def test_and_replaced_where_that_does_not_help(bad: str, category: str) -> None:
    turn = Guard(Says("none")).respond(["x"], lambda _: bad)
    assert turn.replaced == f"output: {category}"
    assert turn.attempts == 3
    assert bad not in turn.reply
    assert check_reply(turn.reply) is None


def test_every_fixed_text_passes_the_check_itself() -> None:
    resources = load_resources()
    for language in LANGUAGES:
        for locale in ("US", "CN", None):
            replies = Replies(language, resources, locale)
            texts = [replies.safe(category, turn) for category in (*CATEGORIES, "general") for turn in range(2)]
            texts += [replies.crisis([kind], earlier, True) for kind in KINDS for earlier in range(4)]
            texts += [replies.concern(kind) for kind in KINDS]
            for text in texts:
                assert check_reply(text) is None, text


def test_a_raising_detector_means_concern() -> None:
    turn = Guard(Broken(), locale="US").respond([SECRET], lambda _: "Go on.")
    assert turn.risk.level == "concern"
    assert turn.degraded == ("detector: RuntimeError",)
    assert "988" in turn.reply
    assert SECRET not in repr(turn.degraded)


def test_a_raising_check_or_supporter_means_a_safe_reply() -> None:
    def check(_: str, __: Sequence[str]) -> Finding | None:
        raise ValueError

    turn = Guard(Says("none"), check=check).respond(["x"], lambda _: "anything")
    assert "anything" not in turn.reply
    assert turn.degraded == ("output check: ValueError",)
    turn = Guard(Says("none")).respond(["x"], never)
    assert turn.reply
    assert turn.replaced == "no reply"
    assert turn.degraded == ("supporter: AssertionError",)
    assert Guard(Says("none"), check=check).after("anything", turn, ["x"]).replaced == "no reply"


def test_a_streamed_reply_ends_safely() -> None:
    guard = Guard(Says("none"))
    turn, gate = guard.before(["x"]), guard.gate(["x"])
    shown = (
        "".join(gate.feed(piece) for piece in ("That sounds ", "hard. You have ", "bipolar disorder. Go on."))
        + gate.close()
    )
    assert shown == "That sounds hard. "
    ended = guard.after_gate(gate, shown, turn, ["x"])
    assert ended.reply.startswith("That sounds hard.\n\n")
    assert ended.replaced == "output: diagnosis"


def test_an_endless_reply_is_replaced_unread() -> None:
    turn = Guard(Says("none")).respond(["x"], lambda _: "That is hard. " * 80_000)
    assert turn.replaced == "no reply"
    assert len(turn.reply) < 1000


# --- hooks


class Server:
    """A real HTTP server that answers with the given statuses in turn."""

    def __init__(self, *statuses: int) -> None:
        self.free = threading.Event()
        self.free.set()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        left, outer = list(statuses), self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.headers.append(dict(self.headers))
                outer.free.wait(60)
                self.send_response(left.pop(0) if left else 200)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?key=abc"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    statuses = getattr(request, "param", ())
    found = Server(*statuses)
    yield found
    found.close()


def crisis(*hooks: Any) -> Any:
    return Guard(Says("crisis"), locale="US", hooks=hooks).respond([SECRET], never, conversation="c-1")


def test_a_webhook_is_told_without_the_words(server: Server) -> None:
    hook = Webhook(server.url, headers={"X-Key": "k"})
    crisis(hook)
    assert hook.wait(60)
    [body] = server.bodies
    assert body["kinds"] == ["suicide"]
    assert body["conversation"] == "c-1"
    assert body["messages"] == 1
    assert SECRET not in json.dumps(body)
    assert server.headers[0]["X-Key"] == "k"


def test_the_words_are_sent_only_if_asked_for(server: Server) -> None:
    hook = Webhook(server.url, include_text=True)
    crisis(hook)
    assert hook.wait(60)
    assert server.bodies[0]["text"] == [SECRET]


@pytest.mark.parametrize("server", [(500, 503)], indirect=True)
def test_a_webhook_tries_again(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")  # of libraries too
    hook = Webhook(server.url, pause=0.01)
    crisis(hook)
    assert hook.wait(60)
    assert len(server.bodies) == 3
    assert "status 503" in caplog.text
    assert "abc" not in caplog.text, "an address may hold a key"


@pytest.mark.parametrize("server", [(302, 302, 302, 302)], indirect=True)
def test_a_redirect_is_not_followed(server: Server) -> None:
    hook = Webhook(server.url, pause=0.01, attempts=2)
    crisis(hook)
    assert hook.wait(60)
    assert len(server.bodies) == 2


def test_a_slow_or_dead_webhook_does_not_hold_up_the_reply(caplog: pytest.LogCaptureFixture) -> None:
    slow = Server()
    slow.free.clear()
    hook = Webhook(slow.url, timeout=0.1, attempts=2, pause=0.01)
    dead = Webhook("http://127.0.0.1:9/none", attempts=1)
    turn = crisis(hook, dead)
    assert "988" in turn.reply
    assert not slow.free.is_set(), "the reply is there, the server has answered nothing"
    assert hook.wait(60)
    assert dead.wait(60)
    slow.free.set()
    assert SECRET not in caplog.text
    slow.close()


def test_an_address_that_is_none() -> None:
    for url in ("file:///etc/passwd", "nonsense", "http://[::1"):
        with pytest.raises(InputError, match="url"):
            Webhook(url)


def test_a_person_takes_over() -> None:
    turn = crisis(HandOver(lambda event: event.kinds == ("suicide",)))
    assert turn.state.handed_over
    assert "a person from the team" in turn.reply
    again = Guard(Says("crisis"), locale="US").respond(["a", "b"], never, turn.state)
    assert "A person from the team" in again.reply
    assert not crisis(HandOver(lambda _: False)).state.handed_over


def test_nobody_is_promised_a_person_who_may_not_come() -> None:
    def fails(_: CrisisEvent) -> bool:
        raise OSError(SECRET)

    never_yet = threading.Event()
    for accept, name, timeout in ((lambda _: never_yet.wait(60), "TimeoutError", 0.05), (fails, "OSError", 60)):
        turn = crisis(HandOver(accept, timeout=timeout))
        assert not turn.state.handed_over
        assert "person from the team" not in turn.reply
        assert turn.degraded == (f"hook HandOver: {name}",)
    never_yet.set()


def test_the_log_line_holds_no_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        turn = crisis(LogLine())
    assert "crisis: kinds=suicide rules=a rule messages=1" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(turn)
    assert SECRET not in repr(CrisisEvent("crisis", ("suicide",), (), None, "en", 0, messages=(SECRET,)))


# --- languages that the guard cannot read -----------------------------------------------------------------------------

UNREAD_MESSAGES = {
    "es": "No quiero vivir más, quiero morirme esta noche.",
    "fr": "Je ne veux plus vivre, je vais me tuer ce soir.",
    "de": "Ich will nicht mehr leben, ich bringe mich heute Nacht um.",
    "pt": "Não quero mais viver, vou me matar hoje à noite.",
    "it": "Non voglio più vivere, stasera mi uccido.",
    "nl": "Ik wil niet meer leven, ik maak er vanavond een einde aan.",
    "pl": "Nie chcę już żyć, dziś w nocy się zabiję.",
    "tr": "Artık yaşamak istemiyorum, bu gece kendimi öldüreceğim.",
    "vi": "Tôi không muốn sống nữa, tối nay tôi sẽ tự tử.",
    "id": "Saya tidak ingin hidup lagi, saya akan bunuh diri malam ini.",
    "sv": "Jag vill inte leva längre, jag ska ta livet av mig i kväll.",
    "fi": "En halua enää elää, tapan itseni tänä yönä.",
    "hu": "Nem akarok tovább élni, ma este megölöm magam.",
    "ru": "Я не хочу больше жить.",
    "ar": "لا أريد أن أعيش بعد الآن",
    "hi": "मैं अब जीना नहीं चाहता",
    "ja": "もう生きていたくない。",
    "ko": "더 이상 살고 싶지 않아요.",
}
READ_MESSAGES = [
    "I failed the exam again and nobody cares.",
    "ok",
    "lol idk tbh",
    "我考试又没过，很难受。",
    "haha yeah",
    "My abuela made arroz con pollo and I cried.",
    "I live in Los Angeles near the Rio de la Plata cafe.",
    "wo xiang jia le",
    "",
    "🙂🙂",
    "su1c1dal thoughts are g0ne, thanks",
]


def without_classifier(spoken: str | None = None) -> Guard:
    return Guard(Detector(classifier=None), locale="en-US", spoken=spoken)


@pytest.mark.parametrize("code", UNREAD_MESSAGES)
def test_nobody_is_served_without_a_word_in_a_language_that_cannot_be_read(code: str) -> None:
    guard = without_classifier()
    turn = guard.respond([UNREAD_MESSAGES[code]], lambda _: "That sounds hard. What happened today?")
    assert any("another language" in part for part in turn.degraded)
    assert "988" in turn.reply
    safe = guard.respond([UNREAD_MESSAGES[code]], lambda _: "")
    assert "988" in safe.reply, "also where the reply is replaced"


def test_the_words_are_those_of_the_language_where_it_is_known() -> None:
    reply = without_classifier().respond([UNREAD_MESSAGES["es"]], lambda _: "Cuéntame más.").reply
    assert "habla ahora con alguien" in reply


def test_a_change_of_language_is_noticed_and_holds_for_every_reply() -> None:
    guard, state = without_classifier(), None
    messages = ["I failed the exam again."]
    first = guard.respond(messages, lambda _: "Oh no. Which one?", state)
    assert first.degraded == ()
    assert "988" not in first.reply
    messages.append(UNREAD_MESSAGES["es"])
    for more in ("ok", "Thanks for asking."):
        turn = guard.respond(messages, lambda _: "What happened then?", state)
        assert "988" in turn.reply
        state = turn.state
        messages.append(more)


@pytest.mark.parametrize("message", READ_MESSAGES)
def test_what_can_be_read_is_not_taken_for_another_language(message: str) -> None:
    assert unread([message]) is None


@pytest.mark.parametrize(("message", "found"), [("Vale.", "es"), ("I failed the exam.", None), ("我没事。", None)])
def test_where_another_language_is_spoken_what_is_unclear_is_taken_to_be_in_it(message: str, found: str | None) -> None:
    assert unread([message], "es-MX") == found
    assert (without_classifier("es").before([message]).passage != "") == (found is not None)
