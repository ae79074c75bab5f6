"""Plans and records from files: what does not fit is refused, with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kedge import simulate
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.plan import Plan, draw
from kedge.benchmark.record import Record
from kedge.errors import FileError, SettingError
from kedge.tensor_files import save_tensors
from tampering import opened

LABELS = np.arange(40) % 5


def saved(path: Path, tensors: dict[str, Tensor], **header: Any) -> Path:
    save_tensors(path, "plan", 1, tensors, header)
    return path


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("batch_sizes", lambda sizes: torch.tensor([-1, 1 + int(sizes.sum())]), "sizes of batches or episodes"),
        ("batch_sizes", lambda sizes: sizes[:-1], "sizes of batches or episodes"),
        ("batch_sizes", lambda sizes: sizes * 0, "sizes of batches or episodes"),
        ("batch_sizes", lambda sizes: sizes * 2**61, "sizes of batches or episodes"),
        ("batch_sizes", lambda sizes: sizes.double(), "batch_sizes is torch.float64"),
        ("episode_sizes", lambda sizes: sizes + 1, "sizes of batches or episodes"),
        ("indices", lambda indices: indices + 1, "images outside of 0 to 39"),
        ("indices", lambda indices: indices - 1, "images outside of 0 to 39"),
        ("indices", lambda indices: indices[:, None], r"indices is torch.int64 of shape \(40, 1\)"),
        ("more", lambda _: torch.zeros(3), "an array 'more'"),
    ],
)
def test_plans_that_do_not_fit(
    tmp_path: Path, name: str, change: Callable[[Tensor | None], Tensor], reason: str
) -> None:
    path = tmp_path / "plan.safetensors"
    draw("stream:size=8", LABELS, tasks=1).save(path)
    tensors, header = opened(path)
    with pytest.raises(FileError, match=reason):
        Plan.load(saved(path, {**tensors, name: change(tensors.get(name))}, **header))
    assert Plan.load(saved(path, tensors, **header)).n == 40


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 1.5), ("seed", "0"), ("n", 0), ("n", None), ("labels_hash", "x"), ("scenario", 3)],
)
def test_plans_whose_header_does_not_fit(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "plan.safetensors"
    draw("very-low", LABELS, tasks=2).save(path)
    tensors, header = opened(path)
    with pytest.raises(FileError, match=f"is not a kedge plan file: Expected .*, at `{field}`"):
        Plan.load(saved(path, tensors, **{**header, field: value}))


def test_a_seed_that_a_file_cannot_keep_is_refused() -> None:
    with pytest.raises(SettingError, match="seed"):
        draw("very-low", LABELS, seed=1 << 63)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accuracy": 1.2}, "Expected `float` <= 1.000001, at `accuracy`"),
        ({"accuracy": "0.5"}, "Expected `float`, got `str`, at `accuracy`"),
        ({"gain": -2}, "at `gain`"),
        ({"seconds": -1}, "at `seconds`"),
        ({"seed": -1}, "at `seed`"),
        ({"tasks": 0}, "at `tasks`"),
        ({"images": 10**400}, "at `images`"),
        ({"dataset": 3}, "at `dataset`"),
        ({"error": ["x"]}, "at `error`"),
        ({"settings": {"method": {"alpha": 3}}}, "an inner method in the settings has no name"),
        ({"settings": {"method": {"name": 3}}}, "an inner method in the settings has no name"),
        ({"settings": []}, "at `settings`"),
    ],
)
def test_records_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    refused(tmp_path / "record.json", json.dumps({**good(), **changes}), reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accuracy": [0.5]}, "lists of 1 and of 2 batches"),
        ({"images": [0, 1]}, "Expected `int` >= 1"),
        ({"composition": [[1.0]] * 3}, "composition does not fit"),
        ({"composition": [[1.0], [0.5, 0.5]]}, "composition does not fit"),
        ({"reliability": {"count": [1.0]}}, "three lists of one length"),
        ({"episode": [0, "x"]}, r"at `series.episode\[1\]`"),
    ],
)
def test_records_whose_series_do_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    record = good()
    refused(tmp_path / "record.json", json.dumps({**record, "series": {**record["series"], **changes}}), reason)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "[" * 100_000, '"\\udcff"'])
def test_records_that_are_not_json(tmp_path: Path, value: str) -> None:
    text = json.dumps({**good(), "dataset": "@"}).replace('"@"', value)
    refused(tmp_path / "record.json", text, "is not a kedge record: ")


def test_records_with_deep_settings(tmp_path: Path) -> None:
    deep: Any = "stata"
    for _ in range(200):
        deep = {"name": "tempered", "method": deep}
    refused(tmp_path / "record.json", json.dumps({**good(), "settings": deep}), "nested too deeply")


def good() -> dict[str, Any]:
    features = simulate(16, 4, 16, seed=1)
    return asdict(evaluate("zero-shot", features, "stream:size=8", tasks=1))


def refused(path: Path, text: str, reason: str) -> None:
    path.write_text(text)
    with pytest.raises(FileError, match=reason) as caught:
        Record.load(path)
    assert "\n" not in str(caught.value)
