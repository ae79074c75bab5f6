"""TENT on a small two-tower model with random weights: against torch's own optimisers, and that nothing leaks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import kedge
from cases import simulated
from kedge import Batch, FeatureSet, Stream, TextHead
from kedge.benchmark.evaluate import evaluate
from kedge.labelling.check_method import check_method
from kedge.methods.tent import Tent

SIDE, D, K = 6, 16, 5


class Tower(nn.Module):
    """n×3×6×6 images → 4 patches → one transformer layer → unit features; a batch norm for its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, D, SIDE // 2, SIDE // 2)
        self.stats = nn.BatchNorm2d(D)
        self.layer = nn.TransformerEncoderLayer(D, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(D)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stats(self.patches(images)).flatten(2).transpose(1, 2)
        return functional.normalize(self.norm(self.layer(tokens).mean(dim=1)))


class TwoTower(nn.Module):
    """Random weights, always the same; called, it is the image side. The text side has a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.visual = Tower()
            self.text = nn.Sequential(nn.Embedding(K, D), nn.LayerNorm(D))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.visual(images)
        return features


def images_of(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def model() -> TwoTower:
    return TwoTower().double()


@torch.no_grad()
def batch_of(model: TwoTower, n: int = 8, seed: int = 0) -> Batch:
    t = functional.normalize(model.text(torch.arange(K)))
    images = images_of(n, seed)
    return Batch(model(images), TextHead(t, 10.0), None, images, model)


def run(method: Tent, batches: list[Batch]) -> list[kedge.Step]:
    taken, state = [], method.init(batches[0].head)
    for batch in batches:
        with torch.no_grad():  # as Stream does
            taken.append(method.step(state, batch))
        state = taken[-1].state
    return taken


def zero_shot(batch: Batch) -> Tensor:
    return batch.log_zero_shot.exp()


VISUAL_NORMS = {
    f"visual.{path}.{kind}" for path in ("layer.norm1", "layer.norm2", "norm") for kind in ("weight", "bias")
}


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_as_training_the_model_itself(model: TwoTower, optimiser: Any) -> None:
    """A copy of the model is trained in place by torch's optimiser, batch after batch."""
    batches = [batch_of(model, seed=seed) for seed in range(3)]
    ours = run(Tent(steps=4, optimiser=optimiser, learning_rate=0.01), batches)

    copied = copy.deepcopy(model)
    norms = [p for name, p in copied.named_parameters() if name in VISUAL_NORMS]
    assert len(norms) == 6
    rule = torch.optim.Adam(norms, lr=0.01) if optimiser == "adam" else torch.optim.SGD(norms, lr=0.01, momentum=0.9)
    for batch, step in zip(batches, ours, strict=True):
        assert batch.images is not None
        for _ in range(4):
            y = torch.softmax(10.0 * copied(batch.images) @ batch.head.features.T, dim=1)
            rule.zero_grad()
            torch.special.entr(y).sum(dim=1).mean().backward()
            rule.step()
        z = torch.softmax(10.0 * copied(batch.images) @ batch.head.features.T, dim=1)
        assert (step.z - z).abs().max() <= 1e-9
        assert (step.z - zero_shot(batch)).abs().max() > 1e-3
        assert step.state is not None
        for name, p in copied.named_parameters():
            if name in VISUAL_NORMS:
                assert (step.state[f"theta.{name}"] - p).abs().max() <= 1e-9


def test_entropy_falls(model: TwoTower) -> None:
    (step,) = run(Tent(steps=20), [batch_of(model)])
    path = step.info["entropy"]
    assert len(path) == 20
    assert all(after < before for before, after in itertools.pairwise(path))


@pytest.mark.parametrize("method", [Tent(learning_rate=0.0), Tent(steps=0), Tent(learning_rate=0.0, optimiser="sgd")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_learning_rate_is_zero_shot_exactly(method: Tent, dtype: torch.dtype) -> None:
    model = TwoTower().to(dtype)
    t = functional.normalize(model.text(torch.arange(K))).detach()
    stream = Stream(TextHead(t), method)
    for seed in range(2):
        images = images_of(8, seed).to(dtype)
        with torch.no_grad():
            features = model(images)
        result: Any = stream.step(features, images=images, encoder=model)
        assert torch.equal(result.probs, result.zero_shot)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Every weight and buffer by value, and which objects they are, what they ask and whether they hold gradients."""
    return {
        name: (id(value), value.detach().clone(), value.requires_grad, value.grad)
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(
        a[0] == b[0] and torch.equal(a[1], b[1]) and a[2] == b[2] and a[3] is None and b[3] is None
        for a, b in zip(before.values(), after.values(), strict=True)
    )


def test_the_model_is_left_as_it_was(model: TwoTower) -> None:
    model.visual.norm.bias.requires_grad_(False)  # frozen by its owner, adapted all the same
    before = snapshot(model)
    (step,) = run(Tent(learning_rate=0.1), [batch_of(model)])
    assert same(before, snapshot(model))
    assert not model.training
    assert step.state is not None
    assert (step.state["theta.visual.norm.bias"] - model.visual.norm.bias).abs().max() > 0.01
    assert not any(value.requires_grad for value in (step.z, *step.state.values()))
    with torch.no_grad():
        model.visual.norm.bias += 1  # the comparison above can fail
    assert not same(before, snapshot(model))


def test_buffers_are_left_as_they_were(model: TwoTower) -> None:
    """A batch norm in training mode would write to its running means."""
    model.visual.stats.train()
    batch = batch_of(model)  # by which the model writes to them
    before = snapshot(model)
    run(Tent(), [batch])
    assert same(before, snapshot(model))


def test_an_error_in_the_middle_leaves_the_model_as_it_was(model: TwoTower, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, before, calls = batch_of(model), snapshot(model), []
    forward = model.visual.layer.forward

    def failing(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.visual.layer, "forward", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(Tent(learning_rate=0.1), [batch])
    monkeypatch.undo()
    assert same(before, snapshot(model))


def test_norms_that_images_do_not_pass_stay(model: TwoTower) -> None:
    (step,) = run(Tent(), [batch_of(model)])
    assert step.state is not None
    assert {name.removeprefix("theta.") for name in step.state if name.startswith("theta.")} == VISUAL_NORMS | {
        "text.1.weight",
        "text.1.bias",
    }
    assert torch.equal(step.state["theta.text.1.weight"], model.text[1].weight)


def test_two_streams_share_one_encoder(model: TwoTower) -> None:
    batches = [batch_of(model, seed=seed) for seed in range(3)]
    alone = [step.z for step in run(Tent(), batches)]
    one, other = Stream(batches[0].head, Tent()), Stream(batches[0].head, Tent(learning_rate=0.05))
    for batch, z in zip(batches, alone, strict=True):
        other.step(batch.features, images=batch.images, encoder=model)
        assert torch.equal(one.step(batch.features, images=batch.images, encoder=model).probs, z)
    one.reset()
    assert torch.equal(one.step(batches[0].features, images=batches[0].images, encoder=model).probs, alone[0])


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_saved_stream_continues(model: TwoTower, tmp_path: Path, optimiser: Any) -> None:
    method = Tent(optimiser=optimiser, learning_rate=0.01)
    batches = [batch_of(model, seed=seed) for seed in range(4)]
    stream = Stream(batches[0].head, method)
    for batch in batches[:2]:
        stream.step(batch.features, images=batch.images, encoder=model)
    stream.save(tmp_path / "stream.safetensors")
    loaded = Stream.load(tmp_path / "stream.safetensors")
    for batch in batches[2:]:
        whole = stream.step(batch.features, images=batch.images, encoder=model).probs
        assert torch.equal(whole, loaded.step(batch.features, images=batch.images, encoder=model).probs)
        assert (whole - run(method, [batch])[0].z).abs().max() > 1e-6  # the memory is in it


FORGED: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "no steps": lambda s: {n: v for n, v in s.items() if n != "taken"},
    "no average": lambda s: {n: v for n, v in s.items() if n != "first.visual.norm.weight"},
    "no parameter": lambda s: {n: v for n, v in s.items() if n != "theta.visual.norm.weight"},
    "one more": lambda s: {**s, "theta.more": torch.zeros(3)},
    "another name": lambda s: {**s, "more": torch.zeros(3)},
    "shorter average": lambda s: {**s, "second.visual.norm.bias": s["second.visual.norm.bias"][:-1]},
    "another type": lambda s: {**s, "theta.visual.norm.bias": s["theta.visual.norm.bias"].float()},
    "NaN": lambda s: {**s, "theta.visual.norm.bias": s["theta.visual.norm.bias"] * torch.nan},
    "negative steps": lambda s: {**s, "taken": torch.tensor(-11)},
    "steps as float": lambda s: {**s, "taken": torch.tensor(10.0)},
    "several steps": lambda s: {**s, "taken": torch.tensor([1, 2])},
    "negative squares": lambda s: {**s, "second.visual.norm.bias": s["second.visual.norm.bias"] - 1},
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_states_are_refused(model: TwoTower, tmp_path: Path, forgery: str) -> None:
    batch = batch_of(model)
    stream = Stream(batch.head, "tent")
    stream.step(batch.features, images=batch.images, encoder=model)
    stream.state = FORGED[forgery](dict(stream.state or {}))
    stream.save(tmp_path / "s.safetensors")
    with pytest.raises(kedge.FileError, match=r"is not a stream of 'tent': .* Start a new stream"):
        Stream.load(tmp_path / "s.safetensors")


def test_a_state_of_other_norms_is_refused_with_the_encoder(model: TwoTower, tmp_path: Path) -> None:
    batch = batch_of(model)
    stream = Stream(batch.head, "tent")
    stream.step(batch.features, images=batch.images, encoder=model)
    norm = "visual.norm.bias"
    for change in (lambda value: value[:-1], lambda value: value.float()):
        state = dict(stream.state or {})
        state |= {f"{part}.{norm}": change(state[f"{part}.{norm}"]) for part in ("theta", "first", "second")}
        with pytest.raises(kedge.InputError, match="its LayerNorms differ"):
            Tent().step(state, batch)


def test_adapt_takes_images_and_encoder(model: TwoTower) -> None:
    batch = batch_of(model)
    result: Any = kedge.adapt(batch.features, batch.head, "tent", images=batch.images, encoder=model, steps=3)
    assert torch.equal(result.probs, run(Tent(steps=3), [batch])[0].z)
    assert result.info["adapted"] == 8
    assert torch.equal(result.zero_shot, zero_shot(batch))


# What is refused


def test_refused_on_plain_features(model: TwoTower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tent, "step", lambda *_: pytest.fail("began to work"))
    batch = batch_of(model)
    x, t = batch.features, batch.head
    message = "method 'tent' needs the images and their encoder; features alone are not enough. Pass images=… and"
    with pytest.raises(kedge.InputError, match=message):
        kedge.adapt(x, t, "tent")
    with pytest.raises(kedge.InputError, match=message):
        kedge.adapt(x, t, "tent", encoder=model)
    with pytest.raises(kedge.InputError, match=message):
        Stream(t, "tent").step(x, images=batch.images)
    with pytest.raises(kedge.InputError, match=r"do not have the paths of their images.* `kedge extract`"):
        evaluate("tent", FeatureSet.from_arrays(x, t, labels=torch.zeros(8, dtype=torch.long)), "all")


def test_refused_encoders_and_images(model: TwoTower) -> None:
    batch = batch_of(model)
    stream = Stream(batch.head, "tent")

    def step(images: Any, encoder: nn.Module) -> None:
        stream.step(batch.features, images=images, encoder=encoder)

    with pytest.raises(kedge.InputError, match=r"adapts LayerNorm weights, and this Sequential has none"):
        step(batch.images, nn.Sequential(nn.Flatten(), nn.Linear(108, D)).double().eval())
    with pytest.raises(kedge.InputError, match=r"Call encoder.eval\(\)"):
        step(batch.images, TwoTower().double().train())
    with pytest.raises(kedge.InputError, match=r"features of shape \(3, 16\) for images whose .* \(8, 16\)"):
        step(images_of(3), model)
    with pytest.raises(kedge.InputError, match=r"encoder\(images\) needs unit-norm rows"):
        step(batch.images, nn.Sequential(nn.Flatten(), nn.LayerNorm(108), nn.Linear(108, D)).double().eval())
    assert stream.steps == 0
    step(batch.images, model)
    with pytest.raises(kedge.InputError, match=r"started with another encoder"):
        step(batch.images, model.visual)


def test_features_need_no_images() -> None:
    """A method on features takes no notice of images that come along."""
    x, t = simulated(5, 3)
    assert torch.equal(
        kedge.adapt(x, t, method="stata", images=x, encoder=nn.Identity()).probs,
        kedge.adapt(x, t, method="stata").probs,
    )


@pytest.mark.parametrize("method", [Tent(), Tent(optimiser="sgd")])
def test_contract(method: Tent) -> None:
    check_method(method)
