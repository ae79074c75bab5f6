"""A task: which images are labelled, with which classes and which encoder, and where the work is kept.

    open_task("photos", work, journal, Options(classes="cat, dog"))              # a folder, or a table of paths
    open_task("birds.safetensors", work, journal, Options(images=Path("birds")))  # a feature file

A work folder goes on with its own classes and encoder. Options that contradict them are an error, as soon as there is
work that could be lost: until then a slip in the classes or the encoder is mended by the right command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..encoders.encoder import DEFAULT, Encoder
from ..encoders.names import load_encoder
from ..encoders.templates import PLAIN_TEMPLATE, as_templates
from ..errors import InputError, SettingError
from ..features.extract import check_same_encoder
from ..features.feature_set import FeatureSet
from ..features.image_source import encoder_name, find_images, image_root
from ..images.class_names import class_names
from ..images.image_set import ImageSet, is_features
from ..images.parquet import ParquetImages
from ..images.sources import image_set
from ..methods.contract import Method
from ..methods.registry import build
from ..words import first_few
from .journal import About, Journal
from .prompts import LazyEncoder
from .work_folder import WorkFolder


@dataclass(frozen=True, eq=False)
class Task:
    """What is labelled, and how."""

    source: Path
    name: str
    root: Path  # the folder that paths of images are relative to
    paths: Sequence[str]  # of the images, as far as they are known before they are encoded
    class_names: tuple[str, ...]  # at the start
    templates: tuple[str, ...]
    encoder: str  # its name
    load: LazyEncoder
    precision: str | None  # see `classify`
    keep_precision: bool
    method: Method
    work: WorkFolder
    images: ImageSet | None  # as they were found now; None: those of a feature file
    listing: Callable[[], ImageSet] | None  # looks for them again
    features: FeatureSet | None  # if they are there already
    strangers: bool = False  # are folders that are no class "none of these"? Else the true labels are not known


@dataclass(frozen=True)
class Options:
    """What a user may say of a task. None: what the work folder has, or the default."""

    classes: str | Path | Sequence[str] | None = None
    encoder: str | None = None
    templates: Sequence[str] | None = None
    images: Path | None = None  # the folder of a feature file's images
    method: str = "kedge"
    device: str = "auto"
    precision: str | None = None  # in which images are encoded; see `extract`
    keep_precision: bool = False


def open_task(
    source: str | Path,
    work: WorkFolder,
    journal: Journal,
    options: Options = Options(),  # frozen
    *,
    moved: bool = True,
    strangers: bool = False,
) -> Task:
    """The task of this source. Its description is written to a new journal.

    moved: may the source be another than when the work began? It may always, if that is gone: then it was renamed.
    strangers: see `Task`.
    """
    source = Path(os.path.abspath(source))
    method = _method(options.method)
    about = journal.about()
    begun = work.features.exists() or bool(journal.changes()) or journal.can_redo
    other = about is not None and about.source != str(source) and os.path.exists(about.source)
    if about is not None and begun and not moved and other:
        raise SettingError(f"{work.path} has the work on {about.source}. Name another folder: --work DIR.")
    if is_features(source):
        task = _of_features(source, work, about if begun else None, options, method)
    else:
        task = _of_images(source, work, about, options, method, strangers, begun)
    if about is None or not begun:
        weights = None if task.features is None else task.features.weights or None
        journal.set_about(About(str(source), task.encoder, weights, task.class_names, task.templates))
    return task


def _method(name: str) -> Method:
    method = build(name)
    if method.traits.needs != "features" or not method.traits.known:
        raise SettingError(
            f"the page needs a method that uses features alone and known labels; {method.name!r} does not. "
            "Choose another: see `kedge ls methods`."
        )
    return method


def _of_features(source: Path, work: WorkFolder, about: About | None, options: Options, method: Method) -> Task:
    own = {"--classes": options.classes, "--templates": options.templates, "--precision": options.precision}
    for option, value in own.items():
        if value is not None:
            raise SettingError(f"{option} is for images; {source} is a feature file, which has its own. Leave it out.")
    features = FeatureSet.load(source)
    find_images(features, options.images)
    names = features.head.class_names
    if about is not None and about.class_names != names:
        raise SettingError(
            f"{source} has other classes ({first_few(names, 3)}) than the work in {work.path} "
            f"({first_few(about.class_names, 3)}). Begin new work in another folder: --work DIR."
        )

    def load() -> Encoder:
        found = load_encoder(options.encoder or encoder_name(features), device=options.device)
        check_same_encoder(features, found)
        return found

    recorded = features.provenance.get("templates")
    templates = tuple(map(str, recorded)) if isinstance(recorded, list) and recorded else (PLAIN_TEMPLATE,)
    assert features.paths is not None
    return Task(
        source=source,
        name=features.dataset,
        root=image_root(features, options.images),
        paths=features.paths,
        class_names=names,
        templates=templates,
        encoder=features.encoder,
        load=LazyEncoder(load),
        precision=options.precision,
        keep_precision=options.keep_precision,
        method=method,
        work=work,
        images=None,
        listing=None,
        features=features,
    )


def _of_images(
    source: Path, work: WorkFolder, about: About | None, options: Options, method: Method, strangers: bool, begun: bool
) -> Task:
    if options.images is not None:
        raise SettingError(
            f"--images is for a feature file, and {source} is a folder or table of images. Leave it out."
        )
    given = None if options.classes is None else class_names(options.classes)
    templates = None if options.templates is None else as_templates(options.templates)
    if about is not None and begun:
        _check_same(about, work, given, options.encoder, templates)
    if about is not None:
        given, templates = given or about.class_names, templates or about.templates
    found = image_set(source, given)
    if isinstance(found, ParquetImages):
        raise SettingError(
            f"the page shows image files, and those of {source} are inside of it. Write them to a folder."
        )
    encoder = options.encoder or (about.encoder if about else DEFAULT)
    features = FeatureSet.load(work.features) if work.features.exists() else None
    if features is not None and (features.paths is None or about is None or features.head.class_names != given):
        raise InputError(
            f"{work.features} is not of the work in {work.path}. Move the folder away, or begin new work in another: "
            "--work DIR."
        )

    def load() -> Encoder:
        loaded = load_encoder(encoder, device=options.device)
        if features is not None:
            check_same_encoder(features, loaded)
        return loaded

    return Task(
        source=source,
        name=found.name,
        root=found.root,
        paths=found.paths if features is None else features.paths or (),
        class_names=found.class_names,
        templates=templates or as_templates(found.template or PLAIN_TEMPLATE),
        encoder=encoder,
        load=LazyEncoder(load),
        precision=options.precision,
        keep_precision=options.keep_precision,
        method=method,
        work=work,
        images=found,
        listing=lambda: image_set(source, found.class_names),
        features=features,
        strangers=strangers,
    )


def _check_same(
    about: About,
    work: WorkFolder,
    classes: tuple[str, ...] | None,
    encoder: str | None,
    templates: tuple[str, ...] | None,
) -> None:
    """Raise SettingError if options contradict the work that is there."""
    said = (
        ("--classes", classes, about.class_names),
        ("--encoder", encoder, about.encoder),
        ("--templates", templates, about.templates),
    )
    for option, given, there in said:
        if given is not None and given != there:
            found = there if isinstance(there, str) else first_few(there, 3)
            raise SettingError(
                f"the work in {work.path} began with {option} {found!r}. Leave {option} out to go on with it; or begin "
                "new work in another folder: --work DIR."
            )
