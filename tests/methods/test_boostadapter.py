"""BoostAdapter against a plain version of its equations, at its limits, and TDA as one of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated, with_views
from kedge import TDA, Batch, BoostAdapter, Stream
from kedge.labelling.check_method import check_method
from kedge.methods.solve.cache import Memory

ORDER = {"permuted_images_permute_rows": "an image sees those before it"}
SCALE = 10.0  # of with_views


def parts(batch: Batch, size: int) -> list[Batch]:
    assert batch.views is not None
    pairs = zip(batch.features.split(size), batch.views.split(size), strict=True)
    return [Batch(x, batch.head, views) for x, views in pairs]


def along(method: Any, batches: list[Batch]) -> Tensor:
    """z of all batches of a stream."""
    state, rows = method.init(batches[0].head), []
    for batch in batches:
        step = method.step(state, batch)
        state = step.state
        rows.append(step.z)
    return torch.cat(rows)


def plain(batch: Batch, t: Tensor, extra: int, average: bool) -> tuple[Tensor, int, int]:
    """The equations with lists, image by image; how often the negative cache forgot, and a view pushed an entry out."""
    assert batch.views is not None
    k = len(t)
    positive: list[list[tuple[float, Tensor]]] = [[] for _ in range(k)]
    negative: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(k)]
    rows, forgotten, pushed = [], 0, 0

    def about(f: Tensor) -> tuple[Tensor, float, int]:
        y = torch.softmax(SCALE * f @ t.T, dim=0)
        return y, -float((y * y.log()).sum()), int(y.argmax())

    for views in batch.views:
        kept = sorted(views, key=lambda f: about(f)[1])[: int(0.1 * len(views))]
        f = torch.stack(kept).mean(dim=0) if average else views[0]
        y, h, c = about(f)
        positive[c] = sorted([*positive[c], (h, f)], key=lambda entry: entry[0])[:3]
        if 0.2 < h / math.log2(k) < 0.5:
            forgotten += len(negative[c]) == 2
            negative[c] = [*negative[c], (f, y)][-2:]
        joined = [list(entries) for entries in positive]
        for view in kept:
            _, h, c = about(view)
            joined[c] = sorted([*joined[c], (h, view)], key=lambda entry: entry[0])
            pushed += len(joined[c]) > 3 + extra
            joined[c] = joined[c][: 3 + extra]
        logits = SCALE * f @ t.T
        for c in range(k):
            for _, key in joined[c]:
                logits[c] += 2 * torch.exp(-5 * (1 - f @ key))
            for key, y in negative[c]:
                logits -= 0.117 * torch.exp(-(1 - f @ key)) * ((y > 0.03) & (y < 1))
        rows.append(torch.softmax(logits, dim=0))
    return torch.stack(rows), forgotten, pushed


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("extra", [0, 2])
def test_against_plain_equations(extra: int, average: bool) -> None:
    batch, t = with_views(60, 30)
    expected, forgotten, pushed = plain(batch, t, extra, average)
    ours = along(BoostAdapter(extra_slots=extra, average_views=average), [batch])
    assert (ours - expected).abs().max() <= 1e-12
    assert forgotten > 0
    assert pushed > 0


def test_few_views_leave_tda_with_a_queue() -> None:
    """⌊0.1 v⌋ is 0. Without the negative cache, which differs, it is TDA image by image; with it, it is not."""
    batch, _ = with_views(60, 9)
    pairs = [(BoostAdapter(negative_weight=w), TDA(negative_weight=w, protocol="image")) for w in (0.0, 0.117)]
    off = [float((along(ours, [batch]) - along(tda, [batch])).abs().max()) for ours, tda in pairs]
    assert off[0] <= 1e-14
    assert off[1] > 1e-4


def test_zero_weights_are_zero_shot() -> None:
    batch, _ = with_views(20, 20)
    method = BoostAdapter(positive_weight=0.0, negative_weight=0.0)
    assert (along(method, [batch]) - batch.log_zero_shot.exp()).abs().max() <= 1e-14
    assert (along(BoostAdapter(), [batch]) - batch.log_zero_shot.exp()).abs().max() > 1e-3


def test_views_of_an_image_serve_it_alone() -> None:
    """Other views of the first image leave the second one as it is."""
    batch, _ = with_views(2, 20)
    other, _ = with_views(2, 20, noise=2.0)
    assert batch.views is not None
    assert other.views is not None
    mixed = Batch(batch.features, batch.head, torch.stack([other.views[0], batch.views[1]]))
    before, after = along(BoostAdapter(), [batch]), along(BoostAdapter(), [mixed])
    assert (before[0] - after[0]).abs().max() > 1e-4
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("size", [1, 7])
def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    batch, _ = with_views(30, 20)
    assert (along(BoostAdapter(), parts(batch, size)) - along(BoostAdapter(), [batch])).abs().max() <= 1e-12


def test_saved_stream_continues(tmp_path: Path) -> None:
    batch, _ = with_views(40, 20)
    first, second = parts(batch, 20)
    stream = Stream(batch.head, "boostadapter")
    stream.step(first.features, first.views)
    stream.save(tmp_path / "stream.safetensors")
    loaded = Stream.load(tmp_path / "stream.safetensors")
    steps = [each.step(second.features, second.views).probs for each in (stream, loaded)]
    assert torch.equal(*steps)


def test_float32_is_near_float64() -> None:
    batch, _ = with_views(40, 20)
    assert batch.views is not None
    single = Batch(batch.features.float(), batch.head.like(torch.zeros(1)), batch.views.float())
    ours = along(BoostAdapter(), [single])
    assert ours.dtype == torch.float32
    assert (ours - along(BoostAdapter(), [batch])).abs().max() <= 1e-4


def test_refused_without_views() -> None:
    with pytest.raises(kedge.InputError, match="method 'boostadapter' needs augmented views, and there are none"):
        kedge.adapt(*simulated(4, 3), "boostadapter")


def test_contract() -> None:
    check_method(BoostAdapter(), skip=ORDER)
    check_method(BoostAdapter(average_views=True))


def test_queue() -> None:
    """Two slots: the third of a class pushes out its first; other classes are not touched."""
    memory = Memory.empty(3, 2, number=torch.zeros((), dtype=torch.float64))
    for c, number in ((1, 1.0), (0, 2.0), (1, 3.0), (1, 4.0)):
        memory.queue(torch.tensor([c]), number=torch.tensor([number], dtype=torch.float64))
    assert memory.entries["number"].tolist() == [[2, 0], [4, 3], [0, 0]]
    assert memory.filled.tolist() == [[True, False], [True, True], [False, False]]
