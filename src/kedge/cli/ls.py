"""`kedge ls`: list what there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from ._app import Json, ls_app
from ._show import print_json, print_table


@ls_app.command("methods")
def ls_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this method's settings.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or the settings of one.

    Methods of installed packages are in the list. Settings are for `kedge adapt --set`.

    \b
    Example: kedge ls methods stata
    """
    from ..methods.registry import find_method, list_methods

    if name is None:
        rows = [_method(each) for each in list_methods()]
        if as_json:
            print_json({"methods": rows})
        else:
            print_table(rows)
        return
    cls = find_method(name)
    about = {
        **_method(name),
        "doc": (cls.__doc__ or "").strip().partition("\n")[0],
        "settings": _settings(cls),
    }
    if as_json:
        print_json(about)
        return
    print(f"{name}: {about['doc']}" + ("" if about["settings"] else " It has no settings."))
    if about["settings"]:
        print_table(about["settings"])


def _method(name: str) -> dict[str, Any]:
    """A row of the list of methods; of one that does not load, why."""
    from ..methods.registry import find_method

    try:
        return {"name": name, **dataclasses.asdict(find_method(name).traits)}
    except Exception as error:  # another package's code: whatever is wrong with it, the list is shown
        return {"name": name, "error": " ".join(str(error).split())}


def _settings(cls: type) -> list[dict[str, Any]]:
    """A row per setting: its default, the values it takes, its meaning."""
    hints = get_type_hints(cls)
    return [
        {
            "name": f.name,
            "default": None if f.default is dataclasses.MISSING else f.default,
            "values": _values(hints[f.name], f.metadata),
            "meaning": f.metadata.get("doc", ""),
        }
        for f in dataclasses.fields(cls)
    ]


def _values(hint: Any, meta: Mapping[str, Any]) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if hint is bool:
        return "true or false"
    kind = {int: "whole number", float: "number"}.get(hint, str(hint))
    low, above = meta.get("low"), meta.get("above")
    limit = f" ≥ {low:g}" if low is not None else f" > {above:g}" if above is not None else ""
    return kind + limit + ("" if meta.get("finite", True) else " or inf")


@ls_app.command("scenarios")
def ls_scenarios(as_json: Json = False) -> None:
    """List the scenarios: which images arrive together.

    size is images per batch, k_min to k_max the classes in it, gamma the correlation of a stream, tasks how
    many are drawn. Others are written out, settings that are left away having their defaults:
    batches:size=64,k_min=5,k_max=5  whole  stream:gamma=0.5,drop_last=true  separate:size=32

    \b
    Example: kedge ls scenarios --json
    """
    from ..benchmark.scenarios import SCENARIOS

    rows = [
        {"name": name, "kind": found.kind, **dataclasses.asdict(found), "tasks": found.default_tasks}  # type: ignore[call-overload]
        for name, found in SCENARIOS.items()
    ]
    if as_json:
        print_json({"scenarios": rows})
    else:
        print_table(rows)
