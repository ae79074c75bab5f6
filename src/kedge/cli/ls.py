"""`kedge ls`: list methods, scenarios, encoders and datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from ._app import Json, ls_app
from ._show import print_json, print_table, stdout, tell


@ls_app.command("methods")
def ls_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this method's settings.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or the settings of one.

    The list includes methods of installed packages. Settings are for `--set` and `--method NAME:SETTING=VALUE`.
    A wrapper takes another method: `--method WRAPPER:METHOD`. known: labels that a person gives are used.
    by_class: its memory lets the classes that can occur change along a stream. graded: false gives labels without
    probabilities.

    \b
    Example: kedge ls methods stata
    """
    from ..methods.registry import find_method, list_methods, list_wrappers

    if name is None:
        rows = [_method(each) for each in list_methods()]
        if as_json:
            print_json({"methods": rows, "wrappers": list_wrappers()})
        else:
            print_table(rows)
            tell("around a method: " + ", ".join(f"{wrapper}:METHOD" for wrapper in list_wrappers()))
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
    with stdout() as out:
        out.write(f"{name}: {about['doc']}" + ("\n" if about["settings"] else " It has no settings.\n"))
    if about["settings"]:
        print_table(about["settings"])


def _method(name: str) -> dict[str, Any]:
    """A row of the list of methods, or the reason why the method cannot be made with its defaults."""
    from ..errors import SettingError
    from ..methods.registry import build

    try:
        return {"name": name, **dataclasses.asdict(build(name).traits)}
    except SettingError as error:
        return {"name": name, "error": str(error)}


def _settings(cls: type) -> list[dict[str, Any]]:
    """A row per setting: its default, its possible values, its meaning."""
    from ..methods.settings import hints

    return [
        {
            "name": f.name,
            "default": _default(f),
            "values": _values(hints(cls)[f.name], f.metadata),
            "meaning": f.metadata.get("doc", ""),
        }
        for f in dataclasses.fields(cls)
    ]


def _default(f: dataclasses.Field[Any]) -> Any:
    """The default of a setting; a method as text."""
    from ..benchmark.record import as_argument
    from ..methods.contract import Method
    from ..methods.settings import changed_settings, default_of

    default = default_of(f)
    if isinstance(default, Method):
        return as_argument(default.name, changed_settings(default))
    return None if default is dataclasses.MISSING else default


def _values(hint: Any, meta: Mapping[str, Any]) -> str:
    from ..methods.contract import Method
    from ..ranges import in_words

    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if hint is bool:
        return "true or false"
    kind = {int: "whole number", float: "number", str: "text", Method: "method"}.get(hint, str(hint))
    return f"{kind} {in_words(meta.get('low'), meta.get('above'), meta.get('high'))}".strip()


@ls_app.command("scenarios")
def ls_scenarios(as_json: Json = False) -> None:
    """List the scenarios: which images arrive together.

    size: images per batch. k_min, k_max: classes in a batch. gamma: the correlation of a stream. tasks: how
    many are drawn. Write other scenarios as kind:setting=value; missing settings have their defaults:
    batches:size=64,k_min=5,k_max=5  whole  stream:gamma=0.5,drop_last=true  separate:size=32

    \b
    Example: kedge ls scenarios --json
    """
    from ..benchmark.scenarios import SCENARIOS, in_words

    rows: list[dict[str, Any]] = []
    for name, found in SCENARIOS.items():
        settings = dataclasses.asdict(found)  # type: ignore[call-overload]
        about = {"name": name, "meaning": in_words(name), "kind": found.kind}
        rows.append({**about, **settings, "tasks": found.default_tasks})
    if as_json:
        print_json({"scenarios": rows})
    else:
        print_table([{name: row[name] for name in ("name", "meaning", "tasks")} for row in rows])


@ls_app.command("encoders")
def ls_encoders(as_json: Json = False) -> None:
    """List the kinds of encoders, and the models in the hub's cache that need no download.

    \b
    Example: kedge ls encoders
    """
    from ..encoders.encoder import DEFAULT
    from ..encoders.hub import cached_models

    extra = 'pip install "kedge[{}]"'
    rows = [
        {
            "name": "tiny",
            "meaning": "a small model that comes with kedge",
            "needs": extra.format("hf"),
        },
        {"name": "hf:OWNER/NAME", "meaning": "a CLIP or SigLIP model of Hugging Face", "needs": extra.format("hf")},
        {"name": "openclip:MODEL/TAG", "meaning": "a model of open_clip", "needs": extra.format("openclip")},
        {"name": "DIR", "meaning": "a folder with a model of either", "needs": "config.json or open_clip_config.json"},
    ]
    cached = [f"hf:{name}" for name in cached_models()]
    for name in dict.fromkeys([DEFAULT, *cached]):
        place = "in the hub's cache" if name in cached else "a download at first use"
        rows.append({"name": name, "meaning": "the default" if name == DEFAULT else "a model", "needs": place})
    if as_json:
        print_json({"encoders": rows, "default": DEFAULT})
    else:
        print_table(rows)


@ls_app.command("datasets")
def ls_datasets(as_json: Json = False) -> None:
    """List the datasets of the StatA paper, for `kedge extract --dataset NAME --root DIR`.

    \b
    Example: kedge ls datasets
    """
    from ..images.datasets import dataset_names, find_dataset
    from ..images.layouts import dataset_folder

    known = [find_dataset(name) for name in dataset_names()]
    rows = [
        {"name": d.name, "classes": d.classes, "test_images": d.test_images, "folder": f"DIR/{dataset_folder(d.name)}"}
        for d in known
    ]
    if as_json:
        print_json({"datasets": rows})
    else:
        print_table(rows)
