"""What the tests share: one thread, the way to the shared data, and simulated batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from kedge.arrays import unit
from kedge.methods import find, methods
from kedge.report import write_report
from kedge.results import Record
from report_tools import some_records

torch.set_num_threads(1)  # the same bits on every machine with the same CPU, however many cores it has

settings.register_profile("kedge", derandomize=True, max_examples=50, deadline=None)
settings.load_profile("kedge")

SHARED = (
    Path(__file__).resolve().parents[2] / "shared"
)  # real features and recorded outputs: beside the project, not in it
ON_FEATURES = [name for name in methods() if find(name).traits.needs == "features"]  # nothing else is needed
WITHOUT_SHARED = "the folder ../shared (real features, recorded outputs) is not here"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real features and recorded outputs; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(WITHOUT_SHARED)
    return SHARED


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """Made-up records of every kind, for the report."""
    return list(some_records())


@pytest.fixture(scope="session")
def written(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on them. Do not write beside it: several test files read it."""
    return write_report(records, tmp_path_factory.mktemp("report") / "report.html")


def simulated(
    n: int, k: int, d: int = 16, *, seed: int = 0, noise: float = 0.3, present: int | None = None
) -> tuple[Tensor, Tensor]:
    """Simulated unit features in float64: n images (n×d) around the first `present` of k prototypes (k×d)."""
    random = torch.Generator().manual_seed(seed)
    t = unit(torch.randn(k, d, generator=random, dtype=torch.float64))
    classes = torch.randint(present or k, (n,), generator=random)
    return unit(t[classes] + noise * torch.randn(n, d, generator=random, dtype=torch.float64)), t
