"""What must hold whatever the data: an objective that never rises, the limits of α, β, T, λ, the symmetries.

All features here are simulated, in float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

import kedge
import oracle
from cases import simulated
from kedge.arrays import unit
from kedge.methods.solve.em import RELEASED_CHUNK
from kedge.methods.solve.gaussian import VARIANCE_FLOOR
from kedge.methods.solve.graph import GramGraph, NeighbourGraph
from kedge.methods.solve.neighbours import nearest_neighbours
from kedge.methods.stata import Iterate, StatA

ROUND_OFF = 1e-13  # relative; measured: 4e-16
SHAPES = [(1, 1, 2), (1, 5, 8), (2, 3, 1), (3, 1, 8), (5, 7, 16), (40, 7, 16), (60, 40, 8), (120, 10, 64)]


def batch(x: Tensor, t: Tensor, logit_scale: float = 100.0) -> kedge.Batch:
    return kedge.Batch(x, kedge.TextHead(t, logit_scale))


def objective(method: StatA, x: Tensor, t: Tensor, logit_scale: float = 100.0) -> Tensor:
    values = method.step(None, batch(x, t, logit_scale)).info["objective"]
    assert len(values) > 2
    return torch.tensor(values, dtype=torch.float64)


def rises(values: Tensor) -> Tensor:
    """By how much each step raised the objective, beyond round-off."""
    return (values.diff() - ROUND_OFF * (1 + values[1:].abs())).clamp_min(0)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("logit_scale", [5.0, 100.0])
@pytest.mark.parametrize(("n", "k", "d"), SHAPES)
def test_objective_never_rises(n: int, k: int, d: int, logit_scale: float, alpha: float) -> None:
    literal = StatA.literal(alpha=alpha, objective=True, iterations=60)
    for seed, noise in (
        (0, 0.3),
        (1, 1.0),
        (2, 1e3),
    ):  # clusters, overlapping clusters, features without structure
        values = objective(literal, *simulated(n, k, d, seed=seed, noise=noise), logit_scale)
        assert rises(values).max() == 0
        assert values[-1] < values[0] or min(n, k, d) == 1


def test_objective_never_rises_with_several_z_steps() -> None:
    values = objective(StatA.literal(objective=True, z_steps=5, iterations=30), *simulated(60, 10, noise=1.0))
    assert rises(values).max() == 0


def test_the_objective_notices_hard_counts() -> None:
    """The tests above can fail: the defaults, with hard counts and unit means, are no descent on it."""
    assert rises(objective(StatA(objective=True), *simulated(60, 10, noise=1.0))).max() > 0


ALPHA = 2.0


def written_out(x: Tensor, t: Tensor, step: Iterate, mu: Tensor, var: Tensor, temperature: float) -> Tensor:
    """L(z, μ, Σ) as the module docstring of kedge.methods.stata has it, in torch.distributions."""
    z, log_y = step.z, (100 * x @ t.T).log_softmax(dim=1)
    classes = Independent(Normal(mu, var.sqrt()), 1)
    anchors = Independent(Normal(t, step.var0.sqrt().expand_as(t)), 1)  # type: ignore[union-attr]
    text = (torch.special.xlogy(z, z) - z * log_y).sum()
    laplacian = 0.5 * torch.einsum("ij,ik,jk->", x @ x.T, z, z)
    likelihood = (z * classes.log_prob(x[:, None, :])).sum()
    anchor = ALPHA * kl_divergence(anchors, classes).sum()
    return text - laplacian + (anchor - likelihood) / temperature


@pytest.mark.parametrize("temperature", [1.0, 7.0])
def test_objective_is_the_one_written_down(temperature: float) -> None:
    """The reported one differs from it by a constant only; and an M-step finds its minimum over μ and Σ."""
    x, t = simulated(30, 6, noise=1.0)
    literal = StatA.literal(objective=True, iterations=15, alpha=ALPHA, temperature=temperature)
    gaps = []
    for step in list(literal.iterate(batch(x, t)))[:-1]:
        mu, var = (p.requires_grad_() for p in full(step, t))
        value = written_out(x, t, step, mu, var, temperature)
        gaps.append(value.item() - step.objective[-1])
        before = step.objective[-2] + gaps[-1]
        for parameter, slope in zip((mu, var), torch.autograd.grad(value, (mu, var)), strict=True):
            assert (slope * parameter).abs().max() <= 1e-9
        for wrong in (1.25 * mu, var), (mu, 1.25 * var), (mu, 0.8 * var):
            assert written_out(x, t, step, *wrong, temperature) > value
        assert value.item() <= before + ROUND_OFF * abs(before)
    assert max(gaps) - min(gaps) <= 1e-9 * abs(max(gaps))


def last_m_step(method: StatA, x: Tensor, t: Tensor) -> Iterate:
    return list(method.iterate(batch(x, t)))[-2]


def full(step: Iterate, t: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of all classes."""
    assert step.active is not None
    assert step.mu is not None
    assert step.var is not None
    assert step.var0 is not None
    return t.index_copy(0, step.active, step.mu), step.var0.expand_as(t).index_copy(0, step.active, step.var)


