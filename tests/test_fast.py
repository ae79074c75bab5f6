"""The compiled solver gives what the torch solver gives, in every corner of its settings and shapes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import kedge
from kedge.methods import Batch
from kedge.methods._neighbours import nearest_neighbours
from kedge.simulate import simulate

pytest.importorskip("numba", reason="the compiled solver is the extra `fast`")

from kedge.methods import _fast, _fast_neighbours


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


@pytest.fixture(params=[False, True], ids=["all live", "idle apart"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that no image has are kept among the others, or apart."""
    monkeypatch.setattr(_fast, "APART", 1 if request.param else 10**9)
    monkeypatch.setattr(_fast, "FEW", 1)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": "soft"},
        {"beta": "soft", "alpha": 0.0, "temperature": 5.0},
        {"beta": "soft", "alpha": 1e-6, "temperature": 5.0},
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


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("n", "k", "d"), [(1, 1, 4), (1, 7, 8), (2, 3, 8), (3, 1, 5), (5, 70, 33), (70, 65, 17), (300, 200, 48)]
)
def test_shapes(n: int, k: int, d: int) -> None:
    g = torch.Generator().manual_seed(n + k)
    x, t = normalize(torch.randn(n, d, generator=g)), normalize(torch.randn(k, d, generator=g))
    assert largest_difference(x, t, logit_scale=20.0) < 2e-5  # many similarities are negative here


@pytest.mark.usefixtures("either_way")
def test_duplicates_and_rounded_prototypes() -> None:
    f = simulate(60, 20, d=32, seed=5)
    x = f.image_features[torch.arange(60) // 3]  # every image three times; a third neighbour would be a tie
    assert largest_difference(x, f.head.features, neighbours=2) < 2e-5
    near_unit = f.head.features * (1 + 9e-4)
    assert largest_difference(f.image_features, near_unit, alpha=10.0, temperature=1.0) < 2e-5


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("method", ["stata", "kedge"])
@pytest.mark.parametrize("crowd", [800, 1600])
def test_a_hub_of_hundreds_of_neighbours(method: str, crowd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identical images (frozen frames, placeholders) have the same few of them as neighbours: pulls beyond e^88."""
    # Both get the same neighbours: which of the identical images come first is anyone's choice.
    monkeypatch.setattr(f"kedge.methods.{method}.nearest_neighbours", lambda x, m, **_: nearest_neighbours(x, m))
    f = simulate(50, 20, d=32, seed=5)
    x = torch.cat([f.image_features[:1].expand(crowd, -1), f.image_features])
    assert largest_difference(x, f.head.features, method=method) < 2e-5


@pytest.mark.usefixtures("either_way")
def test_a_very_strong_graph() -> None:
    f = simulate(150, 20, d=32, seed=5)
    assert largest_difference(f.image_features, f.head.features, laplacian=100.0) < 2e-5


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("seed", [1, 29, 59, 113])
def test_rows_that_others_pull_strongly_do_not_freeze(seed: int) -> None:
    """Changes of w far below the sum of all decide once they are multiplied with e^100."""
    g = torch.Generator().manual_seed(seed)
    x, t = (normalize(torch.randn(rows, 32, generator=g) + 0.5) for rows in (12, 5))
    assert largest_difference(x, t, laplacian=100.0) < 2e-5


def test_what_is_not_a_number_stays_within_its_arrays() -> None:
    z, labels = np.full((2, 4), np.nan, np.float32), np.full(2, -1)
    z.view(np.int32)[:] |= np.int32(-(2**31))  # as a processor makes them
    _fast._best(0, 2, z, _fast._nothing_known(2), np.arange(4), np.zeros(2, np.int64), labels, 0, 4, 0)
    assert ((labels >= 0) & (labels < 4)).all()


def test_in_blocks_and_on_two_threads(monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    f = simulate(500, 30, d=32, k_eff=6, seed=7)
    whole = kedge.adapt(f).probs
    monkeypatch.setattr(_fast, "HELD_ROWS", 100)
    monkeypatch.setattr(_fast, "BLOCK_ROWS", 64)
    monkeypatch.setattr(_fast_neighbours, "SIDE", 37)
    monkeypatch.setattr(_fast_neighbours, "SHARED_SIDE", 37)
    monkeypatch.setattr(_fast, "THREADED_ENTRIES", 1)
    torch.testing.assert_close(kedge.adapt(f).probs, whole, atol=2e-6, rtol=0)


def weighed(
    scores: list[float], vacated: list[int], w: np.ndarray, unary: np.ndarray, anchored: np.ndarray, reference: float
) -> np.ndarray:
    """One row after `_weigh`: its first classes fitted with these scores, others back on their anchors."""
    count, k = len(scores), w.shape[1]
    rows = _fast._nothing_known(1)
    rows[_fast.REFERENCE], rows[_fast.TOTAL], rows[_fast.STIRRED] = reference, w.sum(), 0
    fitted, zeros = np.arange(count), np.zeros((1, k), np.float32)
    fit = (fitted, fitted, np.array(scores, np.float32).reshape(count, 1), zeros[0], zeros[0])
    tables = (zeros, anchored, np.arange(k), zeros, w, unary, rows, np.ones(1, np.float32))
    _fast._weigh(0, 1, 0, 0, *fit, np.array(vacated, np.int64), *tables, 0, k, 0)
    return rows[:, 0]


def test_a_best_class_that_moves_far_away_is_no_longer_the_ceiling() -> None:
    """w is taken relative to the anchors' maximum, useless where that class has left and others are far below."""
    unary, w = np.array([[0, -100, -101]], np.float32), np.array([[1, 0, 0]], np.float32)
    row = weighed([-500], [], w, unary, unary.copy(), 0)
    np.testing.assert_allclose(w / w.sum(), [[0, 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))]], atol=1e-6)
    assert row[_fast.REFERENCE] == -100
    assert row[_fast.STIRRED] >= 1


