"""The little of torchvision that open_clip needs to be imported and to prepare an image, from its documentation.

For machines on which torchvision can not be installed. `put_in_place()` does nothing where the real one is there, so
that the tests then compare with the real one. Documented and done here, on PIL images:

    Resize(s)          the shorter edge becomes s, the longer ⌊s · long / short⌋; a pair is the exact size
    CenterCrop(h, w)   from row round((H − h) / 2) and column round((W − w) / 2), Python's rounding
    to_tensor          values / 255, channels first
    Normalize(m, s)    (x − m) / s
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image


class InterpolationMode(enum.Enum):
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    def __init__(self, size: int | Sequence[int], interpolation: InterpolationMode) -> None:
        self.size, self.filter = size, Image.Resampling[interpolation.name]

    def __call__(self, image: Image.Image) -> Image.Image:
        if not isinstance(self.size, int):
            return image.resize((self.size[1], self.size[0]), self.filter)
        short, long = sorted(image.size)
        long = int(self.size * long / short)
        return image.resize((self.size, long) if image.width <= image.height else (long, self.size), self.filter)


class CenterCrop:
    def __init__(self, size: Sequence[int]) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        (height, width), top = self.size, round((image.height - self.size[0]) / 2)
        left = round((image.width - width) / 2)
        return image.crop((left, top, left + width, top + height))


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)


class ToTensor:  # open_clip derives from it, and calls the function
    pass


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


def put_in_place() -> bool:
    """Make this module `torchvision` if there is none; says whether it did."""
    if importlib.util.find_spec("torchvision") is not None:
        return False
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.ops"]
    modules = {name: ModuleType(name) for name in [*names, "torchvision.ops.misc"]}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    for part in (InterpolationMode, Compose, Resize, CenterCrop, ToTensor, Normalize):
        setattr(modules["torchvision.transforms"], part.__name__, part)
    modules["torchvision.transforms.functional"].to_tensor = to_tensor  # type: ignore[attr-defined]
    for name in ("RandomResizedCrop", "ColorJitter", "Grayscale"):  # for training: imported, never used here
        setattr(modules["torchvision.transforms"], name, None)
    modules["torchvision.ops.misc"].FrozenBatchNorm2d = torch.nn.Identity  # type: ignore[attr-defined]
    sys.modules.update(modules)
    return True
