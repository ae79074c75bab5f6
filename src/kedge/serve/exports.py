"""The labels of a set of images, to take away.

| kind          | what                                                                                               |
|---------------|----------------------------------------------------------------------------------------------------|
| labels.csv    | all columns of `Predictions`                                                                       |
| labels.json   | the same as an array of objects                                                                    |
| metadata.csv  | file_name,label,probability: put it beside the images, and `datasets` loads them as an             |
|               | `imagefolder`. Images of no class are left out                                                     |
| known.csv     | image,label: what the person said, "none" for images of no class; for `kedge adapt --known`        |

`above` leaves out images whose label is neither known nor at least so probable. Text in CSV files that a spreadsheet
could take for a formula gets a ' in front; kedge takes it off again. In metadata.csv it stays as it is.
"""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import FileError, InputError, SettingError, did_you_mean
from ..labelling.exports.asked import Asked
from ..labelling.exports.kinds import kind_of
from ..labelling.predictions import Predictions
from ..labelling.result import NO_CLASS, NO_CLASS_NAME, NONE_WORDS, none_word
from ..labelling.sorting import sort_into
from ..methods.given import NONE
from ..ranges import checked_number
from ..words import percent, write_csv

KINDS = ("labels.csv", "labels.json", "metadata.csv", "known.csv")


def accepted(predictions: Predictions, above: float | None) -> list[int]:
    """The numbers of the images whose label is known, or that have a class at least so probable; None: of all."""
    if above is None:
        return list(range(len(predictions.features)))
    checked_number("above", above, low=0, high=1)
    probable = predictions.result.probs.amax(dim=1).cpu() >= above
    known = ~predictions.result.answer.unknown.cpu()
    chosen: list[int] = (known | (probable & (predictions.labels != NO_CLASS))).nonzero().flatten().tolist()
    return chosen


def content(kind: str, predictions: Predictions, above: float | None = None) -> tuple[bytes, int]:
    """A file of one of KINDS, and the number of images in it. File names that are not UTF-8 are escaped."""
    if kind not in KINDS:
        raise SettingError(f"unknown export {kind!r}{did_you_mean(kind, KINDS)}")
    to = io.StringIO()
    if kind == "known.csv":
        rows = _known_rows(predictions)
        write_csv(to, ("image", "label"), rows)
        written = len(rows)
    else:
        written = kind_of(kind).write(predictions, to, Asked(only=set(accepted(predictions, above))))
    return to.getvalue().encode(errors="backslashreplace"), written


def _known_rows(predictions: Predictions) -> list[dict[str, Any]]:
    names = predictions.features.head.class_names
    none = none_word(names, NONE_WORDS[::-1]) or NO_CLASS_NAME
    given = zip(predictions.image_names, predictions.result.answer.given.tolist(), strict=True)
    return [
        {"image": image, "label": none if label == NONE else names[label]}
        for image, label in given
        if label >= 0 or label == NONE
    ]


def into_folders(predictions: Predictions, exports: Path, root: Path, above: float | None = None) -> Path:
    """Copy the images below `root` into a new folder of `exports`, by label: sorted-20260131-142500/cat/photo.jpg.

    Images that were deleted are left out.
    """
    chosen = accepted(predictions, above)
    if not chosen:
        raise InputError(f"no image has a label with at least {percent(above or 0)}. Accept less probable ones too.")
    paths = predictions.features.paths or ()
    chosen = [number for number in chosen if (root / paths[number]).exists()]
    if not chosen:
        raise FileError(f"none of these images is in {root} any more. Put them back.")
    name = f"sorted-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = exports / name, 1
    while folder.exists():
        number += 1
        folder = exports / f"{name}-{number}"
    return sort_into(predictions, folder, root, chosen)
