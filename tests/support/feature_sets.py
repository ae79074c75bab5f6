"""A small feature set with everything in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cases import simulated
from kedge import FeatureSet

N, K, D, V = 9, 4, 16, 3


def arrays(**changes: Any) -> dict[str, Any]:
    """Everything a FeatureSet can hold, as numpy, in half precision."""
    x, t = (a.numpy() for a in simulated(N, K, D))
    views, _ = (a.numpy() for a in simulated(N * V, K, D, seed=1))
    full = {
        "image_features": x.astype(np.float16),
        "text_features": t.astype(np.float32),
        "class_names": ["grass", "brick", "käse", "a b"],
        "labels": np.arange(N) % K,
        "views": views.reshape(N, V, D).astype(np.float16),
        "paths": [f"folder/{i} ä.jpg" for i in range(N)],
        "logit_scale": 50.0,
        "provenance": {"encoder": "simulated", "crop": [224, 224], "half": True},
    }
    return {**full, **changes}


def made(**changes: Any) -> FeatureSet:
    return FeatureSet.from_arrays(**arrays(**changes))


def same(a: FeatureSet, b: FeatureSet) -> bool:
    tensors = [(s.image_features, s.head.features, s.labels, s.views) for s in (a, b)]
    rest = [(s.head.class_names, s.head.logit_scale, s.paths, dict(s.provenance)) for s in (a, b)]
    return rest[0] == rest[1] and all(
        (p is None and q is None) or (p is not None and q is not None and p.dtype == q.dtype and torch.equal(p, q))
        for p, q in zip(*tensors, strict=True)
    )
