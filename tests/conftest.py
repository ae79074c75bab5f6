"""What the tests share: one thread, the way to the shared data, and simulated batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from cases import SHARED, WITHOUT_SHARED
from kedge.benchmark.record import Record
from kedge.report import write_report
from report_tools import some_records

torch.set_num_threads(1)  # the same bits on every machine with the same CPU, however many cores it has

settings.register_profile("kedge", derandomize=True, max_examples=50, deadline=None)
settings.load_profile("kedge")


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
