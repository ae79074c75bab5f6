"""Published figures to compare records with: the tables of the StatA paper (CVPR 2025) and the MOON paper (ICML 2026).

JPTA's README has averages over the eleven datasets only, of settings tuned per dataset on the test split.

    published("dtd", "hf:openai/clip-vit-base-patch16", "very-low", "stata")  # Published(0.461, "StatA paper")
    published_for(record)

The match is strict, because a comparison across settings misleads:

- the dataset has exactly a name of `data/datasets.csv` (a file `dtd_val.npz` is not the DTD of the tables), and the
  record has that dataset's number of classes and of test images (1 % may be unreadable) and is not simulated;
- the encoder is OpenAI's CLIP, by the hash of its weights or by its name (see `clip_name`), never by architecture;
- the method has its default settings.

An average of the tables is for all eleven datasets, and compared with nothing else (`published_average`).

One difference is accepted: the published streams drop their last partial batch, and ours keep it by default.
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

TABLES = {  # a figure in two of them: the first one's
    "stata_paper_tables": "StatA paper",
    "moon_tables": "MOON paper",
    "jpta_readme": "JPTA’s README",
}
JPTA = "JPTA (published; tuned per dataset on the test split)"  # its row: kedge does not run it

_METHODS = {  # our name: the name in the tables
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
    "gda-clip": "GDA-CLIP",
    "adapt-nips25": "ADAPT",
    "adapt-nips25-online": "ADAPT",
}
_ONLY_IN = {"adapt-nips25": "batch", "adapt-nips25-online": "online"}  # MOON ran one program on each setting
_WITHOUT_FIGURES = ("dota", "ecalp", "bca", "onlab", "zero", "boostadapter")  # of these scenarios
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
METHOD_ORDER = (  # in tables and legends
    *("zero-shot", "kedge"),
    *(name for name in _METHODS if name != "zero-shot"),
    *_WITHOUT_FIGURES,
)
CLASSES_IN_SPLIT = {"caltech101": 100}  # the paper prints 101; the split that it uses leaves out one of two of faces
_MISSING = 0.01  # the share of test images that may be missing, or be there in addition
_ANY = ("any", "any", "any")  # a method that labels each image on its own has one figure for all scenarios
# OpenAI's CLIP, by the name the tables use for it.
_HUB = {  # repositories on the Hugging Face hub: for transformers, and for open_clip
    "openai/clip-vit-base-patch32": "ViT-B/32",
    "openai/clip-vit-base-patch16": "ViT-B/16",
    "openai/clip-vit-large-patch14": "ViT-L/14",
    "timm/vit_base_patch32_clip_224.openai": "ViT-B/32",
    "timm/vit_base_patch16_clip_224.openai": "ViT-B/16",
    "timm/vit_large_patch14_clip_224.openai": "ViT-L/14",
    "timm/resnet50_clip.openai": "RN50",
    "timm/resnet101_clip.openai": "RN101",
}
_KEDGE = {
    **{f"hf:{repository}": name for repository, name in _HUB.items()},
    **{f"openclip:{name.replace('/', '-')}{act}/openai": name for name in _HUB.values() for act in ("", "-quickgelu")},
}
_SPELLINGS = {  # what follows "CLIP" or "OpenAI" in feature files from elsewhere, without punctuation
    **{"vitb32": "ViT-B/32", "vitb16": "ViT-B/16", "vitl14": "ViT-L/14", "rn50": "RN50", "rn101": "RN101"},
    **{"vitbasepatch32": "ViT-B/32", "vitbasepatch16": "ViT-B/16", "vitlargepatch14": "ViT-L/14"},
    **{"resnet50": "RN50", "resnet101": "RN101"},
}
# sha256 of the weights on the hub: `model.safetensors` of openai/…, `open_clip_model.safetensors` of timm/…
# Each was found in at least two public projects that pin the file. openai/clip-vit-base-patch16 and
# timm/resnet101_clip.openai are missing: no such source was found.
_WEIGHTS = {
    "99d28a652e6ec46629ab7047a0ac82c69b1fe11e0ce672c43af65d3a9a3fc05d": "ViT-B/32",  # openai/
    "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb": "ViT-L/14",  # openai/
    "e6d1bd7789aa45192b3bf90570a789b478bae1b74ebcce7eddd908e83a2b7c31": "ViT-B/32",  # timm/
    "4b8699299b1e8997753c64b052ba32031449d5d853f55a039148560ee02b820f": "ViT-B/16",  # timm/
    "9ce2e8a8ebfff3793d7d375ad6d3c35cb9aebf3de7ace0fc7308accab7cd207e": "ViT-L/14",  # timm/
    "da0baa37fb2211eee5729ab69ed587eb10d48f5b7076ceeed01552fc3d4cb4ee": "RN50",  # timm/
}
MAIN_ENCODER = "ViT-B/16"  # of the StatA paper's main tables
PAPER_ENCODERS = {  # of its supplement
    "RN50": "openclip:RN50/openai",
    "RN101": "openclip:RN101/openai",
    "ViT-B/32": "hf:openai/clip-vit-base-patch32",
    "ViT-L/14": "hf:openai/clip-vit-large-patch14",
}
_BETA_ENCODER, _BETA_DATASET = MAIN_ENCODER, "imagenet"  # of the ablation of β, as its zero-shot figure shows


@dataclass(frozen=True)
class Published:
    """A published accuracy, between 0 and 1 as in records, and where it was published."""

    accuracy: float
    source: str


def published(dataset: str, encoder: str, scenario: str | Scenario, method: str, weights: str = "") -> Published | None:
    """The published accuracy of a method, or None.

    method: a record's label, such as `stata beta=soft`. weights: the sha256 of the encoder's weights, if known.
    """
    name, where, kind = dataset_name(dataset), _scenario_name(scenario), clip_name(encoder, weights)
    if name is None or where is None or kind is None:
        return None
    if (name, kind) == (_BETA_DATASET, _BETA_ENCODER) and (where, method) in _beta():
        return _beta()[where, method]
    return _figure(name, kind, where, method)


def published_for(record: Record) -> Published | None:
    """The published figure to compare a record with, or None."""
    if record.simulated or not _is_test_set(dataset_name(record.dataset), record.classes, record.available):
        return None
    return published(record.dataset, record.encoder, record.scenario, record.label, record.weights)


def _is_test_set(name: str | None, classes: int, images: int | None) -> bool:
    """Is this the test set of the tables, by its sizes? images: None if not known."""
    if name is None:
        return False
    printed = _datasets()[name]
    expected = int(printed["test_images"])
    return classes in (int(printed["classes"]), CLASSES_IN_SPLIT.get(name)) and (
        images is None or abs(images - expected) <= _MISSING * expected
    )


def published_average(encoder: str, scenario: str, method: str) -> Published | None:
    """The published mean over the eleven datasets, or None.

    encoder: as the tables call it (`ViT-B/16`). method: a record's label, or `JPTA`.
    """
    return _figure("average", encoder, scenario, method)


def _figure(dataset: str, encoder: str, scenario: str, method: str) -> Published | None:
    """The figure of a dataset and an encoder as the tables call them, in one of our scenarios."""
    name = "JPTA" if method == JPTA else _METHODS.get(method, "")
    for setting in (_SCENARIOS.get(scenario, _ANY), _ANY):
        found = _figures().get((dataset, encoder, *setting, name))
        if found is not None and _ONLY_IN.get(method, setting[0]) == setting[0]:
            return found
    return None


def reference(table: str) -> list[dict[str, str]]:
    """The rows of a table in `kedge/data`, as printed: numbers are text, accuracies are in percent."""
    text = files("kedge").joinpath("data", f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def dataset_name(name: str) -> str | None:
    """The benchmark's short name of a dataset; None if this is not exactly one of its names (in any case)."""
    for row in _datasets().values():
        if name.casefold() in (row["name"].casefold(), row["other_name"].casefold()):
            return row["name"]
    return None


