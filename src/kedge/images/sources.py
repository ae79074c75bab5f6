"""From what users pass as images (folder, file, pattern, list, dataset) to an ImageSet."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeAlias

from PIL import Image

from ..errors import InputError, SettingError
from ..files import existing
from .class_names import class_names
from .datasets import find_dataset
from .folders import folder
from .huggingface import huggingface
from .image_set import ImageSet
from .layouts import benchmark_images
from .pixels import to_rgb

Images: TypeAlias = str | Path | Sequence[str | Path] | Sequence[Image.Image] | ImageSet
Classes: TypeAlias = str | Path | Sequence[str]


def image_set(images: Images, classes: Classes | None = None) -> ImageSet:
    """The images with their class names, and with labels if they are in class folders or a table.

    images: a folder, a table (.csv), a file, a pattern like "photos/*.jpg", a list of paths or of PIL images, or an
    ImageSet, which has its own classes. classes: names, "cat, dog", or a file with one name per line.
    """
    if isinstance(images, ImageSet):
        if classes is not None:
            raise InputError("an ImageSet has its own class names; got others too. Leave the classes out.")
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
        raise InputError("no images: the list is empty, or no file matches the pattern. Check the path.")
    if names is None:
        raise InputError(
            "the classes are not known. Name them (--classes), or pass a folder with one sub-folder per class."
        )
    pictures = [image for image in listed if isinstance(image, Image.Image)]
    files = [Path(image).absolute() for image in listed if isinstance(image, str | os.PathLike)]
    if len(pictures) + len(files) < len(listed):
        kinds = ", ".join(sorted({type(image).__name__ for image in listed}))
        raise InputError(f"images must be paths or PIL images; got {kinds}. Pass a folder or a list of either.")
    if pictures and files:
        raise InputError(f"got {len(pictures)} PIL images and {len(files)} paths in one list. Pass one kind.")
    if pictures:
        return InMemory.of(pictures, names)
    root = Path(os.path.commonpath([file.parent for file in files]))
    return ImageSet(root.name, root, tuple(file.relative_to(root).as_posix() for file in files), None, names)


def dataset_images(
    name: str, root: str | Path | None = None, split: str = "test", classes: Classes | None = None
) -> ImageSet:
    """A benchmark dataset in a sub-folder of `root`, or a Hugging Face dataset, `hf:NAME`.

    classes: other names for the same classes, in the same order.
    """
    if name.startswith("hf:"):
        found: ImageSet = huggingface(name.removeprefix("hf:"), split)
    elif root is None:
        raise SettingError(f"the folder of the dataset {find_dataset(name).name} is not given. Name it: --root DIR.")
    else:
        found = benchmark_images(name, root, split)
    if classes is None:
        return found
    names = class_names(classes)
    if found.class_names and len(names) != len(found.class_names):
        raise InputError(
            f"{found.name} has {len(found.class_names)} classes; got {len(names)} names. Pass one name per class."
        )
    return replace(found, class_names=names)


@dataclass(frozen=True)
class InMemory(ImageSet):
    """PIL images; the name of image i is `i`."""

    encoded: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, images: Sequence[Image.Image], class_names: tuple[str, ...]) -> InMemory:
        """Keep the images as PNG, so that worker processes can read them like files."""
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
