"""Label the same images again and again, as a person corrects some of them.

    session = kedge.Session(features)
    result = session.solve()                                     # as kedge.adapt(features)
    result = session.solve(known={12: "heron", 40: kedge.NONE})  # after two corrections: faster, and the rest follows

What does not change in between is computed once: neighbours, and zero-shot for each text head. The labels are those of
`kedge.adapt` with the same arguments.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..arrays import unit_rows, working
from ..encoders.familiar import familiar
from ..errors import InputError
from ..features.feature_set import FeatureSet
from ..features.text_head import TextHead, check_same_dimension
from ..methods.contract import Method
from ..methods.given import Known, Present, present_classes
from ..methods.registry import build
from ..methods.solve.neighbours import KeptNeighbours
from .result import Result
from .solving import Prepared, Solver


class Session:
    """A set of images that a person and kedge label together.

    features: the images and their classes.
    method: a registered name with its **settings, or a method object; one that needs features alone.
    """

    def __init__(self, features: FeatureSet, method: str | Method = "kedge", **settings: Any) -> None:
        self.method = build(method, settings)
        if self.method.traits.needs != "features":
            raise InputError(
                f"a session solves from features alone; the method {self.method.name!r} needs "
                f"{self.method.traits.needs}. Choose another method."
            )
        self.features = features
        self._x = unit_rows(features.image_features, like=working(features.image_features[:1]))
        self._kept = KeptNeighbours(self._x)
        self._familiar = familiar(features.provenance)
        self._head: TextHead | None = None  # the last one passed

    def solve(
        self,
        known: Known | None = None,
        present: Present | None = None,
        reject: float | None = None,
        head: TextHead | None = None,
    ) -> Result[Tensor]:
        """Label all images.

        known, present, reject: see `kedge.adapt`.
        head: other classes than those of the features; it is compared by identity, so pass the same object again.
        """
        used, log_zero_shot = self._zero_shot(self.features.head if head is None else head)
        solver = Solver(self.method, used, present_classes(present, used), normalize=False)
        given: dict[str, Any] = {"known": known, "reject": reject, "familiar": self._familiar}
        prepared = Prepared(log_zero_shot, self._kept)
        return solver.label(solver.initial_state(), self._x, **given, prepared=prepared)[1]

    def _zero_shot(self, head: TextHead) -> tuple[TextHead, Tensor]:
        """The head in the precision of the features, and log ŷ; kept until another head comes."""
        if head is not self._head:
            check_same_dimension(self._x, head, "image_features")
            like = head.like(self._x[:1])
            self._used, self._head = (like, like.log_zero_shot(self._x)), head
        return self._used

    def neighbours(self, image: int, m: int) -> list[tuple[int, float]]:
        """The m nearest other images of one, with their cosines, the nearest first."""
        cosines = self._x @ self._x[image]
        cosines[image] = -2.0
        values, indices = cosines.topk(min(m, len(cosines) - 1))
        return list(zip(indices.tolist(), values.tolist(), strict=True))
