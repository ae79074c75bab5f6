"""Images as people hand them in: a folder, a file, a pattern, a list of paths or of PIL images → an ImageSet."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

from PIL import Image

from ..errors import InputError
from ..files import existing
from .class_names import class_names
from .folders import folder
from .image_set import ImageSet
from .pixels import to_rgb

Images: TypeAlias = str | Path | Sequence[str | Path] | Sequence[Image.Image] | ImageSet


def image_set(images: Images, classes: str | Path | Sequence[str] | None = None) -> ImageSet:
    """The images that were meant, with their class names, and their labels where sub-folders say them."""
    if isinstance(images, ImageSet):
        if classes is not None:
            raise InputError("an ImageSet has its own class names. Leave the classes out, or make it with others.")
        return images
    names = None if classes is None else class_names(classes)
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
