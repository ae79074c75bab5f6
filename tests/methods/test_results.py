"""Every result is checked before it leaves: nonsense from a method is one line, and the stream stays as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import kedge
from cases import simulated
from kedge import Batch, ContractError, Step
from kedge.methods.contract import State
from toy_methods import Running

N, K = 6, 3


@dataclass(frozen=True)
class Nonsense(Running):
    """A prior over classes that follows the stream, whose second step gives what `kind` names."""

    name: ClassVar[str] = "nonsense"
    kind: str = "NaN"

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        assert state is not None
        if float(state["prior"].sum()) == K:  # the first step
            return step
        z, prior = step.z.clone(), state["prior"].clone()
        z[2, 1], prior[0] = float("nan"), float("nan")
        wrong: dict[str, Any] = {
            "NaN": Step(step.state, z),
            "infinite": Step(step.state, z.nan_to_num(nan=float("inf"))),
            "negative": Step(step.state, z.nan_to_num(nan=-0.5)),
            "sum": Step(step.state, 2 * step.z),
            "shape": Step(step.state, step.z.T.contiguous()),
            "whole numbers": Step(step.state, step.z.argmax(dim=1)),
            "array": Step(step.state, step.z.numpy()),  # type: ignore[arg-type]
            "nothing": None,
            "NaN in the state": Step({"prior": prior}, step.z),
            "infinite state": Step({"prior": prior.nan_to_num(nan=float("inf"))}, step.z),
            "a number in the state": Step({"prior": 3.0}, step.z),  # type: ignore[dict-item]
        }
        return wrong[self.kind]  # type: ignore[no-any-return]


MESSAGES = {
    "NaN": "NaN or infinite probabilities for 1 of 6 images",
    "infinite": "NaN or infinite probabilities for 1 of 6 images",
    "negative": "negative probabilities, down to -0.5",
    "sum": "rows whose sum is off 1 by 1",
    "shape": r"torch.float64 of shape \(3, 6\) instead of 6×3 probabilities",
    "whole numbers": r"torch.int64 of shape \(6,\) instead of 6×3 probabilities",
    "array": "ndarray instead of 6×3 probabilities",
    "nothing": "NoneType instead of 6×3 probabilities",
    "NaN in the state": "a state with NaN or infinite values in prior",
    "infinite state": "a state with NaN or infinite values in prior",
    "a number in the state": "a state whose prior is float instead of a tensor",
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_nonsense_does_not_leave_a_stream(kind: str) -> None:
    x, t = simulated(2 * N, K)
    stream = kedge.Stream(t, Nonsense(kind=kind))
    stream.step(x[:N])
    before = stream.state
    with pytest.raises(ContractError, match=f"method 'nonsense' gave {MESSAGES[kind]}") as caught:
        stream.step(x[N:])
    assert "\n" not in str(caught.value)
    assert stream.state is before
    assert stream.steps == 1


@pytest.mark.parametrize("kind", MESSAGES)
def test_nonsense_does_not_reach_a_score(kind: str) -> None:
    x, t = simulated(2 * N, K)
    features = kedge.FeatureSet.from_arrays(x, t, labels=torch.arange(2 * N) % K)
    with pytest.raises(ContractError, match=MESSAGES[kind]):
        kedge.evaluate(Nonsense(kind=kind), features, f"separate:size={N}", tasks=1)


def test_the_message_names_the_settings() -> None:
    x, t = simulated(2 * N, K)
    stream = kedge.Stream(t, Nonsense(kind="sum", weight=7.0))
    stream.step(x[:N])
    with pytest.raises(
        ContractError, match=r"The likely cause is weight=7\.0, kind=sum; choose values nearer to the defaults"
    ):
        stream.step(x[N:])
    stream = kedge.Stream(t, Nonsense())
    stream.step(x[:N])
    with pytest.raises(ContractError, match="Its settings are the defaults, the logit scale is 100: the method has a"):
        stream.step(x[N:])


def test_empty_slots_may_be_infinite() -> None:
    """∞ is how the memories of TDA, DMN and OGA mark an empty slot."""
    x, t = simulated(2 * N, K)
    for method in ("tda", "dmn", "oga"):
        stream = kedge.Stream(t, method)
        for batch in x.split(N):
            stream.step(batch)
        assert stream.steps == 2
