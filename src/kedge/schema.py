"""Checks of what files say about themselves. A file kind declares its content as a dataclass; everything is checked
against its types and ranges at load, before anything uses it:

    @dataclass(frozen=True)
    class Header:
        steps: Annotated[int, Meta(ge=0)]
        class_names: list[str]

    header = decoded(path.read_bytes(), Header, path, "stream")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Meta

from .errors import FileError

__all__ = ["Meta", "checked", "decoded"]

T = TypeVar("T")


def decoded(text: str | bytes, kind: type[T], path: Path, what: str) -> T:
    """A JSON text as an object of this dataclass; raises FileError if it is damaged or does not fit."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(_message(path, what, error)) from error


def checked(value: Any, kind: type[T], path: Path, what: str) -> T:
    """A value of plain types (dicts, lists, numbers, text) as an object of this dataclass; see `decoded`."""
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FileError(_message(path, what, error)) from error


def _message(path: Path, what: str, error: Exception) -> str:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).replace(" - at `$.", ", at `")
    return f"{path} is not a kedge {what}: {reason}. It is damaged or was edited; make it again."
