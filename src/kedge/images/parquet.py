"""Parquet files (extra `parquet`): their columns of text, opened and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import FileError, KedgeError, MissingExtra
from ..files import existing
from ..memory import check_memory


def open_parquet(path: str | Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`, memory-mapped; only its footer is read."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            f'cannot read {path}: pyarrow is not installed. Install it with: pip install "kedge[parquet]"'
        ) from error
    path = existing(path)
    with readable_parquet(path):
        return pyarrow.parquet.ParquetFile(path, memory_map=True)


@contextlib.contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into a FileError about this file."""
    try:
        yield
    except KedgeError:
        raise
    except Exception as error:  # pyarrow raises its own errors, OSError, ValueError, … on damaged data
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(
            f"{path} is not a readable Parquet file (truncated, damaged or of another kind): {reason}. Make it again."
        ) from error


def first_column(file: Any, names: Sequence[str], kind: str) -> str | None:
    """The first of these columns that has values of this kind (see `_kind`); None if there is none."""
    kinds = {field.name: _kind(field.type) for field in file.schema_arrow}
    return next((name for name in names if kinds.get(name) == kind), None)


def columns_in_words(file: Any) -> str:
    """The columns of a file with their types, for a message."""
    shown = [f"{field.name} ({str(field.type)[:40]})" for field in file.schema_arrow]
    return ", ".join(shown[:8] + ["…"] * (len(shown) > 8)) or "none"


def values(path: Path, file: Any, column: str) -> list[Any]:
    """A column of text or whole numbers; raises FileError for an entry that is missing."""
    with readable_parquet(path):
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        chunks = [group.column(j) for group in groups for j in range(group.num_columns)]
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
        check_memory(size, f"the column {column!r} of {path}, unpacked,", FileError)
        found: list[Any] = file.read(columns=[column]).column(0).to_pylist()
    if None in found:
        raise FileError(f"{path}, row {found.index(None) + 1}: no {column}. Fill it in, or remove the row.")
    return found


def _kind(kind: Any) -> str:
    """`text`, `number`, `bytes` or `struct` (of bytes, as Hugging Face has images); "" for any other type."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
        return "text" if types.is_string(kind) or types.is_large_string(kind) else ""
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_integer(kind):
        return "number"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    if types.is_struct(kind):
        at = kind.get_field_index("bytes")
        return "struct" if at >= 0 and _kind(kind.field(at).type) == "bytes" else ""
    return ""
