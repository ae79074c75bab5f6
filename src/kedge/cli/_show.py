"""Output of the commands: data on stdout, messages on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO, cast

from ..errors import FileError
from ..progress import discard, tell
from ..words import printable

__all__ = ["cell", "plain", "print_facts", "print_json", "print_table", "show_skipped", "stdout", "tell", "tell_table"]

SHOWN_SKIPPED = 10


@contextlib.contextmanager
def stdout() -> Iterator[TextIO]:
    """Standard output, for data. On a terminal, characters that control it are shown as \\x1b, …

    What cannot be written raises FileError; a closed pipe raises BrokenPipeError.
    """
    try:
        yield cast(TextIO, _Screen()) if sys.stdout.isatty() else sys.stdout
        sys.stdout.flush()
    except FileError:
        raise
    except OSError as error:
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise FileError(f"cannot write to stdout: {error.strerror or error}. Write to a file, or make room.") from error


class _Screen:
    """Standard output as a terminal: text that was not made by kedge cannot control it."""

    def write(self, text: str) -> int:
        """Write the text; line ends stay."""
        return sys.stdout.write("\n".join(map(printable, text.split("\n"))))


def show_skipped(skipped: Mapping[str, str]) -> None:
    """Name the first images that could not be read (path → reason, which has the path in full) on stderr."""
    for reason in list(skipped.values())[:SHOWN_SKIPPED]:
        tell(f"left out: {reason}")
    if len(skipped) > SHOWN_SKIPPED:
        tell(f"left out: {len(skipped) - SHOWN_SKIPPED:,} more")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    with stdout() as out:
        out.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Convert a value to JSON types; infinity and NaN become strings, since JSON has neither."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print a table on stdout. In a file or pipe it is as wide as its content, so that nothing is cut off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    text, terminal = io.StringIO(), sys.stdout.isatty()
    width = None if terminal else 10_000
    console = Console(file=text, force_terminal=terminal, width=width, markup=False, emoji=False, highlight=False)
    table = Table(title=title, box=box.SIMPLE)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    console.print(table)
    with stdout():
        sys.stdout.write(text.getvalue())


def tell_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a small table on stderr, in columns; rows have the same names."""
    lines = [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        tell("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one name and value per line on stdout."""
    with stdout() as out:
        for name, value in facts.items():
            out.write(f"{name.replace('_', ' '):<20}{cell(value)}\n")


def cell(value: Any) -> str:
    """Format a value for a table, in one line."""
    if isinstance(value, bool):
        return str(value).lower()  # as in `--set name=true`
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else printable(str(value))
