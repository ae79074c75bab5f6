"""Write a method: a frozen dataclass with `init` and `step`. It works wherever a built-in method does."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import kedge
from kedge import Batch, Step, Traits


@dataclass(frozen=True)
class Prior:
    """Zero-shot, weighted by how often each class seems to occur in the batch."""

    name: ClassVar[str] = "prior"
    traits: ClassVar[Traits] = Traits(paper="an example", year=2026, scope="batch", memory="none")
    strength: float = 1.0

    def init(self, head) -> None:
        """The state before the first batch: this method has none."""
        return None

    def step(self, state: None, batch: Batch) -> Step:
        """softmax( log ŷ + strength · log mean ŷ )."""
        log_y = batch.log_zero_shot
        log_prior = log_y.exp().mean(dim=0).log()
        return Step(None, torch.softmax(log_y + self.strength * log_prior, dim=1))


kedge.check_method(Prior())  # raises an error if the method breaks the contract
record = kedge.evaluate(Prior(), kedge.simulate(n=2000, k=50, seed=0), "very-low", seed=0, tasks=20)
print(f"gain over zero-shot with 1 to 4 classes in a batch, on simulated features: {100 * record.gain:+.1f} points")
