"""CSV files with a header, as people and kedge write them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from ..errors import FileError
from ..files import existing
from ..words import without_neutral

_SEPARATORS = ",;\t"


class Table(NamedTuple):
    """The rows of a CSV file, each with its line number; fields without spaces around them, and never neutralised."""

    path: Path
    columns: list[str]  # in lower case
    rows: list[tuple[int, dict[str, str]]]

    def require(self, column: str, example: str) -> None:
        """Raise FileError if there is no such column; example: what the first line can be."""
        if column not in self.columns:
            found = ", ".join(self.columns) or "nothing"
            raise FileError(f"{self.path} has no column {column!r}; found {found}. Its first line must be: {example}")


def read_table(path: str | Path) -> Table:
    """Read a CSV file with a header: with commas, or the semicolons or tabs that some spreadsheets write."""
    path = existing(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=next((mark for mark in _SEPARATORS if mark in header), ","))
            columns = [column.strip().lower() for column in next(reader, [])]
            rows = [(reader.line_num, [without_neutral(field).strip() for field in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path} is not a readable CSV file: {error}. Save it as UTF-8 text.") from error
    filled = [(line, row + [""] * (len(columns) - len(row))) for line, row in rows]
    return Table(path, columns, [(line, dict(zip(columns, row, strict=False))) for line, row in filled])
