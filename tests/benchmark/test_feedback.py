"""What a method is told in a benchmark: which labels and classes are revealed, to whom, and what is still scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kedge import Batch, FeatureSet, Step, TextHead
from kedge.answers.answer import Answer
from kedge.answers.review import review_order
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.feedback import Feedback
from kedge.benchmark.plan import Plan, as_labels, hash_labels
from kedge.errors import InputError, SettingError
from kedge.features.simulate import simulate
from kedge.methods.contract import Method, State, Traits
from kedge.methods.registry import build, list_methods
from toy_methods import Plain, Running, Told

N = 4  # known labels per batch
EPISODES = [[range(20), range(30, 42)], [range(50, 75)]]  # a stream of two batches, then one batch


class Recorder:
    """Another method, with everything it was shown and everything it said."""

    __dataclass_fields__: ClassVar[dict[str, Any]] = {}  # a dataclass of no fields, which can remember

    def __init__(self, method: Method) -> None:
        self.method, self.name, self.traits = method, method.name, method.traits
        self.batches: list[Batch] = []
        self.said: list[Tensor] = []

    def init(self, head: TextHead) -> State | None:
        return self.method.init(head)

    def step(self, state: State | None, batch: Batch) -> Step:
        step = self.method.step(state, batch)
        self.batches.append(batch)
        self.said.append(step.z)
        return step


class Visual(nn.Module):
    """An encoder of images that are features already."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(self.norm(images))


def with_views() -> FeatureSet:
    features = simulate(80, 6, 16, seed=3)
    return replace(features, views=features.image_features[:, None].repeat(1, 3, 1))


def plan_of(labels: Any, episodes: Any = EPISODES) -> Plan:
    batches = [[np.array(batch) for batch in episode] for episode in episodes]
    return Plan(batches, "own", 3, len(labels), hash_labels(as_labels(labels)))


def recorded(method: str | Method, episodes: Any = EPISODES, **feedback: Any) -> tuple[Recorder, Any, list[Tensor]]:
    """A recorder of the method, its record, and the labels of each batch."""
    features, recorder = with_views(), Recorder(build(method))
    images = SimpleNamespace(
        pixels=lambda rows: features.image_features[rows], encoder=SimpleNamespace(visual=Visual().eval())
    )
    record = evaluate(recorder, features, plan_of(features.labels, episodes), images=images, **feedback)  # type: ignore[arg-type]
    assert features.labels is not None
    return recorder, record, [features.labels[list(batch)] for episode in episodes for batch in episode]


def integers(batch: Batch) -> list[Tensor]:
    """Everything in a batch that could be labels."""
    found = [*vars(batch).values(), *batch.tables.values(), *vars(batch.head).values()]
    return [value for value in found if isinstance(value, Tensor) and not value.is_floating_point()]


@pytest.mark.parametrize("method", list_methods())
def test_without_feedback_no_method_gets_a_label(method: str) -> None:
    recorder, record, labels = recorded(method)
    assert len(recorder.batches) == len(labels)
    assert all(batch.known is None and not integers(batch) for batch in recorder.batches)
    assert (record.known, record.known_by, record.oracle_classes, record.unaided) == (0, None, None, None)
    assert record.images == sum(map(len, labels))


@pytest.mark.parametrize("by", ["random", "review"])
@pytest.mark.parametrize("method", [*list_methods(), Told()], ids=[*list_methods(), "told"])
def test_exactly_n_labels_are_revealed_and_none_of_them_is_scored(method: str | Method, by: str) -> None:
    if not build(method).traits.known:
        with pytest.raises(InputError, match=f"method {method!r} does not use known labels"):
            recorded(method, known=N, known_by=by)
        return
    recorder, record, labels = recorded(method, known=N, known_by=by)
    assert len(recorder.batches) == 2 * len(labels)  # each batch first unaided
    assert all(batch.known is None and not integers(batch) for batch in recorder.batches[::2])
    accuracy, unaided, zero_shot = [], [], []
    for at, truth in enumerate(labels):
        batch = recorder.batches[2 * at + 1]
        assert batch.known is not None
        given = batch.known >= 0
        assert int(given.sum()) == N
        assert torch.equal(batch.known[given], truth[given])
        assert bool((batch.known[~given] == -1).all())
        assert len(integers(batch)) == 1  # `known`, and nothing else
        answers = recorder.said[2 * at + 1], recorder.said[2 * at], batch.head.log_zero_shot(batch.features)
        for z, scores in zip(answers, (accuracy, unaided, zero_shot), strict=True):
            scores.append(float((z.argmax(dim=1) == truth)[~given].double().mean()))
    assert record.series.accuracy == pytest.approx(accuracy)
    assert record.series.zero_shot == pytest.approx(zero_shot)
    assert record.unaided == pytest.approx(np.mean([np.mean(unaided[:2]), unaided[2]]))
    assert record.series.images == [len(truth) - N for truth in labels]
    assert (record.known, record.known_by, record.images) == (N, by, sum(map(len, labels)) - 3 * N)
    assert sum(record.series.reliability["count"]) == record.images


def known_images(recorder: Recorder) -> list[list[int]]:
    return [(batch.known >= 0).nonzero().squeeze(1).tolist() for batch in recorder.batches if batch.known is not None]


