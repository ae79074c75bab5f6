"""kedge: test-time adaptation of vision-language models.

Names are loaded at first use, so that `import kedge` and `kedge --help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module

from ._version import __version__

TYPE_CHECKING = False  # without importing typing: the command line should start, and stop, at once
if TYPE_CHECKING:
    from typing import Any

    from .benchmark.evaluate import evaluate
    from .benchmark.grid import Grid
    from .benchmark.record import Record, load_records
    from .benchmark.run import run
    from .benchmark.scenarios import find_scenario
    from .encoders.encoder import Encoder
    from .encoders.names import load_encoder
    from .encoders.tiny import pictures
    from .errors import ContractError, FileError, InputError, KedgeError, MissingExtra, SettingError
    from .features.extract import extract
    from .features.feature_set import FeatureSet
    from .features.simulate import simulate
    from .features.text_head import TextHead
    from .images.datasets import find_dataset
    from .images.image_set import ImageSet
    from .images.sources import dataset_images
    from .labelling.adapt_folder import adapt_folder
    from .labelling.check_method import check_method, method_checks
    from .labelling.classify import classify
    from .labelling.label_folder import LabelFolder
    from .labelling.predictions import Predictions
    from .labelling.result import Result
    from .labelling.session import Session
    from .labelling.stream import Stream, adapt
    from .methods.adapt_nips25 import ADAPT, ADAPTOnline
    from .methods.bca import BCA
    from .methods.boostadapter import BoostAdapter
    from .methods.calibrated import Calibrated
    from .methods.contract import Batch, Method, Step, Traits
    from .methods.dmn import DMN
    from .methods.dota import DOTA
    from .methods.ecalp import ECALP
    from .methods.em_dirichlet import EMDirichlet
    from .methods.gda_clip import GDACLIP
    from .methods.given import NONE
    from .methods.kedge import Kedge
    from .methods.moon import Moon
    from .methods.mta import MTA
    from .methods.oga import OGA
    from .methods.onlab import OnLab
    from .methods.registry import find_method, list_methods
    from .methods.solve.compiling import warm_up
    from .methods.stata import StatA
    from .methods.tda import TDA
    from .methods.tent import Tent
    from .methods.transclip import TransCLIP
    from .methods.zero import Zero
    from .methods.zero_shot import ZeroShot
    from .methods.zlap import ZLaP
    from .report import write_report

_MODULE_OF = {
    **dict.fromkeys(("adapt", "Stream"), "labelling.stream"),
    "adapt_folder": "labelling.adapt_folder",
    "LabelFolder": "labelling.label_folder",
    "Result": "labelling.result",
    "Session": "labelling.session",
    "classify": "labelling.classify",
    "Predictions": "labelling.predictions",
    **dict.fromkeys(("check_method", "method_checks"), "labelling.check_method"),
    "extract": "features.extract",
    "FeatureSet": "features.feature_set",
    "TextHead": "features.text_head",
    "simulate": "features.simulate",
    "Encoder": "encoders.encoder",
    "load_encoder": "encoders.names",
    "pictures": "encoders.tiny",
    "find_dataset": "images.datasets",
    "ImageSet": "images.image_set",
    "dataset_images": "images.sources",
    **dict.fromkeys(("Batch", "Method", "Step", "Traits"), "methods.contract"),
    "NONE": "methods.given",
    **dict.fromkeys(("find_method", "list_methods"), "methods.registry"),
    **dict.fromkeys(("ADAPT", "ADAPTOnline"), "methods.adapt_nips25"),
    "BCA": "methods.bca",
    "BoostAdapter": "methods.boostadapter",
    "Calibrated": "methods.calibrated",
    "DMN": "methods.dmn",
    "DOTA": "methods.dota",
    "ECALP": "methods.ecalp",
    "EMDirichlet": "methods.em_dirichlet",
    "GDACLIP": "methods.gda_clip",
    "Kedge": "methods.kedge",
    "Moon": "methods.moon",
    "MTA": "methods.mta",
    "OGA": "methods.oga",
    "OnLab": "methods.onlab",
    "StatA": "methods.stata",
    "warm_up": "methods.solve.compiling",
    "TDA": "methods.tda",
    "Tent": "methods.tent",
    "TransCLIP": "methods.transclip",
    "Zero": "methods.zero",
    "ZeroShot": "methods.zero_shot",
    "ZLaP": "methods.zlap",
    "evaluate": "benchmark.evaluate",
    "find_scenario": "benchmark.scenarios",
    "Grid": "benchmark.grid",
    **dict.fromkeys(("Record", "load_records"), "benchmark.record"),
    "run": "benchmark.run",
    "write_report": "report",
    **dict.fromkeys(
        ("ContractError", "FileError", "InputError", "KedgeError", "MissingExtra", "SettingError"), "errors"
    ),
}

__all__ = [
    "ADAPT",
    "BCA",
    "DMN",
    "DOTA",
    "ECALP",
    "GDACLIP",
    "MTA",
    "NONE",
    "OGA",
    "TDA",
    "ADAPTOnline",
    "Batch",
    "BoostAdapter",
    "Calibrated",
    "ContractError",
    "EMDirichlet",
    "Encoder",
    "FeatureSet",
    "FileError",
    "Grid",
    "ImageSet",
    "InputError",
    "Kedge",
    "KedgeError",
    "LabelFolder",
    "Method",
    "MissingExtra",
    "Moon",
    "OnLab",
    "Predictions",
    "Record",
    "Result",
    "Session",
    "SettingError",
    "StatA",
    "Step",
    "Stream",
    "Tent",
    "TextHead",
    "Traits",
    "TransCLIP",
    "ZLaP",
    "Zero",
    "ZeroShot",
    "__version__",
    "adapt",
    "adapt_folder",
    "check_method",
    "classify",
    "dataset_images",
    "evaluate",
    "extract",
    "find_dataset",
    "find_method",
    "find_scenario",
    "list_methods",
    "load_encoder",
    "load_records",
    "method_checks",
    "pictures",
    "run",
    "simulate",
    "warm_up",
    "write_report",
]


_ROOMS = ("benchmark", "encoders", "features", "images", "labelling", "methods", "progress", "report")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kedge' has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
