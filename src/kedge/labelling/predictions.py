"""Predictions: the labels of a set of images, as rows and as a summary.

| column                | what                                                                        |
|-----------------------|-----------------------------------------------------------------------------|
| image                 | path of the image if the features have paths, else its index, from 0        |
| label                 | name of the most probable class after adaptation                            |
| probability           | its probability, with enough digits to read the same number back            |
| zero_shot_label       | name of the most probable class of the encoder alone                        |
| zero_shot_probability | its probability                                                             |
| changed               | do the two class numbers differ? Names may not: two classes may share one   |

    features = kedge.FeatureSet.load("birds.safetensors")
    kedge.Predictions(features, kedge.adapt(features)).write("labels.csv")
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from ..errors import FileError, InputError, MissingExtra
from ..features.feature_set import FeatureSet
from ..files import check_writable, written_by_rename
from ..words import count, percent, write_csv
from .stream import Result

SUFFIXES = (".csv", ".json", ".parquet")
SHOWN = 5  # images that `print(predictions)` lists


def check_output(path: str | Path) -> Path:
    """Raise FileError if `Predictions.write` cannot write to this path: called before any work."""
    path = check_writable(path)
    if path.suffix.lower() not in SUFFIXES:
        found = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise FileError(f"cannot write {path}: it has {found}. Choose from {', '.join(SUFFIXES)}, or - for stdout.")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise MissingExtra(
                f"cannot write {path}: pyarrow is not installed. "
                'Install it with: pip install "kedge[parquet]"; or write .csv or .json.'
            ) from error
    return path


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """The labels of all images of a feature set."""

    features: FeatureSet
    result: Result[Tensor]
    folders: tuple[Path, ...] = ()  # of the images, if the user named them
    seconds: float | None = None  # that the method took, if measured

    def __post_init__(self) -> None:
        n, k = self.result.probs.shape
        if (n, k) != (len(self.features), self.features.head.k):
            raise InputError(
                f"the result has {n} images and {k} classes; the features have {len(self.features)} and "
                f"{self.features.head.k}. Pass the features that were adapted."
            )

    def __repr__(self) -> str:
        summary, shown = self.summary(), [f"  {_in_words(row)}" for row in islice(self.rows(), SHOWN)]
        images, classes, changed = summary["images"], summary["classes"], summary["changed"]
        lines = [
            f"Predictions: {count(images, 'image')}, {count(classes, 'class')}, method {summary.get('method')}",
            f"  {count(changed, 'label')} changed ({percent(changed / images)}), encoder {self.features.encoder}",
        ]
        if summary["accuracy"] is not None:
            before, after = summary["zero_shot_accuracy"], summary["accuracy"]
            lines.append(f"  accuracy {percent(before)} zero-shot, {percent(after)} adapted")
        if self.skipped:
            lines.append(f"  {count(len(self.skipped), 'image')} left out: see .skipped")
        if images > SHOWN:
            shown.append(f"  … ({images - SHOWN:,} more)")
        return "\n".join(lines + shown)

    @cached_property
    def labels(self) -> Tensor:
        """Class numbers after adaptation, n."""
        return self.result.labels.cpu()

    @cached_property
    def zero_shot_labels(self) -> Tensor:
        """Class numbers of the encoder alone, n."""
        return self.result.zero_shot.argmax(dim=1).cpu()

    @property
    def paths(self) -> tuple[str, ...] | None:
        """Paths of the images, n, relative to their folder; None if unknown."""
        return self.features.paths

    @property
    def root(self) -> Path | None:
        """The folder that `paths` are relative to, if the user named it."""
        return Path(os.path.commonpath(self.folders)) if self.folders else None

    @cached_property
    def names(self) -> list[str]:
        """Class names after adaptation, n."""
        names = self.features.head.class_names
        return [names[j] for j in self.labels.tolist()]

    @property
    def skipped(self) -> Mapping[str, str]:
        """Images that could not be read, and so have no label: path → reason."""
        return {entry["path"]: entry["reason"] for entry in self.features.provenance.get("skipped", ())}

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The columns of the module's table, each a list or numpy array with n entries."""
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
        """One row per image, with plain Python values."""
        plain = {**self.columns, "changed": self.columns["changed"].tolist()}
        for name in ("probability", "zero_shot_probability"):
            # the shortest decimals: float32 0.9 stays 0.9 instead of 0.8999999761581421
            plain[name] = map(float, map(str, plain[name]))
        for entries in zip(*plain.values(), strict=True):
            yield dict(zip(plain, entries, strict=True))

    def summary(self) -> dict[str, Any]:
        """What the method reports, and counts. Accuracies are from 0 to 1, or None without true labels."""
        truth = self.features.labels
        return {
            **self.result.info,
            "images": len(self.features),
            "classes": self.features.head.k,
            "changed": self.result.changed,
            "label_counts": dict(Counter(self.names).most_common()),
            "zero_shot_accuracy": None if truth is None else _share(self.zero_shot_labels == truth),
            "accuracy": None if truth is None else _share(self.labels == truth),
        }

    def write(self, path: str | Path, raw_csv: bool = False) -> None:
        """Write the rows to a .csv (see `write_csv`), .json (an array of objects) or .parquet file."""
        path = check_output(path)
        with written_by_rename(path) as temporary:
            if path.suffix.lower() == ".parquet":
                import pyarrow
                import pyarrow.parquet

                images = [_as_utf8(name) if isinstance(name, str) else name for name in self.columns["image"]]
                pyarrow.parquet.write_table(pyarrow.table({**self.columns, "image": images}), temporary)
                return
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                if path.suffix.lower() == ".csv":
                    self.write_csv(file, raw_csv)
                else:
                    self._write_json(file)

    def write_csv(self, file: TextIO, raw: bool = False) -> None:
        """Write the rows as CSV to an open text file.

        Text that begins with = + - @, a tab or a return gets a ' in front, so that no spreadsheet takes it for a
        formula; `raw` leaves it as it is.
        """
        write_csv(file, list(self.columns), self.rows(), raw)

    def _write_json(self, file: TextIO) -> None:
        for number, row in enumerate(self.rows()):  # one line per row, so that it can be read and compared
            file.write((",\n" if number else "[\n") + json.dumps(row, ensure_ascii=False))
        file.write("\n]\n")


def _as_utf8(name: str) -> str:
    r"""A file name that is not UTF-8 as the other formats have it: `a\udcff.jpg`."""
    return name.encode("utf-8", "backslashreplace").decode()


def _of_class(probs: Tensor, classes: Tensor) -> Tensor:
    """The probability of class c_i for image i, n."""
    return probs.cpu().gather(1, classes[:, None]).squeeze(1)


def _in_words(row: Mapping[str, Any]) -> str:
    """`photos/1.jpg: cat (0.98), zero-shot dog (0.51)`; without the second half if they are the same class."""
    zero_shot = f", zero-shot {row['zero_shot_label']} ({row['zero_shot_probability']:.2f})"
    return f"{row['image']}: {row['label']} ({row['probability']:.2f}){zero_shot if row['changed'] else ''}"


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
