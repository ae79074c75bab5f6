"""The compiled solver gives what the torch solver gives, in every corner of its settings and shapes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import kedge
from kedge.methods import Batch
from kedge.simulate import simulate

pytest.importorskip("numba", reason="the compiled solver is the extra `fast`")

from kedge.methods import _fast


def largest_difference(x: torch.Tensor, t: torch.Tensor, logit_scale: float = 100.0, **settings: object) -> float:
    """Between compiled and torch, in z."""
    results = [kedge.adapt(x, t, logit_scale=logit_scale, compiled=on, **settings) for on in (True, False)]
    assert results[0].info["iterations"] == results[1].info["iterations"]
    assert results[0].info["change"] == pytest.approx(results[1].info["change"], abs=1e-3)
    return float((results[0].probs - results[1].probs).abs().max())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": "soft"},
        {"alpha": 0.0},
        {"alpha": 10.0},
        {"alpha": float("inf")},
        {"laplacian": 0.0},
        {"laplacian": 5.0},
        {"neighbours": 1},
        {"neighbours": 200},
        {"unit_means": False},
        {"temperature": 10.0},
        {"iterations": 0},
        {"iterations": 1, "z_steps": 1},
        {"z_steps": 4},
    ],
    ids=str,
)
def test_settings(settings: dict[str, object]) -> None:
    f = simulate(150, 40, d=64, k_eff=8, seed=3)
    assert largest_difference(f.image_features, f.head.features, **settings) < 2e-5


@pytest.mark.parametrize(
    ("n", "k", "d"), [(1, 1, 4), (1, 7, 8), (2, 3, 8), (3, 1, 5), (5, 70, 33), (70, 65, 17), (300, 200, 48)]
)
def test_shapes(n: int, k: int, d: int) -> None:
    g = torch.Generator().manual_seed(n + k)
    x, t = normalize(torch.randn(n, d, generator=g)), normalize(torch.randn(k, d, generator=g))
    assert largest_difference(x, t, logit_scale=20.0) < 2e-5  # many similarities are negative here


def test_duplicates_and_rounded_prototypes() -> None:
    f = simulate(60, 20, d=32, seed=5)
    x = f.image_features[torch.arange(60) // 3]  # every image three times; a third neighbour would be a tie
    assert largest_difference(x, f.head.features, neighbours=2) < 2e-5
    near_unit = f.head.features * (1 + 2e-4)
    assert largest_difference(f.image_features, near_unit) < 2e-5


@pytest.mark.parametrize("method", ["stata", "kedge"])
@pytest.mark.parametrize("crowd", [800, 1600])
def test_a_hub_of_hundreds_of_neighbours(method: str, crowd: int) -> None:
    """Identical images (frozen frames, placeholders) have the same few of them as neighbours: pulls beyond e^88."""
    f = simulate(50, 20, d=32, seed=5)
    x = torch.cat([f.image_features[:1].expand(crowd, -1), f.image_features])
    assert largest_difference(x, f.head.features, method=method) < 2e-5


def test_a_very_strong_graph() -> None:
    f = simulate(150, 20, d=32, seed=5)
    assert largest_difference(f.image_features, f.head.features, laplacian=100.0) < 2e-5


def test_in_blocks_and_on_two_threads(monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    f = simulate(500, 30, d=32, k_eff=6, seed=7)
    whole = kedge.adapt(f).probs
    monkeypatch.setattr(_fast, "BLOCK_ROWS", 64)
    monkeypatch.setattr(_fast, "NEIGHBOUR_ROWS", 37)
    monkeypatch.setattr(_fast, "THREADED_ENTRIES", 1)
    torch.testing.assert_close(kedge.adapt(f).probs, whole, atol=2e-6, rtol=0)


def test_a_best_class_that_moves_far_away_is_no_longer_the_ceiling() -> None:
    """w is taken relative to the anchors' maximum, useless where that class has left and others are far below."""
    anchored, log_y = np.array([[0, -100, -101]], np.float32), np.zeros((1, 3), np.float32)
    w = np.empty_like(anchored)
    _fast._weigh(
        0,
        1,
        anchored,
        anchored.max(axis=1),
        log_y,
        np.array([0]),
        np.full((1, 1), -500, np.float32),
        np.zeros(1, bool),
        w,
    )
    np.testing.assert_allclose(w / w.sum(), [[0, 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))]], atol=1e-6)


def test_exponentials_are_exact_to_float32() -> None:
    v = np.concatenate([np.linspace(-69, 0, 4001), np.linspace(0, 30, 999)]).astype(np.float32)
    mine = v.copy()
    _fast._exp(mine, np.empty(len(v), np.int32))
    np.testing.assert_allclose(mine, np.exp(v.astype(np.float64)), rtol=3e-7)


def test_neighbours_are_those_of_the_torch_graph() -> None:
    x = normalize(torch.randn(130, 16, generator=torch.Generator().manual_seed(0)))
    from kedge.methods._graph import NeighbourGraph

    nearest, similarity = _fast.nearest_neighbours(x, 4)
    ours, theirs = _fast.symmetric_graph(nearest, 0.5 * similarity), NeighbourGraph.of(x, 4, 0.5)
    assert torch.equal(torch.from_numpy(ours.offsets).int(), theirs.offsets)
    assert torch.equal(torch.from_numpy(ours.columns), theirs.columns)
    torch.testing.assert_close(torch.from_numpy(ours.values), theirs.values)


@pytest.mark.parametrize(
    "settings",
    [{"compiled": False}, {"graph": "dense"}, {"tol": 1e-3}, {"objective": True}, {"released_variance": True}],
    ids=str,
)
def test_what_it_can_not_do_is_left_to_torch(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    f = simulate(20, 5, d=16, seed=0)
    calls = []
    monkeypatch.setattr(_fast, "solve", lambda *a, **k: calls.append(1))
    assert kedge.adapt(f, **settings).probs.shape == (20, 5)
    assert kedge.adapt(f.image_features.double(), f.head.features.double()).probs.dtype == torch.float64
    assert not calls


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"proportions": False},
        {"own_say": False},
        {"guard": False},
        {"alpha": 10.0},
        {"iterations": 0},
        {"z_steps": 1},
    ],
    ids=str,
)
def test_kedge_along_a_stream(settings: dict[str, object]) -> None:
    """The second batch has a memory of the first."""
    f = simulate(150, 40, d=64, k_eff=8, seed=3)
    compiled, plain = (kedge.Stream("kedge", f.head, compiled=on, **settings) for on in (True, False))
    for rows in (slice(0, 80), slice(80, 150), slice(149, 150)):
        ours, theirs = compiled.step(f.image_features[rows]), plain.step(f.image_features[rows])
        torch.testing.assert_close(ours.probs, theirs.probs, atol=2e-5, rtol=0)
        assert {name: ours.info[name] for name in ("trust", "why")} == {
            name: theirs.info[name] for name in ("trust", "why")
        }


def test_without_numba_torch_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    from kedge.methods import _em

    f = simulate(20, 5, d=16, seed=0)
    monkeypatch.setattr(_em, "_has_numba", lambda: False)
    monkeypatch.setattr(_fast, "solve", None)
    z = kedge.StatA().step(None, Batch(f.image_features, f.head)).z
    torch.testing.assert_close(z, kedge.adapt(f, compiled=False).probs)
