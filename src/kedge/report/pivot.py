"""Tables of records: methods by datasets, or any field by any other, averaged over seeds only.

    tables = pivot(load_records(["results"]), rows="label", cols="dataset", value="accuracy")
    print(formats.render(tables, "md"))

There is one table per scenario, encoder, and real or simulated features, unless these are rows or columns. Records with
different settings or feedback are never averaged: where a row or column `method` would hold several of them, each is a
row or column of its own, named by its label. A note says where a cell averages records that differ in other ways. A row
has an average only if no cell is missing, so that averages of different rows cover the same columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..benchmark.record import Record
from ..benchmark.scenarios import SCENARIOS
from ..errors import SettingError, did_you_mean
from .published import METHOD_ORDER, encoder_shown, published_for, reference


@dataclass(frozen=True)
class Value:
    """How a score is shown: multiplied by `scale`, in `unit`, formatted with `format`."""

    unit: str
    scale: float
    format: str


_PERCENT, _POINTS = Value("%", 100, ".1f"), Value("points", 100, "+.1f")
VALUES: dict[str, Value] = {
    **dict.fromkeys(("accuracy", "zero_shot", "accuracy_per_image", "zero_shot_per_image"), _PERCENT),
    **dict.fromkeys(("gain", "gain_low", "gain_high", "worst"), _POINTS),
    **dict.fromkeys(("tail", "zero_shot_tail"), _PERCENT),
    "tail_gain": _POINTS,  # tail − zero_shot_tail, each by its own worst tasks
    **dict.fromkeys(("macro", "zero_shot_macro", "harmed"), _PERCENT),
    "unaided": _PERCENT,
    "feedback_gain": _POINTS,  # accuracy − unaided
    **dict.fromkeys(("classes_shown", "classes_unticked"), Value("", 1, ".1f")),
    **dict.fromkeys(("calibration_error", "zero_shot_calibration_error"), _PERCENT),
    "seconds": Value("s", 1, ".2f"),
    "seconds_per_batch": Value("s", 1, ".4f"),
    "seconds_per_image": Value("ms", 1e3, ".4f"),
    "images": Value("", 1, ".0f"),
    "batches": Value("", 1, ".0f"),
}
FIELDS = ("label", *(f.name for f in fields(Record) if f.name != "series"))
_DIFFERENCES = {"feedback_gain": ("accuracy", "unaided"), "tail_gain": ("tail", "zero_shot_tail")}
_TAILS = ("tail", "zero_shot_tail", "tail_gain")
_METHOD = ("label", "method", "settings")
_APART = ("scenario", "encoder", "simulated", "dataset", "label")  # each in a table of its own
SINGLE = "where a cell has one task, its tail accuracy is its accuracy"
_SAME = ("tasks", "features_hash", "kedge", "torch", "machine")  # averaged if they differ, with a note


@dataclass(frozen=True)
class Line:
    """A row: one entry per column, in the unit of the value; None without a record."""

    name: str
    entries: tuple[float | None, ...]
    failed: tuple[bool, ...]
    average: float | None
    gain: float | None  # mean over the columns, in points
    published: tuple[float | None, ...]


@dataclass(frozen=True)
class Table:
    """One table of comparable records."""

    about: dict[str, str]  # fields that all its records share
    tasks: tuple[int, ...]  # of its records
    seeds: tuple[int, ...]
    rows: str  # the field in the rows
    cols: str  # the field in the columns
    value: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    @property
    def shown(self) -> Value:
        """How its value is formatted."""
        return VALUES[self.value]

    @property
    def averaged(self) -> bool:
        """Does it show the mean over columns? Not if the columns are methods."""
        return self.cols not in _METHOD


def pivot(
    records: Iterable[Record], rows: str = "label", cols: str = "dataset", value: str = "accuracy"
) -> list[Table]:
    """Tables of a score. rows, cols: a field of `Record`, or `label` (the method with its settings and feedback)."""
    for name in (rows, cols):
        if name not in FIELDS:
            raise SettingError(f"a record has no field {name!r} for rows or columns{did_you_mean(name, FIELDS)}")
    if value not in VALUES:
        raise SettingError(f"unknown value {value!r}{did_you_mean(value, VALUES)}")
    records = list(records)
    rows, cols = _axes(records, rows, cols)
    named = {rows, cols}
    apart = [name for name in _APART if name not in named and not (name == "label" and named & set(_METHOD))]
    kinds: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        kinds.setdefault(tuple(_field(record, name) for name in apart), []).append(record)
    keys = sorted(kinds, key=lambda key: [order(name, part) for name, part in zip(apart, key, strict=True)])
    return [_table(kinds[key], dict(zip(apart, key, strict=True)), rows, cols, value) for key in keys]


def _axes(records: Sequence[Record], rows: str, cols: str) -> tuple[str, str]:
    """The fields of rows and columns, with `label` in place of one that would put different labels together."""
    parts = [name for name in (rows, cols) if name in _METHOD]
    labels: dict[tuple[str, ...], set[str]] = {}
    for record in records:
        labels.setdefault(tuple(_field(record, name) for name in parts), set()).add(record.label)
    if not parts or all(len(found) == 1 for found in labels.values()):
        return rows, cols
    return ("label", cols) if rows in _METHOD else (rows, "label")


def _table(records: Sequence[Record], about: dict[str, str], rows: str, cols: str, value: str) -> Table:
    cells: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        cells.setdefault((_field(record, rows), _field(record, cols)), []).append(record)
    columns = sorted({column for _, column in cells}, key=lambda name: order(cols, name))
    names = sorted({row for row, _ in cells}, key=lambda name: order(rows, name))
    lines = tuple(_line(name, [cells.get((name, column), []) for column in columns], value) for name in names)
    return Table(
        about=about,
        tasks=tuple(sorted({record.tasks for record in records})),
        seeds=tuple(sorted({record.seed for record in records})),
        rows=rows,
        cols=cols,
        value=value,
        columns=tuple(columns),
        lines=lines,
        notes=(*_notes(cells, {rows, cols}), *([SINGLE] if value in _TAILS and _single(records) else [])),
    )


def _single(records: Sequence[Record]) -> bool:
    return any(record.tasks == 1 and record.error is None for record in records)


def _line(name: str, cells: Sequence[Sequence[Record]], value: str) -> Line:
    done = [[record for record in cell if record.error is None] for cell in cells]
    entries = [mean([_value(record, value) for record in cell]) for cell in done]
    gains = [mean([_value(record, "gain") for record in cell]) for cell in done]
    figures = [_figure(cell) if value == "accuracy" else None for cell in done]
    return Line(
        name,
        tuple(entries),
        tuple(bool(cell) and not scored for cell, scored in zip(cells, done, strict=True)),
        mean(entries),
        mean(gains),
        tuple(figures),
    )


def _value(record: Record, name: str) -> float | None:
    """A score in the unit it is shown in."""
    if name == "seconds_per_batch":
        found = None if record.seconds is None or not record.batches else record.seconds / record.batches
    elif name in _DIFFERENCES:
        one, other = (getattr(record, part) for part in _DIFFERENCES[name])
        found = None if one is None or other is None else one - other
    else:
        found = getattr(record, name)
    return None if found is None else VALUES[name].scale * found


def mean(numbers: Sequence[float | None]) -> float | None:
    """The mean; None if any number is missing or there are none."""
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def _figure(cell: Sequence[Record]) -> float | None:
    """The published accuracy in percent that matches all records of a cell; None if there is none."""
    found = {published_for(record) for record in cell}
    figure = found.pop() if len(found) == 1 else None
    return None if figure is None else VALUES["accuracy"].scale * figure.accuracy


def _notes(cells: dict[tuple[str, str], list[Record]], named: set[str]) -> Iterable[str]:
    for (row, column), cell in cells.items():
        for name in _SAME:
            found = sorted({_field(record, name) for record in cell}, key=natural)
            if len(found) > 1 and name not in named:
                yield f"{row}, {column}: mean over records with different {name} ({', '.join(found)})"
        for record in cell:
            if record.error is not None:
                yield f"{row}, {column}, seed {record.seed} failed: {record.error}"


def _field(record: Record, name: str) -> str:
    """A field as text."""
    if name == "encoder":
        return encoder_shown(record)
    if name == "simulated":
        return "simulated" if record.simulated else "real"
    if name == "settings":
        return record.label.removeprefix(record.method).strip(" :+") or "defaults"
    if name == "features_hash":
        return record.features_hash[:12]
    return str(getattr(record, name))


def natural(text: str) -> list[tuple[int, float, str]]:
    """Sort key that compares numbers in a text as numbers: alpha=3 comes before alpha=10."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return [(1, float(part), "") if at % 2 else (0, 0.0, part) for at, part in enumerate(parts)]


def order(field: str, text: str) -> tuple[int, list[tuple[int, float, str]]]:
    """Sort key: methods, scenarios and datasets in the paper's order, anything else in natural order."""
    known: tuple[str, ...] = ()
    if field in ("label", "method"):
        known = METHOD_ORDER
    elif field == "scenario":
        known = tuple(SCENARIOS)
    elif field == "dataset":
        known = tuple(row["name"] for row in reference("datasets"))
    name = text.partition(" ")[0] if field == "label" else text
    return (known.index(name) if name in known else len(known)), natural(text)
