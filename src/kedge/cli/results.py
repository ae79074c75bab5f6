"""`kedge table` and `kedge report`: show records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._app import RawCsv, app
from ._show import stdout, tell

Results = Annotated[
    list[Path], typer.Argument(metavar="RESULTS...", help="Output folders of `kedge bench`, or record files.")
]


@app.command()
def table(
    results: Results,
    rows: Annotated[
        str, typer.Option(metavar="FIELD", help="A field of the records; label: method with settings and feedback.")
    ] = "label",
    cols: Annotated[
        str, typer.Option(metavar="FIELD", help="A field of the records: dataset, scenario, encoder, seed, …")
    ] = "dataset",
    value: Annotated[
        str,
        typer.Option(
            metavar="SCORE", help="accuracy, gain, tail, macro, harmed, worst, calibration_error, feedback_gain, …"
        ),
    ] = "accuracy",
    format: Annotated[str, typer.Option(metavar="KIND", help="text, md, csv, json or latex.")] = "text",
    raw_csv: RawCsv = False,
) -> None:
    """Show records as tables, one per scenario and encoder, averaged over seeds.

    Rows and columns can be any field of the records. If dataset, encoder and settings match a published result,
    the published accuracy and the difference follow. A missing cell is shown as –.

    \b
    Scores (zero_shot_… is zero-shot on the same images):
      accuracy, zero_shot, gain              gain: accuracy minus zero-shot
      tail, zero_shot_tail, tail_gain        the worst tenth of tasks, each by its own worst tasks
      calibration_error, zero_shot_calibration_error      before: zero-shot, after: the method
      harmed, worst                          share of batches below zero-shot; the worst of them
      macro, accuracy_per_image, unaided, feedback_gain, seconds, seconds_per_batch, …

    \b
    Example: kedge table kedge-bench --rows scenario --cols label --value gain
    """
    from ..benchmark.record import load_records
    from ..report.formats import render
    from ..report.pivot import pivot

    tables = pivot(load_records(results), rows, cols, value)
    with stdout() as out:
        out.write(render(tables, format, raw_csv))
    for note in dict.fromkeys(note for table in tables for note in table.notes):
        tell(f"note: {note}")


@app.command()
def report(
    results: Results,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write an HTML page with tables and figures.

    \b
    Example: kedge report kedge-bench -o report.html
    """
    from ..benchmark.record import load_records
    from ..files import check_writable
    from ..report import write_report

    tell(f"→ {write_report(load_records(results), check_writable(out))}")
