"""The compiled solver gives what the torch solver gives, in every corner of its settings and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import kedge
from kedge.features.simulate import simulate
from kedge.methods.contract import Batch
from kedge.methods.solve.neighbours import nearest_neighbours

pytest.importorskip("numba", reason="the compiled solver is the extra `fast`")

from kedge.methods import kedge as kedge_method
from kedge.methods.solve import _fast, _fast_kedge, _kernels
from kedge.methods.solve import compiled_neighbours as _fast_neighbours


def largest_difference(x: torch.Tensor, t: torch.Tensor, logit_scale: float = 100.0, **settings: object) -> float:
    """Between compiled and torch, in z."""
    results = [
        kedge.adapt(x, t, method="stata", logit_scale=logit_scale, compiled=on, **settings) for on in (True, False)
    ]
    assert results[0].info["iterations"] == results[1].info["iterations"]
    assert results[0].info["change"] == pytest.approx(results[1].info["change"], abs=1e-3)
    return float((results[0].probs - results[1].probs).abs().max())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["all live", "idle apart", "by label", "in blocks"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that no image has are kept among the others or apart, images are in their order or by label, or both in
    blocks."""
    monkeypatch.setattr(_fast, "APART", 1 if request.param == "idle apart" else 10**9)
    monkeypatch.setattr(_fast, "FEW", 1)
    monkeypatch.setattr(_fast, "CACHED", -1 if request.param == "by label" else 10**9)
    if request.param == "in blocks":
        monkeypatch.setattr(_fast, "NEAR", -1)
        monkeypatch.setattr(_fast, "BLOCK_ROWS", 64)


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
    few = f.image_features[:8]  # of which most classes can be idle
    assert largest_difference(few, near_unit, alpha=10.0, temperature=1.0) < 2e-5


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
    _kernels.best(0, 2, z, _kernels.nothing_known(2), np.arange(4), labels, 0, 4, 0)
    assert ((labels >= 0) & (labels < 4)).all()


@pytest.mark.parametrize("threaded", [False, True], ids=["one thread", "two threads"])
def test_in_blocks(threaded: bool, monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    f = simulate(500, 30, d=32, k_eff=6, seed=7)
    whole = kedge.adapt(f, method="stata").probs
    monkeypatch.setattr(_fast, "NEAR", 0)
    monkeypatch.setattr(_fast, "BLOCK_ROWS", 64)
    monkeypatch.setattr(_fast_neighbours, "SIDE", 37)
    monkeypatch.setattr(_fast_neighbours, "SHARED_SIDE", 37)
    monkeypatch.setattr(_fast, "THREADED_ENTRIES", 1 if threaded else 10**9)
    torch.testing.assert_close(kedge.adapt(f, method="stata").probs, whole, atol=2e-6, rtol=0)


def weighed(
    scores: list[float], vacated: list[int], w: np.ndarray, unary: np.ndarray, anchored: np.ndarray, reference: float
) -> np.ndarray:
    """One row after `weigh`: its first classes fitted with these scores, others back on their anchors."""
    count, k = len(scores), w.shape[1]
    rows = _kernels.nothing_known(1)
    rows[_kernels.REFERENCE], rows[_kernels.TOTAL], rows[_kernels.STIRRED] = reference, w.sum(), 0
    fitted, zeros = np.arange(count), np.zeros((1, k), np.float32)
    fit = (fitted, fitted, np.array(scores, np.float32).reshape(count, 1), zeros[0], zeros[0])
    tables = (zeros, anchored, np.arange(k), zeros, w, unary, rows, np.ones(1, np.float32))
    _kernels.weigh(0, 1, 0, 0, *fit, np.array(vacated, np.int64), *tables, 0, k, 0)
    return rows[:, 0]


def test_a_best_class_that_moves_far_away_is_no_longer_the_ceiling() -> None:
    """w is taken relative to the anchors' maximum, useless where that class has left and others are far below."""
    unary, w = np.array([[0, -100, -101]], np.float32), np.array([[1, 0, 0]], np.float32)
    row = weighed([-500], [], w, unary, unary.copy(), 0)
    np.testing.assert_allclose(w / w.sum(), [[0, 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))]], atol=1e-6)
    assert row[_kernels.REFERENCE] == -100
    assert row[_kernels.STIRRED] >= 1


