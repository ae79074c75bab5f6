"""A limit on memory, so that a damaged or hostile file, or a setting with too many zeros, is one line and not a crash.

Whoever is about to take memory in one piece, of a size that a file or a caller chose, asks first:

    check_memory(n * d * 4, "12,000 images of dimension 512")

The limit is half of the machine's memory; the environment variable KEDGE_MAX_BYTES sets another. Memory-mapped files
take no memory and are not checked.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import InputError, KedgeError, SettingError

SHARE = 0.5  # of the machine's memory
UNKNOWN_MACHINE = 8 << 30  # bytes assumed where the system does not say
CONTAINER = Path("/sys/fs/cgroup/memory.max")


def memory_limit() -> int:
    """The most bytes that may be taken in one piece."""
    given = os.environ.get("KEDGE_MAX_BYTES")
    if given is None:
        return int(SHARE * _machine_bytes())
    if not given.isascii() or not given.isdigit() or int(given) == 0:
        raise SettingError(f"KEDGE_MAX_BYTES must be a number of bytes, like 4000000000; got {given!r}.")
    return int(given)


def check_memory(needed: float, what: str, error: type[KedgeError] = InputError) -> None:
    """Raise an error if `needed` bytes are more than the limit; `what` says what would need them."""
    limit = memory_limit()
    if needed > limit:
        raise error(
            f"{what} would take {in_bytes(needed)} of memory; the limit is {in_bytes(limit)}. Use less, or set "
            "KEDGE_MAX_BYTES to a larger number of bytes if the machine has room."
        )


def in_bytes(size: float) -> str:
    """`2.5 GB`, `300 MB`, `12 kB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.3g} {name}" if size < 1e15 else f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def _machine_bytes() -> int:
    """The memory of the machine, or of the container if that has less."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        machine = UNKNOWN_MACHINE
    try:
        return min(machine, int(CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return machine
