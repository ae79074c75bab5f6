"""Random pictures of drawings for training: moved, turned, recoloured, on a plain or blotchy background.

`hardness` goes from 0 (nearly the drawing itself) to 1. Nothing here imitates the camera's surfaces, perspective,
shadow or light.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def augment(drawings: Tensor, side: int, hardness: float) -> Tensor:
    """Drawings (b×4×h×h bytes, see render.py) → pictures (b×3×side×side, 0 to 1)."""
    b, q = len(drawings), hardness
    moved = functional.grid_sample(
        drawings.float() / 255,
        functional.affine_grid(_placements(b, q), [b, 4, side, side], align_corners=False),
        align_corners=False,
    )
    opacity = moved[:, 3:]
    colours = torch.einsum("bij,bjhw->bihw", _colour_mixes(b, q), moved[:, :3])
    pictures = colours.clamp(0, 1).minimum(opacity) + (1 - opacity) * _backgrounds(b, side)
    mean = pictures.mean((1, 2, 3), keepdim=True)
    pictures = (pictures - mean) * _uniform(b, 1 - 0.35 * q, 1 + 0.25 * q) + mean
    pictures = pictures * _uniform(b, 1 - 0.4 * q, 1 + 0.25 * q) + _uniform(b, -0.05, 0.08)
    blurred = functional.avg_pool2d(functional.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, 1)
    pictures = torch.where(_chance(b, 0.3 * q), blurred, pictures)
    return (pictures + torch.randn_like(pictures) * _uniform(b, 0, 0.04 * q)).clamp(0, 1)


def _uniform(b: int, low: float, high: float) -> Tensor:
    return torch.empty(b, 1, 1, 1).uniform_(low, high)


def _chance(b: int, p: float) -> Tensor:
    return torch.rand(b, 1, 1, 1) < p


def _placements(b: int, q: float) -> Tensor:
    """Affine maps (b×2×3): flip, size, turn, width to height, place."""
    size, stretch = (
        torch.empty(b).uniform_(1.12 - 0.12 * q, 1.25 + 0.35 * q),
        torch.empty(b).uniform_(1 - 0.12 * q, 1 + 0.13 * q),
    )
    turn, flip = torch.empty(b).uniform_(-18 * q, 18 * q).deg2rad(), torch.randint(0, 2, (b,)) * 2.0 - 1
    rows = torch.stack(
        (turn.cos() * flip * stretch, -turn.sin() / stretch, turn.sin() * flip * stretch, turn.cos() / stretch), 1
    )
    place = torch.empty(b, 2, 1).uniform_(-0.05 - 0.17 * q, 0.05 + 0.17 * q)
    return torch.cat((rows.view(b, 2, 2) * size.view(b, 1, 1), place), 2)


def _colour_mixes(b: int, q: float) -> Tensor:
    """Matrices (b×3×3) that shift the colours; some exchange them, some leave only grey."""
    mix = torch.eye(3) + 0.09 * q * torch.randn(b, 3, 3)
    exchange = torch.eye(3)[torch.rand(b, 3).argsort(1)]
    mix = torch.where(torch.rand(b, 1, 1) < 0.15 * q, exchange, mix)
    return torch.where(torch.rand(b, 1, 1) < 0.1 * q, torch.full((3, 3), 1 / 3), mix)


def _backgrounds(b: int, side: int) -> Tensor:
    """Two colours (b×3×side×side): the first alone, in large blotches of the second, or in small ones too."""
    first = torch.rand(b, 3, 1, 1)
    first = torch.where(_chance(b, 0.4), 0.75 + 0.25 * first, first)
    second = (first + _uniform(b, -0.4, 0.4) * torch.rand(b, 3, 1, 1)).clamp(0, 1)
    large = functional.interpolate(torch.rand(b, 1, 4, 4), size=(side, side), mode="bilinear")
    small = functional.interpolate(torch.rand(b, 1, side // 2, side // 2), size=(side, side))
    kind = torch.rand(b, 1, 1, 1)
    share = torch.where(kind < 0.35, 0.0, torch.where(kind < 0.75, large, 0.5 * large + 0.5 * small))
    return first * (1 - share) + second * share