def clip_name(encoder: str, weights: str = "") -> str | None:
    """OpenAI's CLIP as the tables call it (`ViT-B/32`), or None for any other encoder.

    | known by            | for example                                                                    |
    |---------------------|--------------------------------------------------------------------------------|
    | hash of the weights | a model folder anywhere                                                        |
    | kedge's name        | `hf:openai/clip-vit-base-patch32`, `openclip:ViT-B-32/openai`                  |
    | the hub's cache     | `hf:/…/models--openai--clip-vit-base-patch32/snapshots/…`                      |
    | a name in words     | `CLIP ViT-B/32`, `openai/clip-vit-base-patch32`, in feature files from elsewhere |

    An architecture proves nothing (`ViT-B/32`, a folder of that name), nor does the `_name_or_path` in a model's
    config.json: models that were trained further keep it.
    """
    cached = re.search(r"[/\\]models--([\w.-]+?)--([\w.-]+)[/\\]snapshots[/\\]\w+$", encoder)
    spelled = re.fullmatch(r"(?:openai[ /_-]*clip|openai|clip)[ /_-]*(\w.*)", encoder.casefold())
    return (
        _WEIGHTS.get(weights)
        or _KEDGE.get(encoder)
        or (_HUB.get("/".join(cached.groups())) if cached else None)
        or (_SPELLINGS.get(re.sub("[ /_-]", "", spelled[1])) if spelled else None)
    )


def encoder_shown(record: Record) -> str:
    """The encoder's name in tables: OpenAI's CLIP in one spelling (`CLIP ViT-B/32`), others as recorded."""
    name = clip_name(record.encoder, record.weights)
    return record.encoder if name is None else f"CLIP {name}"


def _scenario_name(scenario: str | Scenario) -> str | None:
    try:
        found = find_scenario(scenario)
    except SettingError:
        return None  # not one of kedge's scenarios
    return describe(replace(found, drop_last=False) if isinstance(found, DirichletStream | Separate) else found)


@cache
def _datasets() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in reference("datasets")}


@cache
def _figures() -> dict[tuple[str, ...], Published]:
    """(dataset, encoder, setting, batch size, scenario, method) → figure."""
    found: dict[tuple[str, ...], Published] = {}
    for table, source in TABLES.items():
        for row in reference(table):
            key = (row["dataset"], row["encoder"], row["setting"], row["batch_size"], row["scenario"], row["method"])
            found.setdefault(key, Published(_share(row), source))
    return found


@cache
def _beta() -> dict[tuple[str, str], Published]:
    """(scenario, label) → figure."""
    label = {"hard": "stata", "soft": "stata beta=soft"}
    found = {}
    for row in reference("stata_paper_ablation_beta"):
        scenario = describe(Batches(int(row["batch_size"]), int(row["k_eff"]), int(row["k_eff"])))
        found[scenario, label[row["beta"]]] = Published(_share(row), "StatA paper, ablation of β")
    return found


def _share(row: dict[str, str]) -> float:
    return round(float(row["accuracy"]) / 100, 6)  # rounded: 46.1 / 100 is not 0.461 in floating point
