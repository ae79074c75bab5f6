"""Any valid input gives finite probabilities of the documented kind. Each run draws the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kedge
import oracle
from cases import ON_FEATURES, simulated
from kedge.arrays import unit

SOLVERS = st.sampled_from(
    [
        kedge.ZeroShot(),
        kedge.StatA(),
        kedge.StatA(beta="soft"),
        kedge.StatA(alpha=0.0),
        kedge.StatA(alpha=0.0, beta="soft"),
        kedge.StatA(alpha=float("inf")),
        kedge.StatA(neighbours=1, temperature=1.0),
        kedge.StatA(unit_means=False, iterations=2, tol=1e-3),
        kedge.StatA.literal(iterations=10),
    ]
)
SIZES = {
    "n": st.integers(1, 12),
    "k": st.integers(1, 8),
    "d": st.integers(1, 9),
    "seed": st.integers(0, 10**6),
}


def assert_probabilities(result: kedge.Result, n: int, k: int) -> None:
    z, zero_shot, labels = (np.asarray(a) for a in (result.probs, result.zero_shot, result.labels))
    for probs in (z, zero_shot):
        assert probs.shape == (n, k)
        assert np.isfinite(probs).all()
        assert (probs >= 0).all()
        assert np.abs(probs.sum(axis=1, dtype=float) - 1).max() <= 1e-5
    assert labels.tolist() == z.argmax(axis=1).tolist()
    assert 1 - 1e-5 <= result.info["effective_classes"] <= k + 1e-4


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Unit features and prototypes: scattered, clustered, alike; with duplicates, twin and empty classes."""
    n, k, d, seed = (draw(SIZES[name]) for name in ("n", "k", "d", "seed"))
    noise = draw(st.sampled_from([0.0, 1e-6, 0.1, 1.0, 1e3]))  # 0: every image is a prototype
    x, t = simulated(n, k, d, seed=seed, noise=noise, present=draw(st.integers(1, k)))
    copies = st.integers(0, n - 1)
    if draw(st.booleans()):
        x = x[draw(st.lists(copies, min_size=n, max_size=n))]
    if draw(st.booleans()):
        t = t[draw(st.lists(st.integers(0, k - 1), min_size=k, max_size=k))]
    if draw(st.booleans()):
        x = -x
    return x, t


@given(
    batches(),
    SOLVERS,
    st.sampled_from([1e-3, 1.0, 100.0, 1e4]),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=300)
def test_rows_are_probabilities(
    batch: tuple[Tensor, Tensor], method: kedge.Method, logit_scale: float, dtype: torch.dtype
) -> None:
    x, t = (a.to(dtype) for a in batch)
    result = kedge.adapt(x, t, method, logit_scale=logit_scale)
    assert result.probs.dtype == dtype
    assert_probabilities(result, len(x), len(t))


@given(batches(), SOLVERS, st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision_gives_float32(batch: tuple[Tensor, Tensor], method: kedge.Method, dtype: torch.dtype) -> None:
    x, t = (a.to(dtype) for a in batch)
    result = kedge.adapt(x, t, method)
    assert result.probs.dtype == result.zero_shot.dtype == torch.float32
    assert_probabilities(result, len(x), len(t))


@given(batches(), SOLVERS, st.data())
def test_normalize_takes_any_size(batch: tuple[Tensor, Tensor], method: kedge.Method, data: st.DataObject) -> None:
    """Rows of 1e-30 and 1e30 have a direction like any others, and it is all that counts."""
    x, t = batch
    sizes = st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e30])
    scale_x = torch.tensor(data.draw(st.lists(sizes, min_size=len(x), max_size=len(x))), dtype=x.dtype)[:, None]
    scale_t = torch.tensor(data.draw(st.lists(sizes, min_size=len(t), max_size=len(t))), dtype=t.dtype)[:, None]
    result = kedge.adapt((x * scale_x).float(), (t * scale_t).float(), method, normalize=True)
    assert_probabilities(result, len(x), len(t))
    in_double = kedge.adapt(x * scale_x**5, t * scale_t**5, "zero-shot", normalize=True)  # 1e±150
    assert (in_double.probs - kedge.adapt(x, t, "zero-shot").probs).abs().max() <= 1e-9


