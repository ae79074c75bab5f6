"""DOTA against a plain version of its equations, and at its limits; recorded outputs are in test_golden_field2026."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated, with_views
from kedge import DOTA, Batch, TextHead
from kedge.labelling.check_method import check_method
from streams import simulated_stream, steps

SCALE = 10.0  # of the logits


def plain_dota(groups: list[Tensor], t: Tensor, start: str, share: float = 0.1) -> Tensor:
    """z of each image, whose kept views (v×d) are a group."""
    k, d = t.shape
    c, mu = torch.ones(k, dtype=t.dtype), t.clone() if start == "text" else torch.full_like(t, 1e-3)
    cov = [0.002 * torch.eye(d, dtype=t.dtype) for _ in range(k)]
    precision, rows = torch.eye(d, dtype=t.dtype) / 0.002, []
    for views in groups:
        y = torch.softmax(SCALE * views @ t.T, dim=1)
        if len(views) > 1:
            best = torch.special.entr(y).sum(dim=1).argsort()[: max(1, int(share * len(views)))]
            views, y = views[best], y[best]
        x = views.mean(dim=0)
        weight = min(0.02 * float(c.mean()) / len(views), 0.3)
        g = torch.stack([x @ precision @ m - 0.5 * m @ precision @ m for m in mu])
        rows.append(torch.softmax(SCALE * x @ t.T + weight * g, dim=0))
        for j in range(k):
            total = c[j] * cov[j] + sum(w * torch.outer(f - mu[j], f - mu[j]) for f, w in zip(views, y[:, j]))  # noqa: B905
            cov[j] = total / (c[j] + y[:, j].sum())
            mu[j] = (c[j] * mu[j] + y[:, j] @ views) / (c[j] + y[:, j].sum())
            c[j] += y[:, j].sum()
        precision = torch.linalg.inv((1 - 1e-4) * sum(cov) / k + 1e-4 * torch.eye(d, dtype=t.dtype))
    return torch.stack(rows)


@pytest.mark.parametrize("start", ["constant", "text"])
def test_against_plain_equations(start: str) -> None:
    batches, t = simulated_stream(3)
    ours = torch.cat([step.z for step in steps(DOTA(start=start), batches, t)])
    truth = plain_dota(list(torch.cat(batches).split(1)), t, start)
    assert (ours - truth).abs().max() <= 1e-7  # ŷ below 1e-7 does not change a covariance
    assert (ours - torch.softmax(SCALE * torch.cat(batches) @ t.T, dim=1)).abs().max() > 1e-2


@pytest.mark.parametrize(("v", "confident"), [(10, 0.1), (30, 0.1), (7, 0.5)])
def test_views_against_plain_equations(v: int, confident: float) -> None:
    batch, t = with_views(12, v)
    assert batch.views is not None
    method = DOTA(views=v, confident=confident)
    z = method.step(method.init(batch.head), batch).z
    assert (z - plain_dota(list(batch.views), t, "constant", confident)).abs().max() <= 1e-7


def test_the_first_image_is_zero_shot_and_the_rest_is_not() -> None:
    batches, t = simulated_stream(3)
    x = torch.cat(batches)
    zero_shot = torch.softmax(SCALE * x @ t.T, dim=1)
    (step,) = steps(DOTA(), [x], t)
    assert (step.z - zero_shot)[0].abs().max() <= 1e-14
    assert ((step.z - zero_shot).abs().amax(dim=1) > 1e-6)[1:].all()
    for off in (DOTA(weight_limit=0.0), DOTA(weight_rate=0.0)):
        assert (steps(off, [x], t)[0].z - zero_shot).abs().max() <= 1e-14


def test_counts_and_means_are_those_of_soft_labels() -> None:
    (x,), t = simulated_stream(1, n=40)
    y = torch.softmax(SCALE * x @ t.T, dim=1)
    (step,) = steps(DOTA(), [x], t)
    assert step.state is not None
    counts = 1 + y.sum(dim=0)
    assert (step.state["counts"] - counts).abs().max() <= 1e-12
    assert (step.state["mu"] - (1e-3 + y.T @ x) / counts[:, None]).abs().max() <= 1e-12
    assert step.info["seen"] == 40
    assert step.info["weight"] == pytest.approx(0.02 * (1 + 40 / 5))


def test_a_class_that_is_never_likely_keeps_its_covariance() -> None:
    x, t = simulated(20, 4, noise=0.05, present=3)
    (step,) = steps(DOTA(), [x], t, scale=1000.0)
    assert step.state is not None
    covariance = step.state["scatter"] / step.state["counts"][:, None, None]
    start = 0.002 * torch.eye(16, dtype=x.dtype)
    off = (covariance - start).abs().amax(dim=(1, 2))
    assert off[3] <= 1e-9
    assert (off[:3] > 1e-4).all()


def test_damaged_state_is_one_line() -> None:
    (x,), t = simulated_stream(1)
    method, head = DOTA(), TextHead(t, SCALE)
    state = method.init(head)
    assert state is not None
    damaged = {**state, "scatter": -state["scatter"]}
    with pytest.raises(kedge.InputError, match="not positive definite"):
        method.step(damaged, Batch(x, head))


def test_memory_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_MAX_BYTES", "1000000")
    with pytest.raises(kedge.InputError, match=r"100×100 .* each of 100 classes .* 8 MB .* the limit is 1 MB"):
        kedge.Stream(np.eye(100, dtype=np.float32), "dota")


def test_ridge_cannot_be_zero() -> None:
    with pytest.raises(kedge.SettingError, match="ridge must be at least 1e-6"):
        DOTA(ridge=0.0)


def test_too_few_views_are_one_line() -> None:
    batch, _ = with_views(3, 4)
    method = DOTA(views=5)
    with pytest.raises(kedge.InputError, match=r"dota with views=5 needs that many views per image; got 4\."):
        method.step(method.init(batch.head), batch)


def test_contract() -> None:
    order = {"permuted_images_permute_rows": "an image sees those before it"}
    check_method(DOTA(start="text", weight_rate=1.0), skip=order)
