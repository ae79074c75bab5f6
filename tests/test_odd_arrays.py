"""Arrays that are not what they seem: each is used as it is meant, or refused in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kedge
from kedge import FeatureSet, InputError, Stream
from kedge.arrays import unit

N, K, D = 6, 3, 4
X = unit(torch.randn(N, D, generator=torch.Generator().manual_seed(0)))
T = torch.eye(K, D)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls nested and sparse tensors unfinished
    NESTED = torch.nested.nested_tensor([X[0], X[1][:2]])
    COMPRESSED = X.to_sparse_csr()
    QUANTISED = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


def masked(values: Any) -> Any:
    """Masked in its first entry."""
    array = np.ma.masked_array(np.asarray(values), mask=np.zeros(np.shape(values), bool))
    array[(0,) * array.ndim] = np.ma.masked
    return array


FEATURES: dict[str, tuple[Any, str]] = {
    "meta": (torch.empty(N, D, device="meta"), "without data, on the device meta"),
    "sparse": (X.to_sparse(), r"a sparse_coo tensor. Pass x.to_dense\(\)"),
    "compressed": (COMPRESSED, "a sparse_csr tensor"),
    "nested": (NESTED, "a nested tensor. Pass rows of one length"),
    "quantised": (QUANTISED, r"a quantised tensor. Pass x.dequantize\(\)"),
    "another layout": (X.to_mkldnn() if torch.backends.mkldnn.is_available() else X.to_sparse(), "to_dense"),
    "masked": (masked(X.numpy()), "1 masked value, and kedge has no masks"),
    "ragged": ([[1.0, 0.0], [1.0]], "got lists of different lengths"),
    "deep": (X[None, None].repeat(2, 2, 1, 1), "must be 2-dimensional"),
    "objects": (X.numpy().astype(object), "got dtype object"),
    "beyond 64 bits": ([[10**400] * D], "got dtype object"),
    "number": (10**400, "got int"),
    "scalar": (np.float32(1), "must be 2-dimensional"),
    "float8": (X.to(torch.float8_e4m3fn), "got float8_e4m3fn. Convert it to float32"),
    "conjugate": (torch.complex(X, X).conj(), "got complex64"),
    "text": ("x.npz", "got a path"),
    "bytes": (b"x", r"got dtype \|S1"),
    "strings": (np.array([["a"]]), "got dtype <U1"),
    "None": (None, "got NoneType|missing"),
    "dict": ({}, "got dict"),
    "generator": ((row for row in X), "got generator"),
}


@pytest.mark.parametrize("case", FEATURES)
def test_features_that_are_refused(case: str) -> None:
    array, message = FEATURES[case]
    calls: list[Callable[[], Any]] = [
        lambda: kedge.adapt(array, T),
        lambda: Stream(array),
        lambda: Stream(T).step(array),
        lambda: FeatureSet.from_arrays(X, T, views=array) if case != "None" else kedge.adapt(array, T),
    ]
    for call in calls:
        with pytest.raises(InputError, match=message if call is not calls[3] else None) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "same",
    [
        X.clone().requires_grad_(),
        torch.nn.Parameter(X.clone()),
        torch.complex(X, -X).conj().imag,  # negated only when read
        np.ma.masked_array(X.numpy()),
        list(X),
        [row.clone().requires_grad_() for row in X],
        X.tolist(),
        X.numpy().astype(">f4"),
        X.numpy()[::-1][::-1],
        X.T.contiguous().T,
    ],
    ids=["grad", "parameter", "neg", "unmasked", "tensors", "with grad", "lists", "endian", "strides", "transposed"],
)
def test_features_that_are_used(same: Any) -> None:
    expected = kedge.adapt(X, T).probs
    assert np.abs(np.asarray(kedge.adapt(same, T).probs) - expected.numpy()).max() <= 1e-6
    assert Stream(same).head.k == N


NUMBERS: dict[str, tuple[Any, str]] = {
    "2**63": ([2**63] * N, "got one beyond 64 bits"),
    "2**64": ([2**64] * N, "got one beyond 64 bits"),
    "10**400": ([10**400] * N, "got one beyond 64 bits"),
    "below": ([-(2**63) - 1] * N, "got one beyond 64 bits"),
    "uint64": (torch.full((N,), 2**63, dtype=torch.uint64), "got one beyond 64 bits"),
    "meta": (torch.empty(N, dtype=torch.long, device="meta"), "on the device meta"),
    "sparse": (torch.ones(N, dtype=torch.long).to_sparse(), "sparse_coo"),
    "masked": (masked([0] * N), "1 masked value"),
    "ragged": ([[1], [1, 2]], "lists of different lengths"),
    "objects": (np.array([0] * N, dtype=object), "got object"),
    "half": (torch.ones(N, dtype=torch.bfloat16), "got bfloat16"),
    "complex": (torch.ones(N, dtype=torch.complex64).conj(), "got complex64"),
    "truth": ([True] * N, "got bool"),
    "text": ("012345", "got <U6"),
    "number": (1, r"got int64 of shape \(\)"),
    "None": ([None] * N, "got object"),
    "set": ({0}, "got set"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_whole_numbers_that_are_refused(case: str) -> None:
    numbers, message = NUMBERS[case]
    features = FeatureSet.from_arrays(X, T)
    calls: list[Callable[[], Any]] = [
        lambda: kedge.adapt(X, T, known=numbers),
        lambda: FeatureSet.from_arrays(X, T, labels=numbers),
        lambda: features.take(numbers),
    ]
    for call in calls:
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_positions_that_are_not_there() -> None:
    features = FeatureSet.from_arrays(X, T)
    assert len(features.take([-1, 0])) == 2
    assert len(features.take(torch.tensor([0], dtype=torch.uint8))) == 1
    for positions in ([N], [-N - 1]):
        with pytest.raises(InputError, match=f"there is no image {positions[0]}: there are 6, from 0 to 5"):
            features.take(positions)
    for part in (slice(0, 4, 0), slice(0, 4.5)):
        with pytest.raises(InputError, match="a slice of whole numbers; got slice"):
            features.take(part)


@pytest.mark.parametrize("scale", [0, -1, 1e-4, 1e7, 10**400, float("nan"), "100", True, None, 1j, [100.0], np.ones(2)])
def test_logit_scales_that_are_refused(scale: Any) -> None:
    with pytest.raises(InputError, match=r"logit_scale must be a number from 0\.001 to 1,000,000; got .* CLIP"):
        kedge.adapt(X, T, logit_scale=scale)


def test_a_feature_set_where_arrays_are_meant() -> None:
    features = FeatureSet.from_arrays(X, T)
    for call in (lambda: Stream(features), lambda: kedge.adapt(X, features)):  # type: ignore[call-overload, arg-type]
        with pytest.raises(InputError, match=r"got a FeatureSet\. Pass features.head"):
            call()
    with pytest.raises(InputError, match=r"got a FeatureSet\. Pass features.image_features"):
        Stream(T).step(features)  # type: ignore[type-var]
