"""The root command: error handling, command groups, and options that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .._version import __version__
from ..errors import KedgeError
from ._show import tell


class _Root(TyperGroup):
    """Handles the errors of every command."""

    def invoke(self, ctx: Any) -> Any:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")  # for class names and paths, in any locale
        try:
            returned = super().invoke(ctx)
            sys.stdout.flush()  # now, so that a closed pipe is handled below
            return returned
        except KedgeError as error:
            tell("error: " + " ".join(str(error).splitlines()))
            raise typer.Exit(2) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard the rest
            raise typer.Exit(141) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
app = typer.Typer(cls=_Root, pretty_exceptions_enable=False, **_PLAIN)
features_app = typer.Typer(help="Show and convert feature files.", **_PLAIN)
ls_app = typer.Typer(help="List methods and scenarios.", **_PLAIN)
app.add_typer(features_app, name="features")
app.add_typer(ls_app, name="ls")

FeatureFile = Annotated[Path, typer.Argument(metavar="FEATURES", help="A .safetensors or .npz feature file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Normalize = Annotated[bool, typer.Option("--normalize", help="Scale rows to unit norm.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, mps, …; auto: a GPU if there is one.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at an image that cannot be read.")]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Processes that decode images. Default: one per core if it pays.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors on stderr.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kedge {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    """Better zero-shot labels from a vision-language model, without labels or training.

    \b
    kedge demo                                        run everything on a model and images that come with kedge
    kedge adapt photos --classes "cat, dog"           label a folder of images
    kedge extract photos --classes "cat, dog"         encode images once, into a feature file
    kedge bench birds.safetensors --scenario low      compare methods on labelled features
    """
