"""How near features in a faster precision are to float32's: what was measured, and what is near enough.

Labels count where float32 is clear: where its two most probable classes differ by more than `CLEAR`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..schema import Meta, Whole
from ..words import count, percent

CLEAR = 0.05  # probability of the most probable class minus that of the next
BOUNDS = {  # mean cosine, at least; share of clear labels that may change
    "float16": (0.999, 0.0),
    "bfloat16": (0.999, 0.0),
    "int8": (0.99, 0.03),
}
Cosine = Annotated[float, Meta(ge=-1 - 1e-6, le=1 + 1e-6)]
Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class PrecisionCheck:
    """What was measured, and what came of it."""

    precision: Literal["float16", "bfloat16", "int8"]
    engine: str
    images: Whole  # that were encoded twice
    mean_cosine: Cosine
    least_cosine: Cosine
    same_labels: Share  # of the images, those with the same zero-shot label
    clear: Whole  # images whose label in float32 is clear
    changed: Whole  # of these, images with another label
    used: bool  # else the features are in float32
    calibration_sha256: str | None = None  # of the pixels that an int8 model was calibrated on
    calibrated_on: tuple[str, ...] = ()  # the paths of these images

    def faults(self) -> str:
        """Which bounds are not met, in words; "" if all are."""
        least, most = BOUNDS[self.precision]
        found = []
        if self.mean_cosine < least:
            found.append(f"the mean cosine is {self.mean_cosine:.4f}, and at least {least} is wanted")
        if self.changed > most * self.clear:
            wanted = f"at most {percent(most)}" if most else "none"
            found.append(f"{self.changed} of {count(self.clear, 'clear label')} change, and {wanted} may")
        return "; ".join(found)

    def __str__(self) -> str:
        return (
            f"on {count(self.images, 'image')}, the cosine to float32 is {self.mean_cosine:.5f} on average and "
            f"{self.least_cosine:.5f} at least, and {percent(self.same_labels)} of the zero-shot labels are the same"
        )
