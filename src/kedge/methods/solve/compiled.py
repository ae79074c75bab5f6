"""StatA's and kedge's solver once more, compiled: the extra `fast` (numba), for float32 on CPUs.

Same equations as stata.py and kedge.py, which are the definition; same z to float32's last digits. Why a second form: a
solve of 64 images is some seven hundred small torch calls, and most of its time is the calls. Here it is one call.

    z-step  u_ik = exp( log ŷ_ik + log p_ik / T + prior_ik + Σ_j g_ij z_jk ),   z_ik = u_ik / Σ_k u_ik
    M-step  Σ_i z_ik [y_i, y_i²] of a class → μ_k, Σ_k → log p_ik

| symbol | code     | shape | meaning                                                                       |
|--------|----------|-------|-------------------------------------------------------------------------------|
| z      | `z`      | 2×n×k | assignments before and after a z-step; the two change places, `now` says which |
|        | `unary`  | n×k   | log ŷ + log p / T                                                             |
| y      | `y`      | n×d   | features minus their mean (`centre`): squares keep their digits               |
| G      | `graph`  | n×n   | compressed sparse rows: offsets, columns, values                              |
| n_k    | `counts` | k     | images of class k: by argmax, or Σ_i z_ik (`soft`)                            |

kedge's prior_ik = ρ log[(m + r b)/(m + b)], m = n_k − z_ik, is a logarithm of its own for each image and class. Where
z_ik is small it is linear in z_ik, and the logarithm is taken once per class.

Two things are left out, where they change z by no more than float32's rounding does:

*Rows at rest.* An image is computed again once its log p and its neighbours can have moved it by 1e-6.

*Classes at rest.* A class is fitted again once its column of z has moved by 1e-5 since its last fit (sum over images,
T = 50). Then log p is renewed for images with z > 1e-7 (less where a strong graph could still raise it), or for all if
the class moved far.

The last iteration leaves nothing at rest: every row, every fit and every log p is computed anew. So images with equal
features and equal neighbours end up equal.

Threads, forks, bits. A solve keeps nothing: its arrays are its own, and the kernel releases the interpreter's lock. Any
number of threads may solve at once, and a forked process may go on solving (torch's own threads do not survive a fork:
call torch.set_num_threads(1) there). The same input gives the same z to the bit, whatever ran before and wherever
arrays lie in memory. For that, a loop that adds up stores nothing: a loop that does both runs as vectors or one by one,
as its arrays lie, and the order of a sum decides its last digit.

Size. One thread, about seven arrays of n×k, two of n×d. `suits` says up to which size this form is used; torch's form
works in blocks and with threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...features.text_head import TextHead
from .compiling import kernel, part
from .em import Settings
from .gaussian import VARIANCE_FLOOR
from .neighbours import Neighbours

Rows = NDArray[Any]

F = np.float32
MOST_SCORES, MOST_FEATURES = 1 << 23, 1 << 24  # n×k and n×d up to which this form is used
ROW_AT_REST = F(1e-6)  # change of a row of z (sum) that is not worth computing
CLASS_AT_REST = F(2e-7)  # times T: change of a column of z (sum) that is not worth a fit
LISTED = F(1e-7)  # z from which log p is renewed after a fit, where the graph is weak; see `least_listed`
WEAK = F(2.0)  # nats by which such a graph can raise log z
OMITTED = F(2e-12)  # times T: z up to which an image is left out of a class's moments
FAR = F(1.0)  # change of log p / T after which it is renewed for all images
SMALLEST = F(-69.0)  # e to this is 1e-30: nothing in a sum of float32, and not yet a denormal number, which is slow
ENDLESS = 1e30  # in place of ∞, which fastmath rules out
BLOCK = 128  # images whose features stay in the cache from one class to the next; longer sums would lose digits
NEARLY_LINEAR = F(1e-3)  # times r b: z up to which the prior is taken to be linear in it
CHUNK = 64  # classes that are looked through at one time
PADDING = 64  # entries that keep short arrays of quotients apart, as loops must not depend on where they lie
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)


FLOATS = [name for name, kind in get_type_hints(Settings).items() if kind is float]


class Data(NamedTuple):
    """What does not change in a solve."""

    log_y: Rows  # n×k
    anchored: Rows  # n×k: unary of classes on their anchors
    y: Rows  # n×d
    centre: Rows  # d
    t: Rows  # k×d
    var0: Rows  # d: Σ'
    known: Rows  # k: N_k, what earlier batches showed; no entries if nothing
    mean: Rows  # k×d, or no rows
    var: Rows  # k×d, or no rows


class Images(NamedTuple):
    """What is known of each image."""

    stirred: Rows  # n: how far z_i can have moved since it was last computed
    moved: Rows  # 2×n: how far z_i moved in the last z-step and in this one
    listed: Rows  # n: z_ik from which log p_ik is renewed after a fit


class Prior(NamedTuple):
    """kedge's prior on presences, for each class: ρ log[(m + r b)/(m + b)] is `at` − `slope` z_ik for small z_ik."""

    at: Rows  # k: its value at n_k
    slope: Rows  # k: its derivative at n_k, or 0 if m = n_k
    counts: Rows  # k: n_k


