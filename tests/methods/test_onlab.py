"""OnLab against a plain version of its equations, and at its limits; recorded outputs are in test_golden_field2026."""

from __future__ import annotations

import math

import pytest
import torch

from cases import simulated
from kedge import OnLab
from kedge.labelling.check_method import check_method
from streams import simulated_stream, steps

SCALE = 10.0  # of the logits


@pytest.mark.parametrize(("rate", "share"), [(20.0, 1.0), (2.0, 0.4)])
def test_against_plain_equations(rate: float, share: float) -> None:
    batches, t = simulated_stream(3)
    rho, rows = [0.0] * 5, []
    for i, x in enumerate(torch.cat(batches), start=1):
        weights = [math.exp(SCALE * float(x @ prototype) + r) for prototype, r in zip(t, rho, strict=True)]
        q = [w / sum(weights) for w in weights]
        rows.append(q)
        rho = [max(r - rate / math.sqrt(i) * (p - share / 5), 0.0) for r, p in zip(rho, q, strict=True)]
    ours = steps(OnLab(rate=rate, share=share), batches, t)
    assert (torch.cat([step.z for step in ours]) - torch.tensor(rows, dtype=torch.float64)).abs().max() <= 1e-12
    state = ours[-1].state
    assert state is not None
    assert (state["rho"] - torch.tensor(rho, dtype=torch.float64)).abs().max() <= 1e-12
    assert ours[-1].info == {"seen": 36, "rho_max": pytest.approx(max(rho))}


def test_the_first_image_and_a_stream_without_steps_are_zero_shot() -> None:
    batches, t = simulated_stream(3)
    x = torch.cat(batches)
    zero_shot = torch.softmax(SCALE * x @ t.T, dim=1)
    z = steps(OnLab(), [x], t)[0].z
    assert (z - zero_shot)[0].abs().max() <= 1e-14
    assert (z - zero_shot)[1:].abs().amax(dim=1).min() > 1e-6
    for off in (OnLab(rate=0.0), OnLab(share=0.0)):  # without a least share, no weight is ever above 0
        assert (steps(off, [x], t)[0].z - zero_shot).abs().max() <= 1e-14


def test_every_class_gets_its_share_in_the_end() -> None:
    """Although two of the four classes are never shown: that is what the method assumes."""
    x, t = simulated(4000, 4, noise=0.6, present=2)
    q = steps(OnLab(), [x], t)[0].z
    zero_shot = torch.softmax(SCALE * x @ t.T, dim=1)
    assert zero_shot.mean(dim=0).min() < 0.15
    assert (q[2000:].mean(dim=0) - 0.25).abs().max() <= 0.02


def test_contract() -> None:
    check_method(OnLab(rate=1.0), skip={"permuted_images_permute_rows": "an image sees those before it"})
