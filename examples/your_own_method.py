"""A method of your own: a frozen dataclass with `init` and `step`. It runs everywhere a built-in one does."""

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
        """Nothing is kept between batches."""
        return None

    def step(self, state: None, batch: Batch) -> Step:
        """softmax( log ŷ + strength · log mean ŷ )."""
        log_y = batch.log_zero_shot
        log_prior = log_y.exp().mean(dim=0).log()
        return Step(None, torch.softmax(log_y + self.strength * log_prior, dim=1))


kedge.check_method(Prior())  # says what is wrong, if anything is
record = kedge.evaluate(Prior(), kedge.simulate(n=2000, k=50, seed=0), "very-low", seed=0, tasks=20)
print(f"gain over zero-shot with 1 to 4 classes in a batch, on simulated features: {100 * record.gain:+.1f} points")
