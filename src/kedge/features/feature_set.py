"""Features and text prototypes: the hand-over between an encoder and everything after it.

| name           | shape  | what                                                      |
|----------------|--------|-----------------------------------------------------------|
| image_features | n×d    | unit rows, any float type                                 |
| head.features  | k×d    | unit text prototypes                                      |
| labels         | n      | class numbers, if known; no method ever sees them         |
| views          | n×v×d  | features of augmented views, if extracted; view 0 is the image itself |
"""

from __future__ import annotations

import difflib
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import Array, as_tensor, check_count, check_unit_rows, unit_rows
from ..errors import FileError, InputError
from ..files import existing
from ..tensor_files import content_hash, load_tensors, save_tensors
from .text_head import CLIP_LOGIT_SCALE, TextHead, check_same_dimension

KIND, VERSION = "features", 1


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Image features with the text head they were made for. Build with `from_arrays`, `load` or `from_npz`."""

    image_features: Tensor
    head: TextHead
    labels: Tensor | None = None
    views: Tensor | None = None
    paths: tuple[str, ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""  # name of the file they were loaded from, without its suffix; no part of the content

    @classmethod
    def from_arrays(
        cls,
        image_features: Array,
        text_features: Array | TextHead,
        *,
        logit_scale: float = CLIP_LOGIT_SCALE,
        class_names: Iterable[str] | None = None,
        labels: Array | None = None,
        views: Array | None = None,
        paths: Sequence[str] | NDArray[Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        normalize: bool = False,
    ) -> FeatureSet:
        """Check arrays against each other and join them; with `normalize`, rows are scaled to unit norm."""
        x = as_tensor(image_features, "image_features", ndim=2)
        if isinstance(text_features, TextHead):
            head = text_features
        else:
            head = TextHead.from_arrays(text_features, logit_scale, class_names, normalize=normalize)
        check_same_dimension(x, head, "image_features")
        check_unit_rows(x, "image_features", normalize=normalize)
        n = len(x)
        if views is not None:
            views = as_tensor(views, "views", ndim=3)
            check_same_dimension(views, head, "views")
            check_count(len(views), n, "views")
            check_unit_rows(views, "views", normalize=normalize)
        if labels is not None:
            labels = _checked_labels(labels, n, head.k)
        if paths is not None:
            check_count(len(paths), n, "paths")
        try:
            json.dumps(dict(provenance or {}))
        except (TypeError, ValueError) as error:
            raise InputError(f"provenance must be what JSON can hold: {error}. Pass text and plain numbers.") from error
        return cls(
            unit_rows(x, normalize=True) if normalize else x,
            head,
            labels,
            unit_rows(views, normalize=True) if normalize and views is not None else views,
            None if paths is None else tuple(map(str, paths)),
            dict(provenance or {}),
        )

    def __len__(self) -> int:
        return self.image_features.shape[0]

    @property
    def simulated(self) -> bool:
        """Were they made by `kedge.simulate`?"""
        return bool(self.provenance.get("simulated", False))

    @property
    def weights(self) -> str:
        """sha256 of the encoder's weights, "" if unknown."""
        return str(self.provenance.get("weights_sha256") or "")

    @property
    def dataset(self) -> str:
        """What the images are called: as the provenance says, else by the file. Simulated ones always by the file."""
        said = str(self.provenance.get("dataset") or "")
        return (self.file or said if self.simulated else said or self.file) or "features"

    @property
    def encoder(self) -> str:
        """What the features say they come from."""
        return str(self.provenance.get("encoder") or self.provenance.get("backbone") or "unknown")

    def take(self, indices: Array) -> FeatureSet:
        """The images at these positions, in this order; a slice keeps the memory map."""
        pick = range(len(self))[indices] if isinstance(indices, slice) else _positions(indices)
        if not isinstance(indices, slice) or (indices.step or 1) < 0:  # torch slices forwards only
            indices = torch.tensor(pick, dtype=torch.long)
        return replace(
            self,
            image_features=self.image_features[indices],
            labels=None if self.labels is None else self.labels[indices],
            views=None if self.views is None else self.views[indices],
            paths=None if self.paths is None else tuple(self.paths[i] for i in pick),
        )

    @cached_property
    def hash(self) -> str:
        """sha256 of the content: the same features, head, labels, paths and provenance give the same hash."""
        tensors, meta = self._parts()
        return content_hash(tensors, {"kind": KIND, "version": VERSION, **meta})

    def save(self, path: str | Path) -> str:
        """Write one safetensors file, by rename; returns the content hash."""
        tensors, meta = self._parts()
        return save_tensors(path, KIND, VERSION, tensors, meta)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"image_features": self.image_features, "text_features": self.head.features}
        if self.labels is not None:
            tensors["labels"] = self.labels
        if self.views is not None:
            tensors["views"] = self.views
        if self.paths is not None:  # bytes, since a million paths would not fit a safetensors header
            text = bytearray("\0".join(self.paths).encode())
            tensors["paths"] = torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        meta = {
            "logit_scale": self.head.logit_scale,
            "class_names": list(self.head.class_names),
            "provenance": dict(self.provenance),
        }
        return tensors, meta

    @classmethod
    def load(cls, path: str | Path, *, normalize: bool = False) -> FeatureSet:
        """Read a `.safetensors` file written by `save` (memory-mapped) or an `.npz`; everything is checked."""
        path = existing(path)
        if path.suffix == ".npz":
            return cls.from_npz(path, normalize=normalize)
        tensors, meta = load_tensors(path, KIND, VERSION, ("logit_scale", "class_names", "provenance"))
        _require(path, tensors, ("image_features", "text_features"))
        names = tensors.get("paths")
        with _naming(path):
            loaded = cls.from_arrays(
                tensors["image_features"],
                tensors["text_features"],
                logit_scale=meta["logit_scale"],
                class_names=meta["class_names"],
                labels=tensors.get("labels"),
                views=tensors.get("views"),
                paths=None if names is None else bytes(names.numpy()).decode().split("\0"),
                provenance=meta["provenance"],
                normalize=normalize,
            )
        loaded = replace(loaded, file=path.stem)
        if not normalize:
            loaded.__dict__["hash"] = meta["sha256"]  # just verified: no need to compute it again
        return loaded

    @classmethod
    def from_npz(cls, path: str | Path, *, normalize: bool = False, logit_scale: float | None = None) -> FeatureSet:
        """Import `image_features`, `text_features` and, where present, `labels`, `class_names`, `views`,
        `paths`, `logit_scale` and `meta` (a JSON object, kept as provenance). Pickled arrays are refused.
        """
        path = existing(path)
        arrays = _read_npz(path)
        text = str(arrays["meta"]) if "meta" in arrays else "{}"
        try:
            meta = json.loads(text)
        except json.JSONDecodeError:
            meta = text
        if logit_scale is None:  # 0-dimensional or of one entry; anything else is refused below
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
        return replace(imported, file=path.stem)


