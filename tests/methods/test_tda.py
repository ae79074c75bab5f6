"""TDA against its recorded streams, against a plain version of its equations, and at its limits; and the memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge.labelling.check_method import check_method
from kedge.methods.solve.cache import Memory
from kedge.methods.tda import TDA
from recordings import features, recording
from streams import SETS, TOLERANCE, continues_bit_for_bit, replayed, simulated_stream, steps

ORDER = {"permuted_images_permute_rows": "an image sees those before it"}


@pytest.mark.parametrize("name", SETS)
def test_recorded_stream(shared: object, name: str) -> None:
    x = torch.from_numpy(features(name)[0])
    for i, (step, z, labels) in enumerate(replayed(TDA(), name, "tda")):
        assert (step.z - z).abs().max() <= TOLERANCE
        assert torch.equal(step.z.argmax(dim=1), labels)
        assert step.state is not None
        for cache, short in (("positive", "pos"), ("negative", "neg")):
            memory = Memory.of(step.state, cache)
            classes, images = torch.from_numpy(recording(name)[f"stream/tda/{short}_cache_b{i}"]).long().T
            assert torch.equal(memory.filled.nonzero()[:, 0], classes)  # and in ascending entropy:
            assert torch.equal(memory.entries["features"][memory.filled], x[images])
        assert step.info["cached"] == len(recording(name)[f"stream/tda/pos_cache_b{i}"])


def plain_tda(batches: list[Tensor], t: Tensor, scale: float, protocol: str) -> Tensor:
    """The equations with lists, image by image; z of all batches."""
    k = len(t)
    positive: list[list[Any]] = [[] for _ in range(k)]
    negative: list[list[Any]] = [[] for _ in range(k)]

    def remember(cache: list[list[Any]], c: int, entry: tuple[float, Tensor, Tensor], room: int) -> None:
        if len(cache[c]) < room:
            cache[c].append(entry)
        elif entry[0] < max(e[0] for e in cache[c]):
            cache[c].remove(max(cache[c], key=lambda e: e[0]))
            cache[c].append(entry)

    def take(f: Tensor) -> None:
        y = torch.softmax(scale * f @ t.T, dim=0)
        h = -float((y * y.log()).sum())
        c = int(y.argmax())
        remember(positive, c, (h, f, y), 3)
        if 0.2 < h / math.log2(k) < 0.5:
            remember(negative, c, (h, f, y), 2)

    def label(f: Tensor) -> Tensor:
        logits = scale * f @ t.T
        for c in range(k):
            for _, key, _ in positive[c]:
                logits[c] += 2 * torch.exp(-5 * (1 - f @ key))
            for _, key, y in negative[c]:
                logits -= 0.117 * torch.exp(-(1 - f @ key)) * ((y > 0.03) & (y < 1))
        return torch.softmax(logits, dim=0)

    rows = []
    for x in batches:
        for group in [x] if protocol == "batch" else list(x.split(1)):
            for f in group:
                take(f)
            rows += [label(f) for f in group]
    assert 0 < sum(map(len, negative)) < 2 * k  # the negative cache is part of what is compared
    assert any(len(entries) == 3 for entries in positive)
    return torch.stack(rows)


@pytest.mark.parametrize("protocol", ["batch", "image"])
def test_against_plain_equations(protocol: Any) -> None:
    batches, t = simulated_stream(4, k=9)
    ours = torch.cat([step.z for step in steps(TDA(protocol=protocol), batches, t)])
    assert (ours - plain_tda(batches, t, 10.0, protocol)).abs().max() <= 1e-12


def test_image_protocol_is_a_stream_of_single_images() -> None:
    batches, t = simulated_stream(3)
    ours = torch.cat([step.z for step in steps(TDA(protocol="image"), batches, t)])
    singles = torch.cat([step.z for step in steps(TDA(), list(torch.cat(batches).split(1)), t)])
    assert (ours - singles).abs().max() <= 1e-12
    together = torch.cat([step.z for step in steps(TDA(), batches, t)])
    assert (ours - together).abs().max() > 1e-3


@pytest.mark.parametrize("protocol", ["batch", "image"])
def test_zero_weights_are_zero_shot(protocol: Any) -> None:
    batches, t = simulated_stream(3)
    method = TDA(positive_weight=0.0, negative_weight=0.0, protocol=protocol)
    for x, step in zip(batches, steps(method, batches, t), strict=True):
        zero_shot = torch.softmax(10.0 * x @ t.T, dim=1)
        assert (step.z - zero_shot).abs().max() <= 1e-14
        assert (step.z - steps(TDA(), [x], t)[0].z).abs().max() > 1e-3


def test_negative_cache_takes_only_the_half_sure() -> None:
    (x,), t = simulated_stream(1, n=200)
    y = torch.softmax(4.0 * x @ t.T, dim=1)
    ratio = torch.special.entr(y).sum(dim=1) / math.log2(5)
    assert (ratio < 0.2).any()
    assert (ratio > 0.5).any()
    state = steps(TDA(negative_slots=200), [x], t, scale=4.0)[0].state
    assert state is not None
    stored = Memory.of(state, "negative").entries["features"][Memory.of(state, "negative").filled]
    wanted = x[(ratio > 0.2) & (ratio < 0.5)]
    assert len(stored) == len(wanted)
    assert torch.equal(stored.sort(dim=0).values, wanted.sort(dim=0).values)


def test_one_image() -> None:
    x, t = simulated(1, 5)
    assert kedge.adapt(x, t, "tda").probs.shape == (1, 5)


def test_float32_is_near_float64() -> None:
    batches, t = simulated_stream(3)
    double = steps(TDA(), batches, t)
    single = steps(TDA(), [x.float() for x in batches], t.float())
    for a, b in zip(single, double, strict=True):
        assert a.z.dtype == torch.float32
        assert (a.z - b.z).abs().max() <= 1e-5


@pytest.mark.parametrize("protocol", ["batch", "image"])
def test_saved_stream_continues(tmp_path: Path, protocol: Any) -> None:
    assert continues_bit_for_bit(TDA(protocol=protocol), tmp_path)


def test_contract() -> None:
    check_method(TDA())
    check_method(TDA(protocol="image"), skip=ORDER)


# The memory that TDA, DMN and OGA share


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_batch_enters_as_one_by_one(slots: int) -> None:
    """Entropies come from few values, so that ties are common; images are numbered, so that each can be told."""
    random = torch.Generator().manual_seed(slots)
    k, n = 4, 60
    classes = torch.randint(k, (n,), generator=random)
    entropies = torch.randint(6, (n,), generator=random).double()
    number = torch.arange(1.0, n + 1, dtype=torch.float64)
    kept: list[list[tuple[float, float]]] = [[] for _ in range(k)]
    at_once, in_parts = (Memory.empty(k, slots, number=number[0]) for _ in range(2))
    for c, h, i in zip(classes.tolist(), entropies.tolist(), number.tolist(), strict=True):
        kept[c] = sorted([*kept[c], (h, i)])[:slots]  # the earlier of two equals stays
    at_once.take(classes, entropies, number=number)
    for rows in torch.arange(n).split(7):
        in_parts.take(classes[rows], entropies[rows], number=number[rows])
    for memory in (at_once, in_parts):
        for c in range(k):
            filled = memory.filled[c]
            assert memory.entropy[c][filled].tolist() == [h for h, _ in kept[c]]
            assert memory.entries["number"][c][filled].tolist() == [i for _, i in kept[c]]
            assert (memory.entries["number"][c][~filled] == 0).all()


def test_memory_is_the_states_own() -> None:
    state = Memory.empty(2, 3, feature=torch.zeros(4)).state("some")
    memory = Memory.of(state, "some")
    memory.take(torch.tensor([1]), torch.tensor([0.5]), feature=torch.ones(1, 4))
    assert memory.filled.sum() == 1
    assert state["some.entropy"][1].tolist() == [0.5, torch.inf, torch.inf]
    assert (state["some.feature"][1, 0] == 1).all()
    memory.take(torch.empty(0, dtype=torch.long), torch.empty(0), feature=torch.empty(0, 4))  # nobody
    assert memory.filled.sum() == 1
