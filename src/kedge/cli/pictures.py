"""`kedge pictures`: pictures to try kedge on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..words import count
from ._app import app
from ._show import tell


@app.command()
def pictures(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")] = Path("photos"),
    classes: Annotated[int, typer.Option(metavar="N", help="How many of the 178 classes, drawn at random.")] = 20,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the names of all 178 classes, for --classes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the draw; default: a typical one.")] = None,
) -> None:
    """Unpack pictures that come with kedge, to try it on.

    They are simulated: drawings of everyday things, photographed by a program; 20 pictures of each class, in a folder
    with its name. The bundled model `tiny` knows them.

    \b
    Example: kedge pictures photos --names names.txt
             kedge adapt photos --classes names.txt --encoder tiny --out labels.csv
    """
    from ..encoders.tiny import PICTURES_SEED, bundled_classes
    from ..encoders.tiny import pictures as unpack

    unpack(folder, classes, PICTURES_SEED if seed is None else seed, names)
    tell(f"simulated pictures of {count(classes, 'class')} → {folder}")
    if names:
        tell(f"{count(len(bundled_classes()), 'class name')} → {names}")
