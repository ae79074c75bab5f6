"""The solver by lists gives what the torch solvers give: exactly with all classes as candidates, else nearly; in one
part or in several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import Kedge, StatA, arrays
from kedge.arrays import Stacked
from kedge.features.simulate import simulate
from kedge.methods.contract import Batch, Step
from kedge.methods.solve import graph
from kedge.methods.solve.lists import Rows
from kedge.methods.solve.neighbours import Neighbours
from kedge.methods.solve.parts import Here

CLOSE = {torch.float32: 2e-5, torch.float64: 1e-9}


def in_parts(
    method: StatA | Kedge, batch: Batch, candidates: int = 64, cuts: Sequence[int] = ()
) -> tuple[Tensor, dict[str, Any]]:
    """z (n×k) by lists, the batch cut into parts before these images."""
    nearest = batch.nearest(method.neighbours)
    ends = [0, *cuts, len(batch.features)]
    parts = []
    for number, (start, stop) in enumerate(pairwise(ends)):
        own = slice(start, stop)
        known = None if batch.known is None else batch.known[own]
        mine = Neighbours(nearest.indices[own], nearest.similarity[own])
        parts.append(
            Rows(
                batch.features[own],
                batch.head,
                mine,
                known=known,
                number=number,
                offsets=ends[:-1],
                candidates=candidates,
            )
        )
    info = method.solve(Here(parts), batch.head)
    return torch.cat([part.dense() for part in parts]), info


def dense(method: StatA | Kedge, batch: Batch) -> Step:
    return method.step(method.init(batch.head), replace(batch))  # a copy, which keeps no logarithms


def stata(**settings: Any) -> StatA:
    return StatA(compiled=False, **settings)


def own(**settings: Any) -> Kedge:
    return Kedge(compiled=False, memory=False, **settings)


def batch_of(
    n: int, k: int, dtype: torch.dtype = torch.float32, *, d: int = 64, seed: int = 3, present: int = 8
) -> Batch:
    f = simulate(n, k, d=d, k_eff=min(present, k), seed=seed)
    return Batch(f.image_features.to(dtype), f.head.like(torch.empty(0, dtype=dtype)))


def with_known(batch: Batch, images: Sequence[int]) -> Batch:
    """Labels of some images are known: their least probable ones."""
    known = torch.full((len(batch.features),), -1)
    known[list(images)] = batch.log_zero_shot[list(images)].argmin(dim=1)
    return replace(batch, known=known)


METHODS = [
    stata(),
    stata(beta="soft"),
    stata(alpha=0.0),
    stata(alpha=0.0, beta="soft"),
    stata(alpha=float("inf")),
    stata(temperature=10.0),
    stata(laplacian=0.0),
    stata(laplacian=5.0),
    stata(neighbours=1),
    stata(neighbours=100),
    stata(unit_means=False),
    stata(iterations=0),
    stata(iterations=1, z_steps=1),
    own(),
    own(presence=False),
    own(leave_one_out=False),
    own(guard=False),
    own(honest=False),
    own(iterations=0),
    own(alpha=20.0, neighbours=7),
]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_with_all_candidates_it_is_the_dense_solve(
    method: StatA | Kedge, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(150, 40, dtype)
    whole = dense(method, batch)
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 168 * 31)  # k + 2d = 168: blocks of 31 rows
    z, info = in_parts(method, batch, 100)
    # Without anchors, classes of next to no mass are what rounding makes them: float32 is 2e-4 from float64 either way.
    unanchored = dtype == torch.float32 and method == stata(alpha=0.0, beta="soft")
    assert (z - whole.z).abs().max() <= (5e-4 if unanchored else CLOSE[dtype])
    assert info["candidates"] == 40
    assert info["outside"] < 1e-6
    for name, value in whole.info.items():
        if name not in ("recall",):
            assert info[name] == pytest.approx(value, abs=1e-4, rel=1e-4), name


@pytest.mark.parametrize("method", [stata(), own()], ids=["stata", "kedge"])
@pytest.mark.parametrize("cuts", [(60, 110), (1, 2, 149), (70, 70), (0, 150)], ids=str)
def test_parts_are_one_solve(method: StatA | Kedge, cuts: tuple[int, ...]) -> None:
    """Parts of one image and of none, and lists that leave classes out."""
    batch = with_known(batch_of(150, 40, torch.float64), [3, 60, 149])
    one, info = in_parts(method, batch, 10)
    several, info_of_several = in_parts(method, batch, 10, cuts)
    assert (several - one).abs().max() <= 1e-9
    assert info_of_several.pop("crossing") >= 0
    assert info_of_several == pytest.approx(info, abs=1e-9)


@pytest.mark.skipif(not find_spec("numba"), reason="needs the extra `fast`")
@pytest.mark.parametrize("method", [stata(), own(), own(leave_one_out=False)], ids=str)
@pytest.mark.parametrize("k", [40, 300])
def test_the_compiled_z_step(method: StatA | Kedge, k: int) -> None:
    """It is torch's, with candidates as bytes and as larger numbers, in one part and in two."""
    batch = with_known(batch_of(150, k), [3, 60, 149])
    plain, info = in_parts(method, batch, 10)
    for cuts in ((), (70,)):
        fast, fast_info = in_parts(replace(method, compiled=True), batch, 10, cuts)
        assert (fast - plain).abs().max() <= CLOSE[torch.float32]
        assert fast_info["change"] == pytest.approx(info["change"], abs=1e-5)


