"""What a method is told about each batch of a benchmark, as a person could tell it. Part of what defines a cell.

known=5, known_by="random"     the labels of five images, drawn with the plan's seed: the same for every method
known=5, known_by="review"     the labels of five images, the first of the review order of the method's own answer
oracle_classes="found"         the classes that the method found, without those that are not there
oracle_classes="true"          exactly the classes that are there
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import SettingError
from ..ranges import MOST_IMAGES, whole
from ..words import shown

KnownBy = Literal["random", "review"]
OracleClasses = Literal["found", "true"]


@dataclass(frozen=True)
class Feedback:
    """It is false if the method is told nothing. `known_by` is None exactly if `known` is 0."""

    known: int = 0  # labels per batch
    known_by: KnownBy | None = None  # default: random
    oracle_classes: OracleClasses | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", whole("known", self.known, 0, MOST_IMAGES))
        _check_choice("known_by", self.known_by, get_args(KnownBy))
        _check_choice("oracle_classes", self.oracle_classes, get_args(OracleClasses))
        if self.known_by and not self.known:
            raise SettingError(
                f"known_by is {self.known_by!r}, but no labels are known. Say how many: known=5 (--known 5)."
            )
        if self.known and not self.known_by:
            object.__setattr__(self, "known_by", "random")

    def __bool__(self) -> bool:
        return bool(self.known or self.oracle_classes)

    def __str__(self) -> str:
        """`5 known (review) + found classes`."""
        known = f"{self.known} known ({self.known_by})" if self.known else ""
        return " + ".join(filter(None, (known, f"{self.oracle_classes} classes" if self.oracle_classes else "")))


def _check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    if value is not None and value not in options:
        raise SettingError(f"{name} must be {' or '.join(map(repr, options))}; got {shown(value)}.")
