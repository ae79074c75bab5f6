"""One cell: its scores by hand, what a method gets to see, and its record on disk."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from kedge import Batch, FeatureSet, Step, TextHead, progress
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.plan import Plan, as_labels, draw, hash_labels
from kedge.benchmark.record import Record, load_records
from kedge.errors import ContractError, FileError, InputError, SettingError
from kedge.features.simulate import simulate
from kedge.methods.contract import State
from kedge.methods.solve.gaussian import anchor_variance
from toy_methods import Plain, Running, Viewing


def plan_of(episodes: list[list[list[int]]], labels: Any) -> Plan:
    batches = [[np.array(batch) for batch in episode] for episode in episodes]
    return Plan(batches, "own", 3, len(labels), hash_labels(as_labels(labels)))


@dataclass(frozen=True)
class ByHand(Plain):
    """Swaps classes 0 and 1 for every image whose last coordinate is positive, and is 0.8 sure of it all."""

    name: ClassVar[str] = "by-hand"

    def z(self, batch: Batch) -> Tensor:
        guess = super().z(batch).argmax(dim=1)
        swapped = torch.tensor([1, 0, 2])[guess]
        label = torch.where(batch.features[:, 3] > 0, swapped, guess)
        return torch.full((len(guess), 3), 0.1).scatter(1, label[:, None], 0.8)


def by_hand() -> FeatureSet:
    """Six images: zero-shot says 0 0 1 1 2 2; `ByHand` swaps images 1 and 2, and says 0 1 0 1 2 2."""
    images = torch.zeros(6, 4)
    images[torch.arange(6), torch.tensor([0, 0, 1, 1, 2, 2])] = 0.8
    images[:, 3] = torch.tensor([-0.6, 0.6, 0.6, -0.6, -0.6, -0.6])
    labels = [0, 1, 1, 1, 2, 0]
    return FeatureSet.from_arrays(images, torch.eye(3, 4), labels=np.array(labels), logit_scale=5.0)


def test_scores_by_hand() -> None:
    features = by_hand()
    # right: zero-shot 1 0 1 1 1 0, adapted 1 1 0 1 1 0
    plan = plan_of([[[0, 1], [2, 3, 4, 5]], [[2, 3]]], features.labels)
    record = evaluate(ByHand(), features, plan)

    # zero-shot: 1/2 and 3/4, then 2/2; adapted: 2/2 and 2/4, then 1/2
    assert record.zero_shot == pytest.approx(((1 / 2 + 3 / 4) / 2 + 1) / 2)
    assert record.accuracy == pytest.approx(((1 + 2 / 4) / 2 + 1 / 2) / 2)
    assert record.gain == pytest.approx(record.accuracy - record.zero_shot)
    # the worst task of two: the second for the method, the first for zero-shot
    assert record.tail == pytest.approx(1 / 2)
    assert record.zero_shot_tail == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert record.zero_shot_per_image == pytest.approx((1 + 3 + 2) / 8)
    assert record.accuracy_per_image == pytest.approx((2 + 2 + 1) / 8)
    assert record.harmed == pytest.approx(2 / 3)
    assert record.worst == pytest.approx(-1 / 2)
    # by class, over all batches: class 0 is images 0 and 5; class 1 is 1, 2, 3, 2, 3; class 2 is 4
    assert record.zero_shot_macro == pytest.approx((1 / 2 + 4 / 5 + 1) / 3)
    assert record.macro == pytest.approx((1 / 2 + 3 / 5 + 1) / 3)
    assert record.calibration_error == pytest.approx(abs(5 / 8 - 0.8), abs=1e-6)
    confidence = math.exp(4) / (math.exp(4) + 2)  # 5 · 0.8 against two zeros
    assert record.zero_shot_calibration_error == pytest.approx(abs(6 / 8 - confidence), abs=1e-6)
    # gains of the tasks are ¼·½ and −½: the bootstrap of two is between them
    assert record.gain_low == pytest.approx(-1 / 2)
    assert record.gain_high == pytest.approx(((1 + 2 / 4) - (1 / 2 + 3 / 4)) / 2)
    assert (record.images, record.batches, record.tasks, record.seed) == (8, 3, 2, 3)

    series = record.series
    assert (series.episode, series.images, series.classes) == ([0, 0, 1], [2, 4, 2], [2, 3, 1])
    assert series.accuracy == pytest.approx([1, 2 / 4, 1 / 2])
    assert series.zero_shot == pytest.approx([1 / 2, 3 / 4, 1])
    assert sum(series.reliability["count"]) == 8
    assert sum(series.reliability["correct"]) == 5
    np.testing.assert_allclose(series.composition, [[1 / 2, 1 / 2, 0], [1 / 4, 2 / 4, 1 / 4]], atol=1e-4)


def test_provenance() -> None:
    features = replace(
        by_hand(), provenance={"dataset": "hands", "encoder": "fingers", "weights_sha256": "ab", "simulated": True}
    )
    record = evaluate(ByHand(weight=2.5), features, "all")
    assert (record.method, record.label, record.dataset, record.encoder) == (
        "by-hand",
        "by-hand weight=2.5",
        "hands",
        "fingers",
    )
    assert (record.scenario, record.seed, record.tasks, record.simulated, record.classes) == ("all", 0, 1, True, 3)
    assert (record.features_hash, record.weights) == (features.hash, "ab")
    assert record.plan_hash == draw("all", features.labels).hash
    assert record.kedge == kedge.__version__
    assert record.seconds is not None
    assert record.seconds_per_image == pytest.approx(record.seconds / 6)
    assert record.series.composition == []  # not a stream


@pytest.mark.parametrize(
    ("provenance", "file", "name"),
    [
        ({}, "", "features"),
        ({}, "birds.npz", "birds"),
        ({"source": "somewhere on the net (MIT)"}, "", "features"),
        ({"dataset": "cub"}, "birds.npz", "cub"),
        ({"dataset": "simulated", "simulated": True}, "many.npz", "many"),  # the file's name tells them apart
        ({"dataset": "simulated", "simulated": True}, "", "simulated"),
    ],
)
def test_what_features_are_called(provenance: dict[str, Any], file: str, name: str) -> None:
    path = Path(file) if file else None
    assert replace(by_hand(), provenance=provenance, path=path).dataset == name


def test_zero_shot_gains_nothing() -> None:
    record = evaluate("zero-shot", simulate(300, 10, 32, seed=1), "very-low", tasks=20)
    assert (record.gain, record.gain_low, record.gain_high, record.harmed, record.worst) == (0, 0, 0, 0, 0)
    assert record.accuracy == record.zero_shot
    assert record.calibration_error == record.zero_shot_calibration_error


def test_a_name_with_settings_is_the_method_with_them() -> None:
    features = simulate(200, 10, 32, seed=1)
    named = evaluate("stata", features, "low", seed=1, tasks=5, alpha=10.0)
    built = evaluate(kedge.StatA(alpha=10.0), features, draw("low", features.labels, 1, 5))
    assert named.settings == {"alpha": 10.0}
    assert named.label == "stata alpha=10"
    different = {f.name for f in fields(Record) if getattr(named, f.name) != getattr(built, f.name)}
    assert different <= {"seconds", "seconds_per_image"}


class Spy:
    """Zero-shot, and remembers everything it is shown."""

    name: ClassVar[str] = "spy"
    traits = Plain.traits
    __dataclass_fields__: ClassVar[dict[str, Any]] = {}  # a dataclass of no fields, which can remember

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def init(self, head: Any) -> State | None:
        self.seen.append(("init", head))
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        self.seen.append(("step", state, batch))
        return Step(None, batch.log_zero_shot.exp())


def shown(thing: Any) -> Iterator[Any]:
    """Everything that can be reached from what a method was given, as comparable values."""
    if isinstance(thing, Tensor):
        yield thing.tolist()
    elif is_dataclass(thing) or isinstance(thing, list | tuple | dict):
        parts = vars(thing) if is_dataclass(thing) else thing
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from shown(part)
    else:
        yield thing


def test_labels_never_reach_a_method() -> None:
    features = simulate(60, 5, 16, seed=2)
    assert features.labels is not None
    seen = []
    for labels in (features.labels, features.labels.flip(0), torch.zeros_like(features.labels)):
        spy = Spy()
        other = replace(features, labels=labels)
        evaluate(spy, other, plan_of([[[3, 1, 4], [5, 9]], [[2, 6]]], labels))  # type: ignore[arg-type]
        assert len(spy.seen) == 5  # reset before each of the two episodes, three batches
        seen.append(list(shown(spy.seen)))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) > 10
    labels_of_batches = [features.labels[batch].tolist() for batch in ([3, 1, 4], [5, 9], [2, 6])]
    assert not any(labels in seen[0] for labels in labels_of_batches)


def test_a_method_starts_each_episode_anew() -> None:
    features = simulate(60, 5, 16, seed=2)
    twice = evaluate(Running(), features, plan_of([[[0, 1], [2, 3]], [[0, 1], [2, 3]]], features.labels))
    assert twice.series.accuracy[:2] == twice.series.accuracy[2:]
    assert twice.gain_low == twice.gain_high == pytest.approx(twice.gain)


def test_views_are_handed_on() -> None:
    features = simulate(40, 5, 16, seed=2)
    views = features.image_features[:, None].repeat(1, 3, 1).flip(0)  # the views are of other images
    seen = evaluate(Viewing(), replace(features, views=views), "all")
    flipped = evaluate("zero-shot", replace(features, image_features=features.image_features.flip(0)), "all")
    assert seen.accuracy == flipped.accuracy
    assert seen.accuracy != seen.zero_shot


@dataclass(frozen=True)
class ShowsBars(Plain):
    """Notes whether a display is there."""

    name: ClassVar[str] = "shows-bars"
    seen: ClassVar[list[bool]] = []

    def z(self, batch: Batch) -> Tensor:
        self.seen.append(progress._display.get() is not None)
        return super().z(batch)


def test_many_small_steps_show_no_bars_since_these_would_be_timed() -> None:
    features = by_hand()
    token = progress._display.set(progress_display := Display())
    try:
        evaluate(ShowsBars(), features, plan_of([[[0, 1], [2]]], features.labels))
        evaluate(ShowsBars(), features, "all")  # one solve, maybe a long one
    finally:
        progress._display.reset(token)
    assert ShowsBars.seen == [False, False, True]
    assert progress_display.bars == ["tasks", "tasks"]


class Display:
    """Shows nothing, and remembers what it was asked to show."""

    def __init__(self) -> None:
        self.bars: list[str] = []

    @contextlib.contextmanager
    def __call__(self, total: int, what: str, unit: str, done: int) -> Iterator[progress.Advance]:
        self.bars.append(what)
        yield lambda count: None


@dataclass(frozen=True)
class GivesNan(Plain):
    def z(self, batch: Batch) -> Tensor:
        return super().z(batch) * float("nan")


def test_what_is_refused() -> None:
    features = by_hand()
    with pytest.raises(ContractError, match="method 'plain' gave NaN or infinite probabilities for 6 of 6"):
        evaluate(GivesNan(), features, "all")
    with pytest.raises(InputError, match="needs labels"):
        evaluate("stata", replace(features, labels=None), "all")
    with pytest.raises(FileError, match="other labels"):
        evaluate("stata", features, draw("all", [0, 1, 2]))
    with pytest.raises(SettingError, match="did you mean 'alpha'"):
        evaluate("stata", features, "all", alfa=3)
    with pytest.raises(SettingError, match="unknown scenario"):
        evaluate("stata", features, "everything")


class TestRecords:
    def test_a_record_comes_back(self, tmp_path: Path) -> None:
        record = evaluate("stata", simulate(100, 5, 16, seed=1), "stream-low", tasks=2, alpha=math.inf, beta="soft")
        record.save(tmp_path / "record.json")
        assert Record.load(tmp_path / "record.json") == record
        text = (tmp_path / "record.json").read_text()
        json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        assert record.label == "stata alpha=inf beta=soft"

    def test_the_row_is_flat(self) -> None:
        record = evaluate("zero-shot", by_hand(), "all")
        assert set(record.row()) == {f.name for f in fields(Record)} - {"series"}

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "not a kedge record"),
            ("[]", "not a kedge record"),
            ("{}", "not a kedge record"),
            ('{"schema": 99}', "record format 99"),
            ('{"schema": 3, "settings": 3}', "not a kedge record"),
            ("", "is empty"),
        ],
    )
    def test_files_that_are_no_records(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "record.json").write_text(content)
        with pytest.raises(FileError, match=message):
            load_records([tmp_path])

    def test_unknown_fields_are_refused(self, tmp_path: Path) -> None:
        data = {**asdict(evaluate("zero-shot", by_hand(), "all")), "colour": "blue"}
        (tmp_path / "record.json").write_text(json.dumps(data))
        with pytest.raises(FileError, match="colour"):
            load_records([tmp_path])

    def test_a_file_from_before_there_were_tails_still_loads(self, tmp_path: Path) -> None:
        record = evaluate("zero-shot", by_hand(), "all")
        assert record.tail == record.accuracy  # one task
        older = {name: value for name, value in asdict(record).items() if "tail" not in name}
        (tmp_path / "record.json").write_text(json.dumps(older))
        assert load_records([tmp_path]) == [replace(record, tail=None, zero_shot_tail=None)]

    def test_folders_and_files_each_record_once_and_in_order(self, tmp_path: Path) -> None:
        plain = evaluate("zero-shot", by_hand(), "all")
        for number, seed in enumerate([2, 0, 1]):
            replace(plain, seed=seed).save(tmp_path / f"{number}.json")
        (tmp_path / ".kedge-x.tmp").write_text("unfinished")
        found = load_records(path for path in (tmp_path, tmp_path / "1.json"))
        assert [record.seed for record in found] == [0, 1, 2]
        with pytest.raises(FileError, match="no file"):
            load_records([tmp_path / "3.json"])
        (tmp_path / "empty").mkdir()
        with pytest.raises(FileError, match=r"no records in .*empty"):
            load_records([tmp_path / "empty"])


class TestManyTasksOfOneFeatureSet:
    """Zero-shot is computed once, for all images, and each batch takes its rows: with the same outcome."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("k", "n"), [(1, 1), (2, 3), (103, 100), (210, 101), (400, 250)])
    def test_the_variance_of_prepared_rows_is_that_of_the_images_alone(
        self, k: int, n: int, dtype: torch.dtype
    ) -> None:
        f = simulate(max(n, k, 300), k, d=24, seed=n)
        everyone = Batch(f.image_features.to(dtype), f.head.like(f.image_features.to(dtype)))
        rows = torch.randperm(len(f), generator=torch.Generator().manual_seed(0))[:n]
        alone = Batch(everyone.features[rows], everyone.head)
        prepared = replace(alone, tables={name: table[rows] for name, table in kedge.StatA().prepare(everyone).items()})
        tolerance = 2e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(anchor_variance(prepared), anchor_variance(alone), atol=2e-8, rtol=tolerance)

    def test_the_variance_of_many_images_keeps_its_digits(self) -> None:
        x = torch.nn.functional.normalize(torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0)) + 1)
        everyone = Batch(x, TextHead.from_arrays(x[:50]))
        prepared = replace(everyone, tables=kedge.StatA().prepare(everyone))
        torch.testing.assert_close(anchor_variance(prepared), anchor_variance(everyone), atol=0, rtol=1e-6)

    @pytest.mark.parametrize("method", ["stata", "kedge", "transclip", "tda", "zero-shot"])
    @pytest.mark.parametrize("scenario", ["very-low", "stream-high"])
    def test_together_or_one_by_one(self, method: str, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
        f = simulate(400, 30, d=32, seed=1)
        together = evaluate(method, f, scenario, tasks=25)
        monkeypatch.setattr("kedge.benchmark.evaluate.TABLE_ENTRIES", 0)
        one_by_one = evaluate(method, f, scenario, tasks=25)
        assert together.series.accuracy == one_by_one.series.accuracy
        assert together.zero_shot == one_by_one.zero_shot
        assert together.calibration_error == pytest.approx(one_by_one.calibration_error, abs=1e-5)
        assert together.harmed == one_by_one.harmed

    def test_all_images_at_once_are_not_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        f = simulate(50, 5, d=16, seed=1)
        seen: list[Batch] = []
        step = kedge.StatA.step
        monkeypatch.setattr(
            kedge.StatA, "step", lambda self, state, batch: seen.append(batch) or step(self, state, batch)
        )
        whole = evaluate("stata", f, "all")
        assert seen[0].features.data_ptr() == f.image_features.data_ptr()
        monkeypatch.setattr("kedge.benchmark.evaluate.TABLE_ENTRIES", 0)  # zero-shot is then scored block by block
        monkeypatch.setattr("kedge.arrays.BLOCK_ENTRIES", 64)
        assert evaluate("stata", f, "all").zero_shot == whole.zero_shot


@pytest.mark.parametrize("features", ["features.npz", np.eye(3)], ids=["path", "array"])
def test_other_things_than_a_feature_set_are_refused(features: Any) -> None:
    with pytest.raises(InputError, match=r"features must be a FeatureSet; got (str|ndarray). Load the file"):
        evaluate("stata", features, "very-low")
