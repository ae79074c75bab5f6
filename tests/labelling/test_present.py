"""Which classes can occur: for one batch, along a stream, and in a stream's file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import kedge
from cases import ON_FEATURES, simulated
from kedge import InputError, Stream, TextHead, Traits
from kedge.methods.contract import Batch, State, Step
from kedge.tensor_files import save_tensors
from tampering import opened
from toy_methods import Running, Told

NAMES = ["cat", "dog", "polar bear", "fox", "owl"]
X, T = simulated(24, 5)
HEAD = TextHead.from_arrays(T, 30.0, NAMES)


@pytest.mark.parametrize("method", ON_FEATURES)
def test_every_method_gets_the_present_classes_only(method: str) -> None:
    found = kedge.adapt(X, HEAD, method, present=["polar bear", 0, "owl"])
    alone = kedge.adapt(X, HEAD.select(torch.tensor([0, 2, 4])), method)
    assert torch.allclose(found.probs[:, [0, 2, 4]], alone.probs, atol=1e-6)
    assert not found.probs[:, [1, 3]].any()
    assert torch.equal(found.zero_shot, kedge.adapt(X, HEAD, method).zero_shot)  # of all classes
    assert set(found.labels.tolist()) <= {0, 2, 4}


@pytest.mark.parametrize("method", ["kedge", "oga", "stata"])
def test_all_classes_present_is_like_none_given(method: str) -> None:
    assert torch.equal(kedge.adapt(X, HEAD, method, present=range(5)).probs, kedge.adapt(X, HEAD, method).probs)


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ([], "present is empty"),
        ("cat", "present must be a list of class names or numbers; got 'cat'"),
        (["cta"], "present has 'cta', which is no class; did you mean 'cat'"),
        ([5], "present has 5; a class is its name or a number from 0 to 4"),
        ([True], "present has True"),
        (3, "present must be a list"),
    ],
)
def test_what_is_refused(present: Any, message: str) -> None:
    stream = Stream(HEAD)
    for attempt in (
        lambda: kedge.adapt(X, HEAD, present=present),
        lambda: Stream(HEAD, present=present),
        lambda: setattr(stream, "present", present),
    ):
        with pytest.raises(InputError, match=message):
            attempt()
    assert stream.present is None


def test_a_known_class_must_be_able_to_occur() -> None:
    message = "image 3 is known to be 'dog', which is not among the classes that can occur"
    with pytest.raises(InputError, match=message):
        kedge.adapt(X, HEAD, Told(), present=["cat", "fox"], known={3: "dog"})
    stream = Stream(HEAD, Told(), present=["cat", "fox"])
    with pytest.raises(InputError, match=message):
        stream.step(X, known={3: "dog"})
    stream.present = None
    assert stream.step(X, known={3: "dog"}).labels[3] == 1


@dataclass(frozen=True)
class ByClass(Running):
    """Its memory has a row per class."""

    name: ClassVar[str] = "by-class"
    traits: ClassVar[Traits] = replace(Running.traits, by_class=True)

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        return replace(step, info={})


def steps(stream: Stream, *present: Any) -> list[Tensor]:
    found = []
    for part, classes in zip(X.split(8), present, strict=True):
        stream.present = classes
        found.append(stream.step(part).probs)
    return found


def test_classes_come_and_go_where_the_memory_is_kept_by_class() -> None:
    stream = Stream(HEAD, ByClass())
    first, second, third = steps(stream, None, [1, 3], None)
    assert (first[:, 0] > 0).all()
    assert not second[:, [0, 2, 4]].any()
    assert (third[:, 0] > 0).all()
    assert stream.present is None
    prior = 1 + first.new_zeros(5) + kedge.adapt(X[:8], HEAD, "zero-shot").probs.sum(dim=0)
    assert stream.state is not None
    later = kedge.adapt(X[16:], HEAD, "zero-shot").probs.sum(dim=0)
    among = kedge.adapt(X[8:16], HEAD, "zero-shot", present=[1, 3]).probs.sum(dim=0)
    assert torch.allclose(stream.state["prior"], prior + among + later)  # what was absent was kept


def test_a_method_without_memory_may_change_at_any_time() -> None:
    stream = Stream(HEAD, "stata", present=[0, 1])
    for present, found in zip(([0, 1], [1, 2, 3], None), steps(stream, [0, 1], [1, 2, 3], None), strict=True):
        assert present is None or set(found.argmax(dim=1).tolist()) <= set(present)


def test_a_memory_that_is_not_kept_by_class_refuses_a_change_after_the_first_step() -> None:
    stream = Stream(HEAD, "tda", present=[0, 1])
    stream.present = ["fox", "cat", "dog"]  # no step yet
    assert stream.present == (0, 1, 3)
    expected = stream.step(X).probs
    assert not expected[:, [2, 4]].any()
    stream.present = [3, 1, 0]  # no change
    with pytest.raises(InputError, match="cannot change in the middle of a stream of method"):
        stream.present = [0, 1]
    assert stream.present == (0, 1, 3)
    stream.reset()
    assert torch.equal(stream.step(X).probs, expected)


@pytest.mark.parametrize("method", ["kedge", "oga", "stata"])
def test_saved_and_loaded(tmp_path: Path, method: str) -> None:
    stream = Stream(HEAD, method, present=["cat", "owl"])
    stream.step(X[:8])
    stream.save(tmp_path / "s.safetensors")
    loaded = Stream.load(tmp_path / "s.safetensors")
    assert loaded.present == (0, 4)
    assert torch.equal(loaded.step(X[8:]).probs, stream.step(X[8:]).probs)
    tensors, meta = opened(tmp_path / "s.safetensors")
    for forged in ([7], [], "cat", [-1], [0.5]):
        save_tensors(tmp_path / "s.safetensors", "stream", 1, tensors, {**meta, "present": forged})
        with pytest.raises(kedge.FileError, match=r"is not a (kedge )?stream"):
            Stream.load(tmp_path / "s.safetensors")
