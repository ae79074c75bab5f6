"""ECALP against a dense version of its equations, at its limits, and with forged states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import ECALP, Batch, Stream, TextHead
from kedge.arrays import unit
from kedge.labelling.check_method import check_method
from kedge.methods.contract import check_state
from streams import continues_bit_for_bit, simulated_stream, steps

ORDER = {"permuted_images_permute_rows": "an image sees those before it"}


def plain(x: Tensor, t: Tensor, neighbours: int = 8) -> Tensor:
    """The equations with dense matrices and a search from scratch for every image; Z of the copies."""
    k, v = len(t), unit(t.var(dim=0)[None])[0]
    carried, read = torch.zeros(0, k, dtype=x.dtype), []
    for count in range(1, len(x) + 1):
        f = torch.cat([x[:count], x[count - 1 : count]])
        nodes = len(f)
        s = torch.stack(
            [
                torch.stack([unit((v * f[min(i, j)])[None])[0] @ f[max(i, j)] for j in range(nodes)])
                for i in range(nodes)
            ]
        )
        w = torch.zeros(nodes + k, nodes + k, dtype=x.dtype)
        for i in range(nodes):
            for j in sorted(range(nodes), key=lambda j: (-float(s[i, j]), -j))[:neighbours]:
                w[k + i, k + j] = max(float(s[i, j]), 0) ** 10
            cosines = f[i] @ t.T
            for c in cosines.topk(min(3, k)).indices.tolist():
                w[k + i, c] = max(float(cosines[c]), 0) ** 10
        w = w + w.T
        d = 1 / (w.sum(dim=1).sqrt() + 1e-6)
        a = (d[:, None] * w * d)[k:]
        z = torch.cat([carried, torch.zeros(2, k, dtype=x.dtype)])
        for _ in range(3):
            z = a @ torch.cat([torch.eye(k, dtype=x.dtype), z])
        read.append(z[-1])
        largest = z[:count].max(dim=1)
        carried = torch.zeros(count, k, dtype=x.dtype).scatter_(
            1, largest.indices[:, None], largest.values[:, None] / 5
        )
    return torch.stack(read)


def scores(method: ECALP, batches: list[Tensor], t: Tensor) -> Tensor:
    """Z of the copies along a stream."""
    found = [step.scores for step in steps(method, batches, t)]
    return torch.cat([s for s in found if s is not None]) / method.scale


def near_texts(n: int, k: int = 6, **knobs: Any) -> tuple[Tensor, Tensor]:
    """Simulated images and prototypes that all lie in one half, as CLIP's do: no similarity is negative."""
    x, t = simulated(n, k, 8, noise=0.6, **knobs)
    centre = unit(torch.ones(1, 8, dtype=torch.float64))
    return unit(x + 2 * centre), unit(t + 2 * centre)


@pytest.mark.parametrize("neighbours", [1, 3, 8, 50])
@pytest.mark.parametrize("k", [2, 6])
def test_against_dense_equations(k: int, neighbours: int) -> None:
    x, t = near_texts(30, k)
    x[20] = x[4]  # duplicates: the later is nearer
    x[21] = x[4]
    ours, expected = scores(ECALP(neighbours=neighbours), [x[:1], x[1:17], x[17:]], t), plain(x, t, neighbours)
    assert ((ours - expected) / expected.amax(dim=1, keepdim=True)).abs().max() <= 1e-9
    assert expected.amax(dim=1).min() > 0


@pytest.mark.parametrize("size", [1, 7])
def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    x, t = near_texts(40)
    whole, parts = steps(ECALP(), [x], t)[0], steps(ECALP(), list(x.split(size)), t)
    assert (torch.cat([step.z for step in parts]) - whole.z).abs().max() <= 1e-9
    assert whole.state is not None
    assert parts[-1].state is not None
    assert torch.equal(whole.state["neighbours"], parts[-1].state["neighbours"])


def test_the_first_image_sees_texts_alone() -> None:
    """So its label is that of zero-shot: Z has the order of its three nearest texts, and is 0 for others."""
    x, t = near_texts(50)
    nearest = (x @ t.T).topk(3, dim=1).indices
    for f, texts in zip(x.split(1), nearest, strict=True):
        z = scores(ECALP(), [f], t)[0]
        assert torch.equal(z.topk(3).indices, texts)
        assert (z > 0).sum() == 3


