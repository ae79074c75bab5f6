"""The `kedge` command. Thin: it checks where output goes, calls public functions, and shows what they return.

stdout carries data and nothing else; stderr is for people. Exit codes: 0 fine, 1 something failed that should
not, 2 usage or bad input (one line says what), 130 Ctrl-C, 141 the reader of stdout went away.
Heavy imports (torch, numpy, rich) stay inside the commands, so that `kedge --help` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from ._version import __version__
from .errors import FileError, KedgeError

if TYPE_CHECKING:
    from .features import FeatureSet

SHOWN_NAMES = 5  # class names that `features info` shows to people


class _Root(TyperGroup):
    """The place where the errors of every command arrive."""

    def invoke(self, ctx: Any) -> Any:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")  # class names and paths, whatever the locale
        try:
            returned = super().invoke(ctx)
            sys.stdout.flush()  # here, where a closed pipe is understood, rather than when Python ends
            return returned
        except KedgeError as error:
            _tell("error: " + " ".join(str(error).splitlines()))
            raise typer.Exit(2) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
            raise typer.Exit(141) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
app = typer.Typer(cls=_Root, pretty_exceptions_enable=False, **_PLAIN)
features_app = typer.Typer(help="Look at feature files, and convert them.", **_PLAIN)
ls_app = typer.Typer(help="List what there is.", **_PLAIN)
app.add_typer(features_app, name="features")
app.add_typer(ls_app, name="ls")

FeatureFile = Annotated[Path, typer.Argument(metavar="FEATURES", help="A .safetensors or .npz feature file.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for programs.")]
Normalize = Annotated[bool, typer.Option("--normalize", help="Scale rows to unit norm, instead of refusing.")]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; ends with SystemExit."""
    app(args=None if argv is None else list(argv), prog_name="kedge")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kedge {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    """Better zero-shot labels from a vision-language model's features: no labels, no training.

    \b
    kedge demo                          see it work, on simulated features
    kedge adapt birds.safetensors       label the images of a feature file
    """


@app.command()
def adapt(
    features: FeatureFile,
    method: Annotated[str, typer.Option(metavar="NAME", help="See `kedge ls methods`.")] = "stata",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated."),
    ] = None,
    out: Annotated[str, typer.Option(metavar="FILE", help=".csv, .json or .parquet; - is CSV on stdout.")] = "-",
    normalize: Normalize = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but errors.")] = False,
) -> None:
    """Label the images of a feature file, all of them together.

    One row per image: image, label, probability, zero_shot_label, zero_shot_probability, changed. A summary
    goes to stderr. With --json it is on stdout too, with the rows in it unless they went to a file.

    \b
    Example: kedge adapt birds.safetensors --set alpha=2 --out labels.csv
    """
    from . import progress
    from .features import FeatureSet
    from .methods import build, find
    from .methods._settings import parse
    from .predictions import Predictions, check_output
    from .stream import adapt

    file = None if out == "-" else check_output(out)
    cls = find(method)
    chosen = build(method, parse(cls, set_ or [], method))
    loaded = FeatureSet.load(features, normalize=normalize)
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        start = time.perf_counter()
        result = adapt(loaded, method=chosen)
        seconds = time.perf_counter() - start
    predictions = Predictions(loaded, result)
    summary = {**predictions.summary(), "seconds": seconds}
    if file:
        predictions.write(file)
    if as_json:
        settings = {f.name: getattr(chosen, f.name) for f in dataclasses.fields(cls)}
        origin = {"features": str(features), "sha256": loaded.hash, "kedge": __version__}
        rows = {} if file else {"rows": list(predictions.rows())}
        _print_json({**summary, "settings": settings, **origin, **rows})
    elif not file:
        predictions.write_csv(sys.stdout)
    if not quiet:
        _tell_summary(summary)
        if file:
            _tell(f"→ {file}")


@features_app.command("info")
def features_info(features: FeatureFile, normalize: Normalize = False, as_json: Json = False) -> None:
    """Say what is in a feature file, after checking all of it.

    \b
    Example: kedge features info birds.safetensors
    """
    from .features import FeatureSet

    about = {"file": str(features), **_about(FeatureSet.load(features, normalize=normalize))}
    if as_json:
        _print_json(about)
        return
    names, accuracy = about["class_names"], about["zero_shot_accuracy"]
    about["class_names"] = ", ".join(names[:SHOWN_NAMES])
    if len(names) > SHOWN_NAMES:
        about["class_names"] += f", … ({len(names) - SHOWN_NAMES} more)"
    about["zero_shot_accuracy"] = "unknown" if accuracy is None else _percent(accuracy)
    about["provenance"] = json.dumps(_plain(about["provenance"]), ensure_ascii=False)
    for name, value in about.items():
        print(f"{name.replace('_', ' '):<20}{_cell(value)}")


