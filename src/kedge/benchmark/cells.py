"""The cells of a grid: one method on one feature file in one scenario with one seed. Each cell has its own file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import InputError, KedgeError, SettingError
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..files import stamp
from ..images.image_set import MANIFEST, is_feature_folder
from ..methods.contract import Method, unmet_needs
from ..methods.settings import changed_settings, description
from ..words import count, printable
from .feedback import Feedback
from .grid import Grid
from .oracle import unfit
from .record import SCHEMA, Record, label
from .scenarios import Batches, Scenario, Whole, describe, task_count

PART = 60  # maximum length of each part of a file name


@dataclass(frozen=True)
class FeatureFile:
    """Facts about a feature file that the cells need."""

    path: Path
    stamp: tuple[int, int]  # see `features_stamp`
    hash: str  # sha256 of its content
    dataset: str
    encoder: str
    weights: str  # sha256 of the encoder's weights, if known
    precision: str  # in which images were encoded
    images: int
    classes: int
    present: int  # classes that have images
    views: bool
    simulated: bool

    @classmethod
    def of(cls, path: Path, features: FeatureSet) -> FeatureFile:
        """The facts; raises InputError if the features have no labels."""
        if features.labels is None:
            raise InputError(f"{path} has no labels, and a benchmark needs them. Add `labels` to the feature file.")
        return cls(
            path=path.absolute(),  # other processes may be in other folders
            stamp=features_stamp(path),
            hash=features.hash,
            dataset=features.dataset,
            encoder=features.encoder,
            weights=features.weights,
            precision=features.precision,
            images=len(features),
            classes=features.head.k,
            present=int((features.labels.bincount() > 0).sum()),
            views=features.views is not None,
            simulated=features.simulated,
        )


def features_stamp(path: Path) -> tuple[int, int]:
    """What changes when a feature file does, or a feature folder: see `files.stamp`."""
    return stamp(path / MANIFEST if is_feature_folder(path) else path)


@dataclass(frozen=True)
class Cell:
    """One cell, with everything that its result depends on."""

    method: Method
    file: FeatureFile
    scenario: Scenario
    seed: int
    tasks: int
    feedback: Feedback = field(default_factory=Feedback)

    @cached_property
    def name(self) -> str:
        """The name of its file: readable, with a hash of everything that defines the cell."""
        defined_by = {
            "method": description(self.method),
            "features": self.file.hash,
            "dataset": self.file.dataset,
            "scenario": [self.scenario.kind, asdict(self.scenario)],  # type: ignore[call-overload]
            "seed": self.seed,
            "tasks": self.tasks,
            "feedback": asdict(self.feedback),
            "schema": SCHEMA,
        }
        digest = hashlib.sha256(json.dumps(defined_by, sort_keys=True, default=str).encode()).hexdigest()
        parts = self.file.dataset, describe(self.scenario), self.label, f"seed{self.seed}", digest[:12]
        return "__".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part)[:PART] for part in parts)

    @property
    def label(self) -> str:
        """The method with its changed settings and its feedback."""
        return label(self.method.name, changed_settings(self.method), self.feedback)

    @property
    def largest_batch(self) -> int:
        """How many images a batch has at most."""
        return min(int(getattr(self.scenario, "size", self.file.images)), self.file.images)

    def path(self, folder: Path) -> Path:
        """The file of its record. If the file exists, the cell is done."""
        return folder / f"{self.name}.json"

    def failure(self, folder: Path) -> Path:
        """The file of its record if it failed. A failed cell runs again the next time."""
        return folder / f"{self.name}.failed.json"

    def failed(self, error: str) -> Record:
        """A record of the cell with this error and no scores."""
        return Record(
            method=self.method.name,
            settings=changed_settings(self.method),
            dataset=self.file.dataset,
            encoder=self.file.encoder,
            scenario=describe(self.scenario),
            seed=self.seed,
            tasks=self.tasks,
            **asdict(self.feedback),
            error=printable(error),  # it may name a file whose name is not UTF-8
            features_hash=self.file.hash,
            weights=self.file.weights,
            precision=self.file.precision,
            classes=self.file.classes,
            simulated=self.file.simulated,
        )


@dataclass(frozen=True)
class Planned:
    """The cells of a grid, and what was left out, with reasons."""

    cells: tuple[Cell, ...]
    left_out: tuple[str, ...]


def plan_cells(
    grid: Grid,
    load: Callable[[Path], FeatureSet] = FeatureSet.load,
    images: Callable[[FeatureSet], ImageSource] | None = None,
) -> Planned:
    """Open and check every feature file and list the cells; raises SettingError for a cell that cannot run.

    Cells with the same feature file and the same plan are adjacent. A scenario without randomness has one seed, 0.
    Images and their encoder are opened only if a method needs them.
    """
    cells: dict[str, Cell] = {}
    left_out = dict.fromkeys(grid.left_out)
    opened = images or (lambda features: ImageSource.of(features, grid.images, grid.encoder))
    for path in grid.features:
        features = load(path)
        file = FeatureFile.of(path, features)
        adapts_encoder = any(method.traits.needs == "encoder" for method in grid.methods)
        no_images = _why_not(opened, features) if adapts_encoder else ""
        for scenario in grid.scenarios:
            tasks = task_count(scenario, grid.tasks)
            for seed in (0,) if isinstance(scenario, Whole) else grid.seeds:
                for method in grid.methods:
                    cell = Cell(method, file, scenario, seed, tasks, grid.feedback)
                    reason = _unfit(cell, no_images, fitting=grid.fitting)
                    if not reason:
                        cells[cell.name] = cell
                    elif grid.fitting:
                        left_out[f"{path}: {reason}"] = None
                    else:
                        raise SettingError(f"{path}: {reason}")
    if not cells:
        raise SettingError(f"nothing is left to run. {' '.join(left_out)}")
    return Planned(tuple(cells.values()), tuple(left_out))


def _why_not(images: Callable[[FeatureSet], ImageSource], features: FeatureSet) -> str:
    """Why the images or the encoder of the features cannot be opened; "" if they can."""
    try:
        images(features)
    except KedgeError as error:
        return str(error)
    return ""


def _unfit(cell: Cell, no_images: str, *, fitting: bool) -> str:
    """Why the cell cannot run; with `fitting`, also if its file has too few classes for the scenario. "" if it can."""
    method, file, scenario = cell.method, cell.file, cell.scenario
    if method.traits.needs == "encoder" and no_images:
        return f"method {method.name!r} needs the images and their encoder, and {no_images}"
    if missing := unmet_needs(method, views=file.views, encoder=True):
        return missing
    if reason := unfit(cell.feedback, method, streams=not isinstance(scenario, Batches | Whole)):
        return reason
    if cell.feedback.known >= cell.largest_batch:
        return f"{cell.feedback} leaves nothing to score: a batch has {count(cell.largest_batch, 'image')}. Take fewer."
    if fitting and isinstance(scenario, Batches) and scenario.k_min == scenario.k_max and scenario.k_min > file.present:
        return f"scenario {describe(scenario)!r} needs {scenario.k_min} classes, and {file.present} have images."
    return ""
