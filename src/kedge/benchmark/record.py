"""Results: flat rows with provenance, one file each. The report and the tables know nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..files import existing, written_by_rename

SCHEMA = 2


@dataclass(frozen=True)
class Series:
    """What the pictures need beyond the scores: per batch, in order, and per confidence bin. Lists of numbers."""

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
    """One cell: a method on a feature file in a scenario with a seed. Accuracies are shares, times are seconds.

    A cell that failed has `error` and no scores.
    """

    # which cell
    method: str
    settings: Mapping[str, Any]
    dataset: str
    encoder: str
    scenario: str
    seed: int
    tasks: int
    # scores; zero_shot_* are on the same images
    accuracy: float | None = None  # per batch, then over batches, then over tasks: the papers' figure
    zero_shot: float | None = None
    gain: float | None = None
    gain_low: float | None = None  # 95 % paired bootstrap over tasks
    gain_high: float | None = None
    accuracy_per_image: float | None = None
    zero_shot_per_image: float | None = None
    macro: float | None = None  # over classes present
    zero_shot_macro: float | None = None
    harmed: float | None = None  # share of batches made worse
    worst: float | None = None  # lowest gain of a batch
    calibration_error: float | None = None
    zero_shot_calibration_error: float | None = None
    images: int | None = None
    batches: int | None = None
    seconds: float | None = None  # in the method alone
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
        """The method with the settings that are not its defaults: `stata alpha=10`."""
        return label(self.method, self.settings)

    def row(self) -> dict[str, Any]:
        """The flat row: everything but the series."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "series"}

    def save(self, path: str | Path) -> None:
        """Write one JSON file, by rename: a file that exists is whole."""
        data = asdict(self)
        data["settings"] = {name: _speakable(value) for name, value in self.settings.items()}
        with written_by_rename(path) as temporary:
            temporary.write_text(json.dumps(data, allow_nan=False, separators=(",", ":")), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read it back."""
        path = existing(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise FileError(
                    f"{path} has record format {data['schema']}; this kedge reads {SCHEMA}. Run the cell again."
                )
            settings = {name: _INFINITE.get(str(value), value) for name, value in data["settings"].items()}
            return cls(**{**data, "settings": settings, "series": Series(**data["series"])})
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} is not a kedge record: {error!r}. Delete it and run the cell again.") from error


def label(method: str, settings: Mapping[str, Any]) -> str:
    """How a method is called in tables, with the settings that are not its defaults: `stata alpha=10`."""
    return " ".join([method, *(f"{name}={str(value).removesuffix('.0')}" for name, value in settings.items())])


_INFINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no word for them


def _speakable(value: Any) -> Any:
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def load_records(paths: Iterable[str | Path]) -> list[Record]:
    """Every record in these files and folders (searched for `*.json`), once each, in a fixed order."""
    places = list(map(Path, paths))
    files = [file for path in places for file in (path.glob("*.json") if path.is_dir() else [path])]
    records = [Record.load(file) for file in dict.fromkeys(file.resolve() for file in files)]
    if not records:
        raise FileError(
            f"no records in {', '.join(map(str, places))}. Run `kedge bench` first and name its output folder."
        )
    return sorted(records, key=lambda r: (r.scenario, r.dataset, r.encoder, r.label, r.seed, r.tasks, r.features_hash))
