"""An encoder in a faster precision, if features in it are near enough to float32's on some of the user's own images.

    encoder, check = checked_encoder(encoder, choose("int8", encoder.device), images, head)
    print(check)     # on 64 images, the cosine to float32 is …

Up to `CHECKED` images, evenly spread over all of them, are encoded twice: in the precision and in float32. Where the
result is not near enough (`precision_check.BOUNDS`), the encoder stays in float32. An int8 model is calibrated on other
images than those it is checked on, if there are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from ..encoders.encoder import Encoder
from ..encoders.openvino import pixels_hash
from ..encoders.precision import EXACT, Precision, in_precision
from ..errors import InputError, KedgeError
from ..images.image_set import ImageSet
from ..progress import notice
from .encode import Decoder
from .feature_set import FeatureSet
from .precision_check import CLEAR, PrecisionCheck
from .text_head import TextHead

CHECKED = 64  # images
TOGETHER = 16  # images through the encoder at one time


def checked_encoder(
    encoder: Encoder,
    wanted: Precision,
    images: ImageSet,
    head: TextHead,
    keep: bool = False,
    before: PrecisionCheck | None = None,
) -> tuple[Encoder, PrecisionCheck | None]:
    """The encoder in this precision, or in float32 if that is not near enough; and the check, if one was needed.

    keep: use the precision even if it is not near enough.
    before: what was measured when the extraction began; it is measured anew only if it says nothing of this.
    """
    if wanted.exact:
        return encoder, None
    if before is not None and not before.used and not keep:
        return _noted(encoder, before)
    calibration, names = _pixels(images, encoder, _spread(len(images), 0.0)) if wanted.calibrated else (None, ())
    try:
        fast = in_precision(encoder, wanted, calibration)
    except KedgeError as error:
        if keep:
            raise
        notice(f"note: {error} Going on in float32.")
        return _noted(encoder, _unmeasured(wanted))
    sha256 = None if calibration is None else pixels_hash(calibration)
    if before is not None and before.used and before.calibration_sha256 == sha256:
        return _noted(fast, before)
    seen, _ = _pixels(images, encoder, _spread(len(images), 0.5))
    found = replace(_measured(encoder, fast, wanted, seen, head), calibration_sha256=sha256, calibrated_on=names)
    notice(f"{wanted}: {found}")
    if (faults := found.faults()) and not keep:
        notice(f"note: {wanted.dtype} is not exact enough for this model: {faults}. Going on in float32.")
        return _noted(encoder, replace(found, used=False))
    return _noted(fast, found)


def same_precision(encoder: Encoder, features: FeatureSet, images: ImageSet) -> Encoder:
    """The encoder in the precision of these features, to encode more images; `images` has those of the features."""
    wanted = Precision(
        str(features.provenance.get("precision") or EXACT.dtype), str(features.provenance.get("engine") or EXACT.engine)
    )
    if wanted.exact:
        return encoder
    check = features.precision_check
    calibration = None
    if wanted.calibrated:
        names = {path: i for i, path in enumerate(images.paths)}
        there = [names[path] for path in (check.calibrated_on if check else ()) if path in names]
        calibration, _ = _pixels(images, encoder, there)
        if check is None or pixels_hash(calibration) != check.calibration_sha256:
            raise InputError(
                "the images that int8 was calibrated on have changed, so that no more images can be encoded as these "
                "were. Put them back, or encode all of them again in a new folder."
            )
    fast = in_precision(encoder, wanted, calibration)
    return fast if check is None else _noted(fast, check)[0]


def _noted(encoder: Encoder, check: PrecisionCheck) -> tuple[Encoder, PrecisionCheck]:
    return replace(encoder, provenance={**encoder.provenance, "precision_check": asdict(check)}), check


def _unmeasured(wanted: Precision) -> PrecisionCheck:
    return _check(wanted, images=0, mean_cosine=0.0, least_cosine=0.0, same_labels=0.0, clear=0, changed=0, used=False)


def _check(wanted: Precision, **found: Any) -> PrecisionCheck:
    return PrecisionCheck(precision=wanted.dtype, engine=wanted.engine, **found)  # type: ignore[arg-type]


def _spread(n: int, shift: float) -> Sequence[int]:
    """Positions of up to `CHECKED` of n images, evenly spread; another shift, from 0 to 1, gives others."""
    return [int((i + shift) * n / CHECKED) for i in range(CHECKED)] if n > CHECKED else range(n)


def _pixels(images: ImageSet, encoder: Encoder, positions: Sequence[int]) -> tuple[Tensor, tuple[str, ...]]:
    """The pixels (m×3×h×w) and the paths of those images that can be read."""
    decode = Decoder(images, encoder.preprocessing)
    found = {i: pixels for i in positions if isinstance(pixels := decode((i, images.source(i))), Tensor)}
    stacked = torch.stack(list(found.values())) if found else torch.empty(0, 3, *encoder.preprocessing.size)
    return stacked, tuple(images.paths[i] for i in found)


def _measured(exact: Encoder, fast: Encoder, wanted: Precision, pixels: Tensor, head: TextHead) -> PrecisionCheck:
    if not len(pixels):
        return _unmeasured(wanted)
    parts = torch.split(pixels, TOGETHER)
    x, y = (torch.cat([each.encode_images(part) for part in parts]) for each in (exact, fast))
    y = y.nan_to_num()
    cosines = (x.double() * y.double()).sum(dim=1)
    best = head.log_zero_shot(x).exp().topk(min(2, head.k))
    same = best.indices[:, 0] == head.log_zero_shot(y).argmax(dim=1)
    clear = best.values[:, 0] - best.values[:, 1:].sum(dim=1) > CLEAR  # with one class, every label is clear
    return _check(
        wanted,
        images=len(pixels),
        mean_cosine=float(cosines.mean()),
        least_cosine=float(cosines.min()),
        same_labels=float(same.double().mean()),
        clear=int(clear.sum()),
        changed=int((clear & ~same).sum()),
        used=True,
    )