class Fits(NamedTuple):
    """What is known of each class's last fit."""

    made: Rows  # k: is there one, or is the class on its anchor?
    z: Rows  # k×n: what it was fitted to
    own: Rows  # k: what an image gets by being part of it


def suits(n: int, k: int, d: int) -> bool:
    """Is a batch small enough for this form?"""
    return n * k <= MOST_SCORES and n * d <= MOST_FEATURES


def solve(
    x: Tensor, log_y: Tensor, head: TextHead, var0: Tensor, nearest: Neighbours, weight: float, settings: Settings,
    *, later: TextHead | None = None, memory: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor, float]:  # fmt: skip
    """z (n×k), its scores before the softmax, and the largest change of an entry of z in the last iteration.

    G = weight · (W + Wᵀ) of the nearest.

    later: where classes without images are after the first M-step, if not at the head's prototypes.
    memory: counts (k), mean and var (k×d) of earlier batches.
    """
    centre = x.mean(dim=0)
    precision = settings.cooling / var0
    scaled = x * precision
    shared = scaled @ centre - 0.5 * (centre.square() @ precision)

    def on_anchors(head: TextHead) -> Tensor:
        """log ŷ + log N(x_i; t_k, Σ') / T, but for log N(x_i; centre, Σ') / T, which all classes share."""
        return torch.addmm(log_y - 0.5 * (head.squares @ precision), scaled, head.columns).sub_(shared[:, None])

    start = on_anchors(head)
    anchored = start if later is None else on_anchors(later)
    past = memory or {"counts": x.new_empty(0), "mean": x[:0], "var": x[:0]}
    t, of_past = head.features, (past["counts"], past["mean"], past["var"])
    tables = (start, log_y, anchored, x - centre, centre, t, var0, *of_past, *nearest[:2])
    first, *data, indices, similarity = (table.detach().contiguous().numpy() for table in tables)
    floats: dict[str, Any] = {name: F(min(getattr(settings, name), ENDLESS)) for name in FLOATS}
    z, scores, change = iterate(Data(*data), first, indices, similarity, F(weight), settings._replace(**floats))
    return torch.from_numpy(z), torch.from_numpy(scores), float(change)


