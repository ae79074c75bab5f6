"""How much an image looks like none of the classes: a score in [0, 1].

An image of a listed class is about as near to the text of its label as the images that surely show theirs. A stranger
is farther away, so are the images that were given the same label, and zero-shot is undecided about it:

    none_i = σ( r (u_i + ū_i − A) + B (h_i − C) )

| symbol | meaning                                                                                                |
|--------|--------------------------------------------------------------------------------------------------------|
| l, c_i | the image's label; the cosine of its feature and the text of that label                                |
| ŷ_i    | zero-shot among the classes that can occur                                                             |
| h_i    | the entropy of ŷ_i, divided by the largest possible: 0 is sure, 1 is undecided                         |
| w_i    | ŷ_il: how surely the image shows its label; 1 if a person said so                                      |
| u_i    | (m − c_i)/s, where m and s are the mean and the standard deviation of the cosines, weighted by w       |
| ū_i    | the mean of u over the images with the same label, and one more of u = 0                               |
| r      | (N − 1)/(N + 1), N = (Σ w)²/Σ w²: a comparison with few images counts for little, with none for nothing |

The score is computed twice, the second time with w_i (1 − none_i): strangers should not be part of the comparison.
Labels that a person gave are certain: 0 for a class, 1 for none of the classes.

A, B and C are measured: `benchmarks/honest.py`. Cosines are compared within the batch, since they depend on the encoder
and the prompts. So a single image is judged by h alone, and so is, in effect, a batch of nothing but strangers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..arrays import row_blocks
from ..methods.given import NONE
from .answer import Answer

THRESHOLD = 0.5  # an image with a higher score is taken for a stranger
A, B, C = 3.2, 6.0, 0.9
SPREAD = 1e-3  # added to s: among equal images a small difference means nothing


def none_scores(answer: Answer) -> Tensor:
    """The score of each image, n."""
    shows, strange = answer.given >= 0, answer.given == NONE
    cosines = _cosines(answer)
    weights = answer.among.gather(1, answer.labels[:, None]).squeeze(1).masked_fill(shows, 1.0)
    none = strange.to(weights.dtype)
    for _ in range(2):
        none = _scores(answer, cosines, weights * (1 - none)).masked_fill_(shows, 0.0).masked_fill_(strange, 1.0)
    return none


def _cosines(answer: Answer) -> Tensor:
    """c_i, n."""
    found = torch.empty_like(answer.z[:, 0])
    for rows in row_blocks(answer.features.shape):
        found[rows] = (answer.features[rows] * answer.head.features[answer.labels[rows]]).sum(dim=1)
    return found


def _scores(answer: Answer, cosines: Tensor, weights: Tensor) -> Tensor:
    """none_i with these w, n."""
    labels, smallest = answer.labels, torch.finfo(weights.dtype).tiny
    total = weights.sum().clamp_min(smallest)
    mean = (weights * cosines).sum() / total
    spread = ((weights * (cosines - mean).square()).sum() / total).sqrt()
    u = (mean - cosines) / (spread + SPREAD)
    counted = (answer.given != NONE).to(u.dtype)
    sums, counts = (torch.zeros_like(answer.z[0]).index_add_(0, labels, each) for each in (u * counted, counted))
    of_label = (sums / (counts + 1))[labels]
    number = (total.square() / weights.square().sum().clamp_min(smallest)).clamp_min(1)  # N
    trust = (number - 1) / (number + 1)
    return torch.sigmoid(trust * (u + of_label - A) + B * (answer.entropy - C))
