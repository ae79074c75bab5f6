"""What the online methods have in common: a step goes through its batch turn by turn, and changes a copy of the state.

A turn is usually one image. Then a batch is its images in their order, and a stream may be cut into batches anywhere. A
method writes only what one turn does:

    def walk(self, now, batch):
        for i in range(len(batch.features)):
            yield ...       # scores of image i (k): log z but for a constant; or of the m images of a turn (m×k)
            now["mu"] += ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ..contract import IMPOSSIBLE, Batch, State, Step
from ..settings import Configured

Protocol = Literal["batch", "image"]  # which images have their turn together


def turns(n: int, protocol: Protocol) -> Iterator[slice]:
    """The rows of each turn: the whole batch, or image by image."""
    size = n if protocol == "batch" else 1
    return (slice(start, start + size) for start in range(0, n, size))


def copied(state: State) -> dict[str, Tensor]:
    """A copy of a state, to write to: the state itself may be in use elsewhere, or continue from here again."""
    return {name: value.clone() for name, value in state.items()}


class Online(Configured):
    """Base of the methods that go along a stream turn by turn."""

    def step(self, state: State | None, batch: Batch) -> Step:
        """Label a batch, turn by turn; `state` stays as it is."""
        assert state is not None
        now = copied(state)
        scores, row = torch.empty_like(batch.log_zero_shot), 0
        for turn in self.walk(now, batch):
            turn = turn.view(-1, scores.shape[1])
            scores[row : row + len(turn)] = turn
            row += len(turn)
        scores.clamp_min_(IMPOSSIBLE)  # no -∞
        return Step(now, torch.softmax(scores, dim=1), self.info(now), scores)

    def walk(self, now: dict[str, Tensor], batch: Batch) -> Iterator[Tensor]:
        """The scores of all images in their order, turn by turn; writes to `now`, a copy of the state."""
        raise NotImplementedError

    def info(self, now: State) -> dict[str, Any]:
        """What to say of the state after a step."""
        return {}
