"""A benchmark on three nodes gives the records of one machine, whatever is killed on the way."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import kedge
from clusters import MATRIX, SlowZeroShot, first_pid, started, until
from command import run as command
from kedge.benchmark.grid import Grid
from kedge.benchmark.record import Record
from kedge.benchmark.run import run
from kedge.cluster.benchmark import slots, spread


@pytest.fixture
def features(tmp_path: Path) -> Path:
    kedge.simulate(300, 6, 16, seed=1).save(tmp_path / "birds.safetensors")
    return tmp_path / "birds.safetensors"


def grid(features: Path, methods: Any, seeds: int = 3, **options: Any) -> Grid:
    return Grid.of([features], methods=methods, scenarios=["very-low"], seeds=range(seeds), tasks=2, **options)


def scores(records: list[Record]) -> list[dict[str, Any]]:
    """The records without times."""
    return [{name: value for name, value in asdict(record).items() if "second" not in name} for record in records]


def test_records_are_those_of_one_machine(nodes: Any, features: Path, tmp_path: Path) -> None:
    cells = grid(features, ["zero-shot", "stata", "kedge"])
    one = run(cells, tmp_path / "one")
    ran = command(
        *("bench", features, "--scenario", "very-low", "--tasks", "2", "--seed", "0", "--seed", "1", "--seed", "2"),
        *("--out", tmp_path / "three", "--cluster", "--json"),
    )
    assert ran.code == 0, ran.err
    assert ran.out.startswith("{")
    again = run(cells, tmp_path / "three", jobs=slots(), spread=spread)
    assert (again.ran, again.already) == (0, 9)
    assert scores(again.records()) == scores(one.records())


def test_a_cell_that_ends_its_process_is_recorded(nodes: Any, features: Path, tmp_path: Path) -> None:
    """And the others run."""
    pids = str(tmp_path / "pids")
    methods = [SlowZeroShot(pids=pids, deadly=True), SlowZeroShot(pids=pids)]
    outcome = run(grid(features, methods, seeds=1), tmp_path / "out", jobs=slots(), spread=spread)
    assert len(outcome.records()) == 1
    (failed,) = outcome.failed
    assert "WorkerCrashedError" in (failed.error or "")
    assert len(list((tmp_path / "out").glob("*.failed.json"))) == 1


@pytest.mark.parametrize("lost", ["node", pytest.param("worker", marks=MATRIX)])
def test_a_lost_node_or_worker_loses_nothing(nodes: Any, features: Path, tmp_path: Path, lost: str) -> None:
    pids = tmp_path / "pids"
    cells = grid(features, [SlowZeroShot(pids=str(pids), pause=0.2)], seeds=8)
    expected = run(cells, tmp_path / "one")
    pids.unlink()
    done = 0

    def watched(*arguments: Any) -> Any:
        nonlocal done
        for item in spread(*arguments):
            done += 1
            if done == 1 and lost == "node":
                nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)
            elif done == 1:
                os.kill(first_pid(pids), signal.SIGKILL)
            yield item

    try:
        outcome = run(cells, tmp_path / "out", jobs=slots(), spread=watched)
    finally:
        if lost == "node":
            nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
            nodes.wait_for_nodes()
    assert (outcome.ran, outcome.failed, done) == (8, (), 8)
    assert scores(outcome.records()) == scores(expected.records())


DRIVER = """
import sys
from clusters import SlowZeroShot
from kedge.benchmark.grid import Grid
from kedge.benchmark.run import run
from kedge.cluster.benchmark import slots, spread
from kedge.cluster.connect import connected
address, features, out, pids = sys.argv[1:]
method = SlowZeroShot(pids=pids, pause=0.5)
with connected(address):
    grid = Grid.of([features], methods=[method], scenarios=["very-low"], seeds=range(8), tasks=2)
    run(grid, out, jobs=slots(), spread=spread)
"""


@MATRIX
def test_a_killed_driver_is_started_again(nodes: Any, features: Path, tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "out"
    driver = started(DRIVER, nodes.address, features, out, pids)
    until(lambda: len(list(out.glob("*.json"))) >= 2)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    there = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    cells = grid(features, [SlowZeroShot(pids=str(pids), pause=0.5)], seeds=8)
    outcome = run(cells, out, jobs=slots(), spread=spread)
    assert (outcome.ran, outcome.already) == (8 - len(there), len(there))
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert scores(outcome.records()) == scores(run(cells, tmp_path / "one").records())
