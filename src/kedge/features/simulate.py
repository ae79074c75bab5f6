"""Simulated CLIP-like features with a known geometry, for tests and large-scale measurements.

Results on these features must be reported as simulated. The d coordinates have four parts, mixed by a rotation so that
no part is aligned with an axis:

| part         | size  | text prototype t_k    | image of class y                                 |
|--------------|-------|-----------------------|--------------------------------------------------|
| text gap     | 1     | √(1−ρ²)               | q, the same for all images                       |
| text-visible | r     | ρ τ_k, with ‖τ_k‖ = 1 | s u, with u ~ von Mises–Fisher(τ_y, κ), ‖u‖ = 1  |
| image gap    | 1     | 0                     | √(G v), the same for all; v = 1 − q² − s²        |
| visual       | d−2−r | 0                     | √((1−G) v) ω, with ω = unit(class centre + noise)|

*Calibration.* The density of u given class k is C·exp(κ u·τ_k), with the same C for every class. If classes are
equally frequent, the posterior is therefore softmax(κ u·τ_k). Zero-shot computes softmax(100 ρ s u·τ_k). With
s = κ/(100 ρ) the two are equal: zero-shot is exactly calibrated.

*Accuracy.* Write u = cos θ τ_y + sin θ ξ, where ξ is uniform on the unit vectors orthogonal to τ_y. Zero-shot is
correct if θ is below

    θ*(y, ξ) = arccot max_{j≠y} ξ·τ_j / (1 − τ_y·τ_j)

which does not depend on κ. So accuracy(κ) = E[ P(θ < θ* | κ) ], which increases with κ: draw many θ*, solve for κ.

*Confusion.* Class j belongs to superclass j mod `superclasses`. Classes of one superclass are close in τ and in the
visual part.

*Gain of adaptation.* The visual part separates classes better than the text-visible part. But an image that zero-shot
assigns to a wrong class often also looks like that class; `shared_errors` is how often. The defaults were tuned: at
k = 100, cosines, labels of nearest neighbours and eigenvalues are close to those of CLIP ViT-B/32 on SUN397, and StatA
gains a few points, as on real features. So the size of a gain on simulated features is no evidence for a method.

All random numbers come from numpy's Generator. Sums have a fixed order, and the last bits, which differ between
machines, are rounded away: the same seed gives the same features everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, SettingError
from ..memory import check_memory
from ..progress import track
from ..ranges import MOST_CLASSES, MOST_DIMENSIONS, MOST_IMAGES, checked_number, seed_number, whole
from ..words import count
from .feature_set import FeatureSet
from .text_head import CLIP_LOGIT_SCALE

# Columns are classes or images, so that sums over rows have the same order on every machine.
Floats = NDArray[np.float64]

TEXT_VISIBLE = 48  # r, at most; also at most k and d/4
CLASSES_PER_SUPERCLASS = 5  # by default, about
SIBLINGS = 0.5  # cosine of two classes of a superclass, in τ and in the visual part
IMAGE_TEXT = 0.2  # mean cosine of an image and the prototype of another class: the modality gap
COMMON = 0.6  # G, share of the image gap in what is not text-visible
VISUAL_DECAY = 0.4  # direction j of the visual part has standard deviation j^−0.4
MOST_TEXT_VISIBLE = 0.9  # largest share of 1 − q² that may be text-visible
TRIALS = 20_000  # draws of θ*
ANGLES = np.linspace(0.0, math.pi, 4097)  # grid for the distribution of θ
BLOCK_ENTRIES = 1 << 17  # entries per block, to fit the cache. Changing it changes what a seed gives


def simulate(
    n: int,
    k: int,
    d: int = 512,
    *,
    k_eff: int | None = None,
    accuracy: float = 0.65,
    seed: int = 0,
    superclasses: int | None = None,
    text_cosine: float = 0.75,
    visual: float = 0.8,
    shared_errors: float = 0.8,
) -> FeatureSet:
    """Simulate n images of k classes in d dimensions: unit float32 rows at logit scale 100, like CLIP's.

    k_eff: how many classes occur, all equally likely and each at least once if n allows; default: all.
    accuracy: expected accuracy of zero-shot on the classes that occur. It is calibrated if all classes occur.
    superclasses: groups of classes that are confused with each other; default: about one per five classes.
    text_cosine: mean cosine between prototypes of different superclasses.
    visual: share of the class in the visual part, 0 to 1; the rest is noise.
    shared_errors: share of the images with a wrong zero-shot label that also look like that class, 0 to 1; with 0,
        adaptation can gain most.

    The seed determines the classes: another n gives other images of the same classes.
    Memory: the n×d result and a few blocks.
    """
    n, k, d = whole("n", n, 1, MOST_IMAGES), whole("k", k, 1, MOST_CLASSES), whole("d", d, 8, MOST_DIMENSIONS)
    seed = seed_number(seed)
    present = k if k_eff is None else whole("k_eff", k_eff, 1, k)
    groups = max(1, round(k / CLASSES_PER_SUPERCLASS)) if superclasses is None else superclasses
    groups = whole("superclasses", groups, 1, k)
    accuracy = checked_number("accuracy", accuracy, low=1e-6, high=1 - 1e-6)
    text_cosine = checked_number("text_cosine", text_cosine, low=IMAGE_TEXT, high=0.99)
    visual = checked_number("visual", visual, low=0, high=1)
    shared_errors = checked_number("shared_errors", shared_errors, low=0, high=1)
    needed = 4 * n * d + 40 * k * d + 8 * k * k  # the images; the classes, several times; their cosines
    check_memory(needed, f"{count(n, 'image')} of {count(k, 'class')} in {count(d, 'dimension')}", SettingError)

    for_world, for_trials, for_labels, for_images = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(4))
    world = _World.draw(for_world, k, d, groups, text_cosine)
    classes = for_world.permutation(k)[:present]
    kappa = _concentration(world, classes, accuracy, for_trials)
    labels = _labels(for_labels, classes, n)

    images = np.empty((n, d), dtype=np.float32)
    rows = max(1, BLOCK_ENTRIES // max(d, k))
    for start in track(range(0, n, rows), "simulating"):
        y = labels[start : start + rows]
        images[start : start + rows] = world.images(for_images, y, kappa, visual, shared_errors).T
    return FeatureSet.from_arrays(
        images,
        np.ascontiguousarray(world.prototypes().T, dtype=np.float32),
        logit_scale=CLIP_LOGIT_SCALE,
        class_names=[f"simulated {j:03d}" for j in range(k)],
        labels=labels,
        provenance={
            "simulated": True,
            "dataset": "simulated",
            "n": n,
            "k": k,
            "d": d,
            "k_eff": present,
            "accuracy": accuracy,
            "seed": seed,
            "superclasses": groups,
            "text_cosine": text_cosine,
            "visual": visual,
            "shared_errors": shared_errors,
        },
    )


@dataclass(frozen=True)
class _World:
    """The classes of one seed; names as in the module's table."""

    d: int
    rho: float
    q: float
    tau: Floats  # r×k, unit columns
    centres: Floats  # (d−2−r)×k, before the decay
    decay: Floats  # (d−2−r)×1
    orders: tuple[NDArray[np.int64], ...]  # permutations of the d coordinates, one per layer of the rotation

    @classmethod
    def draw(cls, rng: np.random.Generator, k: int, d: int, groups: int, text_cosine: float) -> _World:
        r = max(2, min(k, d // 4, TEXT_VISIBLE))
        size = d - 2 - r
        superclass = np.arange(k) % groups

        def siblings(shared: Floats, own: Floats) -> Floats:
            return math.sqrt(SIBLINGS) * shared[:, superclass] + math.sqrt(1 - SIBLINGS) * own

        def normal(rows: int, columns: int) -> Floats:
            return rng.standard_normal((rows, columns))

        decay = _rounded(np.arange(1.0, size + 1) ** -VISUAL_DECAY)[:, None]
        return cls(
            d=d,
            rho=math.sqrt(1 - text_cosine),
            q=IMAGE_TEXT / math.sqrt(text_cosine),
            tau=_unit(siblings(_unit(normal(r, groups)), _unit(normal(r, k)))),
            centres=siblings(normal(size, groups), normal(size, k)),
            decay=decay,
            orders=tuple(rng.permutation(d) for _ in range(math.ceil(math.log2(d)) + 4)),
        )

    def prototypes(self) -> Floats:
        """t, d×k."""
        r, k = self.tau.shape
        t = np.zeros((self.d, k))
        t[0] = math.sqrt(1 - self.rho**2)
        t[1 : r + 1] = self.rho * self.tau
        return self._rotated(t)

    def images(
        self,
        rng: np.random.Generator,
        y: NDArray[np.int64],
        kappa: float,
        visual: float,
        shared_errors: float,
    ) -> Floats:
        """One image per label, d×len(y)."""
        r = len(self.tau)
        noise = rng.standard_normal((self.d - 2, len(y)))
        angle, error = rng.random((2, len(y)))

        cos = _rounded(np.cos(np.interp(angle, _angle_cdf(kappa, r), ANGLES)))
        u = cos * self.tau[:, y] + np.sqrt(1 - cos**2) * _across(self.tau[:, y], noise[:r])
        s = kappa / (CLIP_LOGIT_SCALE * self.rho)

        zero_shot = (self.tau.T @ u).argmax(axis=0)
        seen_as = np.where(error < shared_errors, zero_shot, y)
        visual_part = math.sqrt(visual) * self.centres[:, seen_as] + math.sqrt(1 - visual) * noise[r:]

        rest = 1 - self.q**2 - s**2
        x = np.empty((self.d, len(y)))
        x[0] = self.q
        x[1 : r + 1] = s * u
        x[r + 1] = math.sqrt(COMMON * rest)
        x[r + 2 :] = math.sqrt((1 - COMMON) * rest) * _unit(self.decay * visual_part)
        return self._rotated(x)

    def most_concentrated(self) -> float:
        """The largest κ for which s = κ/(τ ρ) leaves room for the visual part."""
        return CLIP_LOGIT_SCALE * self.rho * math.sqrt(MOST_TEXT_VISIBLE * (1 - self.q**2))

    def _rotated(self, x: Floats) -> Floats:
        """Rotate the columns of x: in each layer, shuffle the coordinates and rotate pairs of them by 45°.

        About log₂ d layers mix every coordinate with every other, using sums of two numbers only.
        """
        half = self.d // 2
        for order in self.orders:
            x = x[order]
            left, right = x[:half], x[half : 2 * half]
            x[:half], x[half : 2 * half] = (left + right) * math.sqrt(0.5), (left - right) * math.sqrt(0.5)
        return x


def _concentration(world: _World, classes: NDArray[np.int64], accuracy: float, rng: np.random.Generator) -> float:
    """Solve accuracy(κ) = accuracy on these classes."""
    limit = world.most_concentrated()
    if world.tau.shape[1] == 1:
        return limit / 2  # with one class, zero-shot is always correct
    theta = _largest_right_angles(world.tau, classes[np.arange(TRIALS) % len(classes)], rng)

    def reached(kappa: float) -> float:
        return float(np.interp(theta, ANGLES, _angle_cdf(kappa, len(world.tau))).mean())

    low, high = 0.0, limit
    lowest, highest = reached(low), reached(high)
    if not lowest < accuracy < highest:
        k = world.tau.shape[1]
        raise InputError(
            f"accuracy {accuracy:g} cannot be simulated with k={k}, d={world.d}: possible is "
            f"{lowest:.3f} to {highest:.3f}. "
            "Choose a value in this range, or more dimensions, fewer classes or a lower text_cosine."
        )
    for _ in range(24):  # few enough that rounding does not matter
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) < accuracy else (low, middle)
    return low


def _largest_right_angles(tau: Floats, y: NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """θ* for each class in y, with a random ξ: the largest angle at which zero-shot is correct."""
    r, k = tau.shape
    theta = np.empty(len(y))
    cosines = tau.T @ tau
    rows = max(1, BLOCK_ENTRIES // k)
    for start in range(0, len(y), rows):
        block = y[start : start + rows]
        own = block, np.arange(len(block))
        towards = tau.T @ _across(tau[:, block], rng.standard_normal((r, len(block))))  # k×b, ξ·τ_j
        towards[own] = -np.inf  # exclude the class itself
        distance = 1 - cosines[:, block]
        distance[own] = 1
        theta[start : start + rows] = np.arctan2(1, (towards / distance).max(axis=0))
    return theta


def _angle_cdf(kappa: float, r: int) -> Floats:
    """P(θ ≤ ANGLES) for von Mises–Fisher in r dimensions: the density is ∝ exp(κ cos θ) sin^{r−2} θ."""
    log_density = kappa * np.cos(ANGLES)
    if r > 2:
        log_density += (r - 2) * np.log(np.maximum(np.sin(ANGLES), np.finfo(float).tiny))
    density = np.exp(log_density - log_density.max())
    cdf = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.asarray(cdf / cdf[-1])


def _labels(rng: np.random.Generator, classes: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """n labels, all classes equally likely at every position, each at least once if n allows."""
    once = classes[:n]
    rest = rng.choice(classes, size=n - len(once))
    return rng.permutation(np.concatenate([once, rest]))


def _across(axis: Floats, x: Floats) -> Floats:
    """Unit columns: the part of x orthogonal to the unit columns of `axis`."""
    return _unit(x - (axis * x).sum(axis=0) * axis)


def _unit(x: Floats) -> Floats:
    """Columns scaled to norm 1."""
    return np.asarray(x / np.sqrt((x * x).sum(axis=0)))


def _rounded(x: Floats) -> Floats:
    """Round to float32: the last bits of cosines and powers differ between machines."""
    return x.astype(np.float32).astype(np.float64)
