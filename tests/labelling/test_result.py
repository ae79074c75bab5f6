"""What follows from a result, computed when it is asked for; and images that are rejected."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge.answers import classes, review, strangers
from kedge.answers.answer import Answer
from toy_methods import Running, Told

N, K = 12, 4
X, T = simulated(N, K)


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Scores of the images: 0.9 for three of them, 0.1 for the others; a person's word is not asked."""
    scores = torch.full((N,), 0.1, dtype=X.dtype).index_fill(0, torch.tensor([2, 5, 7]), 0.9)
    for place in ("result", "solving"):
        monkeypatch.setattr(f"kedge.labelling.{place}.none_scores", lambda answer: scores[: len(answer.z)])
    return scores


def test_properties_are_those_of_the_room_answers() -> None:
    result = kedge.adapt(X, T, "stata", known={0: 1, 3: kedge.NONE}, present=[0, 1, 3])
    answer = result.answer
    assert torch.equal(result.review, review.review_order(answer))
    assert not {0, 3} & set(result.review.tolist())
    assert torch.equal(result.none, strangers.none_scores(answer))
    assert result.classes == classes.found_classes(answer)
    assert sum(found.count for found in result.classes) < N - 0.5  # the image of no class does not count
    assert result.verdict.level in ("good", "weak", "do not use")
    assert result.verdict is result.verdict  # computed once
    assert answer.present is not None
    assert answer.present.tolist() == [0, 1, 3]


@pytest.mark.parametrize("method", ["kedge", "em-dirichlet", "oga", "zero-shot"])
def test_every_method_and_kind_of_array(method: str) -> None:
    for x in (X.numpy(), X.numpy()[:1], X.float()):
        result: Any = kedge.adapt(x, T, method)
        for found in (result.none, result.review, result.runner_up, result.margin):
            assert type(found) is type(result.probs)
            assert len(found) == len(x)
        assert 0 <= result.none.min() <= result.none.max() <= 1
        assert result.verdict.sentence


def test_nothing_is_computed_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("none_scores", "found_classes", "review_order", "verdict"):
        monkeypatch.setattr(f"kedge.labelling.result.{name}", lambda *_: pytest.fail("computed"))
    result = kedge.adapt(X, T, known={1: 2}, method="stata")
    features = kedge.FeatureSet.from_arrays(X, T)
    assert "12 images" in repr(result)
    assert "12 images" in repr(kedge.Predictions(features, result))
    assert kedge.Predictions(features, result).summary()["known"] == 1


def test_runner_up_and_margin() -> None:
    result = kedge.adapt(X, T, Told(), known={1: 2})
    best = result.probs.sort(dim=1, descending=True)
    assert result.runner_up[0] == best.indices[0, 1]
    assert result.margin[0] == best.values[0, 0] - best.values[0, 1]
    assert (result.runner_up[1], result.margin[1]) == (-1, 1)  # no other class has any probability
    for method in ("kedge", "stata"):  # these leave other classes 1e-30
        assert kedge.adapt(X, T, method, known={1: 2, 4: kedge.NONE}).runner_up[[1, 4]].tolist().count(-1) == 1
    one = kedge.adapt(X, T[:1], "zero-shot")
    assert set(one.runner_up.tolist()) == {-1}
    assert set(one.margin.tolist()) == {1}


def test_a_result_can_be_pickled() -> None:
    result = kedge.adapt(X.numpy(), T.numpy(), "stata", present=[0, 1])
    again = pickle.loads(pickle.dumps(result))
    assert (again.probs == result.probs).all()
    assert again.verdict == result.verdict


class TestReject:
    def test_those_above_the_threshold_are_taken_out_and_the_rest_solved_again(self, strange: Tensor) -> None:
        first, found = kedge.adapt(X, T, "stata"), kedge.adapt(X, T, "stata", reject=0.5)
        out, kept = [2, 5, 7], [0, 1, 3, 4, 6, 8, 9, 10, 11]
        assert found.labels[out].tolist() == [-1, -1, -1]
        assert torch.equal(found.probs[out], first.probs[out])  # their first probabilities
        assert torch.allclose(found.probs[kept], kedge.adapt(X[kept], T, "stata").probs)
        assert found.changed == int((found.labels != found.zero_shot.argmax(dim=1)).sum()) >= 3
        assert sum(each.count for each in found.classes) <= 9 + 1e-6  # of the images that were kept
        assert set(out) < set(found.review.tolist())  # a person may still look

    def test_the_scores_are_those_that_decided(self, strange: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        found = kedge.adapt(X, T, "stata", reject=0.5)
        monkeypatch.setattr("kedge.labelling.result.none_scores", lambda _: pytest.fail("computed again"))
        assert torch.equal(found.none, strange)
        assert found.verdict.numbers["none"] == 0  # of the images that were kept
        assert found.verdict.numbers["rejected"] == 3 / 12

    def test_what_a_person_says_stands(self, strange: Tensor) -> None:
        found = kedge.adapt(X, T, "stata", reject=0.5, known={2: 3, 0: kedge.NONE})
        assert found.labels[[0, 2, 5, 7]].tolist() == [-1, 3, -1, -1]

    def test_nobody_above_the_threshold(self, strange: Tensor) -> None:
        found = kedge.adapt(X, T, "stata", reject=1.0)
        assert torch.equal(found.probs, kedge.adapt(X, T, "stata").probs)
        assert (found.labels >= 0).all()

    def test_everybody_above_the_threshold(self, strange: Tensor) -> None:
        found = kedge.adapt(X, T, Running(), reject=0.05)
        assert set(found.labels.tolist()) == {-1}
        assert torch.equal(found.probs, kedge.adapt(X, T, Running()).probs)
        assert found.classes == ()
        assert found.verdict.level == "do not use"  # not "every label is known"

    def test_on_a_stream_they_do_not_enter_the_memory(self, strange: Tensor) -> None:
        stream, other = kedge.Stream(T, Running()), kedge.Stream(T, Running())
        stream.step(X, reject=0.5)
        other.step(X[strange < 0.5])
        assert stream.state is not None
        assert other.state is not None
        assert torch.allclose(stream.state["prior"], other.state["prior"])
        assert stream.steps == 1

    @pytest.mark.parametrize("reject", [0, 1.01, -1, float("nan"), True, "much"])
    def test_refusals(self, reject: Any) -> None:
        for attempt in (
            lambda: kedge.adapt(X, T, reject=reject),
            lambda: kedge.Stream(T).step(X, reject=reject),
            lambda: kedge.classify([np.zeros((2, 2, 3), np.uint8)], ["a"], reject=reject),
        ):
            with pytest.raises(kedge.SettingError, match="reject must be"):
                attempt()


def test_an_answer_has_what_was_given() -> None:
    answer = kedge.adapt(X, T, Told(), known={1: 2}).answer
    assert isinstance(answer, Answer)
    assert answer.known is not None
    assert answer.known.tolist() == [-1, 2] + [-1] * (N - 2)
    assert torch.equal(answer.features, X)
