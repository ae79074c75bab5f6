"""Numbers that a caller chooses: settings, sizes, counts, seeds. Each has a range, and is checked once, at the door."""

from __future__ import annotations

import math
import numbers
from typing import Any

from .errors import SettingError
from .words import shown

MOST_SEED = 2**63 - 1  # what files hold
MOST_IMAGES, MOST_CLASSES, MOST_DIMENSIONS = 10**9, 10**7, 10**6  # far above any data; memory is checked apart


def checked_number(
    name: str,
    value: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    whole: bool = False,
) -> Any:
    """The value as float, or as int if `whole`; raises SettingError unless low ≤ value ≤ high and value > above.

    Numbers of numpy are numbers, True is not. high: None allows any finite number, ∞ allows that too.
    """
    kind: Any = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SettingError(f"{name} must be a {'whole ' if whole else ''}number; got {shown(value)}.")
    try:
        number: float = int(value) if whole else float(value)
    except OverflowError:  # a whole number of more than 308 digits
        number = math.inf if value > 0 else -math.inf
    if number != number or (high is None and number in (math.inf, -math.inf)):
        raise SettingError(f"{name} must be a finite number; got {shown(value)}.")
    if low is not None and number < low:
        raise SettingError(f"{name} must be at least {_plain(low)}; got {shown(value)}.")
    if above is not None and number <= above:
        raise SettingError(f"{name} must be greater than {_plain(above)}; got {shown(value)}.")
    if high is not None and number > high:
        raise SettingError(f"{name} must be at most {_plain(high)}; got {shown(value)}.")
    return number


def whole(name: str, value: Any, low: int, high: int) -> int:
    """The value as int; raises SettingError unless it is a whole number from `low` to `high`."""
    return int(checked_number(name, value, low=low, high=high, whole=True))


def seed_number(value: Any, name: str = "seed") -> int:
    """A seed: a whole number from 0."""
    return whole(name, value, 0, MOST_SEED)


def in_words(low: float | None, above: float | None, high: float | None) -> str:
    """A range in a few characters: `≥ 1, ≤ 1,000`, `> 0 or inf`."""
    limits = [f"≥ {_plain(low)}"] if low is not None else [f"> {_plain(above)}"] if above is not None else []
    if high is not None and math.isfinite(high):
        limits.append(f"≤ {_plain(high)}")
    return ", ".join(limits) + (" or inf" if high == math.inf else "")


def _plain(number: float) -> str:
    """`0.001`, `10,000`, `1e6`."""
    return f"{number:,}" if isinstance(number, int) else f"{number:g}".replace("e+0", "e").replace("e-0", "e-")