@kernel
def iterate(data: Data, start: Rows, nearest: Rows, similarity: Rows, weight: Any, s: Settings) -> Any:
    """The whole solve. start: log ŷ + log p / T (n×k) before the first M-step."""
    n, k = data.log_y.shape
    graph = symmetric(nearest, similarity, weight)
    images = Images(np.ones(n, F), np.ones((2, n), F), least_listed(graph))
    fits = Fits(np.zeros(k, np.bool_), np.zeros((k, n), F), np.zeros(k, F))
    z, unary, prior = np.empty((2, n, k), F), np.empty((n, k), F), Prior(np.zeros(k, F), np.zeros(k, F), np.zeros(k))
    v, power = np.empty(k, F), np.empty(k, np.int32)
    for i in range(n):
        for c in range(k):
            v[c] = data.log_y[i, c]
        exp(v, power, k)
        for c in range(k):
            z[0, i, c], unary[i, c] = v[c], start[i, c]
    before, now, first, counts = z[0], n * 0, True, prior.counts  # n * 0: a 0 of the type that z_step returns

    for iteration in range(s.iterations + 1):
        if iteration == s.iterations:  # the last z-steps, of all images
            before = z[now].copy()
        for step in range(s.z_steps):
            last = iteration == s.iterations and step == s.z_steps - 1
            if iteration == s.iterations and (last or step == 0):
                for i in range(n):
                    images.stirred[i] = F(1)
            now = z_step(now, z, unary, prior, images, graph, s, first, last)
            first = False
            if s.soft and not last:
                renew_prior(z[now], s, prior, images)
        if not s.soft:
            hard_counts(z[now], counts)
        if iteration == 0 and s.iterations > 0:  # the anchors may be others from here on
            for i in range(n):
                images.stirred[i] = F(1)
                for c in range(k):
                    unary[i, c] = data.anchored[i, c]
        if iteration < s.iterations:
            m_step(z[now], counts, iteration == s.iterations - 1, data, s, unary, images, fits)

    change = F(0)
    for i in range(n):
        for c in range(k):
            change = max(change, abs(z[now, i, c] - before[i, c]))
    return z[now], unary, change


# Whole vectors


@part
def exp(v: Rows, power: Rows, n: Any) -> None:
    """v ← exp(v), the first n entries: 2^m · polynomial(r), where v = m log 2 + r. power: room for n integers."""
    scale = power.view(np.float32)
    for c in range(np.uint64(n)):
        bounded = max(v[c], SMALLEST)
        m = np.floor(bounded * LOG2E + F(0.5))
        r = bounded - m * LN2_HIGH - m * LN2_LOW
        p = ((F(1.9875691e-4) * r + F(1.3981999e-3)) * r + F(8.3334519e-3)) * r + F(4.1665795e-2)
        p = (p * r + F(1.6666665e-1)) * r + F(5.0000001e-1)
        v[c] = p * r * r + r + F(1)
        power[c] = (np.int32(m) + np.int32(127)) << np.int32(23)  # the bits of 2^m
    for c in range(np.uint64(n)):
        v[c] *= scale[c]


@part
def largest(v: Rows, n: Any) -> Any:
    """The largest of the first n entries, as integers in the order of the floats: of these a maximum is vectors."""
    bits, positive, most = v.view(np.int32), np.int32(0x7FFFFFFF), np.int32(-0x7F800000)
    for c in range(np.uint64(n)):
        most = max(most, bits[c] ^ ((bits[c] >> np.int32(31)) & positive))
    return np.int32(most ^ ((most >> np.int32(31)) & positive)).view(np.float32)


# The graph


@part
def symmetric(nearest: Rows, similarity: Rows, weight: np.float32) -> Any:
    """G = weight · (W + Wᵀ), W the similarities of each image's nearest (n×m): offsets, columns and values.

    Rows are filled up to a multiple of three with edges of weight 0, so that `pull` takes three at a time.
    """
    n, m = nearest.shape
    offsets = np.zeros(n + 1, np.int64)
    for i in range(n):
        offsets[i + 1] += m
        for q in range(m):
            offsets[nearest[i, q] + 1] += 1
    for i in range(n):
        offsets[i + 1] = offsets[i] + (offsets[i + 1] + 2) // 3 * 3
    columns, values, place = np.zeros(offsets[n], np.int64), np.zeros(offsets[n], F), offsets.copy()
    for incoming in range(2):
        for i in range(n):
            for q in range(m):
                row, column = (nearest[i, q], i) if incoming else (i, nearest[i, q])
                columns[place[row]], values[place[row]] = column, weight * similarity[i, q]
                place[row] += 1
    return offsets, columns, values


