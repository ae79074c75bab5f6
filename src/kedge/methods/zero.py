"""ZERO: the confident views of an image vote.

Farina, Franchi, Iacca, Mancini, Ricci, "Frustratingly Easy Test-Time Adaptation of Vision-Language Models",
NeurIPS 2024.

Probabilities of CLIP are overconfident on augmented views, its labels are reliable. So each confident view gives one
vote for its label. (The paper lets the temperature go to zero; hence the name.)

    order the v views by H(ŷ_j), lowest first; the first m = ⌊γ v⌋ vote
    votes_c = number of voting views j with argmax_c ŷ_jc = c
    z       = votes / Σ_c votes_c

If classes have the same, largest number of votes, the other views decide, in the same order: the first whose label is
one of these classes gives it one vote. If there is none, one vote goes to the one of these classes that the first view
without a vote likes best.

| symbol | code        | shape | meaning                                                            |
|--------|-------------|-------|--------------------------------------------------------------------|
| ŷ_j    | `log_y`     | b×v×k | zero-shot probabilities of the views, as logarithms, in this order  |
| m      | `voters`    |       | how many views vote                                                |
|        | `votes`     | b×k   | votes of the classes                                               |
|        | `tied`      | b×k   | the classes with the largest number of votes                       |

Each image is labelled separately. Cost per image: v·k·d multiplications.

Deviations
- from the authors' program: its last resort, when no further view names a tied class, inverts a list of whole numbers
  bit by bit, and so chooses among other classes than meant; ours does what was meant. It takes a softmax at temperature
  zero instead of the argmax: the same, unless two logits are exactly equal, which share their vote there.
- with fewer than 1/γ views nobody votes: all classes are tied, and the most confident view decides. If all views vote
  and classes are tied, the most confident view is asked for the class that it likes best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting
from .solve.views import most_confident, zero_shot_of


@dataclass(frozen=True)
class Zero(Configured):
    """ZERO; the default is the authors'."""

    name: ClassVar[str] = "zero"
    traits: ClassVar[Traits] = Traits(paper="ZERO", year=2024, scope="image", memory="none", needs="views")

    confident: float = setting(
        0.3, "γ, fraction of the views that vote: those with the lowest entropy", low=0, high=1.0
    )

    def init(self, head: TextHead) -> State | None:
        """No state."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """Label each image by the votes of its views."""
        votes = self.votes(batch)
        return Step(None, votes / votes.sum(dim=1, keepdim=True), {"voters": self._voters(batch)})

    @torch.no_grad()
    def votes(self, batch: Batch) -> Tensor:
        """The votes, n×k."""
        assert batch.views is not None
        voters = self._voters(batch)
        return torch.cat([_votes(log_y, voters) for _, log_y in zero_shot_of(batch.views, batch.head)])

    def _voters(self, batch: Batch) -> int:
        assert batch.views is not None
        return int(self.confident * batch.views.shape[1])


def _votes(log_y: Tensor, voters: int) -> Tensor:
    """The votes, b×k, from log ŷ of all views, b×v×k."""
    b, v, k = log_y.shape
    log_y = log_y.gather(1, most_confident(log_y, 1.0)[:, :, None].expand(-1, -1, k))
    labels = log_y.argmax(dim=2)  # b×v
    votes = log_y.new_zeros(b, k)
    votes.scatter_add_(1, labels[:, :voters], torch.ones_like(log_y[:, :voters, 0]))
    tied = votes == votes.amax(dim=1, keepdim=True)
    says = tied.gather(1, labels) & (torch.arange(v, device=labels.device) >= voters)  # which views break a tie
    first = labels.gather(1, says.int().argmax(dim=1, keepdim=True))
    next_view = log_y[:, voters if voters < v else 0]
    liked = next_view.masked_fill(~tied, -torch.inf).argmax(dim=1, keepdim=True)
    broken = torch.where(says.any(dim=1, keepdim=True), first, liked)
    several = tied.sum(dim=1, keepdim=True) > 1
    return votes.scatter_add_(1, broken, several.to(votes.dtype))
