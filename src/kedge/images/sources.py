"""From what users pass as images (folder, file, pattern, list, dataset) to an ImageSet."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import InputError, SettingError
from ..files import check_local, existing
from ..words import count
from .class_names import class_names
from .datasets import find_dataset
from .folders import below_common, folder, in_folder, numbers
from .huggingface import huggingface
from .image_set import ImageSet, is_features, same_name
from .layouts import benchmark_images
from .parquet import parquet_images
from .pixels import as_picture, to_rgb

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Images: TypeAlias = str | Path | Sequence[str | Path] | Sequence[Image.Image] | Sequence[Pixels] | Pixels | ImageSet
Classes: TypeAlias = str | Path | Sequence[str]
UNKNOWN_CLASSES = (
    "the classes are not known{why}. Name them (--classes), or pass a folder with one sub-folder per class."
)


def image_set(images: Images, classes: Classes | None = None) -> ImageSet:
    """The images with their class names, and with labels if they are in class folders or a table.

    images: a folder, a table (.csv), a file or a pattern like "photos/*.jpg", or a list of these; Parquet files; a list
    of PIL images or of uint8 arrays (h×w, h×w×3, h×w×4), or one array n×h×w×3; or an ImageSet, which has its own
    classes.
    classes: names, "cat, dog", or a file with one name per line. None: the names of all sub-folders.
    """
    if isinstance(images, ImageSet):
        if classes is not None:
            raise InputError("an ImageSet has its own class names; got others too. Leave the classes out.")
        return images
    names = None if classes is None else class_names(classes)
    listed = _listed(images)
    paths = [Path(image) for image in listed if isinstance(image, str | os.PathLike)]
    pictures = [as_picture(image) for image in listed if not isinstance(image, str | os.PathLike)]
    if paths and pictures:
        raise InputError(
            f"got {count(len(pictures), 'image')} and {count(len(paths), 'path')} in one list. Pass one kind."
        )
    if pictures:
        if names is None:
            raise InputError(UNKNOWN_CLASSES.format(why=""))
        return InMemory.of(pictures, names)
    paths = [found for path in paths for found in _matching(path)]
    tables = [path for path in paths if path.suffix.lower() == ".parquet" and not os.path.isdir(path)]
    if tables and len(tables) < len(paths):
        raise InputError(f"got {count(len(tables), 'Parquet file')} and other images in one list. Pass one kind.")
    parts = [parquet_images(tables, names)] if tables else [_part(path, names, len(paths) == 1) for path in paths]
    return parts[0] if len(parts) == 1 and parts[0].class_names else _joined(parts, names)


def _listed(images: Any) -> list[Any]:
    """What the user passed, as a list that is not empty."""
    if isinstance(images, np.ndarray):
        if images.ndim != 4:
            raise InputError(
                f"one array of images must be n×h×w×3; got shape {images.shape}. Pass one image in a list: [image]."
            )
    elif isinstance(images, str | os.PathLike | Tensor) or not isinstance(images, Iterable):
        return [images]
    listed = list(images)
    if not listed:
        raise InputError("no images: the list is empty. Pass at least one.")
    return listed


def _matching(path: Path) -> list[Path]:
    """The files that a pattern matches; of any other path, itself."""
    check_local(path)
    if not glob.has_magic(str(path)) or os.path.exists(path):
        return [path]
    found = [Path(each) for each in sorted(glob.glob(str(path), recursive=True))]
    if not found:
        raise InputError(f"no images: no file matches the pattern {path}. Check the path.")
    return found


def _part(path: Path, names: tuple[str, ...] | None, alone: bool) -> ImageSet:
    """The images of one path. Without class names if they are not known; then the note says why."""
    if is_features(path):
        what = "folder" if os.path.isdir(path) else "file"
        raise InputError(f"{path} is a feature {what}, not an image. Pass a feature {what} alone, or only images.")
    if os.path.isdir(path) or path.suffix.lower() == ".csv":
        return folder(path, names) if alone else in_folder(path, names)
    if alone:  # one of many that is missing is left out later, with the reason
        existing(path)
    file = path.absolute()
    return ImageSet(file.parent.name, file.parent, (file.name,), None, names or ())


def _joined(parts: Sequence[ImageSet], names: tuple[str, ...] | None) -> ImageSet:
    """All images together, each file once. Labels are known if those of every part are."""
    classes = names or tuple(sorted({name for part in parts for name in part.class_names}))
    if not classes:
        why = next((f" ({part.root}: {part.note})" for part in parts if part.note), "")
        raise InputError(UNKNOWN_CLASSES.format(why=why))
    number = numbers(classes)
    found: dict[str, tuple[Path, int | None]] = {}  # by real path
    for part in parts:
        for i, path in enumerate(part.paths):
            file = part.root / path
            label = None if part.labels is None else number[same_name(part.class_names[part.labels[i]])]
            found.setdefault(os.path.realpath(file), (file, label))
    folders = tuple(dict.fromkeys(part.root for part in parts))
    root, paths = below_common([file for file, _ in found.values()], folders)
    labels = tuple(label for _, label in found.values() if label is not None)
    note = next((part.note for part in parts if part.note and part.class_names), "")
    known = len(labels) == len(paths)
    return ImageSet(
        root.name or "images", root, paths, labels if known else None, classes, "" if known else note, folders=folders
    )


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
    """Images in memory; the name of image i is `i`."""

    encoded: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, images: Sequence[Image.Image], class_names: tuple[str, ...]) -> InMemory:
        """Keep the images as PNG, to be read like files: what the caller then does to his own changes nothing."""
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

    def part(self, numbers: range) -> InMemory:
        """Some consecutive images."""
        part: Any = super().part(numbers)
        found: InMemory = replace(part, encoded=self.encoded[numbers.start : numbers.stop])
        return found
