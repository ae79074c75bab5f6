"""A method IS its configuration: a frozen dataclass of fields declared with `setting`, checked by type and range."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import SettingError, did_you_mean


def setting(
    default: Any, doc: str, *, low: float | None = None, above: float | None = None, finite: bool = True
) -> Any:
    """A field with its one-line meaning and range: `low` is allowed, `above` is not."""
    return field(default=default, metadata={"doc": doc, "low": low, "above": above, "finite": finite})


def settings_of(method: Any) -> dict[str, Any]:
    """The settings of a method object, by name."""
    return {f.name: getattr(method, f.name) for f in fields(method)}


def changed_settings(method: Any) -> dict[str, Any]:
    """The settings that are not the method's defaults."""
    return {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)  # evaluating annotations is slow, and they do not change


@dataclass(frozen=True)
class Configured:
    """Base of the methods: checks every field when one is made, by its type annotation and its range."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        hints = _hints(kind)
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(f.name, getattr(self, f.name), hints[f.name], f.metadata))


def _checked(name: str, value: Any, hint: Any, meta: Mapping[str, Any]) -> Any:
    if get_origin(hint) is Literal:
        options = get_args(hint)
        if value not in options:
            raise SettingError(f"{name} must be one of {', '.join(map(repr, options))}; got {value!r}.")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise SettingError(f"{name} must be true or false; got {value!r}.")
        return value
    whole = hint is int
    kind = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SettingError(f"{name} must be a {'whole ' if whole else ''}number; got {value!r}.")
    number: float = int(value) if isinstance(value, numbers.Integral) and whole else float(value)
    low, above = meta.get("low"), meta.get("above")
    if math.isnan(number) or (math.isinf(number) and meta.get("finite", True)):
        raise SettingError(f"{name} must be a finite number; got {value!r}.")
    if low is not None and number < low:
        raise SettingError(f"{name} must be at least {low:g}; got {value!r}.")
    if above is not None and number <= above:
        raise SettingError(f"{name} must be greater than {above:g}; got {value!r}.")
    return number


def check_names(cls: type, names: Iterable[str], method: str) -> None:
    """Refuse a setting the method does not have, and suggest the one that was meant."""
    known = [f.name for f in fields(cls)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) if known else "; it has no settings."
            raise SettingError(f"method {method!r} has no setting {name!r}{hint}")


def parse(cls: type, assignments: Iterable[str], method: str) -> dict[str, Any]:
    """`["alpha=2", "beta=soft"]` as values of the fields' types: what `--set` on the command line means."""
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, raw = text.partition("=")
        name, raw = name.strip().replace("-", "_"), raw.strip()
        if not equals or not name:
            raise SettingError(f"a setting is written name=value; got {text!r}.")
        check_names(cls, [name], method)
        values[name] = _parsed(name, raw, hints[name])
    return values


def _parsed(name: str, raw: str, hint: Any) -> Any:
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return words.get(raw.lower(), raw)
    if hint in (int, float):
        try:
            return hint(raw)
        except ValueError:
            raise SettingError(f"{name} must be a {'whole ' if hint is int else ''}number; got {raw!r}.") from None
    return raw
