"""The eleven datasets of the StatA paper, in the folder layout of CoOp.

| name           | folder         | images               | lists                                     |
|----------------|----------------|----------------------|-------------------------------------------|
| imagenet       | imagenet       | images/val           | classnames.txt                            |
| sun397         | sun397         | SUN397               | split_zhou_SUN397.json                    |
| fgvc_aircraft  | fgvc_aircraft  | images               | variants.txt, images_variant_test.txt     |
| eurosat        | eurosat        | 2750                 | split_zhou_EuroSAT.json                   |
| stanford_cars  | stanford_cars  | (in the paths)       | split_zhou_StanfordCars.json              |
| food101        | food-101       | images               | split_zhou_Food101.json                   |
| oxford_pets    | oxford_pets    | images               | split_zhou_OxfordPets.json                |
| oxford_flowers | oxford_flowers | jpg                  | split_zhou_OxfordFlowers.json             |
| caltech101     | caltech-101    | 101_ObjectCategories | split_zhou_Caltech101.json                |
| dtd            | dtd            | images               | split_zhou_DescribableTextures.json       |
| ucf101         | ucf101         | UCF-101-midframes    | split_zhou_UCF101.json                    |

A split file is a JSON object with `train`, `val` and `test`, each a list of [path, class number, class name].
The test set of ImageNet is its validation folder, with one sub-folder per class, named by WordNet number.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..errors import FileError, SettingError, did_you_mean
from .datasets import find_dataset
from .folders import image_files
from .image_set import ImageSet, readable

SPLITS = ("train", "val", "test")

_LAYOUT = {  # name: folder, folder of images in it
    "imagenet": ("imagenet", "images"),
    "sun397": ("sun397", "SUN397"),
    "fgvc_aircraft": ("fgvc_aircraft", "images"),
    "eurosat": ("eurosat", "2750"),
    "stanford_cars": ("stanford_cars", ""),
    "food101": ("food-101", "images"),
    "oxford_pets": ("oxford_pets", "images"),
    "oxford_flowers": ("oxford_flowers", "jpg"),
    "caltech101": ("caltech-101", "101_ObjectCategories"),
    "dtd": ("dtd", "images"),
    "ucf101": ("ucf101", "UCF-101-midframes"),
}
_HOW = "CoOp's DATASETS.md explains the download and the folders"

Item = tuple[str, int]  # path, class number


def dataset_folder(name: str) -> str:
    """The folder of a dataset of the StatA paper, in the folder that contains the datasets."""
    return _LAYOUT[name][0]


def benchmark_images(name: str, root: str | Path, split: str = "test") -> ImageSet:
    """A dataset of the StatA paper; `root` is the folder that has a sub-folder per dataset."""
    known, root = find_dataset(name), Path(root).absolute()
    if split not in SPLITS:
        raise SettingError(f"unknown split {split!r}{did_you_mean(split, SPLITS)}")
    place, images = _LAYOUT[known.name]
    home = root / place
    if not os.path.isdir(home):
        raise FileError(f"no folder {home}. As root, name the folder that contains {place}/; {_HOW}.")
    if known.name == "imagenet":
        images += "/train" if split == "train" else "/val"
    pictures = _needed(home / images)
    if known.name == "imagenet":
        items, classes = _imagenet(pictures, home / "classnames.txt")
    elif known.name == "fgvc_aircraft":
        items, classes = _aircraft(home / f"images_variant_{split}.txt", home / "variants.txt")
    else:
        items, classes = _zhou(home / f"split_zhou_{known.other_name}.json", split)
    if not items:
        raise FileError(f"the {split} split of {known.name} in {home} has no images; {_HOW}.")
    paths, labels = zip(*items, strict=True)
    if not (pictures / paths[0]).is_file():
        raise FileError(f"no file {pictures / paths[0]}, the first image of the {split} split; {_HOW}.")
    # only the test split has the plain name, since published figures are for the test split
    title = known.name if split == "test" else f"{known.name}_{split}"
    return ImageSet(title, pictures, paths, labels, tuple(map(readable, classes)), template=known.prompt)


def _zhou(path: Path, split: str) -> tuple[list[Item], list[str]]:
    """The images of one split, and the classes of all splits."""
    try:
        found = json.loads(_text(path))
        rows = {part: [(str(image), int(label), str(name)) for image, label, name in found[part]] for part in SPLITS}
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} is not a split file: it must be a JSON object with train, val and test, each a list of "
            f"[path, class number, class name] ({type(error).__name__}: {error}). Download it again; {_HOW}."
        ) from error
    classes: dict[int, str] = {}
    for image, label, name in (row for part in rows.values() for row in part):
        if classes.setdefault(label, name) != name:
            raise FileError(
                f"{path} has two names for class {label}: {classes[label]!r} and {name!r} (at {image}). Correct it."
            )
    if sorted(classes) != list(range(len(classes))):
        gap = next(j for j in range(len(classes)) if j not in classes)
        raise FileError(f"{path} has {len(classes)} classes, but no class number {gap}. Number them from 0.")
    return [(image.lstrip("/"), label) for image, label, _ in rows[split]], [classes[j] for j in range(len(classes))]


def _aircraft(images: Path, variants: Path) -> tuple[list[Item], list[str]]:
    """Each line has an image number and its variant; classes are in the order of variants.txt."""
    classes = [line.strip() for line in _text(variants).splitlines() if line.strip()]
    number = {name: j for j, name in enumerate(classes)}
    items = []
    for count, line in enumerate(_text(images).splitlines(), start=1):
        image, _, name = line.strip().partition(" ")
        if image and name not in number:
            raise FileError(f"{images}, line {count}: the variant {name!r} is not in {variants}; {_HOW}.")
        if image:
            items.append((f"{image}.jpg", number[name]))
    return items, classes


def _imagenet(pictures: Path, names: Path) -> tuple[list[Item], list[str]]:
    """Labels by sub-folder; each line of classnames.txt has a sub-folder and a class name, in order."""
    lines = [line.strip().partition(" ") for line in _text(names).splitlines() if line.strip()]
    number = {wordnet: j for j, (wordnet, _, _) in enumerate(lines)}
    items = []
    for path in image_files(pictures):
        wordnet, inside, _ = path.partition("/")
        if not inside:
            raise FileError(
                f"{pictures / path} is not in a class folder. Sort the images into folders like n01440764; {_HOW}."
            )
        if wordnet not in number:
            raise FileError(f"the folder {pictures / wordnet} is not in {names}. Add its line, or remove the folder.")
        items.append((path, number[wordnet]))
    return items, [name for _, _, name in lines]


def _needed(path: Path) -> Path:
    if not os.path.exists(path):
        raise FileError(f"no {'file' if path.suffix else 'folder'} {path}; {_HOW}.")
    return path


def _text(path: Path) -> str:
    try:
        return _needed(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: {error}. Download it again; {_HOW}.") from error
