"""Tables as text, Markdown, LaTeX, CSV and JSON. The first three are rounded and show `–` for a missing value."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import SettingError, did_you_mean
from ..words import count, printable, write_csv
from .pivot import VALUES, Line, Table, mean

MISSING, FAILED = "–", "failed"


def render(tables: Sequence[Table], format: str = "text", raw_csv: bool = False) -> str:
    """All tables in one format: text, md, csv, json or latex. raw_csv: leave text in CSV as it is."""
    if format not in FORMATS:
        raise SettingError(f"unknown format {format!r}{did_you_mean(format, FORMATS)}")
    return _csv(tables, raw_csv) if format == "csv" else FORMATS[format](tables)


def _title(table: Table) -> str:
    """What the table shows, in one line: scenario, encoder, score, unit, tasks and seeds."""
    known = [table.about.get(name, "") for name in ("scenario", "label", "dataset", "encoder")]
    origin = "SIMULATED" if table.about.get("simulated") == "simulated" else ""
    unit = f", {table.shown.unit}" if table.shown.unit else ""
    *others, last = table.tasks
    size = f"{' or '.join([*map(str, others), count(last, 'task')])}, {count(len(table.seeds), 'seed')}"
    return printable(" · ".join(filter(None, [*known, origin, table.value.replace("_", " ") + unit, size])))


def _rows(table: Table) -> list[list[str]]:
    """Header and rows as text, each in one line. Published figures and differences follow the row they belong to."""
    summaries = ["average", "gain"][: table.averaged + (table.averaged and table.value == "accuracy")]
    rows = [["method" if table.rows == "label" else table.rows, *summaries, *table.columns]]
    for line in table.lines:
        means = [_number(line.average, table.shown.format), _number(line.gain, VALUES["gain"].format)]
        entries = [
            FAILED if failed else _number(entry, table.shown.format)
            for entry, failed in zip(line.entries, line.failed, strict=True)
        ]
        rows.append([line.name, *means[: len(summaries)], *entries])
        for name, average, values, spec in _compared(line):
            means = [_number(average, spec), MISSING]
            rows.append([f"{line.name}, {name}", *means[: len(summaries)], *(_number(value, spec) for value in values)])
    return [[printable(cell) for cell in row] for row in rows]


def _compared(line: Line) -> list[tuple[str, float | None, Sequence[float | None], str]]:
    """Published figures of a row and the differences from them; empty without published figures."""
    if not any(figure is not None for figure in line.published):
        return []
    away = [
        None if entry is None or figure is None else entry - figure
        for entry, figure in zip(line.entries, line.published, strict=True)
    ]
    return [
        ("published", mean(line.published), line.published, VALUES["accuracy"].format),
        ("difference", mean(away), away, VALUES["gain"].format),
    ]


def _number(value: float | None, spec: str) -> str:
    return MISSING if value is None else format(value, spec)


def _text(tables: Sequence[Table]) -> str:
    return "\n\n".join("\n".join([_title(table), "", *aligned(_rows(table)), ""]) for table in tables)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of text, with a rule below the header: names left-aligned, numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["─" * width for width in widths]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in (rows[0], rule, *rows[1:])
    ]


def _markdown(tables: Sequence[Table]) -> str:
    blocks = []
    for table in tables:
        header, *lines = (list(map(_marked, row)) for row in _rows(table))
        rule = ["---", *["---:"] * (len(header) - 1)]
        blocks.append(
            "\n".join([f"**{_marked(_title(table))}**", "", *(f"| {' | '.join(r)} |" for r in (header, rule, *lines))])
        )
    return "\n\n".join(blocks) + "\n"


def _marked(text: str) -> str:
    """The text with a backslash before each character that is markup in Markdown."""
    return re.sub(r"[\\`*_\[\]<>|~&#!$]", r"\\\g<0>", text)


def _latex(tables: Sequence[Table]) -> str:
    """LaTeX tables; they need the package booktabs."""
    blocks = []
    for table in tables:
        rows = _rows(table)
        header, *lines = (" & ".join(map(_escaped, row)) + r" \\" for row in rows)
        blocks += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(_title(table))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}",
            r"\toprule",
            header,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    return "\n".join(blocks)


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "·": r"$\cdot$"}
_LATEX.update({"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"})
_LATEX.update({mark: "\\" + mark for mark in "&%$#_{}"})
_LATEX.update({mark: f"{{{mark}}}" for mark in "[]*"})  # at the start of a row, [ and * would be arguments


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _csv(tables: Sequence[Table], raw: bool = False) -> str:
    """All tables as one CSV. The shared fields are columns too, so that every line is complete on its own."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        size = {"tasks": " ".join(map(str, table.tasks)), "seeds": " ".join(map(str, table.seeds))}
        for line in table.lines:
            start = {**table.about, **size, "value": table.value, "unit": table.shown.unit, table.rows: line.name}
            for kind, average, values, _ in [("measured", line.average, line.entries, ""), *_compared(line)]:
                mean_too = {"average": _rounded(average)} if table.averaged else {}
                rows.append({**start, "kind": kind, **mean_too, **_by_column(table, values)})
    out = io.StringIO()
    write_csv(out, list(dict.fromkeys(name for row in rows for name in row)), rows, raw)
    return out.getvalue()


def _json(tables: Sequence[Table]) -> str:
    found = [
        {
            **table.about,
            "tasks": list(table.tasks),
            "seeds": list(table.seeds),
            "value": table.value,
            "unit": table.shown.unit,
            "rows": [
                {
                    table.rows: line.name,
                    **({"average": _rounded(line.average), "gain": _rounded(line.gain)} if table.averaged else {}),
                    "values": _by_column(table, line.entries),
                    "failed": [name for name, failed in zip(table.columns, line.failed, strict=True) if failed],
                    "published": {n: v for n, v in _by_column(table, line.published).items() if v is not None},
                }
                for line in table.lines
            ],
            "notes": list(table.notes),
        }
        for table in tables
    ]
    return json.dumps({"tables": found}, ensure_ascii=False, allow_nan=False) + "\n"


def _by_column(table: Table, values: Sequence[float | None]) -> dict[str, float | None]:
    return dict(zip(table.columns, map(_rounded, values), strict=True))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)  # averages have rounding errors below this


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": _text,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
    "latex": _latex,
}
