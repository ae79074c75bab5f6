"""What many tests work on: simulated batches, and the way to the shared data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from kedge import Batch, TextHead
from kedge.arrays import unit
from kedge.methods.registry import build, list_methods

# Real features and recorded outputs: beside the project, not in it
SHARED = Path(__file__).resolve().parents[3] / "shared"
ON_FEATURES = [name for name in list_methods() if build(name).traits.needs == "features"]  # nothing else is needed
WITHOUT_SHARED = "the folder ../shared (real features, recorded outputs) is not here"


def simulated(
    n: int, k: int, d: int = 16, *, seed: int = 0, noise: float = 0.3, present: int | None = None
) -> tuple[Tensor, Tensor]:
    """Simulated unit features in float64: n images (n×d) around the first `present` of k prototypes (k×d)."""
    random = torch.Generator().manual_seed(seed)
    t = unit(torch.randn(k, d, generator=random, dtype=torch.float64))
    classes = torch.randint(present or k, (n,), generator=random)
    return unit(t[classes] + noise * torch.randn(n, d, generator=random, dtype=torch.float64)), t


def with_views(
    n: int = 20, v: int = 10, k: int = 5, d: int = 8, *, noise: float = 0.5, spread: float = 0.6
) -> tuple[Batch, Tensor]:
    """Simulated in float64: n images, each with v − 1 noisy views of itself; and the k prototypes."""
    x, t = simulated(n, k, d, noise=spread)
    random = torch.Generator().manual_seed(1)
    views = unit(x[:, None] + noise * torch.randn(n, v, d, generator=random, dtype=torch.float64))
    views[:, 0] = x
    return Batch(x, TextHead(t, 10.0), views), t