NPZ_KEYS = ("image_features", "text_features", "labels", "class_names", "views", "paths", "logit_scale", "meta")


def _read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz that kedge knows; others are left unread."""
    if not zipfile.is_zipfile(path):  # np.load would take it for a pickle
        raise FileError(
            f"{path} is not an npz file (truncated, damaged or of another kind): it is not a zip of arrays. "
            "Make it again with np.savez(path, image_features=…, text_features=…)."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            _require(path, file.files, ("image_features", "text_features"))
            return {key: file[key] for key in NPZ_KEYS if key in file.files}
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise FileError(
                f"{path} holds pickled objects, which can run code when read; kedge does not load them. "
                "Save plain arrays (strings as dtype '<U…', numbers as float or int)."
            ) from error
        raise FileError(f"{path} is not a readable npz file: {error}. Make it again.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"{path} is not a readable npz file (truncated, damaged or of another kind): {error}. Make it again."
        ) from error


def _require(path: Path, found: Iterable[str], needed: Sequence[str]) -> None:
    for key in needed:
        if key not in found:
            near = difflib.get_close_matches(key, set(found) - set(NPZ_KEYS), n=1)
            raise FileError(
                f"{path} has no array {key!r}; found {', '.join(sorted(found)) or 'nothing'}. "
                f"A feature file needs {' and '.join(needed)}" + (f": rename {near[0]!r}?" if near else ".")
            )


class _naming:
    """Put the file's name before an InputError's message: the array came from there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise InputError(f"{self.path}: {error}") from error


def _positions(indices: Array) -> list[int]:
    """Whole numbers as a list. A mask is refused: read as numbers it would give the first two images many times."""
    positions = torch.as_tensor(indices)
    if positions.numel() and (positions.dtype == torch.bool or positions.is_floating_point() or positions.dim() != 1):
        dtype = str(positions.dtype).removeprefix("torch.")
        raise InputError(
            f"take needs a list of positions or a slice; got {dtype}. For a mask pass its nonzero positions."
        )
    return positions.tolist()


def _checked_labels(labels: Array, n: int, k: int) -> Tensor:
    if not isinstance(labels, Tensor):
        array = np.array(labels)  # a copy: torch does not share memory that may not be written
        native = array.astype(array.dtype.newbyteorder("="))
        labels = torch.from_numpy(native) if array.dtype.kind in "iufb" else array
    numbers = isinstance(labels, Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool
    if not numbers or labels.ndim != 1:
        dtype = str(labels.dtype).removeprefix("torch.")
        raise InputError(
            f"labels must be a vector of class numbers; got {dtype} of shape {tuple(labels.shape)}. "
            "Pass one whole number per image, counting classes from 0."
        )
    check_count(len(labels), n, "labels")
    checked: Tensor = labels.long()
    outside = (checked < 0) | (checked >= k)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(
            f"labels must be from 0 to {k - 1}; row {row} has {int(checked[row])}. "
            "Count classes from 0, in the order of text_features."
        )
    return checked
