"""kedge.adapt and kedge.Stream: one door for one batch, one for many, and they agree."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from kedge.arrays import effective_classes
from kedge.methods.contract import Batch, State, Step
from kedge.tensor_files import save_tensors
from tampering import opened
from toy_methods import Running, Viewing


def batches(count: int, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], Tensor]:
    x, t = simulated(8 * count, 5)
    return list(x.to(dtype).split(8)), t.to(dtype)


@pytest.mark.parametrize("method", ON_FEATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_step_is_adapt(method: str, dtype: torch.dtype) -> None:
    (batch,), t = batches(1, dtype)
    step, whole = Stream(t, method).step(batch), kedge.adapt(batch, t, method)
    for a, b in zip(
        (step.probs, step.labels, step.zero_shot), (whole.probs, whole.labels, whole.zero_shot), strict=True
    ):
        assert torch.equal(a, b)
    assert step.info == whole.info
    assert step.info["method"] == method


def test_stateless_steps_are_adapt_every_time() -> None:
    parts, t = batches(4)
    stream = Stream(t, "stata", alpha=2.0)
    for count, batch in enumerate(parts, start=1):
        assert torch.equal(stream.step(batch).probs, kedge.adapt(batch, t, method="stata", alpha=2.0).probs)
        assert stream.steps == count
        assert stream.state is None


def test_state_is_carried_and_reset() -> None:
    parts, t = batches(3)
    stream = Stream(t, Running())
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
    alone = Stream(t, method)
    expected = [alone.step(batch).probs for batch in parts]
    one, other = Stream(t, method), Stream(t, method)
    for batch, before in zip(parts, expected, strict=True):
        other.step(-batch)
        assert torch.equal(one.step(batch).probs, before)


def test_a_failed_step_changes_nothing() -> None:
    parts, t = batches(2)
    stream, spared = Stream(t, Running()), Stream(t, Running())
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
    stream = Stream(head, method)
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
    assert torch.equal(loaded.step(parts[0]).probs, Stream(head, method).step(parts[0]).probs)


@dataclass(frozen=True)
class Twice(Running):
    """Its state holds one tensor under two names."""

    def init(self, head: TextHead) -> State | None:
        prior = torch.ones(head.k, dtype=head.features.dtype)
        return {"prior": prior, "again": prior, "part": prior[1:]}

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        assert step.state is not None
        return Step({**step.state, "again": step.state["prior"], "part": step.state["prior"][1:]}, step.z, step.info)


def test_a_state_that_shares_memory_is_saved(tmp_path: Path) -> None:
    parts, t = batches(2)
    stream = Stream(t, Twice())
    stream.step(parts[0])
    stream.save(tmp_path / "s.safetensors")
    assert torch.equal(
        Stream.load(tmp_path / "s.safetensors", Twice()).step(parts[1]).probs, stream.step(parts[1]).probs
    )


def test_saved_settings_come_back(tmp_path: Path) -> None:
    _, t = batches(1)
    stream = Stream(3 * t, "stata", alpha=float("inf"), beta="soft", normalize=True)
    stream.save(tmp_path / "s.safetensors")
    loaded = Stream.load(tmp_path / "s.safetensors")
    assert loaded.method == kedge.StatA(alpha=float("inf"), beta="soft")
    assert loaded.normalize is True


def test_loading_asks_for_the_right_method(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    _, t = batches(1)
    Stream(t, Running(weight=2.0)).save(path)
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
    Stream(t, Running()).save(path)
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


def saved_parts(method: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the metadata of a stream after two batches, to be forged."""
    parts, t = batches(2)
    stream = Stream(TextHead.from_arrays(t, 10.0), method)
    for batch in parts:
        stream.step(batch)
    stream.save(path)
    return opened(path)


