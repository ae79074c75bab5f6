"""`kedge serve`, stopped or killed at random moments: the same command goes on with the work, and ends at Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from runner import INTERRUPTED, Campaign, Fault, Random, Run

SERVED = ["photos --encoder tiny", "features.safetensors --images photos"]
ENDS = [SIGKILL, SIGKILL, SIGTERM, SIGINT]


def conduct(random: Random, folder: Path, run: Run) -> None:
    """End servers of the same work, then stop one when it is ready."""
    command = ["serve", *SERVED[random.integers(len(SERVED))].split(), "--work", "out/work"]
    for _ in range(random.integers(1, 4)):
        run(command, signal=int(random.choice(ENDS)), after=random.uniform(0, 4))
    ran = run(command, signal=int(SIGINT), after=5)
    if ran.code not in (0, INTERRUPTED, -SIGINT) or "http://127.0.0.1:" not in ran.out:
        raise Fault(f"the work does not go on: exit code {ran.code}; {ran.out!r}; {ran.err!r}")


@pytest.mark.fuzz
def test_server(campaign: Campaign) -> None:
    campaign("server", conduct, trials=3)
