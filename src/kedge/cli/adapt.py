"""`kedge adapt`: label the images of a feature file, or images."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .._version import __version__
from ..errors import SettingError
from ..words import count
from ._app import Json, Normalize, Quiet, app
from ._show import percent, print_json, tell

TOLD = 10  # unreadable images named on stderr


@app.command()
def adapt(
    source: Annotated[
        list[str], typer.Argument(metavar="FEATURES|IMAGES...", help="A feature file; or a folder or files of images.")
    ],
    method: Annotated[
        str, typer.Option(metavar="NAME[:SETTINGS][:METHOD]", help="stata, or stata:alpha=10. See `kedge ls methods`.")
    ] = "kedge",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated."),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="NAMES|FILE", help='Of images: "cat, dog", or a file. By default their sub-folders.'),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of images: tiny, hf:NAME, openclip:NAME, or a folder. CLIP by default."),
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of images: prompts, one per line, with {} for the class.")
    ] = None,
    views: Annotated[
        int | None, typer.Option(metavar="N", help="Of images, each, for a method that looks at views; 64.")
    ] = None,
    keep_features: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of images: keep their features, as .safetensors.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FILE", help=".csv, .json or .parquet; - is CSV on stdout.")] = "-",
    sort_into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the images into folders by label, in this new folder.")
    ] = None,
    normalize: Normalize = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Label images, all of them together.

    One row per image: image, label, probability, zero_shot_label, zero_shot_probability, changed. A summary
    goes to stderr. With --json it is on stdout too, with the rows in it unless they went to a file.
    Images that can not be read are named on stderr and left out.

    \b
    Example: kedge adapt birds.safetensors --set alpha=2 --out labels.csv
    Example: kedge adapt photos --classes "cat, dog, bird" --sort-into sorted --out labels.csv
    """
    from .. import progress
    from ..encoders.templates import read_templates
    from ..features.extract import check_feature_file
    from ..features.feature_set import FeatureSet
    from ..images.sources import image_set
    from ..labelling.classify import classify, label
    from ..labelling.predictions import check_output
    from ..labelling.sorting import check_target
    from ..labelling.sorting import sort_into as sort
    from ..methods.registry import build, find_method, parse_method
    from ..methods.settings import parse, settings_of

    file = None if out == "-" else check_output(out)
    name = parse_method(method)["name"]
    chosen = build(method, parse(find_method(name), set_ or [], name))
    only_images = {
        "classes": classes,
        "encoder": encoder,
        "templates": templates and read_templates(templates),
        "views": views,
        "keep_features": keep_features and check_feature_file(keep_features),
    }
    given: dict[str, Any] = {name: value for name, value in only_images.items() if value is not None}
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        if _is_features(source):
            if given:
                flag = "--" + next(iter(given)).replace("_", "-")
                raise SettingError(f"{flag} is for images; {source[0]} is a feature file, which has it. Leave it out.")
            features = FeatureSet.load(source[0], normalize=normalize)
            if sort_into:
                check_target(sort_into, features.provenance.get("root"))
            start = time.perf_counter()
            predictions = label(features, chosen)
        else:
            images = image_set(source[0] if len(source) == 1 else source, given.pop("classes", None))
            if sort_into:
                check_target(sort_into, images.root)
            if images.note and not quiet:
                tell(images.note)
            start = time.perf_counter()
            predictions = classify(images, method=chosen, workers=None, **given)
        seconds = time.perf_counter() - start
        summary = {**predictions.summary(), "seconds": seconds}
        if sort_into:  # first, since it may fail
            sort(predictions, sort_into)
        if file:
            predictions.write(file)
    if as_json:
        origin = {"source": source, "sha256": predictions.features.hash, "kedge": __version__}
        rows = {} if file else {"rows": list(predictions.rows())}
        print_json({**summary, "skipped": predictions.skipped, "settings": settings_of(chosen), **origin, **rows})
    elif not file:
        predictions.write_csv(sys.stdout)
    if not quiet:
        _tell_summary(summary)
        _tell_skipped(predictions.skipped)
        for made in filter(None, (file, sort_into, keep_features)):
            tell(f"→ {made}")


def _is_features(source: Sequence[str]) -> bool:
    """Is it one feature file? Everything else is images."""
    return len(source) == 1 and Path(source[0]).suffix.lower() in (".safetensors", ".npz")


def _tell_summary(summary: Mapping[str, Any]) -> None:
    images, changed = summary["images"], summary["changed"]
    tell(
        f"{count(images, 'image')}, {count(summary['classes'], 'class')}, method {summary['method']}: "
        f"{count(changed, 'label')} changed ({percent(changed / images)}), "
        f"{summary['effective_classes']:.1f} effective classes, {summary['seconds']:.2f} s"
    )
    if summary["accuracy"] is not None:
        before, after = summary["zero_shot_accuracy"], summary["accuracy"]
        tell(f"accuracy: {percent(before)} zero-shot, {percent(after)} adapted")
    if "why" in summary:
        tell(f"trust in the batch {summary['trust']:.2f}: {summary['why']}")
    if "recall" in summary:
        tell(f"neighbours by approximate search, {percent(summary['recall'])} of them the true ones")
    if "outside" in summary:
        tell(
            f"{summary['candidates']} candidate classes per image, {percent(summary['outside'])} of probability outside"
        )
    if summary.get("converged") is False:
        tell(f"stopped after {summary['iterations']} iterations, before z had settled")


def _tell_skipped(skipped: Mapping[str, str]) -> None:
    for path, reason in list(skipped.items())[:TOLD]:
        tell(f"left out: {path}: {reason}")
    if len(skipped) > TOLD:
        tell(f"left out: {len(skipped) - TOLD:,} more")
