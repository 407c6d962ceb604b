"""Files that only their owner may read: a store, its journals, its backups and what is exported from it.

They hold what people said in distress, and names. A file gets its permissions when it is made, before anything is in
it; SQLite gives its journals those of the database.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

FILE, FOLDER = 0o600, 0o700


def make_private_file(path: Path) -> None:
    """Makes an empty file that only its owner may read and write; others lose theirs on one that is there."""
    if path.exists():
        keep_private(path)
    else:
        path.touch(mode=FILE)


def make_private_folder(folder: Path) -> None:
    """The same for a folder and all that is in it."""
    folder.mkdir(mode=FOLDER, exist_ok=True)
    keep_private(folder)
    for path in folder.iterdir():
        keep_private(path)


def keep_private(*paths: Path) -> None:
    """Takes others' permissions from files and folders that are there, where they are ours to change."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if path.stat().st_mode & 0o077:
                path.chmod(FOLDER if path.is_dir() else FILE)
