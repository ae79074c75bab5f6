"""The registered methods: kedge's own, and those of installed packages (entry-point group `kedge.methods`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import KedgeError, SettingError, did_you_mean
from ..words import shown
from .contract import Method, Traits
from .settings import check_names, default_of, hints, parse

ENTRY_POINTS = "kedge.methods"  # the entry-point group of other packages' methods
INNER = "method"  # the setting that holds the inner method in `wrapper:inner`

_BUILTIN = {
    "zero-shot": "kedge.methods.zero_shot:ZeroShot",
    "kedge": "kedge.methods.kedge:Kedge",
    "stata": "kedge.methods.stata:StatA",
    "transclip": "kedge.methods.transclip:TransCLIP",
    "em-dirichlet": "kedge.methods.em_dirichlet:EMDirichlet",
    "zlap": "kedge.methods.zlap:ZLaP",
    "moon": "kedge.methods.moon:Moon",
    "gda-clip": "kedge.methods.gda_clip:GDACLIP",
    "tda": "kedge.methods.tda:TDA",
    "dmn": "kedge.methods.dmn:DMN",
    "oga": "kedge.methods.oga:OGA",
    "dota": "kedge.methods.dota:DOTA",
    "ecalp": "kedge.methods.ecalp:ECALP",
    "bca": "kedge.methods.bca:BCA",
    "onlab": "kedge.methods.onlab:OnLab",
    "adapt-nips25": "kedge.methods.adapt_nips25:ADAPT",
    "adapt-nips25-online": "kedge.methods.adapt_nips25:ADAPTOnline",
    "mta": "kedge.methods.mta:MTA",
    "zero": "kedge.methods.zero:Zero",
    "boostadapter": "kedge.methods.boostadapter:BoostAdapter",
    "tent": "kedge.methods.tent:Tent",
}
_WRAPPERS = {"calibrated": "kedge.methods.calibrated:Calibrated"}  # around a method, as in calibrated:stata


def list_methods() -> tuple[str, ...]:
    """The names of all registered methods: kedge's own, then those of installed packages."""
    return (*_BUILTIN, *sorted(_plugins()))


def list_wrappers() -> tuple[str, ...]:
    """The names of what goes around a method, as in `calibrated:stata`; a method of another package may be one too."""
    return tuple(_WRAPPERS)


@lru_cache(maxsize=1)
def _plugins() -> dict[str, EntryPoint]:
    return {
        point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in (*_BUILTIN, *_WRAPPERS)
    }


def find_method(name: str) -> type[Any]:
    """The class of a registered method. Its module is imported here."""
    if place := {**_BUILTIN, **_WRAPPERS}.get(name):
        module, _, attribute = place.partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    if name not in _plugins():
        raise SettingError(f"unknown method {name!r}{did_you_mean(name, (*list_methods(), *_WRAPPERS))}")
    try:
        cls = _plugins()[name].load()
        hints(cls)
    except Exception as error:  # any error in the other package
        raise SettingError(f"method {name!r} of another package does not load: {_one_line(error)}") from error
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise SettingError(f"method {name!r} of another package is not a dataclass: {_one_line(cls)}")
    _check_plugin(cls, name)
    return cls


def _check_plugin(found: Any, name: str) -> None:
    """Check `name` and `traits` of another package's method: of its class, or (if they are properties) of an object."""
    for attribute, kind in (("name", str), ("traits", Traits)):
        value = getattr(found, attribute, None)
        if isinstance(found, type) and hasattr(value, "__get__"):
            continue  # a property
        if not isinstance(value, kind):
            what = "has no" if value is None else f"needs a {kind.__name__} object as its"
            raise SettingError(f"method {name!r} of another package {what} `{attribute}`.")
        if attribute == "name" and value != name:
            raise SettingError(f"method {name!r} of another package calls itself {value!r}. The names must be equal.")


def build(method: str | Mapping[str, Any] | Method, settings: Mapping[str, Any] | None = None) -> Method:
    """A method object, from one of:

    "stata"                          a registered name
    "tempered:stata:alpha=10"        a text, see `parse_method`
    {"name": "stata", "alpha": 10}   a description, see `settings`; an inner method is a description or a text
    StatA(alpha=10)                  a method object, which is returned unchanged

    settings: further settings of the method that is named first.
    """
    if isinstance(method, str):
        method = parse_method(method)
    if isinstance(method, Mapping):
        given, settings = dict(method), settings or {}
        name = given.pop("name", None)
        if not isinstance(name, str):
            raise SettingError(f'a method with settings is written {{name = "stata", alpha = 10}}; got {dict(method)}.')
        if twice := given.keys() & settings.keys():
            raise SettingError(f"{min(twice)} of method {name!r} is given twice. Give it once.")
        return make(find_method(name), {**given, **settings}, name)
    if isinstance(method, type) or not isinstance(method, Method):
        raise SettingError(
            f"a method is a registered name ({', '.join(list_methods())}) "
            f"or an object with name, traits, init and step; got {shown(method)}."
        )
    if settings:
        raise SettingError(
            f"settings ({', '.join(settings)}) go with a method's name; this {method.name!r} is already configured."
        )
    return method


def make(cls: type[Any], settings: Mapping[str, Any], name: str) -> Method:
    """An object of the class `cls`, registered as `name`. Inner methods may be texts or descriptions."""
    check_names(cls, settings, name)
    for f in fields(cls):
        if default_of(f) is MISSING and f.name not in settings:
            example = f"{name}:stata" if f.name == INNER else f"{name}:{f.name}=…"
            raise SettingError(f"method {name!r} needs the setting {f.name!r}. Write for example {example}")
    values = {
        key: build(value) if isinstance(value, str | Mapping) and hints(cls)[key] is Method else value
        for key, value in settings.items()
    }
    try:
        made: Method = cls(**values)
        if name in _plugins():
            _check_plugin(made, name)
    except KedgeError:
        raise
    except Exception as error:  # any error in the other package
        raise SettingError(f"method {name!r} cannot be made: {_one_line(error)}") from error
    return made


def parse_method(text: str) -> dict[str, Any]:
    """A method as text → its description, {name, …settings}.

    stata                                    a name
    stata:alpha=10,beta=soft                 its settings
    tempered:stata                           a wrapper: its setting `method` is stata
    tempered:stata:alpha=10                  alpha belongs to stata, the last name before it
    tempered:strength=2:stata:alpha=10       settings of both

    Grammar: text = name [":" settings] [":" text]; settings = name "=" value {"," name "=" value}. A part with "=" is
    settings, a part without is a name. Text cannot hold a value with ":" or ","; a description can.
    """
    name, *parts = (part.strip() for part in text.split(":"))
    cls = find_method(name)
    settings: dict[str, Any] = {}
    if parts and "=" in parts[0]:
        settings = parse(cls, parts.pop(0).split(","), name)
    if not parts:
        return {"name": name, **settings}
    if not parts[0]:
        raise SettingError(f"{text!r} ends in the middle. Write name:setting=value, or wrapper:method.")
    if "=" in parts[0]:
        raise SettingError(
            f"{text!r}: it is not clear whose setting {parts[0]!r} is. "
            "Separate settings of one method by commas, and name an inner method before its settings."
        )
    if hints(cls).get(INNER) is not Method:
        raise SettingError(f"method {name!r} takes no inner method; got {parts[0]!r}. Settings are written name=value.")
    if INNER in settings:
        raise SettingError(f"{text!r} gives the inner method of {name!r} twice. Give it once.")
    return {"name": name, **settings, INNER: parse_method(":".join(parts))}


def _one_line(something: object) -> str:
    return " ".join(str(something).split())
