"""Known labels in every method that uses them: they stay, at any setting, and they help the other images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge import EMDirichlet, Kedge, Moon, StatA, TransCLIP, ZLaP
from kedge.arrays import unit
from kedge.methods.contract import UNKNOWN, Batch, Prepares
from kedge.methods.em_dirichlet import fit_dirichlet
from kedge.methods.moon import anchor_weights
from kedge.methods.narrowing import narrowed_step
from kedge.methods.registry import build, list_methods

CHEAP = {"em-dirichlet": {"fit_steps": 50}}
USERS = [build(name, CHEAP.get(name)) for name in list_methods() if build(name).traits.known]
FORMS: list[Any] = [
    *USERS,
    *(StatA(compiled=False), StatA(beta="soft"), StatA(graph="dense", laplacian=0.1), StatA.literal(iterations=20)),
    *(TransCLIP(start="confident"), TransCLIP(released_variance=True), EMDirichlet.released(fit_steps=50)),
    *(Kedge(compiled=False), Kedge(guard=False), build("calibrated:stata"), build("calibrated:zlap")),
]
EXTREMES: list[Any] = [
    *(StatA(temperature=1e-3), StatA(temperature=1e-3, compiled=False), StatA(temperature=1e-3, graph="dense")),
    *(StatA(laplacian=1e6), StatA(laplacian=1e6, compiled=False), StatA(alpha=0.0, temperature=1e-3, unit_means=False)),
    *(TransCLIP(temperature=1e-3), TransCLIP(laplacian=1e6), TransCLIP(temperature=1e-3, start="confident")),
    *(Moon(temperature=1e-3), Moon(laplacian=1e6), Moon(temperature=1e-3, kappa_max=1e6)),
    *(ZLaP(damping=0.9999), ZLaP(damping=0.0), ZLaP(power=1e3), EMDirichlet(partition=1e6, fit_steps=50)),
    *(Kedge(temperature=1e-3), Kedge(laplacian=1e6), Kedge(temperature=1e-3, compiled=False, guard=False)),
]


def ids(method: Any) -> str:
    changed = {name: value for name, value in vars(method).items() if value != getattr(type(method), name, None)}
    return f"{method.name} {changed}" if changed else str(method.name)


def batch_of(n: int, k: int, known: dict[int, int], dtype: torch.dtype = torch.float32, **more: Any) -> Batch:
    x, t = simulated(n, k, **more)
    labels = torch.full((n,), UNKNOWN)
    for image, label in known.items():
        labels[image] = label
    return Batch(x.to(dtype), kedge.TextHead(t.to(dtype)), known=labels)


def solved(method: Any, batch: Batch) -> Tensor:
    z: Tensor = method.step(method.init(batch.head), batch).z
    return z


def one_hot(k: int, *classes: int) -> Tensor:
    return torch.eye(k)[list(classes)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("method", FORMS + EXTREMES, ids=ids)
def test_a_known_label_is_certain(method: Any, dtype: torch.dtype) -> None:
    """However wrong it looks, at any setting; also if it is of a class that nobody else has."""
    batch = batch_of(40, 7, {}, dtype, present=6)
    worst = batch.log_zero_shot[:6].argmin(dim=1).tolist()
    known = dict(enumerate([*worst, 6]))
    z = solved(method, batch_of(40, 7, known, dtype, present=6))
    assert torch.allclose(z[:7].float(), one_hot(7, *worst, 6), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", FORMS + EXTREMES, ids=ids)
def test_a_known_label_is_certain_among_copies(method: Any) -> None:
    """Forty copies of an image: all are linked to few of them, so that a strong graph pulls hard."""
    batch = batch_of(40, 5, {})
    copies = replace(batch, features=batch.features[:1].repeat(40, 1))
    worst = int(copies.log_zero_shot[0].argmin())
    known = torch.where(torch.arange(40) < 4, worst, UNKNOWN)
    z = solved(method, replace(copies, known=known))
    assert torch.allclose(z[:4], one_hot(5, *[worst] * 4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", FORMS, ids=ids)
def test_all_images_or_the_only_one_known(method: Any) -> None:
    for known in ({0: 3}, {0: 3, 1: 1, 2: 3}):
        batch = batch_of(len(known), 5, known)
        assert torch.allclose(solved(method, batch), one_hot(5, *known.values()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", FORMS, ids=ids)
def test_known_labels_help_the_other_images(method: Any) -> None:
    """Images lie around the centres of ten classes; texts lie far off, so that zero-shot misnames whole classes."""
    right = {True: 0, False: 0}
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        centres, offsets = (unit(torch.randn(10, 32, generator=random)) for _ in range(2))
        labels = torch.arange(10).repeat(10)
        x = unit(centres[labels] + 0.6 * unit(torch.randn(100, 32, generator=random)))
        head = kedge.TextHead(unit(centres + 2 * offsets), 10.0)
        known = torch.where(torch.arange(100) < 20, labels, UNKNOWN)  # two images of each class
        for given in (True, False):
            z = solved(method, Batch(x, head, known=known if given else None))
            right[given] += int((z.argmax(dim=1) == labels)[20:].sum())
    assert right[True] >= right[False] + 0.02 * 400


@pytest.mark.parametrize("method", USERS, ids=ids)
def test_tables_of_zero_shot_without_the_labels_do_no_harm(method: Any) -> None:
    """What was prepared for many batches knows nothing of the labels; `narrowed_step` sees to it."""
    batch = batch_of(30, 5, {0: 4, 7: 2}, torch.float64)
    plain = replace(batch, known=None)
    tables = {"log_zero_shot": plain.log_zero_shot, **(method.prepare(plain) if isinstance(method, Prepares) else {})}
    state = method.init(batch.head)
    prepared = narrowed_step(method, state, replace(batch, tables=tables), None)
    assert (prepared.z - narrowed_step(method, state, batch, None).z).abs().max() <= 1e-9
    assert (prepared.z - solved(method, batch)).abs().max() <= 1e-9


def test_zero_shot_of_some_rows() -> None:
    batch = batch_of(10, 4, {2: 3, 7: 0})
    whole = batch.log_zero_shot
    assert torch.equal(batch.log_zero_shot_of(slice(1, 8)), whole[1:8])
    assert torch.equal(replace(batch, tables={"log_zero_shot": whole}).log_zero_shot_of(slice(5, 9)), whole[5:9])
    assert batch.labelled[0].tolist() == [2, 7]
    assert batch.labelled[1].tolist() == [3, 0]
    assert [len(part) for part in replace(batch, known=None).labelled] == [0, 0]


def test_compiled_stata_is_the_torch_form() -> None:
    batch = batch_of(64, 9, {0: 8, 1: 3, 2: 3}, noise=0.8)
    assert (solved(StatA(), batch) - solved(StatA(compiled=False), batch)).abs().max() <= 1e-4


def test_moon_takes_a_known_class_for_present() -> None:
    """λ_k is larger with a known image, so the anchor is weaker."""
    batch = batch_of(20, 5, {0: 4}, present=3)
    plain = replace(batch, known=None)
    assert anchor_weights(batch.log_zero_shot.exp())[4] < anchor_weights(plain.log_zero_shot.exp())[4]


def test_transclip_starts_from_images_that_can_be_of_the_class() -> None:
    """Known images of other classes are left out; a class for which none are left starts at its prototype."""
    batch = batch_of(6, 3, {0: 0, 1: 0, 2: 1, 3: 1}, torch.float64)
    x, t = batch.features, batch.head.features
    means = TransCLIP()._confident_means(batch)
    assert torch.allclose(means[0], unit(x[[0, 1, 4, 5]].sum(dim=0)))
    assert torch.allclose(means[2], unit(x[[4, 5]].sum(dim=0)))
    everyone = replace(batch, known=torch.tensor([0, 0, 1, 1, 1, 0]))
    assert torch.equal(TransCLIP()._confident_means(everyone)[2], t[2])


def test_em_dirichlet_matches_a_cluster_to_the_class_of_its_known_images() -> None:
    """Two clusters with their names interchanged: the known images decide both names."""
    random = torch.Generator().manual_seed(0)
    t = torch.eye(4, 8, dtype=torch.float64)
    labels = torch.arange(20) % 2
    x = unit(t[labels] + 0.1 * torch.randn(20, 8, generator=random, dtype=torch.float64))
    known = torch.full((20,), UNKNOWN)
    known[:8] = 1 - labels[:8]
    for method in (EMDirichlet(partition=0.5, fit_steps=200), EMDirichlet.released(fit_steps=200)):
        z = method.step(None, Batch(x, kedge.TextHead(t), known=known)).z
        assert torch.equal(z[:8].argmax(dim=1), known[:8])


def test_em_dirichlet_fits_known_images_to_their_class_from_the_start() -> None:
    batch = batch_of(6, 3, {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}, torch.float64)
    method = EMDirichlet(fit_steps=50)
    first = next(iter(method.iterate(batch)))
    means = method.log_s(batch).view(3, 2, 3).mean(dim=1)
    assert torch.allclose(first.alpha, torch.from_numpy(fit_dirichlet(np.ones((3, 3)), means.numpy(), 50, 1e-11)))


def test_zlap_knows_a_class_whose_text_nobody_links_to() -> None:
    batch = batch_of(30, 12, {}, torch.float64, present=3)
    far = int(batch.log_zero_shot.sum(dim=0).argmin())
    method = ZLaP(neighbours=2)
    assert method.scores(batch)[:, far].max() == 0
    scores = method.scores(replace(batch, known=torch.where(torch.arange(30) == 0, far, UNKNOWN)))
    assert (scores[:, far] > 0).sum() > 1  # its neighbours have heard of it


def test_zlap_source_is_as_strong_as_what_the_texts_give_the_image() -> None:
    """Without links to other images: the known image has twice the sum of scores that it had, to first order in γ."""
    batch = batch_of(5, 4, {}, torch.float64)
    known = replace(batch, known=torch.tensor([3, -1, -1, -1, -1]))
    method = ZLaP(neighbours=1, damping=1e-4)
    assert method.scores(known)[0].sum() == pytest.approx(2 * float(method.scores(batch)[0].sum()), rel=1e-3)