@pytest.mark.parametrize("best", [45, 100])
def test_a_class_may_fall_back_to_an_anchor_far_above(best: int) -> None:
    anchored = np.array([[-1, best]], np.float32)
    unary, w = np.array([[-1, -7]], np.float32), np.exp(np.array([[0, -6]], np.float32))
    row = weighed([], [1], w, unary, anchored, -1)
    np.testing.assert_allclose(w, [[0, 1]], atol=1e-18)
    assert row[_kernels.REFERENCE] == best


def test_a_class_without_images_falls_back_to_its_anchor() -> None:
    anchored = np.array([[-1, -2]], np.float32)
    unary, w = np.array([[-1, -7]], np.float32), np.exp(np.array([[0, -6]], np.float32))
    row = weighed([], [1], w, unary, anchored, -1)
    np.testing.assert_array_equal(unary, anchored)
    np.testing.assert_allclose(w, [[1, np.exp(-1)]], rtol=1e-6)
    np.testing.assert_allclose(row[_kernels.TOTAL], 1 + np.exp(-1), rtol=1e-6)
    np.testing.assert_allclose(row[_kernels.STIRRED], (np.exp(-1) - np.exp(-6)) / row[_kernels.TOTAL], rtol=1e-4)


@pytest.mark.parametrize(
    ("seed", "n", "k", "d", "alpha", "iterations"), [(355, 8, 3, 16, 1.0, 25), (1860, 20, 6, 8, 1e-3, 15)]
)
def test_classes_of_hardly_more_than_an_image(seed: int, n: int, k: int, d: int, alpha: float, iterations: int) -> None:
    """Their variance is little, and mostly what is left out of their moments if that is 1e-5 of an image."""
    g = torch.Generator().manual_seed(seed)
    x, t = (normalize(torch.randn(rows, d, generator=g)) for rows in (n, k))
    settings = {"temperature": 1.0, "alpha": alpha, "iterations": iterations}
    assert largest_difference(x, t, logit_scale=20.0, **settings) < 1.5e-5


