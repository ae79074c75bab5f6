"""Connecting to a cluster. In a process of its own: this one may be connected already."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999999"])
def test_an_address_where_nothing_answers_is_one_line(address: str, tmp_path: Path) -> None:
    code = f"from kedge.cluster.connect import connected\nwith connected({address!r}): pass"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert f"SettingError: cannot connect to a cluster at {address}: " in ran.stderr.splitlines()[-1]
    assert "GCS" not in ran.stderr  # Ray was not asked: it tries for long, with a line in each second
