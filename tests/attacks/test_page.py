"""A model that writes for the browser and not for the seeker: whatever it puts out stays text on the chat page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compeer.chat.conversation import GuardedSupporter
from compeer.safety import Guard
from tests.support.browser import browser_fixture, site, tell, visit  # noqa: F401
from tests.support.scripted_writer import NoDanger, ScriptedWriter, WordJudge

HOSTILE = {
    "a script": "<script>window.taken = 1; document.title = 'taken'</script>",
    "a handler": "<img src=x onerror=\"window.taken = 1\"><svg onload='window.taken = 1'>",
    "a way out of the element": "</p></div></details></main><iframe src=//evil.example></iframe>",
    "a link": "<a href='javascript:window.taken=1'>988</a> [call](javascript:window.taken=1) https://evil.example/x",
    "a style": "<style>body { display: none }</style><link rel=stylesheet href=//evil.example/x.css>",
    "a form": "<form action=//evil.example><input name=key autofocus onfocus=window.taken=1></form>",
    "a template": "{{constructor.constructor('window.taken=1')()}} ${window.taken = 1} <%= taken %>",
    "the end of the stream": 'data: [DONE] data: {"error": {"message": "no"}} event: close',
    "the page's own state": '{"__proto__": {"taken": 1}, "compeer": {"retracted": true, "risk": "crisis"}}',
    "another direction": "\u202egnihtyna\u202c \u2066\u2067 x \u0000 \u001b[2J \ufeff",
    "a very long word": "x" * 3_000,
    "many marks": "a" + "\u0301" * 1_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_model_writes_stays_text(browser: Any, tmp_path: Path, what: str) -> None:
    text = HOSTILE[what]
    step = text[:300]
    written = (
        f"History: {step} [exploration]\nEmotion: {step} [negative, anxiety, 4]\n"
        f"Strategy: {step} [Question]\nResponse: {text} What worries you?"
    )
    guard = Guard(NoDanger(), check=lambda *_: None)
    supporter = GuardedSupporter(ScriptedWriter(written, size=40), guard, WordJudge(), capacity=8)
    with site(supporter) as address, visit(browser, address) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
        tell(page, "I lost my job.")
        page.locator(".turn:last-child .steps summary").click()
        _nothing_taken(page)
        reply = page.locator(".turn:last-child .reply").text_content()
        assert "What worries you?" in reply
        assert _letters(text) in _letters(reply)
        page.select_option("#best-of", "2")
        tell(page, text.replace("\u0000", ""))
        _nothing_taken(page)
        page.reload()
        page.wait_for_selector(".reply:not(:empty)")
        _nothing_taken(page)
        for button in ("#save-json", "#save-markdown"):
            with page.expect_download() as coming:
                page.click(button)
            coming.value.save_as(tmp_path / coming.value.suggested_filename)


def _letters(text: str) -> str:
    return "".join(one for one in text if one.isalnum())


def _nothing_taken(page: Any) -> None:
    assert page.evaluate("[window.taken ?? null, ({}).taken ?? null, document.title]") == [None, None, "compeer"]
    assert page.locator("#log :is(script, img, iframe, style, link, form, input)").count() == 0
    links = [one.get_attribute("href") for one in page.locator("#log a").all()]
    own = [*(f"tel:{number}" for number in ("911", "112", "999")), "https://findahelpline.com"]
    assert set(links) <= set(own), "only the guard's own words become links"
    assert page.is_visible("#message")
