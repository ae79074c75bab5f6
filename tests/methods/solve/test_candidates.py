"""The solver by lists gives what StatA's torch solver gives: exactly with all classes as candidates, else nearly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import StatA, arrays
from kedge.features.simulate import simulate
from kedge.methods.contract import Batch, Step
from kedge.methods.solve import candidates as _lists
from kedge.methods.solve.graph import NeighbourGraph
from kedge.methods.solve.neighbours import nearest_neighbours

CLOSE = {torch.float32: 2e-5, torch.float64: 1e-9}


def by_lists(batch: Batch, candidates: int, **settings: Any) -> tuple[Tensor, dict[str, Any]]:
    """StatA with these settings, solved by lists."""
    method = StatA(**settings)
    nearest = nearest_neighbours(batch.features, method.neighbours)
    return _lists.solve(
        batch,
        NeighbourGraph.of(nearest, method.laplacian / (2 * method.neighbours)),
        alpha=method.alpha,
        soft=method.beta == "soft",
        cooling=1 / method.temperature,
        unit_means=method.unit_means,
        iterations=method.iterations,
        z_steps=method.z_steps,
        candidates=candidates,
    )


def dense(batch: Batch, **settings: Any) -> Step:
    return StatA(compiled=False, **settings).step(None, replace(batch))  # a copy, which keeps no logarithms


def batch_of(n: int, k: int, dtype: torch.dtype = torch.float32, *, d: int = 64, seed: int = 3) -> Batch:
    f = simulate(n, k, d=d, k_eff=min(8, k), seed=seed)
    return Batch(f.image_features.to(dtype), f.head.like(torch.empty(0, dtype=dtype)))


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": "soft"},
        {"alpha": 0.0},
        {"alpha": 0.0, "beta": "soft"},
        {"alpha": float("inf")},
        {"temperature": 10.0},
        {"laplacian": 0.0},
        {"laplacian": 5.0},
        {"neighbours": 1},
        {"neighbours": 100},
        {"unit_means": False},
        {"iterations": 0},
        {"iterations": 1, "z_steps": 1},
    ],
    ids=str,
)
def test_with_all_candidates_it_is_the_dense_solve(
    settings: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(150, 40, dtype)
    whole = dense(batch, **settings)
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 168 * 31)  # k + 2d = 168: blocks of 31 rows
    z, info = by_lists(batch, 100, **settings)
    # Without anchors, classes of next to no mass are what rounding makes them: float32 is 2e-4 from float64 either way.
    unanchored = dtype == torch.float32 and settings == {"alpha": 0.0, "beta": "soft"}
    assert (z - whole.z).abs().max() <= (5e-4 if unanchored else CLOSE[dtype])
    assert info["change"] == pytest.approx(whole.info["change"], abs=1e-4)
    assert {name: info[name] for name in ("iterations", "converged", "candidates")} == {
        "iterations": whole.info["iterations"],
        "converged": whole.info["converged"],
        "candidates": 40,
    }
    assert info["outside"] < 1e-6


@pytest.mark.parametrize("settings", [{}, {"beta": "soft"}, {"temperature": 1e-3}, {"laplacian": 1e6}], ids=str)
def test_known_labels(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are certain, however few candidates there are, and all else is as in the dense solve."""
    batch = batch_of(150, 40, torch.float64)
    known = torch.full((150,), -1)
    known[[3, 40, 149]] = batch.log_zero_shot[[3, 40, 149]].argmin(dim=1)
    batch = replace(batch, known=known)
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 168 * 31)
    z, info = by_lists(batch, 40, **settings)
    assert (z - dense(batch, **settings).z).abs().max() <= 1e-6
    for candidates in (2, 40):
        z, info = by_lists(batch, candidates, **settings)
        assert torch.allclose(z[[3, 40, 149]], torch.eye(40, dtype=z.dtype)[known[[3, 40, 149]]])
        assert 0 <= info["outside"] < 1


@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 4), (1, 7, 8), (2, 3, 8), (3, 1, 5), (5, 70, 33), (70, 65, 17)])
def test_shapes(n: int, k: int, d: int) -> None:
    x, t = simulated(n, k, d)
    batch = Batch(x, kedge.TextHead.from_arrays(t, 20.0))
    z, _ = by_lists(batch, 80)
    assert (z - dense(batch).z).abs().max() <= 1e-9


def test_rounded_prototypes_are_scaled_to_unit_norm_after_the_first_fit() -> None:
    batch = batch_of(60, 20, torch.float64, d=32)
    near = kedge.TextHead(batch.head.features * (1 + 2e-4))
    batch = Batch(batch.features, near)
    assert (by_lists(batch, 20)[0] - dense(batch).z).abs().max() <= 1e-9
    assert (by_lists(batch, 20)[0] - by_lists(batch, 20, unit_means=False)[0]).abs().max() > 1e-6


def test_few_candidates_are_nearly_enough() -> None:
    f = simulate(1000, 200, d=64, seed=1)
    batch = Batch(f.image_features, f.head)
    labels = dense(batch).z.argmax(dim=1)
    share, outside = {}, {}
    for candidates in (8, 32):
        z, info = by_lists(batch, candidates)
        assert ((z > 0).sum(dim=1) <= candidates).all()
        assert (z.sum(dim=1) - 1).abs().max() < 1e-5
        share[candidates] = float((z.argmax(dim=1) == labels).double().mean())
        outside[candidates] = info["outside"]
    assert share[32] >= 0.999
    assert 0 < outside[32] < outside[8] < 0.5


def test_outside_is_the_anchored_probability_of_other_classes() -> None:
    batch = batch_of(50, 30, torch.float64)
    _, info = by_lists(batch, 5, iterations=0, laplacian=0.0)
    z = dense(batch, iterations=0, laplacian=0.0).z  # without a graph: softmax(log ŷ + log p / T)
    assert info["outside"] == pytest.approx(float(1 - z.topk(5).values.sum(dim=1).mean()), abs=1e-9)


def test_of_equal_classes_the_first_counts() -> None:
    x, t = simulated(30, 4, 16)
    batch = Batch(x, kedge.TextHead.from_arrays(t[[0, 0, 1, 1, 2, 2, 3, 3]]))  # every prototype twice
    assert (by_lists(batch, 8)[0] - dense(batch).z).abs().max() <= 1e-9


def test_stata_goes_by_lists_where_dense_arrays_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    f = simulate(100, 20, d=32, seed=1)
    plain = kedge.adapt(f, method="stata")
    monkeypatch.setattr("kedge.methods.stata.DENSE_ENTRIES", 100 * 20)
    assert "candidates" not in kedge.adapt(f, method="stata").info
    monkeypatch.setattr("kedge.methods.stata.DENSE_ENTRIES", 100 * 20 - 1)
    large = kedge.adapt(f, method="stata")
    assert large.info["candidates"] == 20
    assert (large.probs - plain.probs).abs().max() <= 2e-5
    assert torch.equal(large.zero_shot, plain.zero_shot)


def test_nothing_is_written_to_and_no_dense_logarithms_are_kept() -> None:
    batch = batch_of(40, 12)
    x, t = batch.features.clone(), batch.head.features.clone()
    by_lists(batch, 6)
    assert torch.equal(batch.features, x)
    assert torch.equal(batch.head.features, t)
    assert "log_zero_shot" not in vars(batch)
