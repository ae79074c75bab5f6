"""The paper's Tables 1 and 2 for StatA, by the command line itself: a sample of the tasks, and what all would take.

The 11 datasets are simulated features of their sizes (test images and classes). `kedge bench --preset table1` is run
with 50 of its 1,000 tasks, `table2` with 5 of its 100 passes, in two processes of one thread each. `all`, the whole
dataset at once, is run whole. From the wall clock W, and with

    S   seconds of the same command with one task of a few images per file: Python, torch, compiled kernels, opening
        and checking every file, here and in the processes
    A   seconds in the `all` cells, together; on two processes they take A/2
    f   20, as one task in 20 was run

all tasks take, by the wall clock,

    S + A/2 + f (W − S − A/2)

which takes f times everything but start-up and `all`: solving, drawing plans, scores, and one process waiting for the
other at the end. By the cells, they take S and the time that two processes need, which take cell after cell in the
command's order, if a cell takes f times its seconds in the method alone (`all`: once). The longer of the two counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from measuring import FILES, Result, say, seconds, simulated

from kedge.benchmark.grid import PRESETS
from kedge.benchmark.record import Record, load_records
from kedge.benchmark.scenarios import find_scenario, task_count
from kedge.report.published import reference

TASKS = {"table1": 50, "table2": 5}
QUICK_TASKS = {"table1": 1, "table2": 1}
JOBS = 2
START = ("--scenario", "batches:size=4,k_min=1,k_max=1", "--tasks", "1")


def measure(quick: bool) -> Result:
    """Both tables, and the minutes of both together."""
    found = {}
    sizes = [("quick", 300, 10)] if quick else dataset_sizes()
    files = [simulated(n, k, FILES / "sizes" / f"simulated-{name}.safetensors") for name, n, k in sizes]
    for preset, tasks in (QUICK_TASKS if quick else TASKS).items():
        say(f"presets: kedge bench --preset {preset} --method stata --tasks {tasks} --jobs {JOBS}, {len(files)} files")
        found[preset] = sampled(preset, files, tasks, JOBS)
        say(f"  {found[preset]['wall']:.0f} s, for all tasks {found[preset]['total'] / 60:.1f} min")
    return {"presets": found, "minutes": sum(table["total"] for table in found.values()) / 60}


def dataset_sizes() -> list[tuple[str, int, int]]:
    """Name, test images and classes of the paper's datasets."""
    return [(row["name"], int(row["test_images"]), int(row["classes"])) for row in reference("datasets")]


def sampled(preset: str, files: Sequence[Path], tasks: int, jobs: int) -> Result:
    """Run a preset with fewer tasks, and say what all of them would take."""
    command = [sys.executable, "-m", "kedge", "bench", *map(str, files), "--method", "stata", "--jobs", str(jobs)]

    def run(out: str, *options: str) -> float:
        return seconds(lambda: subprocess.run([*command, *options, "--out", out, "--quiet"], check=True))

    with tempfile.TemporaryDirectory() as out:
        start_up = run(f"{out}/start", *START)
        wall = run(f"{out}/{preset}", "--preset", preset, "--tasks", str(tasks))
        records = in_order(load_records([f"{out}/{preset}"]), preset, files)
    return {
        "tasks": tasks,
        "jobs": jobs,
        "cells": len(records),
        "wall": wall,
        "start_up": start_up,
        "in_method": sum(record.seconds or 0.0 for record in records),
        **extrapolated(records, wall, start_up, jobs),
    }


def in_order(records: Iterable[Record], preset: str, files: Sequence[Path]) -> list[Record]:
    """As the command takes its cells: file after file, and in each scenario after scenario."""
    names, scenarios = [path.stem for path in files], PRESETS[preset]["scenarios"]
    return sorted(records, key=lambda record: (names.index(record.dataset), scenarios.index(record.scenario)))


def extrapolated(records: Sequence[Record], wall: float, start_up: float, jobs: int) -> Result:
    """Seconds of all tasks, from those of some; `records` in the command's order."""
    factors = [task_count(find_scenario(record.scenario)) / record.tasks for record in records]
    times = [record.seconds or 0.0 for record in records]
    whole = sum(time for time, factor in zip(times, factors, strict=True) if factor == 1)
    once = start_up + whole / jobs
    processes = [start_up] * jobs
    for time, factor in zip(times, factors, strict=True):
        free = processes.index(min(processes))
        processes[free] += factor * time
    by_wall, by_cells = once + max(factors) * (wall - once), max(processes)
    return {
        "factor": max(factors),
        "whole": whole,
        "by_wall": by_wall,
        "by_cells": by_cells,
        "total": max(by_wall, by_cells),
    }
