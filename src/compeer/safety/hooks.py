"""How a service hears of a crisis: a webhook, a hand-over to a person, a line in the log.

A hook is anything that can be called with a `CrisisEvent`. None of them may hold up or break the reply: a webhook is
sent by a thread of its own, a hand-over gets a few seconds to answer, and what goes wrong becomes a line in the log.
No seeker's words are in any log; they are in a webhook only if the service asked for them.
"""

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from compeer.errors import InputError
from compeer.models.base import in_background
from compeer.safety.risk import Kind, Level

_log = logging.getLogger("compeer.safety")


@dataclass(frozen=True)
class CrisisEvent:
    """One turn in crisis. `messages`, the seeker's words, are left out where an event is printed."""

    level: Level
    kinds: tuple[Kind, ...]
    rules: tuple[str, ...]  # what found it, by name
    locale: str | None
    language: str
    earlier: int  # how many crisis replies there were before in this conversation
    conversation: str | None = None  # the service's own name for it
    degraded: tuple[str, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    messages: tuple[str, ...] = field(default=(), repr=False)

    def as_json(self, include_text: bool) -> dict[str, Any]:
        counted = {"at": self.at.isoformat(), "messages": len(self.messages)}
        text = {"text": self.messages} if include_text else {}
        return {"event": "crisis", **asdict(self), **counted, **text}


Hook = Callable[[CrisisEvent], bool | None]  # True says that a person has been found who will take over


class LogLine:
    """Writes a line into the log, without the seeker's words."""

    def __call__(self, event: CrisisEvent) -> None:
        found = ",".join(event.kinds), ",".join(event.rules), len(event.messages)
        around = event.earlier, event.locale, len(event.degraded)
        _log.warning("crisis: kinds=%s rules=%s messages=%d earlier=%d locale=%s degraded=%d", *found, *around)


class HandOver:
    """Asks the service whether a person can take over; no answer within `timeout` seconds counts as no."""

    def __init__(self, accept: Callable[[CrisisEvent], bool], timeout: float = 2.0) -> None:
        self._accept, self._timeout = accept, timeout

    def __call__(self, event: CrisisEvent) -> bool:
        return in_background(lambda: bool(self._accept(event))).result(self._timeout)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is not followed: it could carry the event, and its headers, to somebody else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts each event as JSON to a URL, from a thread of its own, some times over where it fails."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        include_text: bool = False,
        timeout: float = 5.0,
        attempts: int = 3,
        pause: float = 1.0,
    ) -> None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            good = False
        if not good:
            raise InputError("this is no address of a webhook.", field="url", do="Give one as https://host/path.")
        self._url, self._host = url, parts.hostname
        self._headers = {**(headers or {}), "Content-Type": "application/json; charset=utf-8"}
        self._include_text, self._timeout = include_text, timeout
        self._attempts, self._pause = attempts, pause
        self._opener = urllib.request.build_opener(_NoRedirect)  # httpx logs the whole address, which may hold a key
        self._sending = ThreadPoolExecutor(max_workers=2, thread_name_prefix="compeer-webhook")
        self._open: set[Future[None]] = set()

    def __call__(self, event: CrisisEvent) -> None:
        sending = self._sending.submit(self._send, event)
        self._open.add(sending)
        sending.add_done_callback(self._open.discard)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all events are sent or given up, as a service does before it ends; False if time ran out."""
        return not wait_for(self._open.copy(), timeout).not_done

    def _send(self, event: CrisisEvent) -> None:
        try:
            body = json.dumps(event.as_json(self._include_text), ensure_ascii=False).encode("utf-8", "replace")
            request = urllib.request.Request(self._url, data=body, headers=self._headers, method="POST")
            for attempt in range(1, self._attempts + 1):
                failure = self._failure(request)
                if failure is None:
                    return
                # The address may hold a key: only the host is named.
                _log.warning("webhook to %s failed, attempt %d of %d: %s", self._host, attempt, self._attempts, failure)
                if attempt < self._attempts:
                    time.sleep(self._pause * 2 ** (attempt - 1))
        except Exception as error:
            _log.error("webhook to %s was given up: %s", self._host, type(error).__name__)

    def _failure(self, request: urllib.request.Request) -> str | None:
        try:
            with self._opener.open(request, timeout=self._timeout) as reply:
                reply.read(1024)
        except urllib.error.HTTPError as error:
            return f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        return None
