"""`kedge demo`: the whole workflow on bundled data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, app
from ._show import print_json, stdout, tell


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for all output.")] = Path("kedge-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tasks, streams and views: takes less time.")] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Number of processes; default: 2 if there are 2 cores.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole workflow on the small model and the images that come with kedge.

    Encodes the images, runs every method in the StatA paper's scenarios, prints a table, and writes a report and
    a contact sheet of labels that became right or wrong. After an interruption, the same command continues.

    \b
    Example: kedge demo --out kedge-demo
    """
    from .. import progress
    from ..demo import demo

    with progress.on_stderr():
        made = demo(out, quick=quick, jobs=jobs or min(2, os.cpu_count() or 1))
    if as_json:
        rows = [record.row() for record in (*made.records, *made.failed)]
        print_json({"records": rows, "files": made.files})
    else:
        with stdout() as file:
            file.write(made.table())
    for record in made.failed:
        tell(f"failed: {record.label}, {record.scenario}: {record.error}")
    for what, path in made.files.items():
        tell(f"{what} → {path}")
    if made.failed:
        raise typer.Exit(1)
