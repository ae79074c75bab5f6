"""`kedge adapt`: label images, or the images of a feature file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._version import __version__
from ..errors import SettingError
from ..ranges import MOST_IMAGES, whole
from ._adapt_folder import adapt_folder
from ._adapt_summary import show_classes, show_review, show_summary
from ._app import (
    BatchSize,
    ClassNames,
    Cluster,
    Device,
    EncoderName,
    ImageFolder,
    Json,
    KeepPrecision,
    Normalize,
    Precision,
    Quiet,
    RawCsv,
    Strict,
    Templates,
    Workers,
    app,
)
from ._show import print_json, show_skipped, stdout, tell

if TYPE_CHECKING:
    from ..features.text_head import TextHead

JSON_REVIEW = 20  # images worth a look, if --review does not say how many


@app.command()
def adapt(
    source: Annotated[
        list[str],
        typer.Argument(metavar="FEATURES|IMAGES...", help="One feature file; or folders of images, tables, files."),
    ],
    method: Annotated[
        str, typer.Option(metavar="NAME[:SETTINGS][:METHOD]", help="stata, or stata:alpha=10. See `kedge ls methods`.")
    ] = "kedge",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; can be repeated."),
    ] = None,
    classes: ClassNames = None,
    encoder: EncoderName = None,
    templates: Templates = None,
    views: Annotated[
        int | None, typer.Option(metavar="N", help="Augmented views per image, if the method needs them. Default: 64.")
    ] = None,
    keep_features: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the features of the images, as .safetensors.")
    ] = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = None,
    keep_precision: KeepPrecision = False,
    strict: Strict = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace other features in the file of --keep-features.")
    ] = False,
    out: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="-: CSV on stdout. x.csv, .json or .parquet: a table. x.labelstudio.json: tasks for Label Studio. "
            "x.fiftyone.json: labels for FiftyOne. metadata.csv or metadata.jsonl: for Hugging Face's imagefolder.",
        ),
    ] = "-",
    image_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With .labelstudio.json: what comes before an image's path. Default: /data/local-files/?d=FOLDER/",
        ),
    ] = None,
    sort_into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder: copy the images into its sub-folders by label.")
    ] = None,
    images: ImageFolder = None,
    present: Annotated[
        str | None,
        typer.Option(metavar="NAMES|FILE", help="Classes that can occur; a .csv: as --classes-out writes it, edited."),
    ] = None,
    absent: Annotated[
        str | None,
        typer.Option(metavar="NAMES|FILE", help="Classes that cannot occur; of a .csv, those with present = no."),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='CSV: image,label ("none" allowed); or kedge\'s own, with true_label. Or JSON from Label Studio.',
        ),
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            metavar="T", help="Take out images whose score `none` is above T (0.5 is usual); label the others again."
        ),
    ] = None,
    review: Annotated[
        int | None, typer.Option(metavar="N", help="List the N images that are most worth a look.")
    ] = None,
    classes_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the classes found, as .csv, for --present.")
    ] = None,
    label_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="For more features than memory holds: write the labels as shards into this folder."
        ),
    ] = None,
    cluster: Cluster = None,
    actors: Annotated[
        int | None, typer.Option(metavar="N", help="With --cluster: in how many parts. Default: one for each node.")
    ] = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Also write rows for images that could not be read.")
    ] = False,
    raw_csv: RawCsv = False,
    normalize: Normalize = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Label images jointly.

    One row per image: image, label, probability, runner_up, margin, none (a score: does it show none of the classes?),
    review_rank, zero_shot_label, zero_shot_probability, changed, true_label (for you to fill in; --known reads it).
    The summary, with the classes found and a verdict, is on stderr. With --json it is also on stdout, with the rows
    unless --out names a file.
    Several folders are taken together: the classes are the names of all their sub-folders, or --classes.
    Images that cannot be read are left out and named on stderr.
    With a feature file, --sort-into and methods that adapt the encoder open the images it names only if they are in
    the file's own folder, or in the folder that --images names. Such methods also take --encoder and --device.
    With --label-folder, features stay on the disk, and labels are written as shards; --out x.csv or x.json also makes
    one table of them. With --cluster, the parts of this solve are on the nodes of a cluster.

    \b
    Example: kedge adapt birds.safetensors --set alpha=2 --out labels.csv
    Example: kedge adapt photos --classes "cat, dog, bird" --sort-into sorted --out labels.csv
    Example: kedge adapt photos.safetensors --images photos --sort-into sorted
    Example: kedge adapt photos.safetensors --present found.csv --known labels.csv --review 20
    Example: kedge adapt photos --classes names.txt --out photos.labelstudio.json
    Example: kedge adapt features --label-folder labels --out labels.csv --cluster 10.0.0.1:6379
    """
    from .. import progress
    from ..encoders.encoder import DEFAULT
    from ..encoders.names import load_encoder
    from ..encoders.templates import read_templates
    from ..features.extract import check_feature_file
    from ..features.feature_set import FeatureSet
    from ..features.image_source import ImageSource, find_images, image_root
    from ..images.image_set import is_features
    from ..images.parquet import ParquetImages
    from ..images.sources import image_set
    from ..labelling.class_file import check_class_file, read_present, write_classes
    from ..labelling.classify import classify, label
    from ..labelling.exports.asked import Asked
    from ..labelling.exports.kinds import check_output, kind_of
    from ..labelling.findings import class_rows, review_rows
    from ..labelling.known_file import read_known
    from ..labelling.solving import checked_threshold
    from ..labelling.sorting import check_target
    from ..labelling.sorting import sort_into as sort
    from ..methods.given import names_alone
    from ..methods.registry import build, find_method, parse_method
    from ..methods.settings import parse, settings_of

    if label_folder is not None:
        others: dict[str, Any] = {
            "classes": classes,
            "encoder": encoder,
            "templates": templates,
            "views": views,
            "reject": reject,
        }
        others |= {"review": review, "classes_out": classes_out, "images": images}
        others |= {"sort_into": sort_into, "keep_features": keep_features, "image_url": image_url}
        others |= {"batch_size": batch_size, "workers": workers, "precision": precision}
        others |= {"normalize": normalize or None, "all_rows": all_rows or None, "strict": strict or None}
        others |= {"device": None if device == "auto" else device, "force": force or None}
        others |= {"keep_precision": keep_precision or None}
        _refuse(others, "not for --label-folder")
        table = None if out == "-" else Path(out)
        where: dict[str, Any] = {"present": present, "absent": absent, "cluster": cluster, "actors": actors}
        show: dict[str, Any] = {"raw_csv": raw_csv, "as_json": as_json, "quiet": quiet}
        return adapt_folder(source, label_folder, method, set_ or [], known, table, **where, **show)
    _refuse({"cluster": cluster, "actors": actors}, "for --label-folder")
    if out == "-":
        _refuse({"image_url": image_url}, "for --out FILE.labelstudio.json")
    file = None if out == "-" else check_output(out, Asked(raw_csv, all_rows, image_url))
    name = parse_method(method)["name"]
    chosen = build(method, parse(find_method(name), set_ or [], name))
    if classes_out:
        check_class_file(classes_out)
    listed = whole("--review", JSON_REVIEW if review is None else review, 1, MOST_IMAGES)
    said: dict[str, Any] = {"reject": checked_threshold(reject, "--reject")}

    def read_said(head: TextHead, images: Sequence[str | int], skipped: Iterable[str] = ()) -> None:
        """Read what the user says of these classes and images; can they be written as the user wants them?"""
        if file:
            kind_of(file).check(images, head.class_names)
        said["present"] = read_present(present, absent, head)
        said["known"] = None if known is None else read_known(known, images, head, skipped, said["present"])

    adapts_encoder = chosen.traits.needs == "encoder"
    for_images: dict[str, Any] = {
        "classes": classes,
        "templates": templates and read_templates(templates),
        "views": views,
        "keep_features": keep_features and check_feature_file(keep_features),
        "batch_size": batch_size,
        "workers": workers,
        "precision": precision,
        "keep_precision": keep_precision or None,
        "strict": strict or None,
    }
    given = {name: value for name, value in for_images.items() if value is not None}
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        if len(source) == 1 and is_features(source[0]):
            encoder_too = {} if adapts_encoder else {"encoder": encoder, "device": device if device != "auto" else None}
            _refuse({**given, **encoder_too}, f"for images; {source[0]} is a feature file")
            if not (sort_into or adapts_encoder):
                _refuse({"images": images}, "for --sort-into and for methods that adapt the encoder")
            features = FeatureSet.load(source[0], normalize=normalize)
            read_said(features.head, features.paths or range(len(features)), features.skipped)
            if sort_into:
                find_images(features, images)
                check_target(sort_into, [image_root(features, images)])
            opened = ImageSource.of(features, images, encoder, device) if adapts_encoder else None
            predictions = label(features, chosen, opened, **said)
            seconds = {"seconds": predictions.seconds}
        else:
            _refuse({"images": images, "normalize": normalize or None}, "for a feature file, and these are images")
            found = image_set(source, given.pop("classes", None))
            if sort_into:
                if isinstance(found, ParquetImages):
                    raise SettingError("--sort-into is for image files, and these are in a Parquet file. Leave it out.")
                check_target(sort_into, found.folders or (found.root,))
            read_said(names_alone(found.class_names), found.paths)
            loaded = load_encoder(encoder or DEFAULT, device=device)
            start = time.perf_counter()
            options = {**given, **said}
            predictions = classify(found, encoder=loaded, method=chosen, force=force, **options)
            assert predictions.seconds is not None
            encoding = time.perf_counter() - start - predictions.seconds
            seconds = {"seconds": predictions.seconds, "encoding_seconds": encoding}
        summary = {**predictions.summary(), **seconds}
        summary["classes_found"] = class_rows(predictions)
        summary["review"] = review_rows(predictions, listed) if as_json or review else []
        summary["verdict"] = asdict(predictions.result.verdict)
        if sort_into:  # before the rows are written, since it may fail
            sort(predictions, sort_into, images)
        if file:
            predictions.write(file, raw_csv, all_rows, image_url)
        if classes_out:
            write_classes(predictions, classes_out, raw_csv)
    if as_json:
        made_of = predictions.features
        origin = {"source": source, "precision": made_of.precision, "sha256": made_of.hash, "kedge": __version__}
        rows = {} if file else {"rows": list(predictions.rows(all_rows))}
        print_json({**summary, "skipped": predictions.skipped, "settings": settings_of(chosen), **origin, **rows})
    elif not file:
        with stdout() as rows_out:
            predictions.write_csv(rows_out, raw_csv, all_rows)
    if not quiet:
        show_summary(summary)
        if known and not said["known"]:
            tell(f"note: {known} has no label for any of these images")
        show_classes(summary["classes_found"], classes_out)
        if review:
            show_review(summary["review"])
        show_skipped(predictions.skipped)
        written = kind_of(file).files(file) if file else ()
        for made in filter(None, (*written, sort_into, keep_features, classes_out)):
            tell(f"→ {made}")
        tell(summary["verdict"]["sentence"])


def _refuse(options: Mapping[str, Any], reason: str) -> None:
    """Raise SettingError if one of the options is given: it would have no effect."""
    for name, value in options.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise SettingError(f"{flag} is {reason}. Leave {flag} out.")
