"""Scores: macro accuracy, tail accuracy and confidence intervals. All are fractions between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 2000  # bootstrap samples


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


def tail(per_task: Floats) -> float:
    """Mean accuracy of the worst tenth of tasks: the ⌈tasks/10⌉ with the lowest accuracy, at least one."""
    worst = -(-len(per_task) // 10)
    return float(np.sort(per_task)[:worst].mean())


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
