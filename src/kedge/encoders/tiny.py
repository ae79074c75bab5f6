"""What the bundled model knows: drawings of the things in its vocabulary, photographed by a program. Nothing else."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np

from ..errors import FileError, KedgeError
from ..files import check_writable, writing, written_by_rename
from ..images.image_set import ImageSet, readable, same_name
from ..progress import notice
from ..ranges import seed_number, whole
from ..words import count, first_few, without_middle
from .encoder import DEFAULT, TINY

IMAGES, VOCABULARY = TINY.parent / "images.zip", TINY.parent / "vocabulary.txt"
PICTURES_SEED = 6  # typical: of the seeds 0 to 11, its gain (16.5 points) is nearest to their mean (15.8)


def limits(images: ImageSet) -> list[str]:
    """What the model does not know of these images and their class names, a sentence for each."""
    found = []
    if unknown := [without_middle(name, 40) for name in unknown_names(images.class_names)]:
        found.append(
            f"the tiny model does not know {count(len(unknown), 'class')}: {first_few(unknown)}. Labels of them mean "
            f"nothing. The names it knows are in {VOCABULARY}"
        )
    if not bundled(images):
        found.append(
            "the tiny model knows only drawings like those of `kedge demo`, and these are other pictures. "
            f"For photographs use CLIP: --encoder {DEFAULT}"
        )
    return found


def unknown_names(names: Sequence[str]) -> list[str]:
    """The class names that are not in the model's vocabulary."""
    known = set(map(same_name, VOCABULARY.read_text(encoding="utf-8").splitlines()))
    return [name for name in names if same_name(name) not in known]


def bundled(images: ImageSet) -> bool:
    """Are all images files from images.zip, under any name? Files of other sizes are not read."""
    with zipfile.ZipFile(IMAGES) as archive:
        known = {(entry.file_size, entry.CRC) for entry in archive.infolist()}
    sizes = {size for size, _ in known}

    def one(source: object) -> bool:
        if not isinstance(source, Path) or (size := source.stat().st_size) not in sizes:
            return False
        return (size, zlib.crc32(source.read_bytes())) in known

    try:
        return all(one(images.source(i)) for i in range(len(images)))
    except (KedgeError, OSError, ValueError):  # it cannot be read; a path with a NUL is a ValueError
        return False


def bundled_classes() -> list[str]:
    """The folders of the bundled images, one per class, in order."""
    with zipfile.ZipFile(IMAGES) as archive:
        return sorted({_folder(entry) for entry in archive.infolist()})


def some_classes(number: int, seed: int) -> list[str]:
    """So many of the folders, drawn at random."""
    folders = bundled_classes()
    whole("classes", number, 1, len(folders))
    return [folders[i] for i in np.random.default_rng(seed_number(seed)).permutation(len(folders))[:number]]


def pictures(place: str | Path, classes: int = 20, seed: int = PICTURES_SEED, names: str | Path | None = None) -> Path:
    """Unpack some of the bundled pictures into a folder, to try kedge on: `place`/class/number.webp, 20 of each class.

    classes: how many of the 178, drawn at random. The pictures are simulated: drawings, photographed by a program.
    names: a file to write the names of all 178 classes to, one per line.
    """
    place, wanted = Path(place), some_classes(classes, seed)
    if names is not None:
        check_writable(names)
        if os.path.abspath(names) == os.path.abspath(place):
            raise FileError(f"cannot write the class names to {names}: the pictures go there. Name another file.")
    if os.path.exists(place):
        if not place.is_dir():
            raise FileError(f"cannot unpack pictures into {place}: it is a file. Name a new folder.")
        for name in sorted(os.listdir(place)):
            if name not in wanted and not name.startswith("."):  # what a kill left, or a file browser
                raise FileError(
                    f"cannot unpack pictures into {place}: it has {name!r}, which is not one of them. "
                    "Name a new folder."
                )
    unpack(place, wanted)
    if names is not None:
        with written_by_rename(names) as temporary:
            temporary.write_text("\n".join(map(readable, bundled_classes())) + "\n", encoding="utf-8")
    return place


def _folder(entry: zipfile.ZipInfo) -> str:
    return entry.filename.partition("/")[0]


def _unpacked(file: Path, entry: zipfile.ZipInfo) -> bool:
    return file.is_file() and file.stat().st_size == entry.file_size


def unpack(place: Path, classes: Container[str] | None = None) -> Path:
    """Unpack the bundled images into folders of `place`, by class, skipping files that are there already.

    classes: only these (`bundled_classes`).

    By rename, but not flushed to disk one by one: that takes long, and a file of the wrong size is unpacked again.
    """
    unfinished = place / ".kedge-unpacking.tmp"
    with writing(place), zipfile.ZipFile(IMAGES) as archive:
        wanted = (entry for entry in archive.infolist() if classes is None or _folder(entry) in classes)
        missing = [entry for entry in wanted if not _unpacked(place / entry.filename, entry)]
        if missing:
            notice(f"unpacking {count(len(missing), 'picture')} into {place} …")
        for entry in missing:
            file = place / entry.filename
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(archive.read(entry))
            unfinished.replace(file)
    return place
