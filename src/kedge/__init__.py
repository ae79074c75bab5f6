"""kedge: test-time adaptation of vision-language models.

Names load when first used, so that `import kedge` (and `kedge --help`) does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .errors import ContractError, FileError, InputError, KedgeError, MissingExtra, SettingError
    from .features import FeatureSet, TextHead
    from .methods import Batch, Method, Step, methods
    from .methods.stata import StatA
    from .methods.zero_shot import ZeroShot
    from .stream import Result, Stream, adapt

_HOME = {
    "Batch": "methods",
    "ContractError": "errors",
    "FeatureSet": "features",
    "FileError": "errors",
    "InputError": "errors",
    "KedgeError": "errors",
    "Method": "methods",
    "MissingExtra": "errors",
    "Result": "stream",
    "SettingError": "errors",
    "StatA": "methods.stata",
    "Step": "methods",
    "Stream": "stream",
    "TextHead": "features",
    "ZeroShot": "methods.zero_shot",
    "adapt": "stream",
    "methods": "methods",
}
_MODULES = ("checks", "progress", "simulate")

__all__ = [
    "Batch",
    "ContractError",
    "FeatureSet",
    "FileError",
    "InputError",
    "KedgeError",
    "Method",
    "MissingExtra",
    "Result",
    "SettingError",
    "StatA",
    "Step",
    "Stream",
    "TextHead",
    "ZeroShot",
    "__version__",
    "adapt",
    "methods",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'kedge' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
