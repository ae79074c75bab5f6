"""TextHead: the text prototypes of the classes; and how an encoder computes them from class names.

    text_head(encoder, ["cat", "dog"], ["a photo of a {}."])

The prototype of class c is t_c = unit(Σ_p unit(text(p(c)))), where p runs over the templates: the mean of the unit
prompt features, scaled to unit norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arrays import Array, as_tensor, check_unit_rows, is_unit, row_blocks, unit, unit_rows, wide, working
from ..encoders.templates import as_templates
from ..errors import InputError
from ..progress import track
from ..words import count, first_few, shown

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder

CLIP_LOGIT_SCALE = 100.0
LOGIT_SCALES = 1e-3, 1e6  # below, probabilities are uniform; above, they are 0 and 1
PROMPTS_TOGETHER = 1024  # prompt features in memory at one time


@dataclass(frozen=True, eq=False, repr=False)
class TextHead:
    """A zero-shot classifier: k unit prototypes (k×d), the encoder's logit scale and the class names."""

    features: Tensor  # k×d unit rows
    logit_scale: float = CLIP_LOGIT_SCALE  # τ
    class_names: tuple[str, ...] = ()  # k

    @classmethod
    def from_arrays(
        cls,
        text_features: Array,
        logit_scale: float = CLIP_LOGIT_SCALE,
        class_names: Iterable[str] | None = None,
        *,
        normalize: bool = False,
    ) -> TextHead:
        """Check a k×d array of prototypes; `normalize` scales its rows to unit norm."""
        t = as_tensor(text_features, "text_features", ndim=2)
        check_unit_rows(t, "text_features", normalize=normalize)
        scale = _logit_scale(logit_scale)
        names = tuple(f"class {j}" for j in range(len(t))) if class_names is None else texts(class_names, "class_names")
        if len(names) != len(t):
            raise InputError(f"{len(names)} class names for {len(t)} text features. Pass one name per row.")
        return cls(unit_rows(t, normalize=normalize), scale, names)

    def __repr__(self) -> str:
        size = f"{count(self.k, 'class')}, dimension {self.d}, logit scale {self.logit_scale:g}"
        return f"TextHead: {size}\n  classes {first_few(self.class_names)}"

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.features.shape[0]

    @property
    def d(self) -> int:
        """Dimension of the features."""
        return self.features.shape[1]

    @cached_property
    def columns(self) -> Tensor:
        """The prototypes as columns, d×k, contiguous: fastest for products with few images."""
        return self.features.T.contiguous()

    @cached_property
    def squares(self) -> Tensor:
        """The prototypes' entries squared, k×d."""
        return self.features.square()

    @cached_property
    def unit(self) -> TextHead:
        """This head with prototypes of exactly unit norm (to within rounding)."""
        return self if is_unit(self.features) else replace(self, features=unit(self.features))

    def log_zero_shot(self, x: Tensor) -> Tensor:
        """log ŷ, n×k: the log of softmax(τ x tᵀ), for unit features x (n×d) of the head's precision and device.

        The product is in float64: at τ = 100, float32 would give only four correct digits of ŷ. It is computed in
        blocks of rows, so that no n×d or n×k array of float64 is in memory.
        """
        t = self._wide_columns

        def block(x: Tensor) -> Tensor:
            return torch.log_softmax((self.logit_scale * x.to(t.dtype)) @ t, dim=1)

        blocks = row_blocks((len(x), 8, self.d + self.k))  # an eighth of the usual block fits the processor's cache
        if len(blocks) == 1:
            return block(x).to(x.dtype)
        log_y = x.new_empty(len(x), self.k)
        for rows in blocks:
            log_y[rows] = block(x[rows])
        return log_y

    @cached_property
    def _wide_columns(self) -> Tensor:
        """The prototypes as columns, d×k, in float64 if the device has it."""
        return self.features.to(wide(self.features)).T

    def select(self, classes: Tensor) -> TextHead:
        """A head of some of the classes, by their numbers."""
        names = tuple(self.class_names[j] for j in classes.tolist()) if self.class_names else ()
        return TextHead(self.features.index_select(0, classes), self.logit_scale, names)

    def like(self, x: Tensor) -> TextHead:
        """This head on the device and in the precision of `x`; the same object if nothing changes."""
        features = working(self.features, like=x)
        return self if features is self.features else replace(self, features=features)


def _logit_scale(value: Any) -> float:
    """A logit scale as float: a number, or an array of one."""
    low, high = LOGIT_SCALES
    try:
        scale = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's, of several entries or none
        scale = math.nan
    if not low <= scale <= high:
        raise InputError(
            f"logit_scale must be a number from {low:g} to {high:,.0f}; got {shown(value)}. "
            "CLIP's is 100: the exp of its parameter."
        )
    return scale


def text_head(encoder: Encoder, class_names: Sequence[str], templates: str | Sequence[str]) -> TextHead:
    """Compute the prototypes of the classes (k×d) with this encoder."""
    templates = as_templates(templates)
    if not class_names or not templates:
        raise InputError(f"{len(class_names)} class names and {len(templates)} templates. Pass at least one of each.")
    texts(class_names, "class_names")  # before the encoder sees them
    step = max(1, PROMPTS_TOGETHER // len(templates))
    chunks = [class_names[start : start + step] for start in range(0, len(class_names), step)]
    prototypes = []
    for chunk in track(chunks, "prompts"):
        features = encoder.encode_texts([template.replace("{}", name) for name in chunk for template in templates])
        prototypes.append(unit(features.float().cpu().reshape(len(chunk), len(templates), -1).mean(dim=1)))
    return TextHead.from_arrays(torch.cat(prototypes), encoder.logit_scale, class_names)


def texts(given: Iterable[Any], name: str, *, file_names: bool = False) -> tuple[str, ...]:
    """A list of names as text; raises InputError for what a feature file cannot keep.

    That is a NUL character, and text that is not Unicode: lone surrogates. In `file_names` they stand for bytes that
    are not UTF-8 (as in `os.fsdecode`) and are kept.
    """
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) != 1:
        raise InputError(f"{name} must be a list of text; got {shown(given)}.")
    found = tuple(str(entry) if isinstance(entry, str) else _text(entry, name) for entry in given)
    for row, text in enumerate(found):
        try:
            text.encode(errors="surrogateescape" if file_names else "strict")
        except UnicodeEncodeError:
            raise InputError(f"{name} has {text!r} in row {row}, which is not valid Unicode text. Rename it.") from None
        if "\0" in text:
            raise InputError(f"{name} has {text!r} in row {row}, with a NUL character. Rename it.")
    return found


def _text(entry: Any, name: str) -> str:
    if isinstance(entry, Iterable):
        raise InputError(f"{name} must be a list of text; it has {shown(entry)}.")
    return str(entry)


def check_same_dimension(x: Tensor, head: TextHead, name: str) -> None:
    """Raise InputError if image features and text prototypes differ in dimension."""
    if x.shape[-1] != head.d:
        raise InputError(
            f"{name} has dimension {x.shape[-1]}, text_features has {head.d} (shapes {tuple(x.shape)} and "
            f"{tuple(head.features.shape)}). Both must come from the same encoder."
        )
