"""FeatureSet: the output of an encoder, and the input of everything else.

| name           | shape  | what                                                                  |
|----------------|--------|-----------------------------------------------------------------------|
| image_features | n×d    | unit rows, any float type                                             |
| head.features  | k×d    | text prototypes, unit rows                                            |
| labels         | n      | true class numbers, if known; no method sees them                     |
| views          | n×v×d  | features of augmented views, if extracted; view 0 is the image itself |
"""

from __future__ import annotations

import json
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
from ..errors import FileError, InputError
from ..files import existing
from ..images.image_set import is_feature_folder
from ..schema import check_plain, fitted, parsed
from ..tensor_files import check_names, content_hash, load_tensors, save_tensors
from ..words import count, printable
from .npz import read_npz
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
        return recorded_check(self.provenance)

    @property
    def precision(self) -> str:
        """The precision that images were encoded in, and how near it is to float32; "" if unknown."""
        return recorded_precision(self.provenance)

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
        tensors = {
            **image_tensors(self.image_features, self.labels, self.views, self.paths),
            "text_features": self.head.features,
        }
        meta = {
            "logit_scale": self.head.logit_scale,
            "class_names": list(self.head.class_names),
            "provenance": dict(self.provenance),
        }
        return tensors, meta

    @classmethod
    def load(cls, path: str | Path, *, normalize: bool = False) -> FeatureSet:
        """Read and check a `.safetensors` file written by `save` (memory-mapped), an `.npz` file, or a feature folder,
        which is gathered in memory.
        """
        if is_feature_folder(path):
            from .folder import FeatureFolder  # it is made of feature sets

            found = FeatureFolder.open(path).gather()
            if not normalize:
                return found
            scaled = cls.from_arrays(
                found.image_features,
                found.head.features,
                logit_scale=found.head.logit_scale,
                class_names=found.head.class_names,
                labels=found.labels,
                views=found.views,
                paths=found.paths,
                provenance=found.provenance,
                normalize=True,
            )
            return replace(scaled, path=found.path)
        path = existing(path)
        if path.suffix == ".npz":
            return cls.from_npz(path, normalize=normalize)
        tensors, header = load_tensors(path, KIND, VERSION, Header)
        check_names(path, tensors, ("image_features", "text_features"), ("labels", "views", "paths"))
        with naming(path):
            loaded = cls.from_arrays(
                tensors["image_features"],
                tensors["text_features"],
                logit_scale=header.logit_scale,
                class_names=header.class_names,
                labels=tensors.get("labels"),
                views=tensors.get("views"),
                paths=stored_paths(tensors),
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
        arrays = read_npz(path)
        text = str(arrays["meta"]) if "meta" in arrays else "{}"
        try:
            meta = parsed(text)
        except json.JSONDecodeError:
            meta = text  # a note
        except ValueError as error:
            raise FileError(f"{path}: meta is {error}. Save it again without that.") from error
        if logit_scale is None:  # a scalar or an array of one entry; anything else fails below
            logit_scale = np.squeeze(arrays.get("logit_scale", CLIP_LOGIT_SCALE)).tolist()
        with naming(path):
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


def recorded_check(provenance: Mapping[str, Any]) -> PrecisionCheck | None:
    """See `FeatureSet.precision_check`."""
    return fitted(provenance.get("precision_check"), PrecisionCheck | None)  # type: ignore[arg-type]


def recorded_precision(provenance: Mapping[str, Any]) -> str:
    """See `FeatureSet.precision`."""
    said = " by ".join(str(provenance[key]) for key in ("precision", "engine") if provenance.get(key))
    check = recorded_check(provenance)
    if check is None:
        return printable(said)
    return printable(
        f"{said}: {check}" if check.used else f"{said}, since {check.precision} was not near enough: {check}"
    )


class naming:
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


def image_tensors(
    x: Tensor, labels: Tensor | None = None, views: Tensor | None = None, paths: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """What is known of each image, as the tensors of a file."""
    tensors = {"image_features": x}
    if labels is not None:
        tensors["labels"] = labels
    if views is not None:
        tensors["views"] = views
    if paths is not None:
        tensors["paths"] = as_bytes(paths)
    return tensors


def as_bytes(paths: Sequence[str]) -> Tensor:
    """Paths separated by NUL. Bytes, since a million paths would not fit a safetensors header."""
    text = bytearray("\0".join(paths).encode(errors="surrogateescape"))
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def stored_paths(tensors: Mapping[str, Tensor]) -> list[str] | None:
    """The paths in `image_tensors`: bytes separated by NUL; those that are not UTF-8 become lone surrogates."""
    stored = tensors.get("paths")
    if stored is None:
        return None
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
