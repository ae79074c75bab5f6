"""The order of review: one typical image per class, then the least probable labels."""

from __future__ import annotations

import pytest
import torch

from answer_cases import answer_of, batch, random_answer
from kedge.answers.answer import Answer
from kedge.answers.classes import counts_and_evidence
from kedge.answers.review import review_order
from kedge.methods.contract import UNKNOWN
from kedge.methods.given import NONE


def plain(answer: Answer) -> list[int]:
    """The same, class by class and image by image."""
    labels, known = answer.labels.tolist(), answer.given.tolist()
    sure = answer.z.amax(dim=1).tolist()
    evidence = counts_and_evidence(answer)[1].tolist()
    free = sorted((i for i in range(len(labels)) if known[i] == UNKNOWN), key=lambda i: sure[i])
    first = []
    for k in range(answer.head.k):
        images = [i for i in free if labels[i] == k]
        if images and k not in known:
            first.append((evidence[k], k, max(images, key=lambda i: answer.z[i, k] * answer.zero_shot[i, k])))
    asked = [image for _, _, image in sorted(first)]
    return asked + [i for i in free if i not in asked]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("known", [True, False])
def test_it_is_the_plain_form(seed: int, known: bool) -> None:
    answer = random_answer(seed, known=known)
    assert review_order(answer).tolist() == plain(answer)


def test_every_image_without_a_known_label_is_listed_once() -> None:
    answer = random_answer(3)
    assert sorted(review_order(answer).tolist()) == answer.unknown.nonzero().squeeze(1).tolist()


def test_nothing_is_asked_twice() -> None:
    x, head = batch(30, 3)
    answer = answer_of(x, head)
    first = int(review_order(answer)[0])
    known = torch.full((30,), UNKNOWN)
    known[first] = answer.labels[first]
    again = review_order(answer_of(x, head, known=known)).tolist()
    assert first not in again
    assert answer.labels[again[:2]].tolist() == answer.labels[review_order(answer)[1:3]].tolist()


def test_a_single_image_a_single_class_and_nothing_left() -> None:
    x, head = batch(5, 1)
    assert review_order(answer_of(x[:1], head)).tolist() == [0]
    assert sorted(review_order(answer_of(x, head)).tolist()) == [0, 1, 2, 3, 4]
    for label in (0, NONE):
        assert review_order(answer_of(x, head, known=torch.full((5,), label))).tolist() == []


def test_only_classes_that_can_occur_are_asked_for() -> None:
    x, head = batch()
    answer = answer_of(x, head, present=torch.tensor([1, 2]))
    assert sorted(answer.labels[review_order(answer)[:2]].tolist()) == [1, 2]
