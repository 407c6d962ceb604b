"""The workbench over HTTP: who may do what, what cannot be guessed, and the whole life of an item."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from compeer.annotate.access import COOKIE
from compeer.annotate.backup import verify
from compeer.annotate.items import add_items
from compeer.annotate.store import Store, create_store
from compeer.cli.annotate import annotate
from compeer.dialogue import Media
from compeer.errors import InputError
from compeer.progress import console
from compeer.ser.record import read_records
from tests.support.annotation import (  # noqa: F401
    PASSWORD,
    RIGHT,
    cheap_hashes_fixture,
    new_item,
    person,
    record,
    steps_project,
)
from tests.support.served import served
from tests.support.workbench import Bench, Client, lines, workbench

ANSWERS = {"history": True, "emotion": True, "strategy": True, "preference": "first"}


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> Store:
    return create_store(str(tmp_path / "store.sqlite"))


@pytest.fixture(name="bench")
def bench_fixture(store: Store) -> Iterator[Bench]:
    with workbench(store) as started:
        yield started


def label(client: Client, **more: Any) -> int:
    """Labels whatever comes next, and says which item it was."""
    task = client.got("POST", "/next", {})["task"]
    client.got("PUT", f"/items/{task['item']}/labels", {"answers": {**ANSWERS, **more}, "seconds": 30})
    return int(task["item"])


def test_the_whole_life(bench: Bench) -> None:
    boss = bench.someone("Boss", "admin")
    made = boss.got(
        "POST",
        "/projects",
        {"name": "pilot", "task": "steps", "guidelines": "# Be kind", "settings": {"correction_seconds": 0}},
    )
    pid = made["id"]
    counts = boss.got("POST", f"/projects/{pid}/items", content=lines(record(1), record(2)))["counts"]
    assert counts["added"] == 2
    people = []
    for name, roles in (("Ann", ["annotator"]), ("Ben", ["annotator"]), ("Cleo", ["adjudicator"])):
        invitation = boss.got("POST", "/invitations", {"roles": roles, "languages": ["en"]})
        assert invitation["link"] == f"{bench.url}/join#{invitation['invitation']}"
        client = Client(bench.url)
        joined = {"invitation": invitation["invitation"], "name": name, "password": PASSWORD}
        session = client.remember(client.got("POST", "/join", joined))
        assert client.got("GET", "/me")["person"] == session["person"]
        assert Client(bench.url)("POST", "/join", {**joined, "name": "Eve"}).status_code == 403
        people.append(client)
    ann, ben, cleo = people
    assert ann.got("GET", f"/projects/{pid}/guidelines") == {"version": 1, "text": "# Be kind"}

    got = ann.got("POST", "/next", {})
    task = got["task"]
    assert (got["rest"], got["mine"], got["left"], got["today"]["cap"]) == (None, 0, 1, 150)
    assert task["kind"] == "first"
    assert [step["decisions"] for step in task["steps"]] == [
        {"stage": "exploration"},
        {"sentiment": "negative", "emotion": "sadness", "intensity": 3},
        {"strategy": "Question"},
    ]
    assert [question["name"] for question in task["questions"]] == ["history", "emotion", "strategy", "preference"]
    assert task["questions"][0]["values"] == [True, False]
    assert "author" not in json.dumps(task)
    path = f"/items/{task['item']}"
    draft = ann.got("PUT", f"{path}/labels", {"answers": {"history": True}, "final": False})
    assert draft["expires"] > time.time() * 1000
    assert ann.got("POST", "/next", {"project": pid})["task"]["answers"] == {"history": True}
    whole = {"answers": ANSWERS, "seconds": 30, "guidelines": 1, "note": "<b>clear</b>"}
    for _ in range(2):
        kept = ann.got("PUT", f"{path}/labels", whole)
    assert kept == {"item": task["item"], "final": True, "expires": None, "known": None}
    assert ann.got("GET", "/me")["today"]["labels"] == 1, "the same label twice is one"
    own = ann.got("GET", path)
    assert (own["labelled"], own["changeable"], own["note"], own["answers"]) == (True, False, "<b>clear</b>", ANSWERS)
    assert not ann.got("GET", "/mine")["labels"][0]["changeable"]

    displayed = ben.got("POST", "/next", {})["task"]
    assert displayed["item"] == task["item"], "what somebody has begun comes first"
    assert "clear" not in json.dumps(displayed)
    assert displayed["others"] == []
    other = {"history": False, "emotion": True, "strategy": True, "preference": "both"}
    ben.got("PUT", f"{path}/labels", {"answers": other, "seconds": 20})
    dispute = cleo.got("POST", "/next", {})["task"]
    assert (dispute["item"], dispute["kind"]) == (task["item"], "adjudication")
    assert [question["name"] for question in dispute["questions"]] == ["history", "preference"]
    assert {one["note"] for one in dispute["others"]} == {"<b>clear</b>", None}
    assert "Ann" not in json.dumps(dispute)
    assert "A2" not in json.dumps(dispute)
    cleo.got("PUT", f"{path}/labels", {"answers": {"history": True, "preference": "both"}})
    assert ann("PUT", f"{path}/labels", {"answers": other}).status_code == 409, "it is final"
    for client in (ann, ben):
        label(client, preference="both")

    answered = boss.got("GET", f"/agreement?project={pid}")
    assert answered["questions"]["history"]["percent"] == 0.5
    assert answered["pairs"][0]["annotators"] == ["A2", "A3"]
    assert answered["stages"] == {"closed": 2}
    table = boss.got("GET", f"/disagreements?project={pid}&question=history")
    assert (table["total"], table["pages"], table["rows"][0]["consensus"]) == (1, 1, True)
    assert table["rows"][0]["answers"] == {"A2": True, "A3": False, "A4": True}
    all_of_it = boss.got("GET", f"{path}/everything")
    assert [one["annotator"] for one in all_of_it["labels"]] == ["A2", "A3", "A4"]
    assert all_of_it["author"] == "model-a"
    assert {one["name"] for one in all_of_it["responses"]} == {"candidate", "reference"}
    out = boss("GET", f"/export?project={pid}")
    assert "attachment" in out.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(out.content)) as archive:
        assert sorted(archive.namelist()) == ["agreement.json", "annotations.jsonl", "records.jsonl"]
        folder = Path(archive.extract("records.jsonl", bench.store.engine.url.database + ".out"))
    found = list(read_records(folder))
    assert {one.preference.value for one in found if one.preference} == {"both"}
    assert boss("GET", f"/export?project={pid}&format=records").content == folder.read_bytes()
    assert boss.got("DELETE", "/dialogues/d1") == {"items": 1}
    assert boss("DELETE", "/dialogues/d1").status_code == 404
    kinds = [row["kind"] for row in boss.got("GET", "/audit?limit=500")["rows"]]
    assert {"joined", "logged_in", "labelled", "exported", "deleted"} <= set(kinds)
    assert verify(bench.store).problems == ()


def test_programs_annotate_too(bench: Bench) -> None:
    steps_project(bench.store, 1)
    boss, robot = bench.someone("Boss", "admin"), bench.someone("Robot", program=True)
    assert not robot.http.cookies, "a program has a token and no cookie"
    item = label(robot)
    assert boss.got("GET", f"/items/{item}/everything")["labels"][0]["source"] == "llm"
    person = bench.someone("Ann")
    cookie = person.http.cookies[COOKIE]
    asked = httpx.get(f"{bench.url}/api/me", headers={"Authorization": f"Bearer {cookie}"})
    assert asked.status_code == 401, "a person's session is no token"


# --- roles and blindness ----------------------------------------------------------------------------------------------

ADMINS_ONLY = [
    ("POST", "/projects", {"name": "mine", "task": "steps"}),
    ("PUT", "/projects/1/settings", {}),
    ("PUT", "/projects/1/guidelines", {"text": "Mine."}),
    ("POST", "/projects/1/items", None),
    ("DELETE", "/dialogues/d1", None),
    ("POST", "/invitations", {"roles": ["admin"], "languages": ["en"]}),
    ("GET", "/invitations", None),
    ("DELETE", "/invitations/1", None),
    ("GET", "/people", None),
    ("PATCH", "/people/1", {"roles": ["admin"]}),
    ("DELETE", "/people/1", None),
    ("GET", "/audit", None),
    ("GET", "/agreement?project=1", None),
    ("GET", "/disagreements?project=1&question=history", None),
    ("GET", "/passed?project=1", None),
    ("GET", "/export?project=1", None),
]
EVERYONE = [("GET", "/me", None), ("GET", "/projects", None), ("POST", "/logout", None), ("POST", "/leave", None)]
WORKERS = [("POST", "/next", {}), ("GET", "/mine", None)]


def test_roles_are_checked_for_every_call(bench: Bench) -> None:
    steps_project(bench.store, 2)
    boss, ann = bench.someone("Boss", "admin"), bench.someone("Ann", "annotator", "adjudicator")
    nobody = Client(bench.url)
    item = label(ann)
    of_item = [("GET", "everything", None), ("POST", "settle", {"keep": True})]
    mine = [("GET", "", None), ("PUT", "labels", {"answers": ANSWERS}), ("POST", "skip", {"reason": "x"})]
    mine += [("POST", "flag", {"reason": "x"}), ("POST", "decline", None), ("POST", "release", None)]
    for method, path, body in [*ADMINS_ONLY, *((m, f"/items/{item}/{p}", b) for m, p, b in of_item)]:
        assert nobody(method, path, body).status_code == 401, path
        answer = ann(method, path, body if path != "/projects/1/items" else None, **_raw(path))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path
    for method, path, body in [*EVERYONE, *WORKERS, *((m, f"/items/{item}/{p}".rstrip("/"), b) for m, p, b in mine)]:
        assert nobody(method, path, body).status_code == 401, path
    for method, path, body in [*WORKERS, *((m, f"/items/{item}/{p}".rstrip("/"), b) for m, p, b in mine)]:
        assert boss(method, path, body).status_code == 403, "an admin has no share in the work"
    described = boss.http.get("/openapi.json").json()["paths"]
    for path, operations in described.items():
        for method in operations:
            if path not in ("/api/login", "/api/join", "/healthz"):
                filled = path.replace("{how}", "release").replace("{dialogue}", "d")
                filled = filled.format(item=item, project=1, person=1, invitation=1, utterance=0, number=0)
                assert nobody.http.request(method, filled).status_code in (400, 401), path


def test_an_open_invitation_is_listed_and_can_be_withdrawn(bench: Bench) -> None:
    boss = bench.someone("Boss", "admin")
    made = boss.got("POST", "/invitations", {"roles": ["annotator"], "languages": ["en"], "days": 2})
    (listed,) = boss.got("GET", "/invitations")["invitations"]
    assert {key: listed[key] for key in ("roles", "languages", "program")} == {
        "roles": ["annotator"],
        "languages": ["en"],
        "program": False,
    }
    assert made["invitation"] not in str(listed)
    assert boss("DELETE", f"/invitations/{listed['id']}").status_code == 204
    assert boss("DELETE", f"/invitations/{listed['id']}").status_code == 404
    assert boss.got("GET", "/invitations")["invitations"] == []
    joining = {"invitation": made["invitation"], "name": "Eve", "password": PASSWORD}
    assert Client(bench.url)("POST", "/join", joining).status_code == 403


def _raw(path: str) -> dict[str, Any]:
    return {"content": b"{}"} if path.endswith("/items") else {}


def test_what_is_anothers_cannot_be_fetched_by_guessing(tmp_path: Path, store: Store) -> None:
    (tmp_path / "face.png").write_bytes(b"picture")
    (tmp_path / "notes.txt").write_text("secret", encoding="utf-8")
    project = steps_project(store)
    one = record(1)
    media = tuple(
        Media(kind="image", path=path) for path in ("face.png", "notes.txt", "../store.sqlite", "/etc/passwd")
    )
    utterance = one.history[0].model_copy(update={"media": media})
    add_items(store, project, [new_item(one.model_copy(update={"history": (utterance,)}))])
    with workbench(store, media=tmp_path) as bench:
        ann, ben, cleo = bench.someone("Ann"), bench.someone("Ben"), bench.someone("Cleo")
        boss = bench.someone("Boss", "admin")
        task = ann.got("POST", "/next", {})["task"]
        item, urls = task["item"], [one["url"] for one in task["history"][0]["media"]]
        picture = ann.http.get(urls[0])
        assert (picture.content, picture.headers["content-type"]) == (b"picture", "image/png")
        for url in urls[1:]:
            assert ann.http.get(url).status_code == 404, "only pictures and clips in the folder are sent"
            assert boss.http.get(url).status_code == 404
        label(ann)
        ben.got("POST", "/next", {})
        assert ben.http.get(urls[0]).status_code == 200
        assert cleo.http.get(urls[0]).status_code == 404
        nothing = cleo("GET", f"/items/{item + 1}")
        for method, path, body in [
            ("GET", "", None),
            ("PUT", "/labels", {"answers": ANSWERS}),
            ("PUT", "/labels", {"answers": {}, "final": False}),
            ("POST", "/skip", {"reason": "x"}),
            ("POST", "/flag", {"reason": "x"}),
            ("POST", "/decline", None),
            ("POST", "/release", None),
        ]:
            theirs = cleo(method, f"/items/{item}{path}", body)
            none = cleo(method, f"/items/{item + 1}{path}", body)
            assert (theirs.status_code, theirs.text) == (404, none.text), "no different from what is not there"
        assert nothing.status_code == 404
        assert cleo.got("GET", "/mine") == {"labels": []}


def test_an_admin_who_annotates_sees_no_label_before_an_item_is_closed(bench: Bench) -> None:
    steps_project(bench.store, 1)
    both, ann, boss = bench.someone("Both", "admin", "annotator"), bench.someone("Ann"), bench.someone("Boss", "admin")
    item = label(ann)
    assert both("GET", f"/items/{item}/everything").status_code == 409
    assert boss("GET", f"/items/{item}/everything").status_code == 200
    assert label(both, history=False) == item
    assert both.got("GET", "/disagreements?project=1&question=history")["total"] == 0
    assert boss.got("GET", "/disagreements?project=1&question=history")["total"] == 1
    assert boss("GET", "/disagreements?project=1&question=king").status_code == 400


def test_gold_and_training_items(bench: Bench) -> None:
    project = steps_project(bench.store, 2, gold_every=2)
    add_items(bench.store, project, [new_item(record(50 + n), RIGHT) for n in range(4)], "gold")
    add_items(bench.store, project, [new_item(record(90), RIGHT)], "training")
    ann = bench.someone("Ann")
    task = ann.got("POST", "/next", {})["task"]
    assert (task["kind"], ann.got("GET", "/projects")["projects"][0]["left"]) == ("training", 6), "gold is counted"
    kept = ann.got("PUT", f"/items/{task['item']}/labels", {"answers": ANSWERS})
    assert kept["known"] == RIGHT
    assert ann("PUT", f"/items/{task['item']}/labels", {"answers": RIGHT}).status_code == 409
    displayed = []
    while task := ann.got("POST", "/next", {})["task"]:
        displayed.append(json.dumps(task))
        ann.got("PUT", f"/items/{task['item']}/labels", {"answers": ANSWERS})
    assert len(displayed) >= 2
    assert "gold" not in "".join(displayed) + json.dumps(ann.got("GET", "/mine"))


def test_passing_items_on_and_care(bench: Bench) -> None:
    project = steps_project(bench.store, 3)
    add_items(bench.store, project, [new_item(record(9), crisis=True)], priority=5)
    ann, boss = bench.someone("Ann"), bench.someone("Boss", "admin")
    hard = ann.got("POST", "/next", {})["task"]
    assert hard["crisis"]
    for _ in range(2):
        ann.got("POST", f"/items/{hard['item']}/decline")
    assert ann("POST", f"/items/{hard['item']}/skip", {"reason": " "}).status_code == 400
    known = ann.got("POST", "/next", {})["task"]
    ann.got("POST", f"/items/{known['item']}/release")
    assert ann.got("POST", "/next", {})["task"]["item"] == known["item"], "a pause changes nothing"
    for _ in range(2):
        ann.got("POST", f"/items/{known['item']}/flag", {"reason": "<i>not a talk</i>"})
    assert {row["why"] for row in boss.got("GET", "/passed?project=1")["rows"]} == {"declined", "flagged"}
    boss.got("POST", f"/items/{known['item']}/settle", {"keep": False})
    assert boss("POST", f"/items/{known['item']}/settle", {"keep": False}).status_code == 409
    changed = ann.got("PATCH", "/me", {"declines_crisis": True, "daily_cap": 1})
    assert (changed["declines_crisis"], changed["daily_cap"], changed["languages"]) == (True, 1, ["en"])
    label(ann)
    rest = ann.got("POST", "/next", {})
    assert (rest["task"], rest["rest"], rest["today"]["labels"]) == (None, "daily cap", 1)
    assert ann.got("PATCH", "/me", {})["daily_cap"] == 1
    ann.got("POST", "/leave")
    assert ann("GET", "/me").status_code == 401
    assert boss.got("GET", "/people")["people"][0]["name"] is None
    assert boss("POST", "/leave").status_code == 409, "the last admin"


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_cookies_and_csrf(bench: Bench, tmp_path: Path) -> None:
    steps_project(bench.store, 1)
    ann, ben = bench.someone("Ann"), bench.someone("Ben")
    answer = ann.http.post("/api/login", json={"name": "Ann", "password": PASSWORD})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    token = ann.http.headers.pop("X-CSRF-Token")
    for wrong in (
        {},
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": token},
        {"X-CSRF-Token": ben.http.headers["X-CSRF-Token"]},
    ):
        refused = ann("POST", "/next", {}, headers=wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf"), "of an earlier session, or none"
    assert ann("GET", "/me").json()["csrf"] == answer.json()["csrf"] != token
    assert ann("POST", "/next", {}, headers={"X-CSRF-Token": answer.json()["csrf"]}).status_code == 200
    assert ann("POST", "/next", content=b"{}", headers={"Content-Type": "text/plain"}).status_code in (400, 403)
    body = {"name": "Ann", "password": PASSWORD}
    assert ann("POST", "/login", body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    ben.got("POST", "/logout")
    assert ben("GET", "/me").status_code == 401
    other = create_store(str(tmp_path / "other.sqlite"))
    with workbench(other, public_url="https://labels.example.org", hosts=("labels.example.org",)) as behind:
        headers = {"Host": "labels.example.org"}
        assert httpx.get(f"{behind.url}/api/me").status_code == 421
        person(other, "Boss", "admin")
        answer = httpx.post(f"{behind.url}/api/login", json={"name": "Boss", "password": PASSWORD}, headers=headers)
        assert "Secure" in answer.headers["set-cookie"]
        headers |= {"Cookie": answer.headers["set-cookie"].partition(";")[0], "X-CSRF-Token": answer.json()["csrf"]}
        wanted = {"roles": ["annotator"], "languages": ["en"]}
        invited = httpx.post(f"{behind.url}/api/invitations", json=wanted, headers=headers).json()
        assert invited["link"].startswith("https://labels.example.org/join#")


def test_a_password_can_be_changed(bench: Bench) -> None:
    ann, elsewhere = bench.someone("Ann"), Client(bench.url)
    elsewhere.log_in("Ann")
    assert ann("POST", "/me/password", {"old": "wrong wrong wrong", "new": "another one entirely"}).status_code == 403
    assert ann("POST", "/me/password", {"old": PASSWORD, "new": "short"}).status_code == 400
    ann.remember(ann.got("POST", "/me/password", {"old": PASSWORD, "new": "another one entirely"}))
    assert ann("GET", "/me").status_code == 200
    assert elsewhere("GET", "/me").status_code == 401


def test_guessing_is_slowed_down(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compeer.annotate.access.monotonic", lambda: 1000.0)
    ann = bench.someone("Ann")
    stranger = Client(bench.url)
    statuses = [stranger("POST", "/login", {"name": "Ann", "password": f"guess {n}"}).status_code for n in range(14)]
    assert statuses == [403] * 10 + [429] * 4
    late = stranger("POST", "/login", {"name": "Ann", "password": PASSWORD})
    assert late.status_code == 429, "not even the right one"
    assert int(late.headers["retry-after"]) >= 1
    assert stranger("POST", "/join", {"invitation": "1.x", "name": "Eve", "password": PASSWORD}).status_code == 429
    assert ann("GET", "/me").status_code == 200, "who is in stays in"


def test_the_command_serves(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: dict[str, Any] = {}

    def serve_app(app: Any, sock: Any, *, grace: float, on_start: Any, proxies: Any) -> None:
        opened.update(app=app, host=sock.getsockname()[0], grace=grace, proxies=proxies)
        on_start()
        sock.close()

    def command(*words: str) -> Any:
        return CliRunner().invoke(annotate, ["serve", name, "--port", "0", *words])

    monkeypatch.setattr("compeer.web.serving.serve", serve_app)
    name = str(store.engine.url.database)
    with console.capture() as displayed:
        done = command("--public-url", "https://labels.example.org", "--media", str(tmp_path))
    assert done.exit_code == 0, done.exception
    assert opened["proxies"] == ()
    assert "everybody is one client" in displayed.get()
    assert (opened["host"], opened["app"].state.media) == ("127.0.0.1", tmp_path)
    assert "https://labels.example.org/" in displayed.get()
    with served(opened["app"]) as started:
        assert httpx.get(f"{started.url}/healthz").json()["status"] == "ok"
        named = httpx.get(f"{started.url}/healthz", headers={"Host": "labels.example.org"})
        assert named.status_code == 200
        assert httpx.get(f"{started.url}/healthz", headers={"Host": "evil.example"}).status_code == 421
        assert httpx.get(f"{started.url}/join").headers["content-type"].startswith("text/html")
    with console.capture() as displayed:
        command("--host", "0.0.0.0")
    assert "unprotected" in displayed.get()
    assert command("--proxy", "127.0.0.1", "--proxy", "10.0.0.0/8").exit_code == 0
    assert opened["proxies"] == ("127.0.0.1", "10.0.0.0/8")
    for wrong in (["--proxy", "*"], ["--public-url", "labels.example.org"], ["--media", str(tmp_path / "none")]):
        assert isinstance(command(*wrong).exception, InputError)
