"""Labels that a person gave, from a file: `kedge adapt photos --known known.csv`.

    image,label              a class or "none"; a row without a label says nothing
    red/17.jpg,heron
    red/18.jpg,none

Or what `kedge adapt` wrote, with its column true_label filled in here and there: then `label` is a prediction and is
not read. Or a .json file that Label Studio exported: see `exports.label_studio`.

An image is found by its path, or else, as folders move, by the end of its path: one of the two paths must end in the
whole other one, and there must be one such image only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ..errors import FileError, did_you_mean
from ..features.text_head import TextHead
from ..images.tables import read_table
from ..methods.given import NONE, class_numbers
from .exports.label_studio import Said, read_export
from .result import NONE_WORDS

SUGGESTED = 5000  # a name like one of so many can be suggested at once


def read_known(
    path: str | Path,
    images: Sequence[str | int],
    head: TextHead,
    skipped: Iterable[str] = (),
    present: Sequence[int] | None = None,
) -> dict[int, int]:
    """Known labels by the number of the image.

    skipped: images that could not be read; their rows are left out. present: the classes that can occur; None: all.
    """
    unit, said = _said(Path(path))
    paths, left_out = _Paths(images), _Paths(tuple(skipped))
    numbers: dict[str, int] = {}  # by label
    known: dict[int, int] = {}
    seen: dict[int, Said] = {}  # by image
    for each in said:
        place, image, label = each
        where = f"{path}, {unit} {place}"
        found = paths.find(image)
        if not found and left_out.find(image):
            continue
        if len(found) != 1:
            raise FileError(f"{where}: {_unclear(image, found, images)}")
        if label not in numbers:
            numbers[label] = _class_number(label, head, where)
            if present is not None and numbers[label] not in (NONE, *present):
                raise FileError(
                    f"{where}: the image {image!r} is known to be {label!r}, which is not among the classes that can "
                    "occur. Add it to those, or correct the label."
                )
        before = seen.setdefault(found[0], each)
        both = f"{path}, {unit}s {before.place} and {place}"
        if before.image != image:
            raise FileError(
                f"{both}: both {before.image!r} and {image!r} could be the image "
                f"{str(images[found[0]])!r}. Write its path in full."
            )
        if known.setdefault(found[0], numbers[label]) != numbers[label]:
            raise FileError(
                f"{both}: the image {image!r} is {before.label!r} and {label!r}. Remove one of the {unit}s."
            )
    return known


def _said(path: Path) -> tuple[str, Iterable[Said]]:
    """What a place in the file is called, and what the file says of images."""
    if path.suffix.lower() == ".json":
        return "task", read_export(path)
    table = read_table(path)
    table.require("image", "image,label")
    own = "true_label" in table.columns
    if not own:
        table.require("label", "image,label")
        if "probability" in table.columns:
            raise FileError(
                f"{path} has labels that kedge predicted, and no column true_label. Write what you know into a column "
                "of that name, or keep only the columns image and label."
            )
    rows = ((str(line), row["image"], row["true_label" if own else "label"]) for line, row in table.rows)
    return "line", (Said(*row) for row in rows if row[-1])


def _class_number(label: str, head: TextHead, where: str) -> int:
    if label.lower() in NONE_WORDS and label not in head.class_names:
        return NONE
    found = class_numbers(label, head, where)
    if len(found) > 1:
        raise FileError(f"{where}: {label!r} is the name of {len(found)} classes. Give its number, from Python.")
    return found[0]


def _unclear(image: str, found: Sequence[int], images: Sequence[str | int]) -> str:
    """Why an image is not known by this name, and what to do."""
    if found:
        some = " and ".join(repr(str(images[i])) for i in found[:2])
        return f"{image!r} could be {len(found)} images, among them {some}. Write more of its path."
    near = did_you_mean(image, map(str, images)) if len(images) <= SUGGESTED else ""
    return f"there is no image {image!r}{near or '. Correct it, or leave it out.'}"


class _Paths:
    """Finds images by path, or by the end of a path."""

    def __init__(self, images: Sequence[str | int]) -> None:
        self.whole: defaultdict[str, list[int]] = defaultdict(list)
        for number, image in enumerate(images):
            self.whole[str(image).encode(errors="backslashreplace").decode()].append(number)  # as kedge writes it
        self.named = not isinstance(images, range)  # numbers have no folders

    @cached_property
    def ends(self) -> Mapping[str, list[int]]:
        """Images by every end of their path."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for path, numbers in self.whole.items():
            for end in _ends(path):
                found[end] += numbers
        return found

    def find(self, image: str) -> list[int]:
        """The images that this can be."""
        for name in dict.fromkeys((image, image.replace("\\", "/"))):
            if name in self.whole:
                return self.whole[name]
            if not self.named:
                continue
            if name in self.ends:
                return self.ends[name]
            for end in _ends(name):
                if end in self.whole:
                    return self.whole[end]
        return []


def _ends(path: str) -> Iterator[str]:
    """`b/c.jpg`, `c.jpg` of `a/b/c.jpg`."""
    while "/" in path:
        path = path.split("/", 1)[1]
        yield path
