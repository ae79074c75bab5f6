"""Records: the results of one cell as a flat row with provenance, one file each. Tables and report read only these."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from ..errors import FileError
from ..files import existing, written_by_rename
from ..schema import Meta, Positive, Whole, check_plain, checked, decoded
from .feedback import Feedback, KnownBy, OracleClasses

SCHEMA = 3
Share = Annotated[float, Meta(ge=0, le=1 + 1e-6)]  # rounding may exceed 1
Difference = Annotated[float, Meta(ge=-1 - 1e-6, le=1 + 1e-6)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Count = Annotated[int, Meta(ge=0, le=10**15)]


@dataclass(frozen=True)
class Series:
    """Data for the figures: lists of numbers per batch, in order, and per confidence bin."""

    episode: list[Count] = field(default_factory=list)  # of each batch
    images: list[Annotated[int, Meta(ge=1, le=10**15)]] = field(default_factory=list)  # scored in each batch
    classes: list[Count] = field(default_factory=list)  # in each batch
    accuracy: list[Share] = field(default_factory=list)  # per batch
    zero_shot: list[Share] = field(default_factory=list)  # per batch
    reliability: Mapping[str, list[Amount]] = field(default_factory=dict)  # count, confidence, correct: sums per bin
    zero_shot_reliability: Mapping[str, list[Amount]] = field(default_factory=dict)
    composition: list[list[Share]] = field(default_factory=list)  # first stream: class shares per batch, batches × k

    def __post_init__(self) -> None:
        batches = {len(each) for each in (self.episode, self.images, self.classes, self.accuracy, self.zero_shot)}
        if len(batches) > 1:
            raise ValueError(f"lists of {min(batches)} and of {max(batches)} batches in the series")
        if len(self.composition) > self.episode.count(0) or len({len(shares) for shares in self.composition}) > 1:
            raise ValueError("the composition does not fit the batches of the series")
        for bins in (self.reliability, self.zero_shot_reliability):
            if bins and (bins.keys() != {"count", "confidence", "correct"} or len({*map(len, bins.values())}) > 1):
                raise ValueError("the reliability in the series does not have three lists of one length")


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
    seed: Whole
    tasks: Positive
    known: Count = 0  # labels revealed per batch, and how they were chosen; see `feedback`
    known_by: KnownBy | None = None
    oracle_classes: OracleClasses | None = None
    # scores; zero_shot_* and unaided are for the same images
    accuracy: Share | None = None  # averaged per batch, then over batches, then over tasks, as in the papers
    zero_shot: Share | None = None
    gain: Difference | None = None
    gain_low: Difference | None = None  # 95 % interval, paired bootstrap over tasks
    gain_high: Difference | None = None
    tail: Share | None = None  # mean accuracy of the worst tenth of tasks, at least one; older files have none
    zero_shot_tail: Share | None = None  # of zero-shot's own worst tasks, which may be others
    accuracy_per_image: Share | None = None
    zero_shot_per_image: Share | None = None
    macro: Share | None = None  # mean over the classes that occur
    zero_shot_macro: Share | None = None
    harmed: Share | None = None  # fraction of batches below zero-shot
    worst: Difference | None = None  # smallest gain of a batch
    calibration_error: Share | None = None
    zero_shot_calibration_error: Share | None = None
    unaided: Share | None = None  # accuracy of the method without feedback; None if it never has any
    classes_shown: Amount | None = None  # for oracle_classes="found": classes found, mean over batches
    classes_unticked: Amount | None = None  # of these, classes that were not there
    images: Count | None = None  # scored
    batches: Count | None = None
    seconds: Amount | None = None  # in the method only
    seconds_per_image: Amount | None = None
    error: str | None = None
    # provenance
    features_hash: str = ""
    weights: str = ""  # sha256 of the encoder's weights, if known
    precision: str = ""  # in which images were encoded, and how near it is to float32; older records do not say
    plan_hash: str = ""
    classes: Count = 0
    available: Count | None = None  # images in the feature file; older records do not say
    simulated: bool = False
    kedge: str = ""
    torch: str = ""
    machine: str = ""
    schema: int = SCHEMA
    series: Series = field(default_factory=Series)

    def __post_init__(self) -> None:
        check_plain(dict(self.settings))
        _check_inner(self.settings)
        if self.feedback.known_by != self.known_by:
            raise ValueError("labels are known, and `known_by` is missing")

    @property
    def feedback(self) -> Feedback:
        """What the method was told about each batch."""
        return Feedback(self.known, self.known_by, self.oracle_classes)

    @property
    def label(self) -> str:
        """The method with its changed settings and its feedback: `stata alpha=10 + 5 known (review)`."""
        return label(self.method, self.settings, self.feedback)

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
        content = decoded(path.read_bytes(), dict[str, Any], path, "record")
        found = content.get("schema")
        if not isinstance(found, int):
            raise FileError(f"{path} is not a kedge record: it has no `schema`, the number of its format.")
        if found != SCHEMA:
            raise FileError(f"{path} has record format {found}; this kedge reads {SCHEMA}. Run the cell again.")
        if unknown := sorted(content.keys() - {f.name for f in fields(cls)}):
            raise FileError(f"{path} is not a kedge record: unknown field {unknown[0]!r}. Run the cell again.")
        return checked(content, cls, path, "record")


def _check_inner(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if the settings have an inner method without a name."""
    for value in settings.values():
        if isinstance(value, Mapping):
            if not isinstance(value.get("name"), str):
                raise ValueError("an inner method in the settings has no name")
            _check_inner(value)


def label(method: str, settings: Mapping[str, Any], feedback: Feedback | None = None) -> str:
    """A method in tables, with its changed settings: `stata alpha=10`, `tempered:strength=2:stata alpha=10`.

    With feedback it is another row: `stata + 5 known (review)`.
    """
    names, settings_of_last = _names(method, settings)
    return " ".join([names, *settings_of_last, *(["+", str(feedback)] if feedback else [])])


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
    files = [file for path in places for file in (path.glob("*.json") if os.path.isdir(path) else [path])]
    records = [Record.load(file) for file in dict.fromkeys(os.path.realpath(existing(file)) for file in files)]
    if not records:
        raise FileError(
            f"no records in {', '.join(map(str, places))}. Run `kedge bench` first and name its output folder."
        )
    return sorted(records, key=lambda r: (r.scenario, r.dataset, r.encoder, r.label, r.seed, r.tasks, r.features_hash))
