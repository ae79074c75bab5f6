"""Copy images into folders by label: `sort_into(predictions, "sorted")` makes `sorted/cat/photo.jpg`.

Nothing is overwritten: the folder must be new or empty. It appears only when all images have been copied. Which images
of a feature file may be copied is in `features.image_source`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from ..errors import FileError
from ..features.image_source import find_images, image_root
from ..files import writing
from ..progress import track
from .predictions import Predictions
from .result import NO_CLASS_NAME

LONGEST = 200  # bytes of a folder name: with a number added, below the limit of file systems
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # reserved on Windows


def check_target(folder: str | Path, places: Iterable[Path]) -> Path:
    """Raise an error if the images in these folders cannot be sorted into `folder`: called before any work."""
    folder = Path(folder)
    for place in places:
        if folder.resolve().is_relative_to(place.resolve()):
            raise FileError(
                f"cannot sort into {folder}: it is inside {place}, with the images. Choose a folder outside."
            )
    if os.path.isdir(folder):
        if any(folder.iterdir()):
            raise FileError(f"cannot sort into {folder}: it is not empty. Name a new folder.")
    elif os.path.exists(folder):
        raise FileError(f"cannot sort into {folder}: it is a file. Name a new folder.")
    elif not os.path.isdir(folder.absolute().parent):
        raise FileError(f"cannot sort into {folder}: there is no folder {folder.parent}. Create it first.")
    if not os.access(folder.absolute().parent, os.W_OK):
        raise FileError(f"cannot sort into {folder}: permission denied. Choose another place.")
    return folder


def sort_into(
    predictions: Predictions,
    folder: str | Path,
    images: str | Path | None = None,
    only: Sequence[int] | None = None,
) -> Path:
    """Copy every image to `folder`/label/; if two images have the same file name, the second gets a number.

    images: the folder of the images, if they come from a feature file and are not in its own folder. only: the numbers
    of the images to copy; None: all.
    """
    features = predictions.features
    files = find_images(features, images or predictions.root, only)
    folder = check_target(folder, (Path(images),) if images else predictions.folders or (image_root(features),))
    names = folder_names([*features.head.class_names, NO_CLASS_NAME])  # the last one for −1
    taken: Counter[str] = Counter()
    beside = folder.absolute().parent
    with (
        writing(folder),
        tempfile.TemporaryDirectory(prefix=".kedge-", dir=beside, ignore_cleanup_errors=True) as made,
    ):
        unfinished = Path(made) / "sorted"
        unfinished.mkdir()
        labels = predictions.labels if only is None else predictions.labels[list(only)]
        for file, label in track(list(zip(files, labels.tolist(), strict=True)), "copies"):
            place = unfinished / names[label]
            place.mkdir(exist_ok=True)
            while (copy := place / _numbered(file.name, taken[f"{label}/{file.name.lower()}"])).exists():
                taken[f"{label}/{file.name.lower()}"] += 1
            try:
                shutil.copy2(file, copy)
            except OSError as error:
                raise FileError(
                    f"cannot copy {file} into {folder}: {error.strerror or error}. Put it right and run it again."
                ) from error
        try:
            if folder.exists():
                folder.rmdir()  # fails if it is no longer empty
            unfinished.rename(folder)
        except OSError as error:
            raise FileError(
                f"cannot create the folder {folder}: {error.strerror or error}. Choose another place."
            ) from error
    return folder


def _numbered(name: str, times: int) -> str:
    """`photo.jpg`, `photo-2.jpg`, `photo-3.jpg`, …"""
    path = PurePosixPath(name)
    return f"{path.stem}-{times + 1}{path.suffix}" if times else name


def folder_names(class_names: Iterable[str]) -> list[str]:
    """One folder name per class: valid on every file system, and unique even if case is ignored."""
    found: list[str] = []
    for name in class_names:
        safe = _UNSAFE.sub("_", name).strip(" .").encode()[:LONGEST].decode(errors="ignore").rstrip(" .") or "_"
        if _RESERVED.fullmatch(safe):
            safe += "_"
        others, number = [other.lower() for other in found], 1
        while (unique := safe if number == 1 else f"{safe}-{number}").lower() in others:
            number += 1
        found.append(unique)
    return found
