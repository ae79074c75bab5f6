"""Records: the results of one cell as a flat row with provenance, one file each. Tables and report read only these."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..files import existing, written_by_rename

SCHEMA = 2


@dataclass(frozen=True)
class Series:
    """Data for the figures: lists of numbers per batch, in order, and per confidence bin."""

    episode: list[int] = field(default_factory=list)  # of each batch
    images: list[int] = field(default_factory=list)  # in each batch
    classes: list[int] = field(default_factory=list)  # in each batch
    accuracy: list[float] = field(default_factory=list)  # per batch
    zero_shot: list[float] = field(default_factory=list)  # per batch
    reliability: Mapping[str, list[float]] = field(default_factory=dict)  # count, confidence, correct: sums per bin
    zero_shot_reliability: Mapping[str, list[float]] = field(default_factory=dict)
    composition: list[list[float]] = field(default_factory=list)  # first stream: class shares per batch, batches × k


@dataclass(frozen=True)
class Record:
    """The result of one cell: a method on a feature file in a scenario with a seed.

    Accuracies are fractions, times are in seconds. A cell that failed has `error` and no scores.
    """

    # the cell
    method: str
    settings: Mapping[str, Any]
    dataset: str
    encoder: str
    scenario: str
    seed: int
    tasks: int
    # scores; zero_shot_* are for the same images
    accuracy: float | None = None  # averaged per batch, then over batches, then over tasks, as in the papers
    zero_shot: float | None = None
    gain: float | None = None
    gain_low: float | None = None  # 95 % interval, paired bootstrap over tasks
    gain_high: float | None = None
    accuracy_per_image: float | None = None
    zero_shot_per_image: float | None = None
    macro: float | None = None  # mean over the classes that occur
    zero_shot_macro: float | None = None
    harmed: float | None = None  # fraction of batches below zero-shot
    worst: float | None = None  # smallest gain of a batch
    calibration_error: float | None = None
    zero_shot_calibration_error: float | None = None
    images: int | None = None
    batches: int | None = None
    seconds: float | None = None  # in the method only
    seconds_per_image: float | None = None
    error: str | None = None
    # provenance
    features_hash: str = ""
    weights: str = ""  # sha256 of the encoder's weights, if known
    plan_hash: str = ""
    classes: int = 0
    simulated: bool = False
    kedge: str = ""
    torch: str = ""
    machine: str = ""
    schema: int = SCHEMA
    series: Series = field(default_factory=Series)

    @property
    def label(self) -> str:
        """The method with its changed settings: `stata alpha=10`."""
        return label(self.method, self.settings)

    def row(self) -> dict[str, Any]:
        """Everything except the series."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "series"}

    def save(self, path: str | Path) -> None:
        """Write one JSON file, by rename: a file that exists is complete."""
        text = json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))
        with written_by_rename(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a record from its file."""
        path = existing(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise FileError(
                    f"{path} has record format {data['schema']}; this kedge reads {SCHEMA}. Run the cell again."
                )
            return cls(**{**data, "series": Series(**data["series"])})
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} is not a kedge record: {error!r}. Delete it and run the cell again.") from error


def label(method: str, settings: Mapping[str, Any]) -> str:
    """A method in tables, with its changed settings: `stata alpha=10`, `tempered:strength=2:stata alpha=10`."""
    names, settings_of_last = _names(method, settings)
    return " ".join([names, *settings_of_last])


def as_argument(method: str, settings: Mapping[str, Any]) -> str:
    """A method on the command line, with its changed settings: `tempered:strength=2:stata:alpha=10`."""
    names, settings_of_last = _names(method, settings)
    return _joined(names, ",".join(settings_of_last))


def _names(method: str, settings: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The names of a wrapper and of its inner method, joined by colons; and the settings of the last one."""
    inner = settings.get("method")
    if not isinstance(inner, Mapping):
        return method, [f"{name}={_shown(value)}" for name, value in settings.items()]
    own = ",".join(f"{name}={_shown(value)}" for name, value in settings.items() if name != "method")
    names, settings_of_last = _names(*_parts(inner))
    return _joined(method, own, names), settings_of_last


def _joined(*parts: str) -> str:
    return ":".join(filter(None, parts))


def _parts(description: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return description["name"], {name: value for name, value in description.items() if name != "name"}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # an inner method whose setting is not called `method`
        return f"({label(*_parts(value))})"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def load_records(paths: Iterable[str | Path]) -> list[Record]:
    """All records in these files and folders (`*.json`), each once, in a fixed order."""
    places = list(map(Path, paths))
    files = [file for path in places for file in (path.glob("*.json") if path.is_dir() else [path])]
    records = [Record.load(file) for file in dict.fromkeys(file.resolve() for file in files)]
    if not records:
        raise FileError(
            f"no records in {', '.join(map(str, places))}. Run `kedge bench` first and name its output folder."
        )
    return sorted(records, key=lambda r: (r.scenario, r.dataset, r.encoder, r.label, r.seed, r.tasks, r.features_hash))
