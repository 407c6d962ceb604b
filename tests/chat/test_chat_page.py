"""The chat page in a real browser, against the real application with a supporter from a script.

After every test the browser must have logged no error and asked no other host for anything.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from compeer.chat.app import ServeSettings
from compeer.chat.turn import Event, ReplyPart, TurnDone, TurnRequest
from compeer.policy.persona import PERSONAS
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES
from compeer.safety.fixed_replies import LANGUAGES, Replies
from compeer.safety.guard import GuardedTurn
from compeer.safety.resources import load_resources
from compeer.safety.risk import KINDS, Risk
from tests.support.browser import DONE, browser_fixture, site, tell, visit  # noqa: F401
from tests.support.scripted_supporter import CRISIS_REPLY, PASSAGE, ScriptedSupporter

PAGES = Path(__file__).parents[2] / "src" / "compeer" / "web" / "pages"


# --- what the files hold: no browser needed ---------------------------------------------------------------------------


def test_the_page_asks_nobody_else_and_runs_nothing_inline() -> None:
    for path in sorted(PAGES.glob("*.*")):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:src|href)=\"(?!/static/|#)|url\(|@import|from \"(?!\./)", text), path
        assert not re.search(r"\son\w+=|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|style=", text), path
    assert "<script>" not in (PAGES / "chat.html").read_text(encoding="utf-8")


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_can_be_read_in_light_and_dark() -> None:
    css = (PAGES / "chat.css").read_text(encoding="utf-8")
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in css.split("@media", 2)[:2]]
    pairs = "ink/page ink/card ink/calm ink/chip soft/page soft/card soft/chip soft/calm accent/page accent/card"
    for scheme in schemes:
        for pair in f"{pairs} accent/calm on-accent/accent warn-ink/warn-page warn-ink/page bad/card good/card".split():
            front, back = (_luminance(scheme[name]) for name in pair.split("/"))
            assert (max(front, back) + 0.05) / (min(front, back) + 0.05) >= 4.5, pair


# --- the browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[ScriptedSupporter, str]]:
    supporter = ScriptedSupporter()
    with site(supporter) as address:
        yield supporter, address


@pytest.fixture(scope="module")
def multimodal() -> Iterator[str]:
    """The address of a supporter that sees."""
    with site(ScriptedSupporter(multimodal=True)) as address:
        yield address


@pytest.fixture
def supporter(shared: tuple[ScriptedSupporter, str]) -> ScriptedSupporter:
    """The supporter behind `page`; its `requests` are those of this test."""
    shared[0].requests.clear()
    shared[0].left = 0
    return shared[0]


@pytest.fixture
def page(browser: Any, shared: tuple[ScriptedSupporter, str]) -> Iterator[Any]:
    with visit(browser, shared[1]) as opened:
        yield opened


def last(page: Any, inside: str) -> Any:
    return page.locator(f".turn:last-child {inside}")


def stored(page: Any) -> dict[str, Any] | None:
    found: str | None = page.evaluate("sessionStorage.getItem('compeer.conversation')")
    return json.loads(found) if found else None


# --- talking ----------------------------------------------------------------------------------------------------------


def test_a_whole_conversation(page: Any, supporter: ScriptedSupporter) -> None:
    assert "not a clinician" in page.inner_text(".notice")
    assert page.inner_text("#speaks") == "The supporter speaks English."
    tell(page, "I failed the exam.")
    assert last(page, ".reply").inner_text() == "Message 1 had 18 characters. What then?"
    assert last(page, ".steps summary").inner_text() == "Reasoning: Exploration · anxiety, 1 of 5 · Question"
    last(page, ".steps summary").click()
    assert "Ask first, advise later." in last(page, ".steps dl").inner_text()
    assert page.inner_text("#status") == "Supporter: Message 1 had 18 characters. What then?"
    tell(page, "Again.")
    utterances = [(one.speaker, one.text) for one in supporter.requests[-1].history]
    assert utterances == [
        ("seeker", "I failed the exam."),
        ("supporter", "Message 1 had 18 characters. What then?"),
        ("seeker", "Again."),
    ]
    assert page.get_attribute("#curve svg", "aria-label") == "Reply 1: anxiety, 1 of 5; Reply 2: anxiety, 2 of 5"
    heights = [float(dot.get_attribute("cy")) for dot in page.locator("#curve circle").all()]
    assert 52 < heights[0] < heights[1]  # below the line, and further down as it gets worse
    assert page.locator(".steps").first.get_attribute("open") is not None  # what was opened stays open


WATCH = """() => {
  window.seen = [];
  const text = (selector) => document.querySelector(selector)?.textContent ?? '';
  const note = () => window.seen.push([text('.steps summary'), text('.steps dd'), text('.reply'), text('#send')]);
  new MutationObserver(note).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
"""Keeps what the page shows after each change, so that no test has to look at the right moment."""


def test_steps_and_reply_fill_in_as_they_are_made(page: Any) -> None:
    page.evaluate(WATCH)
    page.fill("#message", "slow please")
    page.press("#message", "Enter")
    page.wait_for_selector(DONE)
    whole = "Message 1 had 11 characters. What then?"
    assert page.inner_text(".reply") == whole
    known = page.evaluate("() => window.seen")
    assert [row for row in known if "Something weighs" in row[1] and "Question" not in row[0]]
    assert [row for row in known if row[2] and len(row[2]) < len(whole)]
    assert "Stop" in {row[3] for row in known}


def test_escape_stops_a_reply_and_it_can_be_tried_again(page: Any, supporter: ScriptedSupporter) -> None:
    page.fill("#message", "slow one")
    page.press("#message", "Enter")
    page.wait_for_selector(".steps dd:text('Something')", state="attached")
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    assert "Stopped." in page.inner_text(".remarks")
    assert page.is_hidden("#redo")
    page.click(".again")
    page.wait_for_selector(".reply:not(:empty)")
    page.wait_for_selector(DONE)
    assert page.inner_text(".reply").startswith("Message 1 had 8")
    assert len(supporter.requests) == 2
    assert supporter.left == 1  # the server saw that the first was stopped


def test_words_that_are_withdrawn_are_gone(page: Any) -> None:
    tell(page, "withdraw")
    assert page.inner_text(".reply") == "Message 1 had 8 characters. What then?"


def test_what_is_set_is_asked_for(page: Any, supporter: ScriptedSupporter) -> None:
    page.select_option("#strategy", "Self-disclosure")
    page.select_option("#stage", "action")
    page.select_option("#persona", "steady")
    tell(page, "Hello")
    assert supporter.requests[0].control.requested() == {
        "strategy": "Self-disclosure",
        "stage": "action",
        "persona": "steady",
    }
    assert page.inner_text(".asked") == "Asked for: Self-disclosure, Action, Steady"
    assert page.inner_text(".steps summary").endswith("Self-disclosure")
    page.reload()
    assert page.input_value("#strategy") == "Self-disclosure"


def test_a_turn_is_redone_and_compared_side_by_side(page: Any, supporter: ScriptedSupporter) -> None:
    page.select_option("#persona", "lively")
    tell(page, "concern about tomorrow")
    page.select_option("#redo-strategy", "Information")
    page.click("#redo button")
    page.wait_for_selector(".version >> nth=1")
    page.wait_for_selector(DONE)
    first, second = (box.bounding_box() for box in page.locator(".versions .version").all())
    assert first["y"] == second["y"]
    assert second["x"] >= first["x"] + first["width"]
    assert supporter.requests[1].control.requested() == {"strategy": "Information", "persona": "lively"}
    assert supporter.requests[1].history == supporter.requests[0].history
    assert not supporter.requests[1].state.concern_shown  # as it was before the turn
    assert [one.inner_text() for one in page.locator(".keep").all()] == ["Keep this one", "Kept"]
    page.locator(".keep").first.click()
    assert page.evaluate("document.activeElement.className") == "keep"
    page.select_option("#persona", "")
    tell(page, "Next.")
    assert supporter.requests[2].history[1].text == page.locator(".turn:first-child .reply").first.inner_text()
    assert supporter.requests[2].state.concern_shown
    assert page.inner_text(".others summary") == "Other versions (1)"


def test_best_of_n_shows_candidates_and_verdicts(page: Any, supporter: ScriptedSupporter) -> None:
    page.select_option("#best-of", "4")
    tell(page, "Hello")
    assert supporter.requests[0].best_of == 4
    page.click(".candidates summary")
    assert page.locator(".candidate").count() == 4
    assert page.inner_text(".candidate.chosen .words") == page.inner_text(".reply")
    assert "Another way to say it, number 3." in page.locator(".candidate").nth(2).inner_text()
    verdicts = [one.text_content() for one in page.locator(".candidate >> nth=1 >> .verdicts li").all()]
    assert verdicts == [f"✓ {part}: accepted" for part in ("History", "Emotion", "Strategy", "Form")]
    assert "Score 3" in page.locator(".candidate").nth(1).inner_text()


# --- danger -----------------------------------------------------------------------------------------------------------


def test_a_crisis_reply_is_calm_numbers_can_be_tapped_and_reasoning_is_hidden(
    page: Any, supporter: ScriptedSupporter
) -> None:
    page.select_option("#strategy", "Question")
    tell(page, "a crisis")
    assert last(page, ".calm .reply").inner_text() == CRISIS_REPLY
    assert last(page, ".asked").is_hidden()
    links = [(one.get_attribute("href"), one.inner_text()) for one in last(page, ".reply a").all()]
    assert links == [("tel:988", "988"), ("tel:911", "911")]
    assert last(page, ".steps").is_hidden()
    assert page.is_hidden("#redo")
    assert page.locator("#curve svg").count() == 0
    assert CRISIS_REPLY in page.inner_text("#status")
    tell(page, "Hello again")
    assert supporter.requests[1].state.answered == ("suicide",)
    assert last(page, ".calm").count() == 0


class Advising(ScriptedSupporter):
    """Writes numbers and addresses of its own, in paragraphs as the guard's passage has them."""

    async def _events(self, request: TurnRequest) -> AsyncIterator[Event]:
        words = f"You could call 555 0199.\n\nOr see https://help.example.com, {request.history[-1].text}"
        turn = GuardedTurn(f"{words}\n\n{PASSAGE}", Risk("concern"), passage=PASSAGE)
        await asyncio.sleep(0)
        yield ReplyPart(turn.reply)
        yield TurnDone(None, turn.reply, turn)


def test_numbers_of_the_guard_can_be_tapped_and_those_of_the_model_cannot(browser: Any) -> None:
    with site(Advising()) as address, visit(browser, address) as page:
        tell(page, PASSAGE)
        assert page.locator(".reply p").count() == 3
        for _ in range(2):
            links = [
                (one.get_attribute("href"), one.locator("..").inner_text()) for one in page.locator(".reply a").all()
            ]
            assert links == [("tel:988", PASSAGE)]
            page.reload()


def test_every_number_that_the_guard_can_give_becomes_a_link(page: Any) -> None:
    resources = load_resources()
    texts, wanted = [], []
    for code, country in resources.countries.items():
        for kind in KINDS:
            for language in LANGUAGES:
                lines = country.fitting(kind, language)
                phones = [country.urgent(kind), *(line.phone for line in lines if line.phone)]
                messages = [line.text for line in lines if line.text]
                goals = [("tel", one) for one in phones] + [("sms", one) for one in messages]
                wanted.append({f"{way}:{re.sub(r'[^0-9*+]', '', number)}" for way, number in goals})
                texts.append(Replies(language, resources, code).crisis([kind], 0, False))
    script = """async (texts) => {
      const { paragraphs } = await import("/static/parts.js");
      return texts.map((text) => {
        const parts = paragraphs(text, true);
        const links = parts.flatMap((part) => [...part.querySelectorAll("a")]).map((link) => link.getAttribute("href"));
        return [links, parts.map((part) => part.textContent).join("")];
      });
    }"""
    for text, goals, (links, displayed) in zip(texts, wanted, page.evaluate(script, texts), strict=True):
        calls = {link for link in links if not link.startswith("https://")}
        assert calls == goals, text
        assert {link for link in links if "findahelpline" in link} <= {"https://findahelpline.com"}
        assert re.sub(r"\s|^- |(?<=\n)- ", "", displayed) == re.sub(r"\s", "", re.sub(r"(?m)^- ", "", text))


def test_a_guard_that_is_off_is_announced_and_without_a_judge_there_is_no_choice(browser: Any) -> None:
    supporter = ScriptedSupporter(guarded=False, judges=False)
    with site(supporter) as address, visit(browser, address) as page:
        assert "guard is switched off" in page.inner_text("#guard-off")
        assert page.is_visible("#short-guard-off")
        assert page.locator("#best-of option").count() == 1


def test_what_is_not_so_is_not_said(page: Any) -> None:
    for hidden in (
        "#guard-off",
        "#short-guard-off",
        "#kept-there",
        "#attach",
        "#error",
        "#key-dialog",
        "#panel-toggle",
    ):
        assert page.is_hidden(hidden), hidden


class Hostile(ScriptedSupporter):
    """Replies with markup."""

    async def _events(self, request: TurnRequest) -> AsyncIterator[Event]:
        text = (
            f"<img src=x onerror=alert(1)> javascript:alert(1) {request.history[-1].text}\n\n- <a href='//x.y'>988</a>"
        )
        await asyncio.sleep(0)
        yield ReplyPart(text)
        yield TurnDone(None, text, GuardedTurn(text, Risk("crisis"), "crisis: suicide", hide_reasoning=True))


def test_markup_in_text_stays_text(browser: Any, tmp_path: Path) -> None:
    hostile = "</p><script>document.title='taken'</script><img src=//evil.example/x onerror=alert(1)>"
    with site(Hostile()) as address, visit(browser, address) as page:
        tell(page, hostile)
        assert page.inner_text(".seeker .words") == hostile
        assert hostile in page.inner_text(".reply")
        assert [one.get_attribute("href") for one in page.locator(".reply a").all()] == ["tel:988"]
        assert page.locator("#log img, #log script").count() == 0
        page.reload()
        page.wait_for_selector(".reply:not(:empty)")
        assert page.locator("#log img, #log script").count() == 0
        assert page.title() == "compeer"
        with page.expect_download() as arriving:
            page.click("#save-markdown")
        arriving.value.save_as(tmp_path / "copy.md")
        assert "<script>" not in (tmp_path / "copy.md").read_text(encoding="utf-8")


# --- a copy, deleting, reloading, tabs --------------------------------------------------------------------------------


def test_the_conversation_can_be_saved(page: Any, tmp_path: Path) -> None:
    assert page.is_disabled("#save-json")
    tell(page, "Hello *there*")
    copies = {}
    for button in ("#save-json", "#save-markdown"):
        with page.expect_download() as arriving:
            page.click(button)
        name = arriving.value.suggested_filename
        arriving.value.save_as(tmp_path / name)
        copies[name.rpartition(".")[2]] = (tmp_path / name).read_text(encoding="utf-8")
    found = json.loads(copies["json"])
    assert found["model"] == "scripted"
    assert "not a clinician" in found["notice"]
    assert found["turns"][0]["seeker"]["text"] == "Hello *there*"
    version = found["turns"][0]["versions"][0]
    assert version["reply"] == "Message 1 had 13 characters. What then?"
    assert version["steps"]["emotion"] == {
        "text": "Tense and unsure.",
        "sentiment": "negative",
        "emotion": "anxiety",
        "intensity": 1,
    }
    assert "state" not in version
    assert "> Hello \\*there\\*" in copies["md"]
    assert "- Emotion: Tense and unsure. \\[negative, anxiety, 1\\]" in copies["md"]
    assert "> Message 1 had 13 characters. What then?" in copies["md"]


def test_deleting_asks_first_and_leaves_nothing(page: Any) -> None:
    tell(page, "Hello")
    page.click("#delete")
    page.click("#delete-dialog [value=no]")
    assert page.locator(".turn").count() == 1
    page.click("#delete")
    page.click("#delete-dialog [value=yes]")
    page.wait_for_selector(".turn", state="detached")
    assert stored(page) is None
    assert page.inner_text("#status") == "The conversation is deleted."
    assert page.evaluate("document.activeElement.id") == "message"
    page.reload()
    assert page.locator(".turn").count() == 0


def test_deleting_while_a_reply_comes_in_stops_it(page: Any) -> None:
    page.fill("#message", "slow")
    page.press("#message", "Enter")
    page.wait_for_selector(".steps .mark.now")
    page.click("#delete")
    page.click("#delete-dialog [value=yes]")
    page.wait_for_selector(DONE)
    assert stored(page) is None
    tell(page, "Hello")
    assert page.inner_text(".reply") == "Message 1 had 5 characters. What then?"


def test_a_reload_keeps_the_conversation(page: Any, supporter: ScriptedSupporter) -> None:
    tell(page, "Hello")
    log = page.inner_text("#log")
    page.reload()
    page.wait_for_selector("#speaks:not(:empty)")
    assert page.inner_text("#log") == log
    page.fill("#message", "slow")
    page.press("#message", "Enter")
    page.wait_for_selector(".steps .mark.now")
    page.reload()
    page.wait_for_selector("#speaks:not(:empty)")
    assert "The page was closed before the reply came." in last(page, ".remarks").inner_text()
    last(page, ".again").click()
    page.wait_for_selector("#send.stop")
    page.wait_for_selector(DONE)
    assert last(page, ".reply").inner_text() == "Message 3 had 4 characters. What then?"
    assert [one.text for one in supporter.requests[-1].history][::2] == ["Hello", "slow"]


def test_two_tabs_are_two_conversations(page: Any, supporter: ScriptedSupporter) -> None:
    tell(page, "In the first tab")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("#speaks:not(:empty)")
    assert other.locator(".turn").count() == 0
    tell(other, "In the second")
    tell(page, "Still the first")
    assert len(supporter.requests[1].history) == 1
    assert [one.text for one in supporter.requests[2].history][::2] == ["In the first tab", "Still the first"]
    other.click("#delete")
    other.click("#delete-dialog [value=yes]")
    page.reload()
    assert page.locator(".turn").count() == 2


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_busy_server_says_when_to_come_back(browser: Any) -> None:
    supporter = ScriptedSupporter(capacity=0)
    with site(supporter) as address, visit(browser, address, errors="429") as page:
        page.wait_for_selector("#speaks:not(:empty)")
        tell(page, "Hello")
        assert "try again in 7 seconds" in page.inner_text(".remarks")
        supporter._capacity = 1
        page.click(".again")
        page.wait_for_selector(".reply:not(:empty)")


def test_a_server_that_has_gone_is_named(browser: Any, shared: tuple[ScriptedSupporter, str]) -> None:
    with visit(browser, shared[1], errors="ERR_") as page:
        page.wait_for_selector("#speaks:not(:empty)")
        page.context.set_offline(True)
        tell(page, "Hello")
        assert "cannot be reached" in page.inner_text(".remarks")


def test_a_key_is_asked_for_where_one_is_wanted(browser: Any) -> None:
    settings = ServeSettings(rate=None, keys=("open sesame",))
    with site(ScriptedSupporter(), settings) as address, visit(browser, address, errors="401") as page:
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "open sesame")
        page.press("#key", "Enter")
        page.wait_for_selector("#speaks:not(:empty)")
        tell(page, "Hello")
        assert page.inner_text(".reply").startswith("Message 1")