def test_copies_agree_ever_more_with_each_other() -> None:
    """Copies of one image have the label of the first."""
    x, t = near_texts(1)
    labels = torch.cat([step.z.argmax(dim=1) for step in steps(ECALP(), [x.repeat(30, 1)], t)])
    assert (labels == labels[0]).all()


def test_neighbours_decide_for_an_image_between_two_classes() -> None:
    """An image a little nearer to the second text gets the label of the images around it, which is the first."""
    t = unit(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [-0.3, -0.3, 1.0]], dtype=torch.float64))
    noise = 0.02 * torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = unit(t[0] + 0.8 * t[1] + noise[0]), unit(t[1] + noise[1])
    image = unit(t[:1] + 1.05 * t[1:2])
    assert (image @ t.T).argmax() == 1
    assert steps(ECALP(), [image], t)[0].z.argmax() == 1
    assert steps(ECALP(), [torch.cat([first, second]), image], t)[1].z.argmax() == 0


def test_out_of_reach_of_all_texts_is_zero_shot() -> None:
    x, t = near_texts(5)
    result = kedge.adapt(-x, t, "ecalp")
    assert torch.equal(result.labels, result.zero_shot.argmax(dim=1))
    assert (result.probs - result.zero_shot).abs().max() <= 1e-12


def test_same_prototypes_have_no_variance() -> None:
    """All coordinates count alike then: the nearest images are those by cosine."""
    x, t = near_texts(20)
    state = steps(ECALP(), [x], t[:1].repeat(3, 1))[0].state
    assert state is not None
    assert torch.equal(state["neighbours"].long(), (x @ x.T).topk(8, dim=1).indices)


def test_float32_is_near_float64() -> None:
    x, t = near_texts(60)
    double, single = scores(ECALP(), [x], t), scores(ECALP(), [x.float()], t.float())
    assert single.dtype == torch.float32
    assert ((single - double).abs().amax(dim=1) / double.amax(dim=1)).max() <= 1e-4


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = near_texts(20)
    whole = steps(ECALP(), [x], t)[0].z
    monkeypatch.setattr("kedge.methods.ecalp.BLOCK", 1)
    assert (steps(ECALP(), [x], t)[0].z - whole).abs().max() <= 1e-9


def test_saved_stream_continues(tmp_path: Path) -> None:
    assert continues_bit_for_bit(ECALP(), tmp_path)


def test_the_given_state_stays() -> None:
    batches, t = simulated_stream(3)
    head, method = TextHead(t, 10.0), ECALP()
    state = method.step(method.init(head), Batch(batches[0], head)).state
    assert state is not None
    before = {name: tensor.clone() for name, tensor in state.items()}
    first, again = (method.step(state, Batch(batches[1], head)) for _ in range(2))
    assert torch.equal(first.z, again.z)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_memory_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = near_texts(100)
    stream = Stream(t, "ecalp")
    stream.step(x[:50])
    monkeypatch.setenv("KEDGE_MAX_BYTES", "60000")
    with pytest.raises(kedge.InputError, match=r"a graph of 100 images and 6 classes would take .* the limit is 60 kB"):
        stream.step(x[50:])


FORGED: list[tuple[str, Any]] = [
    ("neighbours", lambda value: value + 24),
    ("neighbours", lambda value: value - 1),
    ("neighbours", lambda value: value.long()),
    ("neighbours", lambda value: value[:, :-1]),
    ("texts", lambda value: value + 5),
    ("classes", lambda value: value - 6),
    ("classes", lambda value: value[:-1]),
    ("values", lambda value: value - 1),
    ("text_weights", lambda value: value + 2),
    ("similarity", lambda value: value + 9),
    ("features", lambda value: value * 2),
    ("features", lambda value: value[:, :-1]),
    ("features", lambda value: value[:-1]),
    ("features", lambda value: value.sum()),
]


@pytest.mark.parametrize(("name", "change"), FORGED)
def test_forged_states_are_refused(name: str, change: Any) -> None:
    batches, t = simulated_stream(2)
    state = steps(ECALP(), batches, t)[-1].state
    assert state is not None
    check_state(ECALP(), state, TextHead(t))
    with pytest.raises(kedge.InputError, match=r"Start a new stream|needs unit-norm rows"):
        check_state(ECALP(), {**state, name: change(state[name])}, TextHead(t))
    with pytest.raises(kedge.InputError, match="Start a new stream"):
        check_state(ECALP(), {key: value for key, value in state.items() if key != name}, TextHead(t))


def test_contract() -> None:
    check_method(ECALP(), skip=ORDER)
