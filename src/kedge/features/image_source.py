"""The images and the encoder of a feature file, for methods that adapt the encoder.

    source = ImageSource.of(features)      # checks that images and encoder are those of the features
    source.pixels([3, 1, 4])               # 3×3×h×w, the encoder's input
    source.encoder.visual                  # pixels → unit features, differentiable

A benchmark uses every image many times, so pixels are cached, up to `KEPT_BYTES`.
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
    """Decodes images on demand, as input of an encoder."""

    def __init__(self, encoder: Encoder, source: Callable[[int], Path | IO[bytes]]) -> None:
        """source(i): the path of image i, or its bytes as a file."""
        self.encoder = encoder
        self._source = source
        self._kept: dict[int, Tensor] = {}
        self._room = KEPT_BYTES

    @classmethod
    def of(cls, features: FeatureSet) -> ImageSource:
        """Load the encoder in the features' provenance; an error if its weights or the images are not the same."""
        from ..encoders.names import load_encoder
        from .extract import check_same_encoder

        files = _files(features)  # before loading a large model
        encoder = load_encoder(_encoder_name(features))
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


def _encoder_name(features: FeatureSet) -> str:
    """The name of the encoder; of a model on the hub, with the commit that was used."""
    name, commit = str(features.provenance["encoder"]), features.provenance.get("revision")
    return f"{name.partition('@')[0]}@{commit}" if commit and name.startswith("hf:") else name


def _files(features: FeatureSet) -> list[Path]:
    """The path of every image; an error if paths are unknown or files are missing."""
    known = features.provenance
    if features.paths is None or not all(known.get(name) for name in ("encoder", "root")):
        raise InputError(
            "the features do not record their images and encoder. "
            "Make them with `kedge extract`, or choose a method that needs only features."
        )
    if str(known["root"]).startswith("hf:"):
        raise InputError(
            "the images are in a Hugging Face dataset, not in files. Choose a method that needs only features."
        )
    root = Path(str(known["root"]))
    files = [root / path for path in features.paths]
    gone = [path for path in files if not path.is_file()]
    if gone:
        raise FileError(
            f"{len(gone):,} of {len(files):,} images do not exist any more, the first: {gone[0]}. "
            "Put them back, or extract the features again."
        )
    return files
