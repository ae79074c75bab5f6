"""What a person says of a batch: every form of it, and every way to get it wrong, with the whole message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kedge
from kedge import InputError, TextHead
from kedge.methods.given import NONE, known_labels, present_classes

N = 5
HEAD = TextHead(torch.eye(4), 100.0, ("cat", "dog", "crane", "crane"))  # two classes have one name
NUMBERS = "Use −1 if unknown, −2 (kedge.NONE) if the image shows none of the classes."
A_CLASS = "a class is its name or a number from 0 to 3."
EMPTY = "present is empty. Name at least one class, or leave it out: then all classes can occur."
MANY_DIGITS = "a number of more than 4,300 digits"


def test_none_is_public() -> None:
    assert kedge.NONE == NONE == -2


@pytest.mark.parametrize(
    "known",
    [
        [-1, 1, -2, -1, 3],
        np.array([-1, 1, -2, -1, 3], np.int8),
        torch.tensor([-1, 1, -2, -1, 3]).short(),
        {1: "dog", 2: NONE, 4: 3},
        {4: np.int16(3), 1: np.str_("dog"), np.int64(2): np.int64(-2), 0: -1},
    ],
    ids=str,
)
def test_forms_of_known_labels(known: Any) -> None:
    found = known_labels(known, N, HEAD)
    assert found.dtype == torch.int64
    assert found.tolist() == [-1, 1, -2, -1, 3]
    assert known_labels(known, N, HEAD, torch.tensor([1, 3])).tolist() == [-1, 1, -2, -1, 3]


def test_nothing_known() -> None:
    assert known_labels({}, N, HEAD).tolist() == [-1] * N
    assert known_labels([-1] * N, N, HEAD, torch.tensor([0])).tolist() == [-1] * N


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ([0] * 4, f"known must have one entry per image, 5; got 4. {NUMBERS}"),
        ([], f"known must have one entry per image, 5; got 0. {NUMBERS}"),
        ([0, 1, 4, 0, 9], f"known has 4 in row 2; the classes are 0 to 3. {NUMBERS}"),
        ([0, -3, 0, 0, 0], f"known has -3 in row 1; the classes are 0 to 3. {NUMBERS}"),
        ([0.0] * 5, f"known must be whole numbers; got float64 of shape (5,). {NUMBERS}"),
        (["cat"] * 5, f"known must be whole numbers; got <U3 of shape (5,). {NUMBERS}"),
        ("cat", f"known must be whole numbers; got <U3 of shape (). {NUMBERS}"),
        (torch.zeros(5, 1).long(), f"known must be whole numbers; got int64 of shape (5, 1). {NUMBERS}"),
        ([2**64] * 5, f"known must be whole numbers; got one beyond 64 bits. {NUMBERS}"),
        ({0, 1}, "known must be an array; got set. Pass a numpy array or a torch tensor."),
        ({5: 0}, "known names image 5; the images are numbered 0 to 4."),
        ({-1: 0}, "known names image -1; the images are numbered 0 to 4."),
        ({"a.jpg": 0}, "known names image 'a.jpg'; the images are numbered 0 to 4."),
        ({1.0: 0}, "known names image 1.0; the images are numbered 0 to 4."),
        ({True: 0}, "known names image True; the images are numbered 0 to 4."),
        ({10**5000: 0}, f"known names image {MANY_DIGITS}; the images are numbered 0 to 4."),
        ({0: "dg"}, "known has 'dg', which is no class; did you mean 'dog'?"),
        ({0: ""}, "known has '', which is no class; choose from cat, dog, crane, crane"),
        ({0: 4}, f"known has 4; {A_CLASS}"),
        ({0: -3}, f"known has -3; {A_CLASS}"),
        ({0: -1.0}, f"known has -1.0; {A_CLASS}"),
        ({0: None}, f"known has None; {A_CLASS}"),
        ({0: True}, f"known has True; {A_CLASS}"),
        ({0: np.array([1, 2])}, f"known has array([1, 2]); {A_CLASS}"),
        ({0: torch.tensor(1.5)}, f"known has tensor(1.5000); {A_CLASS}"),
        ({0: 10**5000}, f"known has {MANY_DIGITS}; {A_CLASS}"),
        ({3: "crane"}, "known has 'crane' for image 3, which is the name of 2 classes. Give its number: 2, 3."),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_known_labels_that_are_refused(known: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        known_labels(known, N, HEAD)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("head", "name"), [(HEAD, "'cat'"), (TextHead(torch.eye(4)), "'0'")], ids=["named", "without names"]
)
def test_a_known_class_must_be_present(head: TextHead, name: str) -> None:
    for known in ([-1, -1, 0, 1, -2], {2: 0, 3: 1}):
        with pytest.raises(InputError) as caught:
            known_labels(known, N, head, torch.tensor([1, 2]))
        assert str(caught.value) == (
            f"image 2 is known to be {name}, which is not among the classes that can occur. "
            "Add it to `present`, or correct the label."
        )


@pytest.mark.parametrize(
    ("present", "numbers"),
    [
        (["dog", "cat"], [0, 1]),
        (("dog", 0, 0, "cat"), [0, 1]),
        ({1, 0}, [0, 1]),
        pytest.param((name for name in ("cat", "dog")), [0, 1], id="generator"),
        (np.array([1, 0], np.uint8), [0, 1]),
        (np.array(["dog", "cat"]), [0, 1]),
        (torch.tensor([1, 0]).char(), [0, 1]),
        (["crane"], [2, 3]),  # a name stands for all classes that have it
        ([3], [3]),
    ],
    ids=str,
)
def test_forms_of_present_classes(present: Any, numbers: list[int]) -> None:
    found = present_classes(present, HEAD)
    assert found is not None
    assert found.dtype == torch.int64
    assert found.tolist() == numbers


def test_all_classes_are_as_none_named() -> None:
    assert present_classes(None, HEAD) is None
    assert present_classes([3, 2, 1, 0], HEAD) is None
    assert present_classes(["cat", "dog", "crane"], HEAD) is None


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ([], EMPTY),
        (torch.tensor([]).long(), EMPTY),
        ("cat", "present must be a list of class names or numbers; got 'cat'."),
        (b"cat", "present must be a list of class names or numbers; got b'cat'."),
        (3, "present must be a list of class names or numbers; got 3."),
        (np.array(3), "present must be a list of class names or numbers; got array(3)."),
        ({"cat": False}, "present must be a list of class names or numbers; got {'cat': False}."),
        (torch.ones(2), "present must be whole numbers; got float32 of shape (2,). Pass class numbers."),
        (torch.tensor([True, False]), "present must be whole numbers; got bool of shape (2,). Pass class numbers."),
        (np.array([True, False]), f"present has True; {A_CLASS}"),
        (np.array([1.0]), f"present has 1.0; {A_CLASS}"),
        (np.array([[0, 1]]), f"present has [0, 1]; {A_CLASS}"),
        ([0, 4], f"present has 4; {A_CLASS}"),
        ([-1], f"present has -1; {A_CLASS}"),
        ([None], f"present has None; {A_CLASS}"),
        ([torch.tensor([0, 1])], f"present has tensor([0, 1]); {A_CLASS}"),
        ([10**5000], f"present has {MANY_DIGITS}; {A_CLASS}"),
        (["dgo"], "present has 'dgo', which is no class; did you mean 'dog'?"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_present_classes_that_are_refused(present: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        present_classes(present, HEAD)
    assert str(caught.value) == message


def test_the_message_names_what_was_given() -> None:
    with pytest.raises(InputError, match=r"^absent has 'dg', which is no class"):
        present_classes(["dg"], HEAD, "absent")
