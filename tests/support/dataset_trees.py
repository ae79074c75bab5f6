"""Small data sets on disk, laid out as the paper's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

import kedge


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


def drawn_tree(root: Path, name: str, classes: int, each: int, seed: int = 6) -> None:
    """The dataset with bundled (simulated) pictures: so many classes that the tiny model knows, and images of each."""
    pictures = kedge.pictures(root / "pictures", classes, seed)
    found = [(folder.name, file) for folder in sorted(pictures.iterdir()) for file in sorted(folder.iterdir())[:each]]
    names = sorted({label for label, _ in found})
    if name == "imagenet":
        home = root / "imagenet"
        places = [home / "images" / "val" / f"n{names.index(label):08d}" / file.name for label, file in found]
        write(home / "classnames.txt", "".join(f"n{j:08d} {label}\n" for j, label in enumerate(names)))
    elif name == "fgvc_aircraft":
        home = root / "fgvc_aircraft"
        places = [home / "images" / f"{i:07d}.jpg" for i in range(len(found))]
        write(home / "variants.txt", "\n".join(names))
        lines = (f"{place.stem} {label}\n" for place, (label, _) in zip(places, found, strict=True))
        write(home / "images_variant_test.txt", "".join(lines))
    else:
        folder, images, split = SPLIT_FILES[name]
        paths = [f"{label}/{file.name}" for label, file in found]
        places = [root / folder / images / path for path in paths]
        test = [[path, names.index(label), label] for path, (label, _) in zip(paths, found, strict=True)]
        write(root / folder / split, json.dumps({"train": [], "val": [], "test": test}))
    for place, (_, file) in zip(places, found, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    shutil.rmtree(pictures)
