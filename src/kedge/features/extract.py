"""From images to a feature file or a feature folder.

    kedge.extract("birds", ["robin", "wren"], out="birds.safetensors")
    extract_folder("birds", ["robin", "wren"], out="birds-features")

Finished work is in shards, each written under a temporary name and then renamed (`features.unfinished` says where). A
killed run loses only the work after its last shards. The next run with the same job makes those that are missing or
damaged; a different job is an error. The views of image i come from a random generator with the seed (seed, i). What
is made is therefore the same, bit for bit, for any number of workers, machines and interruptions. Another batch size
changes the last digits, because matrix products round differently. A large job measures which size is fastest; whoever
continues it uses the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .. import progress
from .._version import __version__
from ..encoders import tiny
from ..encoders.encoder import DEFAULT, Encoder
from ..encoders.names import load_encoder
from ..encoders.precision import EXACT, Precision, choose
from ..encoders.templates import PLAIN_TEMPLATE, as_templates
from ..errors import FileError, InputError, KedgeError
from ..files import check_writable
from ..images.image_set import ImageSet, is_feature_folder
from ..images.sources import Classes, Images, image_set
from ..ranges import whole
from ..tensor_files import check_path
from ..words import count
from .batch_size import fastest
from .checked_encoder import checked_encoder
from .encode import Encoded, images_together
from .feature_set import FeatureSet, recorded_check
from .folder import IMAGES_PER_SHARD, MOST_PER_SHARD, FeatureFolder, check_new_folder
from .shard_maker import ShardMaker, Unit
from .text_head import TextHead, text_head
from .unfinished import JOB, LOCK, Measured, OtherJob, Unfinished, difference

F = TypeVar("F", FeatureSet, FeatureFolder)
MapShards = Callable[[ShardMaker, Iterable[Unit], int], Iterator[int]]  # maker, units and their number → images done
UNITS = 64  # at least so many, if there are images enough, where shards are made elsewhere and joined


def extract(
    images: Images,
    classes: Classes | None = None,
    encoder: str | Encoder = DEFAULT,
    out: str | Path = "features.safetensors",
    *,
    templates: str | Sequence[str] | None = None,
    views: int = 0,
    batch_size: int | None = None,
    workers: int | None = None,
    strict: bool = False,
    seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    keep_precision: bool = False,
    force: bool = False,
    each: Callable[[Encoded, TextHead], None] | None = None,
    map_shards: MapShards | None = None,
) -> FeatureSet:
    """Encode images and class names, write a feature file, and load it. An interrupted extraction is continued.

    If the file exists, is intact and comes from the same job, it is loaded and nothing is encoded.

    images: a folder, a table (.csv), a file or a pattern like "photos/*.jpg", or a list of these; a list of PIL images
        or of uint8 arrays (h×w, h×w×3, h×w×4), or one array n×h×w×3; or an ImageSet, which has its own classes.
    classes: names, "cat, dog", or a file with one name per line. None: the sub-folders of `images` are the classes.
    encoder: "tiny", "hf:…", "openclip:…", a local folder (see `kedge.load_encoder`), or a loaded encoder.
    out: the .safetensors file to write.
    templates: prompts with {} for the class name, averaged. None: the prompt of the dataset's paper if `images` is a
        benchmark dataset, else "a photo of a {}."
    views: how many augmented views of each image to encode; view 0 is the image itself. 0: no views.
    batch_size: how many pictures go through the encoder together. None: as in the unfinished work that is continued;
        else a measured number if there are many images, and 16 if not.
    workers: threads that decode images; 0: none, images are decoded between the batches. None: one per core.
    strict: an image that cannot be read is an error. Otherwise it is left out and listed in the provenance.
    seed: of the random views.
    device: "cpu", "cuda", "mps", … for an encoder that is given by name; "auto" is a GPU if there is one.
    precision: of the encoder on images: "fp32"; "bf16" or "int8", which are faster and less exact; or "auto", what is
        fastest here at nearly the same features (`kedge.encoders.precision`). Some images are encoded in float32 too,
        and if the features or their labels are not near enough, all are. int8 needs the extra `openvino`.
    keep_precision: use the precision even if it is not near enough.
    force: replace an existing file, or unfinished work, of another job. Otherwise these are errors.
    each: called with every batch of features and the text head, those of an interrupted run first.
    map_shards: makes the shards elsewhere, as `kedge.cluster.extraction` does; then `each` is not called.
    """
    out = check_feature_file(out)
    before = None if force else _existing(out, FeatureSet.load)  # first: an error there must not wait for the encoder
    task = _Task.of(images, classes, encoder, templates, device, views, seed, precision)
    parts = Unfinished(_parts(out), task.job, force)
    if before:
        _check_same_job(before, task.job, out, strict, keep_precision)
        if parts.folder.is_dir():  # of a run that was killed at its very end
            with parts:
                parts.remove()
        return before
    with parts:
        head, provenance, rows = task.do(parts, batch_size, workers, strict, keep_precision, each, map_shards)
        parts.joined(head, provenance, rows).save(out)
        parts.remove()
    return FeatureSet.load(out)


def extract_folder(
    images: Images,
    classes: Classes | None = None,
    encoder: str | Encoder = DEFAULT,
    out: str | Path = "features",
    *,
    images_per_shard: int = IMAGES_PER_SHARD,
    templates: str | Sequence[str] | None = None,
    views: int = 0,
    batch_size: int | None = None,
    workers: int | None = None,
    strict: bool = False,
    seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    keep_precision: bool = False,
    force: bool = False,
    map_shards: MapShards | None = None,
) -> FeatureFolder:
    """The same for more features than memory holds: encode images into a feature folder, and open it.

    images_per_shard: how many images have their features in one file. If it is a multiple of the images that go
        through the encoder together, the features are those of `extract`, bit for bit.
    """
    out, size = Path(out), whole("images_per_shard", images_per_shard, 1, MOST_PER_SHARD)
    before = _existing(out, FeatureFolder.open) if is_feature_folder(out) and not force else None
    if not is_feature_folder(out):
        check_new_folder(out, left=(JOB, LOCK))
    task = _Task.of(images, classes, encoder, templates, device, views, seed, precision)
    work = Unfinished(out, {**task.job, "images_per_shard": size}, force)
    if before:
        _check_same_job(before, task.job, out, strict, keep_precision)
        work.tidy()
        return before
    with work:
        head, provenance, _ = task.do(work, batch_size, workers, strict, keep_precision, None, map_shards)
        return work.complete(head, provenance)


@dataclass(frozen=True)
class _Task:
    """What is encoded, with what, and what the features depend on."""

    images: ImageSet
    encoder: Encoder
    templates: Sequence[str]
    views: int
    seed: int
    wanted: Precision
    about: dict[str, Any]

    @classmethod
    def of(
        cls,
        images: Images,
        classes: Classes | None,
        encoder: str | Encoder,
        templates: str | Sequence[str] | None,
        device: str,
        views: int,
        seed: int,
        precision: str,
    ) -> _Task:
        """Find the images and load the encoder."""
        images = image_set(images, classes)
        if not images.class_names:
            raise InputError(f"{images.name} has no class names. Name the classes (--classes).")
        templates = as_templates(templates or images.template or PLAIN_TEMPLATE)
        encoder = load_encoder(encoder, device=device)
        if encoder.name == "tiny" and progress.noticed():
            for limit in tiny.limits(images):
                progress.notice(f"note: {limit}")
        wanted = choose(precision, encoder.device) if encoder.fast is None else EXACT
        return cls(images, encoder, templates, views, seed, wanted, _about(images, templates, views, seed))

    @property
    def job(self) -> dict[str, Any]:
        """What unfinished work must agree in."""
        precision = {} if self.wanted.exact else self.wanted.provenance
        classes_and_size = {"class_names": list(self.images.class_names), "dimension": self.encoder.dimension}
        return {**self.encoder.provenance, **precision, **self.about, **classes_and_size}

    def do(
        self,
        work: Unfinished,
        batch_size: int | None,
        workers: int | None,
        strict: bool,
        keep_precision: bool,
        each: Callable[[Encoded, TextHead], None] | None,
        map_shards: MapShards | None,
    ) -> tuple[TextHead, dict[str, Any], int]:
        """Make all shards that are missing; the head, the provenance, and how many images have features."""
        images, views = self.images, self.views
        head = text_head(self.encoder, images.class_names, self.templates)
        encoder, check = checked_encoder(self.encoder, self.wanted, images, head, keep_precision, work.measured.check)
        if check != work.measured.check:
            work.start_over()  # its shards are not as this encoder would make them
        if done := work.done():
            progress.notice(f"continuing: {done:,} of {len(images):,} images are done")
        size = work.measured.batch_size if batch_size is None else batch_size
        if size is None:
            size = fastest(encoder, len(images) * max(1, views))
        maker = ShardMaker(
            encoder=encoder,
            folder=work.folder.absolute(),  # for other processes
            images=len(images),
            views=views,
            batch_size=size,
            workers=workers,
            seed=self.seed,
            strict=strict,
            stays=work.per_shard is not None,
        )
        work.keep(Measured(size, check))
        with progress.counting(len(images), "images", "images", done) as advance:
            if map_shards is not None:
                missing = work.missing(work.per_shard or _unit_size(len(images), images_together(size, views)))
                for done in map_shards(maker, (Unit(part, images.part(part)) for part in missing), len(missing)):
                    advance(done)
            else:
                if each is not None:
                    for batch in work.batches():
                        each(batch, head)
                with contextlib.closing(maker.batches(images, work.missing(work.per_shard))) as batches:
                    for batch in batches:
                        advance(batch.stop - batch.start)
                        if each is not None:
                            each(batch, head)
        positions, skipped = work.summary()
        if strict and skipped:
            raise FileError(
                f"an earlier run left out {count(len(skipped), 'image')}: {skipped[0][1]} "
                f"If they are repaired, delete {work.folder} and start again; or run it without --strict."
            )
        if not positions:
            work.remove()  # the next run must try to read them again
            raise InputError(f"none of {count(len(images), 'image')} can be read; the first: {skipped[0][1]}")
        left_out = [{"path": images.paths[i], "reason": reason} for i, reason in skipped]
        return head, {**encoder.provenance, **self.about, "skipped": left_out}, len(positions)


def _unit_size(n: int, together: int) -> int:
    """How many of n images are a unit of work where shards are made elsewhere and joined: some batches."""
    return max(1, min(IMAGES_PER_SHARD, n // UNITS) // together) * together


def check_feature_file(path: str | Path) -> Path:
    """Raise FileError if a feature file cannot be written to this path: called before any work."""
    path = check_writable(check_path(path))
    if path.suffix != ".safetensors":
        raise FileError(f"cannot write {path}: the name of a feature file ends in .safetensors. Rename it.")
    return path


def done_before(out: str | Path) -> int:
    """How many images are done in an unfinished extraction to this file or folder."""
    out = Path(out)
    return Unfinished(_parts(out) if out.suffix else out, {}).done()


def _parts(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def check_same_encoder(features: FeatureSet, other: Encoder | FeatureSet) -> None:
    """Raise InputError if two feature sets, or features and an encoder, differ in weights or preprocessing.

    Two feature sets must also be of one precision. An encoder may be in another: its text tower is the same.
    """
    for key in ("weights_sha256", "preprocessing"):
        one, two = (source.provenance.get(key) for source in (features, other))
        if one is None or two is None:
            raise InputError(f"the provenance of the features has no {key}. Make them with `kedge extract`.")
        if one != two:
            names = (str(source.provenance.get("encoder")) for source in (features, other))
            raise InputError(
                f"the features come from the encoder {' and '.join(names)}: their {key} differ "
                f"({str(one)[:40]} and {str(two)[:40]}). Extract both with the same encoder."
            )
    if isinstance(other, FeatureSet) and _precision(features) != _precision(other):
        two = " and ".join(str(_precision(each)[0]) for each in (features, other))
        raise InputError(
            f"the features are of two precisions ({two}), or of int8 models that were calibrated on other images. "
            "Extract both in one precision."
        )


def _precision(features: FeatureSet) -> tuple[Any, str | None]:
    """The precision of features; of int8, also the images it was calibrated on."""
    check = features.precision_check
    said = features.provenance.get("precision", EXACT.dtype)
    return said, check.calibration_sha256 if check is not None and check.used else None


def _existing(out: Path, load: Callable[[Path], F]) -> F | None:
    """The features that are there already; None if nothing is."""
    if not out.exists():
        return None
    try:
        return load(out)
    except KedgeError as error:
        raise FileError(f"{out} exists and would be replaced: {error} {_REPLACE}") from error


def _check_same_job(
    features: FeatureSet | FeatureFolder, job: dict[str, Any], out: Path, strict: bool, keep_precision: bool
) -> None:
    """Raise FileError if the features come from another job, or lack images although none may be left out."""
    there = {name: value for name, value in features.provenance.items() if name not in ("skipped", "precision_check")}
    there |= {"class_names": list(features.head.class_names), "dimension": features.head.d}
    now = {name: value for name, value in json.loads(json.dumps(job)).items() if name != "precision_check"}
    check = recorded_check(features.provenance)
    asked = there if check is None else {**there, "precision": check.precision, "engine": check.engine}
    other = difference(there, now)
    if other and (keep_precision or difference(asked, now)):  # float32 may be what came of another precision
        raise OtherJob(f"{out} exists, with another {other}. {_REPLACE}")
    skipped = features.provenance.get("skipped")
    if strict and skipped:
        left_out = f"{count(len(skipped), 'image')}: {skipped[0]['reason']}"
        raise FileError(f"{out} exists, and leaves out {left_out} {_REPLACE} Or run it without --strict.")


_REPLACE = "Name another file, or replace it with --force (force=True)."


def _about(images: ImageSet, templates: Sequence[str], views: int, seed: int) -> dict[str, Any]:
    """What the features depend on, beside the encoder."""
    listed = json.dumps([images.paths, images.labels, images.identity], ensure_ascii=False)
    return {
        "dataset": images.name,
        "root": str(images.root),
        "images": len(images),
        "files_sha256": hashlib.sha256(listed.encode(errors="surrogatepass")).hexdigest(),
        "templates": list(templates),
        "views": views,
        "seed": seed,
        "kedge": __version__,
        **({"simulated": True} if tiny.bundled(images) else {}),
    }
