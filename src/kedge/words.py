"""Numbers with their nouns, for messages."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """`1 class`, `2,000 classes`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith(('ch', 's')) else 's'}"
