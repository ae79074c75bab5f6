"""The temperature: labels stay, each confidence comes down to halfway between the method's and zero-shot's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kedge
from cases import simulated
from kedge import Batch, Calibrated, SettingError, Stream, TextHead
from kedge.features.simulate import simulate
from kedge.methods.solve.temperature import tempered

SET = simulate(80, 20, k_eff=5, accuracy=0.5, seed=3)


@pytest.mark.parametrize("inner", ["stata", "transclip", "moon", "zlap", "tda", "kedge:honest=false"])
def test_labels_stay_and_confidence_is_halfway(inner: str) -> None:
    plain, honest = kedge.adapt(SET, method=inner), kedge.adapt(SET, method=f"calibrated:{inner}")
    assert torch.equal(plain.labels, honest.labels)
    before, zero_shot, after = (p.amax(dim=1) for p in (plain.probs, plain.zero_shot, honest.probs))
    surer = before > zero_shot
    assert surer.any()
    assert (after - (before + zero_shot) / 2)[surer].abs().max() < 1e-3
    assert (honest.probs - plain.probs)[~surer].abs().amax() < 1e-5 if (~surer).any() else True
    assert honest.info["heat"] > 1


def test_kedge_has_it_built_in() -> None:
    within, around = kedge.adapt(SET), kedge.adapt(SET, method="calibrated:kedge:honest=false")
    assert "heat" in within.info
    assert (kedge.adapt(SET, method="calibrated:kedge").probs.amax(dim=1) <= within.probs.amax(dim=1) + 1e-6).all()
    assert torch.equal(around.labels, within.labels)


@pytest.mark.parametrize("compiled", [True, False])
def test_scores_keep_what_z_has_lost(compiled: bool) -> None:
    """A class with e^−90 of the probability is lost in float32's z, and at ϑ = 10 it counts again."""
    f = simulate(60, 200, k_eff=4, d=64, seed=1)
    exact = kedge.adapt(f.image_features.double(), f.head.features.double(), f"calibrated:stata:compiled={compiled}")
    found = kedge.adapt(f.image_features, f.head.features, f"calibrated:stata:compiled={compiled}")
    assert (found.probs - exact.probs).abs().max() < 2e-3


def test_refuses_a_method_without_probabilities() -> None:
    with pytest.raises(SettingError, match=r"^method 'em-dirichlet' gives labels without probabilities"):
        kedge.adapt(SET, method="calibrated:em-dirichlet")


def test_needs_a_method() -> None:
    with pytest.raises(SettingError, match="method 'calibrated' needs the setting 'method'"):
        kedge.adapt(SET, method="calibrated")


def test_known_rows_stay_certain_and_have_no_part_in_it() -> None:
    x, t = simulated(40, 6, noise=0.5)
    head, known = TextHead(t, 20.0), torch.full((40,), -1)
    known[:15] = 2
    step = Calibrated(kedge.StatA()).step(None, Batch(x, head, known=known))
    assert (step.z[:15, 2] > 1 - 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled, and torch's form
def test_limits_of_the_temperature(dtype: torch.dtype) -> None:
    x, t = (each.to(dtype) for each in simulated(20, 5))
    timid, certain = Batch(x, TextHead(t, 1e-3)), Batch(x, TextHead(t, 1e5))
    scores = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    z = scores.softmax(dim=1)
    cooled, heat = tempered(scores, z, timid)
    assert heat > 1
    assert (cooled.amax(dim=1) - (z.amax(dim=1) + 0.2) / 2).abs().max() < 1e-4
    unchanged, one = tempered(scores, z, certain)  # zero-shot is surer: nothing is raised
    assert (unchanged - z).abs().max() < 1e-5
    assert one == pytest.approx(1, abs=1e-4)
    assert tempered(1e9 * scores, (1e9 * scores).softmax(dim=1), timid)[1] == pytest.approx(50)
    equal = torch.zeros_like(scores)  # all classes the same, and two of them
    assert (tempered(equal, equal.softmax(dim=1), timid)[0] - 0.2).abs().max() < 1e-6
    equal[:, :2] = 5.0
    assert torch.isfinite(tempered(equal, equal.softmax(dim=1), timid)[0]).all()
    single, alone = scores[:, :1], Batch(x, TextHead(t[:1], 1.0))
    assert torch.equal(tempered(single, torch.ones_like(single), alone)[0], torch.ones_like(single))


def test_a_stream_is_saved_and_continued(tmp_path: Path) -> None:
    stream = Stream(SET.head, "calibrated:kedge:honest=false")
    stream.step(SET.image_features[:40])
    stream.save(tmp_path / "s.safetensors")
    again = Stream.load(tmp_path / "s.safetensors")
    rest = SET.image_features[40:]
    assert torch.equal(again.step(rest).probs, stream.step(rest).probs)


def test_the_contract() -> None:
    for inner in ("stata", "kedge"):
        kedge.check_method(Calibrated(kedge.find_method(inner)()))
