"""Output of the commands: data on stdout, messages on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN_SKIPPED = 10


def tell(text: str) -> None:
    """Print a message on stderr."""
    print(text, file=sys.stderr)


def show_skipped(skipped: Mapping[str, str]) -> None:
    """Name the first images that could not be read (path → reason, which has the path in full) on stderr."""
    for reason in list(skipped.values())[:SHOWN_SKIPPED]:
        tell(f"left out: {reason}")
    if len(skipped) > SHOWN_SKIPPED:
        tell(f"left out: {len(skipped) - SHOWN_SKIPPED:,} more")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


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

    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    table = Table(title=title, box=box.SIMPLE)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    console.print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one name and value per line on stdout."""
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20}{cell(value)}")


def cell(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, bool):
        return str(value).lower()  # as in `--set name=true`
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)
