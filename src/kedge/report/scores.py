"""Records grouped for tables and figures.

    records → Group (one encoder, simulated or real features) → Cell (one method, dataset and scenario)

The label of a method has its settings and its feedback, so that none of these are mixed in a mean.

A cell has one record per seed. Averages treat seeds and datasets as independent, since tasks are drawn separately.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..benchmark.feedback import Feedback
from ..benchmark.record import Record
from ..benchmark.scenarios import Batches, find_scenario
from ..errors import KedgeError
from .pivot import order
from .published import encoder_shown
from .score import Score
from .words import plain

ZERO_SHOT = "zero-shot"
NEEDED = ("accuracy", "zero_shot", "gain")


@dataclass(frozen=True)
class Cell:
    """A method on a dataset in a scenario, with one record per seed."""

    label: str
    dataset: str
    scenario: str
    records: tuple[Record, ...]

    @cached_property
    def score(self) -> Score:
        """The mean over seeds, weighted by the number of tasks."""
        return Score.mean([Score.of(r) for r in self.records], [r.tasks for r in self.records])

    @property
    def feedback(self) -> Feedback:
        """What the method was told about each batch."""
        return self.records[0].feedback

    @cached_property
    def plans(self) -> frozenset[str]:
        """Hashes of the plans: which tasks it was scored on."""
        return frozenset(r.plan_hash for r in self.records)


@dataclass(frozen=True)
class Group:
    """Cells that can be averaged and compared: one encoder, features either all simulated or all real."""

    encoder: str
    simulated: bool
    cells: tuple[Cell, ...]

    @cached_property
    def labels(self) -> list[str]:
        """Methods with their settings: zero-shot, then default settings, then variants."""
        return sorted({cell.label for cell in self.cells}, key=label_order)

    @cached_property
    def datasets(self) -> list[str]:
        """Dataset names: the paper's in its order, then others."""
        return sorted({cell.dataset for cell in self.cells}, key=dataset_order)

    @cached_property
    def scenarios(self) -> list[str]:
        """Scenario names: the paper's in its order, then others."""
        return sorted({cell.scenario for cell in self.cells}, key=scenario_order)

    @cached_property
    def main(self) -> tuple[Cell, ...]:
        """Cells without sweeps over the number of classes (these have their own figures); all if all are sweeps."""
        return tuple(cell for cell in self.cells if sweep(cell.scenario) is None) or self.cells

    @cached_property
    def adapted(self) -> tuple[Cell, ...]:
        """The main cells, without zero-shot."""
        return tuple(cell for cell in self.main if cell.label != ZERO_SHOT)

    @cached_property
    def unaided(self) -> tuple[Cell, ...]:
        """The adapted cells without feedback; all if all have some."""
        return tuple(cell for cell in self.adapted if not cell.feedback) or self.adapted

    def table(self, scenario: str) -> dict[str, dict[str, Cell]]:
        """label → dataset → cell."""
        rows: dict[str, dict[str, Cell]] = {}
        for cell in self.cells:
            if cell.scenario == scenario:
                rows.setdefault(cell.label, {})[cell.dataset] = cell
        return {label: rows[label] for label in sorted(rows, key=label_order)}

    def usual_plans(self, scenario: str) -> dict[str, frozenset[str]]:
        """dataset → the plans most methods were scored on. A cell with other plans is not comparable."""
        plans: dict[str, Counter[frozenset[str]]] = defaultdict(Counter)
        for cell in self.cells:
            if cell.scenario == scenario:
                plans[cell.dataset][cell.plans] += 1
        return {dataset: max(count, key=lambda p: (count[p], sorted(p))) for dataset, count in plans.items()}


@dataclass(frozen=True)
class Results:
    """Everything a report shows."""

    groups: list[Group]
    failed: list[Record]
    scored: list[Record]
    repeated: int  # duplicate records of the same cell and seed, left out
    colours: dict[str, int] = field(default_factory=dict)  # label → its number in the palette, the same in all figures


