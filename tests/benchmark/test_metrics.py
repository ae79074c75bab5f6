"""Scores against small cases done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kedge.benchmark.metrics import PerClass, paired_bootstrap, tail


def test_macro_is_over_the_classes_present() -> None:
    found = PerClass.empty(4)
    found.add(np.array([0, 0, 0, 2]), np.array([True, True, False, False]))
    found.add(np.array([2]), np.array([True]))
    assert found.macro() == pytest.approx((2 / 3 + 1 / 2) / 2)  # classes 1 and 3 have no images


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.7], 0.7),  # one task: its accuracy
        ([0.9, 0.2, 0.5], 0.2),
        ([0.9] * 9 + [0.1], 0.1),
        ([0.9] * 8 + [0.3, 0.1, 0.6], (0.1 + 0.3) / 2),  # eleven tasks: two
        ([0.5, 0.25, *[0.75] * 18], (0.25 + 0.5) / 2),
        ([0.5] * 100, 0.5),
    ],
)
def test_the_tail_is_the_worst_tenth_rounded_up(accuracies: list[float], expected: float) -> None:
    assert tail(np.array(accuracies)) == pytest.approx(expected)


class TestBootstrap:
    def test_the_same_everywhere_is_certain(self) -> None:
        assert paired_bootstrap(np.full(20, 0.25), seed=0) == (0.25, 0.25)

    def test_one_task_is_a_point(self) -> None:
        assert paired_bootstrap(np.array([0.125]), seed=0) == (0.125, 0.125)

    def test_two_outcomes(self) -> None:
        low, high = paired_bootstrap(np.array([0.0, 1.0]), seed=0)  # the mean is 0, ½ or 1, with ¼, ½, ¼
        assert (low, high) == (0, 1)

    def test_it_is_the_interval_of_the_mean(self) -> None:
        difference = np.random.default_rng(3).normal(0.1, 0.2, 400)
        low, high = paired_bootstrap(difference, seed=0)
        half = 1.96 * difference.std() / 20
        assert low == pytest.approx(difference.mean() - half, abs=0.1 * half)
        assert high == pytest.approx(difference.mean() + half, abs=0.1 * half)

    def test_it_covers_the_truth_as_often_as_it_says(self) -> None:
        random = np.random.default_rng(4)
        covered = 0
        for seed in range(300):
            low, high = paired_bootstrap(random.normal(0.3, 1, 60), seed, resamples=300)
            covered += low <= 0.3 <= high
        assert 0.90 < covered / 300 < 0.98

    def test_a_seed_is_an_interval(self) -> None:
        difference = np.random.default_rng(5).normal(size=30)
        assert paired_bootstrap(difference, 1) == paired_bootstrap(difference, 1)
        assert paired_bootstrap(difference, 1) != paired_bootstrap(difference, 2)
