"""Settings at and beyond the ends of their ranges, on hostile inputs. A trial ends in probabilities, or in one line of
a KedgeError.

    fault("tda", {"positive_weight": 1e308}, "ordinary")       "" if it is as it should be, else what went wrong

    random = np.random.default_rng(seed)
    name, settings, inputs = random_trial(random)              for a campaign of any length
    assert not fault(name, settings, inputs)

A trial may not hang either: one that takes more than LIMIT seconds is a fault.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

import kedge
from cases import simulated
from kedge.arrays import unit
from kedge.labelling.check_method import DIMENSION, TinyEncoder
from kedge.methods.registry import build, find_method, list_methods
from kedge.methods.settings import hints

LIMIT = 10.0  # seconds of processor time: other programs do not count
QUICK = 100
CHEAP: dict[str, dict[str, Any]] = {"em-dirichlet": {"fit_steps": 20}}  # for quick trials: its defaults take a second
ODD: tuple[Any, ...] = ("text", "", None, True, [], b"1", 1j, 10**400, -(10**400), np.float32(1e30), np.int64(3))
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, -1e-300, 1e-300, 1e-45, 1e-38, 1e-30, 1e-12, 1e-6, 1e-3, 0.5, 10.0, 1e3, 1e6, 1e12, 1e30, 1e38, 1e39),
    *(1e308, math.nan, math.inf, -math.inf),
    *ODD,
)
WHOLE: tuple[Any, ...] = (0, -1, 1, 2, 10**9, 2**31, 2**63 - 1, 2**63, 2**64, 1.5, 1e308, math.nan, math.inf, *ODD)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Two batches of n images and k prototypes, with views and images for the methods that need them."""

    batches: tuple[Tensor, Tensor]  # n×d
    text: Tensor  # k×d
    logit_scale: float = 100.0

    def extras(self, method: Any, x: Tensor) -> dict[str, Any]:
        """What this method takes beside the features."""
        if method.traits.needs == "encoder":
            return {"images": x, "encoder": TinyEncoder().to(x.dtype)}
        if method.traits.needs == "views" or getattr(method, "views", 0):
            noise = torch.randn(len(x), 10, x.shape[1], generator=torch.Generator().manual_seed(1)).to(x)
            noise[:, 0] = 0
            return {"views": unit(x[:, None] + 0.3 * noise)}
        return {}


@cache
def hostile_inputs() -> dict[str, Inputs]:
    """Inputs by name. All are valid: unit rows, finite, of one dimension."""

    def made(n: int, k: int, d: int = DIMENSION, **changes: Any) -> Inputs:
        x, t = simulated(2 * n, k, d, noise=0.6)
        return Inputs((x[:n].float(), x[n:].float()), t.float(), **changes)

    def of(x: Tensor, t: Tensor) -> Inputs:
        return Inputs((x, x.flip(0)), t)

    ordinary = made(64, 10)
    x, t = ordinary.batches[0], ordinary.text
    return {
        "ordinary": ordinary,
        "one image": made(1, 10),
        "one class": made(5, 1),
        "one of each": made(1, 1),
        "one dimension": made(6, 3, 1),
        "many classes": made(3, 40),
        "copies": of(x[:1].repeat(8, 1), t),
        "duplicates": of(x[:4].repeat(4, 1), t),
        "the prototypes": of(t.clone(), t),
        "same prototypes": of(x[:8], t[:1].repeat(5, 1)),
        "opposite prototypes": of(x[:8], torch.cat([t[:1], -t[:1]])),
        "away from all": of(-t[:1].repeat(8, 1), t[:1].repeat(3, 1)),
        "all of one class": of(unit(t[:1] + 0.01 * x[:20]), t),
        "half precision": of(x[:8].half(), t.half()),
        "double precision": of(x[:8].double(), t.double()),
        "slightly long rows": of(1.0009 * x[:8], 1.0009 * t),
        "uniform zero-shot": made(16, 5, logit_scale=1e-3),
        "certain zero-shot": made(16, 5, logit_scale=1e6),
    }


