"""Numbers and names as people read them."""

from __future__ import annotations

import math

from ..benchmark.scenarios import Batches, DirichletStream, Separate, Whole, find_scenario
from ..errors import KedgeError


def in_words(scenario: str) -> str:
    """What arrives in a scenario; nothing about one that is not ours."""
    try:
        found = find_scenario(scenario)
    except KedgeError:
        return ""
    match found:
        case Batches(size, low, high):
            number = f"{low}–{high} classes" if low < high else "1 class" if low == 1 else f"{low} classes"
            return f"Batches of {size:,} with {number}"
        case Whole():
            return "The whole dataset at once"
        case DirichletStream(gamma, size):
            return f"A stream of batches of {size:,}, correlated by Dirichlet({gamma:g})"
        case Separate(size):
            return f"A stream of batches of {size:,}, class after class"
    return ""


def plain(text: str) -> str:
    """One line of printable text: names come from files that somebody else made."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def percent(share: float, digits: int = 1) -> str:
    """`69.2`, of a share."""
    return f"{100 * share:.{digits}f}"


def rounded(value: float) -> str:
    """Two digits that count: `0.090`, `1.2`, `350`."""
    return "∞" if math.isinf(value) else f"{value:,.0f}" if abs(value) >= 10 else f"{value:#.2g}"


def points(share: float) -> str:
    """`+4.1` or `−0.3`: a difference of shares, in points, always with its sign."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")
