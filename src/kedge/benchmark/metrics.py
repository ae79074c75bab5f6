"""Scores: macro accuracy, calibration error, and confidence intervals. All are fractions between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 15  # confidence bins of the calibration error
RESAMPLES = 2000  # bootstrap samples


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


@dataclass
class PerClass:
    """Correct images and all images per class, for macro accuracy: the mean over the classes that occur."""

    right: Floats
    total: Floats

    @classmethod
    def empty(cls, k: int) -> PerClass:
        """No images of k classes yet."""
        return cls(np.zeros(k), np.zeros(k))

    def add(self, labels: NDArray[Any], correct: NDArray[Any]) -> None:
        """Add n images: their true labels (n), and whether the prediction is correct (n)."""
        self.right += np.bincount(labels, weights=correct, minlength=len(self.right))
        self.total += np.bincount(labels, minlength=len(self.total))

    def macro(self) -> float:
        """Mean accuracy over the classes that occur."""
        present = self.total > 0
        return float((self.right[present] / self.total[present]).mean())


def paired_bootstrap(difference: Floats, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of paired differences (one per task), with a generator of this seed.

    With one task, both ends are that difference.
    """
    if len(difference) < 2:
        return float(difference[0]), float(difference[0])
    random = np.random.default_rng([seed, len(difference)])
    means = np.empty(resamples)
    for row in range(resamples):  # in a loop: tasks × resamples may not fit in memory
        means[row] = difference[random.integers(len(difference), size=len(difference))].mean()
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
