"""EM-Dirichlet: against outputs of the authors' program, its fit against a direct optimum, its objective, its matching.

Simulated features unless a test takes `shared` or a recording.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.distributions import Dirichlet

import kedge
from cases import simulated
from kedge.labelling.check_method import check_method
from kedge.methods.em_dirichlet import EMDirichlet, fit_dirichlet, log_dirichlet, match, minimise_majorant
from recordings import entries, inputs, recording

NOTHING = torch.empty(0, dtype=torch.long)  # no known labels
VARIANTS = {"dirichlet_original": EMDirichlet(), "dirichlet_released": EMDirichlet.released()}


def batch(x: Tensor, t: Tensor) -> kedge.Batch:
    return kedge.Batch(x, kedge.TextHead(t))


@pytest.mark.parametrize(("name", "case", "entry"), list(entries(r"case_\w/dirichlet_\w+/pred")))
def test_recorded_output(name: str, case: str, entry: str) -> None:
    """Every label, in every iteration; no near tie is decided otherwise."""
    recorded = {
        key.split("/")[-1]: recording(name)[key] for key in recording(name).files if key.startswith(f"{case}/{entry}/")
    }
    x, t = (torch.from_numpy(a) for a in inputs(name, case))
    method = VARIANTS[entry]
    steps = list(method.iterate(batch(x, t)))
    clusters = np.stack([step.clusters.numpy() for step in steps])
    assert (clusters == recorded["labels_per_iter"]).all()
    if "alpha" in recorded:  # theirs is float32
        assert np.abs(steps[-1].alpha.numpy() / recorded["alpha"] - 1).max() <= 5e-4
    last = steps[-1].clusters
    if entry == "dirichlet_original":
        assert recorded["lambda"] == int(method.partition * len(t)) * len(x)
        assert (last.numpy() == recorded["pred_unmatched"]).all()
        last = match(last, method.log_s(batch(x, t)).exp(), NOTHING)
    assert (last.numpy() == recorded["pred"]).all()


def test_every_recording_is_compared(shared: object) -> None:
    found = {p.values for p in entries(r"case_\w/dirichlet_\w+/pred")}
    assert len(found) == 4 * 4 * 2


def test_labels_of_a_step_are_those_recorded(shared: object) -> None:
    name, case = "whurs19_clip_vitb32", "case_a"
    for entry, method in VARIANTS.items():
        result = kedge.adapt(*inputs(name, case), method=method)
        assert set(np.unique(result.probs)) == {0.0, 1.0}
        assert (result.probs.argmax(axis=1) == recording(name)[f"{case}/{entry}/pred"]).all()


def cost(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What a fit minimises, per class."""
    return (gammaln(a) - (a - 1) * y).sum(axis=-1) - gammaln(a.sum(axis=-1))


def statistics(classes: int, k: int, images: int = 30, seed: int = 0) -> np.ndarray:
    """Means of log s over images drawn from Dirichlet distributions (simulated)."""
    random = np.random.default_rng(seed)
    parameters = random.gamma(2.0, 2.0, (classes, k)) + 0.1
    return np.stack([np.log(random.dirichlet(a, images)).mean(axis=0) for a in parameters])


def test_fit_is_the_direct_optimum() -> None:
    """Maximum likelihood: ψ(a_j) − ψ(Σa) = y_j; and where a general minimiser of the same function ends."""
    y = statistics(4, 6)
    fitted = fit_dirichlet(np.ones((4, 6)), y, 20_000, 0.0)
    slope = digamma(fitted) - digamma(fitted.sum(axis=1, keepdims=True)) - y
    assert np.abs(slope).max() <= 1e-9
    for a, mean in zip(fitted, y, strict=True):

        def objective(log_a: np.ndarray, mean: np.ndarray = mean) -> tuple[float, np.ndarray]:
            a = np.exp(log_a)
            return float(cost(a, mean)), a * (digamma(a) - digamma(a.sum()) - mean)

        best = minimize(objective, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-10})
        assert np.abs(a / np.exp(best.x) - 1).max() <= 1e-6


def test_fit_stops_as_specified() -> None:
    """At the first of the steps 50, 100, … whose squared length, all classes together, is below tol of theirs."""
    y = statistics(5, 8)
    stops = []
    for tol in (1e-4, 1e-7, 1e-9, 1e-11):
        a = np.ones_like(y)
        for step in range(1, 1001):
            before, a = a, minimise_majorant(a, y)
            if step % 50 == 0 and np.square(a - before).sum() < tol * np.square(before).sum():
                stops.append(step)
                break
        assert np.abs(fit_dirichlet(np.ones_like(y), y, 1000, tol) / a - 1).max() <= 1e-12
    assert stops[0] == 50
    assert 150 <= stops[-1] <= 900
    a = np.ones_like(y)
    for _ in range(70):
        a = minimise_majorant(a, y)
    assert np.abs(fit_dirichlet(np.ones_like(y), y, 70, 1e-11) / a - 1).max() <= 1e-12


def test_classes_at_rest_are_left_alone_exactly() -> None:
    """A class of one image has no optimum and keeps the fit going; the others would not move any more."""
    y = statistics(4, 6)
    y[2] = np.log(np.random.default_rng(5).dirichlet(np.full(6, 2.0)))  # mean of one image
    a = np.ones_like(y)
    for _ in range(1000):
        a = minimise_majorant(a, y)
    fitted = fit_dirichlet(np.ones_like(y), y, 1000, 1e-11)
    assert np.abs(fitted / a - 1).max() <= 1e-10
    assert fitted[2].min() > 10 * fitted[[0, 1, 3]].max()


