"""Calibration: of the labels with probability 0.9, are nine in ten right? Measured where true labels are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 15  # of confidence


@dataclass
class Reliability:
    """Sums per confidence bin, added over batches, for the calibration error and the reliability diagram."""

    count: Floats
    confidence: Floats  # summed
    correct: Floats  # summed

    @classmethod
    def empty(cls) -> Reliability:
        """No images yet."""
        return cls(np.zeros(BINS), np.zeros(BINS), np.zeros(BINS))

    def add(self, confidence: NDArray[Any], correct: NDArray[Any]) -> None:
        """Add n images: the probabilities of their labels (n), and whether the labels are correct (n)."""
        which = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
        self.count += np.bincount(which, minlength=BINS)
        self.confidence += np.bincount(which, weights=confidence, minlength=BINS)
        self.correct += np.bincount(which, weights=correct, minlength=BINS)

    def error(self) -> float:
        """Expected calibration error: Σ_bins (fraction of images) · |accuracy − confidence|."""
        return float(np.abs(self.correct - self.confidence).sum() / max(self.count.sum(), 1))
