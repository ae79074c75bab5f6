"""What is sent to the nodes of a cluster: an encoder that takes its time and says where it works, and a slow method."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from kedge import Batch, Step, ZeroShot
from kedge.encoders.encoder import Encoder
from pictures import Tower, encoder


class Slow(Tower):
    """Writes the number of its process into a file at every batch."""

    def __init__(self, pids: Path, pause: float) -> None:
        super().__init__()
        self.pids, self.pause = pids, pause

    def forward(self, pixels: Tensor) -> Tensor:
        noted(self.pids)
        time.sleep(self.pause)
        return super().forward(pixels)


def slow_encoder(pids: Path, pause: float = 0.2) -> Encoder:
    return dataclasses.replace(encoder(), visual=Slow(pids, pause).eval().requires_grad_(False))


@dataclass(frozen=True)
class SlowZeroShot(ZeroShot):
    """Zero-shot that takes its time; with `deadly`, it kills its process."""

    pids: str = ""
    pause: float = 0.1
    deadly: bool = False

    def step(self, state: Any, batch: Batch) -> Step:
        noted(Path(self.pids))
        if self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)
        return super().step(state, batch)


MATRIX = pytest.mark.skipif(
    "KEDGE_CLUSTER_MATRIX" not in os.environ, reason="one failure of each kind: make test-cluster"
)


def started(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A process that runs this program, and finds what this one finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=environment)


def noted(pids: Path) -> None:
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")


def first_pid(pids: Path) -> int:
    return int(pids.read_text().splitlines()[0])


def until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
