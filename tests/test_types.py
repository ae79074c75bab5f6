"""What mypy knows of results: arrays of the kind that came in."""

from __future__ import annotations

from pathlib import Path

import pytest

SNIPPET = """
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import kedge

x, t = np.eye(3), np.eye(3)
a, b = torch.eye(3), torch.eye(3)
features = kedge.FeatureSet.from_arrays(x, t, labels=[0, 1, 2])

assert_type(kedge.adapt(x, t), kedge.Result[NDArray[Any]])
assert_type(kedge.adapt(x, t).probs, NDArray[Any])
assert_type(kedge.adapt(a, b, "stata", alpha=2.0), kedge.Result[torch.Tensor])
assert_type(kedge.adapt(a, features.head).labels, torch.Tensor)
assert_type(kedge.adapt(features).zero_shot, torch.Tensor)
assert_type(kedge.adapt(features, known={0: "cat", 2: kedge.NONE}, present=["cat", 1], reject=0.5).none, torch.Tensor)
assert_type(kedge.adapt(x, t).review, NDArray[Any])

stream = kedge.Stream(t)
assert_type(stream.step(x), kedge.Result[NDArray[Any]])
assert_type(stream.step(a, known=[0, -1, kedge.NONE], reject=0.5).labels, torch.Tensor)
stream.present = ["cat", 1]
assert_type(stream.present, tuple[int, ...] | None)
stream.present = None

found = kedge.classify("photos", ["cat", "dog"])
assert_type(found, kedge.Predictions)
assert_type(found.labels, torch.Tensor)
assert_type(found.names, list[str])
assert_type(found.result, kedge.Result[torch.Tensor])
assert_type(kedge.extract("photos", ["cat"], "tiny"), kedge.FeatureSet)
"""
WRONG = """
kedge.adapt(np.eye(3))  # wrong: no text features
kedge.adapt("photos", np.eye(3))  # wrong: a path is no array
kedge.Stream("kedge", np.eye(3))  # wrong: the text comes first
kedge.adapt(x, t).probs.no_such_attribute  # wrong: Any would have it
stream.step(x, known="cat")  # wrong: of which image?
"""


def test_results_have_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed")
    program = tmp_path / "program.py"
    program.write_text(SNIPPET + WRONG, encoding="utf-8")
    monkeypatch.chdir(Path(__file__).parents[1])  # with the settings, and the cache, of `make lint`
    found, *_ = mypy.run([str(program)])
    refused = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    wrong = {n for n, line in enumerate((SNIPPET + WRONG).splitlines(), start=1) if "# wrong" in line}
    assert refused == wrong, found
