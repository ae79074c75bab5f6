"""Simulated features have the geometry they promise: accuracy, calibration, gap, hierarchy, sameness."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from kedge import FeatureSet, adapt
from kedge.errors import InputError, SettingError
from kedge.features.simulate import TRIALS, _labels, simulate

N = 20_000


@lru_cache(maxsize=8)
def drawn(k: int, accuracy: float) -> FeatureSet:
    return simulate(N, k, accuracy=accuracy)


def probabilities(features: FeatureSet) -> Tensor:
    logits = features.head.logit_scale * features.image_features.double() @ features.head.features.double().T
    return logits.softmax(dim=1)


def right(features: FeatureSet) -> Tensor:
    return (probabilities(features).argmax(dim=1) == features.labels).double()


def sampling_error(accuracy: float, n: int) -> float:
    """Four standard deviations of the accuracy on n images, with that of the trials behind the target."""
    return 4 * (accuracy * (1 - accuracy) * (1 / n + 1 / TRIALS)) ** 0.5


def calibration_error(features: FeatureSet, bins: int = 15) -> float:
    """ECE: |accuracy − confidence| over equal bins of confidence, weighted by their images."""
    confidence, label = probabilities(features).max(dim=1)
    hit = (label == features.labels).double()
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, hit - confidence)
    return float(gaps.abs().sum() / len(features))


@pytest.mark.parametrize(("k", "accuracy"), [(100, 0.65), (1000, 0.6), (10, 0.9)])
def test_accuracy_and_calibration(k: int, accuracy: float) -> None:
    features = drawn(k, accuracy)
    assert float(right(features).mean()) == pytest.approx(accuracy, abs=sampling_error(accuracy, N))
    assert calibration_error(features) <= 0.02


@pytest.mark.parametrize(("k", "d", "k_eff"), [(100, 64, 3), (100, 32, 1), (2, 8, 2), (7, 9, 4), (60, 33, 60)])
def test_accuracy_whatever_the_sizes(k: int, d: int, k_eff: int) -> None:
    features = simulate(5000, k, d, k_eff=k_eff, accuracy=0.6, seed=5)
    assert features.image_features.shape == (5000, d)
    assert features.head.features.shape == (k, d)
    assert float(right(features).mean()) == pytest.approx(0.6, abs=sampling_error(0.6, 5000))


def test_unit_rows_of_float32() -> None:
    features = drawn(100, 0.65)
    for rows in (features.image_features, features.head.features):
        assert rows.dtype == torch.float32
        assert float((rows.double().norm(dim=1) - 1).abs().max()) < 1e-6


def test_nothing_lies_along_an_axis() -> None:
    """The largest common direction of images and of prototypes is spread over all coordinates."""
    features = drawn(100, 0.65)
    for rows in (features.image_features, features.head.features):
        shares = rows.mean(dim=0).square()
        assert float(shares.max() / shares.sum()) < 0.1
        assert float((rows.var(dim=0) > 1e-5).double().mean()) > 0.99


def test_cosines_are_like_those_of_clip() -> None:
    features = drawn(100, 0.65).take(torch.arange(2000))
    x, t, y = features.image_features, features.head.features, features.labels
    assert y is not None
    same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    between_images, between_texts, image_to_text = x @ x.T, t @ t.T, x @ t.T
    same_class, other_class = between_images[same].mean(), between_images[y[:, None] != y].mean()
    assert 0.6 < float(same_class) < 0.8
    assert 0.4 < float(other_class) < 0.6
    assert float(between_texts[~torch.eye(len(t), dtype=torch.bool)].mean()) == pytest.approx(0.75, abs=0.02)
    assert float(image_to_text.mean()) < 0.25  # the modality gap: an image is nearer to any image than to its own text
    assert float(image_to_text[torch.arange(len(y)), y].mean()) < float(other_class) - 0.1


def test_siblings_are_confused_more_often() -> None:
    features = drawn(100, 0.65)
    superclasses = features.provenance["superclasses"]
    y, label = features.labels, probabilities(features).argmax(dim=1)
    assert y is not None
    wrong = label != y
    to_sibling = float((label[wrong] % superclasses == y[wrong] % superclasses).double().mean())
    by_chance = (100 / superclasses - 1) / 99
    assert to_sibling > 4 * by_chance


@pytest.mark.parametrize("k_eff", [1, 7, 30])
def test_exactly_the_wished_classes_are_present(k_eff: int) -> None:
    present = simulate(k_eff + 3, 30, 16, k_eff=k_eff, accuracy=0.3, seed=2).labels
    assert present is not None
    assert len(present.unique()) == k_eff


def test_present_classes_are_equally_likely_at_every_place() -> None:
    classes = np.arange(5)
    first = [int(_labels(np.random.default_rng(seed), classes, 8)[0]) for seed in range(200)]
    counts = torch.bincount(torch.tensor(first), minlength=5).double()
    assert float(((counts - 40).square() / 40).sum()) < 18.5  # χ² with 4 degrees of freedom, 1 in 1000
    labels = drawn(10, 0.9).labels
    assert labels is not None
    assert torch.bincount(labels).double() / N == pytest.approx(torch.full((10,), 0.1).double(), abs=0.01)


def test_same_seed_same_features_on_another_machine() -> None:
    """In a process in which numpy uses no vector units and OpenBLAS takes the processor for an old one."""
    vector_units = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index]
    program = "from kedge import simulate; print(simulate(5000, 100, seed=3).hash)"
    machine = {"NPY_DISABLE_CPU_FEATURES": " ".join(vector_units), "OPENBLAS_CORETYPE": "Prescott"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **machine},
    )
    assert ran.stdout.strip() == simulate(5000, 100, seed=3).hash


def test_another_seed_gives_other_features() -> None:
    one, other = (simulate(50, 10, 32, seed=seed).image_features for seed in (3, 4))
    assert float((one - other).abs().max()) > 0.1


def test_one_seed_is_one_world() -> None:
    few, many = simulate(10, 20, 64, seed=1), simulate(1000, 20, 64, seed=1)
    assert torch.equal(few.head.features, many.head.features)
    assert not torch.equal(few.head.features, simulate(10, 20, 64, seed=2).head.features)


def test_global_random_state_is_left_alone() -> None:
    np.random.seed(0)  # noqa: NPY002 - the global state is what must not be touched
    untouched = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    simulate(10, 5, 16)
    assert np.random.random() == untouched  # noqa: NPY002


def test_blocks_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.features.simulate.BLOCK_ENTRIES", 1000)
    features = simulate(999, 10, 64, accuracy=0.7)  # 15 rows a block, and a last one of 9
    assert float((features.image_features.norm(dim=1) - 1).abs().max()) < 1e-6
    assert float(right(features).mean()) == pytest.approx(0.7, abs=sampling_error(0.7, 999))
    assert len(features.image_features.unique(dim=0)) == 999


def test_says_that_it_is_simulated_and_how() -> None:
    knobs = {
        "k_eff": 4,
        "accuracy": 0.5,
        "superclasses": 3,
        "text_cosine": 0.7,
        "visual": 0.5,
        "shared_errors": 0.3,
    }
    features = simulate(5, 12, 16, seed=9, **knobs)  # type: ignore[arg-type]
    assert features.head.class_names[7] == "simulated 007"
    assert features.head.logit_scale == 100
    how = dict(features.provenance)
    assert how.pop("simulated") is True
    assert how.pop("dataset") == "simulated"
    assert how == {"n": 5, "k": 12, "d": 16, "seed": 9, **knobs}
    assert simulate(**how).hash == features.hash


def test_one_class_is_always_right() -> None:
    assert float(right(simulate(3, 1, 8, accuracy=0.2)).mean()) == 1


def test_adaptation_gains() -> None:
    features = simulate(2000, 100)
    result = adapt(features, method="stata")
    assert float((result.labels == features.labels).double().mean()) > float(right(features).mean()) + 0.01


def test_the_knobs_of_adaptation() -> None:
    """The more of the text's errors the looks share, the less there is to gain; without visual classes, 0."""

    def gain(**knobs: float) -> float:
        features = simulate(2000, 20, 128, **knobs)  # type: ignore[arg-type]
        return float(
            (adapt(features, method="stata").labels == features.labels).double().mean() - right(features).mean()
        )

    assert gain(shared_errors=0.0) > gain(shared_errors=0.5) + 0.05
    assert gain(shared_errors=0.5) > 0.05
    assert gain(shared_errors=1.0) == pytest.approx(0, abs=0.02)
    assert gain(shared_errors=0.0, visual=0.0) == pytest.approx(0, abs=0.02)


