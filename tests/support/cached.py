"""What lies in a cache of answers."""

import sqlite3
from contextlib import closing
from pathlib import Path


def count_rows(path: Path) -> int:
    """How many answers the file holds."""
    with closing(sqlite3.connect(path)) as file:
        return int(file.execute("SELECT count(*) FROM answers").fetchone()[0])
