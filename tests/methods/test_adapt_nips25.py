"""ADAPT against a plain version of its equations, and at its limits; recorded outputs are in test_golden_field2026."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import ADAPT, ADAPTOnline, TextHead
from kedge.labelling.check_method import check_method
from kedge.methods.solve.cache import Memory
from streams import simulated_stream, steps

SCALE = 10.0  # of the logits


def zero_shot(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ŷ, its entropy and its class."""
    y = torch.softmax(SCALE * x @ t.T, dim=-1)
    return y, torch.special.entr(y).sum(dim=-1), y.argmax(dim=-1)


def plain_read(x: Tensor, t: Tensor, mu: Tensor, bank: list[tuple[int, float, Tensor]], s: float) -> Tensor:
    """z of one image; the bank has (class, weight, features)."""
    m, d = len(bank), len(x)
    away = torch.stack([f - mu[c] for c, _, f in bank])
    precision = torch.eye(d, dtype=x.dtype)
    if m > 1 and float(torch.cov(away.T).trace()) > 1e-9:
        cov = torch.cov(away.T)
        precision = d * torch.linalg.inv((m - 1) * cov + cov.trace() * precision)
    g = torch.log_softmax(torch.stack([x @ precision @ c - 0.5 * c @ precision @ c for c in mu]), dim=0)
    for c, w, f in bank:
        g[c] += s / (2 * m) * w * (x @ f)
    f = (x @ t.T).clamp_min(0) * torch.exp((g - g.max()) / s)
    return f / f.sum()


def plain_batch(x: Tensor, t: Tensor, slots: int, alpha: float, s: float) -> Tensor:
    y, h, classes = zero_shot(x, t)
    mu, bank = t.clone(), []
    for c in range(len(t)):
        mine = (classes == c).nonzero()[:, 0]
        mine = mine[h[mine].argsort()][:slots]
        if len(mine):
            total = y[mine, c] @ x[mine] + y[:, c] @ x
            mu[c] = alpha * total / (y[mine, c].sum() + y[:, c].sum()) + (1 - alpha) * t[c]
        bank += [(c, float(y[i, c]), x[i]) for i in mine]
    return torch.stack([plain_read(f, t, mu, bank, s) for f in x])


def plain_stream(x: Tensor, t: Tensor, slots: int, alpha: float, s: float) -> Tensor:
    y, h, classes = zero_shot(x, t)
    mu, banks, rows = t.clone(), [[] for _ in t], []  # type: ignore[var-annotated]
    for i, f in enumerate(x):
        c = int(classes[i])
        worst = max(banks[c], key=lambda j: h[j]) if len(banks[c]) == slots else None
        if worst is None or h[i] < h[worst]:
            banks[c] = [j for j in banks[c] if j != worst] + [i]
            w = y[banks[c], c]
            mu[c] = alpha * (w @ x[banks[c]] + y[i, c] * f) / (w.sum() + y[i, c]) + (1 - alpha) * t[c]
        bank = [(c, float(y[j, c]), x[j]) for c, images in enumerate(banks) for j in images]
        rows.append(plain_read(f, t, mu, bank, s))
    return torch.stack(rows)


@pytest.mark.parametrize(("slots", "alpha", "s"), [(12, 0.9, 50.0), (2, 0.5, 5.0)])
def test_against_plain_equations(slots: int, alpha: float, s: float) -> None:
    batches, t = simulated_stream(3)
    x = torch.cat(batches)
    in_batch = steps(ADAPT(slots=slots, alpha=alpha, scale=s), [x], t)[0].z
    assert (in_batch - plain_batch(x, t, slots, alpha, s)).abs().max() <= 1e-10
    online = torch.cat([step.z for step in steps(ADAPTOnline(slots=slots, alpha=alpha, scale=s), batches, t)])
    assert (online - plain_stream(x, t, slots, alpha, s)).abs().max() <= 1e-10
    assert (in_batch - online).abs().max() > 1e-2
    assert (in_batch - zero_shot(x, t)[0]).abs().max() > 1e-2


