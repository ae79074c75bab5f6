"""The `kedge` command: it checks the output path, calls public functions, and prints their results.

stdout has data only; messages go to stderr. Exit codes: 0 success, 1 some cells of a benchmark failed, 2 wrong usage or
bad input (with a one-line message), 130 Ctrl-C, 141 stdout was closed.
Heavy imports (torch, numpy, rich) are inside the commands, so that `kedge --help` is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ._app import app

for _commands in ("adapt", "extract", "features", "bench", "results", "plan", "ls", "demo"):  # each registers itself
    import_module(f".{_commands}", __name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; ends with SystemExit."""
    app(args=None if argv is None else list(argv), prog_name="kedge")
