"""People: who comes in, what they may do, and what stays when they leave."""

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from compeer.annotate import people as hashing
from compeer.annotate.access import change_password, end_session, person_of
from compeer.annotate.backup import verify
from compeer.annotate.items import add_items
from compeer.annotate.labels import media_of, own_labels, submit
from compeer.annotate.people import audit_log, change_person, invitations, invite, join, leave, people, withdraw
from compeer.annotate.projects import ProjectSettings, add_project, change_settings, guidelines_of, set_guidelines
from compeer.annotate.queue import next_task
from compeer.annotate.schema import INVITATIONS, SESSIONS, TEXTS
from compeer.annotate.store import Refused, Store, create_store
from compeer.dialogue import Media
from tests.support.annotation import (  # noqa: F401
    PASSWORD,
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    log_in,
    new_item,
    person,
    record,
    steps_project,
)


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path, clock: Clock) -> Store:
    return create_store(str(tmp_path / "store.sqlite"), clock)


def test_an_invitation_works_once_and_for_a_while(store: Store, clock: Clock) -> None:
    boss = person(store, "Boss", "admin")
    token = invite(store, ["annotator"], ["EN", "zh"], actor=boss)
    for wrong in ("", "1", "1.", token[:-1], f"2{token[1:]}", "٣.abc", "9" * 40):
        with pytest.raises(Refused, match="not valid"):
            join(store, wrong, "Eve", PASSWORD)
    ann = join(store, token, " Ann ", PASSWORD)
    assert (ann.name, ann.pseudonym, ann.roles, ann.languages) == ("Ann", "A2", ("annotator",), ("en", "zh"))
    with pytest.raises(Refused, match="was used"):
        join(store, token, "Eve", PASSWORD)
    late = invite(store, ["annotator"], ["en"], days=1, actor=boss)
    clock.seconds += 86_401
    with pytest.raises(Refused, match="not valid"):
        join(store, late, "Eve", PASSWORD)
    program = join(store, invite(store, ["annotator"], ["en"], program=True), "robot", PASSWORD)
    assert (program.pseudonym, program.program) == ("P3", True)
    with store.read() as connection:
        assert token.partition(".")[2] not in str(connection.execute(select(INVITATIONS)).all())
    assert verify(store).problems == ()


def test_an_invitation_can_be_withdrawn_until_somebody_took_it_up(store: Store, clock: Clock) -> None:
    boss = person(store, "Boss", "admin")
    sent, lost = (invite(store, ["annotator"], ["zh", "en"], program=program, actor=boss) for program in (False, True))
    old = invite(store, ["admin"], ["en"], days=1, actor=boss)
    assert [(one.id, one.program, one.expires - store.now()) for one in invitations(store, boss)] == [
        (1, False, 14 * 86_400_000),
        (2, True, 14 * 86_400_000),
        (3, False, 86_400_000),
    ]
    assert (invitations(store)[0].roles, invitations(store)[0].languages) == (("annotator",), ("en", "zh"))
    withdraw(store, 2, boss)
    with pytest.raises(Refused, match="not valid"):
        join(store, lost, "Eve", PASSWORD)
    join(store, sent, "Ann", PASSWORD)
    clock.seconds += 86_401
    assert invitations(store) == [], "used, withdrawn, too old"
    for closed in (1, 2, 3, 4):
        with pytest.raises(Refused, match="no such open invitation"):
            withdraw(store, closed, boss)
    with pytest.raises(Refused, match="not valid"):
        join(store, old, "Eve", PASSWORD)
    log = audit_log(store, boss)
    assert [(row["actor"], row["body"]["invitation"]) for row in log if row["kind"] == "withdrawn"] == [("A1", 2)]
    assert verify(store).problems == ()


def test_names_passwords_roles_and_languages_are_checked(store: Store) -> None:
    person(store, "Ann")
    with pytest.raises(Refused, match="taken"):
        person(store, "Ann")
    for name in ("", " ", "a\nb", "x" * 101, "\ud800"):
        with pytest.raises(Refused, match="a name has"):
            person(store, name)
    with pytest.raises(Refused, match="no role"):
        person(store, "Ben", "king")
    with pytest.raises(Refused, match="ISO 639"):
        person(store, "Ben", languages=("English!",))
    with pytest.raises(Refused, match="a password has"):
        join(store, invite(store, ["annotator"], ["en"]), "Ben", "short")
    assert len(people(store)) == 1


def test_logging_in_and_out(store: Store, clock: Clock) -> None:
    ann = person(store, "Ann")
    for name, password in (("Ann", "wrong wrong wrong"), ("Nobody", PASSWORD), ("Ann", "x" * 5000)):
        with pytest.raises(Refused, match="the name or the password is wrong"):
            log_in(store, name, password)
    token = log_in(store, "Ann", PASSWORD)
    assert person_of(store, token) == ann
    assert person_of(store, token + "x") is None
    with store.read() as connection:
        assert token not in str(connection.execute(select(SESSIONS)).all())
    end_session(store, token)
    assert person_of(store, token) is None
    token = log_in(store, "Ann", PASSWORD)
    clock.seconds += 8 * 86_400
    assert person_of(store, token) is None
    token = log_in(store, "Ann", PASSWORD)
    with pytest.raises(Refused, match="old password"):
        change_password(store, ann, "wrong wrong wrong", "another one entirely")
    change_password(store, ann, PASSWORD, "another one entirely")
    assert person_of(store, token) is None, "all sessions end"
    log_in(store, "Ann", "another one entirely")
    assert verify(store).problems == ()


