"""MTA: mean-shift over the views of one image, with an inlierness weight for each view.

Zanella, Ben Ayed, "On the Test-Time Zero-Shot Generalization of Vision-Language Models: Do We Really Need Prompt
Learning?", CVPR 2024.

Each image has v views: itself and random crops. The mode m of their density replaces the feature of the image. The
inlierness y weights the views: it is large for views near the mode whose predictions agree with those of other views.

    h_i²   = ½ · mean squared distance of view i to its ⌊0.3(v − 1)⌋ nearest other views
    ρ_i    = exp(−‖f_i − m‖² / 2h_i²)
    y      ← softmax( (ρ + λ_q A y) / λ_y ),   A_ij = ŷ_i·ŷ_j of views i and j,   starts uniform
    m      ← unit( Σ_i ρ_i y_i f_i ),                                              starts at the image itself
    z      = softmax(τ m tᵀ)

5 rounds of at most 5 y-steps, then at most 5 m-steps; either stops if the change is below 1e-6.

| symbol   | code           | shape  | meaning                                        |
|----------|----------------|--------|------------------------------------------------|
| f        | `f`            | n×v×d  | unit features of the views; view 0 is the image|
| ŷ        | `p`            | n×v×k  | their zero-shot probabilities                  |
| A        | `agreement`    | n×v×v  | similarity of the predictions of two views     |
| h²       | `h2`           | n×v    | bandwidth                                      |
| log ρ    | `log_rho`      | n×v    | density                                        |
| y        | `y`            | n×v    | inlierness, on the simplex                     |
| m        | `mode`         | n×d    | the mode                                       |

Each image is solved separately, with its own stopping. Cost per image: v·k·d + v²·(k + d) multiplications.

Deviations
- one view gives exactly zero-shot; with 2 to 4 views, where ⌊0.3(v − 1)⌋ is 0, one neighbour is used.
- ρ·y is computed from logarithms, so that views far from the mode, or a bandwidth of 0 (copies), cause no 0/0.
- the paper runs until convergence; the limits of 5 are from the authors' program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..arrays import unit
from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits
from .settings import Configured, setting

BLOCK = 1 << 23  # maximum number of probabilities (images × views × classes) in memory
BANDWIDTH_FLOOR = 1e-7  # minimum of h², which is 0 for copies


@dataclass(frozen=True)
class Mode:
    """The result of mean-shift for b images."""

    mode: Tensor  # b×d
    inlierness: Tensor  # b×v, y
    bandwidth: Tensor  # b×v, h


@dataclass(frozen=True)
class MTA(Configured):
    """MTA; the defaults are the authors'."""

    name: ClassVar[str] = "mta"
    traits: ClassVar[Traits] = Traits(paper="MTA", year=2024, scope="image", memory="none", needs="views")

    agreement: float = setting(4.0, "λ_q, weight of agreeing predictions", low=0, high=1e6)
    smoothness: float = setting(0.2, "λ_y: larger makes the inlierness more uniform", low=1e-6, high=1e6)
    neighbours: float = setting(0.3, "fraction of the other views that define a bandwidth", above=0, high=1.0)
    rounds: int = setting(5, "rounds of y-steps, then m-steps", low=0, high=100)
    steps: int = setting(5, "maximum number of y-steps, and of m-steps, per round", low=1, high=100)
    tol: float = setting(1e-6, "steps stop when the change is below this", low=0, high=1.0)

    def init(self, head: TextHead) -> State | None:
        """No state."""
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        """Label each image by the mode of its views."""
        assert batch.views is not None
        modes = torch.cat([found.mode for found in self.modes(batch)])
        return Step(None, Batch(modes, batch.head).log_zero_shot.exp(), {"views": batch.views.shape[1]})

    @torch.no_grad()
    def modes(self, batch: Batch) -> Iterator[Mode]:
        """The modes, for one block of images at a time."""
        assert batch.views is not None
        t, scale = batch.head.features, batch.head.logit_scale
        n, v, _ = batch.views.shape
        size = max(1, BLOCK // (v * max(v, len(t))))
        for start in range(0, n, size):
            yield self._mode(batch.views[start : start + size], t, scale)

    def _mode(self, f: Tensor, t: Tensor, scale: float) -> Mode:
        n, v, _ = f.shape
        y, mode = f.new_full((n, v), 1 / v), f[:, 0]
        if v == 1:
            return Mode(mode, y, torch.zeros_like(y))
        p = torch.softmax(scale * (f @ t.T), dim=2)
        agreement = p @ p.mT
        near = max(1, min(v - 1, int(self.neighbours * (v - 1))))
        square = f.square().sum(dim=2)
        away = (square[:, :, None] + square[:, None] - 2 * (f @ f.mT)).clamp_min_(0)
        away.diagonal(dim1=1, dim2=2).fill_(torch.inf)  # a view is not its own neighbour
        h2 = (0.5 * away.topk(near, largest=False).values.mean(dim=2)).clamp_min(BANDWIDTH_FLOOR)

        def log_rho(mode: Tensor) -> Tensor:
            return -(f - mode[:, None]).square().sum(dim=2) / (2 * h2)

        for _ in range(self.rounds):
            rho = log_rho(mode).exp()
            moving = torch.ones(n, dtype=torch.bool, device=f.device)
            for _ in range(self.steps):
                pull = rho + self.agreement * (agreement @ y[:, :, None]).squeeze(2)
                y, moving = self._moved(y, torch.softmax(pull / self.smoothness, dim=1), moving)
            moving = torch.ones_like(moving)
            for _ in range(self.steps):
                weight = torch.softmax(log_rho(mode) + y.log(), dim=1)
                mode, moving = self._moved(mode, unit((weight[:, None] @ f).squeeze(1)), moving)
        return Mode(mode, y, h2.sqrt())

    def _moved(self, old: Tensor, new: Tensor, moving: Tensor) -> tuple[Tensor, Tensor]:
        """The new values in the rows that are still moving (n), and which rows move further."""
        change = (new - old).norm(dim=1)
        return torch.where(moving[:, None], new, old), moving & (change >= self.tol)
