"""kedge: test-time adaptation of vision-language models.

Names load when first used, so that `import kedge` (and `kedge --help`) does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .classification import classify
    from .errors import ContractError, FileError, InputError, KedgeError, MissingExtra, SettingError
    from .features import FeatureSet, TextHead
    from .methods import Batch, Method, Step, methods
    from .methods.dmn import DMN
    from .methods.em_dirichlet import EMDirichlet
    from .methods.kedge import Kedge
    from .methods.moon import Moon
    from .methods.mta import MTA
    from .methods.oga import OGA
    from .methods.stata import StatA
    from .methods.tda import TDA
    from .methods.tent import Tent
    from .methods.transclip import TransCLIP
    from .methods.zero_shot import ZeroShot
    from .methods.zlap import ZLaP
    from .predictions import Predictions
    from .results import Record
    from .stream import Result, Stream, adapt

_HOME = {
    "Batch": "methods",
    "ContractError": "errors",
    "DMN": "methods.dmn",
    "EMDirichlet": "methods.em_dirichlet",
    "FeatureSet": "features",
    "FileError": "errors",
    "InputError": "errors",
    "Kedge": "methods.kedge",
    "KedgeError": "errors",
    "MTA": "methods.mta",
    "Method": "methods",
    "MissingExtra": "errors",
    "Moon": "methods.moon",
    "OGA": "methods.oga",
    "Predictions": "predictions",
    "Record": "results",
    "Result": "stream",
    "SettingError": "errors",
    "StatA": "methods.stata",
    "Step": "methods",
    "Stream": "stream",
    "TDA": "methods.tda",
    "Tent": "methods.tent",
    "TextHead": "features",
    "TransCLIP": "methods.transclip",
    "ZLaP": "methods.zlap",
    "ZeroShot": "methods.zero_shot",
    "adapt": "stream",
    "classify": "classification",
    "methods": "methods",
}
_MODULES = (
    "bench",
    "checks",
    "datasets",
    "encoders",
    "evaluate",
    "extract",
    "images",
    "progress",
    "prompts",
    "published",
    "report",
    "results",
    "scenarios",
    "simulate",
    "tables",
)

__all__ = [
    "DMN",
    "MTA",
    "OGA",
    "TDA",
    "Batch",
    "ContractError",
    "EMDirichlet",
    "FeatureSet",
    "FileError",
    "InputError",
    "Kedge",
    "KedgeError",
    "Method",
    "MissingExtra",
    "Moon",
    "Predictions",
    "Record",
    "Result",
    "SettingError",
    "StatA",
    "Step",
    "Stream",
    "Tent",
    "TextHead",
    "TransCLIP",
    "ZLaP",
    "ZeroShot",
    "__version__",
    "adapt",
    "classify",
    "methods",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'kedge' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
