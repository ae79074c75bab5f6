"""From images and class names to labels, in one call.

    found = kedge.classify("photos", ["cat", "dog"])        # a folder, a list of paths, or a list of PIL images
    for path, name in zip(found.paths, found.names):
        ...
    found.write("labels.csv")

The images are encoded, then labelled all together. Images that can not be read are in `found.skipped`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..encoders.encoder import DEFAULT, Encoder
from ..encoders.names import load_encoder
from ..encoders.templates import templates_for
from ..features.extract import extract
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..images.sources import Images, InMemory, image_set
from ..methods.contract import Method
from ..methods.registry import build
from .predictions import Predictions
from .stream import adapt

VIEWS = 64  # of each image, as the paper of MTA has it; only for methods that look at views


def classify(
    images: Images,
    classes: str | Path | Sequence[str] | None = None,
    encoder: str | Encoder = DEFAULT,
    method: str | Method = "kedge",
    *,
    templates: str | Sequence[str] | None = None,
    views: int = VIEWS,
    keep_features: str | Path | None = None,
    workers: int | None = 0,
    **settings: Any,
) -> Predictions:
    """Label images jointly.

    images: a folder, a file, a pattern like "photos/*.jpg", a list of paths or of PIL images, or an ImageSet.
    classes: names, or "cat, dog", or a file with a name per line. None: the sub-folders of `images` are the classes.
    encoder: "tiny", "hf:…", "openclip:…", a local folder (see `kedge.encoders`), or one that is loaded.
    method: a registered name (see `kedge.methods()`), with its **settings; or a method object.
    templates: prompts with {} for the class, averaged; "a photo of a {}." alone by default.
    views: how many of each image are encoded, for a method that looks at views.
    keep_features: a .safetensors file, for what comes after; a call that is interrupted goes on from there.
    workers: processes that decode images. With more than 0 a script needs the guard `if __name__ == "__main__":`.
    """
    chosen = build(method, settings)
    found = image_set(images, classes)
    model = load_encoder(encoder) if isinstance(encoder, str) else encoder
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as temporary:
        features = extract(
            found,
            model,
            Path(keep_features or Path(temporary) / "features.safetensors"),
            templates=templates or templates_for(),
            views=views if chosen.traits.needs == "views" else 0,
            workers=workers,
        )
        number = {path: i for i, path in enumerate(found.paths)}
        read = [number[path] for path in features.paths or ()]  # some images may have been skipped
        labelled = label(features, chosen, ImageSource(model, lambda i: found.source(read[i])))
    return replace(labelled, features=replace(features, paths=None)) if isinstance(found, InMemory) else labelled


def label(features: FeatureSet, method: Method, images: ImageSource | None = None) -> Predictions:
    """Label all images of a feature set together; one that adapts the encoder gets their pixels, all at once."""
    if method.traits.needs != "encoder":
        return Predictions(features, adapt(features, method=method))
    images = images or ImageSource.of(features)
    pixels = images.pixels(range(len(features)))
    return Predictions(features, adapt(features, method=method, images=pixels, encoder=images.encoder.visual))
