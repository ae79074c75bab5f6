"""Nearest neighbours: exact ones are those of brute force, approximate ones say truly how many they found."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import kedge
from kedge.features.simulate import simulate
from kedge.methods.contract import Batch
from kedge.methods.solve import neighbours as search
from kedge.methods.solve.neighbours import Neighbours, nearest_neighbours

FORMS = [
    pytest.param(
        True, id="compiled", marks=pytest.mark.skipif(not find_spec("numba"), reason="needs the extra `fast`")
    ),
    pytest.param(False, id="torch"),
]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's form takes several blocks even of few images, the last one short."""
    monkeypatch.setattr(search, "BLOCK_ROWS", 48)
    monkeypatch.setattr(search, "BLOCK_COLUMNS", 80)


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)))


def brute_force(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Similarities of everybody with everybody, in float64: the m best of each, and all."""
    similarity = x.double() @ x.double().T
    similarity.fill_diagonal_(-2)
    return similarity.topk(m, dim=1).values, similarity


def check_exact(x: Tensor, m: int, found: Neighbours) -> None:
    """Right up to ties: falling, nobody twice, nobody themselves, as near as the nearest can be."""
    n = len(x)
    best, similarity = brute_force(x, min(m, n - 1))
    assert found.indices.dtype == torch.int64
    assert found.indices.shape == found.similarity.shape == best.shape
    assert (found.exact, found.recall, found.info) == (True, 1.0, {})
    torch.testing.assert_close(found.similarity.double(), best, atol=1e-6, rtol=0)
    torch.testing.assert_close(similarity.gather(1, found.indices), best, atol=1e-6, rtol=0)
    assert (found.similarity.diff(dim=1) <= 0).all()
    assert not (found.indices == torch.arange(n)[:, None]).any()
    assert (found.indices.sort(dim=1).values.diff(dim=1) > 0).all()


@pytest.mark.parametrize("compiled", FORMS)
@pytest.mark.parametrize(
    ("n", "d", "m"),
    [
        (1, 4, 3),
        (2, 3, 3),
        (3, 5, 1),
        (4, 5, 9),
        (64, 7, 0),
        (65, 33, 3),
        (101, 8, 4),
        (193, 16, 5),
        (300, 9, 1000),
        (700, 9, 5),
    ],
)
def test_exact_is_brute_force(n: int, d: int, m: int, compiled: bool, threads: None, small_blocks: None) -> None:
    x = rows(n, d, seed=n)
    check_exact(x, m, nearest_neighbours(x, m, compiled=compiled))


@pytest.mark.parametrize("compiled", FORMS)
def test_blocks_as_they_are(compiled: bool, threads: None) -> None:
    x = rows(2500, 8)
    check_exact(x, 3, nearest_neighbours(x, 3, compiled=compiled))


@pytest.mark.parametrize("compiled", FORMS)
def test_duplicates_are_neighbours(compiled: bool, threads: None, small_blocks: None) -> None:
    x = rows(50, 6)[torch.arange(200) % 50]  # everybody four times, in different blocks
    found = nearest_neighbours(x, 3, compiled=compiled)
    check_exact(x, 3, found)
    assert (found.indices % 50 == (torch.arange(200) % 50)[:, None]).all()


@pytest.mark.parametrize("compiled", FORMS)
@pytest.mark.parametrize(("n", "d"), [(63, 6), (64, 512), (150, 6)])
def test_all_the_same(n: int, d: int, compiled: bool, small_blocks: None) -> None:
    """Ties only; those of the compiled form go to the smaller index."""
    x = rows(1, d).expand(n, d)
    found = nearest_neighbours(x, 2, compiled=compiled)
    check_exact(x, 2, found)
    if compiled:
        assert found.indices[[0, 1, 2, n - 1]].tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    "make", [lambda x: x[::2], lambda x: x.T.contiguous().T, lambda x: x.double(), Tensor.requires_grad_]
)
def test_any_layout_and_precision(make: object) -> None:
    x = make(rows(120, 10))  # type: ignore[operator]
    check_exact(x.detach(), 4, nearest_neighbours(x, 4))


@pytest.mark.parametrize("compiled", FORMS)
def test_approximate(compiled: bool, threads: None) -> None:
    """What it found is near, what it says is so: recall is measured on images that did not choose how far to look."""
    n = 1500
    x = simulate(n, 20, d=32, seed=1).image_features
    found = nearest_neighbours(x, 3, search="approximate", compiled=compiled)
    best, similarity = brute_force(x, 3)
    torch.testing.assert_close(similarity.gather(1, found.indices), found.similarity.double(), atol=1e-6, rtol=0)
    assert (found.similarity.diff(dim=1) <= 0).all()
    assert not (found.indices == torch.arange(n)[:, None]).any()
    assert (found.indices.sort(dim=1).values.diff(dim=1) > 0).all()

    hit = found.similarity.double() >= best[:, -1:] - 1e-6
    sample = torch.randperm(n, generator=torch.Generator().manual_seed(search.SEED))[: 2 * search.SAMPLE]
    judges = sample[len(sample) // 2 :]
    assert found.recall == float(hit[judges].double().mean())
    assert found.info == {"recall": found.recall}
    assert 0.95 < float(hit.double().mean()) < 1  # not everybody was looked at


@pytest.mark.parametrize("compiled", FORMS)
def test_same_neighbours_every_time(compiled: bool) -> None:
    x = simulate(1000, 20, d=16, seed=2).image_features
    torch.manual_seed(5)
    first = nearest_neighbours(x, 3, search="approximate", compiled=compiled)
    torch.manual_seed(6)
    again = nearest_neighbours(x, 3, search="approximate", compiled=compiled)
    assert torch.equal(first.indices, again.indices)
    assert first.recall == again.recall


@pytest.mark.parametrize("compiled", FORMS)
@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_approximate_of_few(n: int, compiled: bool) -> None:
    """Lists with less than m others: nobody is left without neighbours."""
    x = rows(n, 12)
    found = nearest_neighbours(x, 7, search="approximate", compiled=compiled)
    assert found.indices.shape == (n, min(7, n - 1))
    assert (found.indices >= 0).all()
    torch.testing.assert_close(
        (x @ x.T).gather(1, found.indices), found.similarity, atol=1e-6, rtol=0
    )  # an empty place would be −3e38
    assert not (found.indices == torch.arange(n)[:, None]).any()


@pytest.mark.parametrize("compiled", FORMS)
def test_who_finds_too_few_looks_everywhere(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "lists_to_visit", lambda *_: 1)  # of six lists, none of which has 30 others
    x = rows(40, 12)
    found = nearest_neighbours(x, 30, search="approximate", compiled=compiled)
    torch.testing.assert_close(found.similarity.double(), brute_force(x, 30)[0], atol=1e-6, rtol=0)
    assert found.recall == 1


@pytest.mark.parametrize("compiled", FORMS)
def test_approximate_with_duplicates(compiled: bool, small_blocks: None) -> None:
    """Half of the images are one: a single list has them all, in several blocks, and none is its own neighbour."""
    x = torch.cat([rows(1, 6).expand(200, 6), rows(200, 6, seed=1)])
    found = nearest_neighbours(x, 3, search="approximate", compiled=compiled)
    assert (found.similarity[:200] > 1 - 1e-6).all()
    assert (found.indices[:200] < 200).all()
    assert not (found.indices == torch.arange(400)[:, None]).any()


def test_approximate_above_a_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "EXACT_UP_TO", 300)
    x = rows(301, 8)
    assert nearest_neighbours(x[:300], 3).exact
    assert not nearest_neighbours(x, 3).exact
    assert nearest_neighbours(x, 3, search="exact").exact


@pytest.mark.parametrize("method", ["kedge", "transclip", "moon", "zlap", "stata"])
def test_methods_report_the_recall(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only if it is in question; the labels are nearly those of the exact graph."""
    f = simulate(800, 10, d=32, seed=3)
    exact = kedge.adapt(f, method=method)
    monkeypatch.setattr(search, "EXACT_UP_TO", 300)
    approximate = kedge.adapt(f, method=method)
    assert "recall" not in exact.info
    assert 0.9 < approximate.info["recall"] <= 1
    assert (exact.labels == approximate.labels).float().mean() > 0.99


@pytest.mark.parametrize("method", ["kedge", "stata"])
def test_search_is_a_setting(method: str) -> None:
    f = simulate(200, 5, d=16, seed=4)
    assert "recall" in kedge.adapt(f, method=method, search="approximate").info
    with pytest.raises(kedge.SettingError, match="search must be one of 'auto', 'exact', 'approximate'; got 'faiss'"):
        kedge.adapt(f, method=method, search="faiss")


def test_neighbours_given_are_the_ones_used() -> None:
    f = simulate(40, 5, d=16, seed=4)
    batch = Batch(f.image_features, f.head)
    given = nearest_neighbours(batch.features, 3)
    for method in (kedge.Moon(), kedge.TransCLIP()):
        last = [iterate.z for iterate in method.iterate(batch, given)][-1]
        assert torch.equal(last, method.step(None, batch).z)
