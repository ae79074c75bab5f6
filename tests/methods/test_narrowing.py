"""Any method on part of its classes and images: what it gets, what comes back, and how a stream goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import Batch, InputError, Kedge
from kedge.errors import ContractError
from kedge.methods.contract import UNKNOWN, State
from kedge.methods.given import NONE
from kedge.methods.narrowing import Narrowing, check_change, initial_state, narrowed_step
from kedge.methods.registry import build, list_methods
from sweeping import CHEAP, Inputs
from toy_methods import NotNormalised, Told

N, K = 20, 6
PRESENT, ABSENT = torch.tensor([0, 2, 3]), torch.tensor([1, 4, 5])
METHODS = [build(name, CHEAP.get(name)) for name in list_methods()]
BY_CLASS = {method.name for method in METHODS if method.traits.by_class}
X, T = simulated(3 * N, K)
HEAD = kedge.TextHead(T, 20.0, tuple("abcdef"))


def ids(method: Any) -> str:
    return str(method.name)


every_method = pytest.mark.parametrize("method", METHODS, ids=ids)


def batch_of(method: Any, part: int = 0, known: Tensor | None = None) -> Batch:
    """A third of the images, with what the method needs."""
    x = X[part * N : (part + 1) * N]
    return Batch(x, HEAD, known=known, **Inputs((x, x), T).extras(method, x))


def equal(a: State | None, b: State | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@every_method
def test_nothing_said_is_the_method_alone(method: Any) -> None:
    batch, state = batch_of(method), method.init(HEAD)
    alone, step = method.step(state, batch), narrowed_step(method, initial_state(method, HEAD, None), batch, None)
    assert torch.equal(step.z, alone.z)
    assert equal(step.state, alone.state)


@every_method
def test_part_of_the_classes_is_the_method_with_fewer_prototypes(method: Any) -> None:
    """Bit for bit; the classes that cannot occur have probability 0."""
    batch, fewer = batch_of(method), HEAD.select(PRESENT)
    step = narrowed_step(method, initial_state(method, HEAD, PRESENT), batch, PRESENT)
    alone = method.step(method.init(fewer), replace(batch, head=fewer))
    assert step.z.shape == (N, K)
    assert torch.equal(step.z[:, PRESENT], alone.z)
    assert (step.z[:, ABSENT] == 0).all()


@every_method
def test_classes_change_in_a_stream_or_the_method_refuses(method: Any) -> None:
    first = narrowed_step(method, initial_state(method, HEAD, None), batch_of(method), None)
    if method.traits.memory == "stream" and not method.traits.by_class:
        with pytest.raises(InputError) as caught:
            check_change(method, 1)
        assert str(caught.value) == (
            f"the classes that can occur cannot change in the middle of a stream of method {method.name!r}: its memory "
            "is not kept by class. Start a new stream, or choose another method."
        )
        check_change(method, 0)  # before the first batch they can
        return
    check_change(method, 1)
    second = narrowed_step(method, first.state, batch_of(method, 1), PRESENT)
    assert (second.z[:, ABSENT] == 0).all()
    rows = first.state and {name: value[PRESENT] for name, value in first.state.items()}
    alone = method.step(rows, replace(batch_of(method, 1), head=HEAD.select(PRESENT)))
    assert torch.equal(second.z[:, PRESENT], alone.z)
    for name, value in (second.state or {}).items():  # classes that were taken out keep their memory
        assert torch.equal(value[ABSENT], (first.state or {})[name][ABSENT])
    third = narrowed_step(method, second.state, batch_of(method, 2), None)
    assert equal(third.state, method.step(second.state, batch_of(method, 2)).state)
    assert third.z[:, ABSENT].sum() > 0


def test_which_memories_are_kept_by_class() -> None:
    """TDA's negative cache has flags of all classes in each entry, TENT's state has no classes."""
    assert sorted(BY_CLASS) == ["dmn", "dota", "kedge", "oga"]


@pytest.mark.parametrize("name", sorted(BY_CLASS))
def test_classes_put_back_have_their_memory(name: str) -> None:
    """It shows: the same batch with an empty memory of these classes is labelled otherwise."""
    method = build(name)
    first = narrowed_step(method, method.init(HEAD), batch_of(method), None)
    second = narrowed_step(method, first.state, batch_of(method, 1), PRESENT).state
    assert second is not None
    empty = method.init(HEAD)
    assert empty is not None
    forgot = {key: value.index_copy(0, ABSENT, empty[key][ABSENT]) for key, value in second.items()}
    assert not equal(second, forgot)
    third = (narrowed_step(method, state, batch_of(method, 2), None).z for state in (second, forgot))
    assert not torch.equal(*third)


@every_method
def test_images_that_show_none_of_the_classes_never_reach_the_method(method: Any) -> None:
    """The others are labelled as without them. They themselves keep zero-shot, among the classes that can occur."""
    batch = batch_of(method, known=torch.tensor([NONE, *[UNKNOWN] * (N - 2), NONE]))
    rows = slice(1, -1)
    views, images = (None if part is None else part[rows] for part in (batch.views, batch.images))
    without = replace(batch, features=batch.features[rows], views=views, images=images, known=None)
    for present in (None, PRESENT):
        state = initial_state(method, HEAD, present)
        step, alone = (narrowed_step(method, state, each, present) for each in (batch, without))
        assert torch.equal(step.z[rows], alone.z)
        assert equal(step.state, alone.state)
        columns = torch.arange(K) if present is None else present
        expected = torch.zeros(2, K, dtype=X.dtype)
        expected[:, columns] = (20 * batch.features[[0, -1]] @ T[columns].T).softmax(dim=1)
        assert torch.allclose(step.z[[0, -1]], expected)


@every_method
def test_a_batch_of_none_of_the_classes(method: Any) -> None:
    for present in (None, PRESENT):
        state = initial_state(method, HEAD, present)
        step = narrowed_step(method, state, batch_of(method, known=torch.full((N,), NONE)), present)
        assert torch.allclose(step.z.sum(dim=1), torch.ones(N, dtype=X.dtype))
        assert equal(step.state, state)


@pytest.mark.parametrize("method", [method for method in METHODS if method.traits.known], ids=ids)
def test_known_labels_have_the_numbers_of_the_classes_present(method: Any) -> None:
    known = torch.full((N,), UNKNOWN)
    known[:4] = torch.tensor([3, 2, NONE, 0])
    z = narrowed_step(method, initial_state(method, HEAD, PRESENT), batch_of(method, known=known), PRESENT).z
    assert torch.allclose(z[[0, 1, 3]], torch.eye(K, dtype=z.dtype)[[3, 2, 0]])
    assert Narrowing.of(batch_of(method, known=known), PRESENT).part.known is not None


def test_what_the_method_gets() -> None:
    known = torch.tensor([3, 2, NONE, 0, *[UNKNOWN] * (N - 4)])
    batch = batch_of(Told(), known=known)
    part = Narrowing.of(batch, PRESENT).part
    assert part.head.class_names == ("a", "c", "d")
    assert part.known is not None
    assert part.known[:4].tolist() == [2, 1, 0, UNKNOWN]
    assert len(part.features) == N - 1
    assert Narrowing.of(replace(batch, known=None), None).part.tables == batch.tables


def test_tables_are_narrowed_or_left_out() -> None:
    """Zero-shot of part of the classes follows from that of all; what else was prepared does not."""
    batch, known = batch_of(Told()), torch.tensor([NONE, 2, *[UNKNOWN] * (N - 2)])
    tables = {"log_zero_shot": batch.log_zero_shot, "text_distances": batch.features}
    for given in (None, known):
        alone = Narrowing.of(replace(batch, known=given), PRESENT).part
        prepared = Narrowing.of(replace(batch, known=given, tables=tables), PRESENT).part
        assert list(prepared.tables) == ["log_zero_shot"]
        assert torch.allclose(prepared.log_zero_shot.exp(), alone.log_zero_shot.exp())
    assert not alone.tables


def test_without_memory_there_is_nothing_to_narrow() -> None:
    method = Kedge(memory=False)
    assert narrowed_step(method, initial_state(method, HEAD, PRESENT), batch_of(method), PRESENT).state == {}


def test_a_wrong_result_is_an_error_with_the_sizes_of_the_part() -> None:
    with pytest.raises(ContractError, match=r"^method 'plain' gave rows whose sum is off 1 by 1\."):
        narrowed_step(NotNormalised(), None, batch_of(Told()), PRESENT)
