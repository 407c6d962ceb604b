"""A catalogue that knows one base."""

import pytest

from compeer.models.catalogue import BASES, Base


def only_base(monkeypatch: pytest.MonkeyPatch, base: Base) -> None:
    """Puts a base in the place of all that the catalogue knows."""
    for name in reversed(list(BASES)):  # so that they come back in their order
        monkeypatch.delitem(BASES, name)
    monkeypatch.setitem(BASES, base.name, base)
