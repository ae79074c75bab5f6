"""`kedge table` and `kedge report`: what records say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ._app import app
from ._show import tell

Results = Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="Folders of `kedge bench`, or record files.")]


@app.command()
def table(
    results: Results,
    rows: Annotated[str, typer.Option(metavar="FIELD", help="label is the method with its settings.")] = "label",
    cols: Annotated[str, typer.Option(metavar="FIELD", help="dataset, scenario, encoder, seed, …")] = "dataset",
    value: Annotated[
        str, typer.Option(metavar="SCORE", help="accuracy, gain, macro, harmed, worst, calibration_error, seconds, …")
    ] = "accuracy",
    format: Annotated[str, typer.Option(metavar="KIND", help="text, md, csv, json or latex.")] = "text",
) -> None:
    """Show records as tables, one per scenario and encoder; seeds are averaged.

    Any field of a record may be rows or columns. A record whose dataset, encoder and settings are those of the
    published tables has the published figure and the difference under it. A missing cell is –.

    \b
    Example: kedge table kedge-bench --rows scenario --cols label --value gain
    """
    from ..benchmark.record import load_records
    from ..report.formats import render
    from ..report.pivot import pivot

    tables = pivot(load_records(results), rows, cols, value)
    sys.stdout.write(render(tables, format))
    for note in (note for table in tables for note in table.notes):
        tell(f"note: {note}")


@app.command()
def report(
    results: Results,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a page with tables and figures of records.

    \b
    Example: kedge report kedge-bench -o report.html
    """
    from ..benchmark.record import load_records
    from ..files import check_writable
    from ..report import write_report

    tell(f"→ {write_report(load_records(results), check_writable(out))}")
