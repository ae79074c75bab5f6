"""Names, plugins and settings: what is accepted, and the messages for what is not."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

import kedge
from cases import simulated
from command import run
from kedge import SettingError, StatA
from kedge.methods import registry
from kedge.methods.contract import Method, Traits
from kedge.methods.registry import build, find_method, list_methods
from kedge.methods.settings import Configured, parse, setting
from kedge.methods.zero_shot import ZeroShot

# Names


def test_names_make_methods_of_that_name() -> None:
    assert {"zero-shot", "stata"} <= set(list_methods())
    assert len(set(list_methods())) == len(list_methods())
    for name in list_methods():
        method = build(name)
        assert isinstance(method, Method)
        assert method.name == name
        assert type(method) is find_method(name)
        assert all(f.metadata["doc"] for f in fields(method))  # type: ignore[arg-type]


def test_public_names_stay_what_they_are() -> None:
    """In a fresh interpreter; a submodule of the same name must not take the place of a function."""
    code = (
        "import kedge\n"
        "first = {name: getattr(kedge, name) for name in kedge.__all__}\n"
        "assert set(dir(kedge)) == set(first)\n"
        "assert all(getattr(kedge, name) is first[name] for name in first)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_does_not_wait_for_torch() -> None:
    code = "import sys, kedge; kedge.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'adpt'"):
        kedge.adpt  # noqa: B018


@pytest.mark.parametrize(
    ("name", "meant"),
    [("statA", "stata"), ("stat", "stata"), ("zeroshot", "zero-shot"), ("zero_shot", "zero-shot")],
)
def test_did_you_mean_the_method(name: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"unknown method {name!r}; did you mean {meant!r}"):
        kedge.adapt(*simulated(3, 2), method=name)


def test_far_names_list_the_choice() -> None:
    with pytest.raises(SettingError, match="unknown method 'xyz'; choose from zero-shot, kedge, stata"):
        build("xyz")


@pytest.mark.parametrize(
    ("name", "meant"), [("aplha", "alpha"), ("Beta", "beta"), ("z-steps", "z_steps"), ("zsteps", "z_steps")]
)
def test_did_you_mean_the_setting(name: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"'stata' has no setting {name!r}; did you mean {meant!r}"):
        kedge.adapt(*simulated(3, 2), method="stata", **{name: 1})


def test_a_method_without_settings_says_so() -> None:
    with pytest.raises(SettingError, match="'zero-shot' has no setting 'alpha'; it has no settings"):
        build("zero-shot", {"alpha": 1})


def test_objects_pass_through_and_take_no_settings() -> None:
    method = StatA(alpha=3)
    assert build(method) is method
    with pytest.raises(SettingError, match=r"settings \(alpha\) go with a method's name"):
        build(method, {"alpha": 1})
    for wrong in (StatA, None, 3, object()):
        with pytest.raises(SettingError, match="a method is a registered name"):
            build(wrong)  # type: ignore[arg-type]


# Plug-ins


@dataclass(frozen=True)
class Plugged(ZeroShot):
    name: ClassVar[str] = "plugged"
    traits: ClassVar[Traits] = ZeroShot.traits


@dataclass(frozen=True)
class Impostor(ZeroShot):
    """Announces itself as ours."""


@dataclass(frozen=True)
class Nameless(Configured):
    traits: ClassVar[Traits] = ZeroShot.traits
    init, step = ZeroShot.init, ZeroShot.step


@dataclass(frozen=True)
class Traitless(Configured):
    name: ClassVar[str] = "traitless"
    init, step = ZeroShot.init, ZeroShot.step


@dataclass(frozen=True)
class WrongTraits(Traitless):
    name: ClassVar[str] = "wrong-traits"
    traits: ClassVar[dict[str, str]] = {"needs": "features"}


@dataclass(frozen=True)
class LateName(ZeroShot):
    """Its name is known only of an object."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return "later"


@dataclass(frozen=True)
class Explodes(ZeroShot):
    name: ClassVar[str] = "explodes"

    def __post_init__(self) -> None:
        raise RuntimeError("no\nlicence")