def test_blocks_have_room_for_classes_that_cannot_occur() -> None:
    """Zero-shot is of all classes."""
    x, head = torch.eye(4)[:1].expand(20_000, 4), kedge.TextHead(torch.eye(4).repeat(250, 1))
    nearest = Neighbours(torch.empty(20_000, 0, dtype=torch.long), torch.empty(20_000, 0))
    rows = Rows(x, head, nearest, present=torch.tensor([3]))
    assert len(rows.blocks) > 1
    assert rows.blocks == Rows(x, head, nearest).blocks


@pytest.mark.parametrize("compiled", [False, True])
def test_more_entries_than_small_numbers_count(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, method = batch_of(150, 40), replace(own(), compiled=compiled)
    small = in_parts(method, batch, 10, [60])[0]
    monkeypatch.setattr(graph, "MOST_ENTRIES", 100)
    assert graph.NeighbourGraph.of(batch.nearest(3), 1.0).offsets.dtype == torch.int64
    assert torch.equal(in_parts(method, batch, 10, [60])[0], small)


def test_the_share_of_crossing_edges() -> None:
    batch = batch_of(150, 40, torch.float64)
    part = (torch.arange(150) >= 60).long()
    expected = float((part[batch.nearest(3).indices] != part[:, None]).double().mean())
    assert 0.1 < expected < 0.9
    assert in_parts(stata(), batch, 10, [60])[1]["crossing"] == pytest.approx(expected)


def test_the_bias_step_in_parts() -> None:
    """A batch with all classes, whose mean ŷ is even."""
    batch = batch_of(400, 10, torch.float64, d=32, present=10)
    method = own()
    assert (dense(method, batch).z - dense(replace(method, bias=False), batch).z).abs().max() > 1e-3
    for cuts in ((), (100, 350)):
        assert (in_parts(method, batch, 10, cuts)[0] - dense(method, batch).z).abs().max() <= 1e-9


@pytest.mark.parametrize(
    "method",
    [stata(), stata(beta="soft"), stata(temperature=1e-3), stata(laplacian=1e6), own(), own(laplacian=1e6)],
    ids=str,
)
def test_known_labels(method: StatA | Kedge, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are certain, however few candidates there are, and all else is as in the dense solve."""
    images = [3, 40, 149]
    batch = with_known(batch_of(150, 40, torch.float64), images)
    assert batch.known is not None
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 168 * 31)
    z, info = in_parts(method, batch, 40)
    assert (z - dense(method, batch).z).abs().max() <= 1e-6
    for candidates in (2, 40):
        z, info = in_parts(method, batch, candidates)
        assert torch.allclose(z[images], torch.eye(40, dtype=z.dtype)[batch.known[images]])
        assert 0 <= info["outside"] < 1


@pytest.mark.parametrize("method", [stata(), own()], ids=["stata", "kedge"])
@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 4), (1, 7, 8), (2, 3, 8), (3, 1, 5), (5, 70, 33), (70, 65, 17)])
def test_shapes(n: int, k: int, d: int, method: StatA | Kedge) -> None:
    x, t = simulated(n, k, d)
    batch = Batch(x, kedge.TextHead.from_arrays(t, 20.0))
    for cuts in ((), (n // 2,)):
        assert (in_parts(method, batch, 80, cuts)[0] - dense(method, batch).z).abs().max() <= 1e-9


def test_rounded_prototypes_are_scaled_to_unit_norm_after_the_first_fit() -> None:
    batch = batch_of(60, 20, torch.float64, d=32)
    near = kedge.TextHead(batch.head.features * (1 + 2e-4))
    batch = Batch(batch.features, near)
    assert (in_parts(stata(), batch, 20)[0] - dense(stata(), batch).z).abs().max() <= 1e-9
    assert (in_parts(stata(), batch, 20)[0] - in_parts(stata(unit_means=False), batch, 20)[0]).abs().max() > 1e-6


@pytest.mark.parametrize("method", [stata(), own()], ids=["stata", "kedge"])
def test_few_candidates_are_nearly_enough(method: StatA | Kedge) -> None:
    f = simulate(1000, 200, d=64, seed=1)
    batch = Batch(f.image_features, f.head)
    labels = dense(method, batch).z.argmax(dim=1)
    share, outside = {}, {}
    for candidates in (8, 32):
        z, info = in_parts(method, batch, candidates)
        assert ((z > 0).sum(dim=1) <= candidates).all()
        assert (z.sum(dim=1) - 1).abs().max() < 1e-5
        share[candidates] = float((z.argmax(dim=1) == labels).double().mean())
        outside[candidates] = info["outside"]
    assert share[32] >= 0.999
    assert 0 < outside[32] < outside[8] < 0.5


def test_outside_is_zero_shot_of_other_classes() -> None:
    batch = batch_of(50, 30, torch.float64)
    _, info = in_parts(stata(iterations=0), batch, 5)
    expected = 1 - batch.log_zero_shot.exp().topk(5).values.sum(dim=1).mean()
    assert info["outside"] == pytest.approx(float(expected), abs=1e-9)


def test_of_equal_classes_the_first_counts() -> None:
    x, t = simulated(30, 4, 16)
    batch = Batch(x, kedge.TextHead.from_arrays(t[[0, 0, 1, 1, 2, 2, 3, 3]]))  # every prototype twice
    assert (in_parts(stata(), batch, 8)[0] - dense(stata(), batch).z).abs().max() <= 1e-9


@pytest.mark.parametrize("name", ["stata", "kedge"])
def test_by_lists_where_dense_arrays_would_be_too_large(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = simulate(100, 20, d=32, seed=1)
    plain = kedge.adapt(f, method=name)
    monkeypatch.setattr(f"kedge.methods.{name}.DENSE_ENTRIES", 100 * 20)
    assert "candidates" not in kedge.adapt(f, method=name).info
    monkeypatch.setattr(f"kedge.methods.{name}.DENSE_ENTRIES", 100 * 20 - 1)
    large = kedge.adapt(f, method=name)
    assert large.info["candidates"] == 20
    assert (large.probs - plain.probs).abs().max() <= 5e-5
    assert torch.equal(large.zero_shot, plain.zero_shot)


def test_a_stream_of_large_batches_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """kedge's memory is used and updated by lists as by the dense solver."""
    f = simulate(200, 20, d=32, seed=1)
    streams = {}
    for most in (1 << 27, 0):
        monkeypatch.setattr("kedge.methods.kedge.DENSE_ENTRIES", most)
        stream = kedge.Stream(f.head, "kedge", compiled=False)
        stream.step(f.image_features[:120])
        streams[most] = stream, stream.step(f.image_features[120:]).probs
    (one, dense_probs), (two, list_probs) = streams.values()
    assert one.state is not None
    assert two.state is not None
    assert bool(one.state["counts"].any())
    assert (dense_probs - list_probs).abs().max() <= 5e-5
    for name, value in one.state.items():
        assert torch.allclose(value, two.state[name], atol=1e-4)


def test_nothing_is_written_to_and_no_dense_logarithms_are_kept() -> None:
    batch = batch_of(40, 12)
    x, t = batch.features.clone(), batch.head.features.clone()
    in_parts(stata(), batch, 6)
    assert torch.equal(batch.features, x)
    assert torch.equal(batch.head.features, t)
    assert "log_zero_shot" not in vars(batch)


@pytest.mark.parametrize("settings", [{"tol": 0.1}, {"objective": True}, {"graph": "dense"}], ids=str)
def test_what_lists_cannot_do_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(kedge.SettingError, match="by lists of candidates has no tol"):
        stata(**settings).check_parts()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_stacked_rows_are_those_of_one_array(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = simulated(20, 3, 6)[0].to(dtype)
    like = arrays.working(x[:0])
    cuts = [0, 5, 5, 6, 20]
    arrays_of = [x[a:b] for a, b in pairwise(cuts)]
    stacked = Stacked([lambda each=each: each for each in arrays_of], [len(each) for each in arrays_of], like)
    whole = arrays.unit_rows(x)
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 18)
    blocks = stacked.blocks(6)
    assert [i for rows in blocks for i in range(20)[rows]] == list(range(20))
    assert all(rows.stop - rows.start <= 3 for rows in blocks)
    assert torch.equal(torch.cat([stacked[rows] for rows in blocks]), whole)
    some = torch.tensor([19, 0, 5, 5, 4])
    assert torch.equal(stacked[some], whole[some])