FORGED: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda value: None,
    "shorter": lambda value: value[:-1],
    "empty": lambda value: value[:0],
    "longer": lambda value: torch.cat([value, value]),
    "transposed": lambda value: value.mT if value.ndim > 1 else value[:, None],
    "another type": lambda value: value.double(),
    "whole numbers": lambda value: value.nan_to_num(posinf=0.0).to(torch.int64),
    "a scalar": lambda value: value.sum(),
    "NaN": lambda value: value.index_fill(0, torch.tensor([1]), torch.nan),
    "-Inf": lambda value: value.index_fill(0, torch.tensor([1]), -torch.inf),
}


@pytest.mark.parametrize("forgery", FORGED)
@pytest.mark.parametrize("method", ["kedge", "tda", "dmn", "oga", Running()])
def test_forged_states_are_refused(tmp_path: Path, method: Any, forgery: str) -> None:
    path = tmp_path / "s.safetensors"
    tensors, meta = saved_parts(method, path)
    given = () if isinstance(method, str) else (method,)
    names = [name for name in tensors if name.startswith("state.")]
    assert names
    for name in names:
        changed = FORGED[forgery](tensors[name])
        forged = {**tensors, name: changed} if changed is not None else {n: v for n, v in tensors.items() if n != name}
        save_tensors(path, "stream", 1, forged, meta)
        with pytest.raises(kedge.FileError, match=r"is not a stream of .* Start a new stream") as caught:
            Stream.load(path, *given)
        assert "\n" not in str(caught.value)
    save_tensors(path, "stream", 1, {**tensors, "state.more": torch.zeros(3)}, meta)
    with pytest.raises(kedge.FileError, match=r"the state is \[.*more.*\]; it must be \["):
        Stream.load(path, *given)
    save_tensors(path, "stream", 1, tensors, {**meta, "has_state": False})
    with pytest.raises(kedge.FileError, match=r"has an array 'state\..*' that a file of this kind does not have"):
        Stream.load(path, *given)
    alone = {"text_features": tensors["text_features"]}
    save_tensors(path, "stream", 1, alone, {**meta, "has_state": False})
    with pytest.raises(kedge.FileError, match="the state is none; it must be"):
        Stream.load(path, *given)
    save_tensors(path, "stream", 1, tensors, meta)
    Stream.load(path, *given)


def test_a_state_for_a_method_without_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    tensors, meta = saved_parts("stata", path)
    save_tensors(path, "stream", 1, {**tensors, "state.counts": torch.zeros(5)}, {**meta, "has_state": True})
    with pytest.raises(kedge.FileError, match=r"the state is \[counts\]; it must be none"):
        Stream.load(path)
    tensors, meta = saved_parts(kedge.Kedge(memory=False), path)
    save_tensors(path, "stream", 1, {**tensors, "state.counts": torch.zeros(5)}, meta)
    with pytest.raises(kedge.FileError, match=r"the state is \[counts\]; it must be \[\]"):
        Stream.load(path)


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t[:, :-1], lambda t: t[0], lambda t: t * torch.nan])
def test_forged_text_features_are_refused(tmp_path: Path, change: Callable[[Tensor], Tensor]) -> None:
    path = tmp_path / "s.safetensors"
    tensors, meta = saved_parts("kedge", path)
    save_tensors(path, "stream", 1, {**tensors, "text_features": change(tensors["text_features"])}, meta)
    with pytest.raises(kedge.FileError, match="is not a stream of 'kedge'"):
        Stream.load(path)
    del tensors["text_features"]
    save_tensors(path, "stream", 1, tensors, meta)
    with pytest.raises(kedge.FileError, match="no array 'text_features'"):
        Stream.load(path)


@pytest.mark.parametrize("name", ["counts", "var"])
def test_negative_counts_and_variances_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.safetensors"
    tensors, meta = saved_parts("kedge", path)
    save_tensors(path, "stream", 1, {**tensors, f"state.{name}": tensors[f"state.{name}"] - 1}, meta)
    with pytest.raises(kedge.FileError, match=f"{name} in the state has negative values"):
        Stream.load(path)


