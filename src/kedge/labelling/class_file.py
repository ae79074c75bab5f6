"""Which classes can occur, from the command line or from a file.

    "cat, dog"                         names
    names.txt                          a file with one name per line
    found.csv                          what --classes-out wrote, edited: rows taken out, or present = no

A .csv file needs the column class; without the column present, all its rows count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import FileError, SettingError
from ..features.text_head import TextHead
from ..files import check_writable, written_by_rename
from ..images.class_names import class_names as listed_names
from ..images.tables import read_table
from ..methods.given import class_numbers
from ..words import write_csv
from .findings import class_rows
from .predictions import Predictions

COLUMNS = ("class", "count", "evidence", "example", "present")
YES, NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")


def read_present(present: str | None, absent: str | None, head: TextHead) -> list[int] | None:
    """Numbers of the classes that can occur: those named by `present` (None: all) without those named by `absent`."""
    if present is None and absent is None:
        return None
    named = set(range(head.k)) if present is None else _numbers(present, YES, head, "--present")
    left = named - (set() if absent is None else _numbers(absent, NO, head, "--absent"))
    if not left:
        raise SettingError(f"no class can occur: {absent or present} leaves none. Leave at least one.")
    return sorted(left)


def _numbers(given: str, wanted: Sequence[str], head: TextHead, option: str) -> set[int]:
    """The classes named; of a file with the column present, those whose entry is one of `wanted`."""
    found = [class_numbers(name, head, where) for where, name in _names(given, wanted, option)]
    if wanted is NO and not found:
        raise FileError(f"no class in {given} has present = no. Write no for those that cannot occur, or name them.")
    return {number for numbers in found for number in numbers}


def _names(given: str, wanted: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Names, each with the place where it was found."""
    if not given.lower().endswith(".csv"):
        return [(option, name) for name in listed_names(given)]
    table = read_table(given)
    table.require("class", ",".join(COLUMNS))
    names = []
    for line, row in table.rows:
        entry = row.get("present", wanted[0]).lower()
        if entry not in (*YES, *NO):
            raise FileError(f"{given}, line {line}: present is {entry!r}. Write yes or no.")
        if entry in wanted:
            names.append((f"{given}, line {line}", row["class"]))
    return names


def check_class_file(path: str | Path) -> Path:
    """Raise FileError if `write_classes` cannot write to this path: called before any work."""
    path = check_writable(path)
    if path.suffix.lower() != ".csv":
        raise FileError(f"cannot write {path}: the classes found are a table. Name a file that ends in .csv.")
    return path


def write_classes(predictions: Predictions, path: str | Path, raw: bool = False) -> None:
    """Write the classes found as CSV, most in doubt first. `--present` reads it back."""
    with (
        written_by_rename(check_class_file(path)) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        write_csv(file, COLUMNS, class_rows(predictions), raw)
