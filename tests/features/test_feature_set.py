"""FeatureSet and TextHead in memory: what is kept, and what is refused. Files: test_feature_files.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kedge
from cases import simulated
from feature_sets import D, K, N, V, arrays, made
from kedge import FeatureSet, TextHead

# What is kept


def test_arrays_are_kept_as_they_are() -> None:
    given = arrays()
    features = FeatureSet.from_arrays(**given)
    assert len(features) == N
    assert (features.head.k, features.head.d) == (K, D)
    assert features.image_features.dtype == torch.float16  # half the file
    assert features.head.features.dtype == torch.float32
    assert torch.equal(features.image_features, torch.from_numpy(given["image_features"]))
    assert features.labels is not None
    assert features.labels.tolist() == given["labels"].tolist()
    assert features.head.class_names == ("grass", "brick", "käse", "a b")


def test_head_in_half_precision_gets_its_norm_back() -> None:
    head = TextHead.from_arrays(arrays()["text_features"].astype(np.float16))
    assert (head.features.norm(dim=1) - 1).abs().max() <= 1e-6
    assert head.class_names == ("class 0", "class 1", "class 2", "class 3")


def test_a_head_is_not_made_again_for_every_batch() -> None:
    """Else all it has computed of its prototypes is computed again: of 1,000 classes that is a third of a call."""
    x, t = (a.float() for a in simulated(N, K, D))
    head = TextHead(t)
    assert head.like(torch.empty(0)) is head
    wide = head.like(torch.empty(0, dtype=torch.float64))
    assert wide.features.dtype == wide.like(wide.features).features.dtype == torch.float64
    torch.testing.assert_close(head.log_zero_shot(x), wide.log_zero_shot(x.double()).float(), atol=2e-6, rtol=0)


def test_normalize() -> None:
    given = arrays()
    scaled = {name: given[name].astype(np.float32) * 7 for name in ("image_features", "text_features", "views")}
    features = made(**scaled, normalize=True)
    for rows in (features.image_features, features.head.features, features.views):
        assert rows is not None
        assert (rows.norm(dim=-1) - 1).abs().max() <= 1e-6
    with pytest.raises(kedge.InputError, match="unit-norm rows; row 0 has norm 7"):
        made(**scaled)


@pytest.mark.parametrize(
    "pick",
    [
        [3, 0, 3],
        np.array([8, 1]),
        torch.tensor([2]),
        range(4),
        slice(2, 7, 2),
        slice(None, None, -1),
        [-1, 0],
        [],
    ],
    ids=str,
)
def test_take(pick: Any) -> None:
    features = made()
    expected = np.arange(N)[pick if isinstance(pick, slice) else np.asarray(pick, dtype=int)]
    taken = features.take(pick)
    assert len(taken) == len(expected)
    assert torch.equal(taken.image_features, features.image_features[expected.tolist()])
    assert taken.labels is not None
    assert taken.views is not None
    assert features.views is not None
    assert taken.labels.tolist() == (expected % K).tolist()
    assert torch.equal(taken.views, features.views[expected.tolist()])
    assert taken.paths == tuple(f"folder/{i} ä.jpg" for i in expected)
    assert taken.head is features.head


def test_take_without_labels_views_paths() -> None:
    taken = made(labels=None, views=None, paths=None).take([1])
    assert (taken.labels, taken.views, taken.paths) == (None, None, None)


@pytest.mark.parametrize(
    "pick",
    [np.arange(N) % 2 == 0, torch.arange(N) % 2 == 0, [0.5, 1.5]],
    ids=["mask", "tensor mask", "floats"],
)
def test_take_refuses_what_are_no_positions(pick: Any) -> None:
    """A mask read as the numbers 0 and 1 would give the first two images again and again."""
    with pytest.raises(kedge.InputError, match="positions"):
        made().take(pick)


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.arange(N)}, "labels must be from 0 to 3; row 4 has 4"),
        ({"labels": -np.ones(N, dtype=int)}, "row 0 has -1"),
        ({"labels": np.zeros(N)}, "labels must be whole numbers; got float64"),
        ({"labels": np.zeros(N, dtype=bool)}, "labels must be whole numbers; got bool"),
        ({"labels": ["grass"] * N}, "labels must be whole numbers"),
        ({"labels": np.zeros((N, 1), dtype=int)}, "labels must be whole numbers"),
        ({"labels": np.zeros(N - 1, dtype=int)}, "8 entries for 9"),
        ({"paths": ["a"]}, "paths has 1 entries for 9"),
        ({"class_names": ["a"]}, "1 class names for 4"),
        ({"views": np.ones((N, D))}, r"views must be 3-dimensional \(n×v×d\)"),
        ({"views": np.ones((N - 1, V, D)) / 4}, "views has 8 entries for 9"),
        ({"views": np.ones((N, V, 4)) / 2}, "views has dimension 4, text_features has 16"),
        ({"views": np.full((N, V, D), np.nan)}, "NaN in 27 row.*row 0, view 0"),
        ({"text_features": np.eye(K, 5)}, "dimension 16, text_features has 5"),
        ({"logit_scale": 0}, "logit_scale must be a number from 0.001 to 1,000,000; got 0"),
        ({"logit_scale": "hot"}, "got 'hot'"),
        ({"image_features": np.zeros((N, D))}, "all-zero row"),
    ],
    ids=str,
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(kedge.InputError, match=message):
        made(**changes)


def test_provenance_must_be_json() -> None:
    with pytest.raises(kedge.InputError, match="provenance"):
        made(provenance={"when": object()})


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int64", ">i4"])
def test_labels_of_any_whole_type(dtype: str) -> None:
    labels = made(labels=(np.arange(N) % K).astype(dtype)).labels
    assert labels is not None
    assert labels.dtype == torch.int64
    assert labels.tolist() == (np.arange(N) % K).tolist()


# Real features


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [
        ("dtd_test_vitb32", 44.8),
        ("whurs19_clip_vitb32", 81.3),
        ("whurs19_clip_rn50", 71.5),
        ("cifar10_500_vitb32", 89.6),
    ],
)
def test_real_features_score_what_they_should(shared: Path, name: str, accuracy: float) -> None:
    features = FeatureSet.load(shared / "features" / f"{name}.npz")
    assert features.labels is not None
    assert len(features.head.class_names) == features.head.k
    right = kedge.adapt(features, method="zero-shot").labels == features.labels
    assert 100 * right.double().mean().item() == pytest.approx(accuracy, abs=0.051)  # known to one decimal


def test_repr_is_a_few_lines(tmp_path: Path) -> None:
    x, t = simulated(8, 3)
    plain = FeatureSet.from_arrays(x, t)
    assert repr(plain) == (
        "FeatureSet: 8 images, 8×16 float64\n"
        "  dataset features, encoder unknown\n"
        "  with features only\n"
        "  TextHead: 3 classes, dimension 16, logit scale 100\n"
        "  classes class 0, class 1, class 2"
    )
    about = {"dataset": "birds", "encoder": "tiny"}
    full = FeatureSet.from_arrays(x, t, labels=[0] * 8, views=x[:, None], paths=["a"] * 8, provenance=about)
    assert repr(full).splitlines()[1:3] == ["  dataset birds, encoder tiny", "  with labels, views, paths"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_zero_shot_accuracy(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = simulated(40, 5)
    labels = torch.arange(40) % 5
    features = FeatureSet.from_arrays(x.to(dtype), t, labels=labels)
    expected = float((kedge.adapt(features, method="zero-shot").labels == labels).double().mean())
    assert features.zero_shot_accuracy() == pytest.approx(expected)
    monkeypatch.setattr("kedge.arrays.BLOCK_ENTRIES", 100)  # in blocks
    assert features.zero_shot_accuracy() == pytest.approx(expected)
    assert FeatureSet.from_arrays(x, t).zero_shot_accuracy() is None
