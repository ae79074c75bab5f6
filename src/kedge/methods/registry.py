"""Which methods there are: kedge's own, and those of installed packages (entry-point group `kedge.methods`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import SettingError, did_you_mean
from .contract import Method
from .settings import check_names

ENTRY_POINTS = "kedge.methods"  # the group in which another package announces its methods


_BUILTIN = {
    "zero-shot": "kedge.methods.zero_shot:ZeroShot",
    "kedge": "kedge.methods.kedge:Kedge",
    "stata": "kedge.methods.stata:StatA",
    "transclip": "kedge.methods.transclip:TransCLIP",
    "em-dirichlet": "kedge.methods.em_dirichlet:EMDirichlet",
    "zlap": "kedge.methods.zlap:ZLaP",
    "moon": "kedge.methods.moon:Moon",
    "tda": "kedge.methods.tda:TDA",
    "dmn": "kedge.methods.dmn:DMN",
    "oga": "kedge.methods.oga:OGA",
    "mta": "kedge.methods.mta:MTA",
    "tent": "kedge.methods.tent:Tent",
}


def list_methods() -> tuple[str, ...]:
    """Names of every registered method: ours, then those of installed packages."""
    return (*_BUILTIN, *sorted(_plugins()))


@lru_cache(maxsize=1)
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in _BUILTIN}


def find_method(name: str) -> type[Any]:
    """The class of a registered method; loads its module only now."""
    if name in _BUILTIN:
        module, _, attribute = _BUILTIN[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    if name in _plugins():
        try:
            return _plugins()[name].load()  # type: ignore[no-any-return]
        except Exception as error:
            raise SettingError(f"method {name!r} of another package does not load: {error}") from error
    raise SettingError(f"unknown method {name!r}{did_you_mean(name, list_methods())}")


def build(method: str | Method, settings: Mapping[str, Any] | None = None) -> Method:
    """A method object from a registered name and settings; a method object passes through (without settings)."""
    settings = dict(settings or {})
    if isinstance(method, str):
        cls = find_method(method)
        check_names(cls, settings, method)
        return cls(**settings)  # type: ignore[no-any-return]
    if isinstance(method, type) or not isinstance(method, Method):
        raise SettingError(
            f"a method is a registered name ({', '.join(list_methods())}) "
            f"or an object with name, traits, init and step; got {method!r}."
        )
    if settings:
        raise SettingError(
            f"settings ({', '.join(settings)}) go with a method's name; this {method.name!r} is already configured."
        )
    return method
