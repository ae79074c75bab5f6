"""OGA against its recorded streams, against a plain version of its equations, and at its limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import TextHead
from kedge.labelling.check_method import check_method
from kedge.methods.oga import OGA
from recordings import features, recording
from streams import SETS, TOLERANCE, continues_bit_for_bit, replayed, simulated_stream, steps


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("entry", "half"), [("oga_fp32mem", False), ("oga", True)])
def test_recorded_stream(shared: object, name: str, entry: str, half: bool) -> None:
    method = OGA(released_means=True, half_memory=half)
    for step, z, labels in replayed(method, name, entry):
        assert (step.z - z).abs().max() <= TOLERANCE
        assert torch.equal(step.z.argmax(dim=1), labels)
    assert step.state is not None
    g, head = recording(name), TextHead(torch.from_numpy(features(name)[1]))
    entropies = step.state["memory.entropy"]
    assert (entropies < torch.inf).sum(dim=1).tolist() == g[f"stream/{entry}/final_count"].tolist()
    recorded = torch.from_numpy(g[f"stream/{entry}/final_memory_entropy"]).sort(dim=1).values
    # The program's half-precision memory holds entropies (up to 6) and means in half precision too. Ours does not.
    entropy_off, mean_off, inverse_off = (2e-3, 3e-4, 1e-3) if half else (1e-4, 1e-6, 1e-5)
    torch.testing.assert_close(entropies.clamp_max(math.log(head.k)), recorded, atol=entropy_off, rtol=0)
    mu, precision = method.gaussians(step.state, head)
    torch.testing.assert_close(mu.float(), torch.from_numpy(g[f"stream/{entry}/final_mus"]), atol=mean_off, rtol=0)
    if f"stream/{entry}/final_inv_Sig" in g:
        inverse = torch.from_numpy(g[f"stream/{entry}/final_inv_Sig"])
        assert precision is not None
        assert (precision - inverse).abs().max() <= inverse_off * inverse.abs().max()


def plain_oga(batches: list[Tensor], t: Tensor, scale: float, slots: int, released: bool) -> tuple[Tensor, bool]:
    """The equations on everything seen, with a density per image and class; z of the last batch, and whether m > 4d."""
    seen, (k, d) = torch.cat(batches), t.shape
    y = torch.softmax(scale * seen @ t.T, dim=1)
    h, classes = torch.special.entr(y).sum(dim=1), y.argmax(dim=1)
    mu, away = t.clone(), []
    for c in range(k):
        mine = (classes == c).nonzero()[:, 0]
        mine = seen[mine[h[mine].argsort()][:slots]]
        if len(mine) >= 2:
            mu[c] = mine.sum(dim=0) / (slots if released else len(mine))
        away += [f - mu[c] for f in mine]
    m, cov = len(away), torch.cov(torch.stack(away).T)
    if m > 4 * d:
        inverse = torch.linalg.pinv(cov)
    else:
        inverse = d * torch.linalg.inv((m - 1) * cov + cov.trace() * torch.eye(d, dtype=t.dtype))
    x = batches[-1]
    log_p = torch.tensor([[-0.5 * (f - c) @ inverse @ (f - c) for c in mu] for f in x], dtype=t.dtype)
    z = y[-len(x) :] * torch.softmax(0.05 * log_p, dim=1)
    return z / z.sum(dim=1, keepdim=True), m > 4 * d


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(("count", "d"), [(2, 8), (8, 3)])
def test_against_plain_equations(count: int, d: int, released: bool) -> None:
    batches, t = simulated_stream(count, d=d)
    truth, many = plain_oga(batches, t, 10.0, 8, released)
    assert many == (d == 3)  # both ways to invert
    z = steps(OGA(released_means=released), batches, t)[-1].z
    assert (z - truth).abs().max() <= 1e-10
    assert (z - torch.softmax(10.0 * batches[-1] @ t.T, dim=1)).abs().max() > 1e-3


def test_means_differ_only_where_slots_are_empty() -> None:
    batches, t = simulated_stream(4)
    head = TextHead(t, 10.0)
    ours, released = OGA(), OGA(released_means=True)
    state = steps(ours, batches, t)[-1].state
    assert state is not None
    count = (state["memory.entropy"] < torch.inf).sum(dim=1)
    assert (count == 8).any()
    assert ((count >= 2) & (count < 8)).any()
    gap = (ours.gaussians(state, head)[0] - released.gaussians(state, head)[0]).abs().amax(dim=1)
    assert ((gap > 0) == ((count >= 2) & (count < 8))).all()


def test_half_memory_rounds_what_is_remembered() -> None:
    batches, t = simulated_stream(2)
    for half in (False, True):
        step = steps(OGA(half_memory=half), batches, t)[-1]
        assert step.state is not None
        stored = step.state["memory.features"]
        assert stored.dtype == torch.float64
        assert torch.equal(stored, stored.half().double()) == half


def test_zero_tau_is_zero_shot() -> None:
    batches, t = simulated_stream(3)
    for x, step in zip(batches, steps(OGA(tau=0.0), batches, t), strict=True):
        assert step.info["gaussian"]
        assert (step.z - torch.softmax(10.0 * x @ t.T, dim=1)).abs().max() <= 1e-14


@pytest.mark.parametrize("n", [1, 7])
def test_copies_have_no_spread(n: int) -> None:
    """One image, or one image many times: nothing to estimate a covariance from."""
    x, t = simulated(1, 5)
    result: Any = kedge.adapt(x.expand(n, -1), t, "oga")
    assert not result.info["gaussian"]
    assert torch.equal(result.probs, result.zero_shot)


def test_images_that_say_nothing_are_not_remembered() -> None:
    """H = log K: all prototypes are the same."""
    (x,), t = simulated_stream(1)
    assert steps(OGA(), [x], t[:1].expand(4, -1))[0].info["remembered"] == 0
    assert steps(OGA(), [x], t)[0].info["remembered"] > 0


def test_saved_stream_continues(tmp_path: Path) -> None:
    assert continues_bit_for_bit(OGA(), tmp_path)


@pytest.mark.parametrize("method", [OGA(), OGA(released_means=True, half_memory=True), OGA(slots=1)])
def test_contract(method: OGA) -> None:
    check_method(method)
