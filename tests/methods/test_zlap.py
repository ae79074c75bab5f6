"""ZLaP: against outputs of the authors' program, its solver against a dense one, and its limits.

Simulated features unless a test takes `shared` or a recording.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge.arrays import unit
from kedge.methods.zlap import ZLaP, conjugate_gradients
from recordings import column_distance, distances, entries, inputs, recording

TOLERANCE = 5e-6
# Of sun397, one image is as near to its fifth text as to its sixth, to 2e-7, and one to its fifth image as to its
# sixth, to 3e-8: float32 takes either, by the processor. The recording took the sixth text and the fifth image.
TIES = ("sun397_val_vitb32", "case_d")
BETWEEN_TEXTS, BETWEEN_IMAGES = 108, 1719


def batch(x: Tensor, t: Tensor) -> kedge.Batch:
    return kedge.Batch(x, kedge.TextHead(t))


def dense(x: Tensor, t: Tensor, damping: float = 0.3) -> Tensor:
    """The scores by the equations, with all texts as nodes and a direct solve of the dense system."""
    n, k = len(x), len(t)
    w = torch.zeros(k + n, k + n, dtype=x.dtype)
    value, index = (x @ x.T).topk(min(5, n), dim=1)
    w[k:, k:] = torch.zeros(n, n, dtype=x.dtype).scatter(1, index, value.clamp_min(0)).fill_diagonal_(0)
    value, index = (x @ t.T).topk(min(5, k), dim=1)
    w[k:, :k] = torch.zeros(n, k, dtype=x.dtype).scatter(1, index, value.clamp_min(0) ** 5)
    w = w + w.T
    degree = w.sum(dim=1)
    scale = torch.where(degree > 0, degree.rsqrt(), 0)
    s = scale[:, None] * w * scale
    e = torch.eye(k + n, dtype=x.dtype)
    return torch.linalg.solve(e - damping * s, e[:, :k])[k:]


@pytest.mark.parametrize(("name", "case", "entry"), list(entries(r"case_\w/zlap/pred")))
def test_recorded_output(name: str, case: str, entry: str) -> None:
    x, t = (torch.from_numpy(a) for a in inputs(name, case))
    if (name, case) == TIES:
        off = distances(name, case, entry, ZLaP().scores(batch(x, t)).numpy())
        assert TOLERANCE < off.max() < 1e-3
        given, x = x, x.clone()
        for image, others, taken, left in ((BETWEEN_TEXTS, t, 5, 4), (BETWEEN_IMAGES, given, 4, 5)):
            best, nearest = (given[image].double() @ others.double().T).topk(6)
            assert best[4] - best[5] < 2e-7
            x[image] += 1e-6 * unit(others[nearest[taken]] - others[nearest[left]])  # what follows is the recording
    scores = ZLaP().scores(batch(x, t))
    assert distances(name, case, entry, scores.numpy()).max() <= TOLERANCE
    assert column_distance(name, case, entry, scores.numpy()) <= 1e-4  # of some thousand images
    pred = torch.from_numpy(recording(name)[f"{case}/{entry}/pred"]).long()
    assert torch.equal(scores.argmax(dim=1), pred)
    assert torch.equal(ZLaP().step(None, batch(x, t)).z.argmax(dim=1), pred)


def test_every_recording_is_compared(shared: object) -> None:
    assert len(list(entries(r"case_\w/zlap/pred"))) == 4 * 4


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 9), (3, 4), (40, 7), (12, 60)])
@pytest.mark.parametrize("damping", [0.3, 0.9])
def test_dense_solve(n: int, k: int, damping: float) -> None:
    x, t = simulated(n, k, noise=1.0)
    method = ZLaP(damping=damping, tol=1e-12, iterations=500)
    assert (method.scores(batch(x, t)) - dense(x, t, damping)).abs().max() <= 1e-11
    default = ZLaP(damping=damping, iterations=500).scores(batch(x, t))
    assert (default - dense(x, t, damping)).abs().max() <= 1e-5


def test_conjugate_gradients_against_a_direct_solve() -> None:
    random = torch.Generator().manual_seed(0)
    root = torch.randn(30, 30, generator=random, dtype=torch.float64)
    a = root @ root.T / 30 + torch.eye(30, dtype=torch.float64)
    b = torch.randn(30, 8, generator=random, dtype=torch.float64)
    b[:, 3] = 0  # solved from the beginning
    x, info = conjugate_gradients(lambda p: a @ p, b, 1e-12, 200)
    assert info["converged"]
    assert (x - torch.linalg.solve(a, b)).abs().max() <= 1e-11
    assert torch.equal(x[:, 3], torch.zeros(30, dtype=torch.float64))
    # In exact arithmetic it ends after as many steps as A has different eigenvalues.
    two = torch.diag(torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64))
    assert (
        conjugate_gradients(lambda p: two @ p, torch.eye(4, dtype=torch.float64) + 1, 1e-12, 50)[1]["iterations"] <= 2
    )


def test_too_few_steps_are_said_to_be() -> None:
    x, t = simulated(40, 7, noise=1.0)
    info = ZLaP(iterations=2).step(None, batch(x, t)).info
    assert info["iterations"] == 2
    assert not info["converged"]
    assert ZLaP().step(None, batch(x, t)).info["converged"]


def test_z_is_the_scores_divided_by_their_sum() -> None:
    x, t = simulated(40, 30, noise=1.0)
    scores, z = ZLaP(tol=1e-12).scores(batch(x, t)), ZLaP(tol=1e-12).step(None, batch(x, t)).z
    torch.testing.assert_close(z, scores / scores.sum(dim=1, keepdim=True), atol=1e-9, rtol=0)
    assert torch.equal(z.argmax(dim=1), scores.argmax(dim=1))


def test_texts_that_nobody_links_to_get_nothing() -> None:
    x, t = simulated(6, 100, present=2)
    linked = torch.zeros(100, dtype=torch.bool)
    linked[(x @ t.T).topk(5, dim=1).indices.flatten()] = True
    scores = ZLaP().scores(batch(x, t))
    assert (scores[:, ~linked] == 0).all()
    assert (scores[:, linked].amax(dim=0) > 0).all()
    assert linked.sum() < 30


def test_without_spreading_or_links_it_is_zero_shot() -> None:
    x, t = simulated(40, 7, noise=1.0)
    zero_shot = (100 * x @ t.T).softmax(dim=1)
    step = ZLaP(damping=0.0).step(None, batch(x, t))
    assert step.info["isolated"] == 40
    torch.testing.assert_close(step.z, zero_shot)
    # Images that point away from every text and from each other have no links.
    texts = torch.tensor([[1.0, 0.0, 0.1], [1.0, 0.1, 0.0]], dtype=torch.float64)
    images = torch.tensor([[-1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    step = ZLaP().step(None, batch(unit(images), unit(texts)))
    assert step.info["isolated"] == 2
    torch.testing.assert_close(step.z[:2], (100 * unit(images) @ unit(texts).T).softmax(dim=1)[:2])


def test_more_images_link_more() -> None:
    """`neighbours` counts the image itself: 1 leaves only texts, one each."""
    x, t = simulated(20, 8, noise=1.0)
    alone = ZLaP(neighbours=1, damping=1e-3).scores(batch(x, t))
    assert ((alone > 1e-5).sum(dim=1) <= 1).all()
    assert (ZLaP(damping=1e-3).scores(batch(x, t)) > 1e-7).sum() > (alone > 1e-7).sum()


def test_float32_agrees_with_float64(shared: object) -> None:
    x, t = inputs("dtd_test_vitb32", "case_c")
    narrow = kedge.adapt(x, t, method="zlap").probs
    assert narrow.dtype == np.float32
    wide = kedge.adapt(x.astype(np.float64), t.astype(np.float64), method="zlap").probs
    assert np.abs(narrow - wide).max() <= 1e-5


def test_damping_of_one_is_refused() -> None:
    with pytest.raises(kedge.SettingError, match=r"damping must be at most 0\.9999"):
        ZLaP(damping=1.0)
