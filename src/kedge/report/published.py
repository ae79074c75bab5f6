"""Published figures, to compare records with. Tables of the StatA paper (CVPR 2025) and of the MOON paper (ICML 2026).

    published("dtd", "ViT-B/16", "very-low", "stata")       # Published(accuracy=0.461, source="StatA paper")
    published_for(record)

Strict, since a comparison with other settings misleads: the dataset must be called exactly as in `data/datasets.csv` (a
file `dtd_val.npz` is not DTD as published), the encoder must be one of CLIP's in a known spelling, the method must have
its default settings, and a record must not be simulated and must have the dataset's number of classes. The published
streams drop their last partial batch and ours keep it, by default; they are compared all the same.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from ..benchmark.record import Record
from ..benchmark.scenarios import Batches, DirichletStream, Scenario, Separate, describe, find_scenario
from ..errors import SettingError

TABLES = {"stata_paper_tables": "StatA paper", "moon_tables": "MOON paper"}  # the first that has a figure counts

_METHODS = {  # as the tables call them
    "zero-shot": "CLIP",
    "stata": "StatA",
    "transclip": "TransCLIP",
    "zlap": "ZLaP",
    "em-dirichlet": "Dirichlet",
    "tda": "TDA",
    "dmn": "DMN",
    "mta": "MTA",
    "tent": "TENT",
    "moon": "MOON",
    "oga": "OGA",
}
_SCENARIOS = {
    "very-low": ("batch", "64", "Very Low"),
    "low": ("batch", "64", "Low"),
    "medium": ("batch", "64", "Medium"),
    "medium-1000": ("batch", "1000", "Medium"),
    "high": ("batch", "1000", "High"),
    "very-high": ("batch", "1000", "Very High"),
    "all": ("batch", "all", "All"),
    "stream-low": ("online", "128", "Low"),
    "stream-medium": ("online", "128", "Medium"),
    "stream-high": ("online", "128", "High"),
    "stream-separate": ("online", "128", "Separate"),
}
METHOD_ORDER = ("zero-shot", "kedge", *(name for name in _METHODS if name != "zero-shot"))  # in tables and legends
_ANY = ("any", "any", "any")  # methods that label each image by itself have one figure for every scenario
_ENCODERS = {  # as the tables say it: what is left of other spellings without "openai", "clip" and punctuation
    "ViT-B/32": ("vitb32", "vitbasepatch32"),
    "ViT-B/16": ("vitb16", "vitbasepatch16"),
    "ViT-L/14": ("vitl14", "vitlargepatch14"),
    "RN50": ("rn50", "resnet50"),
    "RN101": ("rn101", "resnet101"),
}
_BETA_ENCODER, _BETA_DATASET = "ViT-B/16", "imagenet"  # of the ablation of β, by the zero-shot figure it names


@dataclass(frozen=True)
class Published:
    """A published figure; the accuracy is a share, as in records."""

    accuracy: float
    source: str


def published(dataset: str, encoder: str, scenario: str | Scenario, method: str) -> Published | None:
    """The published accuracy of a method (as a record's label: `stata beta=soft`), or None."""
    name, where, kind = dataset_name(dataset), _scenario_name(scenario), clip_name(encoder)
    if name is None or where is None or kind is None:
        return None
    if (name, kind) == (_BETA_DATASET, _BETA_ENCODER) and (where, method) in _beta():
        return _beta()[where, method]
    if method not in _METHODS:
        return None
    for setting in (_SCENARIOS.get(where, _ANY), _ANY):
        found = _figures().get((name, kind, *setting, _METHODS[method]))
        if found is not None:
            return found
    return None


def published_for(record: Record) -> Published | None:
    """The published figure to set beside a record, or None."""
    name = dataset_name(record.dataset)
    if record.simulated or name is None or record.classes != int(_datasets()[name]["classes"]):
        return None
    return published(record.dataset, record.encoder, record.scenario, record.label)


def reference(table: str) -> list[dict[str, str]]:
    """The rows of one of the package's tables, as they are printed; numbers as text, accuracies in percent."""
    text = files("kedge").joinpath("data", f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def dataset_name(name: str) -> str | None:
    """The benchmark's short name of a dataset, if this is exactly one of its names; upper or lower case."""
    for row in _datasets().values():
        if name.casefold() in (row["name"].casefold(), row["other_name"].casefold()):
            return row["name"]
    return None


def clip_name(encoder: str) -> str | None:
    """CLIP's encoder as the tables call it: `CLIP ViT-B-32`, `openai/clip-vit-base-patch32` → `ViT-B/32`."""
    plain = re.sub(r"[^a-z0-9@]", "", encoder.casefold()).removeprefix("openai").removeprefix("clip")
    return next((name for name, spellings in _ENCODERS.items() if plain in spellings), None)


def _scenario_name(scenario: str | Scenario) -> str | None:
    try:
        found = find_scenario(scenario)
    except SettingError:
        return None  # somebody's own
    return describe(replace(found, drop_last=False) if isinstance(found, DirichletStream | Separate) else found)


@cache
def _datasets() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in reference("datasets")}


@cache
def _figures() -> dict[tuple[str, ...], Published]:
    """By dataset, encoder, setting, batch size, scenario and method."""
    found: dict[tuple[str, ...], Published] = {}
    for table, source in TABLES.items():
        for row in reference(table):
            key = (row["dataset"], row["encoder"], row["setting"], row["batch_size"], row["scenario"], row["method"])
            found.setdefault(key, Published(_share(row), source))
    return found


@cache
def _beta() -> dict[tuple[str, str], Published]:
    """By scenario and label."""
    label = {"hard": "stata", "soft": "stata beta=soft"}
    found = {}
    for row in reference("stata_paper_ablation_beta"):
        scenario = describe(Batches(int(row["batch_size"]), int(row["k_eff"]), int(row["k_eff"])))
        found[scenario, label[row["beta"]]] = Published(_share(row), "StatA paper, ablation of β")
    return found


def _share(row: dict[str, str]) -> float:
    return round(float(row["accuracy"]) / 100, 6)  # without the dust of a division
