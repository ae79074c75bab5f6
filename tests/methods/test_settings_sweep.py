"""Every setting of every method, through extreme values, on hostile inputs: probabilities come out, or one line.

What is tried is in `tests/support/sweeping.py`; here it is tried once, without the counts that take long.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import cycle

import numpy as np
import pytest

import kedge
from command import run
from kedge.methods.registry import find_method, list_methods
from kedge.methods.settings import hints
from sweeping import CHEAP, fault, hostile_inputs, random_trial, trials

NUMBERS = [(name, f.name) for name in list_methods() for f in fields(find_method(name)) if f.type in ("int", "float")]


@pytest.mark.parametrize("name", list_methods())
def test_defaults_on_hostile_inputs(name: str) -> None:
    assert {inputs: found for inputs in hostile_inputs() if (found := fault(name, CHEAP.get(name, {}), inputs))} == {}


@pytest.mark.parametrize("name", list_methods())
def test_extreme_settings_give_probabilities_or_one_line(name: str) -> None:
    inputs = cycle(hostile_inputs())
    found = {
        f"{settings} on {each}": fault(name, settings, each)
        for settings in trials(name, True)
        for each in [next(inputs)]
    }
    assert {trial: wrong for trial, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("seed", range(3))
def test_random_settings_give_probabilities_or_one_line(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(20):
        name, settings, inputs = random_trial(random)
        assert not fault(name, settings, inputs), f"{name} {settings} on {inputs}"


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_every_number_has_a_range(name: str, setting: str) -> None:
    """It is finite but for documented limits, the default is in it, and the command line shows it."""
    (f,) = (f for f in fields(find_method(name)) if f.name == setting)
    low = f.metadata["low"] if f.metadata["above"] is None else f.metadata["above"]
    assert low <= f.default <= f.metadata["high"]
    if setting not in ("alpha", "temperature"):
        assert f.metadata["high"] < float("inf")
    assert hints(find_method(name))[setting] in (int, float)


def test_ranges_are_listed() -> None:
    shown = run("ls", "methods", "stata").out
    assert "number ≥ 0, ≤ 1e6" in shown
    assert "whole number ≥ 0, ≤ 1,000" in shown
    assert "number ≥ 0 or inf" in shown


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("tda", {"positive_slots": 3_000_000}),
        ("tda", {"negative_slots": 3_000_000}),
        ("dmn", {"slots": 3_000_000}),
        ("oga", {"slots": 3_000_000}),
        ("stata", {"laplacian": 1e308}),
        ("stata", {"iterations": 2**63}),
        ("transclip", {"temperature": 1e-300}),
        ("mta", {"smoothness": 1e-300}),
    ],
)
def test_settings_that_took_all_memory_or_time_or_gave_nan(method: str, settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(kedge.SettingError, match=f"{name} must be at (most|least)"):
        kedge.Stream(np.eye(3, 4), method, **settings)


@pytest.mark.parametrize("method", [kedge.TDA(positive_slots=1000), kedge.DMN(slots=1000), kedge.OGA(slots=1000)])
def test_slots_are_checked_against_memory(method: kedge.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_MAX_BYTES", "1000000")
    with pytest.raises(kedge.SettingError, match=r"1,000 slots for each of 100 classes .* the limit is 1 MB"):
        kedge.Stream(np.eye(100, dtype=np.float32), method)


def test_products_of_slots_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_MAX_BYTES", "30000000")  # enough for the entries, not for their inner products
    with pytest.raises(kedge.SettingError, match=r"1,000 slots for each of 10 classes would take 40\.1 MB"):
        kedge.Stream(np.eye(10, 16, dtype=np.float32), kedge.DMN(slots=1000))
