"""Images in a folder, or in a table of paths and labels.

| input                                 | classes given | labels                                                |
|---------------------------------------|---------------|-------------------------------------------------------|
| a folder with one sub-folder per class| no            | from the sub-folders                                  |
| a folder with sub-folders             | yes           | from the sub-folders, if each is the name of a class  |
| a folder without sub-folders          | yes           | unknown                                               |
| a .csv table with path,label, or a    | no            | from the table; its distinct labels are the classes   |
| folder that has one, named labels.csv | yes           | from the table: class names, or class numbers from 0  |

Comparison of names ignores case, underscores, hyphens and spaces. Images are found at any depth and are sorted by
path. Hidden files and folders are ignored. Links are followed, wherever they lead; each folder and each image is taken
once, by its own path before that of a link. A table may name images outside its folder.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import FileError, InputError, did_you_mean
from .image_set import ImageSet, readable, same_name
from .tables import read_table

FORMATS = {  # PIL's names of the formats that are read, and the suffixes of their files
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "JPEG2000": (".jp2",),
    "AVIF": (".avif",),
}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
TABLE = "labels.csv"  # if a folder has this table, its sub-folders do not count


def folder(path: str | Path, classes: Sequence[str] | None = None) -> ImageSet:
    """The images in a folder, or in a table (.csv) with the columns path and, if known, label."""
    found = in_folder(path, classes)
    if not found.class_names:
        raise InputError(
            f"the classes of {path} are not known: {found.note}. Name them (--classes), or sort the images into one "
            "folder per class."
        )
    return found


def in_folder(path: str | Path, classes: Sequence[str] | None = None) -> ImageSet:
    """Like `folder`; if the classes are not known there are no class names, and the note says why."""
    path = Path(path).absolute()
    classes = None if classes is None else tuple(classes)
    if path.suffix.lower() == ".csv" and not os.path.isdir(path):
        return _table(path, path.stem, classes)
    if not os.path.isdir(path):
        found = "it is a file" if os.path.exists(path) else "it does not exist"
        raise FileError(f"{path} is not a folder: {found}. Name a folder of images, or a table (.csv: path,label).")
    name = path.resolve().name
    if (path / TABLE).is_file() and not _is_output(path / TABLE):
        return _table(path / TABLE, name, classes)
    paths = image_files(path)
    if not paths:
        raise InputError(f"{path} contains no images ({', '.join(SUFFIXES)}). Check the path.")
    parts = [image.split("/", 1) for image in paths]
    folders = sorted({part[0] for part in parts if len(part) > 1})
    on_top = sum(len(part) == 1 for part in parts)
    if classes is None:
        if on_top:
            some = f"{on_top:,} of {len(paths):,} images are not in a sub-folder"
            return ImageSet(name, path, paths, None, (), some if folders else "it has no sub-folders")
        number = numbers(folders)
        labels = tuple(number[same_name(part[0])] for part in parts)
        return ImageSet(name, path, paths, labels, tuple(map(readable, folders)))
    number = numbers(classes)
    strangers = [sub for sub in folders if same_name(sub) not in number]
    if on_top or strangers:
        shown = ", ".join(map(repr, strangers[:3])) + (f" and {len(strangers) - 3} more" if len(strangers) > 3 else "")
        note = f"labels are unknown: the sub-folders {shown} are not among the classes" if strangers else ""
        return ImageSet(name, path, paths, None, classes, note)
    return ImageSet(name, path, paths, tuple(number[same_name(p[0])] for p in parts), classes)


def image_files(root: Path) -> tuple[str, ...]:
    """Paths of the images below a folder, relative to it and sorted; each folder and each image once (see above)."""
    found: list[str] = []
    walked: set[tuple[int, int]] = set()  # folders, by device and inode
    folders = deque([str(root)])  # linked folders come last
    links: list[str] = []  # to images
    while folders:
        for here, below, names in os.walk(folders.popleft()):
            identity = _identity(here)
            if identity is None or identity in walked:
                below.clear()
                continue
            walked.add(identity)
            below[:] = sorted(each for each in below if not each.startswith("."))
            folders.extend(place for each in below if os.path.islink(place := os.path.join(here, each)))
            for path in (os.path.join(here, each) for each in sorted(names) if _is_image(each)):
                (links if os.path.islink(path) else found).append(path)
    targets: set[str] = set()
    for link in links:
        target = os.path.realpath(link)
        place, name = os.path.split(target)
        there = _is_image(name) and _identity(place) in walked and os.path.exists(target)
        if not there and target not in targets:
            found.append(link)
        targets.add(target)
    return tuple(sorted(Path(path).relative_to(root).as_posix() for path in found))


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _identity(folder: str) -> tuple[int, int] | None:
    """Device and inode of a folder; None if it is not there."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def below_common(files: Sequence[Path], folders: Iterable[Path]) -> tuple[Path, tuple[str, ...]]:
    """The common folder of these folders, and the paths of the files relative to it."""
    root = Path(os.path.commonpath([*folders]))
    return root, tuple(file.relative_to(root).as_posix() for file in files)


