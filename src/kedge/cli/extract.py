"""`kedge extract`: from images to a feature file."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, SettingError
from ..words import count
from ._app import Json, Quiet, app
from ._show import percent, print_json, tell

if TYPE_CHECKING:
    from ..features.feature_set import FeatureSet
    from ..images.image_set import ImageSet

SHOWN_SKIPPED = 10  # images that could not be read, named on stderr; the feature file has all
ROWS = 8192  # images whose zero-shot labels are computed together


@app.command()
def extract(
    images: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGES", help="A folder of images, or a table of them (.csv: path,label)."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of IMAGES: of the paper, or hf:NAME; see below.")
    ] = None,
    root: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that has the datasets in it.")] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Of the dataset: test, train or val.")] = "test",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="E", help="tiny, hf:NAME, openclip:MODEL/PRETRAINED or a folder. CLIP ViT-B/16."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="NAMES", help='"cat, dog", or a file with one class per line.')
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts, one per line, with {} for the class; averaged.")
    ] = None,
    views: Annotated[int, typer.Option(metavar="V", help="Random crops of each image, for MTA; 0 for none.")] = 0,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Pictures through the encoder at one time.")] = 64,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes that decode; 0 for none. One per core if it pays.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, mps, …; auto takes the fastest.")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at an image that can not be read.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the views.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="To write: a .safetensors file.")] = Path(
        "features.safetensors"
    ),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn images and class names into a feature file.

    Sub-folders of IMAGES are the classes, and label the images. With --classes they label them only if each is the
    name of a class (_, - and case do not matter); otherwise labels are unknown. Images that can not be read are
    left out and listed. Stop it at any moment, start it again, and it goes on: meanwhile FILE.parts has what is done.

    \b
    Datasets (--dataset NAME --root DIR), laid out as for CoOp: imagenet, sun397, fgvc_aircraft, eurosat,
    stanford_cars, food101, oxford_pets, oxford_flowers, caltech101, dtd, ucf101. Their prompts are the paper's.
    hf:NAME is a Hugging Face dataset, and needs no root.

    \b
    Example: kedge extract photos --classes "cat, dog" --encoder tiny -o photos.safetensors
    """
    from .. import progress
    from ..encoders.encoder import DEFAULT
    from ..encoders.names import load_encoder
    from ..encoders.templates import read_templates, templates_for
    from ..features.extract import check_feature_file, done_before
    from ..features.extract import extract as run

    check_feature_file(out)
    found = _images(images, dataset, root, split, classes)
    known = dataset if dataset and not dataset.startswith("hf:") else None
    texts = read_templates(templates) if templates else templates_for(known)
    loaded = load_encoder(encoder or DEFAULT, device=device)
    before = done_before(out)
    if found.note and not quiet:
        tell(found.note)
    if before and not quiet:
        tell(f"going on after image {before:,} of {len(found):,}")
    start = time.perf_counter()
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        try:
            features = run(
                found,
                loaded,
                out,
                templates=texts,
                views=views,
                batch_size=batch_size,
                workers=workers,
                strict=strict,
                seed=seed,
            )
        except KeyboardInterrupt:
            if not quiet:
                tell(f"stopped. What is done is in {out}.parts; start again to go on.")
            raise
    seconds = time.perf_counter() - start
    summary = {
        "features": str(out),
        "images": len(features),
        "classes": features.head.k,
        "views": views,
        "skipped": features.provenance["skipped"],
        "images_per_second": (len(found) - before) / seconds,
        "zero_shot_accuracy": _accuracy(features),
        "encoder": features.provenance["encoder"],
        "sha256": features.hash,
    }
    if as_json:
        print_json(summary)
    if not quiet:
        _tell_summary(summary)


def _images(images: Path | None, dataset: str | None, root: Path | None, split: str, classes: str | None) -> ImageSet:
    """What the options name."""
    from ..images.class_names import class_names
    from ..images.datasets import find_dataset
    from ..images.folders import folder
    from ..images.huggingface import huggingface
    from ..images.layouts import benchmark_images

    names = None if classes is None else class_names(classes)
    if (images is None) == (dataset is None):
        raise SettingError("name either a folder of IMAGES or a --dataset, and not both.")
    if images is not None:
        return folder(images, names)
    assert dataset is not None
    if dataset.startswith("hf:"):
        found: ImageSet = huggingface(dataset.removeprefix("hf:"), split)
    elif root is None:
        raise SettingError(f"where is {find_dataset(dataset).name}? Name the folder that has it in it: --root DIR.")
    else:
        found = benchmark_images(dataset, root, split)
    if names is None:
        return found
    if found.class_names and len(names) != len(found.class_names):
        raise InputError(
            f"{len(names)} class names for the {len(found.class_names)} classes of {found.name}. Name each."
        )
    return dataclasses.replace(found, class_names=names)  # other words for the same classes, in the same order


def _accuracy(features: FeatureSet) -> float | None:
    """Of the zero-shot labels, if the true ones are known."""
    from ..labelling.stream import adapt

    if features.labels is None:
        return None
    parts = [features.take(slice(start, start + ROWS)) for start in range(0, len(features), ROWS)]
    return sum(int((adapt(part, method="zero-shot").labels == part.labels).sum()) for part in parts) / len(features)


def _tell_summary(summary: Mapping[str, Any]) -> None:
    skipped = summary["skipped"]
    for entry in skipped[:SHOWN_SKIPPED]:
        tell(f"left out: {entry['path']}: {entry['reason']}")
    if len(skipped) > SHOWN_SKIPPED:
        tell(f"… and {len(skipped) - SHOWN_SKIPPED:,} more; `kedge features info` has them all")
    accuracy = summary["zero_shot_accuracy"]
    tell(
        f"{count(summary['images'], 'image')}, {count(summary['classes'], 'class')}, {len(skipped):,} left out, "
        f"{summary['images_per_second']:,.1f} images/s"
        + ("" if accuracy is None else f", zero-shot accuracy {percent(accuracy)}")
    )
    tell(f"→ {summary['features']}")