@pytest.mark.parametrize("method", ON_FEATURES)
@pytest.mark.parametrize("image_dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("text_dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("text_kind", ["numpy", "torch"])
def test_kinds(method: str, image_dtype: str, text_dtype: str, kind: str, text_kind: str) -> None:
    """The image features decide: numpy gives numpy, torch torch; float64 gives float64, all else float32."""
    x, t = (a.numpy() for a in simulated(6, 4))
    x, t = x.astype(image_dtype), t.astype(text_dtype)
    result = kedge.adapt(
        torch.from_numpy(x) if kind == "torch" else x,
        torch.from_numpy(t) if text_kind == "torch" else t,
        method,
    )
    wide = "float64" if image_dtype == "float64" else "float32"
    for array in (result.probs, result.zero_shot):
        assert isinstance(array, Tensor if kind == "torch" else np.ndarray)
        assert str(array.dtype).removeprefix("torch.") == wide
    assert str(result.labels.dtype).removeprefix("torch.") == "int64"
    assert_probabilities(result, 6, 4)


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "read-only", "big-endian", "requires-grad"])
def test_memory_layouts_do_not_matter(layout: str) -> None:
    x, t = (a.float() for a in simulated(6, 4))
    plain = x.numpy()
    wide = np.repeat(plain, 2, axis=1)
    backwards = plain[::-1].copy()
    frozen = plain.copy()
    frozen.flags.writeable = False
    array: Any = {
        "fortran": np.asfortranarray(plain),
        "strided": wide[:, ::2],
        "reversed": backwards[::-1],
        "read-only": frozen,
        "big-endian": plain.astype(">f4"),
        "requires-grad": x.clone().requires_grad_(),
    }[layout]
    result = kedge.adapt(array, t, method="stata")
    assert np.abs(np.asarray(result.probs) - kedge.adapt(plain, t, method="stata").probs).max() <= 1e-6


@given(batches())
def test_inputs_are_left_alone(batch: tuple[Tensor, Tensor]) -> None:
    x, t = batch
    before = x.clone(), t.clone()
    kedge.adapt(x, t, method="stata")
    kedge.adapt(x, t, method="stata", normalize=True)
    assert torch.equal(x, before[0])
    assert torch.equal(t, before[1])


@given(
    **SIZES,
    alpha=st.sampled_from([0.1, 1.0, 10.0]),
    beta=st.sampled_from(["hard", "soft"]),
    temperature=st.sampled_from([1.0, 50.0]),
    graph=st.sampled_from(["neighbours", "dense"]),
    neighbours=st.integers(1, 5),
    laplacian=st.sampled_from([0.0, 0.5, 2.0]),
    unit_means=st.booleans(),
    z_steps=st.integers(1, 5),
)
@settings(max_examples=150)
def test_every_knob_agrees_with_the_oracle(n: int, k: int, d: int, seed: int, **knobs: Any) -> None:
    """Two iterations, so that no image has time to multiply round-off; d from 2, as d = 1 has ±1 alone."""
    x, t = simulated(n, k, d + 1, seed=seed, noise=0.7)
    z = kedge.adapt(x, t, method="stata", iterations=2, logit_scale=20.0, **knobs).probs
    assert (z - oracle.stata(x, t, iterations=2, logit_scale=20.0, **knobs).z[-1]).abs().max() <= 1e-8


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_unit_rows(n: int, d: int, seed: int) -> None:
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert (unit(rows).norm(dim=1) - 1).abs().max() <= 1e-12
    assert torch.equal(unit(torch.zeros(n, d)), torch.zeros(n, d))
