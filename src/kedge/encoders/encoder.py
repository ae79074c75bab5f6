"""Encoder: from images and prompts to unit features in one space.

encoder = load_encoder("hf:openai/clip-vit-base-patch16")
encoder.encode_images(torch.stack([encoder.preprocessing(open_image(path)) for path in paths]))
encoder.encode_texts(["a photo of a cat.", "a photo of a dog."])
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..arrays import unit
from ..errors import FileError, MissingExtra
from ..images.pixels import Preprocessing

DEFAULT = "hf:openai/clip-vit-base-patch16"
TINY = Path(__file__).parents[1] / "data" / "tiny" / "model"
PROMPTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Encoder:
    """A vision-language model: an image tower and a text tower with a common feature space."""

    name: str
    logit_scale: float  # τ, as trained: logits are τ x·t (+ logit_bias in SigLIP)
    logit_bias: float
    dimension: int  # d
    preprocessing: Preprocessing
    visual: nn.Module  # pixels b×3×h×w → b×d unit rows, differentiable; on `device`, in evaluation mode
    text: Callable[[Sequence[str]], Tensor]  # prompts → m×d features, not normalised; on `device`
    device: torch.device
    provenance: dict[str, Any]  # what the features depend on, as JSON
    fast: Callable[[Tensor], Tensor] | None = None  # a faster form of `visual` (see precision.py); None: itself

    @torch.no_grad()
    def encode_images(self, pixels: Tensor) -> Tensor:
        """b×3×h×w pixels → b×d unit rows, float32, on the CPU."""
        return (self.fast or self.visual)(pixels.to(self.device, non_blocking=True)).cpu()

    @torch.no_grad()
    def encode_texts(self, prompts: Sequence[str]) -> Tensor:
        """m prompts → m×d unit rows, float32, on the CPU."""
        encoded = [torch.empty(0, self.dimension)]
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            encoded.append(unit(self.text(prompts[start : start + PROMPTS_AT_ONCE]).float()).cpu())
        return torch.cat(encoded)


# Used by the loaders, hf.py and openclip.py.


class Visual(nn.Module):
    """The image tower of a model, with unit features as output."""

    def __init__(self, tower: nn.Module, features: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.tower = tower
        self._features = features

    def forward(self, pixels: Tensor) -> Tensor:
        """b×3×h×w → b×d float32 unit rows."""
        return nn.functional.normalize(self.features(pixels), dim=-1)

    def features(self, pixels: Tensor) -> Tensor:
        """b×3×h×w → b×d float32, not normalised."""
        return self._features(self.tower, pixels).float()


def made(
    name: str,
    model: nn.Module,
    visual: nn.Module,
    text: Callable[[Sequence[str]], Tensor],
    preprocessing: Preprocessing,
    device: torch.device,
    about: dict[str, Any],
) -> Encoder:
    """Make an encoder of a loaded model, with the model's logit scale (exp of its parameter) and bias."""
    for part in (model, visual):
        part.to(device).eval().requires_grad_(False)
    scale = math.exp(float(model.logit_scale))  # type: ignore[arg-type]
    bias = getattr(model, "logit_bias", None)
    bias = 0.0 if bias is None else float(bias)
    with torch.no_grad():  # a blank image shows the dimension, and that the model accepts this image size
        dimension = visual(torch.zeros(1, 3, *preprocessing.size, device=device)).shape[1]
    return Encoder(
        name=name,
        logit_scale=scale,
        logit_bias=bias,
        dimension=dimension,
        preprocessing=preprocessing,
        visual=visual,
        text=text,
        device=device,
        provenance={
            "encoder": name,
            **about,
            "precision": "float32",  # unless in_precision says otherwise
            "preprocessing": preprocessing.describe(),
            "logit_scale": scale,
            "logit_bias": bias,
        },
    )


def imported(module: str, extra: str) -> ModuleType:
    """Import an optional library; raises MissingExtra with the pip command if it is missing."""
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        if error.name == module:
            reason = f"{module} is not installed"
        else:
            reason = f"{module} cannot be imported ({one_line(error)})"
        raise MissingExtra(f'{reason}. Install it with: pip install "kedge[{extra}]"') from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide log lines and warnings of other libraries."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def one_line(error: BaseException) -> str:
    """An error message in one line, at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def weights_hash(files: Sequence[Path]) -> str:
    """sha256 of the weights: of the file, or, if there are several, of the list of their names and hashes."""
    if not files:
        raise FileError("the model has no .safetensors files. Download it again.")
    hashes = [_file_hash(path, path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    if len(files) == 1:
        return hashes[0]
    lines = (f"{path.name} {sha256}\n" for path, sha256 in sorted(zip(files, hashes, strict=True)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@lru_cache(maxsize=64)
def _file_hash(path: Path, changed: int, size: int) -> str:
    """sha256 of a file; cached until its time or size changes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
