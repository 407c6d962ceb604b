"""The records of the sample corpus, built once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compeer.ser import SerRecord, SerSettings, build_ser, read_records
from tests.support.contexts import SEED


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ser")
    return folder / "records.jsonl", build_ser(SerSettings(embedder="words"), folder, SEED)


@pytest.fixture(scope="session")
def records(built: tuple[Path, dict[str, Any]]) -> list[SerRecord]:
    return list(read_records(built[0]))


@pytest.fixture(scope="session")
def exchanged(records: list[SerRecord]) -> list[SerRecord]:
    """The candidates that pairs of contexts gave, in their order."""
    return [record for record in records if record.id.endswith((":true", ":spoiled"))]
