"""Parquet files (extra `parquet`): images in a column of bytes, or a table of paths.

| column                                      | values                                                                 |
|---------------------------------------------|------------------------------------------------------------------------|
| image, bytes, jpg, jpeg, png or webp        | bytes of an image file; or a struct with bytes, as Hugging Face has it |
| image_path, path or file_name               | paths of images, in the folder of the Parquet file                     |
| label (may be absent)                       | class names, or class numbers from 0                                   |

A file chooses no images outside of its folder. Images are read a few rows at a time; paths and labels are in memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from ..errors import FileError, InputError, KedgeError, MissingExtra
from ..files import existing
from ..memory import check_memory
from .folders import below_common, in_classes
from .image_set import ImageSet, readable

BYTES = ("image", "bytes", "jpg", "jpeg", "png", "webp")
PATHS = ("image_path", "path", "file_name")
ROWS = 16  # that are read together
BUFFER = 1 << 20  # bytes of a file that are read at one time
PARQUET = "parquet:"  # begins the root of images that are no files


@dataclass(frozen=True)
class ParquetImages(ImageSet):
    """Images in a column of Parquet files; the name of an image is `FILE/ROW`, with rows from 0."""

    rows: Any = field(default=None, compare=False, repr=False)  # EncodedRows
    start: int = 0  # the row of the first image

    def source(self, i: int) -> Path | IO[bytes]:
        """The encoded bytes of image i, as a file; an entry that is missing is an empty file."""
        return io.BytesIO(self.rows[self.start + i] or b"")

    def part(self, numbers: range) -> ParquetImages:
        """Some consecutive images."""
        part: Any = super().part(numbers)
        found: ParquetImages = replace(part, start=self.start + numbers.start)
        return found


def parquet_images(files: Sequence[Path], classes: tuple[str, ...] | None = None) -> ImageSet:
    """The images of Parquet files, one after the other. Without class names if they are not known; then the note says
    why.
    """
    files = [Path(os.path.abspath(file)) for file in files]
    opened = [open_parquet(file) for file in files]
    columns = {_image_column(path, file) for path, file in zip(files, opened, strict=True)}
    if len(columns) > 1:
        raise InputError(f"the Parquet files have images in different columns: {', '.join(sorted(columns))}. Pass one.")
    column = columns.pop()
    tables = list(zip(files, opened, strict=True))
    labels = [label for path, file in tables for label in _labels(path, file)]
    if "" in labels and any(labels):
        raise InputError("some of the Parquet files have labels and others have none. Pass one kind.")
    classes = classes or next(filter(None, map(_declared_classes, opened)), None)
    root, names = below_common(files, {file.parent for file in files})
    name = files[0].stem if len(files) == 1 else root.name
    if column in PATHS:
        found = [(path.parent, _inside(path, named)) for path, file in tables for named in values(path, file, column)]
        paths = tuple((folder / named).relative_to(root).as_posix() for folder, named in found)
        known, class_names, note = in_classes(files[0], paths, labels, classes)
        return ImageSet(name, root, paths, known, class_names, note)
    sizes = [file.metadata.num_rows for file in opened]
    paths = tuple(f"{named}/{row}" for named, size in zip(names, sizes, strict=True) for row in range(size))
    known, class_names, note = in_classes(files[0], paths, labels, classes)
    return ParquetImages(
        name,
        Path(f"{PARQUET}{root}"),
        paths,
        known,
        class_names,
        note,
        identity=json.dumps([column, [file.stat().st_size for file in files]]),
        rows=EncodedRows(tuple(files), column, tuple(accumulate(sizes))),
    )


@dataclass
class EncodedRows:
    """Encoded images in Parquet files, by row. In order, each is read once; to go back, a row group is begun again.

    It can be sent to another process, which opens the files itself.
    """

    files: tuple[Path, ...]
    column: str
    stops: tuple[int, ...]  # rows up to the end of each file
    _group: tuple[int, int] = (-1, -1)  # the file and the row group that are being read
    _batches: Iterator[Any] = field(default_factory=lambda: iter(()), repr=False)
    _read: list[bytes | None] = field(default_factory=list, repr=False)
    _start: int = 0  # the row of the first that is read

    def __reduce__(self) -> Any:
        return EncodedRows, (self.files, self.column, self.stops)

    def __getitem__(self, row: int) -> bytes | None:
        which = bisect_right(self.stops, row)
        path = self.files[which]
        with readable_parquet(path):
            if not self._start <= row < self._start + len(self._read):
                self._go_to(which, row)
            while row >= self._start + len(self._read):
                self._start += len(self._read)
                found = next(self._batches, None)
                if found is None:
                    raise FileError(f"{path} has changed while it was read. Run it again.")
                self._read = _encoded(found.column(0))
        return self._read[row - self._start]

    def _go_to(self, which: int, row: int) -> None:
        """Begin the row group of this row, unless it is being read and the row is still to come."""
        file = open_parquet(self.files[which])
        about, start = file.metadata, self.stops[which - 1] if which else 0
        stops = list(accumulate((about.row_group(i).num_rows for i in range(about.num_row_groups)), initial=start))
        group = bisect_right(stops, row) - 1
        if self._group != (which, group) or row < self._start:
            self._batches = file.iter_batches(ROWS, row_groups=[group], columns=[self.column], use_threads=False)
            self._group, self._read, self._start = (which, group), [], stops[group]


def _encoded(column: Any) -> list[bytes | None]:
    """A column of bytes, or of structs with bytes."""
    found = column.to_pylist()
    return [each["bytes"] if isinstance(each, dict) else each for each in found]


def _image_column(path: Path, file: Any) -> str:
    """The column that has the images, or their paths."""
    if not file.metadata.num_rows:
        raise FileError(f"{path} has no rows. Check the path.")
    found = first_column(file, BYTES, "bytes") or first_column(file, BYTES, "struct")
    found = found or first_column(file, PATHS, "text")
    if found is None:
        raise FileError(
            f"{path} has no column of images: bytes in {', '.join(BYTES)}, or paths in {', '.join(PATHS)}; "
            f"found {columns_in_words(file)}. Rename one."
        )
    return found


def _labels(path: Path, file: Any) -> list[str]:
    """The column label as text, "" if there is none, or if all are −1, as Hugging Face has unknown labels."""
    column = first_column(file, ("label",), "text") or first_column(file, ("label",), "number")
    if column is None:
        if "label" in file.schema_arrow.names:
            raise FileError(
                f"{path}: the column label has neither names nor whole numbers; found {columns_in_words(file)}."
                " Rename or convert it."
            )
        return [""] * file.metadata.num_rows
    found = values(path, file, column)
    if set(found) == {-1}:
        return [""] * len(found)
    if "" in found:
        raise FileError(f"{path}, row {found.index('') + 1}: no label. Fill it in, or remove the row.")
    return list(map(str, found))


def _declared_classes(file: Any) -> tuple[str, ...] | None:
    """The names of the class numbers, if Hugging Face's library has written them into the file."""
    try:
        about = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        names = about["info"]["features"]["label"]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    real = isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names)
    return tuple(map(readable, names)) if real and names else None


