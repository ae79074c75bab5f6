"""A small encoder in a few lines, and images it can tell apart: what the tests from images to labels share."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from kedge.encoders.encoder import Encoder
from kedge.images.pixels import Preprocessing

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
PIXELS = Preprocessing(resize=8, crop=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


class Tower(nn.Module):
    """The mean colour of an image, made a unit row; its LayerNorm can be adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = nn.functional.normalize(self.norm(pixels.mean(dim=(2, 3))), dim=1)
        return found


def encoder(name: str = "colours", weights: int = 0) -> Encoder:
    """Labels an image by its main colour; `weights` is what its provenance says, and nothing else."""

    def text(prompts: Any) -> Tensor:
        names = [next((c for c in COLOURS if c in prompt), prompt) for prompt in prompts]
        return torch.tensor(
            [[float(c == name) - 1 / 3 for c in COLOURS] if name in COLOURS else [1, 1, 1.5] for name in names]
        )

    return Encoder(
        name=name,
        logit_scale=10.0,
        logit_bias=0.0,
        dimension=3,
        preprocessing=PIXELS,
        visual=Tower().eval().requires_grad_(False),
        text=text,
        device=torch.device("cpu"),
        provenance={
            "encoder": name,
            "weights_sha256": hashlib.sha256(str(weights).encode()).hexdigest(),
            "precision": "float32",
            "preprocessing": PIXELS.describe(),
        },
    )


def picture(colour: str, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-40, 40, (9, 11, 3))
    return Image.fromarray((np.array(COLOURS[colour]) + noise).astype(np.uint8))


def save_pictures(root: Path, each: int = 4) -> Path:
    """Folders red, green and blue with as many pictures each, called 0.png, 1.png, …"""
    for colour in COLOURS:
        (root / colour).mkdir(parents=True)
        for i in range(each):
            picture(colour, i).save(root / colour / f"{i}.png")
    return root


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every encoder that is loaded by name is the small one."""

    def load(name: str | Encoder, *, device: str = "auto") -> Encoder:
        return encoder(name) if isinstance(name, str) else name

    for place in ("kedge.encoders.names", "kedge.features.extract", "kedge.labelling.classify"):
        monkeypatch.setattr(f"{place}.load_encoder", load)
