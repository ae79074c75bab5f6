"""Hugging Face's image folders: metadata.csv or metadata.jsonl, beside the images.

    kedge adapt photos --classes "cat, dog" --out photos/metadata.csv
    datasets.load_dataset("imagefolder", data_dir="photos", data_files="**")     # columns image, label, probability

Without `data_files`, `datasets` would take a folder that is called train or test for a split, and lose the others.
The columns are file_name, label and probability. Images of no class are left out, and `datasets` then leaves them out
too. A program reads the file, so text stays as it is: there is no ' before what looks like a formula.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

from ...words import write_csv
from ..result import NO_CLASS
from .asked import Asked

if TYPE_CHECKING:
    from ..predictions import Predictions


def csv_metadata(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """metadata.csv."""
    rows = _rows(predictions, asked)
    write_csv(file, ("file_name", "label", "probability"), rows, raw=True)
    return len(rows)


def jsonl_metadata(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """metadata.jsonl: in it, a label that looks like a number, or is called NA, stays text."""
    rows = _rows(predictions, asked)
    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return len(rows)


def _rows(predictions: Predictions, asked: Asked) -> list[dict[str, Any]]:
    labels = predictions.labels.tolist()
    return [
        {"file_name": row["image"], "label": row["label"], "probability": row["probability"]}
        for number, row in asked.rows(predictions)
        if labels[number] != NO_CLASS
    ]
