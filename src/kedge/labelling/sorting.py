"""Copy images into folders by label: `sort_into(predictions, "sorted")` makes `sorted/cat/photo.jpg`.

Nothing is overwritten: the folder must be new or empty. It appears only when all images have been copied.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..errors import FileError, InputError
from ..progress import track
from .predictions import Predictions

LONGEST = 200  # bytes of a folder name: with a number added, below the limit of file systems
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # reserved on Windows


def check_target(folder: str | Path, root: str | Path | None) -> Path:
    """Raise an error if images below `root` cannot be sorted into `folder`: called before any work."""
    folder = Path(folder)
    if not root:
        raise InputError(
            "cannot sort the images: the feature file does not have their paths. Make it with `kedge extract`."
        )
    if folder.resolve().is_relative_to(Path(root).resolve()):
        raise FileError(f"cannot sort into {folder}: it is inside {root}, with the images. Choose a folder outside.")
    if os.path.isdir(folder):
        if any(folder.iterdir()):
            raise FileError(f"cannot sort into {folder}: it is not empty. Name a new folder.")
    elif os.path.exists(folder):
        raise FileError(f"cannot sort into {folder}: it is a file. Name a new folder.")
    elif not folder.absolute().parent.is_dir():
        raise FileError(f"cannot sort into {folder}: there is no folder {folder.parent}. Create it first.")
    if not os.access(folder.absolute().parent, os.W_OK):
        raise FileError(f"cannot sort into {folder}: permission denied. Choose another place.")
    return folder


def sort_into(predictions: Predictions, folder: str | Path) -> Path:
    """Copy every image to `folder`/label/; if two images have the same file name, the second gets a number."""
    features = predictions.features
    root = features.provenance.get("root") if features.paths else None
    folder = check_target(folder, root)
    assert features.paths is not None
    names = folder_names(features.head.class_names)
    taken: Counter[str] = Counter()
    beside = folder.absolute().parent
    with tempfile.TemporaryDirectory(prefix=".kedge-", dir=beside, ignore_cleanup_errors=True) as made:
        unfinished = Path(made) / "sorted"
        unfinished.mkdir()
        pairs = list(zip(features.paths, predictions.labels.tolist(), strict=True))
        for path, label in track(pairs, "copies"):
            place = unfinished / names[label]
            place.mkdir(exist_ok=True)
            name = PurePosixPath(path).name
            while (copy := place / _numbered(name, taken[f"{label}/{name.lower()}"])).exists():
                taken[f"{label}/{name.lower()}"] += 1
            try:
                shutil.copy2(Path(str(root)) / path, copy)
            except OSError as error:
                raise FileError(
                    f"cannot copy {path} into {folder}: {error.strerror or error}. Put it right and run it again."
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
