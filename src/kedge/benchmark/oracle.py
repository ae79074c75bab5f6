"""The oracle knows the labels of a batch, and reveals as many as `Feedback` asks for. Labels have no other way in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..answers.answer import Answer
from ..answers.classes import found_classes
from ..answers.review import review_order
from ..methods.contract import UNKNOWN, Method, unmet_needs
from .feedback import Feedback


@dataclass(frozen=True, eq=False)
class Revealed:
    """What is said of one batch."""

    known: Tensor | None = None  # n: labels, UNKNOWN elsewhere; None: none
    present: Tensor | None = None  # numbers of the classes that can occur, ascending; None: all
    shown: int = 0  # classes found
    unticked: int = 0  # of these, classes that are not there


def unfit(feedback: Feedback, method: Method, *, streams: bool) -> str:
    """Why the method cannot be told this, and what to do; "" if it can. streams: are there tasks of several batches?"""
    traits = method.traits
    if feedback.oracle_classes and streams and traits.memory == "stream" and not traits.by_class:
        return (
            f"method {method.name!r} cannot take other classes with each batch of a stream: its memory is not kept by "
            "class. Choose a scenario without streams, or another method."
        )
    return unmet_needs(method, views=True, encoder=True, known=feedback.known > 0)


def reveal(feedback: Feedback, answer: Answer, labels: Tensor, random: np.random.Generator) -> Revealed:
    """What a person says who looks at this answer and knows the labels, n.

    All known labels are asked for at once. One image always stays unknown, so that there is something to score.
    """
    known = None
    if feedback.known:
        by_review = feedback.known_by == "review"
        order = review_order(answer) if by_review else torch.from_numpy(random.permutation(len(labels)))
        asked = order[: min(feedback.known, len(labels) - 1)]
        known = torch.full_like(labels, UNKNOWN).index_copy(0, asked, labels[asked])
    if feedback.oracle_classes == "true":
        return Revealed(known, torch.unique(labels))
    if feedback.oracle_classes == "found":
        found = torch.tensor([each.number for each in found_classes(answer)])
        here = found[torch.isin(found, labels)]
        # A person who gives a label knows that its class is there. If no class is left, all classes stay.
        said = here if known is None else torch.cat([here, known[known >= 0]])
        return Revealed(known, torch.unique(said) if len(here) else None, len(found), len(found) - len(here))
    return Revealed(known)