@part
def least_listed(graph: Any) -> Rows:
    """z from which log p is renewed (n). If all neighbours change to class k, its log-odds rise by up to 2 Σ_j g_ij."""
    offsets, _, values = graph
    listed = np.empty(len(offsets) - 1, F)
    for i in range(len(listed)):
        lift = F(0)
        for e in range(offsets[i], offsets[i + 1]):
            lift += F(2) * abs(values[e])
        listed[i] = LISTED * np.exp(min(WEAK - lift, F(0)))
    return listed


@part
def pull(i: int, z: Rows, graph: Any, v: Rows) -> None:
    """v ← Σ_j g_ij z_j."""
    offsets, columns, values = graph
    k = np.uint64(z.shape[1])
    for c in range(k):
        v[c] = F(0)
    for e in range(offsets[i], offsets[i + 1], 3):
        j, j2, j3, g, g2, g3 = columns[e], columns[e + 1], columns[e + 2], values[e], values[e + 1], values[e + 2]
        for c in range(k):
            v[c] += g * z[j, c] + g2 * z[j2, c] + g3 * z[j3, c]


# z-steps


@part
def z_step(
    now: int, z: Rows, unary: Rows, prior: Prior, images: Images, graph: Any, s: Settings, first: bool, last: bool
) -> int:  # fmt: skip
    """z ← softmax_k( unary + prior + G z ), for images that are not at rest; returns where z is now. Eq. z_update.

    The first one has no prior. The last one leaves its scores, before the softmax, in `unary`.
    """
    offsets, columns, values = graph
    old, new, moved, moves = z[now], z[1 - now], images.moved[now], images.moved[1 - now]
    n, k = len(old), np.uint64(old.shape[1])
    v, power = np.empty(k, F), np.empty(k, np.int32)
    for i in range(n):
        stirred = images.stirred[i]
        for e in range(offsets[i], offsets[i + 1]):
            stirred += abs(values[e]) * moved[columns[e]]
        images.stirred[i] = stirred
        if stirred <= ROW_AT_REST:
            moves[i] = F(0)
            if moved[i] > F(0):  # else both have it
                for c in range(k):
                    new[i, c] = old[i, c]
            continue
        pull(i, old, graph, v)
        if first or s.prior == F(0):
            for c in range(k):
                v[c] += unary[i, c]
        else:
            for c in range(k):
                v[c] += unary[i, c] + prior.at[c] - prior.slope[c] * old[i, c]
            if s.leave_one_out:
                without_own(i, old, prior, s, v)
        if last:
            for c in range(k):
                unary[i, c] = v[c]
        top = largest(v, k)
        for c in range(k):
            v[c] -= top
        exp(v, power, k)
        total, change = F(0), F(0)
        for c in range(k):
            total += v[c]
        share = F(1) / total
        for c in range(k):
            change += abs(v[c] * share - old[i, c])
        for c in range(k):
            new[i, c] = v[c] * share
        images.stirred[i], moves[i] = F(0), change
    return 1 - now


# Counts, and kedge's prior on them


@part
def hard_counts(z: Rows, counts: Rows) -> None:
    """n_k: how many images have class k as their best."""
    n, k = z.shape
    for c in range(k):
        counts[c] = 0.0
    for i in range(n):
        top, best = largest(z[i], np.uint64(k)), 0
        while best < k - 1 and z[i, best] < top:
            best += 1
        counts[best] += 1.0


@part
def renew_prior(z: Rows, s: Settings, prior: Prior, images: Images) -> None:
    """n_k = Σ_i z_ik, and what follows from it: ρ log[(n_k + r b)/(n_k + b)] and its slope."""
    n, k = z.shape
    counts, turned = np.zeros(k), 0.0
    for i in range(n):
        for c in range(k):
            counts[c] += z[i, c]
    for c in range(k):
        before, after = prior.counts[c], counts[c]
        prior.counts[c] = after
        if s.prior > F(0):
            prior.at[c] = F(s.prior * np.log((after + s.floor) / (after + s.size)))
            if s.leave_one_out:
                prior.slope[c] = F(s.prior * (1 / (after + s.floor) - 1 / (after + s.size)))
            # how far it can move z_i: m is at least n_k − 1, and z_ik is at most n_k
            fewest = max(min(before, after) - 1, 0.0) + s.floor
            turned = max(turned, s.prior * min(max(before, after), 1.0) * abs(after - before) / fewest)
    for i in range(n):
        images.stirred[i] += F(turned)


