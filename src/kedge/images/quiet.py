"""No warnings inside a block, in any number of threads. (`warnings.catch_warnings` alone is for one thread: two blocks
that overlap leave the filters of one of them behind.)"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0  # blocks that are open
_outside = contextlib.ExitStack()  # has the filters that hold outside of them


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Show no warnings inside the block; other threads show none either while one is inside."""
    global _inside
    with _lock:
        if not _inside:
            _outside.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _outside.close()
