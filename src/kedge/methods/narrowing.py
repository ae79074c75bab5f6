"""A step of any method on part of its classes and images, as a person said: see `given`.

The method gets a batch with the classes that can occur, and without the images that show none of them. So a method
knows nothing of either. z then has all k columns again (0 for a class that cannot occur) and all n rows (zero-shot
among the classes that can occur, for an image that shows none of them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from ..features.text_head import TextHead
from .contract import Batch, Method, State, Step
from .given import NONE
from .results import check_step


def initial_state(method: Method, head: TextHead, present: Tensor | None) -> State | None:
    """The state before the first batch."""
    return method.init(state_head(method, head, present))


def state_head(method: Method, head: TextHead, present: Tensor | None) -> TextHead:
    """The classes of a stream's state: all if its rows are classes, else those that can occur."""
    return head if present is None or method.traits.by_class else head.select(present)


@dataclass(frozen=True, eq=False)
class Narrowing:
    """A batch without the classes that cannot occur and without the images that show none of them."""

    whole: Batch
    part: Batch  # what the method gets
    present: Tensor | None  # numbers of its classes; None: all
    shown: Tensor | None  # numbers of its images; None: all

    @classmethod
    def of(cls, batch: Batch, present: Tensor | None) -> Narrowing:
        """present: class numbers, ascending; None: all. Known labels may be NONE here, and in `part` no longer."""
        none = None if batch.known is None else batch.known == NONE
        shown = (~none).nonzero().squeeze(1) if none is not None and bool(none.any()) else None
        if present is None and shown is None:
            known = batch.known is not None  # tables other than zero-shot's are of zero-shot without known labels
            return cls(batch, replace(batch, tables=_zero_shot(batch, None, None)) if known else batch, None, None)
        return cls(
            batch,
            replace(
                batch,
                features=_rows(batch.features, shown),
                head=batch.head if present is None else batch.head.select(present),
                views=None if batch.views is None else _rows(batch.views, shown),
                images=None if batch.images is None else _rows(batch.images, shown),
                known=_numbered(batch.known, present, shown),
                tables=_zero_shot(batch, present, shown),
                kept=batch.kept if batch.kept is None or shown is None else batch.kept.among(shown),
            ),
            present,
            shown,
        )

    def state(self, method: Method, state: State | None) -> State | None:
        """What of a stream's state the method gets."""
        if self.present is None or not method.traits.by_class or state is None:
            return state
        return {name: value.index_select(0, self.present) for name, value in state.items()}

    def widened(self, method: Method, state: State | None, step: Step) -> Step:
        """The step of the whole batch, from the method's step; state: the stream's before it."""
        if self.present is None and self.shown is None:
            return step
        z = step.z
        if self.shown is not None:
            z = zero_shot_among(self.whole, self.present).exp_().index_copy_(0, self.shown, z)
        if self.present is not None:
            z = z.new_zeros(len(z), self.whole.head.k).index_copy_(1, self.present, z)
        after = step.state
        if self.present is not None and method.traits.by_class and state is not None and after is not None:
            after = {name: value.index_copy(0, self.present, after[name]) for name, value in state.items()}
        return Step(after, z, step.info)


def narrowed_step(method: Method, state: State | None, batch: Batch, present: Tensor | None) -> Step:
    """One checked step with all that a person said."""
    narrowing = Narrowing.of(batch, present)
    part, before = narrowing.part, narrowing.state(method, state)
    if len(part.features) == 0:  # nothing to solve
        return narrowing.widened(method, state, Step(before, part.features.new_empty(0, part.head.k)))
    step = method.step(before, part)
    check_step(method, step, part, before)
    return narrowing.widened(method, state, step)


def check_change(method: Method, steps: int) -> None:
    """Raise InputError if the classes that can occur cannot change after so many steps of a stream."""
    if steps and method.traits.memory == "stream" and not method.traits.by_class:
        raise InputError(
            f"the classes that can occur cannot change in the middle of a stream of method {method.name!r}: its memory "
            "is not kept by class. Start a new stream, or choose another method."
        )


def zero_shot_among(batch: Batch, present: Tensor | None) -> Tensor:
    """log ŷ of the encoder alone among the classes that can occur, n×a; a new array."""
    table = batch.tables.get("log_zero_shot")
    log_y = batch.head.log_zero_shot(batch.features) if table is None else table
    return log_y.clone() if present is None else torch.log_softmax(log_y.index_select(1, present), dim=1)


def _zero_shot(batch: Batch, present: Tensor | None, shown: Tensor | None) -> dict[str, Tensor]:
    """The table of zero-shot for part of a batch. Other tables depend on all classes, and are left out."""
    if "log_zero_shot" not in batch.tables:
        return {}
    return {"log_zero_shot": _rows(zero_shot_among(batch, present), shown)}


def _numbered(known: Tensor | None, present: Tensor | None, shown: Tensor | None) -> Tensor | None:
    """Known labels of the images that show a class, as numbers of the classes that can occur."""
    if known is None:
        return None
    known = _rows(known, shown)
    return known if present is None else torch.where(known >= 0, torch.searchsorted(present, known.clamp_min(0)), known)


def _rows(table: Tensor, rows: Tensor | None) -> Tensor:
    return table if rows is None else table.index_select(0, rows)
