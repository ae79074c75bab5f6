"""FiftyOne: the labels.json of its type `FiftyOneImageClassificationDataset`.

    kedge adapt photos --classes "cat, dog" --out photos.fiftyone.json
    fiftyone.Dataset.from_dir(
        dataset_type=fiftyone.types.FiftyOneImageClassificationDataset,
        data_path="photos", labels_path="photos.fiftyone.json", label_field="kedge",
    )

    {"classes": ["cat", "dog"],
     "labels": {"red/17": {"label": 1, "confidence": 0.93, "attributes": {"margin": 0.88, …}}}}

FiftyOne names an image by its path below `data_path`, without the ending; a label is its place in `classes`. If an
image shows none of them, "none of these" is the last class.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from ...errors import InputError
from ..result import NO_CLASS, none_name
from .asked import Asked, check_named

if TYPE_CHECKING:
    from ..predictions import Predictions

ATTRIBUTES = ("runner_up", "margin", "none", "review_rank", "zero_shot_label", "true_label")  # those with a value


def check_labels(images: Sequence[str | int], class_names: Sequence[str]) -> None:
    """Raise InputError if two images would have one name."""
    check_named(images)
    seen: dict[str, str] = {}
    for image in map(str, images):
        other = seen.setdefault(_name(image), image)
        if other != image:
            raise InputError(
                f"FiftyOne names images without their ending, and {other!r} and {image!r} would be the same. "
                "Rename one of them, or write another kind of file."
            )


def labels_json(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """The file that the module shows."""
    labels, classes = predictions.labels.tolist(), list(predictions.features.head.class_names)
    if NO_CLASS in labels:
        classes.append(none_name(classes))
    found = {
        _name(row["image"]): {
            "label": labels[number] % len(classes),  # −1 is the last one
            "confidence": row["none"] if labels[number] == NO_CLASS else row["probability"],
            "attributes": {name: row[name] for name in ATTRIBUTES if row[name] is not None},
        }
        for number, row in asked.rows(predictions)
    }
    json.dump({"classes": classes, "labels": found}, file, ensure_ascii=False)
    return len(found)


def _name(image: str) -> str:
    return os.path.splitext(image)[0]
