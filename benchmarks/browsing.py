"""A server of the page in a process of its own, and a browser on it: what the measurement and the pictures share."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
LABELLED = "#level:not([hidden])"  # is there once all images are labelled
PATIENCE = 600_000  # ms that images may take to be labelled


@contextlib.contextmanager
def served(*options: object) -> Iterator[str]:
    """The address of `kedge serve` with these options, until the block ends."""
    command = [sys.executable, "-m", "kedge", "serve", *map(str, options), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium without a window."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise SystemExit("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()
