"""`kedge demo`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, app
from ._show import print_json, tell


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="For all that is made.")] = Path("kedge-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tasks, streams and views.")] = False,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Processes; 2 if there are so many cores.")] = None,
    as_json: Json = False,
) -> None:
    """See all of it work, on a small model and real images that come with kedge.

    Encodes the images, runs every method in the StatA paper's scenarios, prints a table, and writes a report
    and a sheet of images whose label was corrected or broken. Started again, it goes on where it was.

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
        print(made.table(), end="")
    for record in made.failed:
        tell(f"failed: {record.label}, {record.scenario}: {record.error}")
    for what, path in made.files.items():
        tell(f"{what} → {path}")
    if made.failed:
        raise typer.Exit(1)
