"""MOON: against outputs of the authors' program, against its plain form, and piece by piece.

Simulated features unless a test takes `shared` or a recording.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import ive
from torch import Tensor
from torch.nn.functional import normalize

import kedge
import oracle
from cases import simulated
from kedge.methods.moon import Moon, anchor_weights, concentration, decidedness, log_density
from recordings import column_distance, comparable_rows, distances, entries, inputs, recording

TOLERANCE = 1e-4


def batch(x: Tensor, t: Tensor) -> kedge.Batch:
    return kedge.Batch(x, kedge.TextHead(t))


def zero_shot(x: Tensor, t: Tensor) -> Tensor:
    return (100 * x @ t.T).softmax(dim=1)


def plain(x: Tensor, t: Tensor, iterations: int = 10) -> Tensor:
    """z by the equations, class by class; every class takes part in every step."""
    n, d = x.shape
    k = len(t)
    y = zero_shot(x, t)
    w = oracle.nearest(x, 3)

    def ratio(r: float) -> float:
        r = min(max(r, 0.0), 0.999)
        return max((d * r - r**3) / (1 - r**2), 1e-30)

    weight = [math.sqrt(float(y[:, j].mean() * y[:, j].max())) for j in range(k)]
    alpha = [max(weight) / weight[j] for j in range(k)]
    z, mu = y, [t[j] for j in range(k)]
    kappa = [ratio(float((z[:, j] * (x @ t[j])).sum() / z[:, j].sum())) for j in range(k)]
    for iteration in range(iterations + 1):
        log_p = torch.stack(
            [kappa[j] * (x @ mu[j]) + (d - 1) / 2 * math.log(kappa[j]) - kappa[j] for j in range(k)], dim=1
        )
        z = (y.log() + log_p / 50 + (w + w.T) @ z / 6).softmax(dim=1)
        if iteration == iterations:
            break
        g = [1 - float(torch.distributions.Categorical(z[i]).entropy()) / math.log(k) for i in range(n)]
        for j in range(k):
            count = int((z.argmax(dim=1) == j).sum())
            beta = count / (count + alpha[j])
            total = sum(g[i] * z[i, j] for i in range(n))
            v = sum(g[i] * z[i, j] * x[i] for i in range(n)) / total
            q = beta * v + (1 - beta) * t[j]
            mu[j] = q / q.norm()
            kappa[j] = min(ratio(float(q.norm())), 500.0)
    return z


@pytest.mark.parametrize(("name", "case", "entry"), list(entries(r"case_\w/moon/pred")))
def test_recorded_output(name: str, case: str, entry: str) -> None:
    z = kedge.adapt(*inputs(name, case), method="moon").probs
    off = distances(name, case, entry, z)[comparable_rows(name, case, len(z))]
    assert off.max() <= TOLERANCE
    assert column_distance(name, case, entry, z) <= 1e-3
    assert (z.argmax(axis=1) == recording(name)[f"{case}/{entry}/pred"]).all()


def test_every_recording_is_compared(shared: object) -> None:
    assert len(list(entries(r"case_\w/moon/pred"))) == 4 * 4


@pytest.mark.parametrize(("n", "k", "noise"), [(30, 6, 0.3), (30, 6, 1.0), (3, 9, 0.5), (2, 2, 1.0)])
def test_plain_form(n: int, k: int, noise: float) -> None:
    x, t = simulated(n, k, noise=noise)
    assert (Moon().step(None, batch(x, t)).z - plain(x, t)).abs().max() <= 1e-9


def test_plain_form_with_absent_classes() -> None:
    """Classes without images are left out of the updates, exactly."""
    x, t = simulated(20, 40, present=3, noise=0.15)
    steps = list(Moon().iterate(batch(x, t)))
    assert all(len(step.active) < 8 for step in steps[:-1] if step.active is not None)
    assert (steps[-1].z - plain(x, t)).abs().max() <= 1e-9


def test_without_graph_images_are_independent_given_the_classes() -> None:
    x, t = simulated(30, 6, noise=1.0)
    y = zero_shot(x, t)
    steps = list(Moon(laplacian=0.0).iterate(batch(x, t)))
    for before, step in itertools.pairwise(steps):
        assert before.active is not None
        assert before.mu is not None
        assert before.kappa is not None
        mu = t.index_copy(0, before.active, before.mu)
        kappa = torch.full((6,), 500.0, dtype=x.dtype).index_copy(0, before.active, before.kappa)
        log_p = kappa * (x @ mu.T) + 7.5 * kappa.log() - kappa
        assert (step.z - (y.log() + log_p / 50).softmax(dim=1)).abs().max() <= 1e-10
    graph = Moon(iterations=0).step(None, batch(x, t)).z
    assert (graph - Moon(iterations=0, laplacian=0.0).step(None, batch(x, t)).z).abs().max() > 1e-4


def test_without_graph_and_likelihood_it_is_zero_shot() -> None:
    x, t = simulated(30, 6, noise=1.0)
    z = Moon(laplacian=0.0, temperature=1e300).step(None, batch(x, t)).z
    assert (z - zero_shot(x, t)).abs().max() <= 1e-14


def test_class_weights() -> None:
    """λ_k = √(mean · max) relative to the largest, α_k = 1/λ_k; 1 for the class with most signs of it, ∞ for none."""
    y = torch.tensor([[0.5, 0.5, 0.0], [0.98, 0.02, 0.0]], dtype=torch.float64)
    present, rare = math.sqrt(0.74 * 0.98), math.sqrt(0.26 * 0.5)
    torch.testing.assert_close(anchor_weights(y)[:2], torch.tensor([1.0, present / rare], dtype=torch.float64))
    assert anchor_weights(y)[2] == math.inf


def test_instance_weights() -> None:
    """1 for a decided image, 0 for an undecided one but for rounding, 1 when there is one class only."""
    z = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    g = decidedness(z)
    torch.testing.assert_close(g, torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64), atol=1e-15, rtol=0)
    assert g[2] > 0
    assert decidedness(torch.ones(2, 1)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("d", [3, 16, 512])
def test_concentration(d: int) -> None:
    """K(r) by its formula, within 10 % of the exact κ: where I_{d/2}(κ)/I_{d/2−1}(κ) = r."""
    r = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    torch.testing.assert_close(concentration(r, d)[1:], ((d * r - r**3) / (1 - r**2))[1:])
    for kappa in (0.2 * d, d, 3 * d):
        length = torch.tensor(ive(d / 2, kappa) / ive(d / 2 - 1, kappa))
        assert concentration(length, d) == pytest.approx(kappa, rel=0.1)
    # Clamped at both ends: a mean that points away, and a class of one image.
    ends = concentration(torch.tensor([-0.3, 0.0, 1.0, 1.001]), d)
    assert ends[0] == ends[1] > 0
    assert ends[2] == ends[3] == concentration(torch.tensor([0.999]), d)


def test_density() -> None:
    x, t = simulated(5, 3, 16, noise=1.0)
    kappa = torch.tensor([2.0, 30.0, 500.0], dtype=torch.float64)
    truth = torch.stack([kappa[j] * (x @ t[j]) + 7.5 * math.log(kappa[j]) - kappa[j] for j in range(3)], dim=1)
    torch.testing.assert_close(log_density(x @ t.T, kappa, 16), truth)


def test_m_step() -> None:
    x, t = simulated(30, 6, noise=1.0)
    alpha = anchor_weights(zero_shot(x, t))
    for step in list(Moon().iterate(batch(x, t)))[:-1]:
        assert step.active is not None
        assert step.active.tolist() == sorted(set(step.z.argmax(dim=1).tolist()))
        g = 1 - torch.distributions.Categorical(step.z).entropy() / math.log(6)
        for row, k in enumerate(step.active.tolist()):
            count = (step.z.argmax(dim=1) == k).sum()
            beta = count / (count + alpha[k])
            v = torch.einsum("n,n,nd->d", g, step.z[:, k], x) / (g * step.z[:, k]).sum()
            q = beta * v + (1 - beta) * t[k]
            assert step.beta[row] == pytest.approx(float(beta))  # type: ignore[index]
            torch.testing.assert_close(step.mu[row], normalize(q, dim=0))  # type: ignore[index]
            r = q.norm()
            assert step.kappa[row] == pytest.approx(float((16 * r - r**3) / (1 - r**2)))  # type: ignore[index]


def test_bound_on_kappa() -> None:
    x, t = simulated(30, 6, noise=0.01)
    bounded = next(Moon(kappa_max=50.0).iterate(batch(x, t)))
    assert bounded.kappa is not None
    assert bounded.kappa.max() == 50
    assert next(Moon().iterate(batch(x, t))).kappa.max() > 50  # type: ignore[union-attr]


def test_prototypes_of_nearly_unit_norm() -> None:
    """An absent class has μ_k = t_k/‖t_k‖, which for rounded prototypes is not t_k."""
    x, t = simulated(6, 30, noise=1.0)
    t = t * torch.linspace(0.9991, 1.0009, 30, dtype=torch.float64)[:, None]
    assert (Moon().step(None, batch(x, t)).z - plain(x, t)).abs().max() <= 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hopeless_batches_stay_finite(dtype: torch.dtype) -> None:
    """Images on the far side of every prototype, identical prototypes, features of one dimension."""
    x, t = simulated(6, 4, noise=0.1)
    one = torch.ones(1, 1, dtype=torch.float64)
    for images, texts in ((-t, t), (x, t[:1].expand(4, -1)), (one.expand(3, 1), -one.expand(2, 1))):
        z = Moon().step(None, batch(images.to(dtype), texts.to(dtype))).z
        assert z.isfinite().all()
        assert np.allclose(z.sum(dim=1), 1, atol=1e-5)