@part
def without_own(i: int, z: Rows, prior: Prior, s: Settings, v: Rows) -> None:
    """Replace `at` − `slope` z_ik by the logarithm, for classes where image i has more than a little of its own."""
    k, least = z.shape[1], NEARLY_LINEAR * s.floor
    for left in range(0, k, CHUNK):
        size = min(CHUNK, k - left)
        if largest(z[i, left : left + size], np.uint64(size)) <= least:
            continue
        for c in range(left, left + size):
            if z[i, c] > least:
                m = max(prior.counts[c] - z[i, c], 0.0)
                exact = F(s.prior * np.log((m + s.floor) / (m + s.size)))
                v[c] += exact - prior.at[c] + prior.slope[c] * z[i, c]


# The M-step


@part
def m_step(
    z: Rows, counts: Rows, anew: bool, data: Data, s: Settings, unary: Rows, images: Images, fits: Fits
) -> None:  # fmt: skip
    """Fit the classes that are not at rest (all of them, if `anew`), and renew their log ŷ + log p / T."""
    (n, d), k = data.y.shape, len(counts)
    classes, weights, everyone = np.empty(k, np.int64), np.empty((k, n + 3), F), np.empty(k, np.bool_)
    size, own = 0, np.empty(k, F)
    heat: Any = max(s.cooling, F(1e-2))  # kedge's T may be endless
    for k in range(len(counts)):
        if not counts[k] > s.present:
            if fits.made[k]:  # the class lost its images: back to the anchor
                fits.made[k] = False
                for i in range(n):
                    unary[i, k], images.stirred[i] = data.anchored[i, k], F(1)
            continue
        for i in range(n + 3):
            weights[size, i] = z[i, k] if i < n else F(0)
        own[k] = s.own / (counts[k] + s.alpha)
        moved = abs(own[k] - fits.own[k])
        for i in range(n):
            moved += abs(weights[size, i] - fits.z[k, i])
        if anew or not fits.made[k] or moved * heat > CLASS_AT_REST:
            classes[size] = k
            everyone[size] = anew or not fits.made[k] or moved * s.cooling * d > FAR * counts[k]
            size += 1

    eta, mass, constant = np.zeros((size, 2, d), F), np.zeros(size, np.float64), np.empty(size, F)
    for first in range(0, n, BLOCK):
        for f in range(size):
            add_moments(weights, f, first, min(first + BLOCK, n), data.y, OMITTED / heat, eta, mass)
    for f in range(size):
        k = classes[f]
        share = F(1 / max(mass[f], 1e-30))  # of a class spread so thin that all images are left out, eta is 0
        constant[f] = fit(k, F(counts[k]), share, data, s, eta, f)
        fits.made[k], fits.own[k] = True, own[k]
    for first in range(0, n, BLOCK):
        for f in range(size):
            k = classes[f]
            listed, found, score = scores(
                k, f, first, min(first + BLOCK, n), everyone[f], weights, images.listed, fits, data.y, eta
            )  # fmt: skip
            for e in range(found):
                i = listed[e]
                value = data.log_y[i, k] + score[e] - constant[f] - own[k] * weights[f, i]
                change = abs(value - unary[i, k])
                unary[i, k] = value
                images.stirred[i] += F(1) if change > FAR else (weights[f, i] + LISTED) * change
    for f in range(size):
        for i in range(n):
            fits.z[classes[f], i] = weights[f, i]


