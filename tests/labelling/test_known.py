"""Labels that a person gave: what is accepted, who gets it, and who refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kedge
from cases import simulated
from kedge import InputError
from toy_methods import Bare, Plain, Tempered, Told

N, K = 6, 4
X, T = simulated(N, K)
KNOWN = [3, -1, 0, -2, -1, 1]


@pytest.mark.parametrize(
    "known",
    [KNOWN, tuple(KNOWN), np.array(KNOWN), np.array(KNOWN, np.int8), torch.tensor(KNOWN), torch.tensor(KNOWN).short()],
    ids=lambda known: f"{type(known).__name__} {getattr(known, 'dtype', '')}",
)
def test_known_labels_reach_the_method(known: Any) -> None:
    for found in (
        kedge.adapt(X, T, Told(), known=known),
        kedge.Stream(method=Told(), text_features=T).step(X, known=known),
        kedge.adapt(X, T, Tempered(Told()), known=known),  # through a wrapper, which has the trait of its inner method
    ):
        assert found.labels[[0, 2, 5]].tolist() == [3, 0, 1]
        assert found.labels[3] == -1  # none of the classes
        plain = kedge.adapt(X, T, Plain())
        assert torch.allclose(found.probs[[1, 3, 4]], plain.probs[[1, 3, 4]])
        assert torch.equal(found.zero_shot, plain.zero_shot)  # the encoder's own


def test_known_labels_by_number_or_name() -> None:
    head = kedge.TextHead.from_arrays(T, 100.0, ["cat", "dog", "polar bear", "fox"])
    expected = kedge.adapt(X, head, Told(), known=KNOWN)
    found = kedge.adapt(X, head, Told(), known={0: "fox", 2: 0, 3: kedge.NONE, 4: -1, 5: "dog"})
    assert torch.equal(found.probs, expected.probs)
    assert torch.equal(found.labels, expected.labels)
    assert kedge.adapt(X, head, Told(), known={1: "Polar_Bear"}).labels[1] == 2  # in another spelling
    for known, message in [
        ({6: "cat"}, "known names image 6; the images are numbered 0 to 5"),
        ({0: "wolf"}, "known has 'wolf', which is no class; choose from cat, dog, polar bear, fox"),
        ({0: "foxx"}, "known has 'foxx', which is no class; did you mean 'fox'"),
    ]:
        with pytest.raises(InputError, match=message):
            kedge.adapt(X, head, Told(), known=known)


@pytest.mark.parametrize("method", ["stata", "oga", "zero-shot", "zlap"])
def test_images_of_no_class_are_left_out_by_every_method(method: str) -> None:
    """The others get the labels they would get without them."""
    known = torch.full((N,), -1).index_fill(0, torch.tensor([1, 4]), kedge.NONE)
    found, others = kedge.adapt(X, T, method, known=known), [0, 2, 3, 5]
    alone = kedge.adapt(X[others], T, method)
    assert torch.allclose(found.probs[others], alone.probs)
    assert found.labels[[1, 4]].tolist() == [-1, -1]
    assert torch.equal(found.labels[others], alone.labels)
    assert found.info["effective_classes"] == pytest.approx(alone.info["effective_classes"])
    nothing = kedge.adapt(X, T, method, known=[kedge.NONE] * N)
    assert set(nothing.labels.tolist()) == {-1}
    assert nothing.changed == N


def test_a_method_without_the_trait_refuses() -> None:
    message = r"^method 'tda' does not use known labels\. Leave `known` out, or choose one that does: see `kedge ls met"
    with pytest.raises(InputError, match=message):
        kedge.adapt(X, T, "tda", known=KNOWN)
    stream = kedge.Stream(method="tda", text_features=T)
    with pytest.raises(InputError, match=message):
        stream.step(X, known=KNOWN)
    assert stream.steps == 0
    with pytest.raises(InputError, match="method 'bare' does not use known labels"):
        kedge.adapt(X, T, Bare(Told()), known=KNOWN)


@pytest.mark.parametrize("method", ["zero-shot", "stata", "oga", Told()])
def test_all_unknown_is_like_none(method: Any) -> None:
    unknown = kedge.adapt(X, T, method, known=[-1] * N)
    assert torch.equal(unknown.probs, kedge.adapt(X, T, method).probs)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ([0, 1, 2, 3, 4, 0], "known has 4 in row 4; the classes are 0 to 3"),
        ([0, -3, 0, 0, 0, 9], "known has -3 in row 1; the classes are 0 to 3"),
        (np.full(N, 2**63, np.uint64), "known must be whole numbers; got one beyond 64 bits"),
        ([2**64] * N, "known must be whole numbers; got one beyond 64 bits"),
        ([0] * (N - 1), "one entry per image, 6; got 5"),
        ([[0], [0, 1]], "got lists of different lengths"),
        ([[0] * N], r"whole numbers; got int64 of shape \(1, 6\)"),
        (3, r"whole numbers; got int64 of shape \(\)"),
        ([0.0] * N, "known must be whole numbers; got float64"),
        (torch.zeros(N), "known must be whole numbers; got float32"),
        ([True] * N, "known must be whole numbers; got bool"),
        ([None] * N, "known must be whole numbers; got object"),
        (["a"] * N, "known must be whole numbers; got <U1"),
    ],
    ids=str,
)
def test_what_is_refused(known: Any, message: str) -> None:
    for method in (Told(), "stata"):
        with pytest.raises(InputError, match=message):
            kedge.adapt(X, T, method, known=known)
