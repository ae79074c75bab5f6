"""Files that were edited or damaged: each works or is refused in one line. See `forging` for what is changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forging import KINDS, forged, use
from kedge.benchmark.record import Record
from kedge.errors import KedgeError
from kedge.report import write_report

TRIALS = dict.fromkeys(KINDS, 200) | {"parts": 40}  # an extraction each


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_forged_files_work_or_are_refused(kind: str, tmp_path: Path) -> None:
    messages = []
    for seed in range(TRIALS[kind]):
        path = forged(kind, np.random.default_rng(seed), tmp_path)
        try:
            use(kind, path)
        except KedgeError as error:
            messages.append(str(error))
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}: {error!r}") from error
    assert 0 < len(messages) < TRIALS[kind]
    assert not [message for message in messages if "\n" in message]


def test_forged_records_make_a_report(tmp_path: Path) -> None:
    records = []
    for seed in range(40):
        try:
            records.append(Record.load(forged("record", np.random.default_rng(seed), tmp_path)))
        except KedgeError:
            continue
    assert records
    assert write_report(records, tmp_path / "report.html").stat().st_size > 0
