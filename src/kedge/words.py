"""Numbers and names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, what: str) -> str:
    """`1 class`, `2,000 classes`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith(('ch', 's')) else 's'}"


def percent(share: float) -> str:
    """`65.3 %` for 0.653."""
    return f"{100 * share:.1f} %"


def first_few(names: Sequence[str], shown: int = 5) -> str:
    """`cat, dog, bird, … (7 more)`."""
    more = f", … ({len(names) - shown:,} more)" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
