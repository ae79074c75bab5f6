"""The grid of a benchmark: methods × feature files × scenarios × seeds. From arguments, a file or a preset.

A grid file is TOML. Command-line flags add what it leaves out. Its paths are relative to the file.

    methods = ["zero-shot", "stata", {name = "stata", alpha = 10}]    # or "stata:alpha=10"; "all" is every method
    # a wrapper: "tempered:stata:alpha=10", or {name = "tempered", method = {name = "stata", alpha = 10}}
    features = ["features/*.safetensors"]
    scenarios = ["very-low", "batches:size=64,k_min=5,k_max=5"]
    seeds = [0, 1]
    tasks = 100            # default: the scenario's own number
    known = 5              # what each batch is told, see `feedback`; default: nothing
    known_by = "review"
    oracle_classes = "found"
    preset = "table1"      # for the keys that are missing
    out = "results"
    jobs = 2

| preset  | in the StatA paper                          | methods                     | scenarios                      |
|---------|---------------------------------------------|-----------------------------|--------------------------------|
| table1  | Table 1, batches                            | all that fit the file       | very-low to very-high, all     |
| table2  | Table 2, streams (ours keep the last batch) | all that fit the file       | the four streams               |
| alpha   | ablation of the anchor weight               | zero-shot, StatA, 6 weights | 64 and 1000, K_eff fixed       |
| beta    | soft against hard β                         | zero-shot, StatA, both      | 1000 and 5000, K_eff fixed     |
| runtime | runtime table                               | zero-shot, StatA            | batches of 1000, the whole set |

The ablations skip scenarios with more classes than the feature file has. The paper does not print the weights of its
ablation; these are ours.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ..errors import FileError, SettingError, did_you_mean
from ..files import check_usable, existing
from ..methods.contract import Method
from ..methods.registry import build, list_methods
from ..ranges import seed_number, whole
from ..schema import Meta, Positive, Whole, fitted
from .feedback import Feedback, KnownBy, OracleClasses
from .scenarios import MOST_TASKS, Scenario, find_scenario

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
DEFAULT_METHODS = ("zero-shot", "stata", "kedge")
MOST_JOBS = 1024  # processes
Options = dict[str, Any]  # the arguments of `Grid.of`, and `preset`


def _fixed(size: int, *classes: int) -> list[str]:
    return [f"batches:size={size},k_min={k},k_max={k}" for k in classes]


PRESETS: dict[str, Options] = {
    "table1": {
        "methods": ["all"],
        "scenarios": ["very-low", "low", "medium", "medium-1000", "high", "very-high", "all"],
    },
    "table2": {
        "methods": ["all"],
        "scenarios": ["stream-low", "stream-medium", "stream-high", "stream-separate"],
    },
    "alpha": {
        "methods": ["zero-shot", *(f"stata:alpha={alpha}" for alpha in (0.1, 0.3, 1, 3, 10, 30))],
        "scenarios": _fixed(64, 1, 2, 3, 5, 10, 15, 20, 25) + _fixed(1000, 5, 10, 25, 50, 100),
        "fitting": True,
    },
    "beta": {
        "methods": ["zero-shot", "stata", "stata:beta=soft"],
        "scenarios": _fixed(1000, 5, 10, 25, 50, 100) + _fixed(5000, 50, 100, 250, 500, 1000),
        "fitting": True,
    },
    "runtime": {"methods": ["zero-shot", "stata"], "scenarios": ["very-high", "all"], "tasks": 20},
}


@dataclass(frozen=True)
class Grid:
    """What to run, and the output folder. Make one with `Grid.of`, or from a file with `Grid.load`."""

    methods: tuple[Method, ...]
    features: tuple[Path, ...]
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    tasks: int | None  # None: each scenario's own number
    jobs: int
    out: Path
    fitting: bool  # leave out what does not fit a feature file, instead of raising an error
    left_out: tuple[str, ...]  # why some of "all" methods are missing
    feedback: Feedback = field(default_factory=Feedback)
    images: Path | None = None  # for methods that adapt the encoder: see `features.image_source`
    encoder: str | None = None

    def __post_init__(self) -> None:
        check_usable(self.out)

    @classmethod
    def of(
        cls,
        features: Iterable[str | Path] = (),
        methods: Iterable[str | Mapping[str, Any] | Method] | None = None,
        scenarios: Iterable[str | Scenario] = (),
        seeds: Iterable[int] = (0,),
        tasks: int | None = None,
        jobs: int = 1,
        out: str | Path = "kedge-bench",
        fitting: bool = False,
        images: str | Path | None = None,
        encoder: str | None = None,
        known: int = 0,
        known_by: KnownBy | None = None,
        oracle_classes: OracleClasses | None = None,
    ) -> Grid:
        """A grid from names and objects. Everything is checked here except the feature files.

        methods: by default zero-shot, stata and kedge; with `known`, those of them that use known labels.

        The presets of `kedge bench` are sets of these arguments: `kedge.benchmark.grid.PRESETS`.
        """
        feedback = Feedback(known, known_by, oracle_classes)
        entries = list(_default_methods(feedback) if methods is None else methods)
        chosen, left_out = [], []
        for entry in entries:
            if entry == "all":
                loaded, broken = _all_methods()
                chosen += loaded
                left_out += broken
            else:
                chosen.append(build(entry))
        return cls(
            methods=tuple(_some(chosen, "methods", "--method stata")),
            features=tuple(Path(path) for path in _some(features, "feature files", "birds.safetensors")),
            scenarios=tuple(
                map(find_scenario, _some(scenarios, "scenarios", "--scenario very-low or --preset table1"))
            ),
            seeds=tuple(seed_number(seed, "a seed") for seed in _some(seeds, "seeds", "--seed 0")),
            tasks=None if tasks is None else whole("tasks", tasks, 1, MOST_TASKS),
            jobs=whole("jobs", jobs, 1, MOST_JOBS),
            out=Path(out),
            fitting=fitting or "all" in entries,
            left_out=tuple(left_out),
            feedback=feedback,
            images=None if images is None else Path(images),
            encoder=encoder,
        )

    @classmethod
    def load(cls, path: str | Path, **changes: Any) -> Grid:
        """The grid of a TOML file; arguments given here replace its keys."""
        return cls.of(**merged(read_options(path), changes))


def merged(*layers: Options) -> Options:
    """Options of several layers: later layers replace earlier ones, and all of them replace the preset."""
    options = {name: value for layer in layers for name, value in layer.items()}
    preset = options.pop("preset", None)
    if preset is None:
        return options
    if preset not in PRESETS:
        raise SettingError(f"unknown preset {preset!r}{did_you_mean(str(preset), PRESETS)}")
    return {**PRESETS[preset], **options}


_PathText = Annotated[str, Meta(pattern="^[^\0]+$")]


@dataclass(frozen=True)
class _GridFile:
    """The keys of a grid file; None: it is not there."""

    methods: list[str | dict[str, Any]] | None = None
    features: list[_PathText] | None = None
    scenarios: list[str] | None = None
    seeds: list[Whole] | None = None
    tasks: Positive | None = None
    known: Whole | None = None
    known_by: str | None = None
    oracle_classes: str | None = None
    preset: str | None = None
    out: _PathText | None = None
    jobs: Positive | None = None


def read_options(path: str | Path) -> Options:
    """The options in a grid file, with its paths relative to the current folder."""
    path = existing(path)
    known = [f.name for f in fields(_GridFile)]
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise FileError(f"{path} is not TOML: {reason}. See `kedge bench --help` for an example.") from error
    for name in content:
        if name not in known:
            raise SettingError(f"{path}: unknown key {name!r}{did_you_mean(name, known)}")
    try:
        grid = fitted(content, _GridFile)
    except ValueError as error:
        raise SettingError(f"{path}: {error}. See `kedge bench --help` for an example.") from error
    options = {name: value for name, value in vars(grid).items() if value is not None}
    if grid.features is not None:
        options["features"] = [file for entry in grid.features for file in _files(path.parent, entry)]
    if grid.out is not None:
        options["out"] = path.parent / grid.out
    return options


def _files(folder: Path, entry: str) -> list[Path]:
    """The files of one entry, which is a path or a pattern with * ? or []."""
    if os.path.exists(folder / entry) or not glob.has_magic(entry):
        return [folder / entry]
    found = sorted(map(Path, glob.glob(str(folder / entry), recursive=True)))
    if not found:
        raise FileError(f"no file fits the pattern {entry!r} in {folder}. Check the pattern.")
    return found


def _default_methods(feedback: Feedback) -> list[Method]:
    return [method for method in map(build, DEFAULT_METHODS) if method.traits.known or not feedback.known]


def _all_methods() -> tuple[list[Method], list[str]]:
    """Every registered method with its defaults, and why some are left out."""
    chosen, broken = [], []
    for name in list_methods():
        try:
            chosen.append(build(name))
        except SettingError as error:  # a method of another package that does not load, or has no defaults
            broken.append(str(error))
    return chosen, broken


def _some(entries: Iterable[T], what: str, example: str) -> list[T]:
    found = list(entries)
    if not found:
        raise SettingError(f"the benchmark has no {what}. Name at least one, for example {example}.")
    return found
