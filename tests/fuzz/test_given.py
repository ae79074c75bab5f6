"""What a person says of a batch, sense and nonsense, to every method: known labels, and classes that can occur."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import Campaign, Random, Run

SAID = """
import numpy
from hostile_given import fault, random_trial
for number in range(20):
    trial = random_trial(numpy.random.default_rng([{seed}, number]))
    found = fault(trial)
    assert not found, f"{{trial}}: {{found}}"
"""


def conduct(random: Random, folder: Path, run: Run) -> None:
    run(before=SAID.format(seed=int(random.integers(2**31))))


@pytest.mark.fuzz
def test_given(campaign: Campaign) -> None:
    campaign("given", conduct, trials=6)
