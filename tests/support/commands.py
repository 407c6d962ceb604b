"""Commands as a person types them."""

import sys
from pathlib import Path

import pytest

from compeer import cli


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """The exit code of `compeer` with these words."""
    monkeypatch.setattr(sys, "argv", ["compeer", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)
