"""The labels of images, one by one, as rows and in sum: what `kedge.classify` returns and `kedge adapt` writes.

| column                | what                                                                         |
|-----------------------|------------------------------------------------------------------------------|
| image                 | the image's path if the feature file has paths, else its index, from 0       |
| label                 | name of the most probable class after adaptation                             |
| probability           | its probability, in as many digits as give the same number back              |
| zero_shot_label       | name of the class the encoder chose by itself                                |
| zero_shot_probability | its zero-shot probability                                                    |
| changed               | is it another class now? Compared by class, since two may have the same name |

    features = kedge.FeatureSet.load("birds.safetensors")
    Predictions(features, kedge.adapt(features)).write("labels.csv")
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from ..arrays import Array
from ..errors import FileError, InputError, MissingExtra
from ..features.feature_set import FeatureSet
from ..files import check_writable, written_by_rename
from .stream import Result

SUFFIXES = (".csv", ".json", ".parquet")


def check_output(path: str | Path) -> Path:
    """Refuse, before any work, a path that `Predictions.write` could not write."""
    path = check_writable(path)
    if path.suffix.lower() not in SUFFIXES:
        found = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise FileError(f"can not write {path}: it has {found}. Choose from {', '.join(SUFFIXES)}, or - for stdout.")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise MissingExtra(
                f"can not write {path}: pyarrow is not installed. "
                'Install it with: pip install "kedge[parquet]"; or write .csv or .json.'
            ) from error
    return path


@dataclass(frozen=True, eq=False)
class Predictions:
    """A result with the images and classes it is of, row by row and in sum."""

    features: FeatureSet
    result: Result  # probabilities and class numbers

    def __post_init__(self) -> None:
        n, k = self.result.probs.shape
        if (n, k) != (len(self.features), self.features.head.k):
            raise InputError(
                f"the result is of {n} images and {k} classes, the features of {len(self.features)} and "
                f"{self.features.head.k}. Pass the features that were adapted."
            )

    @cached_property
    def labels(self) -> Tensor:
        """Class numbers after adaptation, n."""
        return _tensor(self.result.labels)

    @cached_property
    def zero_shot_labels(self) -> Tensor:
        """Class numbers by the encoder alone, n."""
        return _tensor(self.result.zero_shot).argmax(dim=1)

    @property
    def paths(self) -> tuple[str, ...] | None:
        """Of the images, n, relative to the folder they were in; None if they have none."""
        return self.features.paths

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes after adaptation, n."""
        names = self.features.head.class_names
        return [names[j] for j in self.labels.tolist()]

    @property
    def skipped(self) -> Mapping[str, str]:
        """Images that could not be read, by path, and why; they have no label."""
        return {entry["path"]: entry["reason"] for entry in self.features.provenance.get("skipped", ())}

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Every column by name: a list or a numpy array of n entries."""
        names = self.features.head.class_names
        return {
            "image": list(self.features.paths or range(len(self.features))),
            "label": self.names,
            "probability": _of_class(self.result.probs, self.labels).numpy(),
            "zero_shot_label": [names[j] for j in self.zero_shot_labels.tolist()],
            "zero_shot_probability": _of_class(self.result.zero_shot, self.zero_shot_labels).numpy(),
            "changed": (self.labels != self.zero_shot_labels).numpy(),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per image, of plain Python values."""
        plain = {**self.columns, "changed": self.columns["changed"].tolist()}
        for name in ("probability", "zero_shot_probability"):
            # by their shortest decimals: 0.9 of float32 stays 0.9 instead of 0.8999999761581421
            plain[name] = map(float, map(str, plain[name]))
        for entries in zip(*plain.values(), strict=True):
            yield dict(zip(plain, entries, strict=True))

    def summary(self) -> dict[str, Any]:
        """What the method says of its work, and counts; accuracies (0 to 1) are None without true labels."""
        truth = self.features.labels
        return {
            **self.result.info,
            "images": len(self.features),
            "classes": self.features.head.k,
            "changed": int((self.labels != self.zero_shot_labels).sum()),
            "zero_shot_accuracy": None if truth is None else _share(self.zero_shot_labels == truth),
            "accuracy": None if truth is None else _share(self.labels == truth),
        }

    def write(self, path: str | Path) -> None:
        """Write the rows, by rename, as the suffix says: .csv, .json (an array of objects) or .parquet."""
        path = check_output(path)
        with written_by_rename(path) as temporary:
            if path.suffix.lower() == ".parquet":
                import pyarrow
                import pyarrow.parquet

                pyarrow.parquet.write_table(pyarrow.table(self.columns), temporary)
                return
            with temporary.open("w", encoding="utf-8", newline="") as file:
                if path.suffix.lower() == ".csv":
                    self.write_csv(file)
                else:
                    self._write_json(file)

    def write_csv(self, file: TextIO) -> None:
        """Write the rows as CSV to an open text file."""
        writer = csv.DictWriter(file, self.columns, lineterminator="\n")
        writer.writeheader()
        for row in self.rows():
            writer.writerow({**row, "changed": "true" if row["changed"] else "false"})

    def _write_json(self, file: TextIO) -> None:
        for number, row in enumerate(self.rows()):  # a row per line, so that people can read and compare it
            file.write((",\n" if number else "[\n") + json.dumps(row, ensure_ascii=False))
        file.write("\n]\n")


def _tensor(array: Array) -> Tensor:
    return torch.as_tensor(array).cpu()


def _of_class(probs: Array, classes: Tensor) -> Tensor:
    """p_i of class c_i, n."""
    return _tensor(probs).gather(1, classes[:, None]).squeeze(1)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
