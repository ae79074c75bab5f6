"""The rendered drawings as tensors, for training and for the held-out pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from augment import augment
from concepts import read_concepts, read_drawings
from torch import Tensor
from torch.nn import functional

MARGIN = 8  # pixels that a drawing is larger than the pictures made of it


@dataclass(frozen=True)
class Art:
    """Some drawings (n×4×h×h bytes, see render.py), and the number of each one's concept in concepts.csv (n)."""

    drawings: Tensor
    concepts: Tensor


def load_art(work: Path, part: str, side: int) -> Art:
    """The drawings of a part (train or held-out), for pictures of `side` pixels."""
    number = {concept.name: i for i, concept in enumerate(read_concepts())}
    rows = [(i, number[drawing.concept]) for i, drawing in enumerate(read_drawings(work)) if drawing.part == part]
    pixels = np.load(work / "drawings.npy", mmap_mode="r")
    size = (side + MARGIN, side + MARGIN)
    small = [
        functional.interpolate(torch.tensor(pixels[i : i + 1]).float(), size=size, mode="bilinear", antialias=True)
        for i, _ in rows
    ]
    return Art(torch.cat(small).clamp(0, 255).round().byte(), torch.tensor([concept for _, concept in rows]))


def held_out_pictures(art: Art, side: int, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random pictures of the hardest augmentation (n×3×side×side), `copies` of each drawing, and their concepts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pictures = [augment(art.drawings, side, 1.0) for _ in range(copies)]
    return torch.cat(pictures), art.concepts.repeat(copies)
