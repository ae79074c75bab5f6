"""Numbers and names in messages, and text from files made safe to show and to write."""

from __future__ import annotations

import csv
import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TextIO

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def count(number: int, what: str) -> str:
    """`1 class`, `2,000 classes`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith(('ch', 's')) else 's'}"


def percent(share: float) -> str:
    """`65.3 %` for 0.653."""
    return f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def first_few(names: Sequence[str], shown: int = 5) -> str:
    """`cat, dog, bird, … (7 more)`."""
    more = f", … ({len(names) - shown:,} more)" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def shown(value: object) -> str:
    """A value that somebody passed, for a message: its repr on one line, shortened."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of more than 4,300 digits"


def printable(text: str) -> str:
    """The text with characters that control a terminal or turn the direction of writing shown as \\x1b, \\u202e, …

    Lone surrogates, as in file names that are not UTF-8, are shown like that too.
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def without_middle(text: str, longest: int) -> str:
    """The text; if it is longer than this, its beginning and its end, which says what to do."""
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]} … {text[3 - longest // 3 :]}"


def neutral(text: str) -> str:
    """A CSV field that no spreadsheet takes for a formula: a ' is put before a leading = + - @, tab or return."""
    return "'" + text if _FORMULA.match(text) else text


def without_neutral(text: str) -> str:
    """The text of a field that may have gone through `neutral`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def write_csv(file: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], raw: bool = False) -> None:
    """Write a header and rows as CSV, with \\n after each. Text is made neutral unless it should stay `raw`."""

    def field(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        return neutral(value) if isinstance(value, str) and not raw else value

    # the writer quotes a field with a return only if returns end its lines
    writer = csv.writer(SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n")))
    writer.writerow(map(field, columns))
    writer.writerows([field(row.get(name)) for name in columns] for row in rows)


def write_json(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as a JSON array of objects, one per line, so that it can be read and compared."""
    file.write("[")
    for number, row in enumerate(rows):
        file.write((",\n" if number else "\n") + json.dumps(row, ensure_ascii=False))
    file.write("\n]\n")
