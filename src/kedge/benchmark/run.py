"""A benchmark: every cell of a grid, each in a file of its own, so that it can be stopped at any moment and go on.

    grid = Grid.of(["birds.safetensors"], methods=["zero-shot", "stata"], scenarios=["very-low"], tasks=100)
    outcome = run(grid, "results", jobs=2)
    outcome.records()

A record is written by rename when its cell is done: a file that exists is whole, and its cell is not run again. Its
name has a hash of all that defines the cell (settings, content of the feature file, scenario, seed, tasks), so what is
changed is run. A cell that fails is recorded with its error, as `….failed.json`, and is run again the next time.
With `jobs` from 2, a script needs the guard `if __name__ == "__main__":`, since its processes import it.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import FileError, SettingError
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..files import check_writable
from ..progress import track
from .cells import Cell, Planned, plan_cells
from .evaluate import evaluate
from .grid import PRESETS, Grid, whole
from .plan import Plan, draw
from .pool import spread
from .record import Record

__all__ = ["PRESETS", "Cell", "Grid", "Outcome", "Planned", "plan_cells", "run"]

STALE = 3600.0  # seconds after which an unfinished file can not be another run's work in progress


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    folder: Path
    cells: tuple[Cell, ...]
    ran: int  # cells run now
    already: int  # cells done before
    failed: tuple[Record, ...]
    left_out: tuple[str, ...]

    def records(self) -> list[Record]:
        """The records of all cells that are done, whenever they were run."""
        return [Record.load(path) for cell in self.cells if (path := cell.path(self.folder)).exists()]


def run(grid: Grid, out: str | Path | None = None, jobs: int | None = None) -> Outcome:
    """Run every cell that is not done yet; `out` and `jobs` replace what the grid says.

    jobs: 1 runs in this process with its threads; more are that many processes of one thread each.
    """
    grid = replace(grid, out=Path(out or grid.out), jobs=whole("jobs", grid.jobs if jobs is None else jobs, 1))
    runner = Runner()
    planned = plan_cells(grid, runner.load, runner.images)
    if grid.jobs > 1:
        runner = Runner()  # the features are opened again where they are needed, and not kept here
    _prepare(grid.out)
    todo = []
    for cell in planned.cells:
        if cell.path(grid.out).exists():
            cell.failure(grid.out).unlink(missing_ok=True)  # of an earlier run that was killed just before this
        else:
            todo.append(cell)
    failed = []
    with contextlib.closing(_results(todo, grid.jobs, runner)) as results:
        for _, (cell, record) in zip(track(range(len(todo)), "cells"), results, strict=True):
            if record.error is None:
                record.save(cell.path(grid.out))
                cell.failure(grid.out).unlink(missing_ok=True)
            else:
                record.save(cell.failure(grid.out))
                failed.append(record)
    already = len(planned.cells) - len(todo)
    return Outcome(grid.out, planned.cells, len(todo), already, tuple(failed), planned.left_out)


class Runner:
    """Runs cells in this process. Keeps feature files, the last plan and the last images open."""

    def __init__(self) -> None:
        self._features: dict[Path, FeatureSet] = {}
        self._images: tuple[str, ImageSource] | None = None
        self._plan: tuple[object, Plan] | None = None

    def __call__(self, cell: Cell) -> Record:
        """The cell's record; an error is recorded in one line."""
        try:
            return self._record(cell)
        except Exception as error:  # whatever a method does, the other cells go on
            return cell.failed(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")

    def load(self, path: Path) -> FeatureSet:
        """A feature file, opened once."""
        if path not in self._features:
            self._features[path] = FeatureSet.load(path)
        return self._features[path]

    def images(self, features: FeatureSet) -> ImageSource:
        """The images of a feature file and their encoder, opened once while its cells are run."""
        if self._images is None or self._images[0] != features.hash:
            self._images = features.hash, ImageSource.of(features)
        return self._images[1]

    def _record(self, cell: Cell) -> Record:
        features = self.load(cell.file.path)
        if features.hash != cell.file.hash:
            raise FileError(f"{cell.file.path} has changed since the benchmark began. Start it again.")
        key = cell.file.hash, cell.scenario, cell.seed, cell.tasks
        if self._plan is None or self._plan[0] != key:
            assert features.labels is not None
            self._plan = key, draw(cell.scenario, features.labels.numpy(), cell.seed, cell.tasks)
        images = self.images(features) if cell.method.traits.needs == "encoder" else None
        return evaluate(cell.method, features, self._plan[1], images=images)


def _results(cells: Sequence[Cell], jobs: int, runner: Runner) -> Generator[tuple[Cell, Record], None, None]:
    if jobs == 1:
        for cell in cells:
            yield cell, runner(cell)
        return
    for method in {cell.label: cell.method for cell in cells}.values():
        try:
            pickle.dumps(method)
        except Exception as error:
            raise SettingError(f"{method!r} can not be sent to another process: {error}. Use jobs=1.") from error
    yield from spread(cells, jobs, _one_thread_runner, _died)


def _died(cell: Cell, how: str) -> Record:
    return cell.failed(f"ProcessError: the process {how}; if you did not end it, is there memory enough?")


def _one_thread_runner() -> Runner:
    torch.set_num_threads(1)
    return Runner()


def _prepare(folder: Path) -> None:
    """Make the output folder, and clear away what killed runs left unfinished in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"can not make the folder {folder}: {error.strerror}. Choose another place.") from error
    check_writable(folder / "record.json")
    for unfinished in folder.glob(".kedge-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - unfinished.stat().st_mtime > STALE:
                unfinished.unlink()
