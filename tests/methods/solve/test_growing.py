"""Lists of neighbours that grow, against a search from scratch; and the graph of them, against a dense one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kedge.methods.solve.growing import NOBODY, BothWays, GrowingLists


def lists_of(nodes: int, m: int) -> GrowingLists:
    return GrowingLists.of(torch.zeros(0, m, dtype=torch.int32), torch.zeros(0, m, dtype=torch.float64), nodes)


def similarities(n: int, values: int = 12) -> Tensor:
    """Symmetric, of a few values, so that most are equal to others; the diagonal is not the largest."""
    s = torch.randint(values, (n, n), generator=torch.Generator().manual_seed(n)).double() / values
    return s.triu() + s.triu(1).T


def searched(s: Tensor, m: int) -> list[list[int]]:
    """The m nearest of each node; of equals the later first."""
    n = len(s)
    return [sorted(range(n), key=lambda j: (-float(s[i, j]), -j))[:m] for i in range(n)]


def listed(lists: GrowingLists) -> list[list[int]]:
    filled = lists.similarity[: lists.nodes] > NOBODY
    return [row[mask].tolist() for row, mask in zip(lists.indices[: lists.nodes], filled, strict=True)]


@pytest.mark.parametrize("m", [1, 3, 8])
def test_lists_are_exact_at_any_time(m: int) -> None:
    s = similarities(40)
    lists = lists_of(40, m)
    for n in range(1, 41):
        lists.add(s[n - 1, :n])
        assert listed(lists) == searched(s[:n, :n], m)
        expected = [sorted(s[i, :n].tolist(), reverse=True)[:m] for i in range(n)]
        assert [row[row > NOBODY].tolist() for row in lists.similarity[:n]] == expected


def test_a_node_may_be_removed_again() -> None:
    s = similarities(20)
    lists = lists_of(20, 5)
    for n in range(1, 20):
        lists.add(s[n - 1, :n])
    indices, similarity = lists.indices.clone(), lists.similarity.clone()
    replaced = lists.add(s[19])
    assert listed(lists) == searched(s, 5)
    lists.remove(replaced)
    assert torch.equal(lists.indices, indices)
    assert torch.equal(lists.similarity, similarity)
    assert lists.nodes == 19


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_against_a_dense_matrix(dtype: torch.dtype) -> None:
    n, m, k = 15, 4, 3
    draw = torch.Generator().manual_seed(0)
    targets = torch.stack([torch.randperm(n, generator=draw)[:m] for _ in range(n)]).int()
    weights = torch.rand(n, m, generator=draw, dtype=dtype)
    dense = torch.zeros(n, n, dtype=dtype).scatter_(1, targets.long(), weights)
    dense = dense + dense.T
    graph, d = BothWays.of(targets, weights), torch.rand(n, generator=draw, dtype=dtype)
    z = torch.rand(n, k, generator=draw, dtype=dtype)
    classes, values = torch.randint(k, (n,), generator=draw), torch.rand(n, generator=draw, dtype=dtype)
    one_entry = torch.zeros(n, k, dtype=dtype).scatter_(1, classes[:, None], values[:, None])
    torch.testing.assert_close(graph.degrees(), dense.sum(dim=1))
    torch.testing.assert_close(graph @ z, dense @ z)
    torch.testing.assert_close(graph.scaled(d) @ z, d[:, None] * dense * d @ z)
    torch.testing.assert_close(graph.spread(classes, values, k), dense @ one_entry)
