"""What the tests of the workbench share: a client that keeps its session, and a workbench on a real port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from compeer.annotate.api_models import WorkbenchSettings
from compeer.annotate.app import workbench_app
from compeer.annotate.people import add_person
from compeer.annotate.store import Store
from compeer.ser.record import SerRecord
from tests.support.annotation import PASSWORD
from tests.support.served import served


class Client:
    """Somebody at the workbench: a person with a cookie, or a program with a token."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60, verify=False)  # made in no time, as `served.http`

    def log_in(self, name: str, password: str = PASSWORD) -> dict[str, Any]:
        """Begins a session, which later calls carry."""
        answer = self.http.post("/api/login", json={"name": name, "password": password})
        answer.raise_for_status()
        return self.remember(answer.json())

    def remember(self, session: dict[str, Any]) -> dict[str, Any]:
        """Takes a session's token along."""
        token = session["token"]
        self.http.headers.update({"Authorization": f"Bearer {token}"} if token else {"X-CSRF-Token": session["csrf"]})
        return session

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Calls the API."""
        return self.http.request(method, f"/api{path}", **({} if body is None else {"json": body}), **more)

    def got(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The same, where it must succeed: the JSON that comes back."""
        answer = self(method, path, body, **more)
        assert answer.is_success, (answer.status_code, answer.text)
        return answer.json() if answer.content else None


@dataclass
class Bench:
    """A workbench on a port."""

    url: str
    store: Store

    def someone(self, name: str, *roles: str, **more: Any) -> Client:
        """A new person or program, logged in."""
        add_person(self.store, name, PASSWORD, roles or ("annotator",), ("en",), **more)
        client = Client(self.url)
        client.log_in(name)
        return client


@contextmanager
def workbench(store: Store, proxies: Sequence[str] = (), **settings: Any) -> Iterator[Bench]:
    """Serves a workbench until the block ends."""
    app = workbench_app(store, WorkbenchSettings(**{"rate": None, **settings}))
    with served(app, proxies=proxies) as running:
        yield Bench(running.url, store)


def lines(*records: SerRecord) -> bytes:
    """Records as a file to be taken in."""
    return b"".join(one.model_dump_json().encode() + b"\n" for one in records)
