"""More images than memory: what comes in is shared and worked on in blocks, and nothing is ever written to it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import kedge
from cases import simulated
from kedge import FeatureSet, TextHead, arrays
from kedge.labelling.predictions import Predictions
from kedge.methods.contract import Batch


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 100)


def mapped(path: Path, n: int = 40, k: int = 5) -> tuple[np.memmap[tuple[int, int], np.dtype[np.float32]], np.ndarray]:
    """Simulated features as a file opened for reading, and prototypes."""
    x, t = simulated(n, k)
    np.save(path, x.float().numpy())
    array = np.load(path, mmap_mode="r")
    assert not array.flags.writeable
    return array, t.float().numpy()


def test_row_blocks_are_all_rows_once(small_blocks: None) -> None:
    for shape in [(1, 3), (7, 30), (3, 1000), (100, 1), (5, 4, 6), (9,)]:
        blocks = arrays.row_blocks(shape)
        assert [i for rows in blocks for i in range(shape[0])[rows]] == list(range(shape[0]))
        rest = int(np.prod(shape[1:]))
        assert all((rows.stop - rows.start) * rest <= 100 or rows.stop - rows.start == 1 for rows in blocks)


def test_a_file_opened_for_reading_is_shared(tmp_path: Path) -> None:
    x, t = mapped(tmp_path / "x.npy")
    before = x.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = arrays.as_tensor(x, "x", 2)
        features = FeatureSet.from_arrays(x, t)
        result = kedge.adapt(x, t, method="stata")
    assert tensor.data_ptr() == x.ctypes.data
    assert features.image_features.data_ptr() == x.ctypes.data
    assert arrays.unit_rows(tensor, like=features.head.features).data_ptr() == x.ctypes.data
    assert not x.flags.writeable
    assert np.array_equal(x, before)
    plain = kedge.adapt(before, t, method="stata")
    assert np.array_equal(result.probs, plain.probs)


def test_shared_memory_lives_as_long_as_the_tensor() -> None:
    array = np.full((1000, 1000), 0.5)
    array.flags.writeable = False
    tensor = arrays.as_tensor(array, "x", 2)
    del array
    other = np.full((1000, 1000), 0.25)  # would take the place of freed memory
    assert float(tensor.min()) == float(tensor.max()) == 0.5
    assert other.sum() == 250_000


@pytest.mark.parametrize("rows", [slice(0, 1), slice(None)])
@pytest.mark.parametrize("writeable", [False, True])
def test_reversed_rows_come_in_order(rows: slice, writeable: bool) -> None:
    array = simulated(4, 3)[0].numpy()[rows][::-1]  # of one row: contiguous, with a negative stride
    array.flags.writeable = writeable
    assert np.array_equal(arrays.as_tensor(array, "x", 2).numpy(), array)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_shot_in_blocks(dtype: torch.dtype, small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = (a.to(dtype) for a in simulated(33, 6))
    head = TextHead.from_arrays(t)
    x.requires_grad_()
    assert len(arrays.row_blocks((33, 22))) == 9
    in_blocks = Batch(x, head).log_zero_shot
    (gradient,) = torch.autograd.grad(in_blocks[:, 0].sum(), x)
    monkeypatch.undo()
    whole = Batch(x, head).log_zero_shot
    tolerance = 4 * torch.finfo(dtype).eps
    rounding = 100 * torch.finfo(torch.float64).eps  # of logits up to 100, whose last digit is the processor's own
    assert torch.allclose(in_blocks, whole, rtol=tolerance, atol=tolerance + rounding)
    assert torch.allclose(gradient, torch.autograd.grad(whole[:, 0].sum(), x)[0], rtol=1e-4, atol=1e-5)
    exact = torch.log_softmax(100 * (x.double() @ t.double().T), dim=1)
    assert torch.allclose(in_blocks.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_door_in_blocks(
    dtype: str, normalize: bool, small_blocks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, t = (a.numpy().astype(dtype) for a in simulated(33, 6))
    x = x * (3 if normalize else 1)
    in_blocks = kedge.adapt(x, t, method="stata", normalize=normalize)
    FeatureSet.from_arrays(x, t, normalize=normalize).save(tmp_path / "x.safetensors")
    with pytest.raises(kedge.InputError, match="first in row 21"):
        kedge.adapt(
            np.where(np.arange(33)[:, None] == 21, np.nan, x).astype(dtype), t, method="stata", normalize=normalize
        )
    monkeypatch.undo()
    whole = kedge.adapt(x, t, method="stata", normalize=normalize)
    assert in_blocks.probs == pytest.approx(whole.probs, abs=1e-6)
    assert in_blocks.zero_shot == pytest.approx(whole.zero_shot, abs=1e-6)
    from_file = kedge.adapt(FeatureSet.load(tmp_path / "x.safetensors"), method="stata")
    assert from_file.probs.numpy() == pytest.approx(whole.probs, abs=1e-6)


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_the_prior_and_the_temperature_in_blocks(leave_one_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = simulated(60, 12, present=3)
    method = kedge.Kedge(leave_one_out=leave_one_out, compiled=False)
    whole = kedge.adapt(x, t, method, 20.0)
    assert whole.info["heat"] > 1.01
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 100)
    assert torch.allclose(kedge.adapt(x, t, method, 20.0).probs, whole.probs, rtol=0, atol=1e-12)


def test_zero_shot_of_a_method_that_does_without() -> None:
    """The result has it, whether or not the method left log ŷ behind."""

    class Even(kedge.ZeroShot):
        def step(self, state: None, batch: Batch) -> kedge.Step:
            return kedge.Step(None, torch.full((len(batch.features), batch.head.k), 1 / batch.head.k))

    x, t = (a.float() for a in simulated(9, 4))
    result = kedge.adapt(x, t, Even())
    assert torch.equal(result.zero_shot, kedge.adapt(x, t, "zero-shot").probs)
    assert torch.equal(result.probs, torch.full((9, 4), 0.25))


def test_rows_as_json_are_written_one_by_one(tmp_path: Path) -> None:
    x, t = simulated(3, 2)
    features = FeatureSet.from_arrays(x.float(), t.float())
    predictions = Predictions(features, kedge.adapt(features, method="stata"))
    predictions.write(tmp_path / "rows.json")
    text = (tmp_path / "rows.json").read_text(encoding="utf-8")
    assert json.loads(text) == list(predictions.rows())
    assert len(text.splitlines()) == 5
