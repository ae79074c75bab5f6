"""A wrapper is a method whose setting is another method: it can do everything that a method can."""

from __future__ import annotations

import json
import math
import pickle
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

import kedge
from cases import simulated
from command import npz
from command import run as command
from kedge import SettingError, StatA, ZeroShot
from kedge.benchmark.cells import plan_cells
from kedge.benchmark.grid import Grid
from kedge.benchmark.record import Record, as_argument, label
from kedge.benchmark.run import run
from kedge.features.simulate import simulate
from kedge.labelling.check_method import check_method
from kedge.methods.registry import build, parse_method
from kedge.methods.settings import changed_settings, description, settings_of
from toy_methods import Bare, Plain, Tempered

TEMPERED_STATA = Tempered(StatA(alpha=10), strength=2)
NESTED = {"name": "tempered", "strength": 2, "method": {"name": "stata", "alpha": 10}}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name.lower(), f"toy_methods:{name}", "kedge.methods") for name in ("Tempered", "Bare")]
    monkeypatch.setattr("kedge.methods.registry._plugins", lambda: {point.name: point for point in points})


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("stata", StatA()),
        ("stata:alpha=10,beta=soft", StatA(alpha=10, beta="soft")),
        (" stata : alpha = 10 ", StatA(alpha=10)),
        ("tempered", Tempered()),
        ("tempered:stata", Tempered(StatA())),
        ("tempered:strength=2", Tempered(strength=2)),
        ("tempered:stata:alpha=10", Tempered(StatA(alpha=10))),
        ("tempered:strength=2,note=twice:stata:alpha=10,beta=soft",
         Tempered(StatA(alpha=10, beta="soft"), strength=2, note="twice")),
        ("tempered:tempered:strength=3:stata", Tempered(Tempered(StatA(), strength=3))),
        ("tempered:method=stata", Tempered(StatA())),
        ("bare:zero-shot", Bare(ZeroShot())),
    ],
)  # fmt: skip
def test_the_grammar(text: str, method: Any) -> None:
    assert build(text) == method
    assert build(parse_method(text)) == method
    assert build(as_argument(method.name, changed_settings(method))) == method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tempered:strength=2:alpha=10", "not clear whose setting 'alpha=10' is"),
        ("tempered:method=stata:alpha=10", "not clear whose setting 'alpha=10' is"),
        ("tempered:method=stata:oga", "gives the inner method of 'tempered' twice"),
        ("stata:oga", "'stata' takes no inner method; got 'oga'"),
        ("stata:alpha", "'stata' takes no inner method; got 'alpha'. Settings are written name=value"),
        ("tempered:stata:strength=2", "'stata' has no setting 'strength'"),
        ("tempered:statt", "unknown method 'statt'; did you mean 'stata'"),
        ("tempered:", "ends in the middle"),
        ("tempered::stata", "ends in the middle"),
        ("stata:", "ends in the middle"),
        ("stata:alpha=1,", "a setting is written name=value; got ''"),
        ("bare", "'bare' needs the setting 'method'. Write for example bare:stata"),
        ("", "unknown method ''"),
    ],
)
def test_what_the_grammar_refuses(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        build(text)
    assert "\n" not in str(caught.value)


def test_descriptions_are_nested() -> None:
    assert build(NESTED) == TEMPERED_STATA
    assert build({**NESTED, "method": "stata:alpha=10"}) == TEMPERED_STATA
    assert build({**NESTED, "method": StatA(alpha=10)}) == TEMPERED_STATA
    assert build("tempered:stata:alpha=10", {"strength": 2}) == TEMPERED_STATA
    assert build("tempered", {"method": {"name": "stata", "alpha": 10}, "strength": 2}) == TEMPERED_STATA
    assert description(TEMPERED_STATA, changed=True) == NESTED
    assert settings_of(TEMPERED_STATA)["method"] == {"name": "stata", **settings_of(StatA(alpha=10))}
    assert build(json.loads(json.dumps(description(TEMPERED_STATA)))) == TEMPERED_STATA
    assert changed_settings(Tempered()) == {}
    assert changed_settings(Bare(StatA())) == {"method": {"name": "stata"}}


def test_infinite_numbers_survive_json() -> None:
    method = Tempered(StatA(alpha=math.inf))
    text = json.dumps(description(method), allow_nan=False)
    assert build(json.loads(text)) == method


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": 3}, "method must be a method object, like kedge.StatA(); got 3"),
        ({"method": StatA}, "method must be a method object"),
        ({"method": {"alpha": 1}}, "a method with settings is written"),
        ({"method": {"name": "stata", "alpha": -1}}, "alpha must be at least 0"),
        ({"note": 3}, "note must be text; got 3"),
        ({"note": None}, "note must be text; got None"),
        ({"colour": 1}, "'tempered' has no setting 'colour'"),
    ],
    ids=str,
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        build("tempered", settings)
    assert message in str(caught.value)


def test_a_setting_is_given_once() -> None:
    with pytest.raises(SettingError, match="strength of method 'tempered' is given twice"):
        build("tempered:strength=2", {"strength": 3})


def test_traits_follow_the_inner_method() -> None:
    assert (build("tempered").traits.scope, build("tempered:stata").traits.scope) == ("image", "batch")
    assert build("tempered:mta").traits.needs == "views"
    with pytest.raises(kedge.InputError, match="method 'tempered' needs augmented views"):
        kedge.adapt(*simulated(3, 2), method="tempered:mta")


