"""The `kedge` command: it checks the output path, calls public functions, and prints their results.

stdout has data only; messages go to stderr. Exit codes: 0 success, 1 some cells of a benchmark failed, 2 wrong usage,
bad input or output that cannot be written (with a one-line message), 130 Ctrl-C, 141 stdout was closed.
Heavy imports (torch, numpy, rich) are inside the commands, so that `kedge --help` is fast. This file imports next to
nothing, so that Ctrl-C is handled from the start.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line of this process, or these arguments; ends with SystemExit."""
    before = signal.signal(signal.SIGINT, _on_ctrl_c)
    try:
        _open_streams()
        from ._app import run

        code = run(argv)
    finally:  # this process ends now: a second Ctrl-C changes nothing
        signal.signal(signal.SIGINT, signal.SIG_IGN if argv is None else before)
    sys.exit(code)


def _on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. During an import, end the process at once: libraries lose the exception there."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            try:
                os.write(2, b"stopped\n")
            finally:
                os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Replace standard streams that are closed, so that no other file takes their number.

    Messages then go nowhere. Data that is written to a closed stdout is an error.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
