"""Scenarios: the samplers follow their laws, streams use every image once, and a seed is a plan everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kedge.benchmark.plan import Plan, draw
from kedge.benchmark.plan_view import HEIGHT, draw_plan, plan_facts, ribbon
from kedge.benchmark.scenarios import (
    SCENARIOS,
    Batches,
    DirichletStream,
    Scenario,
    Separate,
    Whole,
    describe,
    dirichlet,
    find_scenario,
)
from kedge.errors import FileError, InputError, SettingError

UNLIKELY = 1e-4  # a p-value below this is no accident; the seeds are fixed, so neither is a test that passes


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_uniform(outcomes: Iterable[Hashable], possible: Iterable[Hashable]) -> None:
    """Chi-square: every possible outcome is equally likely, and there are no others."""
    counts, possible = Counter(outcomes), list(possible)
    assert set(counts) <= set(possible)
    assert stats.chisquare([counts[outcome] for outcome in possible]).pvalue > UNLIKELY


def only_batch(scenario: Scenario, labels: np.ndarray, seed: int) -> np.ndarray:
    (batch,) = scenario.episode(labels, generator(seed))
    return batch


class TestBatches:
    def test_number_of_classes_is_uniform(self) -> None:
        labels = np.repeat(np.arange(12), 3)  # all images of the classes are drawn, so that each can be counted
        found = [len(np.unique(labels[only_batch(Batches(1000, 2, 5), labels, seed)])) for seed in range(4000)]
        assert_uniform(found, [2, 3, 4, 5])

    def test_every_set_of_classes_is_equally_likely(self) -> None:
        labels = np.arange(8)
        found = [tuple(np.sort(labels[only_batch(Batches(1000, 3, 3), labels, seed)])) for seed in range(5600)]
        assert_uniform(found, combinations(range(8), 3))

    def test_every_order_of_images_is_equally_likely(self) -> None:
        labels = np.array([7, 7, 7, 7])
        found = [tuple(only_batch(Batches(2, 1, 1), labels, seed)) for seed in range(3000)]
        assert_uniform(found, permutations(range(4), 2))

    def test_batches_are_not_balanced(self) -> None:
        labels = np.array([0, 0, *[1] * 8])  # 5 of 10 images: of the two, hypergeometrically many
        found = Counter(int((labels[only_batch(Batches(5, 2, 2), labels, seed)] == 0).sum()) for seed in range(4000))
        expected = stats.hypergeom(10, 2, 5).pmf([0, 1, 2]) * 4000
        assert stats.chisquare([found[0], found[1], found[2]], expected).pvalue > UNLIKELY

    def test_more_classes_than_there_are(self) -> None:
        labels = np.repeat([3, 5, 9], 4)
        batch = only_batch(Batches(64, 25, 50), labels, 0)
        assert sorted(batch) == list(range(12))  # the pool is smaller than the batch: all of it, once

    def test_no_image_twice(self) -> None:
        labels = generator().integers(0, 30, 6000)
        for seed in range(50):
            batch = only_batch(Batches(64, 1, 4), labels, seed)
            assert len(np.unique(batch)) == len(batch) == 64
            assert len(np.unique(labels[batch])) <= 4


class TestDirichlet:
    @pytest.mark.parametrize("gamma", [0.2, 1.0, 7.0])
    @pytest.mark.parametrize("slots", [2, 3])
    def test_a_share_is_beta(self, gamma: float, slots: int) -> None:
        random = generator()
        shares = np.array([dirichlet(gamma, slots, random) for _ in range(3000)])
        for share in shares.T:  # Dirichlet's marginal is Beta(γ, (S−1)γ)
            assert stats.kstest(share, stats.beta(gamma, (slots - 1) * gamma).cdf).pvalue > UNLIKELY

    def test_three_shares_together(self) -> None:
        random = generator()
        gamma = 0.5
        product = [np.prod(dirichlet(gamma, 3, random)[:2]) for _ in range(20_000)]
        expected = gamma * gamma / (3 * gamma * (3 * gamma + 1))  # E[x₁ x₂]
        assert abs(np.mean(product) - expected) < 4 * stats.sem(product)

    @pytest.mark.parametrize("gamma", [0.001, 0.01])
    def test_a_small_share_is_beta_down_to_nothing(self, gamma: float) -> None:
        random = generator()
        share = np.array([dirichlet(gamma, 2, random)[0] for _ in range(4000)])
        for limit in (1e-200, 1e-20, 1e-3, 0.5):
            probability = stats.beta(gamma, gamma).cdf(limit)
            assert stats.binomtest(int((share <= limit).sum()), 4000, probability).pvalue > UNLIKELY

    def test_without_correlation_left_one_slot_has_all(self) -> None:
        random = generator()
        shares = [dirichlet(1e-6, 5, random) for _ in range(2000)]
        assert np.mean([share.max() for share in shares]) > 0.9999
        assert_uniform([int(share.argmax()) for share in shares], range(5))

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("gamma", [5e-324, 1e-300, 1e-6, 1e-3, 1e6, 1e300, 1.7e308])
    def test_never_nan(self, gamma: float) -> None:
        for seed in range(50):
            share = dirichlet(gamma, 100, generator(seed))
            assert (share >= 0).all()
            assert share.sum() == pytest.approx(1)
            assert share.max() > (0.3 if gamma < 1e-2 else 0.0099)
            if gamma >= 1e6:
                np.testing.assert_allclose(share, 0.01, rtol=0.01)


STREAMS = [DirichletStream(gamma) for gamma in (1e-6, 0.001, 0.01, 0.1, 1.0, 1e6)] + [Separate()]


class TestStreams:
    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("stream", STREAMS)
    @pytest.mark.parametrize(
        "labels",
        [
            generator().integers(0, 20, 1000),
            np.arange(300),  # one image per class
            np.zeros(300, np.int64),  # one class
            np.array([4]),
            np.repeat(np.arange(5), 128),  # no partial batch
            np.repeat([0, 1], [1, 999]),
        ],
        ids=["many", "one image per class", "one class", "one image", "whole batches", "a rare class"],
    )
    def test_every_image_once(self, stream: DirichletStream | Separate, labels: np.ndarray) -> None:
        batches = stream.episode(labels, generator())
        assert [len(batch) for batch in batches[:-1]] == [128] * (len(batches) - 1)
        assert 1 <= len(batches[-1]) <= 128
        assert sorted(np.concatenate(batches)) == list(range(len(labels)))

    @pytest.mark.parametrize("make", [lambda **kept: DirichletStream(0.1, **kept), Separate])
    def test_drop_last(self, make: Any) -> None:
        labels = generator().integers(0, 20, 1000)
        kept, dropped = (make(size=128, drop_last=drop).episode(labels, generator()) for drop in (False, True))
        assert [len(batch) for batch in kept] == [128] * 7 + [104]
        assert [batch.tolist() for batch in dropped] == [batch.tolist() for batch in kept[:7]]
        assert len(make(size=2000, drop_last=True).episode(labels, generator())) == 1  # the only one is not dropped
        assert len(make(size=500, drop_last=True).episode(labels, generator())) == 2  # nor a whole one

    def test_a_tiny_gamma_puts_each_class_into_a_slot_drawn_uniformly(self) -> None:
        labels, slots = np.repeat(np.arange(8), 20), 4  # min(8 classes, 160/40)
        together = 0
        for seed in range(600):
            stream = labels[np.concatenate(DirichletStream(1e-6, size=40).episode(labels, generator(seed)))]
            spans = np.array([[np.flatnonzero(stream == c)[0], np.flatnonzero(stream == c)[-1]] for c in range(8)])
            spans = spans[spans[:, 0].argsort()]
            groups, end = 0, -1
            for first, last in spans:  # classes of one slot are mixed, those of two are apart
                groups, end = (groups, max(end, last)) if first < end else (groups + 1, last)
            assert groups <= slots
            a, b = sorted(([np.flatnonzero(stream == c)[i] for i in (0, -1)] for c in (2, 5)), key=lambda s: s[0])
            together += b[0] < a[1]
        assert stats.binomtest(together, 600, 1 / slots).pvalue > UNLIKELY

    def test_a_large_gamma_is_independent_of_time(self) -> None:
        labels = np.repeat(np.arange(10), [60, 20, *[40] * 8])  # 400
        counts = np.zeros((4, 10))
        for seed in range(300):
            for row, batch in enumerate(DirichletStream(1e6, size=100).episode(labels, generator(seed))):
                counts[row] += np.bincount(labels[batch], minlength=10) / 300
        np.testing.assert_allclose(counts, np.tile(np.bincount(labels) / 4, (4, 1)), rtol=0.05)

    @pytest.mark.parametrize("gamma", [0.001, 0.1])
    def test_the_end_of_a_stream_is_like_its_beginning(self, gamma: float) -> None:
        labels = np.repeat(np.arange(100), 10)  # 50 slots; what is left of a class must not all go to the last
        first, last = [], []
        for seed in range(150):
            batches = DirichletStream(gamma, size=20).episode(labels, generator(seed))
            first.append(len(np.unique(labels[batches[0]])))
            last.append(len(np.unique(labels[batches[-1]])))
        assert stats.ttest_ind(first, last).pvalue > UNLIKELY

    def test_smaller_gamma_is_more_correlated(self) -> None:
        labels = np.repeat(np.arange(30), 40)
        scenarios = [SCENARIOS[name] for name in ("stream-high", "stream-medium", "stream-low")] + [
            DirichletStream(1e3)
        ]
        means = [plan_facts(draw(scenario, labels, tasks=20), labels)["mean_classes"] for scenario in scenarios]
        assert means == sorted(means)
        assert means[0] < 8 < 25 < means[-1]

    def test_separate_classes_follow_each_other_in_any_order(self) -> None:
        labels = np.array([1, 0, 2, 1, 1, 2])
        orders, within = [], []
        for seed in range(3000):
            (images,) = Separate().episode(labels, generator(seed))
            stream = labels[images]
            order = tuple(dict.fromkeys(stream.tolist()))
            assert stream.tolist() == [c for c in order for _ in range((labels == c).sum())]
            orders.append(order)
            within.append(tuple(images[stream == 1]))
        assert_uniform(orders, permutations(range(3)))
        assert_uniform(within, permutations([0, 3, 4]))


LABELS = generator(5).integers(0, 40, 1500)


class TestPlans:
    def test_whole_is_all_once(self) -> None:
        plan = draw("all", LABELS, seed=3, tasks=50)
        assert [[batch.tolist() for batch in episode] for episode in plan.episodes] == [[list(range(1500))]]

    @pytest.mark.parametrize("name", SCENARIOS)
    def test_fewer_tasks_are_the_first_of_more(self, name: str) -> None:
        few, more = (draw(name, LABELS, seed=4, tasks=tasks) for tasks in (2, 5))
        for short, long in zip(few.episodes, more.episodes, strict=False):
            assert [batch.tolist() for batch in short] == [batch.tolist() for batch in long]
        assert len(more.episodes) == (1 if name == "all" else 5)

    def test_the_scenarios_own_number_of_tasks(self) -> None:
        assert [len(draw(name, np.arange(9)).episodes) for name in SCENARIOS] == [1000] * 6 + [1] + [100] * 4

    def test_another_seed_is_another_plan(self) -> None:
        for name in ("low", "stream-low", "stream-separate"):
            plans = [draw(name, LABELS, seed, tasks=2) for seed in (0, 1, 2, 1)]
            images = [np.concatenate(list(plan.batches())).tolist() for plan in plans]
            assert images[1] == images[3] != images[0] != images[2] != images[1]
            assert plans[1].hash == plans[3].hash != plans[0].hash

    def test_the_same_bytes_in_another_process(self, tmp_path: Path) -> None:
        program = (
            "import sys, numpy as np; from kedge.benchmark.plan import draw\n"
            "labels = np.random.default_rng(5).integers(0, 40, 1500)\n"
            "for name in ('low', 'stream-high', 'stream-separate', 'all'):\n"
            "    draw(name, labels, seed=7, tasks=3).save(f'{sys.argv[1]}/{name}.safetensors')\n"
        )
        for folder in ("here", "there"):
            (tmp_path / folder).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": "1"}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "there")], check=True, env=environment)
        for name in ("low", "stream-high", "stream-separate", "all"):
            sha256 = draw(name, LABELS, seed=7, tasks=3).save(tmp_path / "here" / f"{name}.safetensors")
            here, there = (tmp_path / folder / f"{name}.safetensors" for folder in ("here", "there"))
            assert here.read_bytes() == there.read_bytes()
            assert Plan.load(there).hash == sha256

    def test_a_saved_plan_comes_back(self, tmp_path: Path) -> None:
        plan = draw("stream-low", LABELS, seed=2, tasks=3)
        plan.save(tmp_path / "plan.safetensors")
        found = Plan.load(tmp_path / "plan.safetensors")
        assert (found.scenario, found.seed, found.n, found.hash) == ("stream-low", 2, 1500, plan.hash)
        for one, other in zip(found.episodes, plan.episodes, strict=True):
            assert [batch.tolist() for batch in one] == [batch.tolist() for batch in other]
        found.check_fits(LABELS)
        with pytest.raises(FileError, match="other labels"):
            found.check_fits(LABELS[::-1])

    @pytest.mark.parametrize("seed", [-1, 1.0, True, None, 2**63, 10**400])
    def test_bad_seeds(self, seed: Any) -> None:
        with pytest.raises(SettingError, match=r"seed must be (a whole number|at least 0|at most 9,223)"):
            draw("low", LABELS, seed)

    @pytest.mark.parametrize("tasks", [0, -3, 2.5, True, 2**63])
    def test_bad_tasks(self, tasks: Any) -> None:
        with pytest.raises(SettingError, match=r"tasks must be (a whole number|at least 1|at most 1,000,000)"):
            draw("low", LABELS, 0, tasks)

    @pytest.mark.parametrize("labels", [[], [0.5, 1.0], [[0, 1]], ["cat"]])
    def test_bad_labels(self, labels: Any) -> None:
        with pytest.raises(InputError, match="needs the labels"):
            draw("low", labels)


class TestNames:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_every_scenario_has_one_name(self, name: str) -> None:
        assert describe(SCENARIOS[name]) == name
        assert find_scenario(name) is SCENARIOS[name]

    @given(st.integers(1, 10**6), st.integers(1, 99), st.integers(0, 99), st.floats(1e-9, 1e9), st.booleans())
    def test_what_is_written_out_is_read_back(self, size: int, low: int, more: int, gamma: float, drop: bool) -> None:
        for scenario in (
            Batches(size, low, low + more),
            DirichletStream(gamma, size, drop),
            Separate(size, drop),
            Whole(),
        ):
            assert find_scenario(describe(scenario)) == scenario

    def test_spaces_and_defaults(self) -> None:
        assert find_scenario("stream: gamma = 0.5 , drop_last = yes") == DirichletStream(0.5, 128, True)
        assert find_scenario("batches") == Batches()
        assert find_scenario("stream") == SCENARIOS["stream-low"]

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ("very-lo", "unknown scenario 'very-lo'; did you mean 'very-low'"),
            ("batches:sise=3", "has no setting 'sise'; did you mean 'size'"),
            ("batches:size=many", "size of a batches scenario must be a whole number; got 'many'"),
            ("batches:size=2.5", "must be a whole number; got '2.5'"),
            ("stream:gamma=x", "gamma of a stream scenario must be a number"),
            ("stream:drop_last=maybe", "must be true or false; got 'maybe'"),
            ("stream:gamma=0", "gamma must be greater than 0"),
            ("stream:gamma=nan", "gamma must be a finite number"),
            ("batches:size=0", "size of a batches scenario must be at least 1; got 0"),
            ("batches:k_min=5,k_max=4", "k_max must be at least k_min"),
            ("whole:size=3", "has no setting 'size'"),
        ],
    )
    def test_what_is_refused(self, written: str, message: str) -> None:
        with pytest.raises(SettingError, match=message):
            find_scenario(written)

    @pytest.mark.parametrize("thing", [3, None, Batches])
    def test_things_that_are_no_scenario(self, thing: Any) -> None:
        with pytest.raises(SettingError, match="a scenario is a name"):
            find_scenario(thing)

    def test_settings_are_whole_numbers(self) -> None:
        with pytest.raises(SettingError, match="k_max of a batches scenario"):
            Batches(64, 1, 4.5)  # type: ignore[arg-type]


class TestViews:
    def test_facts(self) -> None:
        labels = np.array([0, 0, 1, 1, 2])
        plan = Plan(
            [[np.array([0, 1]), np.array([2])], [np.array([2, 3, 4])]], "own", 0, 5, draw("all", labels).labels_hash
        )
        facts = plan_facts(plan, labels)
        del facts["sha256"]
        assert facts == {
            "scenario": "own", "seed": 0, "tasks": 2, "batches": 3, "images": 6, "different_images": 5,
            "smallest_batch": 1, "largest_batch": 3, "fewest_classes": 1, "mean_classes": 1.33, "most_classes": 2,
        }  # fmt: skip

    def test_a_column_of_the_ribbon_is_a_batch(self) -> None:
        labels = np.array([0, 0, 0, 7, 7, 3])
        plan = Plan(
            [[np.array([0, 3, 1, 2]), np.array([4]), np.array([5, 4])]], "own", 0, 6, draw("all", labels).labels_hash
        )
        picture = ribbon(plan, labels)
        assert picture.shape == (HEIGHT, 3, 3)
        zero, seven, three = picture[0, 0], picture[-1, 0], picture[-1, 2]
        assert len({tuple(colour) for colour in (zero, seven, three)}) == 3
        assert (picture[: HEIGHT * 3 // 4, 0] == zero).all()  # 3 of 4 images
        assert (picture[HEIGHT * 3 // 4 :, 0] == seven).all()
        assert (picture[:, 1] == seven).all()
        assert (picture[: HEIGHT // 2, 2] == seven).all()
        assert (picture[HEIGHT // 2 :, 2] == three).all()

    def test_the_picture_is_a_png(self, tmp_path: Path) -> None:
        draw_plan(draw("low", LABELS, tasks=3), LABELS, tmp_path / "plan.png", "simulated")
        assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(FileError, match=r"must end in \.png"):
            draw_plan(draw("low", LABELS, tasks=3), LABELS, tmp_path / "plan.pdf", "simulated")