@pytest.mark.parametrize("beta", ["hard", "soft"])
@pytest.mark.parametrize("unit_means", [True, False])
@pytest.mark.parametrize(("alpha", "tolerance"), [(1e12, 1e-9), (float("inf"), 1e-15)])
def test_large_alpha_keeps_the_anchors(beta: Any, unit_means: bool, alpha: float, tolerance: float) -> None:
    x, t = simulated(40, 7)
    step = last_m_step(StatA(alpha=alpha, beta=beta, unit_means=unit_means), x, t)
    mu, var = full(step, t)
    assert step.var0 is not None
    assert (mu - t).abs().max() <= tolerance
    assert (var / step.var0 - 1).abs().max() <= tolerance
    plain = last_m_step(StatA(beta=beta, unit_means=unit_means), x, t)  # and α = 1 does not
    assert (full(plain, t)[0] - t).abs().max() > 1e-2


@pytest.mark.parametrize("beta", ["hard", "soft"])
def test_zero_alpha_is_maximum_likelihood(beta: Any) -> None:
    x, t = simulated(40, 7, present=4, noise=0.1)
    step = last_m_step(StatA(alpha=0.0, beta=beta), x, t)
    assert step.active is not None
    assert len(step.active) == (7 if beta == "soft" else 4)
    for j, class_ in enumerate(step.active.tolist()):
        weight = step.z[:, class_] / step.z[:, class_].sum()
        mean = unit(weight @ x)
        variance = (weight @ (x - mean).square()).clamp_min(VARIANCE_FLOOR / x.shape[1])
        torch.testing.assert_close(step.mu[j], mean, atol=1e-12, rtol=0)  # type: ignore[index]
        torch.testing.assert_close(step.var[j], variance, atol=1e-14, rtol=1e-9)  # type: ignore[index]


def test_empty_classes_stay_on_their_anchors() -> None:
    """With hard counts: the classes left out are those with no image, and leaving them out is exact."""
    x, t = simulated(30, 50, present=3, noise=0.15)
    truth = oracle.stata(x, t)
    for i, step in enumerate(StatA().iterate(batch(x, t))):
        torch.testing.assert_close(step.z, truth.z[i], atol=1e-10, rtol=0)
        if step.active is not None:
            assert step.active.tolist() == step.z.argmax(dim=1).unique().tolist()
            assert len(step.active) < 10
            mu, var = full(step, t)
            torch.testing.assert_close(mu, truth.mu[i], atol=1e-10, rtol=0)
            torch.testing.assert_close(var, truth.var[i], atol=0, rtol=1e-8)


def test_prototypes_of_nearly_unit_norm() -> None:
    """An empty class has μ_k = unit(t_k), which for rounded prototypes is not t_k."""
    x, t = simulated(30, 50, present=3, noise=0.15)
    t = t * torch.linspace(0.9991, 1.0009, 50, dtype=torch.float64)[:, None]
    z, truth = StatA().step(None, batch(x, t)).z, oracle.stata(x, t).z[-1]
    assert (z - truth).abs().max() <= 1e-6  # Σ_k of an empty class lacks (t_k − μ_k)² < 1e-6


def test_literal_setting_is_the_paper() -> None:
    x, t = simulated(50, 8, noise=1.0)
    truth = oracle.stata(x, t, beta="soft", temperature=1, graph="dense", unit_means=False, iterations=12, z_steps=1)
    z = StatA.literal(iterations=12, tol=0.0).step(None, batch(x, t)).z
    assert (z - truth.z[-1]).abs().max() <= 1e-9


