"""`kedge serve`: label images in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SettingError
from ._app import (
    ClassNames,
    Device,
    EncoderName,
    ImageFolder,
    KeepPrecision,
    Precision,
    Templates,
    Workers,
    app,
)
from ._show import stdout, tell

DEMO = Path("kedge-demo")


@app.command()
def serve(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGES|FEATURES", help="A folder of images, a table (.csv), or a feature file."),
    ] = None,
    classes: ClassNames = None,
    encoder: EncoderName = None,
    templates: Templates = None,
    images: ImageFolder = None,
    method: Annotated[
        str, typer.Option(metavar="NAME[:SETTINGS]", help="A method that uses known labels: see `kedge ls methods`.")
    ] = "kedge",
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that keeps the work. Default: photos.kedge, beside photos."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Label pictures that come with kedge.")] = False,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Default: 8017, or the next that is free.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen. Beyond 127.0.0.1, other machines can come in.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The token in the address. Default: a new random one.")
    ] = None,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the browser. Default: if there is a screen.")
    ] = None,
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = None,
    keep_precision: KeepPrecision = False,
) -> None:
    """Label images in the browser: correct a few, and the rest follows.

    The address of the page is on stdout; open it in a browser on this machine. The first time, the images are encoded
    while you watch. Everything you do is kept in a folder beside the images, photos.kedge: the same command goes on.
    Ctrl-C ends the server. Programs find a service at /v1 (its documentation: /v1/docs).

    \b
    Example: kedge serve photos --classes "cat, dog, bird"
    Example: kedge serve birds.safetensors --images birds
    Example: kedge serve --demo
    """
    from ..encoders.encoder import imported

    for module in ("fastapi", "uvicorn", "prometheus_client"):
        imported(module, "serve")
    from ..encoders.templates import read_templates
    from ..serve.guard import TOKEN
    from ..serve.server import listen, new_token, opened
    from ..serve.server import serve as run
    from ..serve.task import Options
    from ..serve.work_folder import WorkFolder

    if token is not None and not TOKEN.fullmatch(token):
        raise SettingError("--token must have 8 to 200 letters, digits, - or _. Leave it out for a random one.")
    strangers = False
    if source is None or demo:
        from .. import progress
        from ..serve.demo_set import demo_images

        own = {"--classes": classes, "--encoder": encoder, "--templates": templates, "--images": images}
        for name, value in {"IMAGES": source, **own}.items():
            if value is not None:
                how = "Leave --demo out" if source else "Name their folder: kedge serve photos"
                raise SettingError(f"{name} is for images of your own, and these are kedge's. {how}.")
        if not demo:
            tell('These are pictures that come with kedge. For your own: kedge serve photos --classes "cat, dog"')
        place = work or DEMO
        place.mkdir(parents=True, exist_ok=True)
        with progress.on_stderr():
            source, names = demo_images(place / "pictures")
        begun = WorkFolder.of(source).journal.exists()  # perhaps by another version, with other classes
        options = Options(None if begun else names, "tiny", None, None, method, device, precision, keep_precision)
        work, strangers = None, True
    else:
        read = None if templates is None else read_templates(templates)
        options = Options(classes, encoder, read, images, method, device, precision, keep_precision)
    with listen(host, port) as door, opened(source, options, work, workers, strangers) as ready:

        def show(address: str) -> None:
            with stdout() as out:
                out.write(address + "\n")
            tell(
                f"Open that address in a browser. The work is kept in {ready.workspace.task.work.path}. Ctrl-C ends it."
            )
            if _has_screen() if open_ is None else open_:
                webbrowser.open(address)

        run(ready, door, host, token or new_token(), show)
    tell("stopped; everything is kept")


def _has_screen() -> bool:
    """Is somebody at a terminal, with a display?"""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