def test_what_is_at_rest_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of small batches rests on it: in the end hardly a class is fitted again, and then none."""
    fitted = []
    choose = _kernels.choose

    def counted(*told: np.ndarray) -> tuple[int, int]:
        fitted.append(choose(*told)[0])
        return fitted[-1], 0

    monkeypatch.setattr(_kernels, "choose", counted)
    monkeypatch.setattr(_kernels, "iterate", _kernels.iterate.py_func)
    kedge.adapt(simulate(64, 100, k_eff=10, seed=0), method="stata", iterations=60)
    assert fitted[0] > 10
    assert fitted[9] < fitted[0] / 2
    assert fitted[-1] == 0
    assert len(fitted) < 60


@pytest.mark.parametrize("images", [0, 1, 3, 4, 9])
def test_sums_and_scores_of_some_images(images: int) -> None:
    rng = np.random.default_rng(images)
    y, change = rng.standard_normal((12, 7)).astype(np.float32), np.zeros(12, np.float32)
    some = np.sort(rng.choice(12, images, replace=False))
    change[some] = rng.choice([-1, 1], images) * rng.uniform(0.5, 1, images)
    change[change == 0] = 0.1
    phi, eta = np.hstack([y, y**2]), rng.standard_normal((3, 14)).astype(np.float32)
    total, scores, scores2 = np.full((2, 7), np.nan, np.float32), np.zeros(15), np.zeros(15)
    found, changes = np.full(15, 99, np.uint64), np.full(15, np.nan, np.float32)
    size = _kernels.above(np.float32(0.2), change[None], 0, 12, 0, found, changes)
    np.testing.assert_array_equal(found[:size], some)
    _kernels.add_rows(size, found, changes, y, total)
    np.testing.assert_allclose(total.ravel(), change[some] @ phi[some], atol=1e-5)
    _kernels.scores_of(size, found, y, eta, 2, scores)
    np.testing.assert_allclose(scores[:images], phi[some] @ eta[2], atol=1e-5)
    _kernels.scores_of_two(size, found, y, eta, 1, 2, scores, scores2)
    np.testing.assert_allclose(np.stack([scores, scores2])[:, :images], (phi[some] @ eta[1:].T).T, atol=1e-5)


@pytest.mark.parametrize(("n", "classes"), [(1, 1), (5, 3), (300, 2)])
def test_scores_of_all_images(n: int, classes: int) -> None:
    rng = np.random.default_rng(n)
    y, eta = rng.standard_normal((n, 7)).astype(np.float32), rng.standard_normal((classes, 14)).astype(np.float32)
    scores = np.full((classes, n), np.nan, np.float32)
    _kernels.all_scores(y, eta, scores)
    np.testing.assert_allclose(scores, eta @ np.hstack([y, y**2]).T, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 50.0])
@pytest.mark.parametrize("size", [0, 1e-7, 1e-5])
def test_what_is_left_out_of_moments_is_little(size: float, temperature: float) -> None:
    """Changes of about this size: a class does without some, and never without more in all than it can."""
    rng, n, k, d = np.random.default_rng(0), 300, 3, 8
    y = rng.standard_normal((n, d)).astype(np.float32)
    counts, before = np.array([1, 30, 269], np.float32), rng.dirichlet(np.full(k, 0.1), n).astype(np.float32)
    before[7] = 0.1, 0.2, 0.7
    z = (before + size * rng.lognormal(size=(n, k))).astype(np.float32)
    z[7] = 0.3, 0.3, 0.4
    phi, fitted, cooling = np.hstack([y, y**2]), before.copy(), np.float32(1 / temperature)
    moments, mass, share, drift = before.T @ phi, before.sum(axis=0), np.ones(n, np.float32), np.zeros(k, np.float32)
    all_classes, place, places = np.arange(k, dtype=np.uint64), np.arange(k), np.empty(k, np.int64)
    told = (all_classes, all_classes, np.zeros(k, bool), counts, z, share, fitted, y, cooling)
    _kernels.renew(*told, moments, mass, place, drift, places)
    np.testing.assert_array_equal(places, place)
    np.testing.assert_allclose(moments, fitted.T @ phi, atol=2e-4)
    np.testing.assert_allclose(mass, fitted.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(fitted[7], z[7], rtol=1e-6)
    left_out = np.abs(z - fitted).sum(axis=0, dtype=np.float64)
    rounding = 1e-8 * n
    assert (left_out <= 1e-8 * temperature * (counts - 7 / 8) + rounding).all()
    if (size, temperature) == (1e-7, 50):  # some of the second, all of the third
        assert 5e-6 < left_out[1] < 0.9 * np.abs(z - before)[np.arange(n) != 7, 1].sum()
        assert left_out[2] > 0.9 * np.abs(z - before)[np.arange(n) != 7, 2].sum()


def test_what_changed_little_since_the_last_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits without a product of matrices: moments and scores are as if all had been computed, to what is at rest."""
    solvers = []
    result = _fast.Solver.result

    def keep(solver: _fast.Solver) -> object:
        solvers.append((solver, solver.x.astype(np.float64), solver.log_y.copy()))
        return result(solver)

    monkeypatch.setattr(_fast.Solver, "result", keep)
    kedge.adapt(simulate(64, 100, k_eff=10, seed=0), method="stata")
    ((solver, x, log_y),) = solvers
    share, left_out = solver.rows[_kernels.SHARE + solver.now], 0
    phi = np.hstack([x - solver.centre, (x - solver.centre) ** 2])
    for column in np.flatnonzero(solver.place >= 0):
        row, z = solver.place[column], share * solver.u[:, column]
        np.testing.assert_allclose(solver.sums.array[row], solver.fitted[:, column] @ phi, atol=1e-5)
        np.testing.assert_allclose(solver.masses[row], solver.fitted[:, column].sum(), rtol=1e-6)
        scores = phi @ solver.eta.array[row] - solver.constant[row]
        error = np.abs(solver.unary[:, column] - log_y[:, column] - scores)
        left = error > 2e-5  # more than rounding
        assert (z * error)[left].max(initial=0) < 2e-7
        left_out += np.count_nonzero(left)
    assert left_out > 100  # or nothing was saved


