"""Settings and inputs at and beyond the ends of their ranges, through `adapt` and `Stream` of every method."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import Campaign, Random, Run

SWEEP = """
import numpy
from sweeping import fault, random_trial
trial = random_trial(numpy.random.default_rng({seed}))
found = fault(*trial)
assert not found, f"{{trial}}: {{found}}"
"""


def conduct(random: Random, folder: Path, run: Run) -> None:
    run(before=SWEEP.format(seed=int(random.integers(2**31))))


@pytest.mark.fuzz
def test_settings(campaign: Campaign) -> None:
    campaign("settings", conduct, trials=150)