@pytest.mark.parametrize("forgery", [name for name in FORGED if name not in ("NaN", "-Inf")])
def test_no_forged_state_reaches_the_compiled_solver(forgery: str) -> None:
    parts, t = batches(2)
    method, head = kedge.Kedge(), TextHead(t, 10.0)
    state = method.step(method.init(head), Batch(parts[0], head)).state
    assert state
    assert bool(state["counts"].any())
    for name in state:
        changed = FORGED[forgery](state[name])
        forged = {**state, name: changed} if changed is not None else {n: v for n, v in state.items() if n != name}
        with pytest.raises(kedge.InputError, match="Start a new stream"):
            method.step(forged, Batch(parts[1], head))
    with pytest.raises(kedge.InputError, match=r"it must be \[\]"):
        kedge.Kedge(memory=False).step(state, Batch(parts[1], head))


def test_only_dataclasses_can_be_saved(tmp_path: Path) -> None:
    class Loose:
        name = "loose"
        traits = Running.traits
        init = Running.init
        step = Running.step
        weight = 1.0

    parts, t = batches(1)
    stream = Stream(t, Loose())
    stream.step(parts[0])
    with pytest.raises(kedge.SettingError, match="cannot save a stream of Loose: it is not a dataclass"):
        stream.save(tmp_path / "s.safetensors")


def test_results_have_the_kind_of_the_batch() -> None:
    """The stream computes in the head's precision; each result is of its batch's array kind."""
    parts, t = batches(1, torch.float64)
    for head_dtype in (torch.float16, torch.float32, torch.float64):
        stream = Stream(t.to(head_dtype), "stata")
        for dtype in (torch.float16, torch.float32, torch.float64):
            batch = parts[0].to(dtype)
            wide = torch.float64 if head_dtype == torch.float64 else torch.float32
            assert stream.step(batch).probs.dtype == wide
            assert isinstance(stream.step(batch.numpy()).probs, np.ndarray)


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e200])
def test_a_normalising_stream_takes_any_size(size: float) -> None:
    parts, t = batches(1, torch.float64)
    stream = Stream(t.float(), "zero-shot", normalize=True)
    assert (stream.step(size * parts[0]).probs - stream.step(parts[0]).probs).abs().max() <= 1e-4


def test_views_reach_the_method() -> None:
    x, t = simulated(6, 5)
    views, _ = simulated(6 * 3, 5, seed=1)
    views = views.reshape(6, 3, -1)
    expected = (100 * views.mean(dim=1) @ t.T).softmax(dim=1)
    for result in (
        Stream(t, Viewing()).step(x, views),
        Stream(t, Viewing()).step(x.numpy(), views.numpy()),
        kedge.adapt(FeatureSet.from_arrays(x, t, views=views), method=Viewing()),
    ):
        assert np.abs(np.asarray(result.probs) - expected.numpy()).max() <= 1e-12
        assert result.info["views"] == 3
    half = Stream(t.float(), Viewing()).step(x.half(), views.half())
    assert half.info["dtype"] == "torch.float32"
    with pytest.raises(kedge.InputError, match="views must be 3-dimensional"):
        Stream(t, Viewing()).step(x, x)


def test_views_must_belong_to_the_batch() -> None:
    x, t = simulated(6, 5)
    with pytest.raises(kedge.InputError, match="views"):
        Stream(t, Viewing()).step(x, x[:4, None, :])


def test_adapt_takes_a_feature_set_alone() -> None:
    x, t = simulated(6, 5)
    features = FeatureSet.from_arrays(x, t, logit_scale=20.0)
    assert torch.equal(
        kedge.adapt(features, method="stata").probs, kedge.adapt(x, t, method="stata", logit_scale=20.0).probs
    )
    assert torch.equal(kedge.adapt(x, features.head, method="stata").probs, kedge.adapt(features, method="stata").probs)
    with pytest.raises(kedge.InputError, match="has its own text features"):
        kedge.adapt(features, t, method="stata")
    with pytest.raises(kedge.InputError, match="text_features is missing"):
        kedge.adapt(x, method="stata")


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
    result = kedge.adapt(x.requires_grad_(), t.requires_grad_(), method="stata")
    assert not result.probs.requires_grad
    assert not result.zero_shot.requires_grad