def test_a_graph_in_another_order() -> None:
    x = normalize(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)))
    order = np.random.default_rng(0).permutation(30)
    graph = _fast.symmetric_graph(nearest_neighbours(x, 3), 0.5)
    again = _fast.in_order(graph, order)

    def dense(graph: _fast.Graph) -> np.ndarray:
        matrix = np.zeros((30, 30), np.float32)
        np.add.at(matrix, (np.repeat(np.arange(30), np.diff(graph.offsets)), graph.columns), graph.values)
        return matrix

    np.testing.assert_array_equal(dense(again), dense(graph)[order][:, order])
    assert [table.dtype for table in again] == [table.dtype for table in graph]  # or all kernels are compiled again


def test_exponentials_are_exact_to_float32() -> None:
    v = np.concatenate([np.linspace(-69, 0, 4001), np.linspace(0, 30, 999)]).astype(np.float32)
    mine = v.copy()
    _kernels.exp(mine, 0, len(v), np.empty(len(v), np.int32))
    np.testing.assert_allclose(mine, np.exp(v.astype(np.float64)), rtol=3e-7)


def test_logarithms_are_exact_to_float32() -> None:
    v = np.concatenate([np.geomspace(1e-30, 1e3, 5000), [1, np.sqrt(0.5), np.sqrt(2), 0.99999994]]).astype(np.float32)
    mine = v.copy()
    _kernels.log(mine, np.empty(len(v), np.int32))
    np.testing.assert_allclose(mine, np.log(v.astype(np.float64)), rtol=3e-7, atol=3e-8)