@part
def add_moments(weights: Rows, f: int, first: int, last: int, y: Rows, least: Any, total: Rows, mass: Rows) -> None:
    """Add Σ_i z_i [y_i, y_i²] of a block of images to total[f] (2×d), and Σ_i z_i to mass[f]; four images at a time."""
    n, d, size = len(y), np.uint64(y.shape[1]), 0
    part, listed = np.zeros((2, d), F), np.full(last - first + 3, n)  # index n: padding, with weight 0
    for i in range(first, last):
        if weights[f, i] > least:
            listed[size] = i
            size += 1
    for e in range(0, size, 4):
        i, i2, i3, i4 = listed[e], listed[e + 1], listed[e + 2], listed[e + 3]
        g, g2, g3, g4 = weights[f, i], weights[f, i2], weights[f, i3], weights[f, i4]
        i2, i3, i4 = min(i2, n - 1), min(i3, n - 1), min(i4, n - 1)
        mass[f] += g + g2 + g3 + g4
        for c in range(d):
            v, v2, v3, v4 = y[i, c], y[i2, c], y[i3, c], y[i4, c]
            p, p2, p3, p4 = g * v, g2 * v2, g3 * v3, g4 * v4
            part[0, c] += p + p2 + p3 + p4
            part[1, c] += p * v + p2 * v2 + p3 * v3 + p4 * v4
    for c in range(d):
        total[f, 0, c] += part[0, c]
        total[f, 1, c] += part[1, c]


@part
def fit(k: int, n_k: Any, share: Any, data: Data, s: Settings, eta: Rows, f: int) -> Any:
    """From sums to natural parameters of class k: log p / T = y·linear + y²·square − constant, which is returned.

    eta[f] (2×d) is Σ_i z_i [y_i, y_i²] before (`share` is 1/Σ_i z_i), and linear and square after. As `anchored_fit`
    and `log_density` of gaussian.py, and `recalled` of memory.py.
    """
    first, second, t, var0, centre, d = (
        eta[f, 0],
        eta[f, 1],
        data.t,
        data.var0,
        data.centre,
        np.uint64(len(data.centre)),
    )
    mu, var = np.empty(d + PADDING, F), np.empty(d + PADDING, F)
    for c in range(d):
        first[c] *= share
        second[c] *= share
    if len(data.known):
        known = min(data.known[k], s.reliance * n_k)  # M_k
        past = known / (n_k + known)
        for c in range(d):
            shift = data.mean[k, c] - centre[c]
            first[c] += past * (shift - first[c])
            second[c] += past * (data.var[k, c] + shift * shift - second[c])
    beta = n_k / (n_k + s.alpha)  # Eq. hard_beta_k
    of_v, of_t, floor = beta, F(1) - beta, F(VARIANCE_FLOOR / len(var0))
    for c in range(d):
        mu[c] = first[c] + centre[c]  # v_k
    if s.unit_means:  # μ = unit( β unit(v) + (1 − β) t )
        vv = vt = tt = F(0)
        for c in range(d):
            vv += mu[c] * mu[c]
            vt += mu[c] * t[k, c]
            tt += t[k, c] * t[k, c]
        of_v /= np.sqrt(max(vv, F(1e-30)))
        norm = np.sqrt(max(of_v * (of_v * vv + F(2) * of_t * vt) + of_t * of_t * tt, F(1e-30)))
        of_v, of_t = of_v / norm, of_t / norm
    for c in range(d):  # Eq. regularized-updates
        mean = of_v * mu[c] + of_t * t[k, c]
        away, shift = t[k, c] - mean, mean - centre[c]
        scatter = second[c] + shift * (shift - F(2) * first[c])  # T_k, around the new mean
        mu[c] = shift
        var[c] = max(beta * scatter + (F(1) - beta) * (var0[c] + away * away), floor)
    logs, quadratic = 0.0, F(0)
    for left in range(0, len(var0), 16):  # one logarithm for sixteen
        product = 1.0
        for c in range(left, min(left + 16, len(var0))):
            product *= var[c] / var0[c]
        logs += np.log(product)
    for c in range(d):
        precision = F(1) / var[c]
        first[c] = s.cooling * mu[c] * precision
        second[c] = F(0.5) * s.cooling * (F(1) / var0[c] - precision)
    for c in range(d):
        quadratic += mu[c] * first[c]
    return F(0.5) * quadratic + F(0.5) * s.cooling * F(logs)


