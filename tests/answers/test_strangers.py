"""The score `none`: high for strangers, low without them, certain where a person knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from answer_cases import answer_of, batch, random_answer
from kedge.answers.strangers import THRESHOLD, none_scores
from kedge.arrays import unit
from kedge.features.feature_set import FeatureSet
from kedge.features.text_head import TextHead
from kedge.methods.contract import UNKNOWN
from kedge.methods.given import NONE


def test_strangers_have_the_highest_scores() -> None:
    none = none_scores(answer_of(*batch(80, strangers=20)))
    assert none[80:].min() > none[:80].max()
    assert (none[80:] > THRESHOLD).float().mean() > 0.5


@pytest.mark.parametrize("n", [2, 5, 20, 500])
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_without_strangers_few_are_above_the_threshold(n: int, noise: float) -> None:
    none = none_scores(answer_of(*batch(n, noise=noise)))
    assert (none > THRESHOLD).float().mean() <= 0.05


def test_one_image_is_judged_by_how_undecided_zero_shot_is() -> None:
    t = torch.eye(3)
    images = unit(torch.tensor([[1.0, 0, 0], [1.0, 0.8, 0], [1.0, 1.0, 0.9], [1.0, 1.0, 1.0]]))
    scores = [float(none_scores(answer_of(x[None], TextHead(t, 10.0)))) for x in images]
    assert scores == sorted(scores)
    assert scores[0] < 0.01 < THRESHOLD < scores[-1]


@pytest.mark.parametrize("n", [1, 4])
def test_one_class(n: int) -> None:
    none = none_scores(answer_of(*batch(n, 1)))
    assert none.shape == (n,)
    assert (none < THRESHOLD).all()


@pytest.mark.parametrize("seed", range(5))
def test_it_is_between_0_and_1_and_known_labels_are_certain(seed: int) -> None:
    answer = random_answer(seed)
    none = none_scores(answer)
    assert ((none >= 0) & (none <= 1)).all()
    assert (none[answer.given >= 0] == 0).all()
    assert (none[answer.given == NONE] == 1).all()


def test_equal_images_are_no_strangers_to_each_other() -> None:
    x, head = batch(1)
    none = none_scores(answer_of(x.repeat(9, 1), head))
    assert none.isfinite().all()
    assert (none < THRESHOLD).all()


def test_images_that_a_person_took_out_have_no_part_in_it() -> None:
    x, head = batch(40, strangers=10)
    known = torch.full((50,), UNKNOWN)
    known[40:] = NONE
    torch.testing.assert_close(none_scores(answer_of(x, head, known=known))[:40], none_scores(answer_of(x[:40], head)))
    assert (none_scores(answer_of(x, head, known=torch.full((50,), NONE))) == 1).all()


def test_classes_that_cannot_occur_have_no_part_in_it() -> None:
    x, head = batch(40)
    present = torch.tensor([0, 2, 5])
    narrow = none_scores(answer_of(x, head.select(present)))
    torch.testing.assert_close(none_scores(answer_of(x, head, present=present)), narrow)
    assert not torch.allclose(none_scores(answer_of(x, head)), narrow, atol=1e-2)


def test_the_order_of_the_images_does_not_matter() -> None:
    x, head = batch(40, strangers=10)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(none_scores(answer_of(x[order], head)), none_scores(answer_of(x, head))[order])


def test_textures_among_photographs(shared: Path) -> None:
    cifar, dtd = (
        FeatureSet.from_npz(shared / "features" / f"{name}.npz", normalize=True)
        for name in ("cifar10_500_vitb32", "dtd_test_vitb32")
    )
    photographs, textures = (unit(features.image_features.float()) for features in (cifar, dtd))
    head = cifar.head.like(photographs)
    chosen = torch.from_numpy(np.random.default_rng(5).permutation(len(textures))[:250])
    none = none_scores(answer_of(torch.cat([photographs, textures[chosen]]), head))
    assert (none[500:, None] > none[:500]).float().mean() > 0.95  # AUROC
    assert (none_scores(answer_of(photographs, head)) > THRESHOLD).float().mean() < 0.05
