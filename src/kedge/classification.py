"""From images and class names to labels, in one call.

    found = kedge.classify("photos", ["cat", "dog"])        # a folder, a list of paths, or a list of PIL images
    for path, name in zip(found.paths, found.names):
        ...
    found.write("labels.csv")

The images are encoded, then labelled all together. Images that can not be read are in `found.skipped`.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

from PIL import Image

from . import prompts
from ._files import existing
from .datasets import ImageSet, folder
from .encoders import DEFAULT, Encoder, load
from .errors import InputError
from .extract import extract
from .features import FeatureSet
from .image_source import ImageSource
from .images import to_rgb
from .methods import Method, build
from .predictions import Predictions
from .stream import adapt

VIEWS = 64  # of each image, as the paper of MTA has it; only for methods that look at views

Images: TypeAlias = str | Path | Sequence[str | Path] | Sequence[Image.Image] | ImageSet


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
    model = load(encoder) if isinstance(encoder, str) else encoder
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as temporary:
        features = extract(
            found,
            model,
            Path(keep_features or Path(temporary) / "features.safetensors"),
            templates=templates or prompts.templates(),
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


def image_set(images: Images, classes: str | Path | Sequence[str] | None = None) -> ImageSet:
    """The images that were meant, with their class names, and their labels where sub-folders say them."""
    if isinstance(images, ImageSet):
        if classes is not None:
            raise InputError("an ImageSet has its own class names. Leave the classes out, or make it with others.")
        return images
    names = None if classes is None else prompts.class_names(classes)
    if isinstance(images, str | Path):
        path = Path(images)
        if os.path.isdir(path) or path.suffix.lower() == ".csv":
            return folder(path, names)
        matching = glob.has_magic(str(images)) and not os.path.exists(path)
        images = sorted(glob.glob(str(images), recursive=True)) if matching else [existing(path)]
    listed = list(images) if isinstance(images, Collection) else [images]
    if not listed:
        raise InputError("no images: the list or the pattern has none. Name a folder, files, or a pattern.")
    if names is None:
        raise InputError(
            "the classes are not known. Name them (--classes), or pass a folder with one folder per class."
        )
    pictures = [image for image in listed if isinstance(image, Image.Image)]
    files = [Path(image).absolute() for image in listed if isinstance(image, str | os.PathLike)]
    if len(pictures) + len(files) < len(listed):
        kinds = ", ".join(sorted({type(image).__name__ for image in listed}))
        raise InputError(f"images are paths or PIL images; got {kinds}. Pass a folder or a list of either.")
    if pictures and files:
        raise InputError(f"{len(pictures)} PIL images and {len(files)} paths in one list. Pass either.")
    if pictures:
        return InMemory.of(pictures, names)
    root = Path(os.path.commonpath([file.parent for file in files]))
    return ImageSet(root.name, root, tuple(file.relative_to(root).as_posix() for file in files), None, names)


@dataclass(frozen=True)
class InMemory(ImageSet):
    """PIL images; image i is called `i`."""

    encoded: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, images: Sequence[Image.Image], class_names: tuple[str, ...]) -> InMemory:
        """As PNG, so that they go the way of all images, also to other processes."""
        encoded = []
        for image in images:
            file = io.BytesIO()
            to_rgb(image).save(file, "PNG", compress_level=1)
            encoded.append(file.getvalue())
        names = tuple(map(str, range(len(encoded))))
        identity = hashlib.sha256(b"".join(encoded)).hexdigest()
        return cls("images", Path(), names, None, class_names, identity=identity, encoded=tuple(encoded))

    def source(self, i: int) -> Path | IO[bytes]:
        """The bytes of image i, as a file."""
        return io.BytesIO(self.encoded[i])
