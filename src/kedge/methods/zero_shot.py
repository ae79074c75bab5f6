"""Zero-shot classification: ŷ = softmax(τ x tᵀ). All other methods start from it.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured


@dataclass(frozen=True)
class ZeroShot(Configured):
    """The labels of the encoder, for each image separately."""

    name: ClassVar[str] = "zero-shot"
    traits: ClassVar[Traits] = Traits(paper="CLIP", year=2021, scope="image", memory="none")

    def init(self, head: TextHead) -> State | None:
        """No state."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """ŷ, n×k."""
        return Step(None, batch.log_zero_shot.exp())
