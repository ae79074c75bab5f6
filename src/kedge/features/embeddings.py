"""Embeddings as clip-retrieval writes them, imported as a feature folder: a shard for each file.

    EMBEDDINGS/img_emb/img_emb_0.npy              n×d features, float16 or float32
    EMBEDDINGS/metadata/metadata_0.parquet        of the same images: image_path, url or key (may be absent)

The arrays are memory-mapped, so that one file at a time is read. All files are checked against each other before the
first shard is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FileError, InputError
from ..files import existing
from ..images.parquet import columns_in_words, first_column, open_parquet, values
from ..progress import track
from ..words import count
from .feature_set import FeatureSet, naming
from .folder import FeatureFolder, check_new_folder, write_folder
from .text_head import TextHead

PATHS = ("image_path", "path", "url", "key")  # columns that name an image, the best first


@dataclass(frozen=True)
class Embeddings:
    """A file of embeddings, and that of their images' names."""

    file: Path
    metadata: Path | None

    def open(self) -> NDArray[Any]:
        """The array, n×d, memory-mapped; raises FileError for one that holds other objects or is truncated."""
        path = existing(self.file)
        try:
            with np.errstate(over="raise"):  # a header may claim a size beyond 64 bits
                return np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # numpy raises errors of many kinds on damaged headers
            reason = " ".join(str(error).split())[:200]
            raise FileError(f"{path} is not a readable array of numbers: {reason}. Make it again.") from error

    def names(self) -> list[str] | None:
        """The names of the images, if there is a file of them."""
        if self.metadata is None:
            return None
        file = open_parquet(self.metadata)
        column = first_column(file, PATHS, "text")
        if column is None:
            raise FileError(
                f"{self.metadata} has no column of text named {', '.join(PATHS[:-1])} or {PATHS[-1]}; "
                f"found {columns_in_words(file)}. Add one, or remove the metadata files."
            )
        return values(self.metadata, file, column)

    def check(self, head: TextHead) -> None:
        """Raise an error if the files do not fit each other or the prototypes; reads only how large they are."""
        x = self.open()
        if x.ndim != 2 or x.dtype not in (np.float16, np.float32, np.float64) or not len(x):
            got = f"{x.dtype} of shape {x.shape}"
            raise InputError(f"{self.file} must be an n×d array of floats; got {got}. Convert or remove it.")
        if x.shape[1] != head.d:
            raise InputError(
                f"{self.file} has dimension {x.shape[1]}, the text prototypes have {head.d}. "
                "Both must come from the same encoder."
            )
        if self.metadata is not None and (rows := open_parquet(self.metadata).metadata.num_rows) != len(x):
            raise FileError(
                f"{self.metadata} has {count(rows, 'row')}, {self.file} has {len(x):,}. Copy both again, from one run."
            )

    def load(self, head: TextHead, normalize: bool) -> FeatureSet:
        """The checked features, in the type they are stored in."""
        x = self.open()
        with naming(self.file):
            found = FeatureSet.from_arrays(x, head, paths=self.names(), normalize=normalize)
        stored = {2: "half", 4: "float", 8: "double"}[x.dtype.itemsize]
        return replace(found, image_features=getattr(found.image_features, stored)())


def import_embeddings(
    source: str | Path,
    target: str | Path,
    head: TextHead,
    *,
    provenance: Mapping[str, Any] | None = None,
    normalize: bool = False,
) -> FeatureFolder:
    """Write the embeddings of a folder as a feature folder; an interrupted import is continued.

    source: a folder as above, or its sub-folder img_emb.
    head: the prototypes of the classes, from the encoder of the embeddings.
    """
    parts = find_embeddings(source)
    check_new_folder(target)
    for part in parts:
        part.check(head)
    kinds = {str(part.open().dtype): part.file for part in parts}
    if len(kinds) > 1:
        (kind, file), (other, another) = list(kinds.items())[:2]
        raise InputError(f"{file} is of {kind}, {another} of {other}. Convert them to one type.")

    def loaded() -> Iterator[FeatureSet]:
        for part in track(parts, "files"):
            yield part.load(head, normalize)

    about = {"dataset": Path(os.path.abspath(source)).name, "source": "embeddings", **(provenance or {})}
    return write_folder(target, loaded(), head, about)


def find_embeddings(source: str | Path) -> list[Embeddings]:
    """The files of embeddings in a folder, in the order of their numbers, each with its metadata, if there are any."""
    source = Path(source)
    if not os.path.isdir(source):
        raise FileError(f"{source} is not a folder. Name the output folder of clip-retrieval, which has img_emb.")
    arrays = _numbered(source / "img_emb", "img_emb", ".npy") or _numbered(source, "img_emb", ".npy")
    if not arrays:
        raise FileError(f"{source} has no embeddings: no img_emb/img_emb_0.npy. Check the path.")
    beside = source.parent if source.name == "img_emb" else source
    metadata = _numbered(beside / "metadata", "metadata", ".parquet")
    if metadata and (missing := arrays.keys() ^ metadata.keys()):
        number = min(missing)
        there = arrays.get(number) or metadata[number]
        raise FileError(f"{there} has no file of the same number beside it, metadata or embeddings. Copy both.")
    return [Embeddings(path, metadata.get(number)) for number, path in sorted(arrays.items())]


def _numbered(folder: Path, name: str, suffix: str) -> dict[int, Path]:
    """The files name_NUMBER.suffix in a folder, by number."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if os.path.isdir(folder) else ():
        match = re.fullmatch(rf"{name}_([0-9]{{1,18}}){re.escape(suffix)}", path.name)
        if match and (other := found.setdefault(int(match[1]), path)) != path:
            raise FileError(f"{other} and {path} have the same number. Remove one.")
    return found
