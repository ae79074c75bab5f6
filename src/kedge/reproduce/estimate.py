"""How long it will take on this machine: the encoder is timed on a few images, every method on a few batches.

The batches are of simulated features with the sizes of the real ones, since those may not be made yet. A method is
timed with the fewest and with the most classes; in between, the time per image is taken as linear in their number.
Other settings of a method are taken to be as fast.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from ..benchmark.cells import Cell
from ..benchmark.estimate import LARGEST, Estimate, Trial, kind
from ..encoders.encoder import Encoder
from ..errors import KedgeError
from ..features.encode import encode
from ..features.extract import done_before
from ..features.feature_set import FeatureSet
from ..features.simulate import simulate
from ..images.image_set import ImageSet
from ..progress import hidden
from ..words import count, duration
from .plan import Bench, Plan

ENCODED, TOGETHER = 48, 16  # images of a trial, and at one time
ENCODING_BUDGET, METHODS_BUDGET = 4.0, 20.0  # seconds of trials after which no further one starts


@dataclass(frozen=True)
class Encoding:
    """The images that one encoder has to encode, and how fast it is."""

    encoder: str
    views: int
    images: int  # still to encode
    total: int
    per_second: float | None  # None: nothing to encode, so it was not tried

    @property
    def seconds(self) -> float:
        """How long it will take."""
        return self.images / self.per_second if self.per_second else 0.0

    def __str__(self) -> str:
        what = f"{self.encoder}: {count(self.total, 'image')}" + (f" with {self.views} views each" * bool(self.views))
        if not self.images or self.per_second is None:
            return f"{what}, all encoded"
        before = f", {self.total - self.images:,} of them done" if self.images < self.total else ""
        speed = f"{self.per_second:,.1f} images/s in a trial"
        return f"{what} to encode{before}; {speed}, about {duration(self.seconds)}"


def encoding(encoder: Encoder, name: str, files: Mapping[Path, Bench]) -> Encoding:
    """What this encoder has to do for these feature files."""
    left = {path: len(bench.images) - done_before(path) for path, bench in files.items() if not path.exists()}
    total = sum(len(bench.images) for bench in files.values())
    views = max(bench.views for bench in files.values())
    todo = {path: images for path, images in left.items() if images}
    speed = images_per_second(files[max(todo, key=lambda path: todo[path])].images, encoder, views) if todo else None
    return Encoding(name, views, sum(left.values()), total, speed)


def images_per_second(images: ImageSet, encoder: Encoder, views: int = 0) -> float:
    """The speed of an encoder on some of the images, spread over all; the first batch only warms up."""
    step = max(1, len(images) // ENCODED)
    paths = images.paths[::step][:ENCODED]
    some = replace(images, paths=paths, labels=None)
    batches = encode(some, encoder, views=views, batch_size=TOGETHER, workers=0)
    ends = [(0, time.perf_counter())]
    for batch in batches:
        ends.append((batch.stop, time.perf_counter()))
        if ends[-1][1] - ends[0][1] > ENCODING_BUDGET:
            break
    (before, start), (stop, end) = ends[1 if len(ends) > 2 else 0], ends[-1]
    return (stop - before) / (end - start)


def methods_time(cells: Sequence[Cell], jobs: int, dimensions: Mapping[Path, int]) -> Estimate:
    """The time of all cells. dimensions: of the features in each file."""
    estimate = Estimate(cells, jobs)
    alike: dict[tuple[int, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        alike[Trial(cell).size, cell.method.name, dimensions[cell.file.path]].append(cell)
    spent = 0.0  # without compiling, which the first call of a trial may do
    earlier: dict[str, dict[int, float]] = {}  # of smaller batches: used when the time for trials is over
    for (_, method, dimension), same in sorted(alike.items(), key=lambda item: item[0]):
        same = sorted(same, key=lambda cell: cell.file.classes)
        times: dict[int, float] = {}
        for cell in {cell.file.classes: cell for cell in (same[0], same[-1])}.values():
            if spent < METHODS_BUDGET and (taken := _try(cell, dimension, jobs)) is not None:
                spent += 2 * Trial(cell).size * taken
                times[cell.file.classes] = taken
        earlier[method] = times = times or earlier.get(method, {})
        if times:
            estimate.measured |= {kind(cell): _between(times, cell.file.classes) for cell in same}
    return estimate


def _try(cell: Cell, dimension: int, jobs: int) -> float | None:
    """Seconds per image of the cell's method; None if it needs more than features, or fails as its cell will."""
    if cell.method.traits.needs != "features":
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if jobs == 1 else 1)  # as its cell will have
    try:
        with hidden():
            return Trial(cell).seconds_per_image(_features(Trial(cell).size, cell.file.classes, dimension), None)
    except (KedgeError, RuntimeError, ValueError):
        return None
    finally:
        torch.set_num_threads(threads)


def _features(images: int, classes: int, dimension: int) -> FeatureSet:
    """Simulated features of so many images."""
    made = _simulated(classes, max(8, dimension))
    assert made.labels is not None
    return FeatureSet.from_arrays(made.image_features[:images], made.head, labels=made.labels[:images])


@lru_cache(maxsize=4)
def _simulated(classes: int, dimension: int) -> FeatureSet:
    return simulate(LARGEST, classes, dimension)


def _between(times: Mapping[int, float], classes: int) -> float:
    """Linear between the two times that were measured."""
    (few, first), (many, last) = min(times.items()), max(times.items())
    if few == many:
        return first
    return first + (last - first) * (classes - few) / (many - few)


@dataclass(frozen=True)
class Forecast:
    """What there is to do, and how long it will take."""

    encodings: tuple[Encoding, ...]
    cells: int
    cells_done: int
    methods: Estimate | None  # None: all cells are done

    @property
    def seconds(self) -> float:
        """All of it; methods that cannot be timed without their feature files are missing."""
        return sum(one.seconds for one in self.encodings) + sum(
            self.methods.by_method().values() if self.methods else ()
        )

    def lines(self) -> list[str]:
        """For people."""
        said = [str(one) for one in self.encodings]
        if self.methods is None:
            return [*said, f"{count(self.cells, 'cell')}, all done"]
        done = f"{self.cells_done:,} of {count(self.cells, 'cell')} done; " if self.cells_done else ""
        timed = "each method timed on batches of simulated features of the same sizes"
        untimed = sorted({cell.label for cell in self.methods.cells} - self.methods.by_method().keys())
        more = f", and the time of {', '.join(untimed)}" if untimed else ""
        in_all = [f"in all about {duration(self.seconds)} on this machine{more}"] if self.seconds else []
        return [*said, f"{done}{self.methods} ({timed})", *in_all]


def forecast(plan: Plan, encodings: Iterable[Encoding], dimensions: Mapping[Path, int]) -> Forecast:
    """The time of everything in the plan."""
    todo = plan.cells_to_run()
    total = len(plan.cells())
    return Forecast(
        tuple(encodings), total, total - len(todo), methods_time(todo, plan.asked.jobs, dimensions) if todo else None
    )