@pytest.mark.parametrize("d", [1, 63, 512, 5000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_logarithms_added_up(d: int, scale: float) -> None:
    ratio = (scale * np.random.default_rng(d).uniform(0.01, 1.99, d)).astype(np.float32)
    expected = np.log(ratio.astype(np.float64)).sum()
    assert _kernels.sum_of_logs(ratio, ratio.view(np.int32)) == pytest.approx(expected, rel=1e-6, abs=1e-5 * d**0.5)


def test_sums_of_many_rows_keep_their_digits() -> None:
    z = np.random.default_rng(0).random((20_000, 3)).astype(np.float32)
    share = np.linspace(0.5, 1, len(z), dtype=np.float32)
    expected = (z.astype(np.float64) * share[:, None]).sum(axis=0)
    np.testing.assert_allclose(_kernels.sums(z, share, 0, 3), expected, rtol=1e-6)


def test_neighbours_are_those_of_the_torch_graph() -> None:
    x = normalize(torch.randn(130, 16, generator=torch.Generator().manual_seed(0)))
    from kedge.methods.solve.graph import NeighbourGraph

    nearest = nearest_neighbours(x, 4)
    ours, theirs = _fast.symmetric_graph(nearest, 0.5), NeighbourGraph.of(nearest, 0.5)
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
    assert kedge.adapt(f, method="stata", **settings).probs.shape == (20, 5)
    assert kedge.adapt(f.image_features.double(), f.head.features.double(), method="stata").probs.dtype == torch.float64
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
    compiled, plain = (kedge.Stream(f.head, "kedge", compiled=on, **settings) for on in (True, False))
    # Of two or five images the guard trusts nothing: T has no end then.
    for rows in (slice(0, 80), slice(80, 150), slice(149, 150), slice(3, 5), slice(20, 25), slice(0, 80)):
        ours, theirs = compiled.step(f.image_features[rows]), plain.step(f.image_features[rows])
        torch.testing.assert_close(ours.probs, theirs.probs, atol=2e-5, rtol=0)
        assert {name: ours.info[name] for name in ("trust", "why")} == {
            name: theirs.info[name] for name in ("trust", "why")
        }


@pytest.mark.parametrize(("n", "k", "sharpness"), [(1, 4, 9.0), (64, 100, 3.0), (300, 6, 3.0), (64, 100, 0.1)])
def test_what_kedge_remembers(n: int, k: int, sharpness: float) -> None:
    """Of the same z, three batches: classes that are established, some beyond what a memory holds; and nothing sure."""
    f = simulate(max(3 * n, k), k, k_eff=min(k, 3), seed=0)
    first = compiled = plain = kedge_method.Kedge().init(f.head)
    for start in range(0, 3 * n, n):
        x = f.image_features[start : start + n]
        z = torch.softmax(sharpness * f.head.log_zero_shot(x), dim=1)
        compiled, plain = (
            form.remembered(s, x, z, 0.8) for form, s in ((_fast_kedge, compiled), (kedge_method, plain))
        )
    for name, table in plain.items():
        torch.testing.assert_close(compiled[name], table, rtol=1e-5, atol=1e-7)
        assert not first[name].any(), "a state that was given is left as it is"
    assert bool(plain["counts"].any()) == (sharpness > 1)


def test_without_numba_torch_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    from kedge.methods.solve import _compiled

    f = simulate(20, 5, d=16, seed=0)
    monkeypatch.setattr(_compiled, "_has_numba", lambda: False)
    monkeypatch.setattr(_fast, "solve", None)
    z = kedge.StatA().step(None, Batch(f.image_features, f.head)).z
    torch.testing.assert_close(z, kedge.adapt(f, method="stata", compiled=False).probs)


@pytest.fixture
def idle_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fast, "APART", 1)
    monkeypatch.setattr(_fast, "FEW", 1)


def test_idle_columns_are_not_part_of_the_result(monkeypatch: pytest.MonkeyPatch, idle_apart: None) -> None:
    """Of a solver that is not kept, z may be one of its tables, which have room for live classes."""
    monkeypatch.setattr(_fast, "SMALL_ENTRIES", 0)
    f = simulate(30, 60, d=16, k_eff=5, seed=0)
    assert largest_difference(f.image_features, f.head.features) < 2e-5


@pytest.mark.parametrize("off", [1.0, 1 + 9e-4], ids=["unit", "rounded"])
def test_change_without_a_fit_where_there_is_no_room_at_first(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fast, "APART", 1)
    monkeypatch.setattr(_fast, "FEW", 8)
    g = torch.Generator().manual_seed(0)
    x, t = (normalize(torch.randn(rows, 8, generator=g)) for rows in (30, 60))
    ours, theirs = (
        kedge.adapt(x, off * t, method="stata", logit_scale=5.0, iterations=0, compiled=on).info for on in (True, False)
    )
    assert ours["change"] == pytest.approx(theirs["change"], rel=1e-4)


def test_a_class_that_loses_nearly_all_its_mass_keeps_its_digits() -> None:
    """It is summed anew: a difference of sums would be what rounding left."""
    n, k = 50, 2
    fitted, u = np.full((n, k), 0.5, np.float32), np.full((n, k), 0.5, np.float32)
    u[:, 1] = 1e-6  # not so little that it is left out
    lists = (*(np.empty(k, np.uint64) for _ in range(3)), np.empty(k, bool))
    counts, place = np.full(k, 20, np.float32), np.arange(k)
    told = (np.arange(k, dtype=np.uint64), 0, k, counts, counts, fitted, np.float32(-1), np.float32(1), place)
    assert _kernels.choose(u, np.ones(n, np.float32), *told, *lists) == (k, 0)
    assert lists[3].tolist() == [False, True]


@pytest.mark.usefixtures("idle_apart")
@pytest.mark.parametrize("z_steps", [1, 2, 3])
def test_a_single_image_whose_classes_do_not_move(z_steps: int) -> None:
    """At rest from the first fit on, its idle classes are never computed again."""
    f = simulate(1, 60, d=16, seed=0)
    settings = {"alpha": float("inf"), "iterations": 1, "z_steps": z_steps}
    assert largest_difference(f.image_features, f.head.features, logit_scale=5.0, **settings) < 1e-6


@pytest.mark.parametrize(
    ("alpha", "temperature", "z_steps", "seed"), [(1.0, 50.0, 1, 3), (1.0, 50.0, 5, 3), (10.0, 1.0, 5, 0)]
)
def test_more_classes_come_alive_than_there_is_room_for(
    alpha: float, temperature: float, z_steps: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(seed)
    x, t = normalize(torch.randn(30, 5, generator=g)), normalize(torch.randn(100, 5, generator=g))
    settings = {"alpha": alpha, "temperature": temperature, "z_steps": z_steps, "laplacian": 20.0, "logit_scale": 5.0}
    first = kedge.adapt(x, t, method="stata", iterations=0, compiled=False, **settings).probs.argmax(dim=1).unique()
    monkeypatch.setattr(_fast, "APART", 1)
    monkeypatch.setattr(_fast, "FEW", len(t) // len(first))  # room for these
    monkeypatch.setattr(_kernels, "iterate", _kernels.iterate.py_func)
    monkeypatch.setattr(_kernels, "enliven", _kernels.enliven.py_func)
    united = []
    give_back = _kernels.give_back

    def counted(*tables: np.ndarray) -> None:
        assert tables[0].shape == tables[4].shape  # none may be left out: kernels do not check
        united.append(1)
        give_back(*tables)

    monkeypatch.setattr(_kernels, "give_back", counted)
    assert largest_difference(x, t, **settings) < 2e-5
    assert united


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("n", [30, 70])  # with more images than classes, all tasks are of the same size
def test_a_kept_solver_remembers_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it solved before, and whether that came to an end, the result is that of a new one, to the bit."""
    features = [simulate(n, 60, d=16, k_eff=k_eff, seed=k_eff) for k_eff in (3, 8, 20)]
    tasks: list[tuple[int, dict[str, object]]] = [
        (0, {}),
        (0, {"neighbours": 10, "z_steps": 4}),
        (1, {"laplacian": 100.0}),
        (1, {"beta": "soft"}),
        (2, {"method": "kedge"}),
        (2, {"iterations": 0, "z_steps": 1}),
        (0, {"alpha": float("inf"), "iterations": 1, "z_steps": 1}),
        (0, {"temperature": 5.0}),
    ]
    expected = []
    for which, settings in tasks:
        _fast._kept.__dict__.clear()
        expected.append(kedge.adapt(features[which], **{"method": "stata", **settings}).probs)

    def results() -> list[torch.Tensor]:
        return [
            kedge.adapt(features[which], **{"method": "stata", **settings}).probs for which, settings in tasks[::-1]
        ]

    found = results()
    with monkeypatch.context() as broken:
        broken.setattr(_fast.Solver, "result", None)
        with pytest.raises(TypeError):
            kedge.adapt(features[0], method="stata")
    for ours, theirs in zip(found + results(), 2 * expected[::-1], strict=True):
        assert torch.equal(ours, theirs)


def test_solvers_are_kept_per_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    features = [simulate(30, 60, d=16, k_eff=k_eff, seed=k_eff) for k_eff in (3, 8, 20, 40)]
    expected = [kedge.adapt(f, method="stata").probs for f in features]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: kedge.adapt(features[i % 4], method="stata").probs, range(40)))
    for i, ours in enumerate(results):
        assert torch.equal(ours, expected[i % 4])


def test_a_solver_made_in_inference_mode_is_of_use_outside() -> None:
    f = simulate(21, 13, d=16, seed=0)
    with torch.inference_mode():
        inside = kedge.adapt(f, method="stata").probs.numpy()
    np.testing.assert_array_equal(kedge.adapt(f, method="stata").probs.numpy(), inside)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_idle_classes_follow_when_their_row_starts_anew(steps: int) -> None:
    """One image without neighbours, classes 0 and 1 idle, and 2, which was best, far below them from now on."""
    unary, w = np.array([[-100, -101, -500]], np.float32), np.zeros((1, 3), np.float32)
    tables = [np.array([[1e-30, 1e-30, 1]], np.float32), np.full((1, 3), np.nan, np.float32)]
    rows = _kernels.nothing_known(1)
    rows[_kernels.IDLE] = 2e-30
    _kernels.restart(0, unary, w, rows, np.empty(3, np.float32), np.empty(3, np.int32), 2, 3, 2)
    no_pull = (np.zeros(1, np.float32), np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    _kernels.pulls(steps, np.ones(3, np.float32), 0, *tables, w, unary, rows, no_pull, 2, 3, 2)
    z = rows[_kernels.SHARE + steps % 2] * tables[steps % 2]
    np.testing.assert_allclose(z, [[1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1)), 0]], atol=1e-6)


def test_small_changes_of_a_neighbour_add_up_until_an_image_is_computed() -> None:
    """Image 0 rests for two z-steps in which image 1 moves by 0.8e-6, pulling by half of that, and not for three."""
    tables = [np.full((2, 2), 0.5, np.float32) for _ in range(4)]  # u, next, w, unary
    graph = (np.array([0.5, 0], np.float32), np.array([0, 1, 1]), np.array([1], np.int32), np.array([0.5], np.float32))
    rows = _kernels.nothing_known(2)
    rows[_kernels.STIRRED] = 0
    computed = []
    for _ in range(3):
        rows[_kernels.MOVED] = (0, 0.8e-6)
        _kernels.pull(0, 2, np.ones(2, np.float32), 0, *tables, rows, graph, 0, 2, 0)
        computed.append(rows[_kernels.STIRRED, 0] == 0)
    assert computed == [False, False, True]


@pytest.mark.usefixtures("idle_apart")
@pytest.mark.parametrize("logit_scale", [1.0, 20.0])
def test_kedge_where_no_class_is_present(logit_scale: float) -> None:
    """Two undecided images: no class has a tenth of an image, at first or ever."""
    g = torch.Generator().manual_seed(0)
    x, t = (normalize(torch.randn(rows, 16, generator=g)) for rows in (2, 300))
    assert largest_difference(x, t, logit_scale=logit_scale, method="kedge", guard=False) < 2e-5


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("method", ["stata", "kedge"])
def test_where_the_arrays_of_kernels_lie_does_not_matter(method: str) -> None:
    """They are new in every call, and short where d is: some touch."""
    f, rng, results = simulate(70, 60, d=16, k_eff=3, seed=3), np.random.default_rng(0), set()
    for _ in range(300):
        between = [np.empty(size, np.float32) for size in rng.integers(1, 3000, rng.integers(0, 20))]
        _fast._kept.__dict__.clear()
        results.add(kedge.adapt(f, method=method, iterations=2).probs.numpy().tobytes())
        del between
    assert len(results) == 1


def numpy_with_a_gap(gap: int) -> SimpleNamespace:
    """numpy, but new arrays, all zeros, lie one after the other in one piece of memory, `gap` bytes apart."""
    memory, at = np.zeros(2**20, np.uint8), 0

    def zeros(shape: int | tuple[int, ...], dtype: type) -> np.ndarray:
        nonlocal at
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        array = memory[at : at + size].view(dtype).reshape(shape)
        at += size + -size % 8 + gap
        return array

    return SimpleNamespace(**{**vars(np), "empty": zeros, "zeros": zeros})


@pytest.mark.parametrize("method", ["stata", "kedge"])
def test_where_arrays_lie_in_memory_does_not_matter(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same input, same result, to the bit.

    A compiled loop goes one by one where it stores within a few vectors of what it reads, as it can in small tables
    that touch; if it adds up too, the order of the sum, and its last digit, hang on that.
    """
    for n, k in itertools.product((1, 2, 3, 4), (5, 8, 12, 16)):
        f = simulate(n, k, d=16, seed=0)
        results, distances = [], []
        for gap in (0, 4096):
            _fast._kept.__dict__.clear()
            monkeypatch.setattr(_fast, "np", numpy_with_a_gap(gap))
            results.append(kedge.adapt(f, method=method).probs)
            distances.append(abs(_fast._kept.solver.next.ctypes.data - _fast._kept.solver.u.ctypes.data))
        assert torch.equal(*results)
        assert distances[1] - distances[0] == 4096
