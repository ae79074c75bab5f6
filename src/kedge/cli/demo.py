"""`kedge demo`: the whole workflow on bundled data."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, app
from ._show import print_json, stdout, tell


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for all output.")] = Path("kedge-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer scenarios and tasks: takes less time.")] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Number of processes; default: 2 if there are 2 cores.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole workflow on the small model and the pictures that come with kedge.

    Encodes the pictures, runs the StatA paper's methods, MOON and kedge in the paper's scenarios, prints a table,
    and writes a report, a contact sheet of labels that became right or wrong, and a picture of a stream over time.
    After an interruption, the same command continues.

    \b
    Example: kedge demo --out kedge-demo
    """
    from .. import progress
    from ..demo import SIMULATED, demo

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
    tell(SIMULATED)
    for what, path in made.files.items():
        tell(f"{what} → {path}")
    tell("Try next:")
    for command in _next(out):
        tell(f"  {command}")
    if made.failed:
        raise typer.Exit(1)


def _next(out: Path) -> list[str]:
    """Commands to try next. The last one is for the user's own folder, and downloads CLIP."""
    if shutil.which("kedge"):
        program = ["kedge"]
    else:
        program = [sys.argv[0]] if Path(sys.argv[0]).name == "kedge" else [sys.executable, "-m", "kedge"]
    fruits = "apple, cherries, orange, peach, strawberry, tomato"
    few = [str(out / "images" / name) for name in ("cherries", "orange", "strawberry")]
    commands = (
        ["adapt", *few, "--classes", fruits, "--encoder", "tiny", "--out", str(out / "fruits.csv"), "--review", "5"],
        ["bench", str(out / "features.safetensors"), "--scenario", "low", "--tasks", "200", "--out", str(out / "more")],
        ["adapt", "photos", "--classes", "cat, dog, bird", "--sort-into", "sorted"],
    )
    return [shlex.join([*program, *command]) for command in commands]
