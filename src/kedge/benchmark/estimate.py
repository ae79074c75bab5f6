"""How long the cells of a benchmark will take: each method is timed on one batch before it starts.

The trial of a cell evaluates its method on a few images, since the first call may compile or load something, then on
FEW, then on the whole batch. If that would take more than BUDGET seconds, the time of the whole batch is taken to be
linear in its images. A cell takes the time per image once per image of its plan. A graph that grows with its stream, as
ECALP's, takes longer at the end than in a trial. Methods that adapt the encoder are tried on two images. With feedback,
a batch is labelled twice in a trial as in the cell. Every method has one trial; no further one starts once the trials
add up to BUDGET seconds, in which first calls do not count. A cell without one takes its method's mean time per image.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean

from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..progress import notice
from ..words import count, duration
from .cells import Cell
from .evaluate import evaluate
from .scenarios import Batches

BUDGET = 5.0  # seconds for all trials
LARGEST = 1000  # images in a trial
FIRST, FEW = 16, 64  # images of its first and its second call
WITH_ENCODER = 2  # images, each of which goes through the encoder
LONG = 60.0  # seconds: from here on, the methods that take most of the time are named


@dataclass(frozen=True)
class Trial:
    """A cell to be timed on one batch."""

    cell: Cell

    @property
    def size(self) -> int:
        """Images of the trial's batch."""
        return min(self.cell.largest_batch, WITH_ENCODER if self.cell.method.traits.needs == "encoder" else LARGEST)

    def seconds_per_image(self, features: FeatureSet, images: ImageSource | None) -> float:
        """Run the trial."""
        self._seconds(min(FIRST, self.size), features, images)
        few = min(FEW, self.size)
        seconds = self._seconds(few, features, images)
        if few < self.size:
            if seconds * self.size <= BUDGET * few:
                seconds = self._seconds(self.size, features, images)
            else:
                each = (seconds - self._seconds(FIRST, features, images)) / (few - FIRST)
                seconds += max(each, 0) * (self.size - few)
        return seconds / self.size

    def _seconds(self, n: int, features: FeatureSet, images: ImageSource | None) -> float:
        """For a batch of n images."""
        batch = Batches(n, features.head.k, features.head.k)
        feedback = asdict(replace(self.cell.feedback, known=min(self.cell.feedback.known, n - 1)))
        start = time.perf_counter()
        evaluate(self.cell.method, features, batch, tasks=1, images=images, **feedback)
        return time.perf_counter() - start


@dataclass
class Estimate:
    """Collects the results of trials, and says what they mean for all cells."""

    cells: Sequence[Cell]
    jobs: int
    measured: dict[tuple[object, ...], float] = field(default_factory=dict)  # seconds per image
    running: int = 0  # trials without a result
    all_tried: bool = False
    spent: float = 0.0  # seconds of all trials, their first calls taken to be as fast as their second

    def before_cells(self) -> Iterator[Trial | Cell]:
        """Trials, then the cells."""
        for trial in self._trials():
            self.running += 1
            yield trial
        self.all_tried = True
        self._tell()
        yield from self.cells

    def add(self, trial: Trial, seconds_per_image: float | None) -> None:
        """Note the result of a trial; None if it failed. After the last, print the estimate."""
        self.running -= 1
        if seconds_per_image is not None:
            self.measured[kind(trial.cell)] = seconds_per_image
            self.spent += 2 * trial.size * seconds_per_image / self.jobs
        self._tell()

    def _tell(self) -> None:
        if self.all_tried and not self.running:
            notice(str(self))

    def _trials(self) -> Iterator[Trial]:
        """One trial per method; then one per size of batch and feature file, as long as there is time."""
        turns = defaultdict[str, list[Trial]](list)
        for trial in {kind(cell): Trial(cell) for cell in self.cells}.values():
            turns[trial.cell.label].append(trial)
        for turn in range(max(map(len, turns.values()), default=0)):
            for waiting in turns.values():
                if turn and self.spent > BUDGET:
                    return
                if turn < len(waiting):
                    yield waiting[turn]

    def by_method(self) -> dict[str, float]:
        """Seconds for all cells of each method; methods without a result are missing."""
        by_method: dict[str, list[float]] = defaultdict(list)
        for (label, *_), seconds in self.measured.items():
            by_method[str(label)].append(seconds)
        total: dict[str, float] = defaultdict(float)
        for cell in self.cells:
            if known := by_method.get(cell.label):
                total[cell.label] += _images(cell) * self.measured.get(kind(cell), mean(known)) / self.jobs
        return dict(total)

    def __str__(self) -> str:
        total = self.by_method()
        if not total:
            return f"{count(len(self.cells), 'cell')} to run"
        seconds = sum(total.values())
        untried = sorted({cell.label for cell in self.cells} - set(total))
        said = f"about {duration(seconds)} for {count(len(self.cells), 'cell')}"
        if seconds > LONG and len(total) > 1:
            said += f", of these {', '.join(f'{duration(total[label])} for {label}' for label in slowest(total))}"
        return said + (f", without {', '.join(untried)}" if untried else "")


def slowest(seconds: Mapping[str, float]) -> list[str]:
    """The fewest methods that together take at least half of the time, the slowest first."""
    order = sorted(seconds, key=lambda label: -seconds[label])
    half = sum(seconds.values()) / 2
    return [label for i, label in enumerate(order) if sum(seconds[before] for before in order[:i]) < half]


def kind(cell: Cell) -> tuple[object, ...]:
    """What cells with the same time per image have in common."""
    return cell.label, Trial(cell).size, cell.file.hash


def _images(cell: Cell) -> int:
    """How many images the plan of a cell has."""
    each = min(cell.scenario.size, cell.file.images) if isinstance(cell.scenario, Batches) else cell.file.images
    return cell.tasks * each
