"""A method is its configuration: a frozen dataclass whose fields are checked by type and range.

A setting is a number, a bool, a str, a choice (`Literal`), or another method (`Method`), so that a wrapper is a method
too. Outside Python a method is `{name, …settings}`, and an inner method is nested:

    {"name": "tempered", "strength": 2, "method": {"name": "stata", "alpha": 10}}

`description` writes that form; `registry.build` reads it. It has only values of JSON: an infinite number is "inf".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import SettingError, did_you_mean
from ..ranges import checked_number
from ..words import shown
from .contract import Method


def setting(
    default: Any, doc: str, *, low: float | None = None, above: float | None = None, high: float | None = None
) -> Any:
    """A field with its meaning in one line and its range: low ≤ value ≤ high, value > above; ∞ only if high is ∞.

    Inside its range no value gives NaN, in float32, and none makes a small batch take more than seconds.
    """
    return field(default=default, metadata={"doc": doc, "low": low, "above": above, "high": high})


def description(method: Any, *, changed: bool = False) -> dict[str, Any]:
    """{name, …settings}; with `changed`, only the settings that differ from their defaults."""
    return {"name": method.name, **(changed_settings(method) if changed else settings_of(method))}


def settings_of(method: Any) -> dict[str, Any]:
    """The settings of a method by name, as values of JSON."""
    return {f.name: _plain(getattr(method, f.name), changed=False) for f in fields(method)}


def changed_settings(method: Any) -> dict[str, Any]:
    """The settings that differ from their defaults, as values of JSON."""
    values = {f.name: (getattr(method, f.name), default_of(f)) for f in fields(method)}
    return {name: _plain(value, changed=True) for name, (value, default) in values.items() if value != default}


def default_of(f: Field[Any]) -> Any:
    """The default of a field; MISSING if it has none."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def _plain(value: Any, *, changed: bool) -> Any:
    if isinstance(value, Method):
        return description(value, changed=changed)
    return str(value) if isinstance(value, float) and math.isinf(value) else value


hints: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)  # cached: evaluating annotations is slow


@dataclass(frozen=True)
class Configured:
    """Base class of the methods: checks the type and range of each field of a new object."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = _checked(f.name, getattr(self, f.name), hints(type(self))[f.name], f.metadata)
            object.__setattr__(self, f.name, value)


def _checked(name: str, value: Any, hint: Any, meta: Mapping[str, Any]) -> Any:
    if hint in (int, float):
        if hint is float and isinstance(value, str) and value in ("inf", "-inf"):
            value = float(value)
        limits = {limit: meta.get(limit) for limit in ("low", "above", "high")}
        return checked_number(name, value, **limits, whole=hint is int)
    if get_origin(hint) is Literal:
        options = get_args(hint)
        fits = any(type(value) is type(option) and value == option for option in options)
        wanted = f"one of {', '.join(map(repr, options))}"
    elif hint is Method:
        fits, wanted = isinstance(value, Method) and not isinstance(value, type), "a method object, like kedge.StatA()"
    else:
        fits, wanted = isinstance(value, hint), {bool: "true or false", str: "text"}.get(hint, str(hint))
    if not fits:
        raise SettingError(f"{name} must be {wanted}; got {shown(value)}.")
    return value


def check_names(cls: type, names: Iterable[str], method: str) -> None:
    """Raise SettingError for a setting that the method does not have, with the nearest one it has."""
    known = [f.name for f in fields(cls)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) if known else "; it has no settings."
            raise SettingError(f"method {method!r} has no setting {name!r}{hint}")


def parse(cls: type, assignments: Iterable[str], method: str) -> dict[str, Any]:
    """`["alpha=2", "beta=soft"]` → {"alpha": 2.0, "beta": "soft"}: the form of `--set` on the command line."""
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, raw = text.partition("=")
        name, raw = name.strip().replace("-", "_"), raw.strip()
        if not equals or not name:
            raise SettingError(f"a setting is written name=value; got {text!r}.")
        check_names(cls, [name], method)
        values[name] = _parsed(name, raw, hints(cls)[name])
    return values


def _parsed(name: str, raw: str, hint: Any) -> Any:
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return words.get(raw.lower(), raw)
    if hint in (int, float):
        try:
            return hint(raw)
        except ValueError:
            raise SettingError(f"{name} must be a {'whole ' if hint is int else ''}number; got {shown(raw)}.") from None
    return raw
