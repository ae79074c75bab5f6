"""calibrated: any method with honest probabilities.

The labels are those of the inner method. Its probabilities are lowered by a temperature for each image, found without
labels: see `solve/temperature.py`. kedge has this built in (`honest`), so that `calibrated:kedge` changes nothing more.

    kedge.adapt(x, t, "calibrated:stata")
    kedge.adapt(x, t, Calibrated(StatA(alpha=10)))

A method that gives labels without probabilities (`Traits.graded` is false) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from ..errors import SettingError
from ..features.text_head import TextHead
from .contract import IMPOSSIBLE, Batch, ChecksState, Method, Prepares, State, Step, Traits
from .settings import Configured
from .solve.temperature import tempered


@dataclass(frozen=True)
class Calibrated(Configured):
    """A method whose probabilities are tempered."""

    name: ClassVar[str] = "calibrated"
    method: Method = field(metadata={"doc": "whose probabilities are tempered"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.method.traits.graded:
            raise SettingError(
                f"method {self.method.name!r} gives labels without probabilities, so there is nothing to calibrate. "
                "Choose another method."
            )

    @property
    def traits(self) -> Traits:
        """Those of the inner method: the temperature of an image depends on that image alone."""
        return self.method.traits

    def init(self, head: TextHead) -> State | None:
        """The inner method's state."""
        return self.method.init(head)

    def check_state(self, state: State | None, head: TextHead) -> None:
        """Raise InputError if this is not a state of the inner method."""
        if isinstance(self.method, ChecksState):
            self.method.check_state(state, head)

    def prepare(self, batch: Batch) -> Mapping[str, Tensor]:
        """The inner method's tables."""
        return self.method.prepare(batch) if isinstance(self.method, Prepares) else {}

    def step(self, state: State | None, batch: Batch) -> Step:
        """A step of the inner method, then the temperature."""
        step = self.method.step(state, batch)
        if "heat" in step.info or step.z.shape[1] == 1:  # it has one already, or nothing to lower
            return step
        scores = step.z.log().clamp_min_(IMPOSSIBLE) if step.scores is None else step.scores  # no ∞ for compiled code
        z, heat = tempered(scores, step.z, batch)
        return replace(step, z=z, info={**step.info, "heat": heat})