def test_adapt() -> None:
    x, t = simulated(12, 4)
    inner = kedge.adapt(x, t, method="stata", alpha=10)
    expected = (2 * inner.probs.log()).softmax(dim=1)
    for method in ("tempered:strength=2:stata:alpha=10", NESTED, TEMPERED_STATA):
        found = kedge.adapt(x, t, method=method)
        assert torch.equal(found.probs, expected)
        assert found.info["method"] == "tempered"


def test_saved_streams_continue(tmp_path: Path) -> None:
    x, t = simulated(24, 4)
    stream = kedge.Stream(method="tempered:note=second:oga:slots=3", text_features=t)
    stream.step(x[:12])
    stream.save(tmp_path / "stream.safetensors")
    loaded = kedge.Stream.load(tmp_path / "stream.safetensors")
    assert loaded.method == stream.method == Tempered(kedge.OGA(slots=3), note="second")
    assert torch.equal(loaded.step(x[12:]).probs, stream.step(x[12:]).probs)
    with pytest.raises(kedge.FileError, match="is a stream of 'tempered'"):
        kedge.Stream.load(tmp_path / "stream.safetensors", Tempered(kedge.OGA(slots=4), note="second"))


def test_records_and_labels(tmp_path: Path) -> None:
    record = kedge.evaluate(TEMPERED_STATA, simulate(100, 5, 16), "low", tasks=2)
    assert {"name": record.method, **record.settings} == NESTED
    assert record.label == "tempered:strength=2:stata alpha=10"
    record.save(tmp_path / "record.json")
    loaded = Record.load(tmp_path / "record.json")
    assert loaded == record
    assert build({"name": loaded.method, **loaded.settings}) == TEMPERED_STATA


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (Tempered(), "tempered"),
        (Tempered(strength=2), "tempered strength=2"),
        (Tempered(StatA()), "tempered:stata"),
        (Tempered(StatA(alpha=10)), "tempered:stata alpha=10"),
        (Tempered(StatA(alpha=10), strength=2, note="v1.0"), "tempered:strength=2,note=v1.0:stata alpha=10"),
        (Tempered(Tempered(StatA())), "tempered:tempered:stata"),
    ],
)
def test_labels(method: Any, text: str) -> None:
    assert label(method.name, changed_settings(method)) == text


def test_a_label_with_two_inner_methods() -> None:
    settings = {"first": {"name": "stata", "alpha": 10.0}, "second": {"name": "tda"}}
    assert label("blend", settings) == "blend first=(stata alpha=10) second=(tda)"


def test_a_benchmark_on_two_processes(tmp_path: Path) -> None:
    simulate(120, 6, 16).save(tmp_path / "birds.safetensors")
    (tmp_path / "grid.toml").write_text(
        """
        methods = ["tempered:stata", {name = "tempered", strength = 2, method = {name = "stata", alpha = 10}}]
        features = ["birds.safetensors"]
        scenarios = ["very-low"]
        tasks = 3
        jobs = 2
        """
    )
    grid = Grid.load(tmp_path / "grid.toml", out=tmp_path / "out")
    assert grid.methods == (Tempered(StatA()), TEMPERED_STATA)
    assert pickle.loads(pickle.dumps(grid.methods)) == grid.methods
    outcome = run(grid)
    assert outcome.failed == ()
    assert [r.label for r in outcome.records()] == ["tempered:stata", "tempered:strength=2:stata alpha=10"]
    assert run(grid).ran == 0
    names = {cell.name for cell in outcome.cells}
    assert len(names) == 2
    other = Grid.load(tmp_path / "grid.toml", methods=["tempered:stata:alpha=2"])
    assert not names & {cell.name for cell in plan_cells(other).cells}
    table = command("table", tmp_path / "out")
    assert "tempered:stata" in table.out


def test_the_command_line(tmp_path: Path) -> None:
    ran = command("adapt", npz(tmp_path), "--method", "tempered:stata:alpha=10", "--set", "strength=2", "--json")
    assert ran.code == 0
    assert build({"name": "tempered", **json.loads(ran.out)["settings"]}) == TEMPERED_STATA
    nested = command("adapt", npz(tmp_path), "--method", "tempered", "--set", "method=stata:alpha=10", "--json")
    assert json.loads(nested.out)["settings"]["method"]["alpha"] == 10
    rows = {row["name"]: row for row in json.loads(command("ls", "methods", "--json").out)["methods"]}
    assert rows["tempered"]["scope"] == "image"
    assert rows["bare"]["error"] == "method 'bare' needs the setting 'method'. Write for example bare:stata"
    settings = {s["name"]: s for s in json.loads(command("ls", "methods", "tempered", "--json").out)["settings"]}
    assert (settings["method"]["default"], settings["method"]["values"]) == ("zero-shot", "method")
    assert (settings["note"]["default"], settings["note"]["values"]) == ("", "text")
    assert "the method that is tempered" in command("ls", "methods", "tempered").out
    bare = json.loads(command("ls", "methods", "bare", "--json").out)["settings"]
    assert bare == [{"name": "method", "default": None, "values": "method", "meaning": ""}]


def test_a_benchmark_of_all_methods_leaves_out_a_wrapper_of_nothing() -> None:
    grid = Grid.of(["x"], methods=["all"], scenarios=["all"])
    assert Tempered() in grid.methods
    assert grid.left_out == ("method 'bare' needs the setting 'method'. Write for example bare:stata",)


def test_check_method() -> None:
    check_method("tempered:strength=0.5:zero-shot")
    check_method("bare:zero-shot")
    with pytest.raises(kedge.ContractError, match=r"'tempered' breaks 1 check.*\n  settings_survive_json: .*'plain'"):
        check_method(Tempered(Plain()))  # the inner method is not registered, so nothing can read it back
