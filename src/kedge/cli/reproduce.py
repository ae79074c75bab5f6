"""`kedge reproduce`: the experiments of the StatA paper on your copy of its datasets."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated

import typer

from ..words import count
from ._app import Device, Json, Quiet, app
from ._show import print_json, print_table, show_skipped, stdout, tell


@app.command()
def reproduce(
    root: Annotated[Path, typer.Option(metavar="DIR", help="The folder that contains the datasets.")],
    encoder: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="May be repeated. Default: CLIP ViT-B/16, the paper's."),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="1,2,…", help="1, 2, encoders, alpha, beta, runtime. Default: all of them but encoders."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Of Tables 1, 2 and encoders; paper: all of the paper's. Default: those that are not slow, and kedge.",
        ),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Only these. Default: those of the eleven that are there."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", help="Tasks per scenario. Default: the paper's 1,000; 100 streams.")
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes that run cells, with one thread each.")] = 1,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for all output.")] = Path(
        "kedge-reproduce"
    ),
    views: Annotated[int, typer.Option(metavar="N", help="Views of each image, if mta is among the methods.")] = 64,
    device: Device = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and how long it takes.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the experiments of the StatA paper and compare the results with the published ones.

    Finds which of the paper's eleven datasets are in DIR (in CoOp's folders, see `kedge ls datasets`), encodes them,
    runs the benchmarks, writes a report, and prints our means beside the paper's. You can stop at any time: the same
    command continues. When all is done, it only writes the report again.

    \b
    Tables:
      1         batches: seven scenarios                         all datasets
      2         streams: four scenarios                          all datasets
      encoders  both with RN50, RN101, ViT-B/32 and ViT-L/14     all datasets
      alpha     Figure 3, the anchor weight                      imagenet, dtd, stanford_cars
      beta      Table 4, hard and soft β                         imagenet
      runtime   Table 3                                          imagenet

    \b
    Example: kedge reproduce --root data --tables 1,2 --dry-run
    """
    from .. import progress
    from ..encoders.encoder import DEFAULT
    from ..reproduce import prepare
    from ..reproduce import reproduce as run
    from ..reproduce.summary import as_json as result_json
    from ..reproduce.summary import plan_json, plan_rows, summary_text
    from ..reproduce.tables import DEFAULT_TABLES

    with contextlib.nullcontext() if quiet else progress.on_stderr():
        progress.notice("looking for the datasets, timing the encoder and the methods …")
        prepared = prepare(
            root,
            encoder or [DEFAULT],
            DEFAULT_TABLES if tables is None else _names(tables) or [],
            _names(methods),
            _names(datasets),
            tasks,
            jobs,
            out,
            views,
            device,
        )
        plan, forecast = prepared.plan, prepared.forecast
        for line in [*plan.notes, *forecast.lines()]:
            progress.notice(line)
        if dry_run:
            print_json(plan_json(prepared)) if as_json else print_table(plan_rows(plan))
            return
        try:
            made = run(prepared, device)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(f"stopped. Finished work is in {out}; run the same command to continue.") from error
    if as_json:
        print_json(result_json(made))
    else:
        with stdout() as file:
            file.write(summary_text(made))
    if not quiet:
        show_skipped(made.skipped)
    for record in made.failed:
        tell(f"failed: {record.label} on {record.dataset}, {record.scenario}: {record.error}")
    if made.failed:
        tell(f"{count(len(made.failed), 'cell')} failed; the next run tries again.")
    if not quiet:
        tell(f"report → {made.report}")
    if made.failed:
        raise typer.Exit(1)


def _names(options: list[str] | None) -> list[str] | None:
    """`--methods stata,kedge --methods tda` as a list. A comma before a setting belongs to the method: a:b=1,c=2."""
    if options is None:
        return None
    return [name.strip() for text in options for name in re.split(r",(?!\s*\w+=)", text) if name.strip()]
