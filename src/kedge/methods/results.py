"""The check of every result: what leaves kedge is probabilities, whatever the settings, the input or the method."""

from __future__ import annotations

import math

from torch import Tensor

from ..errors import ContractError
from .contract import Batch, Method, State, Step
from .settings import changed_settings

SUM_TOLERANCE = 1e-3  # how far from 1 a row of z may sum
LARGE = 1 << 22  # entries of a state: reading through more would take a noticeable part of a step


def check_step(method: Method, step: Step, batch: Batch, before: State | None) -> None:
    """Raise ContractError unless z is probabilities, n×k, and the new state is finite. before: the state until then."""
    wrong = _wrong_probabilities(step, len(batch.features), batch.head.k) or _wrong_state(step.state, before)
    if wrong:
        raise ContractError(f"method {method.name!r} gave {wrong}. {_likely_cause(method, batch)}")


def _wrong_probabilities(step: Step, n: int, k: int) -> str:
    """What is wrong with z, "" if nothing is. NaN and ∞ show in the sums."""
    z = getattr(step, "z", None)
    if not isinstance(z, Tensor) or not z.is_floating_point() or z.shape != (n, k):
        found = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        return f"{found} instead of {n}×{k} probabilities"
    lowest, gap = float(z.min()), float((z.sum(dim=1) - 1).abs_().max())
    if lowest >= 0 and gap <= SUM_TOLERANCE:
        return ""
    if bad := int((~z.isfinite()).any(dim=1).sum()):
        return f"NaN or infinite probabilities for {bad} of {n} images"
    return f"negative probabilities, down to {lowest:.3g}" if lowest < 0 else f"rows whose sum is off 1 by {gap:.3g}"


def _wrong_state(new: State | None, old: State | None) -> str:
    """What is wrong with a state, "" if nothing is: of tensors up to LARGE. ∞ may stay: it marks an empty slot."""
    for name, value in (new or {}).items():
        if not isinstance(value, Tensor):
            return f"a state whose {name} is {type(value).__name__} instead of a tensor"
        total = float(value.sum()) if value.numel() <= LARGE else 0.0
        empty = total == math.inf and old is not None and name in old and bool(old[name].isinf().any())
        if not math.isfinite(total) and not empty:
            return f"a state with NaN or infinite values in {name}"
    return ""


def _likely_cause(method: Method, batch: Batch) -> str:
    changed = changed_settings(method) if hasattr(method, "__dataclass_fields__") else {}
    settings = ", ".join(f"{name}={value}" for name, value in changed.items())
    if settings:
        return f"The likely cause is {settings}; choose values nearer to the defaults."
    return f"Its settings are the defaults, the logit scale is {batch.head.logit_scale:g}: the method has a fault."
