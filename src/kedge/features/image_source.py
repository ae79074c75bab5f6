"""The images and the encoder of a feature file: where they are, and whether they may be opened.

    source = ImageSource.of(features)      # checks that images and encoder are those of the features
    source.pixels([3, 1, 4])               # 3×3×h×w, the encoder's input
    source.encoder.visual                  # pixels → unit features, differentiable

A feature file records the folder of its images and its encoder. That proves nothing: the file may come from somebody
else. So only these are opened:

| what    | the user names it                        | the user does not name it                                     |
|---------|------------------------------------------|---------------------------------------------------------------|
| images  | files below that folder; links in it are | files below the feature file's own folder, also after links   |
|         | followed                                 | are resolved                                                  |
| encoder | that encoder                             | `tiny`; folders below the file's own folder; models of the    |
|         |                                          | hub that are in its cache or at a commit that kedge names;    |
|         |                                          | open_clip's own tags                                          |

A benchmark uses every image many times, so pixels are cached, up to `KEPT_BYTES`.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import FileError, InputError
from ..images.parquet import PARQUET
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
    def of(
        cls,
        features: FeatureSet,
        images: str | Path | None = None,
        encoder: str | None = None,
        device: str = "auto",
    ) -> ImageSource:
        """Open the images and load the encoder of the features; an error if the encoder's weights are not the same.

        images, encoder: the folder of the images and the name of the encoder; needed if they are recorded in places
        that may not be opened (see the module's table).
        """
        from ..encoders.names import load_encoder
        from .extract import check_same_encoder

        files = find_images(features, images)  # before loading a large model
        loaded = load_encoder(encoder or encoder_name(features), device=device)
        check_same_encoder(features, loaded)
        return cls(loaded, files.__getitem__)

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


def encoder_name(features: FeatureSet) -> str:
    """The name of the recorded encoder, if it may be loaded; of a model on the hub, with the commit that was used.

    A commit in a file proves nothing either: it can be that of a pull request, which anybody can open.
    """
    from ..encoders.hub import unfamiliar

    name, commit = str(features.provenance.get("encoder") or ""), features.provenance.get("revision")
    if not name:
        raise InputError("the features do not record their encoder. Name it: --encoder NAME.")
    if commit and name.startswith("hf:"):
        name = f"{name.partition('@')[0]}@{commit}"
    kind, _, rest = name.partition(":")
    folder = Path(rest if kind in ("hf", "openclip") else name).expanduser()
    if name != "tiny" and os.path.isdir(folder) and not _in_own_folder(features, folder):
        raise InputError(
            f"the features were made with the encoder {name}, which is not in the folder of the feature file. "
            f"If it is yours, name it: --encoder {shlex.quote(name)}."
        )
    if kind == "hf" and not os.path.isdir(folder) and unfamiliar(rest):
        raise InputError(
            f"the features were made with the model {name}, which is not on this machine. "
            f"If you trust it, name it: --encoder {shlex.quote(name)}."
        )
    return name


def find_images(
    features: FeatureSet, images: str | Path | None = None, only: Sequence[int] | None = None
) -> list[Path]:
    """The path of every image, if all of them are files that may be opened; `images` is their folder, if named.

    only: the numbers of the images in question; None: all.
    """
    root = image_root(features, images)
    assert features.paths is not None
    files, gone = [], []
    for path in features.paths if only is None else [features.paths[number] for number in only]:
        file = root / path
        check_inside(path, root)
        if images is None and not _in_own_folder(features, file):
            raise InputError(
                f"the image {path!r} is a link to outside of the folder of the feature file. "
                f"If the images are yours, name their folder: --images {shlex.quote(str(root))}."
            )
        try:
            mode = os.stat(file).st_mode
        except (OSError, ValueError):
            gone.append(file)
            continue
        if not stat.S_ISREG(mode):
            raise FileError(f"{file} is not a regular file. Put the image back, or extract the features again.")
        files.append(file)
    if gone:
        raise FileError(
            f"{len(gone):,} of {len(features):,} images are not there, the first: {gone[0]}. "
            "Put them back, name their folder (--images DIR), or extract the features again."
        )
    return files


def check_inside(path: str, root: Path) -> None:
    """Raise InputError if the path of an image leads out of the folder of the images."""
    if os.path.isabs(path) or (".." in path and ".." in Path(path).parts):
        raise InputError(
            f"the feature file names the image {path!r}, which is not in {root}. Make it with `kedge extract`."
        )


def image_root(features: FeatureSet, images: str | Path | None = None) -> Path:
    """The folder that the images' paths are relative to, if it may be opened."""
    recorded = str(features.provenance.get("root") or "")
    if features.paths is None:
        raise InputError(
            "the features do not have the paths of their images. Make them with `kedge extract`, from image files."
        )
    if recorded.startswith("hf:"):
        raise InputError("the images are in a Hugging Face dataset, not in files. Extract the features from files.")
    if recorded.startswith(PARQUET):
        raise InputError(
            "the images are in a Parquet file, not in files of their own. Extract the features from files."
        )
    if images is not None:
        if not os.path.isdir(images):
            raise FileError(f"{images} is not a folder. Name the folder of the images.")
        return Path(images).absolute()
    root = (features.path.parent if features.path else Path()) / recorded
    if not _in_own_folder(features, root):
        suggestion = shlex.quote(recorded) if recorded else "DIR"
        raise InputError(
            f"the images were in {recorded or 'an unknown folder'}, which is not in the folder of the feature file. "
            f"If they are yours, name their folder: --images {suggestion}."
        )
    return root


def _in_own_folder(features: FeatureSet, path: Path) -> bool:
    """Is the path below the folder of the feature file, after links are resolved?"""
    if features.path is None:
        return False
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(features.path.parent))
    except ValueError:  # a NUL in the path
        return False