def _inside(path: Path, named: str) -> str:
    """The path of an image; raises InputError unless it is below the folder of the Parquet file, links resolved."""
    named = named.replace("\\", "/")
    file = path.parent / named
    if named and "\0" not in named and not os.path.isabs(named) and ".." not in file.parts:
        real = Path(os.path.realpath(file)) if os.path.islink(file) else _real_folder(file.parent)
        if real.is_relative_to(_real_folder(path.parent)):
            return named
    raise InputError(
        f"{path} names the image {named!r}, which is not in the folder of the file. Move the file to its images, and "
        "make the paths relative to it."
    )


@cache
def _real_folder(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def open_parquet(path: str | Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`; only its footer is read. Its columns are read in pieces, not as a whole."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            f'cannot read {path}: pyarrow is not installed. Install it with: pip install "kedge[parquet]"'
        ) from error
    path = existing(path)
    with readable_parquet(path):
        return pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)


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
    found: list[Any] = []
    size = 0
    with readable_parquet(path):
        for batch in file.iter_batches(1024, columns=[column], use_threads=False):
            size += batch.nbytes  # of a small file too: it may say a long text once, and how often
            check_memory(size, f"the column {column!r} of {path}, unpacked so far,", FileError)
            found += batch.column(0).to_pylist()
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
