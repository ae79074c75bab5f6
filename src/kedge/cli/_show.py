"""What the commands print: data on stdout, words for people on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def tell(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr)


def percent(share: float) -> str:
    """0.653 → 65.3 %."""
    return f"{100 * share:.1f} %"


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """As JSON knows it; an infinite number, which JSON has no word for, becomes its name."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """A table on stdout; where that is not a screen, as wide as its content, so that nothing is cut off."""
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
    """A name and a value per line, on stdout."""
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20}{cell(value)}")


def cell(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, bool):
        return str(value).lower()  # as `--set` takes it
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)
