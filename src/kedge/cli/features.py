"""`kedge features`: show and convert feature files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..words import count, first_few, percent
from ._app import FeatureFile, Json, Normalize, features_app
from ._show import plain, print_facts, print_json, tell

if TYPE_CHECKING:
    from ..features.feature_set import FeatureSet


@features_app.command("info")
def features_info(features: FeatureFile, normalize: Normalize = False, as_json: Json = False) -> None:
    """Check a feature file and show what is in it.

    \b
    Example: kedge features info birds.safetensors
    """
    from ..features.feature_set import FeatureSet

    about = {"file": str(features), **_about(FeatureSet.load(features, normalize=normalize))}
    if as_json:
        print_json(about)
        return
    accuracy = about["zero_shot_accuracy"]
    about["class_names"] = first_few(about["class_names"])
    about["zero_shot_accuracy"] = "unknown" if accuracy is None else percent(accuracy)
    about["provenance"] = json.dumps(plain(about["provenance"]), ensure_ascii=False)
    print_facts(about)


def _about(features: FeatureSet) -> dict[str, Any]:
    return {
        "images": len(features),
        "classes": features.head.k,
        "dimension": features.head.d,
        "dtype": str(features.image_features.dtype).removeprefix("torch."),
        "labels": features.labels is not None,
        "paths": features.paths is not None,
        "views": 0 if features.views is None else features.views.shape[1],
        "logit_scale": features.head.logit_scale,
        "zero_shot_accuracy": features.zero_shot_accuracy(),
        "class_names": list(features.head.class_names),
        "provenance": dict(features.provenance),
        "sha256": features.hash,
    }


@features_app.command("convert")
def features_convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A .npz or .safetensors feature file.")],
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
