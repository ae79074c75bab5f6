"""A score with its confidence interval, and the mean of several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..benchmark.record import Record


@dataclass(frozen=True)
class Score:
    """Shares between 0 and 1. low, high: the 95 % interval of the gain; both equal the gain if there is no interval.

    The tails are mean accuracies of the worst tenth of tasks, each by its own worst tasks. A single task has none.
    """

    accuracy: float
    zero_shot: float
    gain: float
    low: float
    high: float
    tail: float | None = None
    zero_shot_tail: float | None = None

    @classmethod
    def of(cls, record: Record) -> Score:
        """The score of one record."""
        assert record.accuracy is not None
        assert record.zero_shot is not None
        assert record.gain is not None
        low = record.gain if record.gain_low is None else record.gain_low
        high = record.gain if record.gain_high is None else record.gain_high
        tails = (record.tail, record.zero_shot_tail) if record.tasks > 1 else (None, None)
        return cls(record.accuracy, record.zero_shot, record.gain, low, high, *tails)

    @classmethod
    def mean(cls, scores: Sequence[Score], weights: Sequence[float] | None = None) -> Score:
        """The (weighted) mean of independent scores; a tail only if all have one.

        Interval widths add in quadrature, each side on its own.
        """
        weights = weights or [1.0] * len(scores)
        share = [weight / sum(weights) for weight in weights]

        def average(values: Iterable[float]) -> float:
            return sum(w * value for w, value in zip(share, values, strict=True))

        def average_if_all(values: Sequence[float | None]) -> float | None:
            known = [value for value in values if value is not None]
            return average(known) if len(known) == len(values) else None

        def side(errors: Iterable[float]) -> float:
            return math.sqrt(sum((w * error) ** 2 for w, error in zip(share, errors, strict=True)))

        gain = average(s.gain for s in scores)
        return cls(
            average(s.accuracy for s in scores),
            average(s.zero_shot for s in scores),
            gain,
            gain - side(s.gain - s.low for s in scores),
            gain + side(s.high - s.gain for s in scores),
            average_if_all([s.tail for s in scores]),
            average_if_all([s.zero_shot_tail for s in scores]),
        )

    @property
    def before(self) -> Score:
        """Zero-shot on the same images, as a score."""
        return Score(self.zero_shot, self.zero_shot, 0.0, 0.0, 0.0, self.zero_shot_tail, self.zero_shot_tail)

    @property
    def has_interval(self) -> bool:
        """Is there an interval? It needs more than one task."""
        return self.low < self.high

    @property
    def sign(self) -> int:
        """1: better than zero-shot; −1: worse; 0: the interval contains 0, or the gain is exactly 0."""
        if self.has_interval and self.low <= 0 <= self.high:
            return 0
        return (self.gain > 0) - (self.gain < 0)
