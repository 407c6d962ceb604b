"""Guessing passwords: slow for whoever guesses, wherever they seem to come from, and no lock for whoever knows."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher, extract_parameters

from compeer.annotate import people as hashing
from compeer.annotate.access import LONGEST_LINE, WRONG_A_MINUTE, Guesses
from compeer.annotate.people import leave
from compeer.annotate.store import Refused, Store, create_store
from compeer.web.errors import Refusal
from tests.support.annotation import PASSWORD, cheap_hashes_fixture, log_in, person  # noqa: F401
from tests.support.workbench import Client, workbench

DECOY = hashing.DECOY  # before it is made cheap


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> Store:
    return create_store(str(tmp_path / "store.sqlite"))


@pytest.fixture(autouse=True, name="no_time_passes")
def no_time_passes_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """No guess falls due again because the machine is slow."""
    monkeypatch.setattr("compeer.annotate.access.monotonic", lambda: 1000.0)


def wrong() -> str:
    raise Refused("forbidden", "the name or the password is wrong.")


def right() -> str:
    return "in"


def guess(client: Client, number: int, name: str = "Ann", **headers: str) -> int:
    return client("POST", "/login", {"name": name, "password": f"guess {number}"}, headers=headers).status_code


# --- whose address it is ----------------------------------------------------------------------------------------------


def test_a_forwarded_address_is_not_believed_from_anybody(store: Store) -> None:
    person(store, "Ann")
    with workbench(store) as bench:
        stranger = Client(bench.url)
        claimed = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(14)]
        statuses = [guess(stranger, 0, f"Name {number}", **headers) for number, headers in enumerate(claimed)]
    assert statuses == [403] * WRONG_A_MINUTE + [429] * 4


def test_a_forwarded_address_is_believed_from_a_proxy_that_was_named(store: Store) -> None:
    person(store, "Ann")
    with workbench(store, proxies=("127.0.0.1",)) as bench:
        by_proxy = Client(bench.url)
        from_one = [guess(by_proxy, n, f"Nobody {n}", **{"X-Forwarded-For": "203.0.113.5"}) for n in range(12)]
        assert from_one == [403] * WRONG_A_MINUTE + [429] * 2
        assert guess(by_proxy, 0, "Nobody", **{"X-Forwarded-For": "203.0.113.6"}) == 403
        claimed = {"X-Forwarded-For": "203.0.113.77, 203.0.113.5"}  # what a client wrote itself stands before
        assert guess(by_proxy, 0, "Nobody", **claimed) == 429


# --- nobody is locked out ---------------------------------------------------------------------------------------------


def test_a_browser_that_was_in_before_comes_in_whatever_strangers_guess(store: Store) -> None:
    with workbench(store) as bench:
        ann, ben = bench.someone("Ann"), bench.someone("Ben")
        stranger = Client(bench.url)
        assert [guess(stranger, number) for number in range(12)][-1] == 429
        assert Client(bench.url)("POST", "/login", {"name": "Ann", "password": PASSWORD}).status_code == 429
        ann.log_in("Ann")
        assert ann.got("GET", "/me")["person"]["name"] == "Ann"
        assert guess(ben, 0) == 429, "a browser that knows Ben is a stranger to Ann"
        guesses = [guess(ann, number) for number in range(12)]
        assert guesses == [403] * WRONG_A_MINUTE + [429] * 2, "it has a count of its own, and no more"


def test_a_new_password_makes_all_other_browsers_strangers(store: Store) -> None:
    with workbench(store) as bench:
        ann, elsewhere, stranger = bench.someone("Ann"), Client(bench.url), Client(bench.url)
        elsewhere.log_in("Ann")
        ann.remember(ann.got("POST", "/me/password", {"old": PASSWORD, "new": "another one entirely"}))
        assert [guess(stranger, number) for number in range(12)][-1] == 429
        login = {"name": "Ann", "password": "another one entirely"}
        assert elsewhere("POST", "/login", login).status_code == 429
        assert ann("POST", "/login", login).status_code == 200


def test_the_cookie_of_a_device_tells_no_name(store: Store) -> None:
    person(store, "Ann")
    with workbench(store, public_url="https://labels.example.org") as bench:
        answer = httpx.post(f"{bench.url}/api/login", json={"name": "Ann", "password": PASSWORD})
    (cookie,) = [one for one in answer.headers.get_list("set-cookie") if one.startswith("compeer_device=")]
    assert "Ann" not in cookie
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Secure"))


def slowly(play: Callable[[Guesses, list[float]], Any]) -> list[float]:
    """Plays with guesses whose waiting is written down and not done."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    asyncio.run(play(Guesses(sleep), waited))
    return waited


def test_who_knows_the_password_comes_in_after_any_number_of_wrong_guesses() -> None:
    async def play(guesses: Guesses, waited: list[float]) -> None:
        for number in range(40):  # an address for each: none of them has guessed too often
            with pytest.raises(Refused):
                await guesses.checked(f"203.0.113.{number}", "Ann", None, wrong)
        assert len(waited) == 40 - WRONG_A_MINUTE, "each beyond the tenth has waited"
        assert await guesses.checked("198.51.100.1", "Ann", None, right) == "in"
        before = len(waited)
        assert await guesses.checked("198.51.100.2", "Ben", None, right) == "in"
        assert await guesses.checked("198.51.100.1", "Ann", "a device of hers", right) == "in"
        assert len(waited) == before, "nobody else waits, nor does she where she was before"

    waited = slowly(play)
    assert all(0 < seconds <= 60 / WRONG_A_MINUTE for seconds in waited)


def test_one_guess_after_another_and_one_place_in_line_for_an_address() -> None:
    async def play(guesses: Guesses, _: list[float]) -> None:
        for number in range(WRONG_A_MINUTE):
            with pytest.raises(Refused):
                await guesses.checked(f"203.0.113.{number}", "Ann", None, wrong)
        addresses = ["198.51.100.1", "198.51.100.1", *(f"198.51.100.{number}" for number in range(2, 20))]
        tried = [guesses.checked(address, "Ann", None, right) for address in addresses]
        found = await asyncio.gather(*tried, return_exceptions=True)
        assert found.count("in") == LONGEST_LINE
        assert isinstance(found[1], Refusal), "the second of one address"
        assert await guesses.checked("198.51.100.1", "Ann", None, right) == "in", "the line is open again"

    slowly(play)


# --- the same work for a name that nobody has -------------------------------------------------------------------------


def test_an_unknown_name_costs_the_hashing_that_a_known_one_costs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    person(store, "Ann")
    gone = person(store, "Ben")
    leave(store, gone.id)
    plain, asked = hashing.hasher(), []

    class Counting:
        def verify(self, kept: str, secret: bytes) -> bool:
            asked.append(len(secret))
            return plain.verify(kept, secret)

    monkeypatch.setattr(hashing, "hasher", Counting)
    events = []
    for name in ("Ann", "Ben", "Nobody"):
        before, length = len(asked), store.length()
        with pytest.raises(Refused, match="the name or the password is wrong"):
            log_in(store, name, "a wrong password")
        assert len(asked) == before + 1, name
        events.append(store.length() - length)
    assert len(set(asked)) == len(set(events)) == 1, "as much is hashed, and as much is written"


def test_the_hash_for_unknown_names_costs_what_others_cost() -> None:
    known = extract_parameters(PasswordHasher().hash("a password"))
    assert extract_parameters(DECOY) == known
