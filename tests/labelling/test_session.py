"""A session labels the same images again as `kedge.adapt` would, with less work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kedge
from kedge.methods.solve import neighbours
from kedge.methods.solve.neighbours import KeptNeighbours, nearest_neighbours

FEATURES = kedge.simulate(n=400, k=30, d=32, seed=3)
SAID: list[dict[str, Any]] = [
    {},
    {"known": {3: 4, 9: "simulated 007"}},
    {"known": {3: 4, 9: kedge.NONE, 17: kedge.NONE}},
    {"present": range(12)},
    {"known": {5: 2, 8: kedge.NONE}, "present": range(12), "reject": 0.5},
]


@pytest.mark.parametrize("said", SAID)
def test_a_session_labels_as_adapt_does(said: dict[str, Any]) -> None:
    session = kedge.Session(FEATURES)
    for earlier in SAID:
        session.solve(**earlier)
    found, fresh = session.solve(**said), kedge.adapt(FEATURES, **said)
    assert found.labels.equal(fresh.labels)
    assert torch.allclose(found.probs, fresh.probs, atol=1e-5)
    assert found.review.equal(fresh.review)
    assert found.verdict.sentence == fresh.verdict.sentence


def test_another_head_replaces_the_classes() -> None:
    fewer = FEATURES.head.select(torch.arange(10))
    session = kedge.Session(FEATURES, "stata", alpha=2.0)
    session.solve()
    fresh = kedge.adapt(FEATURES.image_features, fewer, "stata", alpha=2.0)
    assert session.solve(head=fewer).probs.equal(fresh.probs)
    assert session.solve().probs.shape == (400, 30)


def test_neighbours_are_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []

    def counted(x: torch.Tensor, m: int, **options: Any) -> Any:
        searches.append(len(x))
        return nearest_neighbours(x, m, **options)

    monkeypatch.setattr(neighbours, "nearest_neighbours", counted)
    session = kedge.Session(FEATURES)
    for image in range(4):
        _ = session.solve(known={image: 1, 20: kedge.NONE}).verdict
    assert searches == [400]


@pytest.mark.parametrize("duplicates", [0, 200])
@pytest.mark.parametrize("left", [400, 399, 250, 4, 3, 1])
def test_neighbours_among_part_of_the_images_are_those_of_a_new_search(left: int, duplicates: int) -> None:
    x = FEATURES.image_features.clone()
    x[:duplicates] = x[200 : 200 + duplicates]  # as near as their originals: those with smaller numbers come first
    rows = torch.randperm(400, generator=torch.Generator().manual_seed(left))[:left].sort().values
    found, fresh = KeptNeighbours(x).among(rows).nearest(3), nearest_neighbours(x[rows], 3)
    assert found.indices.equal(fresh.indices)
    assert torch.allclose(found.similarity, fresh.similarity, atol=1e-6)


def test_the_nearest_images_of_one() -> None:
    session, x = kedge.Session(FEATURES), FEATURES.image_features
    nearest = nearest_neighbours(x, 5)
    found = session.neighbours(7, 5)
    assert [image for image, _ in found] == nearest.indices[7].tolist()
    assert [cosine for _, cosine in found] == pytest.approx(nearest.similarity[7].tolist(), abs=1e-5)
    assert len(session.neighbours(7, 10_000)) == 399


def test_methods_that_need_more_than_features_are_refused() -> None:
    with pytest.raises(kedge.InputError, match="'mta' needs views"):
        kedge.Session(FEATURES, "mta")