@pytest.mark.parametrize(
    "method", [StatA(), StatA(beta="soft"), StatA.literal(iterations=20)], ids=["hard", "soft", "literal"]
)
def test_order_carries_no_meaning(method: StatA) -> None:
    x, t = simulated(40, 7, noise=0.6)
    z = method.step(None, batch(x, t)).z
    random = torch.Generator().manual_seed(5)
    images, classes = torch.randperm(40, generator=random), torch.randperm(7, generator=random)
    assert (method.step(None, batch(x[images], t)).z - z[images]).abs().max() <= 1e-9
    assert (method.step(None, batch(x, t[classes])).z - z[:, classes]).abs().max() <= 1e-9


def test_without_graph_and_likelihood_it_is_zero_shot() -> None:
    x, t = simulated(40, 7, noise=1.0)
    zero_shot = kedge.ZeroShot().step(None, batch(x, t)).z
    alone = StatA(laplacian=0.0, temperature=1e300).step(None, batch(x, t)).z
    assert (alone - zero_shot).abs().max() <= 1e-14
    for method in (StatA(temperature=1e300), StatA(laplacian=0.0)):  # each of the two does something
        assert (method.step(None, batch(x, t)).z - zero_shot).abs().max() > 1e-3


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 2, 9])
def test_tiny_batches(n: int, k: int) -> None:
    """Fewer images than neighbours: those that there are, each with its usual weight."""
    x, t = simulated(n, k, noise=1.0)
    z = StatA().step(None, batch(x, t)).z
    assert (z - oracle.stata(x, t).z[-1]).abs().max() <= 1e-10
    if k == 1:
        assert torch.equal(z, torch.ones_like(z))


def test_neighbour_graph_is_the_symmetric_sum() -> None:
    n = 529
    x, _ = simulated(n, 5, 8, noise=1.0)
    x[7] = x[400]  # a duplicate is a neighbour
    w = oracle.nearest(x, 3)
    z = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nearest = nearest_neighbours(x, 3)
    assert (NeighbourGraph.of(nearest, 0.25) @ z - 0.25 * (w + w.T) @ z).abs().max() <= 1e-12
    assert (GramGraph(x, 0.25) @ z - 0.25 * x @ x.T @ z).abs().max() <= 1e-12
    assert nearest.indices[[7, 400], 0].tolist() == [400, 7]


@pytest.mark.parametrize("n", [RELEASED_CHUNK - 1, RELEASED_CHUNK + 100, 2 * RELEASED_CHUNK + 1])
def test_released_variance(n: int) -> None:
    """The program's Σ' = (… (S_1/n + S_2)/n …)/n over chunks of 2500; without the switch, the equation."""
    x, t = simulated(n, 3, 4, noise=1.0)
    y = (100 * x @ t.T).softmax(dim=1)
    squares = torch.einsum("nk,nkd->nd", y, (x[:, None, :] - t).square())
    right, released = (
        next(StatA(iterations=0, released_variance=switch).iterate(batch(x, t))).var0 for switch in (False, True)
    )
    running = torch.zeros(4, dtype=torch.float64)
    for chunk in squares.split(2500):
        running = (running + chunk.sum(dim=0)) / n
    torch.testing.assert_close(right, squares.mean(dim=0), rtol=1e-12, atol=0)
    torch.testing.assert_close(released, running, rtol=1e-12, atol=0)


def test_iterations_and_tolerance() -> None:
    x, t = simulated(40, 7)
    none = StatA(iterations=0).step(None, batch(x, t))
    assert none.info["iterations"] == 0
    assert (none.z - oracle.stata(x, t, iterations=0).z[-1]).abs().max() <= 1e-12
    whole = StatA(iterations=40).step(None, batch(x, t))
    early = StatA(iterations=40, tol=1e-6).step(None, batch(x, t))
    assert whole.info["iterations"] == 40
    assert 0 < early.info["iterations"] < 40
    assert early.info["converged"]
    assert (whole.z - early.z).abs().max() <= 1e-4
    cut = StatA(iterations=1, z_steps=1, tol=1e-12).step(None, batch(*simulated(40, 7, noise=1.0)))
    assert cut.info["iterations"] == 1
    assert not cut.info["converged"]
    assert cut.info["change"] > 1e-12


def test_info_says_nothing_it_was_not_asked_for() -> None:
    assert "objective" not in StatA().step(None, batch(*simulated(5, 3))).info
    assert len(StatA(objective=True).step(None, batch(*simulated(5, 3))).info["objective"]) == 11 * 5 + 10


def test_objective_is_finite_at_infinite_alpha() -> None:
    values = objective(StatA.literal(alpha=float("inf"), objective=True, iterations=20), *simulated(20, 5))
    assert values.isfinite().all()
    assert rises(values).max() == 0