@part
def scores(
    k: int, f: int, first: int, last: int, all_of_them: bool, weights: Rows, least: Rows, fits: Fits, y: Rows, eta: Rows
) -> Any:  # fmt: skip
    """Images of a block whose z matters, how many, and their y·linear + y²·square; four at a time."""
    d, size = np.uint64(y.shape[1]), 0
    listed, out = np.zeros(last - first + 3, np.int64), np.empty(last - first + 3, F)
    for i in range(first, last):
        if all_of_them or weights[f, i] > least[i] or fits.z[k, i] > least[i]:
            listed[size] = i
            size += 1
    for e in range(0, size, 4):
        i, i2, i3, i4 = listed[e], listed[e + 1], listed[e + 2], listed[e + 3]
        s = s2 = s3 = s4 = F(0)
        for c in range(d):
            g, h, v, v2, v3, v4 = eta[f, 0, c], eta[f, 1, c], y[i, c], y[i2, c], y[i3, c], y[i4, c]
            s += (g + h * v) * v
            s2 += (g + h * v2) * v2
            s3 += (g + h * v3) * v3
            s4 += (g + h * v4) * v4
        out[e], out[e + 1], out[e + 2], out[e + 3] = s, s2, s3, s4
    return listed, size, out


# The temperature


def tempered(
    scores: Tensor, target: Tensor, coolest: float, farthest: float, small: float, steps: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(β_i L_i) (n×k) and β (n), as in temperature.py, for scores (n×k) and c (n)."""
    tables = (scores.contiguous().numpy(), target.contiguous().numpy())
    z, cooling = _tempered(*tables, F(coolest), F(farthest), F(small), steps)
    return torch.from_numpy(z), torch.from_numpy(cooling)


@kernel
def _tempered(scores: Rows, target: Rows, coolest: Any, farthest: Any, small: Any, steps: int) -> Any:
    n, k = scores.shape[0], np.uint64(scores.shape[1])
    z, cooling = np.empty_like(scores), np.empty(n, F)
    gaps, v, power = np.empty(k, F), np.empty(k, F), np.empty(k, np.int32)
    for i in range(n):
        top = largest(scores[i], k)
        for c in range(k):
            gaps[c] = max(scores[i, c] - top, farthest)
        second, tied = F(-ENDLESS), 0
        for c in range(k):
            if gaps[c] < F(0):
                second = max(second, gaps[c])
            else:
                tied += 1
        beta = np.log(max(F(1) / target[i] - F(1), F(1e-30))) / second if tied == 1 else coolest
        beta = min(max(beta, coolest), F(1))
        for _ in range(steps):
            total, tilted = powers(gaps, beta, F(0), v, power, k)
            slope = min(tilted / total, F(-1e-30))
            beta = min(max(beta - (np.log(total) + np.log(target[i])) / slope, coolest), F(1))
        total, _ = powers(gaps, beta, small, v, power, k)
        share = F(1) / total
        for c in range(k):
            z[i, c] = v[c] * share
        cooling[i] = beta
    return z, cooling


@part
def powers(gaps: Rows, beta: Any, small: Any, v: Rows, power: Rows, k: Any) -> Any:
    """v ← e^{β γ}, with β γ at most γ or `small`; returns Σ v and Σ γ v."""
    total, tilted = F(0), F(0)
    for c in range(k):
        v[c] = min(beta * gaps[c], max(gaps[c], small))
    exp(v, power, k)
    for c in range(k):
        total += v[c]
        tilted += gaps[c] * v[c]
    return total, tilted


def warm_up() -> None:
    """Compile the kernels, or load them from the disk."""
    x, nearest = torch.eye(2), Neighbours(torch.tensor([[1], [0]]), torch.zeros(2, 1))
    solve(x, x, TextHead(x), torch.ones(2), nearest, 1.0, Settings(1.0, 1.0, False, True, 1, 1))
    tempered(x, torch.ones(2), 1.0, -1.0, -1.0, 1)