@pytest.mark.parametrize("best", [45, 100])
def test_a_class_may_fall_back_to_an_anchor_far_above(best: int) -> None:
    anchored = np.array([[-1, best]], np.float32)
    unary, w = np.array([[-1, -7]], np.float32), np.exp(np.array([[0, -6]], np.float32))
    row = weighed([], [1], w, unary, anchored, -1)
    np.testing.assert_allclose(w, [[0, 1]], atol=1e-18)
    assert row[_fast.REFERENCE] == best


def test_a_class_without_images_falls_back_to_its_anchor() -> None:
    anchored = np.array([[-1, -2]], np.float32)
    unary, w = np.array([[-1, -7]], np.float32), np.exp(np.array([[0, -6]], np.float32))
    row = weighed([], [1], w, unary, anchored, -1)
    np.testing.assert_array_equal(unary, anchored)
    np.testing.assert_allclose(w, [[1, np.exp(-1)]], rtol=1e-6)
    np.testing.assert_allclose(row[_fast.TOTAL], 1 + np.exp(-1), rtol=1e-6)
    np.testing.assert_allclose(row[_fast.STIRRED], (np.exp(-1) - np.exp(-6)) / row[_fast.TOTAL], rtol=1e-4)


def test_what_is_at_rest_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of small batches rests on it: in the end hardly a class is fitted again."""
    fitted = []
    moments = _fast.Solver.moments

    def counted(solver: _fast.Solver, counts: np.ndarray) -> object:
        result = moments(solver, counts)
        fitted.append((len(solver.classes), np.count_nonzero(counts)))
        return result

    monkeypatch.setattr(_fast.Solver, "moments", counted)
    kedge.adapt(simulate(64, 100, k_eff=10, seed=0))
    assert fitted[0][0] == fitted[0][1] > 10
    assert fitted[-1][0] < fitted[-1][1] / 2


@pytest.mark.parametrize(("n", "d"), [(64, 32), (7, 5), (9, 6), (1, 3)])
def test_phi_and_its_transpose(n: int, d: int) -> None:
    x = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    phi, phi_t = np.full((n, 2 * d), np.nan, np.float32), np.full((2 * d, n), np.nan, np.float32)
    _fast._phi(0, n, 0, x, x.mean(axis=0), phi)
    _fast._transpose(phi, phi_t)
    centred = x - x.mean(axis=0)
    np.testing.assert_allclose(phi, np.hstack([centred, centred**2]), atol=1e-6)
    np.testing.assert_array_equal(phi_t, phi.T)


def test_exponentials_are_exact_to_float32() -> None:
    v = np.concatenate([np.linspace(-69, 0, 4001), np.linspace(0, 30, 999)]).astype(np.float32)
    mine = v.copy()
    _fast._exp(mine, 0, len(v), np.empty(len(v), np.int32))
    np.testing.assert_allclose(mine, np.exp(v.astype(np.float64)), rtol=3e-7)


def test_logarithms_are_exact_to_float32() -> None:
    v = np.concatenate([np.geomspace(1e-30, 1e3, 5000), [1, np.sqrt(0.5), np.sqrt(2), 0.99999994]]).astype(np.float32)
    mine = v.copy()
    _fast._log(mine, np.empty(len(v), np.int32))
    np.testing.assert_allclose(mine, np.log(v.astype(np.float64)), rtol=3e-7, atol=3e-8)


def test_sums_of_many_rows_keep_their_digits() -> None:
    z = np.random.default_rng(0).random((20_000, 3)).astype(np.float32)
    share = np.linspace(0.5, 1, len(z), dtype=np.float32)
    expected = (z.astype(np.float64) * share[:, None]).sum(axis=0)
    np.testing.assert_allclose(_fast._sums(z, share, 0, 3), expected, rtol=1e-6)


def test_neighbours_are_those_of_the_torch_graph() -> None:
    x = normalize(torch.randn(130, 16, generator=torch.Generator().manual_seed(0)))
    from kedge.methods._graph import NeighbourGraph

    nearest = nearest_neighbours(x, 4)
    ours, theirs = _fast.symmetric_graph(nearest.indices, 0.5 * nearest.similarity), NeighbourGraph.of(nearest, 0.5)
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


@pytest.mark.usefixtures("either_way")
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
    from kedge.methods import _compiled

    f = simulate(20, 5, d=16, seed=0)
    monkeypatch.setattr(_compiled, "_has_numba", lambda: False)
    monkeypatch.setattr(_fast, "solve", None)
    z = kedge.StatA().step(None, Batch(f.image_features, f.head)).z
    torch.testing.assert_close(z, kedge.adapt(f, compiled=False).probs)
