"""The one kind of error that a person caused and can mend: it is printed as a message, without a traceback."""

from pathlib import Path

from pydantic import ValidationError

Named = str | Path | None  # a file, as an error names it


class InputError(Exception):
    """Bad input: says where (file, line, field), what is wrong, and what to do."""

    def __init__(
        self, what: str, *, file: Named = None, line: int | None = None, field: str | None = None, do: str | None = None
    ) -> None:
        self.what, self.file, self.line, self.field, self.do = what, file, line, field, do
        named = {"{}": file, "line {}": line, "field '{}'": field or None}
        where = ", ".join(text.format(value) for text, value in named.items() if value is not None)
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message}\n{do}" if do else message)


def from_validation(
    error: ValidationError, *, file: Named = None, line: int | None = None, do: str | None = None
) -> InputError:
    """The first complaint of a pydantic validation as an `InputError` that names the field."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    what = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
    return InputError(what, file=file, line=line, field=field or None, do=do)
