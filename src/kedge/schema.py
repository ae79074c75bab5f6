"""Checks of what files say about themselves. A file kind declares its content as a dataclass; everything is checked
against its types and ranges at load, before anything uses it:

    @dataclass(frozen=True)
    class Header:
        steps: Whole
        class_names: list[str]

        def __post_init__(self) -> None:
            ...                    # what depends on several fields: raise ValueError

    header = decoded(path.read_bytes(), Header, path, "stream")
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from .errors import FileError

__all__ = ["Meta", "Positive", "Whole", "check_plain", "checked", "decoded", "fitted", "parsed"]

T = TypeVar("T")

LARGEST = 2**63 - 1
DEEPEST = 50  # lists in lists
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]


def decoded(text: str | bytes, kind: type[T], path: Path, what: str) -> T:
    """A JSON text as an object of this dataclass; raises FileError if it is damaged or does not fit."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _refused(path, what, error) from error


def checked(value: Any, kind: type[T], path: Path, what: str) -> T:
    """A value of plain types (dicts, lists, numbers, text) as an object of this dataclass; see `decoded`."""
    try:
        return fitted(value, kind)
    except ValueError as error:
        raise _refused(path, what, error) from error


def fitted(value: Any, kind: type[T]) -> T:
    """The same without a file: raises ValueError with the reason."""
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(_reason(error)) from error


def parsed(text: str | bytes) -> Any:
    """A JSON text as plain values; raises ValueError if it is not JSON, or not as `check_plain` wants it.

    Text may have lone surrogates, which stand for the bytes of file names that are not UTF-8; `decoded` refuses them.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_plain(value)
    return value


def check_plain(value: Any, levels: int = DEEPEST) -> None:
    """Raise ValueError unless a value can be written as JSON and read again: finite numbers, not nested too deeply."""
    if not levels:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is not text")
            check_plain(entry, levels - 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            check_plain(entry, levels - 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"the number {value} is not finite")
    elif isinstance(value, int):
        if abs(value) > LARGEST:
            raise ValueError("a number has more than 64 bits")
    elif value is not None and not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} is neither text nor a number")


def _refused(path: Path, what: str, error: Exception) -> FileError:
    return FileError(f"{path} is not a kedge {what}: {_reason(error)}. It is damaged or was edited; make it again.")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error).replace(" - at `$.", ", at `").replace(" | null", "")
    return " ".join(text.rstrip(".").split())
