"""Predictions: the labels of a set of images, as rows and as a summary.

| column                | what                                                                        |
|-----------------------|-----------------------------------------------------------------------------|
| image                 | path of the image if the features have paths, else its index, from 0        |
| label                 | name of the class after adaptation, or "none of these" ("none" if that is   |
|                       | the name of a class)                                                        |
| probability           | of the most probable class, with enough digits to read the same number back |
| runner_up             | name of the second most probable class; empty if no other has probability   |
| margin                | probability minus that of the runner-up                                     |
| none                  | score from 0 to 1: does the image show none of the classes?                 |
| review_rank           | 1 for the image most worth a look; empty if its label is known              |
| zero_shot_label       | name of the most probable class of the encoder alone                        |
| zero_shot_probability | its probability                                                             |
| changed               | do the two class numbers differ? Names may not: two classes may share one   |
| true_label            | the label that a person gave; empty elsewhere, to be filled in              |

    features = kedge.FeatureSet.load("birds.safetensors")
    kedge.Predictions(features, kedge.adapt(features)).write("labels.csv")
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from numpy.typing import NDArray
from torch import Tensor

from ..answers.calibration import Reliability
from ..errors import InputError
from ..features.feature_set import FeatureSet
from ..words import count, percent
from .exports import kinds, tables
from .exports.asked import Asked
from .result import NO_CLASS, Result, none_name

SHOWN = 5  # images that `print(predictions)` lists


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
        summary, shown = self.summary(), [f"  {self._in_words(i)}" for i in range(min(SHOWN, len(self.features)))]
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
        """Class names after adaptation, n; "none of these" for −1, or "none" if a class is called so."""
        return self._named(self.labels)

    def _named(self, classes: Tensor) -> list[str]:
        names = self.features.head.class_names
        names = (*names, none_name(names))
        return [names[j] for j in classes.tolist()]  # the last one for −1

    @property
    def skipped(self) -> Mapping[str, str]:
        """Images that could not be read, and so have no label: path → reason."""
        return self.features.skipped

    @cached_property
    def image_names(self) -> tuple[str, ...] | range:
        """What the column `image` says: paths, or numbers."""
        return self.features.paths or range(len(self.features))

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The columns of a table of labels by name, each a list or numpy array with n entries."""
        result = self.result
        runner_up = result.runner_up.cpu()
        return {
            "image": list(self.image_names),
            "label": self.names,
            "probability": _highest(result.probs),
            "runner_up": _where(runner_up != NO_CLASS, self._named(runner_up)),
            "margin": result.margin.cpu().numpy(),
            "none": result.none.cpu().numpy(),
            "review_rank": self._review_ranks(),
            "zero_shot_label": self._named(self.zero_shot_labels),
            "zero_shot_probability": _highest(result.zero_shot),
            "changed": (self.labels != self.zero_shot_labels).numpy(),
            "true_label": self._true_labels(),
        }

    def _review_ranks(self) -> list[int | None]:
        ranks: list[int | None] = [None] * len(self.features)
        for rank, image in enumerate(self.result.review.tolist(), start=1):
            ranks[image] = rank
        return ranks

    def _true_labels(self) -> list[str | None]:
        answer = self.result.answer
        return _where(~answer.unknown, self._named(answer.given.clamp_min(NO_CLASS)))

    def rows(self, all_rows: bool = False) -> Iterator[dict[str, Any]]:
        """One row per image, with plain Python values; `all_rows`: then those of images that could not be read."""
        plain = dict(self.columns)
        for name, column in plain.items():
            if not isinstance(column, list):  # the shortest decimals: float32 0.9 is 0.9, not 0.8999999761581421
                plain[name] = map(float, map(str, column)) if column.dtype.kind == "f" else column.tolist()
        for entries in zip(*plain.values(), strict=True):
            yield dict(zip(plain, entries, strict=True))
        for image in self.skipped if all_rows else ():
            yield {**dict.fromkeys(plain), "image": image}

    def summary(self) -> dict[str, Any]:
        """What the method reports, and counts. Accuracies and calibration errors are from 0 to 1, of the images whose
        label no person gave; None without true labels. A calibration error is of the most probable class.
        """
        asked = self.result.answer.unknown.cpu()
        truth = self.features.labels if bool(asked.any()) else None

        def accuracy(labels: Tensor) -> float | None:
            return None if truth is None else float((labels == truth)[asked].double().mean())

        def calibration(probs: Tensor) -> float | None:
            if truth is None:
                return None
            confidence, classes = (found.cpu() for found in probs.max(dim=1))
            reliability = Reliability.empty()
            reliability.add(confidence[asked].double().numpy(), (classes == truth)[asked].numpy())
            return reliability.error()

        return {
            **self.result.info,
            "images": len(self.features),
            "classes": self.features.head.k,
            "present": self.result.answer.classes,
            "changed": self.result.changed,
            "known": int((~asked).sum()),
            "none_of_these": int((self.labels == NO_CLASS).sum()),
            "label_counts": dict(Counter(self.names).most_common()),
            "zero_shot_accuracy": accuracy(self.zero_shot_labels),
            "accuracy": accuracy(self.labels),
            "zero_shot_calibration_error": calibration(self.result.zero_shot),
            "calibration_error": calibration(self.result.probs),
        }

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame; needs the extra `pandas`."""
        return tables.data_frame(self)

    def write(
        self, path: str | Path, raw_csv: bool = False, all_rows: bool = False, image_url: str | None = None
    ) -> None:
        """Write the labels to a file. Its name says how: .csv, .json, .parquet, .labelstudio.json, .fiftyone.json,
        metadata.csv or metadata.jsonl.

        raw_csv: in .csv, text stays as it is (see `write_csv`).
        all_rows: in tables, also a row for each image that could not be read; its label is empty.
        image_url: for Label Studio, what comes before the path of an image; by default its local files.
        """
        kinds.write(self, path, Asked(raw_csv, all_rows, image_url))

    def write_csv(self, file: TextIO, raw: bool = False, all_rows: bool = False) -> None:
        """Write the rows as CSV to an open text file.

        Text that begins with = + - @, a tab or a return gets a ' in front, so that no spreadsheet takes it for a
        formula; `raw` leaves it as it is.
        """
        tables.csv_rows(self, file, Asked(raw, all_rows))

    def _in_words(self, i: int) -> str:
        """`photos/1.jpg: cat (0.98), zero-shot dog (0.51)`; without the second half if they are the same class."""
        label, before = int(self.labels[i]), int(self.zero_shot_labels[i])
        text = f"{self.image_names[i]}: {self.names[i]}"
        if label != NO_CLASS:
            text += f" ({float(self.result.probs[i, label]):.2f})"
        name = self.features.head.class_names[before]
        return text if label == before else f"{text}, zero-shot {name} ({float(self.result.zero_shot[i, before]):.2f})"


def _highest(probs: Tensor) -> NDArray[Any]:
    """The probability of each image's most probable class, n."""
    return probs.amax(dim=1).cpu().numpy()


def _where(there: Tensor, names: Iterable[str]) -> list[str | None]:
    """The names; None where there is none."""
    return [name if is_there else None for is_there, name in zip(there.tolist(), names, strict=True)]
