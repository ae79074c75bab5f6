"""Which of the paper's eleven datasets lie in a folder, and whether they are complete."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileError, KedgeError, SettingError
from ..files import check_usable
from ..images.datasets import dataset_names, find_dataset
from ..images.image_set import ImageSet
from ..images.layouts import dataset_folder
from ..images.sources import dataset_images
from ..report.published import CLASSES_IN_SPLIT
from ..words import count


@dataclass(frozen=True)
class Found:
    """The datasets in a folder."""

    images: dict[str, ImageSet]  # by name, in the paper's order
    missing: dict[str, str]  # name → why it is not used
    other: dict[str, str]  # name → how it differs from the paper's
    notes: tuple[str, ...]  # all of this in words


def find_datasets(root: str | Path, asked: Sequence[str] | None = None) -> Found:
    """The test splits of the datasets in sub-folders of `root`; at least one must be there.

    asked: these only, and all of them must be there. None: those of the eleven that are there.
    """
    root = Path(root)
    check_usable(root)
    if not os.path.isdir(root):
        raise FileError(f"no folder {root}. As root, name the folder that contains the datasets.")
    if asked is not None and not asked:
        raise SettingError("no dataset is named. Name at least one, or leave the datasets out.")
    chosen = {find_dataset(name).name for name in asked or dataset_names()}
    names = [name for name in dataset_names() if name in chosen]
    images: dict[str, ImageSet] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            images[name] = _complete(dataset_images(name, root))
        except KedgeError as error:
            missing[name] = str(error)
    if missing and (asked or not images):
        name, reason = next(iter(missing.items()))
        more = f" And {count(len(missing) - 1, 'dataset')} more." if len(missing) > 1 else ""
        what = f"{name} cannot be used" if asked else f"none of the eleven datasets is in {root}; {name}"
        raise FileError(f"{what}: {reason}{more} `kedge ls datasets` shows their folders.")
    absent = [name for name in missing if not os.path.isdir(root / dataset_folder(name))]
    notes = [f"not in {root}: {', '.join(absent)} (`kedge ls datasets` shows their folders)"] if absent else []
    notes += [f"{name} is left out: {reason}" for name, reason in missing.items() if name not in absent]
    other = {name: said for name, found in images.items() if (said := _difference(found))}
    notes += [f"{name} is not the paper's test set: {said}" for name, said in other.items()]
    return Found(images, missing, other, tuple(notes))


def _complete(images: ImageSet) -> ImageSet:
    """The images, if all of them are there; an accuracy on some of them could not be compared."""
    gone = [path for path in images.paths if not os.path.isfile(images.root / path)]
    if gone:
        raise FileError(
            f"incomplete: {len(gone):,} of {count(len(images), 'test image')} are not there, the first: "
            f"{images.root / gone[0]}. Unpack it again."
        )
    return images


def _difference(images: ImageSet) -> str:
    """How the images differ in number from the paper's; "" if they do not."""
    known = find_dataset(images.name)
    if (len(images), len(images.class_names)) == (known.test_images, CLASSES_IN_SPLIT.get(known.name)):
        return ""
    here, paper = (
        f"{count(n, 'image')} of {count(k, 'class')}"
        for n, k in ((len(images), len(images.class_names)), (known.test_images, known.classes))
    )
    return "" if here == paper else f"{here}, in the paper {paper}"
