"""`kedge bench`: methods × feature files × scenarios × seeds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SettingError
from ..words import count
from ._app import Cluster, Json, Quiet, app
from ._show import print_json, print_table, tell

if TYPE_CHECKING:
    from ..benchmark.cells import Cell
    from ..benchmark.grid import Grid
    from ..benchmark.record import Record
    from ..benchmark.run import Outcome


@app.command()
def bench(
    features: Annotated[
        list[Path] | None, typer.Argument(metavar="FEATURES", help="Feature files with labels.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SETTINGS][:METHOD]",
            help="stata, stata:alpha=10,beta=soft, or all; may be repeated. Default: zero-shot, stata and kedge "
            "(with --known, those that use known labels).",
        ),
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="See `kedge ls scenarios`; may be repeated.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="May be repeated; default: 0.")] = None,
    tasks: Annotated[int | None, typer.Option(metavar="N", help="Number of tasks; default: the scenario's.")] = None,
    known: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tell the method N labels of each batch. These images are not scored."),
    ] = None,
    known_by: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Which labels: random (default), or review: what the method asks for first."),
    ] = None,
    oracle_classes: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="Tell the method which classes each batch has: true, or found: wrong ones taken out of those found.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="An experiment of the StatA paper: table1, table2, alpha, beta, runtime."),
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All options as a TOML file; options on the command line override it."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the records; default: kedge-bench.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Number of processes, with one thread each.")] = None,
    cluster: Cluster = None,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For tent: the images, if not in the feature file's own folder.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="For tent: an encoder in a folder, if not in the file's own.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells without running them.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on labelled features.

    A cell is one method on one feature file in one scenario with one seed. Each finished cell is one record file.
    You can stop at any time: the next run skips finished cells. A changed setting or feature file is a new cell.
    With --cluster, cells run on all its machines, which must see the feature files at the same paths.
    If a cell fails, the others still run, the exit code is 1, and the next run tries it again.

    --known and --oracle-classes measure what a person's help is worth. The method first labels the batch unaided, then
    gets all N labels, or the classes, at once, and labels it again. A stream gets them with every batch. The record has
    both accuracies, on the same images: show the difference with kedge table DIR --value feedback_gain

    \b
    Presets (the StatA paper's experiments):
      table1   batches from very-low to very-high, and all; every applicable method
      table2   the four streams; every applicable method. The paper drops the last partial batch of
               a stream and kedge keeps it; to drop it: --scenario stream:gamma=0.1,drop_last=true
      alpha    StatA with six anchor weights α, by number of classes
      beta     StatA with hard and soft β, by number of classes
      runtime  batches of 1000 and the whole dataset; show with kedge table DIR --value seconds_per_batch

    \b
    A grid file (paths are relative to it):
      methods = ["zero-shot", {name = "stata", alpha = 10}]
      features = ["features/*.safetensors"]
      scenarios = ["very-low", "batches:size=64,k_min=5,k_max=5"]
      seeds = [0, 1]                # also: tasks, known, known_by, oracle_classes, preset, out, jobs

    \b
    Example: kedge bench birds.safetensors --scenario very-low --tasks 100 --jobs 2
    """
    from .. import progress
    from ..benchmark.cells import plan_cells
    from ..benchmark.grid import Grid, merged, read_options
    from ..benchmark.run import run

    if cluster and jobs is not None:
        raise SettingError("--jobs is for one machine, and --cluster uses every CPU of the cluster. Leave one out.")
    flags: dict[str, Any] = {
        "features": features,
        "methods": method,
        "scenarios": scenario,
        "seeds": seed,
        "tasks": tasks,
        "known": known,
        "known_by": known_by,
        "oracle_classes": oracle_classes,
        "preset": preset,
        "out": out,
        "jobs": jobs,
        "images": images,
        "encoder": encoder,
    }
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    chosen = Grid.of(**merged(read_options(grid) if grid else {}, given))
    if dry_run:
        planned = plan_cells(chosen)
        _show_plan(planned.cells, planned.left_out, chosen, as_json)
        return
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        try:
            outcome = _on_cluster(chosen, cluster) if cluster else run(chosen)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"stopped. Finished cells are in {chosen.out}; run the same command to continue."
            ) from error
    if as_json:
        print_json(
            {
                "out": str(outcome.folder),
                "cells": len(outcome.cells),
                "run": outcome.ran,
                "done_before": outcome.already,
                "failed": [{**_about(record), "error": record.error} for record in outcome.failed],
                "left_out": outcome.left_out,
            }
        )
    if not quiet:
        for reason in outcome.left_out:
            tell(f"left out: {reason}")
    for record in outcome.failed:
        tell(f"failed: {record.label} on {record.dataset}, {record.scenario}, seed {record.seed}: {record.error}")
    if outcome.failed:
        tell(f"{len(outcome.failed):,} of {count(len(outcome.cells), 'cell')} failed; the next run tries again.")
        raise typer.Exit(1)
    if not quiet:
        cells = count(len(outcome.cells), "cell")
        tell(f"{cells}: {outcome.ran} run, {outcome.already} done before → {outcome.folder}")
        tell(f"to show them: kedge table {outcome.folder}")
        tell(f"as a page, with tail accuracy and calibration: kedge report {outcome.folder}")


def _on_cluster(grid: Grid, address: str) -> Outcome:
    from ..benchmark.run import run
    from ..cluster.benchmark import slots, spread
    from ..cluster.connect import connected

    with connected(address):
        return run(grid, jobs=slots(), spread=spread)


def _about(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("label", "dataset", "scenario", "seed", "tasks")}


def _show_plan(cells: tuple[Cell, ...], left_out: tuple[str, ...], grid: Grid, as_json: bool) -> None:
    def state(cell: Cell) -> str:
        if cell.path(grid.out).exists():
            return "done"
        return "failed before" if cell.failure(grid.out).exists() else "to do"

    rows = [{**_about(cell.failed("")), "state": state(cell)} for cell in cells]
    if as_json:
        files = [{**row, "file": cell.path(grid.out).name} for row, cell in zip(rows, cells, strict=True)]
        print_json({"out": str(grid.out), "cells": files, "left_out": left_out})
        return
    print_table(rows)
    for reason in left_out:
        tell(f"left out: {reason}")
    done = sum(row["state"] == "done" for row in rows)
    tell(f"{count(len(rows), 'cell')}: {done} done, {len(rows) - done} to run → {grid.out}")
