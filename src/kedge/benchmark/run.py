"""Run a benchmark: every cell of a grid, each with its own file. It can be stopped at any time and continued.

    grid = Grid.of(["birds.safetensors"], methods=["zero-shot", "stata"], scenarios=["very-low"], tasks=100)
    outcome = run(grid, "results", jobs=2)
    outcome.records()

A record is written by rename when its cell is done. A file that exists is complete, and its cell does not run again.
The file name has a hash of everything that defines the cell (settings, content of the feature file, scenario, seed,
tasks, feedback), so a changed cell runs. A cell that fails is recorded with its error in `….failed.json`, and runs
again the next time. With jobs ≥ 2, a script needs the guard `if __name__ == "__main__":`, because its processes import
it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import FileError, SettingError
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..files import check_writable
from ..progress import hidden, noticed, track
from ..ranges import whole
from .cells import Cell, Planned, features_stamp, plan_cells
from .estimate import Estimate, Trial
from .evaluate import evaluate
from .grid import MOST_JOBS, PRESETS, Grid
from .plan import Plan, draw
from .pool import Spread
from .pool import spread as in_processes
from .record import Record

__all__ = ["PRESETS", "Cell", "Grid", "Outcome", "Planned", "plan_cells", "run"]

STALE = 3600.0  # seconds after which an unfinished file is considered abandoned


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    folder: Path
    cells: tuple[Cell, ...]
    ran: int  # cells run now
    already: int  # cells done before
    failed: tuple[Record, ...]
    left_out: tuple[str, ...]

    def records(self) -> list[Record]:
        """The records of all cells that are done, from this run or an earlier one."""
        return [Record.load(path) for cell in self.cells if (path := cell.path(self.folder)).exists()]


def run(
    grid: Grid | Sequence[Grid],
    out: str | Path | None = None,
    jobs: int | None = None,
    estimate: bool = True,
    spread: Spread | None = None,
) -> Outcome:
    """Run every cell that is not done yet; `out` and `jobs` replace those of the grid.

    grid: of several grids, the first one's folder, processes, images and encoder are those of all.
    jobs: 1 runs in this process with all its threads; more start that many processes with one thread each.
    estimate: if notices are shown, try each method first and say how long all will take.
    spread: runs the cells elsewhere, `jobs` at one time, as `kedge.cluster.benchmark` does.
    """
    grids = [grid] if isinstance(grid, Grid) else list(grid)
    jobs = whole("jobs", grids[0].jobs if jobs is None else jobs, 1, MOST_JOBS)
    grid = replace(grids[0], out=Path(out or grids[0].out), jobs=jobs)
    runner = Runner(grid.images, grid.encoder)
    parts = [plan_cells(part, runner.load, runner.images) for part in grids]
    cells = {cell.name: cell for part in parts for cell in part.cells}  # a cell of two grids runs once
    planned = Planned(tuple(cells.values()), tuple(reason for part in parts for reason in part.left_out))
    if spread or grid.jobs > 1:
        _check_sendable(planned.cells)
        runner = Runner(grid.images, grid.encoder)  # frees the features: the other processes open their own
        spread = spread or partial(in_processes, jobs=grid.jobs)
    _prepare(grid.out)
    todo = []
    for cell in planned.cells:
        if cell.path(grid.out).exists():
            cell.failure(grid.out).unlink(missing_ok=True)  # left by an earlier run that was killed
        else:
            todo.append(cell)
    failed = []
    with contextlib.closing(_results(todo, grid, runner, spread, estimate and noticed())) as results:
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
    """Runs cells in this process. Keeps the feature files, the last plan and the last images open."""

    def __init__(self, images: Path | None = None, encoder: str | None = None) -> None:
        self._named = images, encoder  # by the user, for methods that adapt the encoder
        self._features: dict[Path, FeatureSet] = {}
        self._images: tuple[str, ImageSource] | None = None
        self._plan: tuple[object, Plan] | None = None

    def __call__(self, cell: Cell | Trial) -> Record | float | None:
        """The record of a cell, or the result of a trial."""
        return self.seconds_per_image(cell) if isinstance(cell, Trial) else self.record(cell)

    def record(self, cell: Cell) -> Record:
        """The record of the cell; if it fails, with the error in one line."""
        try:
            return self._record(cell)
        except Exception as error:  # an error in a method does not stop the other cells
            return cell.failed(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")

    def load(self, path: Path) -> FeatureSet:
        """The features of a file, opened once."""
        if path not in self._features:
            self._features[path] = FeatureSet.load(path)
        return self._features[path]

    def images(self, features: FeatureSet) -> ImageSource:
        """The images of a feature file and their encoder, opened once for all its cells."""
        if self._images is None or self._images[0] != features.hash:
            self._images = features.hash, ImageSource.of(features, *self._named)
        return self._images[1]

    def seconds_per_image(self, trial: Trial) -> float | None:
        """The result of a trial; None if it fails, as its cell will."""
        cell = trial.cell
        try:
            features = self._unchanged(cell)
            images = self.images(features) if cell.method.traits.needs == "encoder" else None
            with hidden():
                return trial.seconds_per_image(features, images)
        except Exception:
            return None

    def _unchanged(self, cell: Cell) -> FeatureSet:
        """The features of the cell; raises FileError if their file has changed: reading it could end the process."""
        if features_stamp(cell.file.path) == cell.file.stamp:
            features = self.load(cell.file.path)
            if features.hash == cell.file.hash:
                return features
        raise FileError(f"{cell.file.path} has changed since the benchmark began. Start it again.")

    def _record(self, cell: Cell) -> Record:
        features = self._unchanged(cell)
        key = cell.file.hash, cell.scenario, cell.seed, cell.tasks
        if self._plan is None or self._plan[0] != key:
            assert features.labels is not None
            self._plan = key, draw(cell.scenario, features.labels.numpy(), cell.seed, cell.tasks)
        images = self.images(features) if cell.method.traits.needs == "encoder" else None
        return evaluate(cell.method, features, self._plan[1], images=images, **asdict(cell.feedback))


def _results(
    cells: Sequence[Cell], grid: Grid, runner: Runner, spread: Spread | None, estimated: bool
) -> Generator[tuple[Cell, Record], None, None]:
    """The records of the cells, as they are done. If `estimated`, an estimate of the time comes first."""
    estimate = Estimate(cells, grid.jobs)
    items = estimate.before_cells() if estimated and cells else iter(cells)
    with contextlib.closing(_done(items, grid, runner, spread)) as done:
        for item, result in done:
            if isinstance(item, Trial):
                estimate.add(item, result)
            else:
                yield item, result


def _done(
    items: Iterable[Cell | Trial], grid: Grid, runner: Runner, spread: Spread | None
) -> Generator[tuple[Cell | Trial, Any], None, None]:
    if spread is None:
        for item in items:
            yield item, runner(item)
        return
    images = None if grid.images is None else grid.images.absolute()
    encoder = os.path.abspath(grid.encoder) if grid.encoder and os.path.isdir(grid.encoder) else grid.encoder
    yield from spread(items, partial(_one_thread_runner, images, encoder), _died)


def _check_sendable(cells: Sequence[Cell]) -> None:
    for method in {cell.label: cell.method for cell in cells}.values():
        try:
            pickle.dumps(method)
        except Exception as error:
            raise SettingError(f"{method!r} cannot be sent to another process: {error}. Use jobs=1.") from error


def _died(item: Cell | Trial, how: str) -> Record | None:
    if isinstance(item, Trial):
        return None
    return item.failed(f"ProcessError: the process {how}. If you did not end it, the memory may be too small.")


def _one_thread_runner(images: Path | None, encoder: str | None) -> Runner:
    torch.set_num_threads(1)
    return Runner(images, encoder)


def _prepare(folder: Path) -> None:
    """Make the output folder, and delete unfinished files of killed runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}. Choose another place.") from error
    check_writable(folder / "record.json")
    for unfinished in folder.glob(".kedge-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - unfinished.stat().st_mtime > STALE:
                unfinished.unlink()
