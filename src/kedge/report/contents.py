"""The contents of the page: a list beside it on a wide screen, and one to unfold on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A place on the page: its id, its name as HTML, and the places inside it."""

    id: str
    name: str
    inside: Sequence[Entry] = ()


@dataclass(frozen=True)
class Part:
    """A part of the page with its entry in the contents. It is left out of both if it has no HTML."""

    entry: Entry
    html: str


def contents(entries: Sequence[Entry]) -> str:
    """The list of all places. The script of the page unfolds it where there is room beside the page."""
    return f'<nav aria-label="contents"><details><summary>Contents</summary>{_list(entries)}</details></nav>'


def _list(entries: Sequence[Entry]) -> str:
    items = (
        f'<li><a href="#{each.id}">{each.name}</a>{_list(each.inside) if each.inside else ""}</li>' for each in entries
    )
    return f"<ul>{''.join(items)}</ul>"
