"""From images to a feature file: encoded in order, kept in shards as they get done, joined at the end.

    extract(folder("birds"), load_encoder("tiny"), "birds.safetensors", templates=templates_for())

While it runs there is a folder beside the file, `birds.safetensors.parts`, with

    job.json                            all that the features depend on: encoder, weights, prompts, images, views, seed
    000000000-000000512.safetensors     a shard: the features of images 0 to 511, and which of them can not be read

Each is written by rename, so that a killed run loses what is after its last shard and nothing else. The next run with
the same job begins there; one with another job is refused. The views of image i are drawn from a generator seeded by
(seed, i). So the file is the same, bit for bit, whatever the number of processes, the size of the shards and the
number of interruptions; another batch size changes last digits, as a matrix product does.

Images are decoded by worker processes ahead of the encoder, and shards are written by a thread behind it: the encoder
waits for neither as long as the workers keep up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import progress
from .._version import __version__
from ..encoders.templates import as_templates
from ..errors import FileError, InputError
from ..files import check_writable
from ..images.image_set import ImageSet
from ..words import count
from .encode import Skipped, encode
from .feature_set import FeatureSet
from .shards import Parts, ShardWriter
from .text_head import text_head

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder


def extract(
    images: ImageSet,
    encoder: Encoder,
    out: str | Path,
    *,
    templates: str | Sequence[str],
    views: int = 0,
    batch_size: int = 64,
    workers: int | None = 0,
    strict: bool = False,
    seed: int = 0,
) -> FeatureSet:
    """Encode the images and their classes, and write a feature file; goes on where an earlier run was stopped.

    views: so many of each image are encoded, the first being the image itself (0: the image alone, and no views in
    the file). batch_size, workers: see `encode`; a script that uses workers needs `if __name__ == "__main__":`.
    strict: an image that can not be read ends it; otherwise such images are left out, and listed in the provenance.
    """
    out = check_feature_file(out)
    if not images.class_names:
        raise InputError(f"{images.name} has no class names. Name the classes (--classes).")
    templates = as_templates(templates)
    about = _about(images, encoder, templates, views, seed)
    with Parts(out, {**about, "class_names": list(images.class_names)}) as parts:
        first = parts.done()
        batches = encode(images, encoder, views=views, batch_size=batch_size, workers=workers, seed=seed, first=first)
        head = text_head(encoder, images.class_names, templates)
        counter = progress.counting(len(images), "images", "images", first)
        with counter as advance, ShardWriter(parts) as writer:
            for batch in batches:
                if strict:
                    _refuse(batch.skipped, images)
                writer.add(batch)
                advance(batch.stop - batch.start)
        features, all_views, positions, skipped = parts.joined()
        if strict and skipped:
            raise FileError(
                f"an earlier run left out {count(len(skipped), 'image')}: {skipped[0][1]} "
                f"If repaired, delete {parts.folder} and start again (--strict: none is left out)."
            )
        if not positions:
            parts.remove()  # once they are repaired, they are to be read again
            raise InputError(f"{count(len(images), 'image')}, and none could be read; the first: {skipped[0][1]}")
        FeatureSet.from_arrays(
            features,
            head,
            labels=None if images.labels is None else torch.tensor(images.labels)[positions],
            views=all_views,
            paths=[images.paths[i] for i in positions],
            provenance={**about, "skipped": [{"path": images.paths[i], "reason": reason} for i, reason in skipped]},
        ).save(out)
        parts.remove()
    return FeatureSet.load(out)


def check_feature_file(path: str | Path) -> Path:
    """Refuse, before any work, a path that is not one for a feature file."""
    path = check_writable(path)
    if path.suffix != ".safetensors":
        raise FileError(f"can not write {path}: a feature file's name ends in .safetensors. Name it so.")
    return path


def done_before(out: str | Path) -> int:
    """How many images an unfinished extraction to this file has done."""
    return Parts(Path(out), {}).done()


def check_same_encoder(features: FeatureSet, other: Encoder | FeatureSet) -> None:
    """Refuse to bring features together with an encoder, or with features, of other weights or preprocessing."""
    for key in ("weights_sha256", "preprocessing"):
        one, two = (source.provenance.get(key) for source in (features, other))
        if one is None or two is None:
            raise InputError(f"these features do not say what {key} they come from. Make them with `kedge extract`.")
        if one != two:
            names = (str(source.provenance.get("encoder")) for source in (features, other))
            raise InputError(
                f"the features come from the encoder {' and '.join(names)}: their {key} differ "
                f"({str(one)[:40]} and {str(two)[:40]}). Extract both with the same encoder."
            )


def _about(images: ImageSet, encoder: Encoder, templates: Sequence[str], views: int, seed: int) -> dict[str, Any]:
    """All that the features depend on."""
    listed = json.dumps([images.paths, images.labels, images.identity], ensure_ascii=False).encode()
    return {
        **encoder.provenance,
        "dataset": images.name,
        "root": str(images.root),
        "images": len(images),
        "files_sha256": hashlib.sha256(listed).hexdigest(),
        "templates": list(templates),
        "views": views,
        "seed": seed,
        "kedge": __version__,
    }


def _refuse(skipped: Sequence[Skipped], images: ImageSet) -> None:
    for i, reason in skipped:
        raise FileError(f"image {i + 1} of {len(images):,}, {images.paths[i]}: {reason} (--strict: none is left out)")
