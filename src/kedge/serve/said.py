"""What a person said of a set of images so far: a fold over the changes they made, in order.

    said(["cat", "dog"], [Label(("a/1.jpg",), 1), AddClass("heron", None), Present((0,), False)])

Classes have numbers that never change: the first names are 0 … k−1, and every class added takes the next number, also
after others were dropped. Images are known by their paths, so labels outlive a new list of images.

| always true of `Said`                                                        |
|------------------------------------------------------------------------------|
| no two classes have the same number                                          |
| at least one class is present: neither dropped nor said to be absent         |
| every known label is a class that is present, or NONE ("none of these")      |
| a class that was added or renamed has a name that no other has               |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from ..errors import InputError
from ..features.text_head import texts
from ..images.image_set import same_name
from ..labelling.result import NONE_WORDS
from ..labelling.solving import checked_threshold
from ..methods.given import NONE
from ..words import count, shown

LONGEST_NAME, LONGEST_PROMPT, LONGEST_PATH = 200, 1000, 4096  # characters


@dataclass(frozen=True)
class Label:
    """These images show this class, or NONE of the classes; None: forget what was said of them."""

    images: tuple[str, ...]  # paths
    label: int | None

    def __post_init__(self) -> None:
        for path in texts(self.images, "images", file_names=True):
            if not 0 < len(path) <= LONGEST_PATH:
                raise InputError(f"a path must have 1 to {LONGEST_PATH:,} characters; got {len(path):,}.")
        if not self.images:
            raise InputError("no images to label. Name at least one.")


@dataclass(frozen=True)
class Present:
    """These classes can occur in the images, or cannot."""

    classes: tuple[int, ...]
    present: bool

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("no classes to change. Name at least one.")


@dataclass(frozen=True)
class Reject:
    """Images with a higher score `none` than this are "none of these"; None: no image is rejected."""

    threshold: float | None

    def __post_init__(self) -> None:
        checked_threshold(self.threshold, "threshold")


@dataclass(frozen=True)
class AddClass:
    """One more class; prompt None: the default templates with the name."""

    name: str
    prompt: str | None = None

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class EditClass:
    """Another name or prompt for a class; what stays the same is said again."""

    id: int
    name: str
    prompt: str | None = None

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class DropClass:
    """A class goes, and with it the labels that were given to it."""

    id: int


Change: TypeAlias = Label | Present | Reject | AddClass | EditClass | DropClass


@dataclass(frozen=True)
class SaidClass:
    """A class as the person has it; prompt None: the default templates with the name."""

    id: int
    name: str
    prompt: str | None


@dataclass(frozen=True)
class Said:
    """All that was said."""

    classes: tuple[SaidClass, ...]
    absent: frozenset[int]  # numbers of classes
    known: Mapping[str, int]  # path of an image → number of a class, or NONE
    reject: float | None
    next_id: int  # of the next class that is added

    @cached_property
    def by_id(self) -> Mapping[int, SaidClass]:
        """The classes by their numbers."""
        return {each.id: each for each in self.classes}


def said(names: Sequence[str], changes: Iterable[Change]) -> Said:
    """All that follows from the names at the start and these changes; raises InputError if a change does not fit."""
    if not names:
        raise InputError("there are no classes. Name at least one.")
    known: dict[str, int] = {}  # one for all steps: copies would take long after thousands of changes
    first = tuple(SaidClass(number, name, None) for number, name in enumerate(names))
    state = Said(first, frozenset(), MappingProxyType(known), None, len(names))
    for change in changes:
        check(change, state)
        state = _after(state, change, known)
    return state


def _after(state: Said, change: Change, known: dict[str, int]) -> Said:
    """What holds after a change that fits; `known` is changed in place."""
    if isinstance(change, Label):
        for image in change.images:
            if change.label is None:
                known.pop(image, None)
            else:
                known[image] = change.label
        return replace(state, absent=state.absent - {change.label}) if change.label in state.absent else state
    if isinstance(change, Present):
        named = frozenset(change.classes)
        return replace(state, absent=state.absent - named if change.present else state.absent | named)
    if isinstance(change, Reject):
        return replace(state, reject=change.threshold)
    if isinstance(change, AddClass):
        added = SaidClass(state.next_id, change.name, change.prompt)
        return replace(state, classes=(*state.classes, added), next_id=state.next_id + 1)
    if isinstance(change, EditClass):
        edited = SaidClass(change.id, change.name, change.prompt)
        return replace(state, classes=tuple(edited if each.id == change.id else each for each in state.classes))
    for image in [image for image, label in known.items() if label == change.id]:
        del known[image]
    left = tuple(each for each in state.classes if each.id != change.id)
    return replace(state, classes=left, absent=state.absent - {change.id})


def check(change: Change, said: Said) -> None:
    """Raise InputError if a change does not fit what was said before."""
    if isinstance(change, Label):
        if change.label not in (None, NONE):
            _class(change.label, said)
    elif isinstance(change, Present):
        for number in change.classes:
            _class(number, said)
        if not change.present:
            _check_absent(frozenset(change.classes), said)
    elif isinstance(change, AddClass):
        _check_free(change.name, said)
    elif isinstance(change, EditClass):
        if change.name != _class(change.id, said).name:
            _check_free(change.name, said, change.id)
    elif isinstance(change, DropClass):
        _check_left(frozenset([_class(change.id, said).id]), said)


def _class(number: int | None, said: Said) -> SaidClass:
    if number is None or number not in said.by_id:
        raise InputError(f"there is no class {shown(number)}: it was dropped, or never there. Load the page again.")
    return said.by_id[number]


def _check_absent(named: frozenset[int], said: Said) -> None:
    """Raise InputError if these classes cannot be absent: an image is known to show one, or no other is present."""
    given = Counter(said.known.values())  # once: there may be a thousand classes, and thousands of labels
    for number in named:
        if images := given[number]:
            raise InputError(
                f"{said.by_id[number].name!r} is here: it is the label you gave to {count(images, 'image')}. "
                "Change or forget that first."
            )
    _check_left(named, said)


def _check_left(gone: frozenset[int], said: Said) -> None:
    if not said.by_id.keys() - said.absent - gone:
        raise InputError("that would leave no class that can occur. Add another class, or tick one, first.")


def _check_free(name: str, said: Said, own: int | None = None) -> None:
    """Raise InputError if another class has this name, ignoring spelling, or it stands for no class."""
    if same_name(name) in NONE_WORDS:
        raise InputError(f"{name!r} is what images of no class are called. Choose another name.")
    for each in said.classes:
        if each.id != own and same_name(each.name) == same_name(name):
            raise InputError(f"there is a class {each.name!r} already. Choose another name.")


def _tidy(change: AddClass | EditClass) -> None:
    """Check the name and the prompt of a new object, and write their spaces singly."""
    object.__setattr__(change, "name", _text(change.name, "the name of a class", LONGEST_NAME))
    if change.prompt is not None:
        object.__setattr__(change, "prompt", _text(change.prompt, "a prompt", LONGEST_PROMPT))


def _text(text: str, what: str, longest: int) -> str:
    """The text with single spaces; raises InputError if it is empty, too long, or no Unicode text."""
    text = " ".join(text.split())
    if not text:
        raise InputError(f"{what} is empty. Write at least one character.")
    if len(text) > longest:
        raise InputError(f"{what} has {len(text):,} characters; at most {longest} are possible. Shorten it.")
    return texts([text], what)[0]