def test_random_labels_are_the_same_for_every_method_and_differ_by_batch() -> None:
    first, second = (known_images(recorded(method, known=N)[0]) for method in ("stata", Told()))
    assert first == second
    assert len({tuple(images) for images in first}) == 3
    fewer = known_images(recorded("stata", known=2)[0])
    assert all(set(few) < set(many) for few, many in zip(fewer, first, strict=True))


def test_review_asks_what_the_unaided_answer_is_worth_asking() -> None:
    recorder, _, _ = recorded("stata", known=N, known_by="review")
    for batch, z, images in zip(recorder.batches[::2], recorder.said[::2], known_images(recorder), strict=True):
        order = review_order(Answer(batch.features, batch.head, batch.log_zero_shot.exp(), z))
        assert images == sorted(order[:N].tolist())


def test_one_image_of_a_small_batch_stays_unknown() -> None:
    recorder, record, _ = recorded(Told(), [[range(10), range(10, 13)]], known=5)
    assert list(map(len, known_images(recorder))) == [5, 2]
    assert record.series.images == [5, 1]
    with pytest.raises(InputError, match="known=10 leaves nothing to score: the largest batch has 10 images"):
        recorded(Told(), [[range(10), range(10, 13)]], known=10)


def by_hand() -> FeatureSet:
    """Zero-shot says 0 0 1 1 2 2 of four classes; true are 0 3 1 1 1 1. So 2 is wrong, and 3 is missed."""
    images = torch.eye(4)[[0, 0, 1, 1, 2, 2]]
    return FeatureSet.from_arrays(images, torch.eye(4), labels=np.array([0, 3, 1, 1, 1, 1]), logit_scale=20.0)


@pytest.mark.parametrize(
    ("feedback", "classes", "accuracy"),
    [
        ({"oracle_classes": "true"}, [0, 1, 3], 3 / 6),  # images 4 and 5 are a tie of all three: the first wins
        ({"oracle_classes": "found"}, [0, 1], 3 / 6),
        ({"oracle_classes": "found", "known": 5}, [0, 1, 3], None),  # a known label says that its class is there
    ],
)
def test_the_head_has_only_the_classes_that_were_confirmed(
    feedback: dict[str, Any], classes: list[int], accuracy: float | None
) -> None:
    features, recorder = by_hand(), Recorder(Told())
    record = evaluate(recorder, features, "all", **feedback)  # type: ignore[arg-type]
    unaided, aided = recorder.batches
    assert unaided.head.k == 4
    assert torch.equal(aided.head.features, torch.eye(4)[classes])
    assert accuracy is None or record.accuracy == pytest.approx(accuracy)
    assert record.zero_shot is not None  # of all classes
    if feedback["oracle_classes"] == "found":
        assert (record.classes_shown, record.classes_unticked) == (3, 1)
    else:
        assert (record.classes_shown, record.classes_unticked) == (None, None)


def test_if_no_class_found_is_there_all_stay() -> None:
    features, recorder = replace(by_hand(), labels=torch.full((6,), 3)), Recorder(Plain())
    record = evaluate(recorder, features, "all", oracle_classes="found")  # type: ignore[arg-type]
    assert [batch.head.k for batch in recorder.batches] == [4, 4]
    assert (record.classes_shown, record.classes_unticked) == (3, 3)


@pytest.mark.parametrize("method", list_methods())
def test_every_method_takes_the_true_classes_of_a_batch(method: str) -> None:
    labels = with_views().labels
    assert labels is not None
    rows = torch.isin(labels, torch.tensor([1, 3, 4])).nonzero().squeeze(1).tolist()
    recorder, record, _ = recorded(method, [[rows]], oracle_classes="true")
    assert [batch.head.k for batch in recorder.batches] == [6, 3]
    assert record.label == f"{method} + true classes"
    assert record.accuracy is not None


@dataclass(frozen=True)
class RunningAsAWhole(Running):
    """Its memory is not said to be kept by class."""

    traits: ClassVar[Traits] = replace(Running.traits, by_class=False)


def test_streams_take_classes_if_the_memory_is_kept_by_class() -> None:
    with pytest.raises(InputError, match=r"'running' cannot take other classes with each batch of a stream"):
        recorded(RunningAsAWhole(), oracle_classes="true")
    recorder, _, labels = recorded(Running(), oracle_classes="true")
    assert [batch.head.k for batch in recorder.batches[1::2]] == [len(set(each.tolist())) for each in labels]
    assert [batch.head.k for batch in recorder.batches[::2]] == [6, 6, 6]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"known": -1}, "known must be at least 0; got -1"),
        ({"known": 1.5}, "known must be a whole number; got 1.5"),
        ({"known": 1, "known_by": "luck"}, "known_by must be 'random' or 'review'; got 'luck'"),
        ({"known_by": "review"}, "known_by is 'review', but no labels are known"),
        ({"oracle_classes": "all"}, "oracle_classes must be 'found' or 'true'; got 'all'"),
    ],
)
def test_feedback_that_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        evaluate("stata", by_hand(), "all", **given)


def test_feedback_in_words() -> None:
    assert str(Feedback(5)) == "5 known (random)"
    assert str(Feedback(5, "review", "found")) == "5 known (review) + found classes"
    assert not Feedback()