def _about(features: FeatureSet) -> dict[str, Any]:
    from .predictions import Predictions
    from .stream import adapt

    zero_shot = Predictions(features, adapt(features, method="zero-shot"))
    return {
        "images": len(features),
        "classes": features.head.k,
        "dimension": features.head.d,
        "dtype": str(features.image_features.dtype).removeprefix("torch."),
        "labels": features.labels is not None,
        "paths": features.paths is not None,
        "views": 0 if features.views is None else features.views.shape[1],
        "logit_scale": features.head.logit_scale,
        "zero_shot_accuracy": zero_shot.summary()["zero_shot_accuracy"],
        "class_names": list(features.head.class_names),
        "provenance": dict(features.provenance),
        "sha256": features.hash,
    }


@features_app.command("convert")
def features_convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A .npz or .safetensors feature file.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .safetensors file to write.")],
    normalize: Normalize = False,
    logit_scale: Annotated[float | None, typer.Option(help="The encoder's, instead of what IN says.")] = None,
) -> None:
    """Turn an .npz of arrays into a feature file.

    The arrays are image_features and text_features and, where known, labels, class_names, views, paths,
    logit_scale (100, CLIP's, if not there) and meta. A feature file is checked, hashed and memory-mapped.

    \b
    Example: kedge features convert birds.npz birds.safetensors
    """
    from ._files import check_writable
    from .features import FeatureSet, TextHead

    if target.suffix != ".safetensors":
        raise FileError(f"can not write {target}: a feature file's name ends in .safetensors. Name it so.")
    check_writable(target)
    loaded = FeatureSet.load(source, normalize=normalize)
    if logit_scale is not None:
        head = TextHead.from_arrays(loaded.head.features, logit_scale, loaded.head.class_names)
        loaded = dataclasses.replace(loaded, head=head)
    sha256 = loaded.save(target)
    _tell(f"{len(loaded):,} images, {loaded.head.k:,} classes → {target} (sha256 {sha256})")


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
    from .methods import find, methods

    if name is None:
        rows = [_method(each) for each in methods()]
        if as_json:
            _print_json({"methods": rows})
        else:
            _print_table(rows)
        return
    cls = find(name)
    about = {
        **_method(name),
        "doc": (cls.__doc__ or "").strip().partition("\n")[0],
        "settings": _settings(cls),
    }
    if as_json:
        _print_json(about)
        return
    print(f"{name}: {about['doc']}" + ("" if about["settings"] else " It has no settings."))
    if about["settings"]:
        _print_table(about["settings"])


def _method(name: str) -> dict[str, Any]:
    """A row of the list of methods; of one that does not load, why."""
    from .methods import find

    try:
        return {"name": name, **dataclasses.asdict(find(name).traits)}
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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="For demo.csv and demo.png.")] = Path("kedge-demo"),
    as_json: Json = False,
) -> None:
    """See what adaptation gains, on simulated features.

    \b
    Example: kedge demo --out kedge-demo
    """
    from . import progress
    from .demo import demo

    with progress.on_stderr():
        rows = [dataclasses.asdict(row) for row in demo(out)]
    files = [str(out / "demo.csv"), str(out / "demo.png")]
    if as_json:
        _print_json({"data": "simulated", "rows": rows, "files": files})
        return
    shown = [{name: f"{v:.1f} %" if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    _print_table(shown, title="Labels right on SIMULATED features: a demonstration, not a benchmark")
    _tell(f"→ {' and '.join(files)}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _tell_summary(summary: Mapping[str, Any]) -> None:
    images, changed = summary["images"], summary["changed"]
    _tell(
        f"{images:,} images, {summary['classes']:,} classes, method {summary['method']}: "
        f"{changed:,} labels changed ({_percent(changed / images)}), "
        f"{summary['effective_classes']:.1f} effective classes, {summary['seconds']:.2f} s"
    )
    if summary["accuracy"] is not None:
        before, after = summary["zero_shot_accuracy"], summary["accuracy"]
        _tell(f"accuracy: {_percent(before)} zero-shot, {_percent(after)} adapted")
    if summary.get("converged") is False:
        _tell(f"stopped after {summary['iterations']} iterations, before z had settled")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """As JSON knows it; an infinite number, which JSON has no word for, becomes its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """A table on stdout; where that is not a screen, as wide as its content, so that nothing is cut off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    table = Table(title=title, box=box.SIMPLE)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as `--set` takes it
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)
