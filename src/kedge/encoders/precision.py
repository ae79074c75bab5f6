"""How precisely images are encoded, and by what: what `precision` means on this machine.

    chosen = choose("auto", torch.device("cpu"))    # Precision("bfloat16", "OpenVINO 2026.4.1")
    encoder = in_precision(encoder, chosen)                        # its encode_images is faster, and less exact

| asked for | on a CPU                                                            | on a GPU         |
|-----------|---------------------------------------------------------------------|------------------|
| fp32      | float32 by torch: the reference, the same file everywhere           | the same         |
| bf16      | bfloat16: by OpenVINO on processors that have it, else by torch     | by torch         |
| int8      | 8-bit integers by OpenVINO, calibrated on some of the images        | refused          |
| auto      | bf16 where the processor has it, else fp32                          | float16 by torch |

The text tower is float32 in all of them, and so is the image tower that methods adapt.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import MissingExtra, SettingError, did_you_mean
from .encoder import Encoder

ASKED = ("auto", "fp32", "bf16", "int8")
TORCH = "torch"
X86_BF16 = frozenset({"avx512_bf16", "amx_bf16"})  # processor features, as Linux names them
ARM_BF16 = frozenset({"bf16"})
AUTO_FROM = 512  # images; with fewer there is little to gain, and their labels are the same on every machine


@dataclass(frozen=True)
class Machine:
    """What the choice depends on."""

    features: frozenset[str]  # of the processor, as Linux names them
    openvino: str | None  # its version, if it is installed
    nncf: bool  # is it installed? It makes int8 models


@dataclass(frozen=True)
class Precision:
    """How images are encoded: in which type of numbers, by which library."""

    dtype: str  # float32, bfloat16, float16 or int8
    engine: str = TORCH  # or "OpenVINO" with its version

    def __str__(self) -> str:
        return f"{self.dtype} by {self.engine}"

    @property
    def exact(self) -> bool:
        """Is it the reference, float32 by torch?"""
        return self == EXACT

    @property
    def calibrated(self) -> bool:
        """Does it need typical images?"""
        return self.dtype == "int8"

    @property
    def provenance(self) -> dict[str, str]:
        """What a feature file says of it."""
        return {"precision": self.dtype, **({} if self.exact else {"engine": self.engine})}


EXACT = Precision("float32")


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """What there is here. Nothing large is imported."""
    try:
        openvino: str | None = importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        openvino = None
    return Machine(_processor_features(), openvino, importlib.util.find_spec("nncf") is not None)


def _processor_features() -> frozenset[str]:
    """The flags in Linux's /proc/cpuinfo; nothing on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    return frozenset(next((flags.split() for name, _, flags in named if name.strip() in ("flags", "Features")), ()))


def choose(asked: str, device: torch.device, machine: Machine | None = None) -> Precision:
    """What `asked` means on this machine; raises SettingError or MissingExtra if it cannot be had."""
    machine = machine or this_machine()
    if asked not in ASKED:
        raise SettingError(f"unknown precision {asked!r}{did_you_mean(asked, ASKED)}")
    if asked == "int8":
        return _int8(device, machine)
    if asked == "fp32":
        return EXACT
    if device.type != "cpu":
        half = "float16" if asked == "auto" else "bfloat16"
        return Precision(half) if torch.amp.is_autocast_available(device.type) else EXACT
    if machine.openvino and machine.features & X86_BF16:
        return Precision("bfloat16", f"OpenVINO {machine.openvino}")
    if asked == "bf16" or machine.features & (X86_BF16 | ARM_BF16):
        return Precision("bfloat16")
    return EXACT


def usual(images: int) -> str:
    """What to ask for where a user who labels so many images says nothing."""
    return "auto" if images >= AUTO_FROM else "fp32"


def _int8(device: torch.device, machine: Machine) -> Precision:
    if device.type != "cpu":
        raise SettingError(f"int8 is for CPUs, and the encoder is on {device}. Choose bf16, or the device cpu.")
    if machine.openvino is None or not machine.nncf:
        missing = "openvino" if machine.openvino is None else "nncf"
        raise MissingExtra(
            f"int8 needs {missing}, which is not installed. Install it with: pip install 'kedge[openvino]'"
        )
    return Precision("int8", f"OpenVINO {machine.openvino}")


def in_precision(encoder: Encoder, precision: Precision, calibration: Tensor | None = None) -> Encoder:
    """The same encoder, which encodes images in this precision.

    calibration: m×3×h×w pixels of typical images, for int8.
    """
    if precision.exact:
        return encoder
    if precision.engine == TORCH:
        fast = _autocast(encoder.visual, encoder.device, getattr(torch, precision.dtype))
    else:
        from . import openvino

        fast = openvino.image_tower(encoder, precision.dtype, calibration)
    return replace(encoder, fast=fast, provenance={**encoder.provenance, **precision.provenance})


def _autocast(visual: nn.Module, device: torch.device, half: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The image tower with matrix products in half precision. Its weights and its output stay float32."""

    def images(pixels: Tensor) -> Tensor:
        with torch.autocast(device.type, half):
            features: Tensor = visual(pixels)
        return features

    return images