def numbers(classes: Sequence[str]) -> dict[str, int]:
    """Class numbers by name, ignoring spelling (see `same_name`)."""
    number: dict[str, int] = {}
    for j, given in enumerate(classes):
        if (other := number.setdefault(same_name(given), j)) != j:
            raise InputError(f"the classes {classes[other]!r} and {given!r} differ only in case, _ or -. Rename one.")
    return number


def _is_output(table: Path) -> bool:
    """Was the table written by `kedge adapt`? Then its labels are predictions."""
    with table.open(encoding="utf-8-sig", errors="replace") as file:
        return file.readline().startswith("image,label,probability,")


def _table(path: Path, name: str, classes: tuple[str, ...] | None) -> ImageSet:
    """The images of a CSV file. Where some are outside its folder, paths are relative to the common folder."""
    named, labels = _rows(path)
    files = [Path(os.path.abspath(path.parent / image)) for image in named]
    inside = all(file.is_relative_to(path.parent) for file in files)
    folders = [path.parent] if inside else [path.parent, *(file.parent for file in files)]
    root, paths = below_common(files, folders)
    known, names, note = in_classes(path, named, labels, classes)
    return ImageSet(name, root, paths, known, names, note)


def in_classes(
    path: Path, named: Sequence[str], labels: Sequence[str], classes: tuple[str, ...] | None
) -> tuple[tuple[int, ...] | None, tuple[str, ...], str]:
    """Class numbers of the labels in a table, the class names, and a note if the labels are unknown.

    named: n names of images, for messages. labels: n class names, or class numbers; all "" if there are none.
    """
    if not any(labels):
        return None, classes or (), "" if classes else "the table has no labels"
    if classes is None:
        distinct = sorted(set(labels))
        number = {label: j for j, label in enumerate(distinct)}
        return tuple(number[label] for label in labels), tuple(map(readable, distinct)), ""
    number = numbers(classes)
    if not any(same_name(label) in number for label in labels):  # perhaps class numbers
        number = {str(j): j for j in range(len(classes))}
    for row, label in enumerate(labels):
        if same_name(label) not in number:
            raise InputError(
                f"{path}, image {row + 1} ({named[row]}): the label {label!r} is not among the {len(classes)} classes"
                f"{did_you_mean(label, classes) if len(classes) < 20 else ''}. Correct it, or add it to the classes."
            )
    return tuple(number[same_name(label)] for label in labels), classes, ""


def _rows(path: Path) -> tuple[tuple[str, ...], list[str]]:
    """The columns path and label; labels are "" if there is no such column."""
    table = read_table(path)
    table.require("path", "path,label")
    for line, row in table.rows:
        if not row["path"] or not row.get("label", "unknown"):
            missing = "label" if row["path"] else "path"
            raise FileError(f"{path}, line {line}: no {missing}. Fill it in, or remove the line.")
    paths = tuple(row["path"].replace("\\", "/") for _, row in table.rows)
    return paths, [row.get("label", "") for _, row in table.rows]
