"""Features of new images joined to those of a set."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..features.extract import check_same_encoder
from ..features.feature_set import FeatureSet
from ..images.image_set import ImageSet


def joined(old: FeatureSet, new: FeatureSet | None, skipped: Mapping[str, str], images: ImageSet) -> FeatureSet:
    """One set of old and new features, sorted by path; images that are in both are taken from the old.

    skipped: further images that cannot be read. images: what is in the folder now, with labels if they are known.
    """
    if new is not None:
        check_same_encoder(old, new)
    rows, paths = [old.image_features], list(old.paths or ())
    if new is not None:
        there, new_paths = set(paths), new.paths or ()
        fresh = [i for i, path in enumerate(new_paths) if path not in there]
        rows.append(new.image_features[fresh].to(old.image_features.dtype))
        paths += [new_paths[i] for i in fresh]
    order = sorted(range(len(paths)), key=paths.__getitem__)
    label = dict(zip(images.paths, images.labels or (), strict=False))  # of no image, if they are not known
    left_out = {**old.skipped, **({} if new is None else new.skipped), **skipped}
    listed = [{"path": path, "reason": reason} for path, reason in left_out.items()]
    about = {name: value for name, value in old.provenance.items() if name != "files_sha256"}
    return FeatureSet.from_arrays(
        torch.cat(rows)[order],
        old.head,
        labels=[label[paths[i]] for i in order] if all(path in label for path in paths) else None,
        paths=[paths[i] for i in order],
        provenance={**about, "images": len(paths) + len(listed), "skipped": listed},
    )
