"""What to encode and what to run: tables × encoders × datasets.

Feature files are `OUT/features/ENCODER/DATASET.safetensors`. If MTA runs with an encoder, that encoder's files have
views (`DATASET-64views.safetensors`) and all methods use them, so that one table is about one set of features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..benchmark.cells import Cell, FeatureFile
from ..benchmark.grid import Grid, merged
from ..benchmark.scenarios import Batches, Scenario, task_count
from ..errors import FileError
from ..features.feature_set import FeatureSet
from ..images.image_set import ImageSet
from ..methods.registry import build
from ..words import count
from .datasets import Found
from .tables import EXPERIMENTS, ON_REQUEST

_TIMES = "Table 3, runtime: the times are those of Table 1’s cells"
_SIDE_BY_SIDE = ", {jobs} at a time with one thread each. To time them alone: --tables runtime --jobs 1, in a new --out"


@dataclass(frozen=True)
class Asked:
    """What the user asked for, checked."""

    tables: tuple[str, ...]
    encoders: tuple[str, ...]  # of all tables but the supplement's
    more_encoders: tuple[str, ...]  # of the supplement's table
    methods: tuple[str, ...] | None
    tasks: int | None
    jobs: int
    views: int
    out: Path


@dataclass(frozen=True)
class Bench:
    """A preset of one table with one encoder on one dataset."""

    table: str
    encoder: str
    images: ImageSet
    views: int
    grid: Grid

    @property
    def file(self) -> Path:
        """Its feature file."""
        return self.grid.features[0]

    @property
    def adapts_encoder(self) -> bool:
        """Does a method need the images themselves?"""
        return any(method.traits.needs == "encoder" for method in self.grid.methods)


@dataclass(frozen=True)
class Plan:
    """Everything that will be done."""

    asked: Asked
    found: Found
    benches: tuple[Bench, ...]
    notes: tuple[str, ...]  # what is left out, and why

    @cached_property
    def files(self) -> dict[Path, Bench]:
        """Every feature file, with one of the benches that use it."""
        return {bench.file: bench for bench in self.benches}

    def cells(self) -> list[Cell]:
        """All cells, each once. Those of a file that is not made yet have the sizes of its images."""
        facts = {path: _facts(path, bench) for path, bench in self.files.items()}
        cells = (
            Cell(method, facts[bench.file], scenario, seed, task_count(scenario, bench.grid.tasks))
            for bench in self.benches
            for scenario in bench.grid.scenarios
            for seed in bench.grid.seeds
            for method in bench.grid.methods
        )
        return list({cell.name: cell for cell in cells}.values())

    def cells_to_run(self) -> list[Cell]:
        """The cells without a record."""
        return [cell for cell in self.cells() if not cell.path(records_folder(self.asked.out)).exists()]


def make_plan(asked: Asked, found: Found) -> Plan:
    """The benches of all tables that are asked for."""
    benches: list[Bench] = []
    notes = list(found.notes)
    for table in asked.tables:
        if table == "runtime" and _timed_by_table_1(asked):
            notes.append(_TIMES + (_SIDE_BY_SIDE.format(jobs=asked.jobs) if asked.jobs > 1 else ""))
            continue
        experiment = EXPERIMENTS[table]
        methods = experiment.methods(asked.methods)
        names = experiment.chosen(found.images)
        if experiment.datasets and not set(names) <= set(experiment.datasets):
            notes.append(
                f"{experiment.title}: the paper has it on {', '.join(experiment.datasets)}, which "
                f"{'is' if len(experiment.datasets) == 1 else 'are'} not here; it runs on {', '.join(names)}"
            )
        absent = [name for name in experiment.paper if name not in methods]
        if asked.methods is None and absent:
            reasons = "; ".join(f"{name} {ON_REQUEST[name].format(views=asked.views)}" for name in absent)
            notes.append(f"{experiment.title}: without {', '.join(absent)} ({reasons}). To add: --methods paper,kedge")
        for encoder in asked.more_encoders if table == "encoders" else asked.encoders:
            for name in names:
                for preset in experiment.presets:
                    bench, note = _bench(asked, table, preset, encoder, found.images[name], methods)
                    benches += [bench] if bench else []
                    notes += [note] if note else []
    return Plan(asked, found, tuple(benches), tuple(dict.fromkeys(notes)))


def _timed_by_table_1(asked: Asked) -> bool:
    """Has Table 1 the cells of the runtime, with more tasks?"""
    return "1" in asked.tables and {"zero-shot", "stata"} <= set(EXPERIMENTS["1"].methods(asked.methods))


def _bench(
    asked: Asked, table: str, preset: str, encoder: str, images: ImageSet, methods: Sequence[str]
) -> tuple[Bench | None, str]:
    """The bench, None if nothing of it fits the dataset; and what does not fit."""
    views = asked.views if _needs_views(asked, encoder) else 0
    own = {"methods": methods} if methods else {}
    options = {"preset": preset, **own, **({"tasks": asked.tasks} if asked.tasks else {})}
    grid = Grid.of(
        **merged(options),
        features=[feature_file(asked.out, encoder, images.name, views)],
        jobs=asked.jobs,
        out=records_folder(asked.out),
        images=images.root,
        encoder=encoder,
    )
    present = len(set(images.labels or ()))
    fitting = [scenario for scenario in grid.scenarios if _fits(scenario, present)]
    left = len(grid.scenarios) - len(fitting)
    note = (
        f"{EXPERIMENTS[table].title}, {images.name}: {left} of {count(len(grid.scenarios), 'scenario')} left out; they "
        f"need more classes than the {present} that have images"
    )
    grid = replace(grid, scenarios=tuple(fitting))
    return Bench(table, encoder, images, views, grid) if fitting else None, note if left else ""


def _needs_views(asked: Asked, encoder: str) -> bool:
    """Does a method that runs with this encoder need views?"""
    return any(
        build(method).traits.needs == "views"
        for table in asked.tables
        if encoder in (asked.more_encoders if table == "encoders" else asked.encoders)
        for method in EXPERIMENTS[table].methods(asked.methods)
    )


def _fits(scenario: Scenario, present: int) -> bool:
    """Does a batch with a fixed number of classes find as many? Other scenarios take all there are."""
    return not (isinstance(scenario, Batches) and scenario.k_min == scenario.k_max > present)


def records_folder(out: Path) -> Path:
    """The folder of all records."""
    return out / "records"


def feature_file(out: Path, encoder: str, dataset: str, views: int) -> Path:
    """The feature file of a dataset. Different encoders whose names become the same are told apart on extraction."""
    folder = re.sub(r"[^A-Za-z0-9._=-]+", "-", encoder)[-80:].strip("-.") or "encoder"
    return out / "features" / folder / f"{dataset}{f'-{views}views' if views else ''}.safetensors"


def _facts(path: Path, bench: Bench) -> FeatureFile:
    """The facts of a feature file; if it is not made yet, as far as its images show them."""
    if path.exists():
        try:
            return FeatureFile.of(path, FeatureSet.load(path))
        except FileError as error:
            raise FileError(f"{error} Delete the file: it will be made again.") from error
    images = bench.images
    return FeatureFile(
        path=path,
        stamp=(0, 0),
        hash=f"planned {path}",
        dataset=images.name,
        encoder=bench.encoder,
        weights="",
        precision="",
        images=len(images),
        classes=len(images.class_names),
        present=len(set(images.labels or ())),
        views=bool(bench.views),
        simulated=False,
    )
