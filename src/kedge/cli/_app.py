"""The root command: error handling, command groups, and options that several commands share."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .._version import __version__
from ..errors import FileError, KedgeError
from ..progress import discard, tell
from ._show import stdout

COMMANDS = ("adapt", "extract", "features", "bench", "results", "plan", "ls", "demo", "reproduce", "pictures", "serve")


def run(argv: Sequence[str] | None) -> int:
    """Run the command line; returns the exit code."""
    try:
        os.getcwd()
    except OSError as error:  # torch would end the process
        tell(f"error: the current folder cannot be used: {error.strerror}. Change to another folder.")
        return 2
    if hasattr(sys.stdout, "reconfigure"):  # for class names and paths, in any locale
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    for commands in COMMANDS:  # each registers itself
        import_module(f".{commands}", __package__)
    try:
        app(args=None if argv is None else list(argv), prog_name="kedge")
    except SystemExit as end:
        return int(end.code or 0)
    except KeyboardInterrupt:  # between two commands' handlers
        tell("stopped")
        return 130
    except OSError:  # a usage error, and stderr cannot be written
        discard(sys.stderr)
        return 2
    return 0


class _Root(TyperGroup):
    """Turns the errors of every command into one line and an exit code."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **options: Any) -> Any:
        with _in_one_line():
            return super().make_context(info_name, _with_address(args), *more, **options)

    def invoke(self, ctx: Any) -> Any:
        with _in_one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        try:
            yield
        finally:
            with stdout():  # what is still in its buffer
                pass
    except KedgeError as error:
        tell("error: " + " ".join(str(error).splitlines()))
        raise typer.Exit(2) from error
    except BrokenPipeError as error:
        raise typer.Exit(141) from error
    except OSError as error:  # of the system: no memory for a process, a folder that disappeared, …
        where = f"{error.filename}: " if error.filename else "reading or writing failed: "
        tell(f"error: {FileError(f'{where}{error.strerror or error}')}")
        raise typer.Exit(2) from error
    except MemoryError as error:
        tell("error: there is not enough memory. Use fewer images or classes at a time, or a larger machine.")
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        tell(str(error) or "stopped")
        raise typer.Exit(130) from error


def _with_address(words: Sequence[str]) -> list[str]:
    """`--cluster` may stand alone: what follows is its address only if it looks like one. Typer has no such options."""
    found: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        found.append(word)
        if word == "--cluster" and not _ADDRESS.fullmatch(after):
            found.append("auto")
    return found


_ADDRESS = re.compile(r"auto|local|[^/\s]+:\d+")
_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
app = typer.Typer(cls=_Root, pretty_exceptions_enable=False, **_PLAIN)
features_app = typer.Typer(help="Show, convert and split feature files.", **_PLAIN)
ls_app = typer.Typer(help="List methods, scenarios, encoders and datasets.", **_PLAIN)
app.add_typer(features_app, name="features")
app.add_typer(ls_app, name="ls")

FeatureFile = Annotated[Path, typer.Argument(metavar="FEATURES", help="A feature file (.safetensors, .npz) or folder.")]
ClassNames = Annotated[
    str | None,
    typer.Option(metavar="NAMES|FILE", help='"cat, dog", or a file with one class per line. Default: sub-folders.'),
]
EncoderName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="tiny, hf:NAME, openclip:MODEL/TAG or a folder. Default: CLIP ViT-B/16."),
]
Templates = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Prompts, one per line, with {} for the class; averaged.")
]
ImageFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of a feature file's images, if not in the file's own folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Normalize = Annotated[bool, typer.Option("--normalize", help="Scale rows to unit norm.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, mps, …; auto: a GPU if there is one.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="fp32; bf16 or int8: faster, less exact; auto: what is fastest here (default from 512 images on).",
    ),
]
KeepPrecision = Annotated[
    bool,
    typer.Option("--keep-precision", help="Use --precision even if it is not near enough to float32 on some images."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at an image that cannot be read.")]
BatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Pictures through the encoder at one time. Default: 16; measured if there are many."
    ),
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Threads that decode images; 0: none. Default: one per core.")
]
RawCsv = Annotated[
    bool,
    typer.Option(
        "--raw-csv", help="Leave text in CSV as it is; by default ' comes before a leading = + - @, tab, return."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:PORT]", help="Work on the cluster of Ray at this address; without one, on that of this machine."
    ),
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
    kedge serve photos --classes "cat, dog"           label it in the browser: correct a few, and the rest follows
    kedge extract photos --classes "cat, dog"         encode images once, into a feature file
    kedge bench birds.safetensors --scenario low      compare methods on labelled features
    kedge reproduce --root data --dry-run             the StatA paper's experiments, with its figures beside ours
    """
