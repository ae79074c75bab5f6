"""The temperature: labels stay, each confidence comes down to halfway between the method's and zero-shot's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kedge
from cases import simulated
from kedge import Batch, Calibrated, SettingError, Stream, TextHead
from kedge.arrays import unit
from kedge.features.simulate import simulate
from kedge.methods.contract import IMPOSSIBLE, State, Step
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
    assert torch.allclose(honest.probs[~surer], plain.probs[~surer], atol=1e-5)
    assert honest.info["heat"] > 1


def test_kedge_has_it_built_in() -> None:
    within, around = kedge.adapt(SET), kedge.adapt(SET, method="calibrated:kedge:honest=false")
    assert "heat" in within.info
    assert torch.equal(kedge.adapt(SET, method="calibrated:kedge").probs, within.probs)  # not lowered twice
    assert torch.equal(around.labels, within.labels)


def test_scores_keep_what_z_has_lost() -> None:
    """Two classes alike by text, told apart by a strong graph: ϑ is 14. Of the others the compiled z keeps only 1e-30,
    which at that ϑ would be a hundredth each; their scores say nothing at all."""
    t = torch.eye(200, dtype=torch.float64)
    t[1] = unit(t[:1] + 0.1 * t[1:2])[0]
    noise = torch.randn(40, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = unit(t[:2].repeat(20, 1) + 0.01 * noise)
    method = Calibrated(kedge.StatA(laplacian=30.0))
    exact = method.step(None, Batch(x, TextHead(t, 300.0))).z
    found = method.step(None, Batch(x.float(), TextHead(t.float(), 300.0)))
    assert found.info["heat"] > 10
    assert (found.z - exact).abs().max() < 1e-5  # 0.1 with the logarithm of z


def test_refuses_a_method_without_probabilities() -> None:
    with pytest.raises(SettingError, match=r"^method 'em-dirichlet' gives labels without probabilities"):
        kedge.adapt(SET, method="calibrated:em-dirichlet")


def test_needs_a_method() -> None:
    with pytest.raises(SettingError, match="method 'calibrated' needs the setting 'method'"):
        kedge.adapt(SET, method="calibrated")


def test_known_rows_stay_certain() -> None:
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


class Sharp(kedge.find_method("zero-shot")):  # type: ignore[misc]
    """Zero-shot, and four times as sure: a method that labels each image on its own."""

    def step(self, state: State | None, batch: Batch) -> Step:
        return Step(state, (4 * batch.log_zero_shot).softmax(dim=1), {})


def test_an_image_alone_has_the_temperature_it_has_among_others() -> None:
    method, head = Calibrated(Sharp()), TextHead(SET.head.features, 20.0)
    assert method.traits.scope == "image"
    together = method.step(None, Batch(SET.image_features, head)).z
    assert (together.amax(dim=1) < Sharp().step(None, Batch(SET.image_features, head)).z.amax(dim=1) - 1e-3).all()
    for i in range(5):
        alone = method.step(None, Batch(SET.image_features[i : i + 1], head)).z
        assert torch.equal(alone, together[i : i + 1])


@pytest.mark.parametrize("compiled", [True, False])
def test_heat_rounds_no_label_away(compiled: bool) -> None:
    """The second-best class is nearly the best, and comes first: of equal ones the first is the label."""
    x, t = simulated(200, 50)
    scores = -50 * torch.rand(200, 50, generator=torch.Generator().manual_seed(0)) - 50
    scores[:, 7] = torch.linspace(-1e-5, -2e-7, 200)
    scores[:, 9] = 0.0
    z = scores.softmax(dim=1)
    cooled, heat = tempered(scores, z, Batch(x.float(), TextHead(t.float(), 1e-3)), compiled=compiled)
    assert heat > 10
    assert (z.argmax(dim=1) == 9).all()
    assert (cooled.argmax(dim=1) == 9).all()


@pytest.mark.parametrize("compiled", [True, False])
def test_certain_images_have_no_heat(compiled: bool) -> None:
    x, t = (each.float() for each in simulated(40, 6, noise=0.5))
    known = torch.arange(40) % 6
    scores = torch.full((40, 6), IMPOSSIBLE).scatter_(1, known[:, None], 0.0)
    cooled, heat = tempered(scores, scores.exp(), Batch(x, TextHead(t), known=known), compiled=compiled)
    assert heat == 1
    assert torch.allclose(cooled, scores.exp(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3, 10, 1000])
@pytest.mark.parametrize("spread", [0.1, 3.0, 300.0])
def test_both_forms_find_the_temperature(k: int, spread: float) -> None:
    random = torch.Generator().manual_seed(k)
    x, t = (each.float() for each in simulated(100, k))
    batch = Batch(x, TextHead(t, 5.0))
    scores = spread * torch.randn(100, k, generator=random)
    scores[::3, 1] = scores[::3].amax(dim=1)  # some are tied
    z = scores.softmax(dim=1)
    fast, slow = (tempered(scores, z, batch, compiled=compiled)[0] for compiled in (True, False))
    assert (fast - slow).abs().max() < 1e-5
    aim = torch.minimum((z.amax(dim=1) + batch.log_zero_shot.amax(dim=1).exp()) / 2, z.amax(dim=1))
    hottest = (scores / 50).softmax(dim=1).amax(dim=1)
    assert (slow.amax(dim=1) - aim.maximum(hottest)).abs().max() < 5e-4


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
