"""The commands around a benchmark: bench, table, report, plan, ls scenarios. Features are simulated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from command import run
from kedge.benchmark.plan import Plan, draw
from kedge.benchmark.record import Record, load_records
from kedge.benchmark.scenarios import SCENARIOS
from kedge.features.simulate import simulate
from kedge.methods import zero_shot


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "birds.safetensors"
    simulate(120, 6, 16).save(path)
    return path


FAST = ["--scenario", "very-low", "--tasks", 3]
TWO = ["--method", "zero-shot", "--method", "stata"]


def test_bench_table_and_back(birds: Path) -> None:
    ran = run("bench", birds, *FAST, *TWO, "--seed", 0, "--seed", 1)
    assert (ran.code, ran.out) == (0, "")
    assert re.fullmatch(r"about \d+ s for 4 cells", ran.err.splitlines()[0])
    assert ran.err.splitlines()[1:] == [
        "4 cells: 4 run, 0 done before → kedge-bench",
        "to show them: kedge table kedge-bench",
        "as a page, with tail accuracy and calibration: kedge report kedge-bench",
    ]
    assert run("bench", birds, *FAST, *TWO, "--seed", 1).err.startswith("2 cells: 0 run, 2 done before")

    records = load_records(["kedge-bench"])
    table = run("table", "kedge-bench", "--format", "json")
    (found,) = json.loads(table.out)["tables"]
    accuracy = np.mean([100 * (record.accuracy or 0) for record in records if record.label == "stata"])
    assert found["rows"][1]["label"] == "stata"
    assert found["rows"][1]["values"] == {"birds": pytest.approx(accuracy, abs=1e-5)}
    assert (found["seeds"], found["simulated"]) == ([0, 1], "simulated")
    assert "SIMULATED" in run("table", "kedge-bench").out
    gains = run(
        "table", "kedge-bench", "--rows", "scenario", "--cols", "label", "--value", "gain", "--format", "md"
    ).out
    assert "| scenario | zero-shot | stata |" in gains


def test_bench_json_and_quiet(birds: Path) -> None:
    ran = run("bench", birds, *FAST, "--json", "--quiet", "--out", "here", "--method", "stata:alpha=2")
    assert ran.err == ""
    assert json.loads(ran.out) == {"out": "here", "cells": 1, "run": 1, "done_before": 0, "failed": [], "left_out": []}


def test_dry_run_lists_the_cells_and_runs_nothing(birds: Path) -> None:
    listed = json.loads(run("bench", birds, *FAST, "--dry-run", "--json").out)["cells"]
    told = ("label", "dataset", "scenario", "seed", "tasks", "state")
    assert [tuple(row[name] for name in told) for row in listed] == [
        (method, "birds", "very-low", 0, 3, "to do") for method in ("zero-shot", "stata", "kedge")
    ]  # the methods that are compared by default
    assert not Path("kedge-bench").exists()
    run("bench", birds, *FAST, "--method", "stata")
    ran = run("bench", birds, *FAST, "--dry-run")
    assert "done" in next(line for line in ran.out.splitlines() if "stata" in line)
    assert "to do" in next(line for line in ran.out.splitlines() if "zero-shot" in line)
    assert ran.err == "3 cells: 1 done, 2 to run → kedge-bench\n"
    names = {row["file"] for row in listed}
    assert {path.name for path in Path("kedge-bench").iterdir()} < names


def test_failures_are_told_and_the_exit_code_is_1(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ValueError("it is\nMonday")

    with monkeypatch.context() as patched:
        patched.setattr(zero_shot.ZeroShot, "step", fail)
        ran = run("bench", birds, *FAST, *TWO, "--json")
    assert ran.code == 1
    assert ran.err.startswith("about ")
    assert ran.err.partition("\n")[2] == (
        "failed: zero-shot on birds, very-low, seed 0: ValueError: it is Monday\n"
        "1 of 2 cells failed; the next run tries again.\n"
    )
    (failed,) = json.loads(ran.out)["failed"]
    assert (failed["label"], failed["error"]) == ("zero-shot", "ValueError: it is Monday")
    listed = json.loads(run("bench", birds, *FAST, *TWO, "--dry-run", "--json").out)["cells"]
    assert [row["state"] for row in listed] == ["failed before", "done"]
    table = run("table", "kedge-bench")
    assert table.code == 0
    assert "failed" in table.out
    assert table.err == "note: zero-shot, birds, seed 0 failed: ValueError: it is Monday\n"
    assert run("bench", birds, *FAST).code == 0
    assert run("table", "kedge-bench").err == ""


def test_a_grid_file_and_flags_that_replace_it(birds: Path) -> None:
    Path("grid.toml").write_text(
        'features = ["birds.safetensors"]\nmethods = ["stata"]\nscenarios = ["low"]\ntasks = 2\nout = "there"\n'
    )
    assert run("bench", "--grid", "grid.toml", "--scenario", "medium", "--seed", 3).code == 0
    (record,) = load_records(["there"])
    assert (record.label, record.scenario, record.seed, record.tasks) == ("stata", "medium", 3, 2)


def test_a_preset(birds: Path) -> None:
    ran = run("bench", birds, "--preset", "beta", "--tasks", 1, "--dry-run", "--json")
    cells = json.loads(ran.out)
    assert {row["scenario"] for row in cells["cells"]} == {"batches:size=1000,k_min=5,k_max=5"}
    assert [row["label"] for row in cells["cells"]] == ["zero-shot", "stata", "stata beta=soft"]
    assert len(cells["left_out"]) == 9
    shown = run("bench", birds, "--preset", "beta", "--tasks", 1)
    assert shown.err.count("left out: ") == 9


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["bench"], "error: the benchmark has no feature files. Name at least one, for example birds.safetensors."),
        (["bench", "BIRDS"], "error: the benchmark has no scenarios"),
        (["bench", "none.npz", *FAST], "error: no file none.npz"),
        (["bench", "BIRDS", "--scenario", "lo"], "error: unknown scenario 'lo'; did you mean 'low'"),
        (["bench", "BIRDS", *FAST, "--method", "stat"], "error: unknown method 'stat'; did you mean 'stata'"),
        (["bench", "BIRDS", *FAST, "--jobs", "0"], "error: jobs must be at least 1; got 0."),
        (["bench", "BIRDS", *FAST, "--seed", "-1"], "error: a seed must be at least 0; got -1."),
        (["bench", "BIRDS", "--preset", "tabel1"], "error: unknown preset 'tabel1'; did you mean 'table1'"),
        (["bench", "--grid", "none.toml"], "error: no file none.toml"),
        (["table", "none"], "error: no file "),
        (["plan", "BIRDS", "--scenario", "low", "--draw", "x.jpg"], "error: cannot draw x.jpg"),
        (["plan", "BIRDS", "--scenario", "low", "--save", "no/x"], "error: cannot write no/x: there is no folder no"),
        (["plan", "BIRDS", "--scenario", "lwo"], "error: unknown scenario 'lwo'"),
        (["report", "none"], "error: no file "),
    ],
)
def test_what_is_refused_in_one_line(birds: Path, argv: list[Any], message: str) -> None:
    ran = run(*(birds if word == "BIRDS" else word for word in argv))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(message)
    assert ran.err.count("\n") == 1
    assert not Path("kedge-bench").exists()


@pytest.mark.parametrize("argv", [["table"], ["plan", "x.npz"], ["bench", "--jobs", "many"], ["report"]])
def test_usage_errors(argv: list[str]) -> None:
    ran = run(*argv)
    assert ran.code == 2
    assert ran.err.startswith(f"Usage: kedge {argv[0]} ")


def test_report_gets_the_records(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[Record], Path]] = []

    def stand_in(records: list[Record], out: Path) -> Path:
        asked.append((records, out))
        return out

    run("bench", birds, *FAST, *TWO)
    monkeypatch.setitem(sys.modules, "kedge.report", SimpleNamespace(write_report=stand_in))
    ran = run("report", "kedge-bench", "-o", "page.html")
    assert (ran.code, ran.out, ran.err) == (0, "", "→ page.html\n")
    ((records, out),) = asked
    assert [record.label for record in records] == ["stata", "zero-shot"]
    assert out == Path("page.html")
    assert run("report", "kedge-bench", "-o", "no/page.html").code == 2
    assert len(asked) == 1  # refused before any work


def test_plan(birds: Path) -> None:
    features = simulate(120, 6, 16)
    expected = draw("stream:gamma=0.5,size=50", features.labels, seed=3, tasks=2)
    argv = ["plan", birds, "--scenario", "stream:gamma=0.5,size=50", "--seed", 3, "--tasks", 2]
    ran = run(*argv, "--json", "--save", "plan.safetensors", "--draw", "plan.png")
    about = json.loads(ran.out)
    assert about["sha256"] == expected.hash == Plan.load("plan.safetensors").hash
    assert (about["tasks"], about["batches"], about["smallest_batch"], about["largest_batch"]) == (2, 6, 20, 50)
    assert ran.err == "→ plan.safetensors\n→ plan.png\n"
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")
    shown = run(*argv)
    assert "scenario            stream:gamma=0.5,size=50,drop_last=False\n" in shown.out
    assert "different images    120\n" in shown.out


def test_plan_refuses_before_it_writes_anything(birds: Path) -> None:
    ran = run("plan", birds, "--scenario", "low", "--tasks", 2, "--save", "plan.safetensors", "--draw", "no/plan.png")
    assert (ran.code, ran.out) == (2, "")
    assert not Path("plan.safetensors").exists()


def test_plan_needs_labels(birds: Path) -> None:
    replace(simulate(120, 6, 16), labels=None).save("mute.safetensors")
    ran = run("plan", "mute.safetensors", "--scenario", "low")
    assert ran.code == 2
    assert "has no labels" in ran.err


def test_ls_scenarios() -> None:
    rows = json.loads(run("ls", "scenarios", "--json").out)["scenarios"]
    assert [row["name"] for row in rows] == list(SCENARIOS)
    meaning = "Batches of 64 with 1–4 classes"
    settings = {"kind": "batches", "size": 64, "k_min": 1, "k_max": 4, "tasks": 1000}
    assert rows[0] == {"name": "very-low", "meaning": meaning, **settings}
    assert rows[6] == {"name": "all", "meaning": "The whole dataset at once", "kind": "whole", "tasks": 1}
    assert all(row["meaning"] in run("ls", "scenarios").out for row in rows)
    shown = run("ls", "scenarios").out
    assert all(name in shown for name in SCENARIOS)


@pytest.mark.parametrize("command", ["bench", "table", "report", "plan", "ls scenarios"])
def test_every_command_has_an_example(command: str) -> None:
    assert f"Example: kedge {command} " in run(*command.split(), "--help").out


def test_help_of_bench_needs_nothing_heavy() -> None:
    program = (
        "import sys; from kedge.cli import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'safetensors', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    for preset in ("table1", "table2", "alpha", "beta", "runtime"):
        assert preset in ran.stdout


def test_progress_is_shown_on_a_terminal_and_nowhere_else(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kedge import progress

    told: list[str] = []
    track = progress.track
    monkeypatch.setattr(
        "kedge.benchmark.run.track", lambda items, what: told.append(f"{what} {len(items)}") or track(items, what)
    )
    assert "cells" not in run("bench", birds, *FAST, "--quiet").err
    assert told == ["cells 3"]
