"""The order in which a person's look at the images is worth most.

First one typical image (highest z·ŷ) of each predicted class, classes with the least evidence first: a wrong class is
seen at once, and correcting one image moves its neighbours too. Then all other images, the least probable label first.
Images with a known label are left out. So is the typical image of a class of which some image is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .answer import Answer
from .classes import counts_and_evidence


def review_order(answer: Answer) -> Tensor:
    """The numbers of all images whose label is not known, most worth a look first."""
    z, labels = answer.z, answer.labels
    unknown = torch.ones(len(z), dtype=torch.bool, device=z.device) if answer.known is None else answer.known == -1
    confirmed = labels.new_empty(0) if answer.known is None else answer.known[~unknown]
    evidence = counts_and_evidence(answer)[1]
    typical = (z * answer.zero_shot).gather(1, labels[:, None]).squeeze(1)
    first = []
    for k in sorted(set(labels[unknown].tolist())):
        images = (unknown & (labels == k)).nonzero().squeeze(1)
        if not bool((confirmed == k).any()):
            first.append((float(evidence[k]), int(images[typical[images].argmax()])))
    asked = torch.tensor([image for _, image in sorted(first)], dtype=torch.long, device=z.device)
    rest = unknown.index_fill(0, asked, False).nonzero().squeeze(1)
    return torch.cat([asked, rest[z[rest].amax(dim=1).argsort(stable=True)]])
