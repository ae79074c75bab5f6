"""Which images an encoder knows. A general encoder does not say. The bundled model knows only drawings, and says which.

familiar(features.provenance)    # None, unless the features are of the bundled model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from ..schema import Meta
from ..tensor_files import check_names, load_tensors, save_tensors
from .encoder import TINY

KIND, VERSION = "familiar", 1
FILE = TINY.parent / "familiar.safetensors"
UNFAMILIAR = 1.75  # times the usual distance: farther away, the encoder does not know the images
PRIOR = 2  # images at the usual distance that are counted with the others: one odd image proves nothing


@dataclass(frozen=True)
class Header:
    """What the file says beside the centres."""

    weights_sha256: str
    distance: Annotated[float, Meta(gt=0)]
    sha256: str


@dataclass(frozen=True, eq=False)
class Familiar:
    """Places in the feature space around which the familiar images are, and how far from them these are."""

    centres: Tensor  # c×d, unit rows
    distance: float  # the mean of 1 − cosine to the nearest centre
    weights_sha256: str  # of the encoder

    def distance_ratio(self, x: Tensor) -> float:
        """How far unit features x (n×d) are from the nearest centre, compared with familiar images: 1 is usual."""
        nearest = (x @ self.centres.to(x).T).amax(dim=1)
        return (float((1 - nearest).sum()) / self.distance + PRIOR) / (len(x) + PRIOR)

    def save(self, path: Path) -> None:
        """Write the file."""
        meta = {"weights_sha256": self.weights_sha256, "distance": self.distance}
        save_tensors(path, KIND, VERSION, {"centres": self.centres}, meta)


def familiar(provenance: Mapping[str, Any]) -> Familiar | None:
    """Which images the encoder of these features knows, if it says so; provenance: of the features or the encoder."""
    weights = provenance.get("weights_sha256")
    return _bundled() if weights is not None and weights == _bundled().weights_sha256 else None


@lru_cache(maxsize=1)
def _bundled() -> Familiar:
    tensors, header = load_tensors(FILE, KIND, VERSION, Header)
    check_names(FILE, tensors, ("centres",))
    return Familiar(tensors["centres"].clone(), header.distance, header.weights_sha256)
