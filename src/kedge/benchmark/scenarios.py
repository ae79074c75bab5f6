"""Realistic scenarios: which images arrive together, and in what order.

A scenario turns labels and a seed into a `Plan`: a list of episodes, each a list of batches, each an array of image
numbers. A method is reset at the start of each episode. Every method of a comparison gets the same plan. The same seed
gives the same plan on every machine. Task j depends only on (seed, j), so a plan with more tasks starts with the same
tasks as a plan with fewer.

| name            | what arrives                                               | tasks |
|-----------------|------------------------------------------------------------|-------|
| very-low        | batches of 64 with 1–4 classes                             | 1000  |
| low             | batches of 64 with 2–10 classes                            | 1000  |
| medium          | batches of 64 with 5–25 classes                            | 1000  |
| medium-1000     | batches of 1000 with 5–25 classes                          | 1000  |
| high            | batches of 1000 with 25–50 classes                         | 1000  |
| very-high       | batches of 1000 with 50–100 classes                        | 1000  |
| all             | the whole dataset at once                                  | 1     |
| stream-low      | a stream of batches of 128, Dirichlet(0.1) correlation     | 100   |
| stream-medium   | Dirichlet(0.01)                                            | 100   |
| stream-high     | Dirichlet(0.001)                                           | 100   |
| stream-separate | class after class                                          | 100   |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import KedgeError, SettingError, did_you_mean
from ..ranges import MOST_IMAGES, checked_number, whole

Indices = NDArray[np.int64]
Episode = list[Indices]

MOST_TASKS = 1_000_000  # of a plan, which is in memory


@runtime_checkable
class Scenario(Protocol):
    """A scenario is a frozen dataclass; its fields are its settings."""

    kind: ClassVar[str]
    default_tasks: ClassVar[int]

    def episode(self, labels: Indices, random: np.random.Generator) -> Episode:
        """Draw one task: a list of batches, each an array of positions in `labels`."""


@dataclass(frozen=True)
class Batches:
    """Batches with few classes; each batch is an episode.

    K_eff is uniform in [k_min, k_max]. K_eff classes are drawn without replacement (all, if there are fewer). `size` of
    their images are drawn without replacement (all, if there are fewer), not balanced over the classes.
    """

    kind: ClassVar[str] = "batches"
    default_tasks: ClassVar[int] = 1000
    size: int = 64
    k_min: int = 1
    k_max: int = 4

    def __post_init__(self) -> None:
        _whole(self, "size", "k_min", "k_max")
        if self.k_max < self.k_min:
            raise SettingError(f"k_max must be at least k_min; got k_min={self.k_min}, k_max={self.k_max}.")

    def episode(self, labels: Indices, random: np.random.Generator) -> Episode:
        """One batch."""
        classes = np.unique(labels)
        k_eff = int(random.integers(self.k_min, self.k_max, endpoint=True))
        chosen = random.permutation(classes)[:k_eff]
        pool = np.flatnonzero(np.isin(labels, chosen))
        return [random.permutation(pool)[: self.size]]


@dataclass(frozen=True)
class Whole:
    """The whole dataset as one batch. Nothing is random."""

    kind: ClassVar[str] = "whole"
    default_tasks: ClassVar[int] = 1

    def episode(self, labels: Indices, random: np.random.Generator) -> Episode:
        """All images, in order."""
        return [np.arange(len(labels), dtype=np.int64)]


@dataclass(frozen=True)
class DirichletStream:
    """One pass over the dataset, correlated in time.

    There are S = min(K, ⌊N/B⌋) slots. The images of each class are divided among the slots with proportions from a
    symmetric Dirichlet(γ). The images of each slot are shuffled, the slots are joined, and the stream is cut into
    batches of B. Small γ: all images of a class are in one slot. Large γ: the order is independent of the class. The
    published protocol drops the last partial batch (`drop_last`); we keep it.

    Proportions must be rounded to whole images. One random offset per class makes the expected count of each slot equal
    to its proportion. Rounding down instead would put the remainder of every class into the last slot: in a stream of
    ImageNet that slot would be eight times too large.
    """

    kind: ClassVar[str] = "stream"
    default_tasks: ClassVar[int] = 100
    gamma: float = 0.1
    size: int = 128
    drop_last: bool = False

    def __post_init__(self) -> None:
        _whole(self, "size")
        object.__setattr__(self, "gamma", checked_number("gamma", self.gamma, above=0))

    def episode(self, labels: Indices, random: np.random.Generator) -> Episode:
        """One pass."""
        classes, sizes = np.unique(labels, return_counts=True)
        slots = max(1, min(len(classes), len(labels) // self.size))
        slot = np.empty(len(labels), np.int64)  # of each image
        images = _grouped(labels, random)  # class after class
        start = 0
        for size in sizes:
            upto = np.cumsum(dirichlet(self.gamma, slots, random))[:-1]
            cuts = np.floor(upto * size + random.random()).clip(max=size).astype(np.int64)
            counts = np.diff(cuts, prepend=0, append=size)
            slot[images[start : start + size]] = np.repeat(np.arange(slots), counts)
            start += size
        return _cut(_grouped(slot, random), self.size, self.drop_last)


@dataclass(frozen=True)
class Separate:
    """One pass over the dataset, one class after another in random order, shuffled within each class."""

    kind: ClassVar[str] = "separate"
    default_tasks: ClassVar[int] = 100
    size: int = 128
    drop_last: bool = False

    def __post_init__(self) -> None:
        _whole(self, "size")

    def episode(self, labels: Indices, random: np.random.Generator) -> Episode:
        """One pass."""
        classes, number = np.unique(labels, return_inverse=True)
        place = random.permutation(len(classes))  # of each class in the stream
        return _cut(_grouped(place[number], random), self.size, self.drop_last)


def dirichlet(gamma: float, slots: int, random: np.random.Generator) -> NDArray[np.float64]:
    """A draw from the symmetric Dirichlet(γ) over `slots`, for any γ > 0.

    A Gamma(γ) variable is Gamma(γ+1)·U^(1/γ), whose logarithm cannot underflow. The logarithms are scaled by
    c = min(γ, 1) until the largest is subtracted, so that they do not overflow and the largest share is exact.
    """
    c = min(gamma, 1.0)
    scaled = c * np.log(random.standard_gamma(gamma + 1, slots)) + np.log1p(-random.random(slots)) * (c / gamma)
    with np.errstate(over="ignore"):  # to −∞, a share of 0
        share = np.exp((scaled - scaled.max()) / c)
    return np.asarray(share / share.sum())


def _grouped(group: Indices, random: np.random.Generator) -> Indices:
    """Positions in `group`, sorted by group number, in random order within each group."""
    shuffled = random.permutation(len(group))
    return np.asarray(shuffled[np.argsort(group[shuffled], kind="stable")])


def _cut(stream: Indices, size: int, drop_last: bool) -> Episode:
    batches = [stream[start : start + size] for start in range(0, len(stream), size)]
    if drop_last and len(batches[-1]) < size and len(batches) > 1:
        batches.pop()
    return batches


def _whole(scenario: Any, *names: str) -> None:
    """Check settings that are numbers of images or classes, and make them ints of Python."""
    for name in names:
        value = whole(f"{name} of a {scenario.kind} scenario", getattr(scenario, name), 1, MOST_IMAGES)
        object.__setattr__(scenario, name, value)


SCENARIOS: dict[str, Scenario] = {
    "very-low": Batches(64, 1, 4),
    "low": Batches(64, 2, 10),
    "medium": Batches(64, 5, 25),
    "medium-1000": Batches(1000, 5, 25),
    "high": Batches(1000, 25, 50),
    "very-high": Batches(1000, 50, 100),
    "all": Whole(),
    "stream-low": DirichletStream(0.1),
    "stream-medium": DirichletStream(0.01),
    "stream-high": DirichletStream(0.001),
    "stream-separate": Separate(),
}
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in (Batches, Whole, DirichletStream, Separate)}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def task_count(scenario: Scenario, tasks: int | None = None) -> int:
    """The number of tasks of a plan: `tasks`, or the scenario's own number; one if nothing is random."""
    number = scenario.default_tasks if tasks is None else whole("tasks", tasks, 1, MOST_TASKS)
    return 1 if isinstance(scenario, Whole) else number


