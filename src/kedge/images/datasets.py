"""The eleven datasets of the StatA paper: names, sizes and prompts (`data/datasets.csv`)."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..errors import SettingError, did_you_mean

_ALSO = {  # further spellings, beside the two names in the table
    "imagenet": ("imagenet1k", "ilsvrc2012", "ilsvrc"),
    "sun397": ("sun",),
    "fgvc_aircraft": ("aircraft", "fgvc"),
    "stanford_cars": ("cars", "cars196"),
    "food101": ("food",),
    "oxford_pets": ("pets", "oxfordiiitpet", "oxfordiiitpets"),
    "oxford_flowers": ("flowers", "flowers102", "oxfordflowers102"),
    "caltech101": ("caltech",),
    "dtd": ("textures", "describabletexturesdataset"),
    "ucf101": ("ucf",),
}


@dataclass(frozen=True)
class Known:
    """What is known about a dataset without its files."""

    name: str
    other_name: str
    classes: int
    test_images: int
    task: str
    prompt: str


@cache
def _known() -> dict[str, Known]:
    with (files("kedge") / "data" / "datasets.csv").open(encoding="utf-8") as table:
        rows: list[dict[str, Any]] = list(csv.DictReader(table))
    return {
        row["name"]: Known(**{**row, "classes": int(row["classes"]), "test_images": int(row["test_images"])})
        for row in rows
    }


def dataset_names() -> tuple[str, ...]:
    """Names of the datasets of the StatA paper."""
    return tuple(_known())


def find_dataset(name: str) -> Known:
    """Find a dataset by any usual spelling of its name: dtd, DTD, DescribableTextures, describable-textures."""
    known = _known()
    spellings = {_key(other): entry for entry in known.values() for other in (entry.name, entry.other_name)}
    spellings |= {other: known[entry] for entry, others in _ALSO.items() for other in others}
    if _key(name) not in spellings:
        near = did_you_mean(name.replace("-", "_"), known)
        raise SettingError(
            f"unknown dataset {name!r}{near} Other datasets: hf:NAME from Hugging Face, or a folder of images."
            if near.endswith("?")
            else f"unknown dataset {name!r}{near}, hf:NAME from Hugging Face, or a folder of images."
        )
    return spellings[_key(name)]


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
