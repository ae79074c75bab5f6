"""MTA against recorded outputs, against a plain version of its equations, and at its limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated, with_views
from kedge import Batch, FeatureSet, Stream, TextHead
from kedge.benchmark.evaluate import evaluate
from kedge.labelling.check_method import check_method
from kedge.methods import mta
from kedge.methods.mta import MTA, Mode
from recordings import features, recording
from streams import SETS


def found(method: MTA, batch: Batch) -> Mode:
    parts = list(method.modes(batch))
    return Mode(*(torch.cat([getattr(p, name) for p in parts]) for name in ("mode", "inlierness", "bandwidth")))


@pytest.mark.parametrize("name", SETS)
def test_recorded_output(shared: object, name: str) -> None:
    g = {key: torch.from_numpy(recording(name)[f"mta/{key}"]) for key in ("views", "logits", "mode", "inlierness")}
    bandwidth = torch.from_numpy(recording(name)["mta/bandwidth"])
    head = TextHead(torch.from_numpy(features(name)[1]))
    batch = Batch(g["views"][:, 0], head, g["views"])
    ours = found(MTA(), batch)
    torch.testing.assert_close(ours.bandwidth, bandwidth, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.inlierness, g["inlierness"], atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.mode, g["mode"], atol=1e-5, rtol=0)
    torch.testing.assert_close(100 * ours.mode @ head.features.T, g["logits"], atol=1e-3, rtol=0)
    step = MTA().step(None, batch)
    assert (step.z - torch.softmax(g["logits"], dim=1)).abs().max() <= 2e-4


def views_of(n: int = 6, v: int = 12, noise: float = 0.3) -> tuple[Batch, Tensor]:
    return with_views(n, v, d=16, noise=noise, spread=0.3)


def plain_mta(f: Tensor, t: Tensor, scale: float) -> tuple[Tensor, Tensor, int]:
    """One image: mode, inlierness, and how many steps were stopped before their fifth."""
    v = len(f)
    p = torch.softmax(scale * f @ t.T, dim=1)
    near = [(f - view).square().sum(dim=1).sort().values[1 : int(0.3 * (v - 1)) + 1] for view in f]
    h2 = torch.stack([squares.mean() / 2 for squares in near])
    y, mode, early = torch.full((v,), 1 / v, dtype=f.dtype), f[0], 0
    for _ in range(5):
        density = torch.exp(-(f - mode).square().sum(dim=1) / (2 * h2))
        for j in range(5):
            new = torch.softmax((density + 4 * p @ (p.T @ y)) / 0.2, dim=0)
            change, y = (new - y).norm(), new
            if change < 1e-6:
                early += j < 4
                break
        for j in range(5):
            density = torch.exp(-(f - mode).square().sum(dim=1) / (2 * h2))
            new = ((density * y)[:, None] * f).sum(dim=0)
            new = new / new.norm()
            change, mode = (new - mode).norm(), new
            if change < 1e-6:
                early += j < 4
                break
    return mode, y, early


def test_against_plain_equations() -> None:
    batch, t = views_of()
    assert batch.views is not None
    ours, early = found(MTA(), batch), []
    for i, f in enumerate(batch.views):
        mode, y, stopped = plain_mta(f, t, 10.0)
        assert (ours.mode[i] - mode).abs().max() <= 1e-12
        assert (ours.inlierness[i] - y).abs().max() <= 1e-12
        early.append(stopped)
    assert max(early) > 0  # or the stopping would be untested
    assert (MTA().step(None, batch).z - torch.softmax(10.0 * ours.mode @ t.T, dim=1)).abs().max() <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_view_is_zero_shot_exactly(dtype: torch.dtype) -> None:
    batch, _ = views_of()
    x, head = batch.features.to(dtype), TextHead(batch.head.features.to(dtype))
    result: Any = Stream(head, "mta").step(x, x[:, None])
    assert torch.equal(result.probs, result.zero_shot)


def test_no_rounds_is_zero_shot_exactly() -> None:
    batch, _ = views_of()
    assert torch.equal(MTA(rounds=0).step(None, batch).z, batch.log_zero_shot.exp())
    assert (MTA().step(None, batch).z - batch.log_zero_shot.exp()).abs().max() > 1e-3


@pytest.mark.parametrize("v", [2, 3, 4, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_views_are_zero_shot(v: int, dtype: torch.dtype) -> None:
    """Their bandwidth is 0."""
    batch, _ = views_of()
    x = batch.features.to(dtype)
    same = Batch(x, TextHead(batch.head.features.to(dtype), 10.0), x[:, None].expand(-1, v, -1))
    off = (MTA().step(None, same).z - same.log_zero_shot.exp()).abs().max()
    assert off <= (1e-12 if dtype == torch.float64 else 1e-5)


def test_an_outlier_is_told() -> None:
    batch, _ = views_of(n=1, noise=0.1)
    assert batch.views is not None
    views = batch.views.clone()
    views[0, 5] = -views[0, 0]
    y = found(MTA(), Batch(batch.features, batch.head, views)).inlierness[0]
    assert int(y.argmin()) == 5


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = views_of()
    whole = MTA().step(None, batch).z
    monkeypatch.setattr(mta, "BLOCK", 1)
    assert len(list(MTA().modes(batch))) == 6
    assert (MTA().step(None, batch).z - whole).abs().max() <= 1e-14


def test_refused_without_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MTA, "step", lambda *_: pytest.fail("began to work"))
    x, t = simulated(4, 3)
    message = "method 'mta' needs augmented views, and there are none. Extract the features with views"
    with pytest.raises(kedge.InputError, match=message):
        kedge.adapt(x, t, "mta")
    with pytest.raises(kedge.InputError, match=message):
        Stream(t, "mta").step(x)
    with pytest.raises(kedge.InputError, match=message):
        evaluate("mta", FeatureSet.from_arrays(x, t, labels=torch.zeros(4, dtype=torch.long)), "all")


def test_feature_set_brings_its_views() -> None:
    batch, t = views_of()
    whole = FeatureSet.from_arrays(batch.features, TextHead(t, 10.0), views=batch.views)
    assert torch.equal(kedge.adapt(whole, method="mta").probs, MTA().step(None, batch).z)


def test_contract() -> None:
    check_method(MTA())
