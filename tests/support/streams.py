"""For the online methods: the recorded streams played again, and simulated ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cases import simulated
from kedge import Batch, Step, Stream, TextHead
from kedge.methods.contract import Method
from recordings import features, recording

SETS = ("dtd_test_vitb32", "whurs19_clip_vitb32", "whurs19_clip_rn50", "sun397_val_vitb32")
TOLERANCE = 2e-3  # on z, against a float32 recording of TDA, OGA or DMN


def replayed(method: Method, name: str, entry: str) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """The six recorded batches in order: our step, the recorded output (n×k), the recorded labels."""
    x, t = (torch.from_numpy(a) for a in features(name))
    g, head = recording(name), TextHead(t)
    state = method.init(head)
    for i, rows in enumerate(g["stream/indices"]):
        step = method.step(state, Batch(x[torch.from_numpy(rows).long()], head))
        yield step, torch.from_numpy(g[f"stream/{entry}/z"][i]), torch.from_numpy(g[f"stream/{entry}/pred"][i]).long()
        state = step.state


def simulated_stream(count: int, n: int = 12, k: int = 5, **knobs: Any) -> tuple[list[Tensor], Tensor]:
    """Simulated: `count` batches (n×d, float64) around the same k prototypes (k×d)."""
    x, t = simulated(count * n, k, **{"d": 8, "noise": 0.6, **knobs})
    return list(x.split(n)), t


def steps(method: Method, batches: list[Tensor], t: Tensor, scale: float = 10.0) -> list[Step]:
    """A method along a stream. At this logit scale simulated images are neither sure nor lost."""
    head = TextHead(t, scale)
    taken, state = [], method.init(head)
    for x in batches:
        taken.append(method.step(state, Batch(x, head)))
        state = taken[-1].state
    return taken


def continues_bit_for_bit(method: Method, folder: Path) -> bool:
    """A stream saved after two batches and loaded goes on as the one that was not."""
    batches, t = simulated_stream(4)
    stream = Stream(TextHead(t, 10.0), method)
    for x in batches[:2]:
        stream.step(x)
    stream.save(folder / "stream.safetensors")
    loaded = Stream.load(folder / "stream.safetensors", method)
    same = [torch.equal(stream.step(x).probs, loaded.step(x).probs) for x in batches[2:]]
    assert stream.state is not None
    assert loaded.state is not None
    return all(same) and all(torch.equal(stream.state[name], loaded.state[name]) for name in stream.state)
