"""The calibration error against small cases done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kedge.answers.calibration import BINS, Reliability


def test_calibration_error_by_hand() -> None:
    found = Reliability.empty()
    found.add(np.array([0.91, 0.92, 0.92, 0.91]), np.array([True, True, True, False]))  # one bin: 0.75 − 0.915
    found.add(np.array([0.5]), np.array([False]))  # another: 0 − 0.5
    assert found.error() == pytest.approx((4 * abs(0.75 - 0.915) + 0.5) / 5)


def test_errors_of_a_bin_cancel_and_those_of_two_bins_do_not() -> None:
    same, apart = Reliability.empty(), Reliability.empty()
    same.add(np.array([0.95, 0.95]), np.array([True, False]))  # in sum 0.5 − 0.95
    apart.add(np.array([0.95, 0.05]), np.array([False, True]))  # 0 − 0.95 and 1 − 0.05
    assert same.error() == pytest.approx(0.45)
    assert apart.error() == pytest.approx(0.95)


def test_a_calibrated_guesser_has_little_error() -> None:
    random = np.random.default_rng(0)
    confidence = random.uniform(0.1, 1, 50_000)
    found = Reliability.empty()
    found.add(confidence, random.random(50_000) < confidence)
    assert found.error() < 0.02
    found.add(confidence, random.random(50_000) < confidence - 0.1)  # now too sure by 0.05 in the mean
    assert found.error() == pytest.approx(0.05, abs=0.01)


def test_every_confidence_has_a_bin() -> None:
    found = Reliability.empty()
    found.add(np.linspace(0, 1, 1001), np.ones(1001, bool))
    assert found.count.sum() == 1001
    assert (found.count > 0).all()
    assert len(found.count) == BINS
    assert found.count[-1] > 1  # with the confidence 1


def test_batches_add_up() -> None:
    random = np.random.default_rng(1)
    confidence, correct = random.random(300), random.random(300) < 0.5
    whole, parts = Reliability.empty(), Reliability.empty()
    whole.add(confidence, correct)
    for rows in np.array_split(np.arange(300), 7):
        parts.add(confidence[rows], correct[rows])
    np.testing.assert_allclose(parts.confidence, whole.confidence)
    assert parts.error() == pytest.approx(whole.error())


def test_no_images_have_no_error() -> None:
    assert Reliability.empty().error() == 0
