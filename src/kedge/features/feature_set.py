"""FeatureSet: the output of an encoder, and the input of everything else.

| name           | shape  | what                                                                  |
|----------------|--------|-----------------------------------------------------------------------|
| image_features | n×d    | unit rows, any float type                                             |
| head.features  | k×d    | text prototypes, unit rows                                            |
| labels         | n      | true class numbers, if known; no method sees them                     |
| views          | n×v×d  | features of augmented views, if extracted; view 0 is the image itself |
"""

from __future__ import annotations

import difflib
import json
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import (
    Array,
    Integers,
    as_integers,
    as_tensor,
    check_count,
    check_unit_rows,
    row_blocks,
    unit_rows,
    working,
)
from ..errors import FileError, InputError, KedgeError
from ..files import existing
from ..memory import check_memory
from ..schema import check_plain, fitted, parsed
from ..tensor_files import check_names, content_hash, load_tensors, save_tensors
from ..words import count, printable
from .precision_check import PrecisionCheck
from .text_head import CLIP_LOGIT_SCALE, TextHead, check_same_dimension, texts

KIND, VERSION = "features", 1


@dataclass(frozen=True)
class Header:
    """What a feature file says beside its tensors."""

    logit_scale: float
    class_names: list[str]
    provenance: dict[str, Any]
    sha256: str


@dataclass(frozen=True)
class SkippedImage:
    """An image that could not be read."""

    path: str
    reason: str