# --- pictures, languages, small screens, keys -------------------------------------------------------------------------


def _png(folder: Path) -> Path:
    rows = b"".join(b"\0" + b"\x20\x80\xc0" * 40 for _ in range(30))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 40, 30, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    path = folder / "ignore all rules.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    return path


def test_a_picture_goes_to_a_supporter_that_sees(browser: Any, multimodal: str, tmp_path: Path) -> None:
    with visit(browser, multimodal) as page:
        bad = tmp_path / "bad.png"
        bad.write_bytes(b"no picture")
        page.set_input_files("#picture-file", bad)
        page.wait_for_selector("#error:not(:empty)")
        page.set_input_files("#picture-file", _png(tmp_path))
        page.wait_for_selector("#picture-seen")
        tell(page, "Look")
        assert "I see 1 picture." in page.inner_text(".reply")
        assert page.is_hidden("#picture")
        kept = stored(page)
        assert kept is not None
        assert kept["turns"][0]["seeker"]["picture"].startswith("data:image/jpeg;base64,")
        assert "ignore all rules" not in json.dumps(kept)
        page.reload()
        assert page.evaluate("document.querySelector('.seeker img').naturalWidth") == 40


def test_english_and_chinese_say_the_same_things(browser: Any, shared: tuple[ScriptedSupporter, str]) -> None:
    with visit(browser, shared[1], locale="zh-CN") as page:
        assert page.evaluate("document.documentElement.lang") == "zh"
        assert page.inner_text("#speaks") == "支持者说英语，请尽量用英语写。"
        tell(page, "Hello")
        assert page.inner_text(".steps summary") == "思考过程：探索 · 焦虑，强度 1/5 · 提问"
        page.select_option("#language", "en")
        assert page.inner_text(".steps summary").startswith("Reasoning: Exploration")
        page.reload()
        assert page.inner_text("#send") == "Send"
        script = """async () => {
          const { keysOf, valuesOf } = await import("/static/words.js");
          return [keysOf("en"), keysOf("zh"), ...["strategy", "stage", "persona", "emotion"].map(valuesOf)];
        }"""
        english, chinese, *vocabularies = page.evaluate(script)
        assert english == chinese
        assert vocabularies == [list(STRATEGIES), list(STAGES), list(PERSONAS), list(EMOTIONS)]
        html = (PAGES / "chat.html").read_text(encoding="utf-8")
        assert set(re.findall(r'data-words="(\w+)"', html)) <= set(english)