def find_scenario(scenario: str | Scenario) -> Scenario:
    """A scenario from its name (`very-low`) or from its kind and settings (`batches:size=64,k_min=5,k_max=5`)."""
    if not isinstance(scenario, str):
        if isinstance(scenario, type) or not isinstance(scenario, Scenario):
            raise SettingError(f"a scenario is a name ({', '.join(SCENARIOS)}) or a scenario object; got {scenario!r}.")
        return scenario
    if scenario in SCENARIOS:
        return SCENARIOS[scenario]
    kind, _, rest = scenario.partition(":")
    if kind not in _KINDS:
        raise SettingError(f"unknown scenario {scenario!r}{did_you_mean(scenario, (*SCENARIOS, *_KINDS))}")
    cls = _KINDS[kind]
    known: dict[str, type] = {f.name: type(f.default) for f in fields(cls)}
    values: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        name, _, raw = item.partition("=")
        name, raw = name.strip(), raw.strip()
        if name not in known:
            raise SettingError(f"a {kind} scenario has no setting {name!r}{did_you_mean(name, known)}")
        try:
            values[name] = _TRUTH[raw.lower()] if known[name] is bool else known[name](raw)
        except (ValueError, KeyError):
            what = {bool: "true or false", int: "a whole number", float: "a number"}[known[name]]
            raise SettingError(f"{name} of a {kind} scenario must be {what}; got {raw!r}.") from None
    return cls(**values)  # type: ignore[no-any-return]


def describe(scenario: Scenario) -> str:
    """The name of the scenario, or else its kind and settings; `find_scenario` reads both."""
    for name, known in SCENARIOS.items():
        if known == scenario:
            return name
    settings = ",".join(f"{name}={value}" for name, value in asdict(scenario).items())  # type: ignore[call-overload]
    return f"{scenario.kind}:{settings}"


def in_words(scenario: str) -> str:
    """A scenario described in a few words; "" if it is not one of kedge's."""
    try:
        found = find_scenario(scenario)
    except KedgeError:
        return ""
    match found:
        case Batches(size, low, high):
            number = f"{low}–{high} classes" if low < high else "1 class" if low == 1 else f"{low} classes"
            return f"Batches of {size:,} with {number}"
        case Whole():
            return "The whole dataset at once"
        case DirichletStream(gamma, size):
            return f"A stream of batches of {size:,}, classes correlated (Dirichlet, γ = {gamma:g})"
        case Separate(size):
            return f"A stream of batches of {size:,}, one class after another"
    return ""