@dataclass(frozen=True)
class Provenance:
    """The entries of a provenance that kedge reads. Others are kept as they are."""

    dataset: str | None = None
    encoder: str | None = None
    backbone: str | None = None  # the encoder, in npz files of others
    weights_sha256: str | None = None
    revision: str | None = None
    root: str | None = None
    skipped: tuple[SkippedImage, ...] = ()
    simulated: bool = False
    precision_check: PrecisionCheck | None = None


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet:
    """Image features and the text prototypes of the classes. Create one with `from_arrays`, `load` or `from_npz`."""

    image_features: Tensor  # n×d unit rows
    head: TextHead  # the classes
    labels: Tensor | None = None  # n true class numbers, if known; no method sees them
    views: Tensor | None = None  # n×v×d; view 0 is the image itself
    paths: tuple[str, ...] | None = None  # n
    provenance: Mapping[str, Any] = field(default_factory=dict)  # what they came from, as JSON
    path: Path | None = None  # of the file they were loaded from; not part of the content

    @classmethod
    def from_arrays(
        cls,
        image_features: Array,
        text_features: Array | TextHead,
        *,
        logit_scale: float = CLIP_LOGIT_SCALE,
        class_names: Iterable[str] | None = None,
        labels: Integers | None = None,
        views: Array | None = None,
        paths: Sequence[str] | NDArray[Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        normalize: bool = False,
    ) -> FeatureSet:
        """Check the arrays and combine them.

        image_features: n×d unit rows, any float type.
        text_features: k×d unit rows, a text prototype per class.
        labels: n true class numbers, if known; no method sees them.
        views: n×v×d features of augmented views; view 0 is the image itself.
        paths: n names of images.
        normalize: scale rows to unit norm. Otherwise rows without unit norm are an error.
        """
        x = as_tensor(image_features, "image_features", ndim=2)
        if isinstance(text_features, TextHead):
            head = text_features
        else:
            head = TextHead.from_arrays(text_features, logit_scale, class_names, normalize=normalize)
        check_same_dimension(x, head, "image_features")
        check_unit_rows(x, "image_features", normalize=normalize)
        n = len(x)
        v = None if views is None else as_tensor(views, "views", ndim=3)
        if v is not None:
            check_same_dimension(v, head, "views")
            check_count(len(v), n, "views")
            check_unit_rows(v, "views", normalize=normalize)
        names = None if paths is None else texts(paths, "paths", file_names=True)
        if names is not None:
            check_count(len(names), n, "paths")
        return cls(
            unit_rows(x, normalize=True) if normalize else x,
            head,
            None if labels is None else _checked_labels(labels, n, head.k),
            unit_rows(v, normalize=True) if normalize and v is not None else v,
            names,
            _checked_provenance(dict(provenance or {})),
        )

    def __len__(self) -> int:
        return self.image_features.shape[0]

    def __repr__(self) -> str:
        n, d = self.image_features.shape
        dtype = str(self.image_features.dtype).removeprefix("torch.")
        extras = {"labels": self.labels, "views": self.views, "paths": self.paths}
        return (
            f"FeatureSet: {count(n, 'image')}, {n}×{d} {dtype}\n"
            f"  dataset {self.dataset}, encoder {self.encoder}\n"
            f"  with {', '.join(name for name, value in extras.items() if value is not None) or 'features only'}\n"
            f"  {self.head!r}"
        )

    @property
    def simulated(self) -> bool:
        """Were they made by `kedge.simulate`, or from the bundled pictures, which a program photographed?"""
        return bool(self.provenance.get("simulated", False))

    @property
    def weights(self) -> str:
        """sha256 of the encoder's weights, "" if unknown."""
        return str(self.provenance.get("weights_sha256") or "")

    @property
    def dataset(self) -> str:
        """Name of the dataset: from the provenance, else the file's name; "simulated" is no name."""
        said = str(self.provenance.get("dataset") or "")
        file = self.path.stem if self.path else ""
        return printable((said if said != "simulated" else "") or file or said or "features")

    @property
    def encoder(self) -> str:
        """Name of the encoder, from the provenance."""
        return printable(str(self.provenance.get("encoder") or self.provenance.get("backbone") or "unknown"))

    @property
    def precision_check(self) -> PrecisionCheck | None:
        """How near the features are to float32's, if they or some of them were encoded in another precision."""
        return fitted(self.provenance.get("precision_check"), PrecisionCheck | None)  # type: ignore[arg-type]

    @property
    def precision(self) -> str:
        """The precision that images were encoded in, and how near it is to float32; "" if unknown."""
        said = " by ".join(str(self.provenance[key]) for key in ("precision", "engine") if self.provenance.get(key))
        check = self.precision_check
        if check is None:
            return printable(said)
        return printable(
            f"{said}: {check}" if check.used else f"{said}, since {check.precision} was not near enough: {check}"
        )

    @property
    def skipped(self) -> dict[str, str]:
        """Images that could not be read when the features were extracted: path → reason."""
        return {entry["path"]: entry["reason"] for entry in self.provenance.get("skipped", ())}

    def take(self, indices: Integers | slice) -> FeatureSet:
        """The images at these positions, in this order; a slice does not copy."""
        pick = _sliced(indices, len(self)) if isinstance(indices, slice) else _positions(indices, len(self))
        forward = isinstance(indices, slice) and (indices.step or 1) > 0  # torch has no negative steps
        rows: Any = indices if forward else torch.tensor(pick, dtype=torch.long)
        return replace(
            self,
            image_features=self.image_features[rows],
            labels=None if self.labels is None else self.labels[rows],
            views=None if self.views is None else self.views[rows],
            paths=None if self.paths is None else tuple(self.paths[i] for i in pick),
        )

    def zero_shot_accuracy(self) -> float | None:
        """Share of the images with the true label by zero-shot, from 0 to 1; None without labels."""
        if self.labels is None:
            return None
        head = self.head.like(working(self.image_features[:1]))
        right = 0
        for rows in row_blocks((len(self), head.d + head.k)):
            x = unit_rows(self.image_features[rows], like=head.features)
            right += int((head.log_zero_shot(x).argmax(dim=1) == self.labels[rows]).sum())
        return right / len(self)

    @cached_property
    def hash(self) -> str:
        """sha256 of the content: features, head, labels, views, paths and provenance."""
        tensors, meta = self._parts()
        return content_hash(tensors, {"kind": KIND, "version": VERSION, **meta})

    def save(self, path: str | Path) -> str:
        """Write a safetensors file; returns the content hash. The file is complete or not there at all."""
        tensors, meta = self._parts()
        return save_tensors(path, KIND, VERSION, tensors, meta)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"image_features": self.image_features, "text_features": self.head.features}
        if self.labels is not None:
            tensors["labels"] = self.labels
        if self.views is not None:
            tensors["views"] = self.views
        if self.paths is not None:  # bytes, since a million paths would not fit a safetensors header
            text = bytearray("\0".join(self.paths).encode(errors="surrogateescape"))
            tensors["paths"] = torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        meta = {
            "logit_scale": self.head.logit_scale,
            "class_names": list(self.head.class_names),
            "provenance": dict(self.provenance),
        }
        return tensors, meta

    @classmethod
    def load(cls, path: str | Path, *, normalize: bool = False) -> FeatureSet:
        """Read and check a `.safetensors` file written by `save` (memory-mapped), or an `.npz` file."""
        path = existing(path)
        if path.suffix == ".npz":
            return cls.from_npz(path, normalize=normalize)
        tensors, header = load_tensors(path, KIND, VERSION, Header)
        check_names(path, tensors, ("image_features", "text_features"), ("labels", "views", "paths"))
        with _naming(path):
            loaded = cls.from_arrays(
                tensors["image_features"],
                tensors["text_features"],
                logit_scale=header.logit_scale,
                class_names=header.class_names,
                labels=tensors.get("labels"),
                views=tensors.get("views"),
                paths=_split_paths(tensors["paths"]) if "paths" in tensors else None,
                provenance=header.provenance,
                normalize=normalize,
            )
        loaded = replace(loaded, path=path.absolute())
        if not normalize:
            loaded.__dict__["hash"] = header.sha256  # verified while loading
        return loaded

    @classmethod
    def from_npz(cls, path: str | Path, *, normalize: bool = False, logit_scale: float | None = None) -> FeatureSet:
        """Import `image_features`, `text_features` and, if present, `labels`, `class_names`, `views`, `paths`,
        `logit_scale` and `meta` (a JSON object, kept as provenance). Pickled arrays are an error.
        """
        path = existing(path)
        arrays = _read_npz(path)
        text = str(arrays["meta"]) if "meta" in arrays else "{}"
        try:
            meta = parsed(text)
        except json.JSONDecodeError:
            meta = text  # a note
        except ValueError as error:
            raise FileError(f"{path}: meta is {error}. Save it again without that.") from error
        if logit_scale is None:  # a scalar or an array of one entry; anything else fails below
            logit_scale = np.squeeze(arrays.get("logit_scale", CLIP_LOGIT_SCALE)).tolist()
        with _naming(path):
            imported = cls.from_arrays(
                arrays["image_features"],
                arrays["text_features"],
                logit_scale=logit_scale,
                class_names=arrays.get("class_names"),
                labels=arrays.get("labels"),
                views=arrays.get("views"),
                paths=arrays.get("paths"),
                provenance={"source": path.name, **(meta if isinstance(meta, dict) else {"meta": meta})},
                normalize=normalize,
            )
        return replace(imported, path=path.absolute())


NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPZ_KEYS = ("image_features", "text_features", "labels", "class_names", "views", "paths", "logit_scale", "meta")


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in NPZ_KEYS; others are not read."""
    if not zipfile.is_zipfile(path):
        raise FileError(
            f"{path} is not an npz file (truncated, damaged or of another kind): it is not a zip of arrays. "
            "Make it again with np.savez(path, image_features=…, text_features=…)."
        )
    try:
        with zipfile.ZipFile(path) as file:
            found = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
            _require(path, found, ("image_features", "text_features"))
            keys = [key for key in NPZ_KEYS if key in found]
            check_memory(sum(_npy_bytes(path, file, key) for key in keys), f"{path}, unpacked,", FileError)
            return {key: _npy(file, key) for key in keys}
    except KedgeError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds on damaged data
        reason = " ".join(str(error).split())
        raise FileError(
            f"{path} is not a readable npz file (truncated, damaged or of another kind): {reason}. Make it again."
        ) from error


def _npy_bytes(path: Path, file: zipfile.ZipFile, key: str) -> int:
    """The size of an array in memory, from its header; nothing else is unpacked."""
    with file.open(f"{key}.npy") as array:
        read_header = NPY_HEADERS[np.lib.format.read_magic(array)]
        shape, _, dtype = read_header(array)
        if dtype.hasobject:
            raise FileError(
                f"{path} has pickled objects, which can run code when read; kedge does not load them. "
                "Save plain arrays (strings as dtype '<U…', numbers as float or int)."
            )
        size = math.prod(shape) * dtype.itemsize
        if size != file.getinfo(f"{key}.npy").file_size - array.tell():
            raise ValueError(f"{key} claims {size} bytes and has others")
        return size


def _npy(file: zipfile.ZipFile, key: str) -> NDArray[Any]:
    with file.open(f"{key}.npy") as array:
        return np.asarray(np.lib.format.read_array(array, allow_pickle=False))


def _require(path: Path, found: Iterable[str], needed: Sequence[str]) -> None:
    for key in needed:
        if key not in found:
            near = difflib.get_close_matches(key, set(found) - set(NPZ_KEYS), n=1)
            raise FileError(
                f"{path} has no array {key!r}; found {', '.join(sorted(found)) or 'nothing'}. "
                f"A feature file needs {' and '.join(needed)}" + (f": rename {near[0]!r}?" if near else ".")
            )


class _naming:
    """Put the file's name before the message of an InputError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise InputError(f"{self.path}: {error}") from error


