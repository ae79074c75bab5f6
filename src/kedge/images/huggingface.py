"""Hugging Face datasets by name (extra `datasets`). The images stay in the library's cache, as encoded bytes."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ..errors import FileError, MissingExtra, SettingError, did_you_mean
from .image_set import ImageSet, readable


@dataclass(frozen=True)
class HubImages(ImageSet):
    """Images in the memory-mapped table of a dataset; the name of image i is `split/i`."""

    rows: Any = field(default=None, compare=False, repr=False)
    column: str = "image"

    def source(self, i: int) -> Path | IO[bytes]:
        """The encoded bytes of image i, as a file; or its path, if the dataset has only that."""
        image = self.rows[i][self.column]
        return Path(image["path"]) if image["bytes"] is None else io.BytesIO(image["bytes"])

    def part(self, numbers: range) -> HubImages:
        """Some consecutive images."""
        part: Any = super().part(numbers)
        found: HubImages = replace(part, rows=self.rows.select(numbers))
        return found


def huggingface(
    name: str, split: str = "test", *, config: str | None = None, image: str | None = None, label: str | None = None
) -> HubImages:
    """A dataset from the hub (`user/name`) or a local one; `image` and `label` choose columns, if there are several.

    Class names are those of a ClassLabel column, or the distinct values of a text column. Without a label column there
    are no labels and no class names: the caller must name the classes.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra(
            f"cannot read the dataset {name!r}: the library datasets is not installed. "
            'Install it with: pip install "kedge[datasets]"'
        ) from error
    # Datasets of version 3 may bring a program; version 4 has neither such programs nor the argument.
    has_argument = "trust_remote_code" in inspect.signature(datasets.load_dataset).parameters
    never: dict[str, Any] = {"trust_remote_code": False} if has_argument else {}
    try:
        rows = datasets.load_dataset(name, config, split=split, **never)
    except Exception as error:  # the library raises many kinds of errors, also without a network
        reason = " ".join(str(error).split())
        raise FileError(
            f"cannot load split {split!r} of the Hugging Face dataset {name!r}: {reason}. Check its name and split; "
            "without a network, pass a local folder or a dataset that is in the cache."
        ) from error
    kinds = rows.features
    pictures = [each for each, kind in kinds.items() if isinstance(kind, datasets.Image)]
    column = _chosen(name, image, kinds, pictures)
    if column is None:
        raise SettingError(f"{name!r} has no column of images; found {', '.join(kinds)}. Choose another dataset.")
    classes = [each for each, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    target = _chosen(name, label, kinds, classes or [each for each in kinds if each == "label"])
    labels, names = (None, ()) if target is None else _labels(rows[target], getattr(kinds[target], "names", None))
    return HubImages(
        name.rstrip("/").rsplit("/", 1)[-1] + ("" if split == "test" else f"_{split}"),
        Path(f"hf:{name}"),
        tuple(f"{split}/{i}" for i in range(len(rows))),
        labels,
        names,
        "" if labels else "labels are unknown: the dataset has none for this split",
        identity=config or "",
        rows=rows.cast_column(column, datasets.Image(decode=False)),
        column=column,
    )


def _chosen(name: str, wanted: str | None, columns: Iterable[str], fitting: Sequence[str]) -> str | None:
    """The wanted column, or the only one of the right type; None if there is none."""
    if wanted is not None and wanted not in columns:
        raise SettingError(f"{name!r} has no column {wanted!r}{did_you_mean(wanted, columns)}")
    if wanted is None and len(fitting) > 1:
        raise SettingError(
            f"{name!r} has several possible columns: {', '.join(fitting)}. Choose one in Python: "
            f"kedge.images.huggingface.huggingface({name!r}, image=…, label=…)."
        )
    return wanted or (fitting[0] if fitting else None)


def _labels(column: Iterable[Any], names: Sequence[str] | None) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Class numbers and names. Negative numbers mean that a test split has no labels."""
    values = list(column)
    if names is None:
        names = sorted(set(map(str, values)))
        number = {each: j for j, each in enumerate(names)}
        values = [number[str(value)] for value in values]
    known = all(value is not None and value >= 0 for value in values)
    return tuple(values) if known else None, tuple(map(readable, names))
