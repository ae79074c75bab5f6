"""What processes that kedge starts have in common."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Processes started in this context ignore Ctrl-C, from their first line on: only the parent handles it."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
