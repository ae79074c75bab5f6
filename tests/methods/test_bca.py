"""BCA against a plain version of its equations, and at its limits; recorded outputs are in test_golden_field2026."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from cases import with_views
from kedge import BCA
from kedge.arrays import unit
from kedge.labelling.check_method import check_method
from streams import simulated_stream, steps

SCALE = 10.0  # of the logits
QUICK = BCA(mu_start=5.0)  # vectors that move


def plain_bca(groups: list[Tensor], t: Tensor, n1: float, share: float = 0.1) -> Tensor:
    """z of each image, whose views (v×d) are a group."""
    mu, prior, rows = t.clone(), torch.eye(len(t), dtype=t.dtype), []
    a, b = [n1] * len(t), [1.0] * len(t)
    for views in groups:
        x = views[0]
        if len(views) > 1:
            y = torch.softmax(SCALE * views @ mu.T, dim=1)
            best = torch.special.entr(y).sum(dim=1).argsort()[: max(1, int(share * len(views)))]
            x = views[best].mean(dim=0)
        p = torch.softmax(SCALE * x @ mu.T, dim=0) @ prior
        rows.append(p)
        s = int(p.argmax())
        if p[s] > 0.05:
            mu[s] = unit((a[s] * mu[s] + x) / (a[s] + 1))
            a[s] += 1
        if p[s] > 0.65:
            prior[s] = (b[s] * prior[s] + p) / (b[s] + 1)
            b[s] += 1
    return torch.stack(rows)


@pytest.mark.parametrize("n1", [0.0, 5.0, 20_000.0])
def test_against_plain_equations(n1: float) -> None:
    batches, t = simulated_stream(3)
    ours = torch.cat([step.z for step in steps(BCA(mu_start=n1), batches, t)])
    assert (ours - plain_bca(list(torch.cat(batches).split(1)), t, n1)).abs().max() <= 1e-12
    assert (ours - torch.softmax(SCALE * torch.cat(batches) @ t.T, dim=1)).abs().max() > 1e-2


@pytest.mark.parametrize(("v", "confident"), [(10, 0.1), (30, 0.1), (7, 0.5)])
def test_views_against_plain_equations(v: int, confident: float) -> None:
    batch, t = with_views(12, v)
    assert batch.views is not None
    method = BCA(mu_start=5.0, views=v, confident=confident)
    z = method.step(method.init(batch.head), batch).z
    assert (z - plain_bca(list(batch.views), t, 5.0, confident)).abs().max() <= 1e-12


def test_without_updates_it_is_zero_shot() -> None:
    batches, t = simulated_stream(3)
    for x, step in zip(batches, steps(BCA(mu_above=1.0, prior_above=1.0), batches, t), strict=True):
        assert (step.z - torch.softmax(SCALE * x @ t.T, dim=1)).abs().max() <= 1e-14
    assert (steps(BCA(), batches, t)[0].z[0] - torch.softmax(SCALE * batches[0][0] @ t.T, dim=0)).abs().max() <= 1e-14


def test_a_class_that_is_never_predicted_keeps_its_text_and_its_row() -> None:
    batches, t = simulated_stream(2, present=3, noise=0.2)
    step = steps(QUICK, batches, t)[-1]
    assert step.state is not None
    never = step.state["mu_count"] == 5
    assert never.any()
    assert not never.all()
    assert torch.equal(step.state["mu"][never], t[never])
    assert torch.equal(step.state["prior"][never], torch.eye(5, dtype=t.dtype)[never])
    assert step.info["sure"] == (step.state["prior_count"] - 1).sum()


def test_rows_of_the_table_stay_probabilities() -> None:
    batches, t = simulated_stream(8)
    state = steps(BCA(prior_above=0.0), batches, t)[-1].state
    assert state is not None
    assert (state["prior"].sum(dim=1) - 1).abs().max() <= 1e-12
    assert (state["prior"] >= 0).all()
    assert state["prior_count"].sum() == 5 + 8 * 12


def test_memory_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_MAX_BYTES", "1000000")
    with pytest.raises(kedge.InputError, match=r"500 numbers for each of 500 classes .* 2 MB .* the limit is 1 MB"):
        kedge.Stream(np.eye(500, dtype=np.float32), "bca")


def test_contract() -> None:
    check_method(QUICK, skip={"permuted_images_permute_rows": "an image sees those before it"})
