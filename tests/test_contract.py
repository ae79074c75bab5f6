"""Every registered method keeps the contract; and each check fails on a method made to break it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kedge
import toy_methods as toy
from kedge.labelling.check_method import check_method, method_checks
from kedge.methods.registry import list_methods

VARIANTS = [
    kedge.StatA(beta="soft"),
    kedge.StatA(alpha=0.0),
    kedge.StatA.literal(iterations=20),
    kedge.StatA(tol=1e-3),
    kedge.StatA(compiled=False),
    kedge.Kedge(memory=False),
    kedge.Kedge(guard=False),
    kedge.Kedge(compiled=False),
]
UNDER_CONTRACT = [
    *((name, name) for name in list_methods()),
    *((f"{method.name}-{i}", method) for i, method in enumerate(VARIANTS)),
]


IN_ORDER = {"permuted_images_permute_rows": "an image sees those before it"}  # image by image, in every setting
SKIPPED = dict.fromkeys(("adapt-nips25-online", "bca", "boostadapter", "dota", "ecalp", "onlab"), IN_ORDER)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{title}-{name}")
        for title, method in UNDER_CONTRACT
        for name, check in method_checks(method, SKIPPED.get(title))
    ],
)
def test_contract(check: Callable[[], None]) -> None:
    check()


HONEST = [
    *(toy.Plain(), toy.Running(), toy.Viewing(), toy.Told()),
    *(toy.Tempered(kedge.ZeroShot(), strength=0.5, note="half"), toy.Tempered(kedge.OGA()), toy.Tempered(kedge.MTA())),
    toy.Bare(kedge.ZeroShot()),
]


@pytest.mark.parametrize("method", HONEST, ids=lambda method: type(method).__name__)
def test_honest_methods_pass(method: Any) -> None:
    check_method(method)


BROKEN: list[tuple[Any, set[str]]] = [
    (toy.Changeable(), {"settings_are_frozen"}),
    (toy.BadName(), {"has_name_and_traits"}),
    (toy.BadTraits(), {"has_name_and_traits"}),
    (toy.NameIsASetting(), {"has_name_and_traits"}),
    (toy.CrashesForOneImage(), {"rows_on_simplex"}),
    (toy.DividesByPrototypeDistance(), {"rows_on_simplex_for_twin_classes"}),
    (toy.DividesByImageDistance(), {"rows_on_simplex_for_twin_images"}),
    (toy.ExponentiatesLogits(), {"rows_on_simplex_at_any_logit_scale"}),
    (toy.AlwaysFloat32(), {"keeps_precision"}),
    (toy.WritesToFeatures(), {"changes_nothing_it_is_given"}),
    (toy.SetsTheSeed(), {"changes_nothing_it_is_given"}),
    (toy.WritesToState(), {"changes_nothing_it_is_given"}),
    (toy.ReadsClassNames(), {"sees_only_the_features"}),
    (toy.PreparesOfAllImages(), {"prepared_tables_change_nothing"}),
    (toy.LooksAtOtherImages(), {"image_scope_keeps_rows_apart"}),
    (toy.DependsOnOrder(), {"permuted_images_permute_rows"}),
    (toy.PrefersTheFirstClass(), {"permuted_classes_permute_columns"}),
    (toy.KeepsAnUndeclaredState(), {"memory_is_as_declared"}),
    (toy.IgnoresKnown(), {"known_labels_are_kept"}),
    (toy.DropsKnownRows(), {"known_labels_are_kept"}),
    (toy.WritesToKnown(), {"changes_nothing_it_is_given"}),
    (toy.MixesClasses(), {"classes_come_and_go"}),
    (toy.NeedsAllClasses(), {"classes_come_and_go"}),
    (toy.Ungraded(), {"graded_is_as_declared"}),
    (toy.Graded(), {"graded_is_as_declared"}),
    (toy.TensorInInfo(), {"info_is_json"}),
    # What these do is seen by more than one check, rightly.
    (toy.TupleSetting(), {"settings_survive_json", "saved_stream_continues"}),
    (
        toy.Random(),
        {
            "repeats_bit_for_bit",
            "sees_only_the_features",
            "saved_stream_continues",
            "memory_is_as_declared",
            "unknown_labels_change_nothing",
        },
    ),
    (toy.StateGrows(), {"memory_is_as_declared", "saved_stream_continues", "classes_come_and_go"}),
    (
        toy.StateOfNumbers(),
        {"memory_is_as_declared", "saved_stream_continues", "changes_nothing_it_is_given", "classes_come_and_go"},
    ),
    (toy.CountsOutsideTheState(), {"saved_stream_continues"}),
]


def broken_checks(method: Any, skip: Mapping[str, str] | None = None) -> set[str]:
    with pytest.raises(kedge.ContractError) as caught:
        check_method(method, skip)
    return set(re.findall(r"^  (\w+): ", str(caught.value), flags=re.MULTILINE))


@pytest.mark.parametrize(("method", "checks"), BROKEN, ids=lambda value: type(value).__name__ if value else None)
def test_a_broken_method_fails_its_check_alone(method: Any, checks: set[str]) -> None:
    assert broken_checks(method) == checks


def test_every_check_can_fail() -> None:
    """Together with the methods that fail everything below, each check has a method that it catches."""
    caught = (
        set().union(*(checks for _, checks in BROKEN))
        | broken_checks(toy.KeywordOnly())
        | broken_checks(toy.NotNormalised())
    )
    assert caught == {name for name, _ in method_checks(toy.Plain())}


def test_methods_that_can_not_run_fail_all_that_run_them() -> None:
    static = {"settings_are_frozen", "settings_survive_json", "has_name_and_traits"}
    everything = {name for name, _ in method_checks(toy.Plain())}
    assert broken_checks(toy.KeywordOnly()) == everything - static
    assert broken_checks(object()) == everything
    assert broken_checks(kedge.StatA) >= {"settings_are_frozen", "rows_on_simplex"}  # a class, not an object


def test_not_normalised_fails_every_look_at_rows() -> None:
    assert {name for name in broken_checks(toy.NotNormalised()) if "simplex" in name} == {
        name for name, _ in method_checks(toy.Plain()) if "simplex" in name
    }


def test_a_method_that_reads_labels_can_not_run() -> None:
    @dataclass(frozen=True)
    class Cheats(toy.Plain):
        def z(self, batch: kedge.Batch) -> Tensor:
            return torch.nn.functional.one_hot(batch.labels, batch.head.k)  # type: ignore[attr-defined]

    assert "rows_on_simplex" in broken_checks(Cheats())


def test_error_names_the_method_and_what_was_found() -> None:
    with pytest.raises(
        kedge.ContractError,
        match=r"'plain' breaks 1 check.*\n  keeps_precision: torch.float64 .* torch.float32",
    ):
        check_method(toy.AlwaysFloat32())


def test_registered_name_is_enough() -> None:
    check_method("zero-shot")


def test_skip_needs_a_reason_and_a_known_name() -> None:
    reason = {"permuted_images_permute_rows": "images are averaged in their order"}
    check_method(toy.DependsOnOrder(), skip=reason)
    with pytest.raises(kedge.SettingError, match="without a reason"):
        check_method(toy.DependsOnOrder(), skip={"permuted_images_permute_rows": " "})
    with pytest.raises(kedge.SettingError, match="did you mean 'permuted_images_permute_rows'"):
        check_method(toy.DependsOnOrder(), skip={"permuted_image_permute_rows": "typo"})


def test_skip_is_strict() -> None:
    with pytest.raises(kedge.ContractError, match=r"info_is_json: passes, although it is skipped \(once broken\)"):
        check_method(toy.Plain(), skip={"info_is_json": "once broken"})


def test_methods_with_encoders_are_tried() -> None:
    """They get a small encoder with its images, and are seen when they write to it."""

    @dataclass(frozen=True)
    class Encoding(toy.Plain):
        traits = replace(toy.BATCH, needs="encoder")

        def z(self, batch: kedge.Batch) -> Tensor:
            assert batch.encoder is not None
            return kedge.Batch(batch.encoder(batch.images), batch.head).log_zero_shot.exp()

    @dataclass(frozen=True)
    class Training(Encoding):
        def z(self, batch: kedge.Batch) -> Tensor:
            z = super().z(batch)
            assert batch.encoder is not None
            for weight in batch.encoder.parameters():
                weight.mul_(1 + 1e-9)
            return z

    check_method(Encoding())
    assert "changes_nothing_it_is_given" in broken_checks(Training())
