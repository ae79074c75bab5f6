"""The order in which a person's look at the images is worth most.

First one typical image (highest z·ŷ) of each predicted class, classes with the least evidence first: a wrong class is
seen at once, and correcting one image moves its neighbours too. Then all other images, the least probable label first.
Images with a known label are left out. So is the typical image of a class of which some image is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .answer import Answer
from .classes import confirmed, counts_and_evidence


def review_order(answer: Answer) -> Tensor:
    """The numbers of all images whose label is not known, most worth a look first."""
    labels, confidence = answer.labels, answer.z.amax(dim=1)
    evidence = counts_and_evidence(answer)[1]
    typical = confidence * answer.zero_shot.gather(1, labels[:, None]).squeeze(1)

    images = answer.unknown.nonzero().squeeze(1)
    images = images[confidence[images].argsort(stable=True)]  # the order of the rest
    asked = images[~confirmed(answer)[labels[images]]]
    asked = asked[typical[asked].argsort(descending=True, stable=True)]
    asked = asked[labels[asked].argsort(stable=True)]  # class by class, the most typical image first
    first = torch.ones_like(asked, dtype=torch.bool)
    first[1:] = labels[asked[1:]] != labels[asked[:-1]]
    asked = asked[first]
    asked = asked[evidence[labels[asked]].argsort(stable=True)]
    return torch.cat([asked, images[~torch.isin(images, asked)]])
