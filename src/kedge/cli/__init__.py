"""The `kedge` command. Thin: it checks where output goes, calls public functions, and shows what they return.

stdout carries data and nothing else; stderr is for people. Exit codes: 0 fine, 1 something failed that should
not, 2 usage or bad input (one line says what), 130 Ctrl-C, 141 the reader of stdout went away.
Heavy imports (torch, numpy, rich) stay inside the commands, so that `kedge --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ._app import app

for _commands in ("adapt", "extract", "features", "bench", "results", "plan", "ls", "demo"):  # each registers its own
    import_module(f".{_commands}", __name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; ends with SystemExit."""
    app(args=None if argv is None else list(argv), prog_name="kedge")
