"""kedge.adapt and kedge.Stream: one door for one batch, one for many, and they agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from cases import ON_FEATURES, simulated
from kedge import FeatureSet, Stream, TextHead
from kedge.methods.contract import Batch, State, Step
from kedge.methods.solve.em import effective_classes
from kedge.tensor_files import save_tensors
from toy_methods import Running, Viewing


def batches(count: int, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], Tensor]:
    x, t = simulated(8 * count, 5)
    return list(x.to(dtype).split(8)), t.to(dtype)


@pytest.mark.parametrize("method", ON_FEATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_step_is_adapt(method: str, dtype: torch.dtype) -> None:
    (batch,), t = batches(1, dtype)
    step, whole = Stream(method, t).step(batch), kedge.adapt(batch, t, method)
    for a, b in zip(
        (step.probs, step.labels, step.zero_shot), (whole.probs, whole.labels, whole.zero_shot), strict=True
    ):
        assert torch.equal(a, b)
    assert step.info == whole.info
    assert step.info["method"] == method


def test_stateless_steps_are_adapt_every_time() -> None:
    parts, t = batches(4)
    stream = Stream("stata", t, alpha=2.0)
    for count, batch in enumerate(parts, start=1):
        assert torch.equal(stream.step(batch).probs, kedge.adapt(batch, t, alpha=2.0).probs)
        assert stream.steps == count
        assert stream.state is None


def test_state_is_carried_and_reset() -> None:
    parts, t = batches(3)
    stream = Stream(Running(), t)
    first = [stream.step(batch) for batch in parts]
    assert [round(r.info["seen"]) for r in first] == [13, 21, 29]  # 5 classes, 8 images per batch
    assert not torch.equal(first[1].probs, kedge.adapt(parts[1], t, Running()).probs)
    stream.reset()
    assert stream.steps == 0
    for batch, before in zip(parts, first, strict=True):
        assert torch.equal(stream.step(batch).probs, before.probs)


def test_two_streams_do_not_touch() -> None:
    parts, t = batches(3)
    method = Running()
    alone = Stream(method, t)
    expected = [alone.step(batch).probs for batch in parts]
    one, other = Stream(method, t), Stream(method, t)
    for batch, before in zip(parts, expected, strict=True):
        other.step(-batch)
        assert torch.equal(one.step(batch).probs, before)


def test_a_failed_step_changes_nothing() -> None:
    parts, t = batches(2)
    stream, spared = Stream(Running(), t), Stream(Running(), t)
    for s in (stream, spared):
        s.step(parts[0])
    with pytest.raises(kedge.InputError, match="unit-norm"):
        stream.step(2 * parts[1])
    with pytest.raises(kedge.InputError, match="dimension 3"):
        stream.step(np.ones((1, 3)) / 3**0.5)
    assert stream.steps == 1
    assert torch.equal(stream.step(parts[1]).probs, spared.step(parts[1]).probs)


@pytest.mark.parametrize("method", [*ON_FEATURES, Running()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_and_loaded_goes_on(tmp_path: Path, method: Any, dtype: torch.dtype) -> None:
    parts, t = batches(4, dtype)
    head = TextHead.from_arrays(t, 30.0, ["a", "b", "ç", "d", "e"])
    stream = Stream(method, head)
    for batch in parts[:2]:
        stream.step(batch)
    stream.save(tmp_path / "s.safetensors")
    loaded = Stream.load(tmp_path / "s.safetensors", *([method] if isinstance(method, Running) else []))
    assert loaded.steps == 2
    assert loaded.method == stream.method
    assert (loaded.head.class_names, loaded.head.logit_scale) == (head.class_names, 30.0)
    stream.save(tmp_path / "s.safetensors")  # the loaded one does not depend on the file any more
    for batch in parts[2:]:
        assert torch.equal(stream.step(batch).probs, loaded.step(batch).probs)
    assert loaded.steps == 4
    loaded.reset()
    assert torch.equal(loaded.step(parts[0]).probs, Stream(method, head).step(parts[0]).probs)


@dataclass(frozen=True)
class Twice(Running):
    """Its state holds one tensor under two names."""

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        assert step.state is not None
        return Step({**step.state, "again": step.state["prior"], "part": step.state["prior"][1:]}, step.z, step.info)


def test_a_state_that_shares_memory_is_saved(tmp_path: Path) -> None:
    parts, t = batches(2)
    stream = Stream(Twice(), t)
    stream.step(parts[0])
    stream.save(tmp_path / "s.safetensors")
    assert torch.equal(
        Stream.load(tmp_path / "s.safetensors", Twice()).step(parts[1]).probs, stream.step(parts[1]).probs
    )


def test_saved_settings_come_back(tmp_path: Path) -> None:
    _, t = batches(1)
    stream = Stream("stata", 3 * t, alpha=float("inf"), beta="soft", normalize=True)
    stream.save(tmp_path / "s.safetensors")
    loaded = Stream.load(tmp_path / "s.safetensors")
    assert loaded.method == kedge.StatA(alpha=float("inf"), beta="soft")
    assert loaded.normalize is True


def test_loading_asks_for_the_right_method(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    _, t = batches(1)
    Stream(Running(weight=2.0), t).save(path)
    with pytest.raises(kedge.FileError, match="'running', which is not registered here"):
        Stream.load(path)
    with pytest.raises(kedge.FileError, match=r"with \{'weight': 2.0\}; got Running\(weight=1.0\)"):
        Stream.load(path, Running())
    with pytest.raises(kedge.FileError, match="is a stream of 'running'"):
        Stream.load(path, kedge.StatA())
    assert Stream.load(path, Running(weight=2.0)).method == Running(weight=2.0)


def test_damaged_stream_files(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    _, t = batches(1)
    Stream(Running(), t).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(kedge.FileError, match="Make it again"):
        Stream.load(path, Running())
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(kedge.FileError, match="does not match its own hash"):
        Stream.load(path, Running())
    save_tensors(path, "stream", 1, {"text_features": t}, {"method": "running"})
    with pytest.raises(kedge.FileError, match="settings"):
        Stream.load(path, Running())
    FeatureSet.from_arrays(t, t.clone()).save(path)
    with pytest.raises(kedge.FileError, match="found a kedge features file"):
        Stream.load(path)


def test_only_dataclasses_can_be_saved(tmp_path: Path) -> None:
    class Loose:
        name = "loose"
        traits = Running.traits
        init = Running.init
        step = Running.step
        weight = 1.0

    parts, t = batches(1)
    stream = Stream(Loose(), t)
    stream.step(parts[0])
    with pytest.raises(kedge.SettingError, match="Loose is not a dataclass"):
        stream.save(tmp_path / "s.safetensors")


def test_results_have_the_kind_of_the_batch() -> None:
    """The stream computes in the head's precision; each result is of its batch's array kind."""
    parts, t = batches(1, torch.float64)
    for head_dtype in (torch.float16, torch.float32, torch.float64):
        stream = Stream("stata", t.to(head_dtype))
        for dtype in (torch.float16, torch.float32, torch.float64):
            batch = parts[0].to(dtype)
            wide = torch.float64 if head_dtype == torch.float64 else torch.float32
            assert stream.step(batch).probs.dtype == wide
            assert isinstance(stream.step(batch.numpy()).probs, np.ndarray)


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e200])
def test_a_normalising_stream_takes_any_size(size: float) -> None:
    parts, t = batches(1, torch.float64)
    stream = Stream("zero-shot", t.float(), normalize=True)
    assert (stream.step(size * parts[0]).probs - stream.step(parts[0]).probs).abs().max() <= 1e-4


def test_views_reach_the_method() -> None:
    x, t = simulated(6, 5)
    views, _ = simulated(6 * 3, 5, seed=1)
    views = views.reshape(6, 3, -1)
    expected = (100 * views.mean(dim=1) @ t.T).softmax(dim=1)
    for result in (
        Stream(Viewing(), t).step(x, views),
        Stream(Viewing(), t).step(x.numpy(), views.numpy()),
        kedge.adapt(FeatureSet.from_arrays(x, t, views=views), method=Viewing()),
    ):
        assert np.abs(np.asarray(result.probs) - expected.numpy()).max() <= 1e-12
        assert result.info["views"] == 3
    half = Stream(Viewing(), t.float()).step(x.half(), views.half())
    assert half.info["dtype"] == "torch.float32"
    with pytest.raises(kedge.InputError, match="views must be 3-dimensional"):
        Stream(Viewing(), t).step(x, x)


def test_views_must_belong_to_the_batch() -> None:
    x, t = simulated(6, 5)
    with pytest.raises(kedge.InputError, match="views"):
        Stream(Viewing(), t).step(x, x[:4, None, :])


def test_adapt_takes_a_feature_set_alone() -> None:
    x, t = simulated(6, 5)
    features = FeatureSet.from_arrays(x, t, logit_scale=20.0)
    assert torch.equal(kedge.adapt(features).probs, kedge.adapt(x, t, logit_scale=20.0).probs)
    assert torch.equal(kedge.adapt(x, features.head).probs, kedge.adapt(features).probs)
    with pytest.raises(kedge.InputError, match="brings its own text features"):
        kedge.adapt(features, t)
    with pytest.raises(kedge.InputError, match="text_features is missing"):
        kedge.adapt(x)


def test_labels_of_a_feature_set_change_nothing() -> None:
    """No method can see them: right, wrong or absent labels give the same bits."""
    x, t = simulated(20, 5)
    for method in ON_FEATURES:
        results = [
            kedge.adapt(FeatureSet.from_arrays(x, t, labels=labels), method=method).probs
            for labels in (None, torch.zeros(20, dtype=torch.long), torch.arange(20) % 5)
        ]
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_gradients_do_not_leak() -> None:
    x, t = simulated(6, 5)
    result = kedge.adapt(x.requires_grad_(), t.requires_grad_())
    assert not result.probs.requires_grad
    assert not result.zero_shot.requires_grad


def test_effective_classes() -> None:
    assert effective_classes(torch.ones(4), 4) == pytest.approx(4)
    assert effective_classes(torch.tensor([3.0, 0, 0]), 3) == pytest.approx(1)
    assert effective_classes(torch.full((5,), 0.4), 2) == pytest.approx(5)
