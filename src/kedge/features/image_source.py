"""The images behind a feature file, and their encoder: what a method that adapts the encoder works on.

    source = ImageSource.of(features)      # refuses what the features did not come from
    source.pixels([3, 1, 4])               # 3×3×h×w, as the encoder takes them
    source.encoder.visual                  # pixels → unit features, differentiable

A stream visits every image once per pass, and a benchmark makes many passes: pixels are kept, up to `KEPT_BYTES` of
them. Images beyond that are decoded each time they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import FileError, InputError
from .feature_set import FeatureSet

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

KEPT_BYTES = 1 << 30  # 1 GiB: some 1,700 images of 224×224, or 80,000 of 32×32


class ImageSource:
    """Decodes images on demand, as pixels for an encoder."""

    def __init__(self, encoder: Encoder, source: Callable[[int], Path | IO[bytes]]) -> None:
        """source(i): where image i is read from."""
        self.encoder = encoder
        self._source = source
        self._kept: dict[int, Tensor] = {}
        self._room = KEPT_BYTES

    @classmethod
    def of(cls, features: FeatureSet) -> ImageSource:
        """The images and the encoder that the features say they come from; refuses others, and images that are gone."""
        from ..encoders.names import load_encoder
        from .extract import check_same_encoder

        files = _files(features)  # before a large model is read
        encoder = load_encoder(str(features.provenance["encoder"]))
        check_same_encoder(features, encoder)
        return cls(encoder, files.__getitem__)

    def pixels(self, indices: Iterable[int]) -> Tensor:
        """The images at these positions, n×3×h×w, on the encoder's device."""
        return torch.stack([self._image(int(i)) for i in indices]).to(self.encoder.device)

    def _image(self, index: int) -> Tensor:
        from ..images.pixels import open_image

        if index in self._kept:
            return self._kept[index]
        pixels = self.encoder.preprocessing(open_image(self._source(index)))
        if pixels.nbytes <= self._room:
            self._kept[index] = pixels
            self._room -= pixels.nbytes
        return pixels


def _files(features: FeatureSet) -> list[Path]:
    """The path of every image; refuses features that do not know theirs, and images that are gone."""
    known = features.provenance
    if features.paths is None or not all(known.get(name) for name in ("encoder", "root")):
        raise InputError(
            "these features do not say which images and which encoder they come from. "
            "Make them with `kedge extract`, or choose a method that needs neither."
        )
    if str(known["root"]).startswith("hf:"):
        raise InputError(
            "these images are in a Hugging Face dataset, not in files. Choose a method that needs only features."
        )
    root = Path(str(known["root"]))
    files = [root / path for path in features.paths]
    gone = [path for path in files if not path.is_file()]
    if gone:
        raise FileError(
            f"{len(gone):,} of the {len(files):,} images are gone, the first {gone[0]}. "
            "Put them back there, or extract the features again from where they are."
        )
    return files
