"""What a person says of a batch: labels that are known, and which classes can occur. Checked, as class numbers.

known={3: "cat", 7: NONE}    image 3 shows a cat; image 7 shows none of the classes
known=[-1, 2, -1, -2]        a number per image: a class, −1 if unknown, −2 (NONE) if none of the classes
present=["cat", "dog"]       classes that can occur, as names or numbers
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..arrays import Integers, as_integers
from ..errors import InputError, did_you_mean
from ..features.text_head import TextHead
from ..images.image_set import same_name
from ..words import first_few, shown
from .contract import UNKNOWN

NONE = -2  # in known labels: the image shows none of the classes
Class: TypeAlias = int | str  # a class by its number or by its name
Known: TypeAlias = Integers | Mapping[int, Class]
Present: TypeAlias = Iterable[Class] | Tensor

_ADVICE = "Use −1 if unknown, −2 (kedge.NONE) if the image shows none of the classes."


def known_labels(known: Known, n: int, head: TextHead, present: Tensor | None = None) -> Tensor:
    """Labels given by a person as int64, n: each UNKNOWN, NONE or a class number, which must be one of `present`."""
    found = _of_mapping(known, n, head) if isinstance(known, Mapping) else as_integers(known, "known", _ADVICE)
    if len(found) != n:
        raise InputError(f"known must have one entry per image, {n}; got {len(found)}. {_ADVICE}")
    wrong = ((found < NONE) | (found >= head.k)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"known has {int(found[row])} in row {row}; the classes are 0 to {head.k - 1}. {_ADVICE}")
    if present is not None:
        absent = ((found >= 0) & ~torch.isin(found, present.cpu())).nonzero()
        if len(absent):
            row = int(absent[0])
            name = head.class_names[int(found[row])] if head.class_names else str(int(found[row]))
            raise InputError(
                f"image {row} is known to be {shown(name)}, which is not among the classes that can occur. "
                "Add it to `present`, or correct the label."
            )
    return found


def _of_mapping(known: Mapping[int, Class], n: int, head: TextHead) -> Tensor:
    found = torch.full((n,), UNKNOWN)
    for image, label in known.items():
        if not _whole(image) or not 0 <= image < n:
            raise InputError(f"known names image {shown(image)}; the images are numbered 0 to {n - 1}.")
        if _whole(label) and label in (UNKNOWN, NONE):
            found[image] = int(label)
            continue
        numbers = class_numbers(label, head, "known")
        if len(numbers) > 1:
            raise InputError(
                f"known has {shown(label)} for image {image}, which is the name of {len(numbers)} classes. "
                f"Give its number: {first_few([str(number) for number in numbers])}."
            )
        found[image] = numbers[0]
    return found


def present_classes(present: Present | None, head: TextHead, name: str = "present") -> Tensor | None:
    """Class numbers, ascending; None if all classes can occur. A name stands for all classes that have it."""
    if present is None:
        return None
    if isinstance(present, Tensor):
        present = as_integers(present, name, "Pass class numbers.")
    entries: Any = present.tolist() if hasattr(present, "tolist") else present
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise InputError(f"{name} must be a list of class names or numbers; got {shown(present)}.")
    numbers = sorted({number for entry in entries for number in class_numbers(entry, head, name)})
    if not numbers:
        raise InputError(f"{name} is empty. Name at least one class, or leave it out: then all classes can occur.")
    return None if len(numbers) == head.k else torch.tensor(numbers, device=head.features.device)


def names_alone(class_names: tuple[str, ...]) -> TextHead:
    """A head without prototypes: to check what a person says before any image is encoded."""
    return TextHead(torch.empty(len(class_names), 0), class_names=class_names)


def class_numbers(entry: Any, head: TextHead, name: str) -> list[int]:
    """The number of a class given by its number, or of all classes with a name: as it is written, or else ignoring
    case, underscores, hyphens and spaces.
    """
    if isinstance(entry, str):
        found = [number for number, known in enumerate(head.class_names) if known == entry]
        if not found:  # perhaps in another spelling
            found = [number for number, known in enumerate(head.class_names) if same_name(known) == same_name(entry)]
        if not found:
            raise InputError(f"{name} has {shown(entry)}, which is no class{did_you_mean(entry, head.class_names)}")
        return found
    if not _whole(entry) or not 0 <= entry < head.k:
        raise InputError(f"{name} has {shown(entry)}; a class is its name or a number from 0 to {head.k - 1}.")
    return [int(entry)]


def _whole(value: Any) -> bool:
    """Is it a whole number, of Python or numpy?"""
    return isinstance(value, Integral) and not isinstance(value, bool)