def test_unreachable_accuracy_names_the_range() -> None:
    with pytest.raises(
        InputError, match=r"accuracy 0\.9 cannot be simulated with k=500, d=8: possible is 0\.00\d to 0\.\d"
    ):
        simulate(10, 500, 8, accuracy=0.9)
    with pytest.raises(InputError, match=r"possible is 0\.[12]\d\d to"):
        simulate(10, 5, 64, accuracy=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be at least 1; got 0"),
        ({"n": 10**12}, "n must be at most 1,000,000,000; got 1000000000000"),
        ({"n": 10**400}, "n must be at most 1,000,000,000; got 1000000"),
        ({"n": 10**5000}, "n must be at most 1,000,000,000; got a number of more than 4,300 digits"),
        ({"n": 10**9, "d": 10**6}, r"1,000,000,000 images of 10 classes in 1,000,000 dimensions would take 4e\+03 TB"),
        ({"k": 10**7}, "10 images of 10,000,000 classes in 16 dimensions would take 8"),
        ({"d": 2**63}, "d must be at most 1,000,000"),
        ({"seed": 2**63}, "seed must be at most 9,223,372,036,854,775,807"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"n": True}, "n must be a whole number"),
        ({"k": 0}, "k must be at least 1; got 0"),
        ({"d": 7}, "d must be at least 8; got 7"),
        ({"k_eff": 0}, "k_eff must be at least 1; got 0"),
        ({"k_eff": 11}, "k_eff must be at most 10; got 11"),
        ({"superclasses": 11}, "superclasses must be at most 10; got 11"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
        ({"accuracy": 0.0}, "accuracy must be at least 1e-6; got 0.0"),
        ({"accuracy": 1}, "accuracy must be at most 0.999999; got 1"),
        ({"accuracy": float("nan")}, "accuracy must be a finite number; got nan"),
        ({"accuracy": "high"}, "accuracy must be a number; got 'high'"),
        ({"text_cosine": 0.1}, "text_cosine must be at least 0.2; got 0.1"),
        ({"visual": 1.1}, "visual must be at most 1; got 1.1"),
        ({"shared_errors": -0.1}, "shared_errors must be at least 0; got -0.1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        simulate(**{"n": 10, "k": 10, "d": 16, **arguments})  # type: ignore[arg-type]
