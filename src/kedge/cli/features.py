"""`kedge features`: show, convert, split and import features."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SettingError
from ..words import count, first_few, percent
from ._app import Device, FeatureFile, Json, Normalize, Quiet, Templates, features_app
from ._show import plain, print_facts, print_json, tell

if TYPE_CHECKING:
    from ..features.feature_set import FeatureSet
    from ..features.folder import Columns, FeatureFolder
    from ..features.text_head import TextHead


@features_app.command("info")
def features_info(features: FeatureFile, normalize: Normalize = False, as_json: Json = False) -> None:
    """Check a feature file or folder and show what is in it.

    \b
    Example: kedge features info birds.safetensors
    """
    from ..features.feature_set import FeatureSet
    from ..features.folder import FeatureFolder
    from ..images.image_set import is_feature_folder

    if is_feature_folder(features) and not normalize:
        about = _about_folder(FeatureFolder.open(features))
    else:
        about = _about(FeatureSet.load(features, normalize=normalize))
    about = {"file": str(features), **about}
    if as_json:
        print_json(about)
        return
    accuracy = about["zero_shot_accuracy"]
    about["class_names"] = first_few(about["class_names"])
    about["zero_shot_accuracy"] = "unknown" if accuracy is None else percent(accuracy)
    about["provenance"] = json.dumps(plain(about["provenance"]), ensure_ascii=False)
    print_facts(about)


def _about(features: FeatureSet) -> dict[str, Any]:
    from ..features.folder import Columns

    return _facts(features, Columns.of(features), features.zero_shot_accuracy())


def _about_folder(folder: FeatureFolder) -> dict[str, Any]:
    return {**_facts(folder, folder.columns, folder.zero_shot_accuracy()), "shards": len(folder.shards)}


def _facts(features: FeatureSet | FeatureFolder, columns: Columns, accuracy: float | None) -> dict[str, Any]:
    return {
        "images": len(features),
        "classes": features.head.k,
        "dimension": features.head.d,
        **dataclasses.asdict(columns),
        "logit_scale": features.head.logit_scale,
        "zero_shot_accuracy": accuracy,
        "class_names": list(features.head.class_names),
        "provenance": dict(features.provenance),
        "sha256": features.hash,
    }


@features_app.command("convert")
def features_convert(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="An .npz or .safetensors feature file, or a feature folder.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .safetensors file to write.")],
    normalize: Normalize = False,
    logit_scale: Annotated[float | None, typer.Option(help="The encoder's logit scale; replaces that of IN.")] = None,
) -> None:
    """Convert an .npz file of arrays to a feature file.

    The arrays are image_features and text_features and, if known, labels, class_names, views, paths, logit_scale
    (default: 100, as in CLIP) and meta. A feature file is checked, hashed and memory-mapped.

    \b
    Example: kedge features convert birds.npz birds.safetensors
    """
    from ..features.extract import check_feature_file
    from ..features.feature_set import FeatureSet
    from ..features.text_head import TextHead

    check_feature_file(target)
    loaded = FeatureSet.load(source, normalize=normalize)
    if logit_scale is not None:
        head = TextHead.from_arrays(loaded.head.features, logit_scale, loaded.head.class_names)
        loaded = dataclasses.replace(loaded, head=head)
    sha256 = loaded.save(target)
    tell(f"{count(len(loaded), 'image')}, {count(loaded.head.k, 'class')} → {target} (sha256 {sha256})")


@features_app.command("split")
def features_split(
    source: FeatureFile,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="The feature folder to make.")],
    images_per_shard: Annotated[
        int | None, typer.Option(metavar="N", help="Images in each shard; default: 8192.")
    ] = None,
    shards: Annotated[int | None, typer.Option(metavar="N", help="The number of shards instead.")] = None,
    normalize: Normalize = False,
    quiet: Quiet = False,
) -> None:
    """Write features as a folder of shards with a manifest, for more than memory holds and for clusters.

    A feature folder can be named wherever a feature file can. Its shards are memory-mapped, and checked when they are
    opened. An interrupted split continues when it is started again. To make one file of a folder: kedge features
    convert.

    \b
    Example: kedge features split birds.safetensors birds-features --images-per-shard 100000
    """
    from .. import progress
    from ..features.feature_set import FeatureSet
    from ..features.folder import IMAGES_PER_SHARD, MOST_PER_SHARD, check_new_folder, split
    from ..ranges import whole

    if shards is not None and images_per_shard is not None:
        raise SettingError("--shards and --images-per-shard were both given. Leave one of them out.")
    check_new_folder(target)
    loaded = FeatureSet.load(source, normalize=normalize)
    if shards is not None:
        images_per_shard = -(-len(loaded) // whole("--shards", shards, 1, len(loaded)))
    size = whole("--images-per-shard", images_per_shard or IMAGES_PER_SHARD, 1, MOST_PER_SHARD)
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        made = split(loaded, target, size)
    if not quiet:
        tell(f"{count(len(made), 'image')} in {count(len(made.shards), 'shard')} → {target} (sha256 {made.hash})")


@features_app.command("import")
def features_import(
    source: Annotated[
        Path,
        typer.Argument(metavar="EMBEDDINGS", help="A folder with img_emb/*.npy and perhaps metadata/*.parquet."),
    ],
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="The feature folder to make.")],
    classes: Annotated[
        str | None, typer.Option(metavar="NAMES|FILE", help='"cat, dog", or a file with one class per line.')
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The one that made the embeddings: hf:NAME, openclip:MODEL/TAG, …"),
    ] = None,
    templates: Templates = None,
    text_from: Annotated[
        Path | None, typer.Option(metavar="FEATURES", help="A feature file or folder with the prototypes instead.")
    ] = None,
    device: Device = "auto",
    normalize: Normalize = False,
    quiet: Quiet = False,
) -> None:
    """Import embeddings that clip-retrieval has written, as a feature folder.

    Each file img_emb/img_emb_N.npy becomes a shard, in its own precision; the names of its images are the column
    image_path, path, url or key of metadata/metadata_N.parquet (needs pyarrow). The text prototypes come from --classes
    and the --encoder that made the embeddings, or from another feature file. An interrupted import continues when it
    is started again.

    \b
    Example: kedge features import embeddings photos-features --classes names.txt --encoder openclip:ViT-B-32/openai
    """
    from .. import progress
    from ..features.embeddings import find_embeddings, import_embeddings
    from ..features.folder import check_new_folder

    check_new_folder(target)  # all of this before a large model is loaded
    find_embeddings(source)
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        head, text_encoder = _prototypes(classes, encoder, templates, text_from, device)
        made = import_embeddings(source, target, head, provenance={"text_encoder": text_encoder}, normalize=normalize)
    if not quiet:
        if not made.columns.paths:
            tell("note: there are no metadata files, so the images have no names")
        tell(f"{count(len(made), 'image')} in {count(len(made.shards), 'shard')} → {target} (sha256 {made.hash})")


def _prototypes(
    classes: str | None, encoder: str | None, templates: Path | None, text_from: Path | None, device: str
) -> tuple[TextHead, str]:
    """The prototypes, and the name of the encoder that made them."""
    if (text_from is None) == (classes is None) or (text_from is None) != (encoder is not None):
        raise SettingError(
            "the text prototypes need either --classes and --encoder, the one that made the embeddings, "
            "or --text-from FEATURES. Name one of them."
        )
    if text_from is not None:
        from ..features.feature_set import FeatureSet
        from ..features.folder import FeatureFolder
        from ..images.image_set import is_feature_folder

        if templates is not None:
            raise SettingError("--templates is for --classes; --text-from has its prototypes. Leave --templates out.")
        if is_feature_folder(text_from):
            folder = FeatureFolder.open(text_from)
            return folder.head, str(folder.provenance.get("encoder") or "unknown")
        features = FeatureSet.load(text_from)
        return features.head, features.encoder
    assert classes is not None
    assert encoder is not None
    from ..encoders.names import load_encoder
    from ..encoders.templates import PLAIN_TEMPLATE, read_templates
    from ..features.text_head import text_head
    from ..images.class_names import class_names

    names, prompts = class_names(classes), read_templates(templates) if templates else PLAIN_TEMPLATE
    loaded = load_encoder(encoder, device=device)
    return text_head(loaded, names, prompts), loaded.name
