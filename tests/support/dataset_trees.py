"""Small data sets on disk, laid out as the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image


def picture(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path)
    return path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


SPLIT_FILES = {  # name: (folder, images, split file), as CoOp's users have them
    "sun397": ("sun397", "SUN397", "split_zhou_SUN397.json"),
    "eurosat": ("eurosat", "2750", "split_zhou_EuroSAT.json"),
    "stanford_cars": ("stanford_cars", "", "split_zhou_StanfordCars.json"),
    "food101": ("food-101", "images", "split_zhou_Food101.json"),
    "oxford_pets": ("oxford_pets", "images", "split_zhou_OxfordPets.json"),
    "oxford_flowers": ("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json"),
    "caltech101": ("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json"),
    "dtd": ("dtd", "images", "split_zhou_DescribableTextures.json"),
    "ucf101": ("ucf101", "UCF-101-midframes", "split_zhou_UCF101.json"),
}


SPLIT = {
    "train": [["a/1.jpg", 0, "air_plane"], ["c/2.jpg", 2, "car side"]],
    "val": [["b/3.jpg", 1, "barrel"]],
    "test": [["c/4.jpg", 2, "car side"], ["a/5.jpg", 0, "air_plane"]],
}


def zhou_tree(root: Path, name: str, split: Any = SPLIT) -> Path:
    """The dataset as small pictures and a split file; returns the split file."""
    folder, images, file = SPLIT_FILES[name]
    for part in SPLIT.values():
        for path, _, _ in part:
            picture(root / folder / images / str(path))
    return write(root / folder / file, split if isinstance(split, str) else json.dumps(split))