@given(seed=st.integers(0, 10**6), k=st.integers(1, 8), exponent=st.floats(-4, 4))
def test_a_step_never_raises_the_cost(seed: int, k: int, exponent: float) -> None:
    y = statistics(3, k, images=3, seed=seed)
    a = 10**exponent * np.random.default_rng(seed).gamma(1.0, 1.0, (3, k)).clip(0.01)
    for _ in range(20):
        before, a = a, minimise_majorant(a, y)
        assert (a > 0).all()
        assert (cost(a, y) <= cost(before, y) + 1e-9 * (1 + np.abs(cost(before, y)))).all()


def test_extreme_means_stay_finite() -> None:
    for y in (np.full((1, 4), -1e12), np.array([[-1e-9, -20.0, -1e3, -1e6]]), np.zeros((1, 1))):
        a = fit_dirichlet(np.ones_like(y), y, 1000, 1e-11)
        assert np.isfinite(a).all()
        assert (a > 0).all()


def test_density() -> None:
    x, t = simulated(9, 5, noise=1.0)
    log_s = EMDirichlet().log_s(batch(x, t))
    alpha = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 9 + 0.1
    truth = torch.stack([Dirichlet(a).log_prob(log_s.exp()) for a in alpha], dim=1)
    torch.testing.assert_close(log_dirichlet(log_s, alpha), truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize("partition", [0.0, 0.2, 1.0])
def test_objective_never_rises(partition: float) -> None:
    """−Σ u log Dir − λ Σ π log π, after every half of every iteration."""
    for seed, noise in ((0, 0.3), (1, 1.0)):
        x, t = simulated(60, 10, seed=seed, noise=noise)
        method = EMDirichlet(partition=partition, fit_steps=100, iterations=6)
        log_s = method.log_s(batch(x, t))
        weight = int(partition * 10) * 60

        def objective(u: Tensor, alpha: Tensor, log_s: Tensor = log_s, weight: int = weight) -> float:
            share = u.mean(dim=0)
            return float(-(u * log_dirichlet(log_s, alpha)).sum() - weight * torch.special.xlogy(share, share).sum())

        u = log_s.exp()
        values = [objective(u, torch.ones(10, 10, dtype=torch.float64))]
        for step in method.iterate(batch(x, t)):
            values.append(objective(u, step.alpha))
            u = torch.nn.functional.one_hot(step.clusters, 10).double()
            values.append(objective(u, step.alpha))
        assert max(after - before for before, after in itertools.pairwise(values)) <= 1e-9 * abs(values[0])
        assert values[-1] < values[0] - 1


def test_partition_complexity_favours_few_clusters_and_lets_none_come_back() -> None:
    x, t = simulated(60, 20, noise=1.0)

    def used(partition: float) -> list[set[int]]:
        return [set(step.clusters.tolist()) for step in EMDirichlet(partition=partition).iterate(batch(x, t))]

    few, many = used(1.0), used(0.0)
    assert len(few[-1]) < len(many[-1])
    assert all(after <= before for before, after in itertools.pairwise(few))


def test_matching_is_the_best_of_all() -> None:
    """By trying all of them; and the clusters' numbers do not matter."""
    random = torch.Generator().manual_seed(3)
    s = torch.rand(40, 5, generator=random, dtype=torch.float64)
    clusters = torch.tensor([0, 1, 3, 4])[torch.randint(4, (40,), generator=random)]  # cluster 2 is empty
    means = {k: s[clusters == k].mean(dim=0) for k in (0, 1, 3, 4)}
    best = max(
        itertools.permutations(range(5), 4),
        key=lambda classes: sum(float(means[k][c]) for k, c in zip(means, classes, strict=True)),
    )
    truth = torch.zeros(40, dtype=torch.long)
    for k, c in zip(means, best, strict=True):
        truth[clusters == k] = c
    assert torch.equal(match(clusters, s, NOTHING), truth)
    assert torch.equal(match(torch.tensor([4, 2, 0, 1, 3])[clusters], s, NOTHING), truth)


def test_released_setting() -> None:
    x, t = simulated(30, 7, noise=1.0)
    method = EMDirichlet.released()
    assert (method.partition, method.matching) == (0.0, False)
    *_, last = method.iterate(batch(x, t))
    assert torch.equal(method.step(None, batch(x, t)).z.argmax(dim=1), last.clusters)
    assert EMDirichlet.released(matching=True).matching
    check_method(EMDirichlet.released(iterations=2, fit_steps=60))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 1), (1, 6), (2, 3)])
def test_tiny_batches(n: int, k: int) -> None:
    x, t = simulated(n, k, noise=0.1)
    step = EMDirichlet().step(None, batch(x, t))
    assert (step.z.sum(dim=1) == 1).all()
    assert step.info["clusters"] <= min(n, k)
    if n == 1:
        assert int(step.z.argmax()) == int((x @ t.T).argmax())


def test_info() -> None:
    x, t = simulated(30, 7, noise=0.1)
    info = EMDirichlet().step(None, batch(x, t)).info
    assert info == {"iterations": 10, "converged": True, "clusters": info["clusters"]}
    assert not EMDirichlet(iterations=1).step(None, batch(x, t)).info["converged"]
