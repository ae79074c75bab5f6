"""`kedge adapt` and `kedge demo`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .._version import __version__
from ._app import FeatureFile, Json, Normalize, Quiet, app
from ._show import percent, print_json, print_table, tell


@app.command()
def adapt(
    features: FeatureFile,
    method: Annotated[str, typer.Option(metavar="NAME", help="See `kedge ls methods`.")] = "stata",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated."),
    ] = None,
    out: Annotated[str, typer.Option(metavar="FILE", help=".csv, .json or .parquet; - is CSV on stdout.")] = "-",
    normalize: Normalize = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Label the images of a feature file, all of them together.

    One row per image: image, label, probability, zero_shot_label, zero_shot_probability, changed. A summary
    goes to stderr. With --json it is on stdout too, with the rows in it unless they went to a file.

    \b
    Example: kedge adapt birds.safetensors --set alpha=2 --out labels.csv
    """
    from .. import progress
    from ..features import FeatureSet
    from ..methods import build, find
    from ..methods._settings import parse
    from ..predictions import Predictions, check_output
    from ..stream import adapt

    file = None if out == "-" else check_output(out)
    cls = find(method)
    chosen = build(method, parse(cls, set_ or [], method))
    loaded = FeatureSet.load(features, normalize=normalize)
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        start = time.perf_counter()
        result = adapt(loaded, method=chosen)
        seconds = time.perf_counter() - start
    predictions = Predictions(loaded, result)
    summary = {**predictions.summary(), "seconds": seconds}
    if file:
        predictions.write(file)
    if as_json:
        settings = {f.name: getattr(chosen, f.name) for f in dataclasses.fields(cls)}
        origin = {"features": str(features), "sha256": loaded.hash, "kedge": __version__}
        rows = {} if file else {"rows": list(predictions.rows())}
        print_json({**summary, "settings": settings, **origin, **rows})
    elif not file:
        predictions.write_csv(sys.stdout)
    if not quiet:
        _tell_summary(summary)
        if file:
            tell(f"→ {file}")


def _tell_summary(summary: Mapping[str, Any]) -> None:
    images, changed = summary["images"], summary["changed"]
    tell(
        f"{images:,} images, {summary['classes']:,} classes, method {summary['method']}: "
        f"{changed:,} labels changed ({percent(changed / images)}), "
        f"{summary['effective_classes']:.1f} effective classes, {summary['seconds']:.2f} s"
    )
    if summary["accuracy"] is not None:
        before, after = summary["zero_shot_accuracy"], summary["accuracy"]
        tell(f"accuracy: {percent(before)} zero-shot, {percent(after)} adapted")
    if summary.get("converged") is False:
        tell(f"stopped after {summary['iterations']} iterations, before z had settled")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="For the report, the table and the picture.")] = Path(
        "kedge-demo"
    ),
    as_json: Json = False,
) -> None:
    """See what adaptation gains, on simulated features.

    \b
    Example: kedge demo --out kedge-demo
    """
    from .. import progress
    from ..demo import demo

    with progress.on_stderr():
        rows = [dataclasses.asdict(row) for row in demo(out)]
    files = [str(out / name) for name in ("report.html", "demo.csv", "demo.png")]
    if as_json:
        print_json({"data": "simulated", "rows": rows, "files": files})
        return
    shown = [{name: f"{v:.1f}" if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    print_table(shown, title="Labels right, %, on SIMULATED features: a demonstration, not a benchmark")
    tell(f"→ {', '.join(files)}")
