"""Numbers and names as the report prints them."""

from __future__ import annotations

import math


def plain(text: str) -> str:
    """One line of printable text. Names come from files, which may hold any character."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def percent(share: float, digits: int = 1) -> str:
    """A share in percent: 0.692 → `69.2`."""
    return f"{100 * share:.{digits}f}"


def rounded(value: float) -> str:
    """Two significant digits below 10, whole numbers above: `0.090`, `1.2`, `350`."""
    return "∞" if math.isinf(value) else f"{value:,.0f}" if abs(value) >= 10 else f"{value:#.2g}"


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign: `+4.1`, `−0.3`."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")
