"""The search in parts finds what the search in one array finds, whatever the parts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kedge.arrays import Stacked, unit_rows
from kedge.features.simulate import simulate
from kedge.methods.solve import cells as search
from kedge.methods.solve.cells import Cells, arrange, load, owners
from kedge.methods.solve.neighbours import nearest_neighbours
from kedge.methods.solve.parts import Here

CUTS = (0, 200, 450, 450, 900, 1200)  # of the arrays; one is empty


def arranged(
    x: Tensor, shares: list[list[int]], folder: Path, m: int = 3, exact: bool = False
) -> tuple[list[Cells], dict[str, float]]:
    """The parts after the search, each of which began with some of the arrays."""
    arrays = [x[start:stop] for start, stop in pairwise(CUTS)]
    parts, first = [], 0
    for number, share in enumerate(shares):
        opening = [lambda array=arrays[j]: array for j in share]
        stacked = Stacked(opening, [len(arrays[j]) for j in share], x[:0].float())
        parts.append(Cells(stacked, x.dtype, first, folder / f"{number}.rows", number))
        first += len(stacked)
    return parts, arrange(Here(parts), m, exact).info


def in_order(parts: list[Cells]) -> tuple[Tensor, Tensor]:
    """Neighbours and similarities by the numbers of the images."""
    numbers = torch.cat([part.numbers for part in parts])
    assert torch.equal(numbers.sort().values, torch.arange(len(numbers)))
    indices, similarity = (
        torch.cat(each) for each in zip(*((part.indices, part.values) for part in parts), strict=True)
    )
    return numbers[indices][numbers.argsort()], similarity[numbers.argsort()]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shares", [[[0, 1, 2, 3, 4]], [[0, 1], [2], [3, 4]]], ids=["1", "3"])
def test_the_same_neighbours_as_of_one_array(
    shares: list[list[int]], exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = simulate(1200, 20, d=32, seed=1).image_features
    monkeypatch.setattr(search, "ASKING", 250)
    parts, info = arranged(x, shares, tmp_path, exact=exact)
    found = nearest_neighbours(x, 3, search="exact" if exact else "approximate")
    indices, similarity = in_order(parts)
    assert torch.equal(indices, found.indices)
    assert torch.allclose(similarity, found.similarity, atol=1e-6)
    assert info == found.info
    for part in parts:
        assert torch.equal(part.x[torch.arange(part.n)], x[part.numbers])


@pytest.mark.parametrize("shares", [[[0, 1, 2, 3, 4]], [[0, 1], [2], [3, 4]]], ids=["1", "3"])
def test_who_finds_too_few_looks_everywhere(
    shares: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "lists_to_visit", lambda *_: 1)  # of some 35 cells, few of which have 50 others
    x = simulate(1200, 20, d=32, seed=1).image_features
    parts, _ = arranged(x, shares, tmp_path, 50)
    rows = torch.cat([(part.values[:, -1] > -2) for part in parts])
    assert bool(rows.all())
    truth = nearest_neighbours(x, 50, search="exact").similarity
    assert not any(len(part.short()) for part in parts)
    assert float((in_order(parts)[1] >= truth[:, -1:] - 1e-6).float().mean()) > 0.5


def test_how_many_cells_an_image_looks_into_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without structure nearly all cells would be needed; the recall says what is lost."""
    monkeypatch.setattr(search, "MOST_CELLS", 3)
    x = unit_rows(torch.randn(1200, 32, generator=torch.Generator().manual_seed(0)), normalize=True)
    parts, info = arranged(x, [[0, 1, 2], [3, 4]], tmp_path)
    assert all(part.cells.shape == (part.n, 3) for part in parts)
    assert 0.1 < info["recall"] < 0.9


def test_half_precision_stays_and_files_are_read_again(tmp_path: Path) -> None:
    x = simulate(1200, 20, d=32, seed=1).image_features.half()
    parts, _ = arranged(x, [[0, 1, 2], [3, 4]], tmp_path)
    for part in parts:
        part.save(tmp_path / f"{part.number}.safetensors")
        rows, numbers, nearest = load(tmp_path / f"{part.number}.safetensors", part.file, x[:0].float(), part.n, len(x))
        assert part.file.stat().st_size == part.n * 32 * 2
        assert torch.equal(numbers, part.numbers)
        assert torch.equal(nearest.indices, part.indices)
        assert torch.equal(rows.opening[0](), x[numbers])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_images(n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CUTS", (0, 1, n, n, n, n))
    x = simulate(n, 3, d=16, seed=1).image_features
    parts, _ = arranged(x, [[0], [1], [2, 3, 4]], tmp_path)
    assert torch.equal(in_order(parts)[0].sort(dim=1).values, nearest_neighbours(x, 3).indices.sort(dim=1).values)


def test_owners_are_balanced_and_near_each_other() -> None:
    draw = torch.Generator().manual_seed(0)
    axis = torch.randn(200, generator=draw).sort().values
    centres = torch.stack([axis * 10, *torch.randn(5, 200, generator=draw)], dim=1)
    sizes = torch.randint(1, 100, (200,), generator=draw)
    owner = owners(centres, sizes, 5)
    share = torch.bincount(owner, weights=sizes.double(), minlength=5) / sizes.sum()
    assert (share - 0.2).abs().max() < 0.03
    groups = [axis[owner == part] for part in range(5)]
    spans = sorted((float(each.min()), float(each.max())) for each in groups)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
