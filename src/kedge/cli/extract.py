"""`kedge extract`: from images to a feature file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError
from ..words import count, percent
from ._app import BatchSize, Cluster, Device, EncoderName, Json, KeepPrecision, Quiet, Strict, Templates, Workers, app
from ._show import print_json, show_skipped, tell


@app.command()
def extract(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGES...", help="Folders of images, tables (.csv: path,label), Parquet files, images or patterns."
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="A dataset instead of IMAGES; see above.")] = None,
    root: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that contains the datasets.")] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Split of the dataset: test, train or val.")] = "test",
    encoder: EncoderName = None,
    classes: Annotated[
        str | None, typer.Option(metavar="NAMES|FILE", help='"cat, dog", or a file with one class per line.')
    ] = None,
    templates: Templates = None,
    views: Annotated[int, typer.Option(metavar="N", help="Augmented views per image, for MTA and DMN.")] = 0,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="fp32; bf16 or int8: faster, less exact; auto: what is fastest here.")
    ] = "fp32",
    keep_precision: KeepPrecision = False,
    strict: Strict = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random views.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file or unfinished work of another job.")] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE|FOLDER", help="The .safetensors file or the folder to write.")
    ] = Path("features.safetensors"),
    images_per_shard: Annotated[
        int | None, typer.Option(metavar="N", help="In a feature folder: images in each file; default: 8192.")
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Encode images and class names into a feature file or folder.

    By default the sub-folders of IMAGES are the classes and give the labels. With --classes, they give the labels
    only if each is the name of a class (case, _ and - are ignored); otherwise labels are unknown. Images that cannot
    be read are left out and listed. An interrupted run continues when it is started again: finished work is in
    FILE.parts. If FILE is complete and comes from the same images, classes and options, nothing is done; if not, it
    is replaced only with --force.

    An --out without an ending is a feature folder, for more features than memory holds: it has many files, and its
    unfinished work too. With --cluster, the machines of a cluster make these files, each in its own time; all of them
    must see the images and the output at the same paths.

    \b
    Datasets (--dataset NAME --root DIR), in CoOp's folder layout: imagenet, sun397, fgvc_aircraft, eurosat,
    stanford_cars, food101, oxford_pets, oxford_flowers, caltech101, dtd, ucf101. The prompts are those of the paper.
    hf:NAME is a Hugging Face dataset and needs no --root.

    \b
    Example: kedge extract photos --classes "cat, dog" --encoder tiny -o photos.safetensors
    """
    from .. import progress
    from ..encoders.encoder import DEFAULT
    from ..encoders.names import load_encoder
    from ..encoders.templates import read_templates
    from ..features.extract import check_feature_file, done_before, extract_folder
    from ..features.extract import extract as extract_file
    from ..images.sources import dataset_images, image_set

    folder: dict[str, Any] = {} if images_per_shard is None else {"images_per_shard": images_per_shard}
    if out.suffix:
        check_feature_file(out)
        if folder:
            raise SettingError(f"--images-per-shard is for a feature folder; {out} is a file. Leave one of them out.")
    run: Any = extract_file if out.suffix else partial(extract_folder, **folder)
    if bool(images) == bool(dataset):
        given = "both" if images else "neither"
        raise SettingError(f"extract needs either IMAGES or --dataset; got {given}. Name one of them.")
    found = dataset_images(dataset, root, split, classes) if dataset else image_set(images or [], classes)
    prompts = read_templates(templates) if templates else None
    loaded = load_encoder(encoder or DEFAULT, device=device)
    continued = done_before(out) > 0
    if found.note and not quiet:
        tell(found.note)
    written = _written(out)
    start = time.perf_counter()
    with contextlib.nullcontext() if quiet else progress.on_stderr(), _cluster(cluster) as map_shards:
        try:
            features = run(
                found,
                encoder=loaded,
                out=out,
                templates=prompts,
                views=views,
                batch_size=batch_size,
                workers=workers,
                precision=precision,
                keep_precision=keep_precision,
                strict=strict,
                seed=seed,
                force=force,
                map_shards=map_shards,
            )
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"stopped. Finished work is in {out}{'.parts' * bool(out.suffix)}; run the command again to continue."
            ) from error
    seconds = time.perf_counter() - start
    done_already = written is not None and written == _written(out)
    summary = {
        "features": str(out),
        "images": len(features),
        "classes": features.head.k,
        "views": views,
        "skipped": features.provenance["skipped"],
        "already_done": done_already,
        "images_per_second": None if done_already or continued else len(found) / seconds,
        "zero_shot_accuracy": features.zero_shot_accuracy(),
        "encoder": features.provenance["encoder"],
        "precision": features.precision,
        "precision_check": features.provenance.get("precision_check"),
        "sha256": features.hash,
    }
    if as_json:
        print_json(summary)
    if not quiet:
        _show_summary(summary)


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """What makes shards on the cluster at this address; None without an address."""
    if address is None:
        yield None
        return
    from ..cluster.connect import connected
    from ..cluster.extraction import map_shards

    with connected(address):
        yield map_shards


def _written(path: Path) -> tuple[int, int] | None:
    """When the file was written, and which file it is; None if there is none."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns, path.stat().st_ino
    return None


def _show_summary(summary: Mapping[str, Any]) -> None:
    if summary["already_done"]:
        tell(f"already done: {summary['features']}")
        return
    skipped, accuracy = summary["skipped"], summary["zero_shot_accuracy"]
    show_skipped({entry["path"]: entry["reason"] for entry in skipped})
    speed = summary["images_per_second"]
    tell(
        f"{count(summary['images'], 'image')}, {count(summary['classes'], 'class')}, {len(skipped):,} left out"
        + ("" if speed is None else f", {speed:,.1f} images/s")
        + ("" if accuracy is None else f", zero-shot accuracy {percent(accuracy)}")
    )
    tell(f"→ {summary['features']}")