def test_effective_classes() -> None:
    assert effective_classes(torch.ones(4)) == pytest.approx(4)
    assert effective_classes(torch.tensor([3.0, 0, 0])) == pytest.approx(1)
    assert effective_classes(torch.tensor([1.0, 3.0])) == pytest.approx(4 / 3**0.75)


def test_the_default_method_is_kedge() -> None:
    (batch,), t = batches(1)
    by_name = kedge.adapt(batch, t, "kedge")
    assert by_name.info["method"] == "kedge"
    for result in (kedge.adapt(batch, t), Stream(t).step(batch)):
        assert result.info == by_name.info
        assert torch.equal(result.probs, by_name.probs)


@dataclass(frozen=True)
class Slow(Running):
    """Yields to other threads between reading the state and returning the next."""

    def step(self, state: State | None, batch: Batch) -> Step:
        time.sleep(0.001)
        return super().step(state, batch)


def test_one_stream_in_several_threads_takes_whole_steps() -> None:
    """Every batch is counted once, whatever the order: no step starts from the state of a step before the last."""
    parts, t = batches(40)
    stream = Stream(t, Slow())
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(stream.step, parts))
    assert stream.steps == 40
    assert sorted(round(r.info["seen"]) for r in results) == [5 + 8 * i for i in range(1, 41)]


def test_several_streams_run_at_the_same_time() -> None:
    parts, t = batches(2)
    both = threading.Barrier(2, timeout=30)

    class Meeting(Running):
        def step(self, state: State | None, batch: Batch) -> Step:
            both.wait()  # breaks if one step waits for the end of the other
            return super().step(state, batch)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda part: Stream(t, Meeting()).step(part).probs, parts))
    for part, probs in zip(parts, results, strict=True):
        assert torch.equal(probs, Stream(t, Running()).step(part).probs)


def test_a_stream_can_step_after_a_failed_step_in_another_thread() -> None:
    parts, t = batches(1)
    stream = Stream(t, Running())
    with ThreadPoolExecutor(1) as pool, pytest.raises(kedge.InputError):
        pool.submit(stream.step, 2 * parts[0]).result()
    assert stream.step(parts[0]).probs.shape == (8, 5)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_a_copy_of_a_stream_goes_its_own_way(copied: Any) -> None:
    parts, t = batches(3)
    stream = Stream(t, Running())
    stream.step(parts[0])
    other = copied(stream)
    assert torch.equal(other.step(parts[1]).probs, stream.step(parts[1]).probs)
    other.step(parts[2])
    assert (stream.steps, other.steps) == (2, 3)


def test_repr_is_a_few_lines() -> None:
    x, t = simulated(8, 7)
    head = TextHead.from_arrays(t, 50.0, ["cat", "dog", "bird", "fish", "cow", "ant", "bee"])
    stream = Stream(head, "zero-shot")
    result = stream.step(x)
    text = "TextHead: 7 classes, dimension 16, logit scale 50\n  classes cat, dog, bird, fish, cow, … (2 more)"
    assert repr(head) == text
    assert repr(stream) == f"Stream: ZeroShot()\n  after 1 batch\n  {text}"
    assert repr(Stream(head, "zero-shot", present=["dog", "ant"])).endswith("\n  2 of them can occur: see .present")
    assert repr(result) == (
        "Result: 8 images, 7 classes, method zero-shot\n"
        "  0 labels changed\n"
        "  probs, zero_shot: 8×7 torch.float64; labels: 8; info: method, effective_classes"
    )
    assert "8×7 float64; labels" in repr(stream.step(x.numpy()))
    assert "Kedge(alpha=2.0," in repr(Stream(t, alpha=2.0))


def test_changed_counts_labels_that_are_not_zero_shots() -> None:
    x, t = simulated(40, 5)
    for result in (kedge.adapt(x, t, "stata", 2.0), kedge.adapt(x.numpy(), t.numpy(), "stata", 2.0)):
        before = torch.as_tensor(result.zero_shot).argmax(dim=1)
        assert result.changed == int((torch.as_tensor(result.labels) != before).sum()) > 0