def test_of_one_image_batch_and_stream_agree_with_the_zero_shot_label() -> None:
    x, t = simulated(20, 5, noise=0.2)
    for image in x.split(1):
        batch, online = steps(ADAPT(), [image], t)[0], steps(ADAPTOnline(), [image], t)[0]
        assert (batch.z - online.z).abs().max() <= 1e-12
        assert batch.z.argmax() == (image @ t.T).argmax()


def test_without_weight_the_means_stay_on_the_text() -> None:
    batches, t = simulated_stream(2)
    for alpha, stays in ((0.0, True), (0.5, False)):
        state = steps(ADAPTOnline(alpha=alpha), batches, t)[-1].state
        assert state is not None
        assert torch.equal(state["mu"], t) == stays


def test_endless_scale_leaves_similarities_and_bank() -> None:
    """u/s → Σ_bank w x·x / 2M: the Gaussians no longer count."""
    (x,), t = simulated_stream(1)
    y, _, classes = zero_shot(x, t)
    pull = torch.zeros_like(t).index_add_(0, classes, y.amax(dim=1, keepdim=True) * x)
    u = x @ pull.T / (2 * len(x))
    f = (x @ t.T).clamp_min(0) * torch.exp(u)
    z = steps(ADAPT(scale=1e6, slots=12), [x], t)[0].z
    assert (z - f / f.sum(dim=1, keepdim=True)).abs().max() <= 1e-3
    assert (z - steps(ADAPT(), [x], t)[0].z).abs().max() > 1e-2


@pytest.mark.parametrize("method", [ADAPT(), ADAPTOnline()])
def test_copies_have_no_spread(method: Any) -> None:
    x, t = simulated(1, 5)
    z = steps(method, [x.expand(7, -1)], t)[0].z
    assert z.isfinite().all()
    assert (z - z[:1]).abs().max() <= 0.05


def test_an_image_that_does_not_enter_changes_nothing() -> None:
    batches, t = simulated_stream(4)
    x = torch.cat(batches)
    method, head = ADAPTOnline(slots=1), TextHead(t, SCALE)
    state = steps(method, [x], t)[0].state
    _, h, classes = zero_shot(x, t)
    assert state is not None
    held = Memory.of(state, "bank").entropy[:, 0]
    assert all(float(held[c]) == pytest.approx(float(h[classes == c].min()), rel=1e-9) for c in classes.unique())
    again = method.step(state, kedge.Batch(x, head)).state  # none is surer than the surest
    assert again is not None
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_images_without_a_positive_similarity_keep_zero_shot() -> None:
    x, t = simulated(8, 2, noise=0.1)
    x[:2] = -t  # away from both classes
    t[1] = t[0] + 0.1 * t[1]
    t[1] /= t[1].norm()
    for method in (ADAPT(), ADAPTOnline()):
        (step,) = steps(method, [x], t)
        negative = (x @ t.T) < 0
        assert step.info["negative_similarities"] == int(negative.sum())
        lost = negative.all(dim=1)
        assert lost.any()
        assert (step.z - zero_shot(x, t)[0])[lost].abs().max() <= 1e-12
        assert (step.z - zero_shot(x, t)[0])[~lost].abs().max() > 1e-3


def test_a_notice_names_negative_similarities_once(capsys: pytest.CaptureFixture[str]) -> None:
    from kedge.methods.adapt_nips25 import _notice_of_negative

    _notice_of_negative.cache_clear()
    x, t = simulated(8, 2)
    with kedge.progress.on_stderr():
        for _ in range(2):
            steps(ADAPT(), [-x], t)
    assert capsys.readouterr().err.count("negative similarity") == 1


def test_a_damaged_state_is_one_line() -> None:
    (x,), t = simulated_stream(1)
    method, head = ADAPTOnline(), TextHead(t, SCALE)
    state = steps(method, [x], t)[0].state
    assert state is not None
    damaged = {**state, "scatter": state["scatter"].clone()}
    damaged["scatter"][1, 0] = 1000.0
    with pytest.raises(kedge.InputError, match="not positive definite"):
        method.step(damaged, kedge.Batch(x, head))


def test_contract() -> None:
    check_method(ADAPT(slots=1, alpha=1.0))
    order = {"permuted_images_permute_rows": "an image sees those before it"}
    check_method(ADAPTOnline(slots=1), skip=order)
