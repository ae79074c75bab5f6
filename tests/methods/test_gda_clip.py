"""GDA-CLIP against a plain form of its equations, and at its limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import GDACLIP, Batch, TextHead
from kedge.labelling.check_method import check_method


def plain(x: Tensor, t: Tensor, alpha: float, iterations: int) -> Tensor:
    """The equations, class by class, with explicit inverses."""
    n, d = x.shape
    k, identity = len(t), torch.eye(d, dtype=x.dtype)
    q = zero_shot = torch.softmax(10.0 * x @ t.T, dim=1)
    for _ in range(max(1, iterations)):
        mu = torch.stack([(q[:, c, None] * x).sum(dim=0) / max(float(q[:, c].sum()), 1e-6) for c in range(k)])
        if iterations == 0:
            away = x - x.mean(dim=0)
            s = sum((torch.outer(a, a) for a in away), torch.zeros_like(identity)) / (n - 1)
            p = torch.linalg.inv(s + s.trace() / d * identity)
        else:
            s = torch.zeros_like(identity)
            for c in range(k):
                for i in range(n):
                    s += q[i, c] * torch.outer(x[i] - mu[c], x[i] - mu[c]) / q[:, c].sum() / k
            p = d * torch.linalg.inv((n - 1) * s + s.trace() * identity)
        g = torch.stack([x @ p @ m - 0.5 * m @ p @ m for m in mu], dim=1)
        q = torch.softmax(zero_shot.log() + alpha * g, dim=1)
    return q


@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_against_plain_equations(alpha: float, iterations: int) -> None:
    x, t = simulated(20, 5, 8, noise=0.6)
    ours = GDACLIP(alpha=alpha, iterations=iterations).step(None, Batch(x, TextHead(t, 10.0)))
    assert (ours.z - plain(x, t, alpha, iterations)).abs().max() <= 1e-9
    assert ours.info == {"gaussian": True}


@pytest.mark.parametrize("iterations", [0, 2])
def test_weight_zero_is_zero_shot(iterations: int) -> None:
    x, t = simulated(20, 5)
    batch = Batch(x, TextHead(t, 10.0))
    assert (
        GDACLIP(alpha=0.0, iterations=iterations).step(None, batch).z - batch.log_zero_shot.exp()
    ).abs().max() <= 1e-14
    assert (GDACLIP(iterations=iterations).step(None, batch).z - batch.log_zero_shot.exp()).abs().max() > 1e-3


@pytest.mark.parametrize("iterations", [0, 2])
@pytest.mark.parametrize("n", [1, 7])
def test_without_spread_it_is_zero_shot(n: int, iterations: int) -> None:
    """One image, or copies of it."""
    x, t = simulated(1, 5)
    result = kedge.adapt(x.repeat(n, 1), t, "gda-clip", iterations=iterations)
    assert torch.equal(result.probs, result.zero_shot)
    assert result.info["gaussian"] is False


def test_rotations_change_nothing() -> None:
    """The discriminant depends on inner products alone."""
    x, t = simulated(30, 5, 8, noise=0.6)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    here, there = (
        GDACLIP().step(None, Batch(a @ m, TextHead(t @ m, 10.0))).z for a, m in ((x, torch.eye(8).double()), (x, turn))
    )
    assert (here - there).abs().max() <= 1e-9


def test_soft_means_of_absent_classes_attract_images() -> None:
    """Why it loses with few classes: the soft mean of a class without images is the mean of the wrong images."""
    x, t = simulated(64, 40, 16, present=2, noise=0.5)
    z = GDACLIP().step(None, Batch(x, TextHead(t, 10.0))).z
    absent = [float(p[:, 2:].sum(dim=1).mean()) for p in (z, Batch(x, TextHead(t, 10.0)).log_zero_shot.exp())]
    assert absent[0] > absent[1]


def test_known_labels_are_in_the_means() -> None:
    """With all labels known, the means are those of labelled images, as in the paper."""
    x, t = simulated(40, 4, 8, noise=0.6)
    known = torch.randint(4, (40,), generator=torch.Generator().manual_seed(5))
    told = known.clone()
    told[0] = -1
    z = GDACLIP(alpha=1.0).step(None, Batch(x, TextHead(t, 10.0), known=told)).z
    assert torch.equal(z[1:].argmax(dim=1), known[1:])
    assert (z[0] - GDACLIP(alpha=1.0).step(None, Batch(x, TextHead(t, 10.0))).z[0]).abs().max() > 1e-3


def test_float32_is_near_float64() -> None:
    x, t = simulated(60, 20)
    double, single = (
        GDACLIP().step(None, Batch(x.to(d), TextHead(t.to(d), 10.0))).z for d in (torch.float64, torch.float32)
    )
    assert single.dtype == torch.float32
    assert (single - double).abs().max() <= 1e-4


@pytest.mark.parametrize("iterations", [0, 3])
def test_contract(iterations: int) -> None:
    check_method(GDACLIP(iterations=iterations))
