"""What works, or says why not, where Ray is not installed. This file alone runs without Ray; see conftest.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command import run
from kedge.features.folder import split
from kedge.features.simulate import simulate
from pictures import save_pictures


def test_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_pictures(tmp_path / "photos")
    folder = split(simulate(6, 2, d=8, seed=0), tmp_path / "features")
    monkeypatch.setitem(sys.modules, "ray", None)
    for words in (
        ["adapt", folder.path, "--label-folder", tmp_path / "labels", "--cluster"],
        ["bench", folder.path, "--scenario", "very-low", "--out", tmp_path / "records", "--cluster"],
        ["extract", tmp_path / "photos", "--encoder", "tiny", "--cluster", "--out", tmp_path / "new"],
    ):
        ran = run(*words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.splitlines()[-1].startswith("error: a cluster needs Ray")
        assert 'pip install "kedge[cluster]"' in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features", "photos"]