@dataclass(frozen=True)
class LateTraits(ZeroShot):
    name: ClassVar[str] = "late-traits"

    @functools.cached_property
    def traits(self) -> Traits:  # type: ignore[override]
        raise KeyError("inner")


@dataclass(frozen=True)
class LostType(ZeroShot):
    name: ClassVar[str] = "lost-type"
    size: NoSuchType = 1  # type: ignore[name-defined]  # noqa: F821


def no_class() -> None: ...


PACKAGE = "of another package"
BROKEN_PLUGINS = {
    "absent": ("no_such_module_of_ours:Nothing", f"method 'absent' {PACKAGE} does not load: No module named"),
    "explodes": (f"{__name__}:Explodes", "method 'explodes' cannot be made: no licence"),
    "function": (f"{__name__}:no_class", f"method 'function' {PACKAGE} is not a dataclass: <function no_class"),
    "late": (f"{__name__}:LateName", f"method 'late' {PACKAGE} calls itself 'later'. The names must be equal."),
    "late-traits": (f"{__name__}:LateTraits", "method 'late-traits' cannot be made: 'inner'"),
    "lost-type": (f"{__name__}:LostType", f"method 'lost-type' {PACKAGE} does not load: name 'NoSuchType' is not"),
    "nameless": (f"{__name__}:Nameless", f"method 'nameless' {PACKAGE} has no `name`."),
    "other": (f"{__name__}:Plugged", f"method 'other' {PACKAGE} calls itself 'plugged'. The names must be equal."),
    "traitless": (f"{__name__}:Traitless", f"method 'traitless' {PACKAGE} has no `traits`."),
    "wrong-traits": (
        f"{__name__}:WrongTraits",
        f"method 'wrong-traits' {PACKAGE} needs a Traits object as its `traits`.",
    ),
}


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package with a method that works, one with the name of a built-in, and many that do not work."""
    good = {"plugged": f"{__name__}:Plugged", "stata": f"{__name__}:Impostor"}
    places = {**good, **{name: place for name, (place, _) in BROKEN_PLUGINS.items()}}
    points = [EntryPoint(name, place, registry.ENTRY_POINTS) for name, place in places.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "kedge.methods" else [])
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


def test_plugins_are_methods_like_ours(plugins: None) -> None:
    assert set(list_methods()) >= {"absent", "plugged"}
    x, t = simulated(5, 3)
    assert kedge.adapt(x, t, method="plugged").info["method"] == "plugged"
    with pytest.raises(SettingError, match="did you mean 'plugged'"):
        build("pluged")


def test_plugins_do_not_take_our_names(plugins: None) -> None:
    assert find_method("stata") is StatA
    assert list_methods().count("stata") == 1


@pytest.mark.parametrize("name", BROKEN_PLUGINS)
def test_a_broken_plugin_is_reported_in_one_line(plugins: None, name: str) -> None:
    message = BROKEN_PLUGINS[name][1]
    with pytest.raises(SettingError) as caught:
        build(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    with pytest.raises(kedge.ContractError) as checked:
        kedge.check_method(name)
    assert str(checked.value) == str(caught.value)


def test_broken_plugins_do_not_disturb_the_others(plugins: None) -> None:
    assert build("stata") == StatA()
    rows = {row["name"]: row for row in json.loads(run("ls", "methods", "--json").out)["methods"]}
    grid = kedge.Grid.of(["x"], methods=["all"], scenarios=["all"])
    assert {"stata", "plugged"} <= {method.name for method in grid.methods}
    assert len(grid.left_out) == len(BROKEN_PLUGINS)
    for name, (_, message) in BROKEN_PLUGINS.items():
        assert rows[name]["error"].startswith(message)
        assert any(reason.startswith(message) for reason in grid.left_out)
    assert rows["plugged"]["paper"] == "CLIP"
    shown = run("ls", "methods")
    assert (shown.code, shown.err) == (0, "around a method: calibrated:METHOD\n")
    assert len([line for line in shown.out.splitlines() if PACKAGE in line or "cannot be made" in line]) == len(
        BROKEN_PLUGINS
    )


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1}, "alpha must be at least 0; got -1"),
        ({"alpha": float("nan")}, "alpha must be a finite number; got nan"),
        ({"alpha": "1"}, "alpha must be a number; got '1'"),
        ({"alpha": True}, "alpha must be a number; got True"),
        ({"alpha": None}, "alpha must be a number; got None"),
        ({"alpha": 1j}, "alpha must be a number"),
        ({"temperature": 0}, "temperature must be at least 0.001; got 0"),
        ({"laplacian": float("inf")}, "laplacian must be at most 1e6; got inf"),
        ({"iterations": 2**63}, "iterations must be at most 1,000; got 9223372036854775808"),
        ({"alpha": np.ones(2)}, r"alpha must be a number; got array\(\[1., 1.\]\)"),
        ({"beta": np.ones(2)}, "beta must be one of 'hard', 'soft'; got array"),
        ({"neighbours": 0}, "neighbours must be at least 1; got 0"),
        ({"neighbours": 2.0}, "neighbours must be a whole number; got 2.0"),
        ({"z_steps": 0}, "z_steps must be at least 1"),
        ({"iterations": -1}, "iterations must be at least 0"),
        ({"laplacian": -0.1}, "laplacian must be at least 0"),
        ({"beta": "medium"}, "beta must be one of 'hard', 'soft'; got 'medium'"),
        ({"graph": None}, "graph must be one of"),
        ({"unit_means": 1}, "unit_means must be true or false; got 1"),
    ],
    ids=str,
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        StatA(**settings)
    with pytest.raises(SettingError, match=message):  # and before anything is looked at
        kedge.adapt(None, None, method="stata", **settings)


def test_settings_become_plain_numbers() -> None:
    """So that methods are equal, hashed and written as JSON alike, whatever kind of number was given."""
    a = StatA(alpha=np.float32(2), neighbours=np.int64(4), iterations=np.uint8(3))
    assert a == StatA(alpha=2, neighbours=4, iterations=3)
    assert hash(a) == hash(StatA(alpha=2, neighbours=4, iterations=3))
    assert [type(v) for v in (a.alpha, a.neighbours, a.iterations)] == [float, int, int]
    assert StatA(alpha=float("inf")).alpha == float("inf")


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        StatA().alpha = 2.0  # type: ignore[misc]


def test_literal_is_a_setting_like_any_other() -> None:
    literal = StatA.literal(alpha=3)
    assert (literal.alpha, literal.temperature, literal.graph, literal.beta) == (3.0, 1.0, "dense", "soft")
    assert not literal.unit_means
    with pytest.raises(SettingError, match="alpha must be at least 0"):
        StatA.literal(alpha=-1)


# name=value, as on the command line


@dataclass(frozen=True)
class Knobs(Configured):
    size: int = setting(1, "a whole number", low=1)
    rate: float = setting(0.5, "a number", above=0)
    on: bool = setting(False, "a switch")
    mode: Literal["a", "b"] = setting("a", "a choice")


def test_parse() -> None:
    assert parse(Knobs, ["size=3", "rate = 1e-3", "on=YES", "mode=b"], "knobs") == {
        "size": 3,
        "rate": 1e-3,
        "on": True,
        "mode": "b",
    }
    assert parse(Knobs, ["on=0"], "knobs") == {"on": False}
    assert parse(StatA, ["z-steps=2", "alpha=inf"], "stata") == {"z_steps": 2, "alpha": float("inf")}
    assert parse(Knobs, ["rate=1", "rate=2"], "knobs") == {"rate": 2.0}
    assert parse(Knobs, [], "knobs") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size", "a setting is written name=value; got 'size'"),
        ("=3", "a setting is written name=value"),
        ("size=", "size must be a whole number; got ''"),
        ("size=1.5", "size must be a whole number; got '1.5'"),
        ("rate=fast", "rate must be a number; got 'fast'"),
        ("sise=1", "'knobs' has no setting 'sise'; did you mean 'size'"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(Knobs, [text], "knobs")


@pytest.mark.parametrize(
    ("text", "message"), [("on=maybe", "on must be true or false"), ("mode=c", "mode must be one of")]
)
def test_parse_leaves_the_range_to_the_method(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Knobs(**parse(Knobs, [text], "knobs"))