def collect(records: Iterable[Record]) -> Results:
    """Group records. Of several records of one cell and seed, the one with the most tasks is kept."""
    scored: dict[tuple[str, ...], Record] = {}
    failed: list[Record] = []
    total = 0
    for record in records:
        if not has_score(record):
            failed.append(record)
            continue
        total += 1
        key = (*_cell_key(record), str(record.seed))
        if key not in scored or record.tasks > scored[key].tasks:
            scored[key] = record
    names = _dataset_names(scored.values())
    cells: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in scored.values():
        cells[_cell_key(record)].append(record)
    groups: dict[tuple[bool, str], list[Cell]] = defaultdict(list)
    for _, same in sorted(cells.items()):
        first = same[0]
        name = names[first.dataset, encoder_of(first), first.features_hash]
        same = sorted(same, key=lambda r: r.seed)
        groups[first.simulated, encoder_of(first)].append(
            Cell(plain(first.label), name, plain(first.scenario), tuple(same))
        )
    # real features first, then the encoder with the most cells
    ranked = sorted(groups, key=lambda key: (key[0], -len(groups[key]), key[1]))
    labels = sorted({cell.label for found in groups.values() for cell in found} - {ZERO_SHOT}, key=label_order)
    return Results(
        [Group(encoder, simulated, tuple(groups[simulated, encoder])) for simulated, encoder in ranked],
        failed,
        list(scored.values()),
        total - len(scored),
        {label: number for number, label in enumerate(labels)},
    )


def has_score(record: Record) -> bool:
    """Does the record have finite scores?"""
    values = [getattr(record, name) for name in NEEDED]
    return record.error is None and all(isinstance(v, int | float) and math.isfinite(v) for v in values)


def _cell_key(record: Record) -> tuple[str, ...]:
    return (
        str(record.simulated),
        encoder_of(record),
        record.scenario,
        record.dataset,
        record.features_hash,
        record.label,
    )


def _dataset_names(records: Iterable[Record]) -> dict[tuple[str, str, str], str]:
    """(dataset, encoder, hash) → name. Files of one encoder with the same name get the start of the hash added."""
    hashes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in records:
        hashes[record.dataset, encoder_of(record)].add(record.features_hash)
    return {
        (dataset, encoder, one): plain(dataset if len(found) == 1 else f"{dataset} ({one[:6]})")
        for (dataset, encoder), found in hashes.items()
        for one in found
    }


def sweep(scenario: str) -> Batches | None:
    """The scenario, if its batches have a fixed number of classes: one point of a curve over K_eff; else None."""
    try:
        found = find_scenario(scenario)
    except KedgeError:
        return None  # not one of kedge's scenarios
    return found if isinstance(found, Batches) and found.k_min == found.k_max else None


def scenario_order(scenario: str) -> Any:
    """Sort key: named scenarios in the paper's order, then others by their numbers."""
    return order("scenario", scenario)


def dataset_order(dataset: str) -> Any:
    """Sort key: the paper's datasets in its order, then others."""
    return order("dataset", dataset)


def calibration(records: Iterable[Record]) -> tuple[float, float] | None:
    """Expected calibration error of zero-shot and of the method: means weighted by images; None if unknown."""
    known = [
        (r.zero_shot_calibration_error, r.calibration_error, r.images or 1)
        for r in records
        if r.zero_shot_calibration_error is not None and r.calibration_error is not None
    ]
    total = sum(images for _, _, images in known)
    if not known:
        return None
    return sum(b * n for b, _, n in known) / total, sum(a * n for _, a, n in known) / total


def tails(scores: Iterable[Score]) -> tuple[float, float] | None:
    """Tail accuracy of zero-shot and of the method: means over the cells that have one; None if none has."""
    known = [score for score in scores if score.tail is not None and score.zero_shot_tail is not None]
    mean = Score.mean(known) if known else None
    return (
        None if mean is None or mean.tail is None or mean.zero_shot_tail is None else (mean.zero_shot_tail, mean.tail)
    )


def label_order(label: str) -> Any:
    """Sort key: zero-shot, methods with default settings, variants."""
    return label != ZERO_SHOT, " " in label, order("label", label)


def encoder_of(record: Record) -> str:
    """The encoder's name as tables show it, printable."""
    return plain(encoder_shown(record))