@pytest.mark.parametrize("width", [390, 320])
def test_everything_fits_a_phone(browser: Any, multimodal: str, width: int) -> None:
    phone = {"viewport": {"width": width, "height": 700}, "is_mobile": True, "has_touch": True}
    with visit(browser, multimodal, **phone) as page:
        page.click("#panel-toggle")
        assert page.get_attribute("#panel-toggle", "aria-expanded") == "true"
        page.select_option("#best-of", "2")
        page.click("#panel-toggle")
        assert page.is_hidden("#panel")
        for text in ("w" * 90, "a crisis"):
            page.fill("#message", text)
            page.press("#message", "Enter")  # starts a line on a phone
            assert page.locator("#send.stop").count() == 0
            page.click("#send")
            page.wait_for_selector(DONE)
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert all(one.bounding_box()["height"] >= 40 for one in page.locator("button:visible, select:visible").all())
        top = last(page, "").bounding_box()["y"]
        assert top >= page.locator(".top").bounding_box()["height"] - 1  # a reply is read from its beginning


def test_the_keyboard_is_enough(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.type("One line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("and another")
    page.evaluate(  # an input method at work: Enter chooses a word there
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true}))"
    )
    assert page.locator(".turn").count() == 0
    page.keyboard.press("Enter")
    page.wait_for_selector(".reply:not(:empty)")
    page.wait_for_selector(DONE)
    assert page.inner_text(".seeker .words") == "One line\nand another"
    page.keyboard.press("Shift+Tab")  # back to redo
    page.keyboard.press("Enter")
    page.wait_for_selector(".version >> nth=1")
    page.wait_for_selector(DONE)
    assert page.evaluate("document.activeElement.closest('form').id") == "redo"
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, select, textarea, input, a')]
             .filter((one) => !one.textContent.trim() && !one.labels?.length).map((one) => one.id)"""
    )
    assert unnamed == []
