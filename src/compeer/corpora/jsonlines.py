"""Our own format: one `Dialogue` as a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from compeer.dialogue import Dialogue
from compeer.errors import InputError, from_validation

_HELP = "Mend the line, or see docs/data.md for the format."


def read_jsonlines(path: Path) -> Iterator[Dialogue]:
    """The file's dialogues, one at a time; an error names the file, line and field. Ids must differ."""
    seen: dict[str, int] = {}
    for number, value in read_json_lines(path):
        try:
            dialogue = Dialogue.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number, do=_HELP) from None
        if dialogue.id in seen:
            what = f"'{dialogue.id}' stands on line {seen[dialogue.id]} already"
            raise InputError(what, file=path, line=number, field="id", do="Give every dialogue an id of its own.")
        seen[dialogue.id] = number
        yield dialogue


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The number and value of each line that is not blank; an error names the file and line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                value = json.loads(text)
                if "\\u" in text:
                    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be written again
            except json.JSONDecodeError as error:
                what = f"this is not JSON: {error.msg} at character {error.colno}"
                raise InputError(what, file=path, line=number, do=_HELP) from None
            except UnicodeError as error:
                what = f"this is not UTF-8 text: {error.reason if hasattr(error, 'reason') else error}"
                raise InputError(what, file=path, line=number, do="Save the file as UTF-8.") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"this cannot be read: {error}", file=path, line=number, do=_HELP) from None
            yield number, value
