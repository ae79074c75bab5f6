"""Classes found: counts, evidence, order, examples."""

from __future__ import annotations

import pytest
import torch

from answer_cases import answer_of, batch, random_answer
from kedge.answers.answer import Answer
from kedge.answers.classes import FOUND, found_classes
from kedge.features.text_head import TextHead
from kedge.methods.given import NONE

NAMES = ("cat", "dog", "owl")


def three(z: list[list[float]], y: list[list[float]], known: list[int] | None = None) -> Answer:
    head = TextHead(torch.eye(3), class_names=NAMES)
    given = None if known is None else torch.tensor(known)
    return Answer(torch.eye(3)[[0] * len(z)], head, torch.tensor(y), torch.tensor(z), given)


def test_a_class_of_half_an_image_is_found_and_the_most_doubtful_is_first() -> None:
    z = [[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [1.0, 0.0, 0.0]]
    y = [[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.9, 0.1, 0.0]]
    dog, cat = found_classes(three(z, y))
    assert (cat.number, cat.name, cat.example) == (0, "cat", 2)
    assert (dog.number, dog.name, dog.example) == (1, "dog", 1)
    assert (cat.count, dog.count) == (pytest.approx(2.5), pytest.approx(0.5))
    assert dog.evidence == pytest.approx((0.1 * 0.1 + 0.4 * 0.3) / 0.5)
    z[1] = [0.61, 0.39, 0.0]
    assert [found.name for found in found_classes(three(z, y))] == ["cat"]


def test_the_label_of_an_image_is_found_however_improbable() -> None:
    """So that the list, given back as it is, forbids no label."""
    z = [[0.36, 0.32, 0.32], [0.0, 1.0, 0.0]]
    assert [(found.name, round(found.count, 2)) for found in found_classes(three(z, z))] == [
        ("cat", 0.36),
        ("dog", 1.32),
    ]
    assert [found.name for found in found_classes(three(z, z, [NONE, -1]))] == ["dog"]


def test_a_class_of_which_an_image_is_known_is_not_in_doubt() -> None:
    z = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    y = [[0.1, 0.9, 0.0], [0.0, 0.9, 0.1], [0.3, 0.2, 0.5], [0.0, 0.0, 1.0]]
    assert [found.name for found in found_classes(three(z, y))] == ["cat", "owl", "dog"]
    assert [found.name for found in found_classes(three(z, y, [0, -1, NONE, -1]))] == ["dog", "owl", "cat"]
    assert [found.name for found in found_classes(three(z, y, [0, -1, 2, -1]))] == ["dog", "cat", "owl"]


def test_an_image_of_no_class_counts_for_none_and_is_no_example() -> None:
    z = [[0.6, 0.4, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    (found,) = found_classes(three(z, z, [-1, NONE, NONE]))
    assert (found.name, found.example, found.count) == ("cat", 0, pytest.approx(0.6))


@pytest.mark.parametrize("seed", range(5))
def test_counts_and_evidence_are_sums_over_images(seed: int) -> None:
    answer = random_answer(seed)
    for found in found_classes(answer):
        shown = [i for i in range(len(answer.z)) if answer.given[i] != NONE]
        share = answer.z[shown, found.number]
        assert found.count == pytest.approx(float(share.sum()), abs=1e-4)
        assert found.count >= FOUND
        mean = float((share * answer.zero_shot[shown, found.number]).sum() / share.sum())
        assert found.evidence == pytest.approx(mean, abs=1e-5)
        assert float(answer.z[found.example, found.number]) == float(share.max())


def test_one_image_one_class_and_classes_without_names() -> None:
    x, head = batch(1, 1)
    (found,) = found_classes(answer_of(x, TextHead(head.features)))
    assert (found.number, found.name, found.count, found.evidence, found.example) == (0, "class 0", 1.0, 1.0, 0)


def test_a_class_that_cannot_occur_is_not_found() -> None:
    x, head = batch()
    present = torch.tensor([0, 3, 4])
    assert {found.number for found in found_classes(answer_of(x, head, present=present))} <= {0, 3, 4}