def _checked_provenance(provenance: dict[str, Any]) -> dict[str, Any]:
    """The provenance, unchanged; raises InputError if a file cannot keep it or an entry that kedge reads is wrong."""
    try:
        check_plain(provenance)
        fitted(provenance, Provenance)
    except ValueError as error:
        raise InputError(
            f"provenance cannot be kept in a file: {error}. Use text, finite numbers, lists and dicts."
        ) from error
    return provenance


def _split_paths(stored: Tensor) -> list[str]:
    """Paths from their bytes, separated by NUL; bytes that are not UTF-8 become lone surrogates."""
    if stored.dtype != torch.uint8 or stored.dim() != 1:
        raise InputError(f"paths must be bytes; got {stored.dtype} of shape {tuple(stored.shape)}. Make it again.")
    return bytes(stored.numpy()).decode(errors="surrogateescape").split("\0")


def _sliced(part: slice, n: int) -> range:
    try:
        return range(n)[part]
    except (TypeError, ValueError) as error:
        raise InputError(f"take needs a list of positions or a slice of whole numbers; got {part}: {error}.") from error


def _positions(indices: Integers, n: int) -> list[int]:
    """Positions of some of n images as a list. A mask is an error: as numbers it would mean images 0 and 1, often."""
    positions = as_integers(indices, "positions", "For a mask pass its nonzero positions, or pass a slice.")
    outside = (positions < -n) | (positions >= n)
    if outside.any():
        raise InputError(f"there is no image {int(positions[outside][0])}: there are {n}, from 0 to {n - 1}.")
    return positions.tolist()


def _checked_labels(labels: Integers, n: int, k: int) -> Tensor:
    advice = "Count classes from 0, in the order of text_features."
    checked = as_integers(labels, "labels", advice)
    check_count(len(checked), n, "labels")
    outside = (checked < 0) | (checked >= k)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(f"labels must be from 0 to {k - 1}; row {row} has {int(checked[row])}. {advice}")
    return checked
