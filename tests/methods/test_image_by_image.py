"""What all methods that go image by image have in common: a batch is its images in their order, and nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kedge
from kedge.methods.contract import Method
from streams import continues_bit_for_bit, simulated_stream, steps

METHODS = [
    *(kedge.ADAPTOnline(slots=3), kedge.DOTA(), kedge.DOTA(start="text"), kedge.BCA(), kedge.OnLab()),
    *(kedge.TDA(protocol="image"), kedge.DMN(protocol="image")),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("sizes", [[1] * 36, [35, 1], [5, 20, 11]], ids=str)
def test_where_a_stream_is_cut_changes_nothing(method: Method, sizes: list[int]) -> None:
    batches, t = simulated_stream(3)
    x = torch.cat(batches)
    (whole,) = steps(method, [x], t)
    parts = steps(method, list(x.split(sizes)), t)
    assert (torch.cat([step.z for step in parts]) - whole.z).abs().max() <= 1e-9
    assert parts[-1].state is not None
    assert whole.state is not None
    for name, value in whole.state.items():
        torch.testing.assert_close(parts[-1].state[name], value, atol=1e-9, rtol=0)
    alone = torch.cat([steps(method, [image], t)[0].z for image in x.split(1)])
    assert (alone - whole.z).abs().max() > 1e-3  # the images before it have an effect


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_an_image_does_not_see_later_ones(method: Method) -> None:
    batches, t = simulated_stream(3)
    first, again = steps(method, batches, t), steps(method, batches[:2], t)
    assert torch.equal(torch.cat([step.z for step in first[:2]]), torch.cat([step.z for step in again]))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_saved_stream_continues(method: Method, tmp_path: Path) -> None:
    assert continues_bit_for_bit(method, tmp_path)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_float32_is_near_float64(method: Method) -> None:
    batches, t = simulated_stream(3)
    double = steps(method, batches, t)
    single = steps(method, [x.float() for x in batches], t.float())
    for a, b in zip(single, double, strict=True):
        assert a.z.dtype == torch.float32
        assert (a.z - b.z).abs().max() <= 2e-5