def test_passwords_are_kept_as_argon2_hashes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert hashing.hashed_secret(PASSWORD).startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    person(store, "Ann")
    with store.read() as connection:
        assert PASSWORD not in str(connection.execute(select(TEXTS)).all())


def test_roles_are_asked_for_everything(store: Store) -> None:
    ann, boss = person(store, "Ann"), person(store, "Boss", "admin")
    project = steps_project(store, 1)
    for forbidden in (
        lambda: invite(store, ["admin"], ["en"], actor=ann),
        lambda: invitations(store, ann),
        lambda: withdraw(store, 1, ann),
        lambda: change_person(store, ann.id, ann, roles=["admin"]),
        lambda: change_person(store, boss.id, ann, daily_cap=1),
        lambda: leave(store, boss.id, ann),
        lambda: people(store, ann),
        lambda: audit_log(store, ann),
        lambda: add_project(store, "mine", "steps", actor=ann),
        lambda: set_guidelines(store, project.id, "Mine.", ann),
        lambda: change_settings(store, project.id, ProjectSettings(), ann),
        lambda: add_items(store, project, [], actor=ann),
        lambda: next_task(store, boss, project.id),
    ):
        with pytest.raises(Refused, match="this needs the role") as refused:
            forbidden()
        assert refused.value.why == "forbidden"
    with pytest.raises(Refused, match="last admin"):
        leave(store, boss.id, boss)
    with pytest.raises(Refused, match="last admin"):
        change_person(store, boss.id, boss, roles=["annotator"])
    with pytest.raises(Refused, match="cannot be changed"):
        change_person(store, ann.id, ann, pseudonym="A9")


def test_who_leaves_takes_the_name_and_leaves_the_labels(store: Store, tmp_path: Path) -> None:
    zelda = person(store, "Zelda Unmistakable")
    person(store, "Boss", "admin")
    project = steps_project(store, 2)
    task = next_task(store, zelda, project.id)
    assert not isinstance(task, str)
    submit(store, zelda, task.item, RIGHT)
    next_task(store, zelda, project.id)
    token = log_in(store, "Zelda Unmistakable", PASSWORD)
    leave(store, zelda.id, zelda)
    assert person_of(store, token) is None
    with pytest.raises(Refused, match="wrong"):
        log_in(store, "Zelda Unmistakable", PASSWORD)
    with pytest.raises(Refused, match="needs the role"):
        submit(store, zelda, task.item, {**RIGHT, "history": False})
    assert [label.item for label in own_labels(store, zelda, project.id)] == [task.item]
    assert next((one.name, one.pseudonym, one.active) for one in people(store)) == (None, "A1", False)
    assert verify(store).problems == ()
    for path in tmp_path.iterdir():
        assert b"Unmistakable" not in path.read_bytes()
    person(store, "Zelda Unmistakable")  # the name is free again


def test_the_audit_log_tells_who_did_what_without_any_text(store: Store) -> None:
    boss = person(store, "Boss", "admin")
    invite(store, ["annotator"], ["en"], actor=boss)
    log_in(store, "Boss", PASSWORD)
    log = audit_log(store, boss)
    assert [(row["kind"], row["actor"]) for row in log] == [
        ("logged_in", "A1"),
        ("invited", "A1"),
        ("joined", None),
    ]
    assert [row["seq"] for row in audit_log(store, boss, before=3, limit=1)] == [2]
    assert "Boss" not in json.dumps(log)


def test_guidelines_keep_their_versions(store: Store) -> None:
    project = steps_project(store)
    assert set_guidelines(store, project.id, "Be kind.") == 1, "the same words are no new version"
    assert set_guidelines(store, project.id, "Be brief.\n<script>") == 2
    assert guidelines_of(store, project.id).text == "Be brief.\n<script>"
    assert guidelines_of(store, project.id, 1).text == "Be kind."
    with pytest.raises(Refused, match="no such version"):
        guidelines_of(store, project.id, 3)


def test_pictures_are_for_those_who_were_given_the_item(store: Store) -> None:
    ann, ben, boss = person(store, "Ann"), person(store, "Ben"), person(store, "Boss", "admin")
    project = steps_project(store)
    one = record(1)
    utterance = one.history[0].model_copy(update={"media": (Media(kind="image", path="face.png"),)})
    add_items(store, project, [new_item(one.model_copy(update={"history": (utterance,)}))])
    task = next_task(store, ann, project.id)
    assert not isinstance(task, str)
    (media,) = task.history[0].media
    assert (media.kind, media.url) == ("image", f"/api/media/{task.item}/0/0"), "no path is sent"
    assert media_of(store, ann, task.item, 0, 0).path == "face.png"
    assert media_of(store, boss, task.item, 0, 0).path == "face.png"
    with pytest.raises(Refused, match="no such item"):
        media_of(store, ben, task.item, 0, 0)
    for utterance, number in ((0, 1), (1, 0), (-1, 0), (0, -1)):
        with pytest.raises(Refused, match="no such picture"):
            media_of(store, ann, task.item, utterance, number)