def trials(name: str, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Each setting of a method through extreme values and the ends of its range, one at a time.

    quick: without counts above QUICK that the range allows, which take seconds; and with the settings in CHEAP.
    """
    for f in fields(find_method(name)):
        hint = hints(find_method(name))[f.name]
        for value in _values(hint, f.metadata):
            if not (quick and hint is int and type(value) is int and QUICK < value <= f.metadata["high"]):
                yield {**(CHEAP.get(name, {}) if quick else {}), f.name: value}


def _values(hint: Any, meta: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return [*get_args(hint), *ODD]
    if hint is bool:
        return [True, False, 0, 1, *ODD]
    if hint not in (int, float):
        return list(ODD)
    ends = [meta.get(end) for end in ("low", "above", "high")]
    near = [end for end in ends if end is not None]
    if hint is float:
        near += [math.nextafter(end, away) for end in near for away in (-math.inf, math.inf)]
    else:
        near += [end + step for end in near if math.isfinite(end) for step in (-1, 1)]
    return [*near, *(NUMBERS if hint is float else WHOLE)]


def random_trial(random: np.random.Generator) -> tuple[str, dict[str, Any], str]:
    """A method, up to three settings of it, and the name of an input.

    At most one setting is a whole number: two large counts multiply to hours that somebody asked for.
    """
    name = str(random.choice(list_methods()))
    settings: dict[str, Any] = {}
    counts = 0
    names = [f.name for f in fields(find_method(name))]
    for chosen in random.permutation(names)[: random.integers(1, 4)] if names else []:
        f = next(f for f in fields(find_method(name)) if f.name == chosen)
        hint = hints(find_method(name))[f.name]
        counts += hint is int
        if hint is int and counts > 1:
            continue
        if hint is float and random.random() < 0.7:  # anywhere in the range, on a logarithmic scale
            high = min(f.metadata.get("high") or 1e300, 1e300)
            low = max(f.metadata.get("low") or 0.0, f.metadata.get("above") or 0.0, high * 1e-30)
            settings[f.name] = float(math.exp(random.uniform(math.log(low), math.log(high))))
        else:
            values = _values(hint, f.metadata)
            settings[f.name] = values[random.integers(len(values))]
    return name, settings, str(random.choice(list(hostile_inputs())))


def fault(name: str, settings: dict[str, Any], inputs: str) -> str:
    """What went wrong with these settings on this input, by `adapt` and by a `Stream` of two batches; "" if nothing."""
    return judged(lambda: _outcome(name, settings, hostile_inputs()[inputs]))


def judged(outcome: Callable[[], str]) -> str:
    """What a trial says went wrong; or how its error is none of kedge's, or of one line; or that it took long."""
    _compiled()
    start = time.process_time()
    try:
        found = outcome()
    except kedge.KedgeError as error:
        found = "an error of several lines" if "\n" in str(error) else ""
        found = found or ("an error of more than 500 characters" if len(str(error)) > 500 else "")
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - start
    return found or (f"it took {seconds:.0f} s" if seconds > LIMIT else "")


@cache
def _compiled() -> None:
    """Compile ahead of the first trial: on a new machine that takes longer than any trial may."""
    kedge.warm_up()


def _outcome(name: str, settings: dict[str, Any], given: Inputs) -> str:
    method = build(name, settings)
    if method.traits.needs == "encoder" and given.text.shape[1] != DIMENSION:
        return ""  # the encoder of the tests has this dimension
    x = given.batches[0]
    head = kedge.TextHead.from_arrays(given.text, given.logit_scale)
    extras = given.extras(method, x)
    features = kedge.FeatureSet.from_arrays(x, head, views=extras.pop("views", None))
    result = kedge.adapt(features, method=method, **extras)
    if wrong := wrong_rows(result.probs, len(x), head.k):
        return f"adapt: {wrong}"
    stream = kedge.Stream(head, method)
    for number, batch in enumerate(given.batches):
        before = stream.state
        result = stream.step(batch, **given.extras(method, batch))
        if wrong := wrong_rows(result.probs, len(batch), head.k):
            return f"step {number}: {wrong}"
        for key, value in (stream.state or {}).items():
            if value.isnan().any() or (value.isinf().any() and not (before or {})[key].isinf().any()):
                return f"step {number}: {key} in the state is not finite"
    return ""


def wrong_rows(z: Tensor, n: int, k: int) -> str:
    if tuple(z.shape) != (n, k):
        return f"shape {tuple(z.shape)}"
    if not z.isfinite().all():
        return f"{int((~z.isfinite()).sum())} entries are NaN or infinite"
    if (z < 0).any():
        return "negative probabilities"
    gap = float((z.double().sum(dim=1) - 1).abs().max())
    return f"a row sums to 1 ± {gap:.1e}" if gap > 1e-3 else ""
