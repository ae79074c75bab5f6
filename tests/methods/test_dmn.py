"""DMN against its recorded streams, against a plain version of its equations, and at its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import with_views
from kedge.arrays import unit
from kedge.labelling.check_method import check_method
from kedge.methods import dmn
from kedge.methods.dmn import DMN
from kedge.methods.solve import views
from recordings import recording
from streams import SETS, TOLERANCE, continues_bit_for_bit, replayed, simulated_stream, steps


@pytest.mark.parametrize("name", SETS)
def test_recorded_probabilities(shared: object, name: str) -> None:
    method = DMN(slots=8)
    for step, recorded, labels in replayed(method, name, "dmn_oga"):
        assert (recorded.sum(dim=1) - 2).abs().max() < 1e-5  # ŷ + p_mem
        assert (2 * step.z - recorded).abs().max() <= TOLERANCE
        assert torch.equal(step.z.argmax(dim=1), labels)
    assert step.state is not None
    filled = step.state["memory.entropy"] < torch.inf
    assert filled.sum(dim=1).tolist() == recording(name)["stream/dmn_oga/final_count"].tolist()


@pytest.mark.parametrize("name", SETS)
def test_recorded_logits(shared: object, name: str) -> None:
    for step, recorded, labels in replayed(DMN(readout="logits", weight=10.0), name, "dmn_statatree"):
        gap = step.z.log().double() - recorded.double()  # one constant per image
        assert (gap - gap.mean(dim=1, keepdim=True)).abs().max() <= TOLERANCE
        assert (step.z - torch.softmax(recorded, dim=1)).abs().max() <= TOLERANCE
        assert torch.equal(step.z.argmax(dim=1), labels)


def plain_memory_softmax(x: Tensor, t: Tensor, scale: float, slots: int) -> Tensor:
    """p_mem of one batch that the memory has just taken, with every c_k written out."""
    y = torch.softmax(scale * x @ t.T, dim=1)
    h, classes = torch.special.entr(y).sum(dim=1), y.argmax(dim=1)
    rows = []
    for f in x:
        c = []
        for k in range(len(t)):
            mine = (classes == k).nonzero()[:, 0]
            mine = mine[h[mine].argsort()][:slots]
            entries = torch.cat([x[mine], t[k : k + 1]])
            c.append(unit((torch.exp(-5.5 * (1 - entries @ f))[:, None] * entries).sum(dim=0)))
        rows.append(torch.softmax(scale * torch.stack(c) @ f, dim=0))
    return torch.stack(rows)


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_against_plain_equations(slots: int) -> None:
    (x,), t = simulated_stream(1, n=30)
    y, p_mem = torch.softmax(10.0 * x @ t.T, dim=1), plain_memory_softmax(x, t, 10.0, slots)
    probabilities = steps(DMN(slots=slots, weight=0.5), [x], t)[0].z
    assert (probabilities - (y + 0.5 * p_mem) / 1.5).abs().max() <= 1e-12
    logits = steps(DMN(slots=slots, weight=3.0, readout="logits"), [x], t)[0].z
    assert (logits - torch.softmax(10.0 * x @ t.T + 3.0 * p_mem, dim=1)).abs().max() <= 1e-12


def test_class_without_images_is_read_by_its_text() -> None:
    (x,), t = simulated_stream(1, n=6, k=5)
    one = x[:1].expand(6, -1)  # one image, so one class
    p_mem = 2 * steps(DMN(), [one], t)[0].z - torch.softmax(10.0 * one @ t.T, dim=1)
    logits = p_mem.log() - p_mem.log()[:, :1]
    others = [k for k in range(5) if k != int((one[0] @ t.T).argmax())]
    wanted = 10.0 * one @ t.T
    assert ((logits - logits[:, others[:1]]) - (wanted - wanted[:, others[:1]]))[:, others].abs().max() <= 1e-10


@pytest.mark.parametrize("readout", ["probabilities", "logits"])
def test_zero_weight_is_zero_shot(readout: Any) -> None:
    batches, t = simulated_stream(3)
    for x, step in zip(batches, steps(DMN(weight=0.0, readout=readout), batches, t), strict=True):
        zero_shot = kedge.adapt(x, t, "zero-shot", logit_scale=10.0).probs
        assert (step.z - zero_shot).abs().max() <= 1e-14
        assert (step.z - steps(DMN(readout=readout), [x], t)[0].z).abs().max() > 1e-3


def test_image_protocol_is_a_stream_of_single_images() -> None:
    batches, t = simulated_stream(3)
    ours = torch.cat([step.z for step in steps(DMN(protocol="image"), batches, t)])
    singles = torch.cat([step.z for step in steps(DMN(), list(torch.cat(batches).split(1)), t)])
    assert (ours - singles).abs().max() <= 1e-12
    assert (ours - torch.cat([step.z for step in steps(DMN(), batches, t)])).abs().max() > 1e-3


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, t = simulated_stream(2)
    whole = [step.z for step in steps(DMN(), batches, t)]
    monkeypatch.setattr(dmn, "BLOCK", 1)
    for z, step in zip(whole, steps(DMN(), batches, t), strict=True):
        assert (z - step.z).abs().max() <= 1e-14


# Views


def test_one_view_is_the_image() -> None:
    batch, _ = with_views()
    method, plain = DMN(views=1), DMN()
    z = method.step(method.init(batch.head), batch).z
    assert (z - plain.step(plain.init(batch.head), batch).z).abs().max() <= 1e-14


@pytest.mark.parametrize("block", [views.BLOCK, 1])
@pytest.mark.parametrize(("confident", "kept"), [(0.1, 1), (0.35, 3), (0.0, 1), (1.0, 10)])
def test_confident_views_tell_the_text_probabilities(
    monkeypatch: pytest.MonkeyPatch, confident: float, kept: int, block: int
) -> None:
    monkeypatch.setattr(views, "BLOCK", block)
    batch, t = with_views()
    assert batch.views is not None
    y = torch.softmax(10.0 * batch.views @ t.T, dim=2)
    order = torch.special.entr(y).sum(dim=2).argsort(dim=1)[:, :kept]
    mean = torch.stack([y[i, order[i]].mean(dim=0) for i in range(len(y))])
    method = DMN(views=10, confident=confident, weight=0.0)
    step = method.step(method.init(batch.head), batch)
    assert (step.z - mean).abs().max() <= 1e-12
    assert step.state is not None
    stored = step.state["memory.features"][step.state["memory.entropy"] < torch.inf]
    assert torch.equal(stored.sort(dim=0).values, batch.features.sort(dim=0).values)  # the images themselves


def test_missing_views_are_refused() -> None:
    batch, t = with_views(v=4)
    with pytest.raises(kedge.InputError, match=r"needs that many views per image; got none"):
        kedge.adapt(batch.features, t, "dmn", views=10)
    with pytest.raises(kedge.InputError, match=r"views=10 needs .*; got 4"):
        kedge.Stream(t, "dmn", views=10).step(batch.features, batch.views)


@pytest.mark.parametrize("method", [DMN(), DMN(protocol="image", readout="logits")])
def test_saved_stream_continues(tmp_path: Path, method: DMN) -> None:
    assert continues_bit_for_bit(method, tmp_path)


def test_contract() -> None:
    check_method(DMN())
    check_method(DMN(readout="logits", weight=10.0))
    check_method(DMN(protocol="image"))
