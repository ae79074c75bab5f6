"""The step of the online methods, with a small method that counts: turns, copies, and where a stream is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from cases import simulated
from kedge import Batch, TextHead, Traits
from kedge.methods.contract import State
from kedge.methods.solve.online import Online, turns


@dataclass(frozen=True)
class Counting(Online):
    """The score of a class falls with the images that had it as their best."""

    name: ClassVar[str] = "counting"
    traits: ClassVar[Traits] = Traits(paper="none", year=2026, scope="batch", memory="stream")

    def init(self, head: TextHead) -> State | None:
        return {"counts": head.features.new_zeros(head.k)}

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        for log_y in batch.log_zero_shot:
            score = log_y - now["counts"]
            now["counts"][score.argmax()] += 1
            yield score

    def info(self, now: State) -> dict[str, Any]:
        return {"seen": int(now["counts"].sum())}


def after(sizes: list[int]) -> tuple[Tensor, State]:
    """z of 12 simulated images in batches of these sizes, and the last state."""
    x, t = simulated(12, 4, noise=1.0)
    method, head, z = Counting(), TextHead(t, 10.0), []
    state = method.init(head)
    for part in x.split(sizes):
        step = method.step(state, Batch(part, head))
        z.append(step.z)
        state = step.state
    assert state is not None
    assert step.info == {"seen": 12}
    return torch.cat(z), state


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 7], [11, 1]])
def test_where_a_stream_is_cut_changes_nothing(sizes: list[int]) -> None:
    whole, last = after([12])
    z, state = after(sizes)
    assert (z - whole).abs().max() <= 1e-14
    assert torch.equal(state["counts"], last["counts"])
    x, t = simulated(12, 4, noise=1.0)
    assert (whole - torch.softmax(10.0 * x @ t.T, dim=1)).abs().max() > 0.1  # the state has an effect


def test_the_given_state_stays() -> None:
    x, t = simulated(12, 4)
    method, head = Counting(), TextHead(t, 10.0)
    state = method.init(head)
    assert state is not None
    first, again = (method.step(state, Batch(x, head)) for _ in range(2))
    assert state["counts"].sum() == 0
    assert torch.equal(first.z, again.z)


def test_scores_are_before_the_softmax_and_finite() -> None:
    x, t = simulated(3, 4)

    class Certain(Counting):
        def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
            yield from torch.eye(4, dtype=batch.features.dtype)[:3].log()

    method = Certain()
    step = method.step(method.init(TextHead(t)), Batch(x, TextHead(t)))
    assert torch.equal(step.z, torch.eye(4, dtype=x.dtype)[:3])
    assert step.scores is not None
    assert step.scores.isfinite().all()


def test_turns() -> None:
    assert list(turns(3, "batch")) == [slice(0, 3)]
    assert list(turns(3, "image")) == [slice(0, 1), slice(1, 2), slice(2, 3)]
