"""A real browser on our pages, where Chromium and playwright are at hand."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from compeer.chat import GuardedSupporter
from compeer.chat.app import ServeSettings, create_app
from tests.support.served import FREE, served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DONE = "#send:not(.stop)"


@pytest.fixture(scope="module", name="browser")
def browser_fixture() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextlib.contextmanager
def site(supporter: GuardedSupporter, settings: ServeSettings = FREE) -> Iterator[str]:
    """The application around a supporter, by its address."""
    with served(create_app(supporter, settings=settings), grace=1) as server:
        yield server.url


@contextlib.contextmanager
def visit(browser: Any, address: str, errors: str | None = None, ready: str = "", **options: Any) -> Iterator[Any]:
    """A page at an address, once `ready` can be seen; at the end nothing was logged (but for `errors`), nobody else was
    asked, and no text has become code."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "locale": "en-GB"} | options)
    context.set_default_timeout(60_000)
    asked, logged = [], []
    context.on("request", lambda request: asked.append(urlsplit(request.url)))
    context.on("console", lambda message: logged.append(message.text))
    context.on("weberror", lambda error: logged.append(str(error.error)))
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(ready or ("#speaks:not(:empty)" if errors is None else "#language"))
    yield page
    hacked = page.evaluate("window.hacked")
    context.close()
    assert hacked is None
    assert {one.netloc for one in asked if one.scheme not in ("data", "blob")} == {urlsplit(address).netloc}
    assert [one for one in logged if errors is None or errors not in one] == []


def tell(page: Any, text: str) -> None:
    """Writes a message and waits for the answer's end."""
    page.fill("#message", text)
    page.press("#message", "Enter")
    page.wait_for_selector(DONE)
