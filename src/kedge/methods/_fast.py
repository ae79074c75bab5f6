"""StatA's solver once more, compiled: the extra `fast` (numba), for float32 on CPUs.

Same equations as stata.py, same result to float32's last digits. Why a second form: a solve of 64 images is some seven
hundred small torch calls, and most of its time is the calls themselves. Here matrix products stay torch's, and compiled
kernels do what is between them:

    weigh    after a fit: w_ik = exp(log ŷ_ik + log p_ik / T − r_i), the part of z that z-steps do not change
    pull     one z-step: z_ik ∝ w_ik exp((G z)_ik)
    changed  the classes whose images are others than at their last fit, and their columns of z
    fit      from the moments zᵀφ to the classes' new natural parameters

What is at rest is left alone. Between z-steps only z changes: an image whose own w and whose neighbours moved by less
than 1e-6 would itself move by little more (rows that others pull strongly are always looked at after a fit). A class
whose column of z moved by less than 1e-5 since its last fit (sum over images) would get nearly the same parameters.
Both are most of the work in later iterations, and leaving it out changes z by some 1e-6, as float32's rounding does.

Blocks. φ = [x, x²] of a large batch is never held as a whole: rows are taken in blocks, and only class statistics are
carried from one to the next. Kernels release the interpreter's lock and take a range of rows, so that threads can share
a large batch; how many, torch.set_num_threads says.

What was tried and did not pay: keeping only classes whose z can matter (at logit scale 100 every image has a hundred,
and lists cost more than whole vectors save); solving many batches together in padded arrays (15 % at best, for twice
the code: to call a kernel takes 1 µs); BLAS from within kernels (half the speed of torch's for few classes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ..progress import track
from . import Batch
from ._gaussian import VARIANCE_FLOOR

Rows = NDArray[Any]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


class Graph(NamedTuple):
    """A symmetric n×n matrix as compressed sparse rows: row i has the entries offsets[i] to offsets[i+1]."""

    offsets: Rows
    columns: Rows
    values: Rows


F = np.float32
AT_REST = F(1e-6)  # a row of z that moved by less (sum of changes) moves nobody else
CLASS_AT_REST = F(1e-5)  # a column of z that moved by less since its class was fitted gives the same fit
HELD_ROWS = 4096  # of φ that are made once and kept; a larger batch has φ made again in
BLOCK_ROWS = 1024  # rows at a time: near enough to the cache
THREADED_ENTRIES = 1 << 19  # of n×k: with fewer, a second thread costs more than it brings
SMALLEST = F(-69.0)  # e to this is 1e-30: far below float32's 1e-7 of a sum, far above its denormals, which are slow
LARGEST, LEAST = F(6.0), F(1e-2)  # of log w_ik, and of Σ_k w_ik: beyond, the row gets another r_i. The sum is kept up
# by differences, and between these two it keeps its digits
GENTLE = F(2.0)  # pulls up to this, in either direction, need no exponential of more than a polynomial
HEAVY = F(8.0)  # rows of G that sum to more (hubs, a large λ) are done in logarithms
LOWEST, ENDLESS = F(-3e38), 1e30  # in place of infinities, which fastmath rules out
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)


def solve(
    batch: Batch,
    graph: Graph,
    *,
    alpha: float,
    soft: bool,
    temperature: float,
    unit_means: bool,
    iterations: int,
    z_steps: int,
) -> tuple[Tensor, Tensor]:
    """z (n×k) and the z of an iteration before, for G (n×n)."""
    t, unit_t, most = batch.head.features, batch.head.unit_features, batch.head.k if soft else len(batch.features)
    solver = Solver(batch, graph, 1 / temperature, most)
    for iteration in track(range(iterations), "StatA"):
        solver.pull(z_steps)
        counts = solver.soft_counts() if soft else solver.hard_counts()
        moments, mass = solver.moments(counts)  # M-step, for the active classes
        if iteration == 0 and unit_means and unit_t is not t:
            # From here on an empty class is at unit(t_k), β_k = 0; rounded input is only nearly that.
            solver.anchor(unit_t)
        elif solver.at_rest:
            break  # nothing will change any more
        solver.fit(moments, mass, counts, alpha, unit_means)
    before = torch.from_numpy(solver.z.copy())
    solver.pull(z_steps)
    return torch.from_numpy(solver.z), before


class Table:
    """The same memory for kernels and for matrix products."""

    def __init__(self, rows: int, columns: int) -> None:
        self.array = np.empty((rows, columns), F)
        self.tensor = self.cut = torch.from_numpy(self.array)

    def top(self, rows: int) -> Tensor:
        """The first rows. Often as many as the last time, and to cut a tensor takes as long as a kernel."""
        if self.cut.shape[0] != rows:
            self.cut = self.tensor[:rows]
        return self.cut


class Part(NamedTuple):
    """Rows start to stop of x as φ = [x − centre, (x − centre)²] (rows×2d), see _gaussian.py.

    A product of few classes with φᵀ is faster if that is a table of its own.
    """

    start: int
    stop: int
    phi: Tensor
    phi_t: Tensor


class Solver:
    """Assignments z (n×k) and the classes fitted to them, for StatA and methods like it.

    In a small solve every call from Python counts: whatever can be made once, is.
    """

    def __init__(self, batch: Batch, graph: Graph, cooling: float, most: int) -> None:
        """cooling: 1/T. most: no more classes are ever fitted at once."""
        n, k, d, most = len(batch.features), batch.head.k, batch.head.d, min(most, batch.head.k)
        self.x = batch.features.contiguous()  # kernels are compiled for rows without gaps
        self.centre, self.var0, self.cooling = _centre(self.x.numpy()), batch.shared_variance.numpy(), F(cooling)
        self.log_y, self.graph = batch.log_zero_shot.contiguous().numpy(), graph
        self.reach = _reach(graph.offsets, graph.values)
        self.strong = np.flatnonzero(self.reach > GENTLE)  # e^pull makes much of a small change of w there
        self.whole = self._whole() if n <= HELD_ROWS else None
        self.z, self.next, self.unary, self.w, self.anchored = (np.empty((n, k), F) for _ in range(5))
        self.reference, self.total = np.empty((2, n), F)  # r_i, and Σ_k w_ik
        self.moved, self.moves, self.stirred, self.strayed = rows = np.empty((4, n), F)  # of z: see _pull
        rows.fill(1)
        self.labels, self.no_prior, self.no_own = np.zeros(n, np.int64), np.ones(k, F), np.zeros(k, F)
        # What was fitted last: classes, and those put back on their anchors; n_k and, for small batches, columns of z
        self.lists = (np.empty(k, np.int64), np.empty(k, np.int64), np.empty(k, F))  # both, and the mass of the former
        self.classes, self.vacated = self.lists[0][:0], self.lists[1][:0]
        self.fitted_counts, self.fitted = np.zeros(k, F), np.zeros((n, k) if self.whole else (0, 0), F)
        size = n if self.whole else BLOCK_ROWS
        self.columns, self.scores = Table(most, size), Table(most, size)
        self.table, self.eta, self.block = (Table(m, 2 * d) for m in (most, most, 0 if self.whole else size))
        self.t = batch.head.features.contiguous().numpy()
        np.exp(self.log_y, out=self.z)
        self.anchor(batch.head.features)

    def anchor(self, t: Tensor) -> None:
        """Put every class on N(t_k, Σ'), t k×d. Fits are still anchored on the head's own."""
        mean, constant = _natural(t.contiguous().numpy(), self.centre, self.var0, self.cooling)
        linear = torch.from_numpy(mean).T
        for part in self._parts():
            out = torch.from_numpy(self.anchored[part.start : part.stop])
            torch.mm(part.phi[:, : t.shape[1]], linear, out=out)
        rows = (self.unary, self.reference, self.w, self.total, self.stirred)
        by_rows(_start, self.w, self.log_y, constant, self.anchored, *rows)

    def pull(self, steps: int, prior: Rows | None = None) -> None:
        """z ← softmax_k( log ŷ + log p / T + log prior + G z ), `steps` times (Eq. z_update); prior: k, a new one."""
        if prior is not None:
            self.stirred.fill(1)
        prior = self.no_prior if prior is None else prior
        if not many(*self.z.shape):
            _pulls(steps, prior, *self.pulled)
            return self.turn(steps)
        for _ in range(steps):
            by_rows(_pull, self.z, prior, *self.pulled)
            self.turn(1)

    @property
    def pulled(self) -> tuple[Rows, ...]:
        """What a z-step works on beside the prior, in the order of `_pull`."""
        fixed = (self.w, self.unary, self.reach, *self.graph)
        return (*fixed, self.z, self.next, self.moved, self.moves, self.stirred, self.strayed)

    def turn(self, steps: int) -> None:
        """After so many z-steps: each has left its z in `next`."""
        if steps % 2:
            self.z, self.next, self.moved, self.moves = self.next, self.z, self.moves, self.moved

    def soft_counts(self) -> Rows:
        """Σ_i z_ik, k."""
        return torch.from_numpy(self.z).sum(dim=0).numpy() if many(*self.z.shape) else _sums(self.z)

    def hard_counts(self) -> Rows:
        """How many images have class k as their best, k."""
        by_rows(_best, self.z, self.z, self.strayed, self.labels)
        return _tally(self.labels, self.z.shape[1])

    def moments(self, counts: Rows, *, resting: bool = False) -> tuple[Rows, Rows]:
        """zᵀφ (c×2d) and Σ_i z_ik (c) of the classes to be fitted, `self.classes`, which have n_k > 0 in `counts` (k).

        resting: also of those whose z is what it was when they were last fitted.
        """
        classes, vacated, mass = self.lists
        last = (self.fitted_counts, self.fitted[:0] if resting else self.fitted)
        for part in self._parts():
            size = part.stop - part.start
            columns = self.columns if size == self.columns.array.shape[1] else Table(len(self.columns.array), size)
            found, lost = _changed(part.start, self.z, counts, *last, classes, vacated, columns.array, mass)
            out = self.table.top(found)
            torch.addmm(out, columns.top(found), part.phi, beta=1 if part.start else 0, out=out)
        self.fitted_counts, self.classes, self.vacated = counts, classes[:found], vacated[:lost]
        return self.table.array[:found], mass

    @property
    def at_rest(self) -> bool:
        """Is every class what it was when it was fitted last?"""
        return not (self.classes.size or self.vacated.size)

    def fit(
        self, moments: Rows, mass: Rows, counts: Rows, alpha: float, unit_means: bool, own: Rows | None = None
    ) -> None:
        """Fit `self.classes` to moments (c×2d) and mass (c), n_k in `counts` (k); log p / T is less own (c) · z."""
        found = len(self.classes)
        constant, own = np.empty(found, F), self.no_own if own is None else own
        _fit(
            self.classes, moments, mass, counts, self.t, self.centre, self.var0, min(alpha, ENDLESS), unit_means,
            self.cooling, VARIANCE_FLOOR / len(self.var0), self.eta.array, constant,
        )  # fmt: skip
        rows = (self.log_y, self.anchored, self.z, self.unary, self.reference, self.w, self.total, self.stirred)
        for part in self._parts():
            size = part.stop - part.start
            scores = self.scores if size == self.scores.array.shape[1] else Table(found, size)
            torch.mm(self.eta.top(found), part.phi_t, out=scores.top(found))
            fitted = (self.classes, scores.array, constant, own, self.vacated)
            by_rows(_weigh, self.w, part.start, *fitted, *rows, start=part.start, stop=part.stop)
        self.stirred[self.strong] = 1

    def _parts(self) -> Iterable[Part]:
        """All of x, in one part or (if it is large) in blocks made when they are needed."""
        return (self.whole,) if self.whole else self._blocks()

    def _whole(self) -> Part:
        n, d = self.x.shape
        phi, phi_t = Table(n, 2 * d), Table(2 * d, n)
        by_rows(_phi, phi.array, 0, self.x.numpy(), self.centre, phi.array)
        _transpose(phi.array, phi_t.array)
        return Part(0, n, phi.tensor, phi_t.tensor)

    def _blocks(self) -> Iterator[Part]:
        n, x = len(self.x), self.x.numpy()
        for start in range(0, n, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, n)
            by_rows(_phi, self.block.array, start, x, self.centre, self.block.array, stop=stop - start)
            phi = self.block.tensor[: stop - start]
            yield Part(start, stop, phi, phi.T)


def many(rows: int, k: int) -> bool:
    """Are so many rows of k entries worth more than one thread?"""
    return rows * k >= THREADED_ENTRIES and torch.get_num_threads() > 1


def by_rows(kernel: Callable[..., None], table: Rows, *arguments: Any, start: int = 0, stop: int | None = None) -> None:
    """kernel(begin, end, *arguments) for rows of a table, by as many threads as torch has if that is much work."""
    stop = len(table) if stop is None else stop
    if not many(stop - start, table.shape[1]):
        return kernel(start, stop, *arguments)
    threads = torch.get_num_threads()
    cuts = np.linspace(start, stop, 4 * threads + 1).astype(int)  # more parts than threads: they differ in work
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda begin, end: kernel(begin, end, *arguments), cuts[:-1], cuts[1:]))


def symmetric_graph(indices: Tensor, values: Tensor) -> Graph:
    """W + Wᵀ, W having these values (n×m) at these columns (n×m)."""
    return Graph(*_symmetric(indices.numpy(), values.numpy()))


def compiled(kernel: Kernel) -> Kernel:
    """Compile once, keep on disk. fastmath lets sums be vectors; maxima of floats never are, so kernels avoid them.

    Inner loops index whole arrays, z[i, c]: a row of its own, z[i], costs two atomic counts of references. Divisions by
    zero go unchecked, as a check would keep a loop from being vectors. A kernel calls only kernels of its own file, and
    takes constants of others as arguments: what is kept on disk is compiled again when its own file changes, only then.
    """
    flags: dict[str, Any] = {"fastmath": True, "nogil": True, "error_model": "numpy"}
    try:
        return cast(Kernel, njit(cache=True, **flags)(kernel))
    except RuntimeError:  # nowhere to keep it, in a read-only installation: then once per process
        return cast(Kernel, njit(**flags)(kernel))


@compiled
def _exp(v: Rows, count: int, power: Rows) -> None:
    """v ← exp(v), for the first entries, as whole vectors: 2^m · polynomial(r), where v = m log 2 + r."""
    scale = power.view(np.float32)
    for c in range(count):
        bounded = max(v[c], SMALLEST)
        m = np.floor(bounded * LOG2E + F(0.5))
        r = bounded - m * LN2_HIGH - m * LN2_LOW
        p = F(1.9875691e-4)
        p = p * r + F(1.3981999e-3)
        p = p * r + F(8.3334519e-3)
        p = p * r + F(4.1665795e-2)
        p = p * r + F(1.6666665e-1)
        p = p * r + F(5.0000001e-1)
        v[c] = p * r * r + r + F(1)
        power[c] = (np.int32(m) + np.int32(127)) << np.int32(23)  # the bits of 2^m
    for c in range(count):
        v[c] *= scale[c]


@compiled
def _centre(x: Rows) -> Rows:
    """The mean of the rows, d, in float64 until the end."""
    n, d = x.shape
    total = np.zeros(d, np.float64)
    for i in range(n):
        for c in range(d):
            total[c] += np.float64(x[i, c])
    mean: Rows = (total / n).astype(F)
    return mean


@compiled
def _phi(begin: int, end: int, start: int, x: Rows, centre: Rows, phi: Rows) -> None:
    """φ = [x − centre, (x − centre)²], from row `start` of x on."""
    d = len(centre)
    for i in range(begin, end):
        for c in range(d):
            phi[i, c] = x[start + i, c] - centre[c]
        for c in range(d):
            phi[i, d + c] = phi[i, c] * phi[i, c]


@compiled
def _transpose(table: Rows, out: Rows) -> None:
    """In tiles of 8×16: whole vectors of both."""
    n, d = table.shape
    tall, wide = n // 8 * 8, d // 16 * 16
    for left in range(0, wide, 16):
        for top in range(0, tall, 8):
            for c in range(16):
                for i in range(8):
                    out[left + c, top + i] = table[top + i, left + c]
    for i in range(n):
        for c in range(wide if i < tall else 0, d):
            out[c, i] = table[i, c]


@compiled
def _start(
    begin: int, end: int, log_y: Rows, constant: Rows, anchored: Rows, unary: Rows, reference: Rows, w: Rows,
    total: Rows, stirred: Rows,
) -> None:  # fmt: skip
    """Classes on their anchors: from η φ in `anchored` to log ŷ + log p / T, there and in `unary`, and to w."""
    for i in range(begin, end):
        for c in range(w.shape[1]):
            v = anchored[i, c] + log_y[i, c] - constant[c]
            anchored[i, c] = v
            unary[i, c] = v
        _restart(i, unary, reference, w, total, stirred)


@compiled
def _restart(i: int, unary: Rows, reference: Rows, w: Rows, total: Rows, stirred: Rows) -> None:
    """w_ik = exp(unary_ik − r_i), of one row, r_i being the row's maximum."""
    k = w.shape[1]
    v, power = np.full(k, LOWEST), np.empty(k, np.int32)
    for left in range(0, k, 64):  # maxima of 64 columns side by side are vectors, a maximum over all is not
        for c in range(min(64, k - left)):
            v[c] = max(v[c], unary[i, left + c])
    top = v[0]
    for c in range(1, min(64, k)):
        top = max(top, v[c])
    for c in range(k):
        v[c] = unary[i, c] - top
    _exp(v, k, power)
    mass = F(0)
    for c in range(k):
        w[i, c] = v[c]
        mass += v[c]
    reference[i], total[i], stirred[i] = top, mass, F(1)


@compiled
def _weigh(
    begin: int, end: int, start: int, classes: Rows, scores: Rows, constant: Rows, own: Rows, vacated: Rows,
    log_y: Rows, anchored: Rows, z: Rows, unary: Rows, reference: Rows, w: Rows, total: Rows, stirred: Rows,
) -> None:  # fmt: skip
    """unary and w of these rows, for classes that were fitted and classes that fall back; row i is column i − start."""
    fitted = len(classes)
    count = fitted + len(vacated)
    padded = (count + 31) // 32 * 32  # whole vectors
    v, power = np.zeros(padded, F), np.empty(padded, np.int32)
    for i in range(begin, end):
        top = LOWEST
        for a in range(fitted):
            c = classes[a]
            u = log_y[i, c] + scores[a, i - start] - constant[a] - own[a] * z[i, c]
            unary[i, c] = u
            v[a] = u - reference[i]
            top = max(top, v[a])
        for a in range(len(vacated)):
            c = vacated[a]
            unary[i, c] = anchored[i, c]
            v[fitted + a] = anchored[i, c] - reference[i]
            top = max(top, v[fitted + a])
        v[count:] = F(0)
        _exp(v, padded, power)
        change, rise = F(0), F(0)
        for a in range(count):
            c = classes[a] if a < fitted else vacated[a - fitted]
            step = v[a] - w[i, c]
            rise += step
            change += abs(step)
            w[i, c] = v[a]
        total[i] += rise
        stirred[i] += change / max(total[i], LEAST)
        if top > LARGEST or total[i] < LEAST:  # r_i is no longer near the best class's
            _restart(i, unary, reference, w, total, stirred)


@compiled
def _pull(
    begin: int, end: int, prior: Rows, w: Rows, unary: Rows, reach: Rows, offsets: Rows, columns: Rows, values: Rows,
    z: Rows, next: Rows, moved: Rows, moves: Rows, stirred: Rows, strayed: Rows,
) -> None:  # fmt: skip
    """One z-step: next_ik ∝ w_ik prior_k exp(Σ_j g_ij z_jk), for these rows.

    Of each row: how far it `moved` a step ago and how far it `moves` now, how far w was `stirred` since it last moved,
    and how far it `strayed` since its label was last looked up.
    """
    k = z.shape[1]
    pull, power = np.empty(k, F), np.empty(k, np.int32)
    for i in range(begin, end):
        first, last = offsets[i], offsets[i + 1]
        most = stirred[i]
        for e in range(first, last):
            most = max(most, moved[columns[e]])
        if most <= AT_REST:
            if moved[i] > F(0):  # else both buffers have it
                for c in range(k):
                    next[i, c] = z[i, c]
            moves[i] = F(0)
            continue

        odd = (last - first) % 3  # three neighbours at a time: fewer passes
        if odd == 2:
            g, j, g2, j2 = values[first], columns[first], values[first + 1], columns[first + 1]
            for c in range(k):
                pull[c] = g * z[j, c] + g2 * z[j2, c]
        elif odd == 1:
            g, j = values[first], columns[first]
            for c in range(k):
                pull[c] = g * z[j, c]
        else:
            for c in range(k):
                pull[c] = F(0)
        for e in range(first + odd, last, 3):
            g, j, g2, j2 = values[e], columns[e], values[e + 1], columns[e + 1]
            g3, j3 = values[e + 2], columns[e + 2]
            for c in range(k):
                pull[c] += g * z[j, c] + g2 * z[j2, c] + g3 * z[j3, c]

        total = F(0)
        if reach[i] <= GENTLE:  # exp(v) = exp(v/8)^8, with |v/8| ≤ 1/4
            for c in range(k):
                r = pull[c] * F(0.125)
                p = F(1 / 720) * r + F(1 / 120)
                p = p * r + F(1 / 24)
                p = p * r + F(1 / 6)
                p = p * r + F(0.5)
                p = p * r + F(1)
                p = p * r + F(1)
                p = p * p
                p = p * p
                p = p * p * w[i, c] * prior[c]
                pull[c] = p
                total += p
        else:
            if reach[i] > HEAVY:
                top = LOWEST
                for c in range(k):
                    pull[c] += unary[i, c] + np.log(prior[c])
                    top = max(top, pull[c])
                for c in range(k):
                    pull[c] -= top
                _exp(pull, k, power)
            else:
                _exp(pull, k, power)
                for c in range(k):
                    pull[c] *= w[i, c] * prior[c]
            for c in range(k):
                total += pull[c]
        share, distance = F(1) / total, F(0)
        for c in range(k):
            v = pull[c] * share
            distance += abs(v - z[i, c])
            next[i, c] = v
        moves[i], stirred[i] = distance, F(0)
        strayed[i] += distance


@compiled
def _pulls(
    steps: int, prior: Rows, w: Rows, unary: Rows, reach: Rows, offsets: Rows, columns: Rows, values: Rows,
    z: Rows, next: Rows, moved: Rows, moves: Rows, stirred: Rows, strayed: Rows,
) -> None:  # fmt: skip
    """Some z-steps of all rows; after an odd number the last z is in `next`."""
    for _ in range(steps):
        rows = (z, next, moved, moves, stirred, strayed)
        _pull(0, len(z), prior, w, unary, reach, offsets, columns, values, *rows)
        z, next, moved, moves = next, z, moves, moved


@compiled
def _reach(offsets: Rows, values: Rows) -> Rows:
    """The largest pull there can be on each row, n."""
    reach = np.zeros(len(offsets) - 1, F)
    for i in range(len(reach)):
        for e in range(offsets[i], offsets[i + 1]):
            reach[i] += abs(values[e])
    return reach


@compiled
def _best(begin: int, end: int, z: Rows, strayed: Rows, labels: Rows) -> None:
    """The best class of the rows that strayed. Positive floats are in the order of their bits."""
    k, bits = z.shape[1], z.view(np.int32)
    for i in range(begin, end):
        if strayed[i] <= AT_REST:
            continue
        strayed[i] = F(0)
        most, where = np.int32(-1), 0
        for left in range(0, k, 64):
            here = np.int32(-1)
            for c in range(left, min(left + 64, k)):
                here = max(here, bits[i, c])
            if here > most:
                most, where = here, left
        while where < k - 1 and bits[i, where] != most:  # of NaN there is no best
            where += 1
        labels[i] = where


@compiled
def _sums(z: Rows) -> Rows:
    """Σ_i z_ik, k, of a hundred rows at a time: one long sum would lose digits."""
    n, k = z.shape
    total, part = np.zeros(k, F), np.empty(k, F)
    for top in range(0, n, 100):
        part[:] = F(0)
        for i in range(top, min(top + 100, n)):
            for c in range(k):
                part[c] += z[i, c]
        for c in range(k):
            total[c] += part[c]
    return total


@compiled
def _tally(labels: Rows, k: int) -> Rows:
    """How often each label is there, k."""
    counts = np.zeros(k, F)
    for i in range(len(labels)):
        counts[labels[i]] += F(1)
    return counts


@compiled
def _changed(
    start: int, z: Rows, counts: Rows, fitted_counts: Rows, fitted: Rows, classes: Rows, vacated: Rows, columns: Rows,
    mass: Rows,
) -> tuple[int, int]:  # fmt: skip
    """Classes that have images and are not at rest, with their columns of z from row `start` on and their mass; classes
    that have none any more. Returns how many of each. Row by row, a few classes at a time: as z lies in memory."""
    n, found, lost = columns.shape[1], 0, 0
    distance = np.full(len(counts), F(0) if len(fitted) else F(1))
    for i in range(len(fitted)):
        for k in range(len(counts)):
            distance[k] += abs(z[i, k] - fitted[i, k])
    for k in range(len(counts)):
        if counts[k] == F(0):
            if fitted_counts[k] > F(0):
                vacated[lost] = k
                lost += 1
        elif distance[k] > CLASS_AT_REST or fitted_counts[k] == F(0) or abs(counts[k] - fitted_counts[k]) > F(0.5):
            classes[found] = k
            found += 1
    for first in range(0, found, 8):
        last = min(first + 8, found)
        for i in range(n):
            for a in range(first, last):
                columns[a, i] = z[start + i, classes[a]]
    for i in range(len(fitted)):
        for a in range(found):
            fitted[i, classes[a]] = z[i, classes[a]]
    for a in range(found):
        total = mass[a] if start else F(0)
        for i in range(n):
            total += columns[a, i]
        mass[a] = total
    return found, lost


@compiled
def _fit(
    classes: Rows, moments: Rows, mass: Rows, counts: Rows, t: Rows, centre: Rows, var0: Rows, alpha: float,
    unit_means: bool, cooling: np.float32, smallest: float, eta: Rows, constant: Rows,
) -> None:  # fmt: skip
    """The M-step (Eq. regularized-updates): the natural parameters η (c×2d) and constant (c) of log p, over T.

    Many short loops: one with many arrays does not become vectors.
    """
    d, floor, images = len(centre), F(smallest), F(alpha)
    mu, first, var, ratio = np.empty(d, F), np.empty(d, F), np.empty(d, F), np.empty(d, F)
    bits, precision0 = ratio.view(np.int32), F(1) / var0
    for a in range(len(classes)):
        k, inverse = classes[a], F(1) / max(mass[a], F(1e-37))
        beta = counts[k] / (counts[k] + images)  # Eq. hard_beta_k
        length = F(0)
        for c in range(d):
            first[c] = moments[a, c] * inverse
            mu[c] = first[c] + centre[c]  # v_k = Σ_i z_ik x_i / Σ_i z_ik
            length += mu[c] * mu[c]
        scale = beta / max(np.sqrt(length), F(1e-37)) if unit_means else beta
        length = F(0)
        for c in range(d):
            mu[c] = mu[c] * scale + (F(1) - beta) * t[k, c]  # β v + (1 − β) t
            length += mu[c] * mu[c]
        scale = F(1) / max(np.sqrt(length), F(1e-37)) if unit_means else F(1)
        for c in range(d):
            mu[c] *= scale
            away = t[k, c] - mu[c]
            var[c] = (F(1) - beta) * (var0[c] + away * away)
        for c in range(d):  # + β T_k
            mu[c] -= centre[c]
            var[c] += beta * mu[c] * (mu[c] - F(2) * first[c])
        share = beta * inverse
        for c in range(d):
            var[c] = max(var[c] + share * moments[a, d + c], floor)
        for c in range(d):
            ratio[c] = var[c] * precision0[c]
            var[c] = F(1) / var[c]
        quadratic = F(0)
        for c in range(d):
            scaled = mu[c] * var[c]
            quadratic += mu[c] * scaled
            eta[a, c] = cooling * scaled
        for c in range(d):
            eta[a, d + c] = (precision0[c] - var[c]) * (cooling * F(0.5))
        constant[a] = cooling * F(0.5) * (quadratic + F(_sum_of_logs(ratio, bits)))


@compiled
def _sum_of_logs(ratio: Rows, bits: Rows) -> float:
    """Σ_d log ratio_d, given as floats and as their bits: exponents added, significands multiplied, one logarithm."""
    d, exponents, logs = len(ratio), np.int32(0), 0.0
    for c in range(d):
        exponents += (bits[c] >> np.int32(23)) - np.int32(127)
        bits[c] = (bits[c] & np.int32(0x7FFFFF)) | np.int32(0x3F800000)
    for left in range(0, d, 512):  # each is below 2, and 2^512 is within float64
        product = 1.0
        for c in range(left, min(left + 512, d)):
            product *= np.float64(ratio[c])
        logs += np.log(product)
    return logs + exponents * 0.6931471805599453


@compiled
def _natural(t: Rows, centre: Rows, var0: Rows, cooling: np.float32) -> tuple[Rows, Rows]:
    """The linear natural parameter of N(t_k, Σ') and its constant, divided by T: k×d and k."""
    k, d = t.shape
    mean, constant = np.empty((k, d), F), np.empty(k, F)
    scale = cooling / var0
    for j in range(k):
        t_j, mean_j, total = t[j], mean[j], F(0)
        for c in range(d):
            shift = t_j[c] - centre[c]
            mean_j[c] = shift * scale[c]
            total += shift * mean_j[c]
        constant[j] = F(0.5) * total
    return mean, constant


@compiled
def _symmetric(indices: Rows, values: Rows) -> tuple[Rows, Rows, Rows]:
    """W + Wᵀ as compressed sparse rows, an image's own neighbours first: offsets, columns and values."""
    n, m = indices.shape
    offsets = np.zeros(n + 1, np.int64)
    columns, weights = np.empty(2 * n * m, np.int32), np.empty(2 * n * m, F)
    for i in range(n):
        offsets[i + 1] += m
        for q in range(m):
            offsets[indices[i, q] + 1] += 1
    offsets = np.cumsum(offsets)
    place = offsets[:-1].copy()
    for incoming in range(2):
        for i in range(n):
            for q in range(m):
                j = indices[i, q]
                row, column = (j, i) if incoming else (i, j)
                columns[place[row]], weights[place[row]] = column, values[i, q]
                place[row] += 1
    return offsets, columns, weights


@compiled
def proportions(counts: Rows, n: int, trust: np.float32, pseudo: np.float32) -> tuple[float, Rows]:
    """ω = 1 − K̂/K, and the prior exp(ρ log π), k."""
    k = len(counts)
    logs, power = np.empty(k, F), np.empty(k, np.int32)
    total, entropy = F(0), F(0)
    for c in range(k):
        total += counts[c]
    for c in range(k):
        logs[c] = max(counts[c] / total, F(1e-30))
    _log(logs, power)
    for c in range(k):
        entropy -= counts[c] / total * logs[c]
    few = F(1) - np.exp(entropy) / F(k)
    u = min(max(few, F(0)), F(1))
    weight = trust * u * u * (F(3) - F(2) * u)
    for c in range(k):
        logs[c] = (counts[c] + pseudo) / (F(n) + pseudo * F(k))
    _log(logs, power)
    for c in range(k):
        logs[c] *= weight
    _exp(logs, k, power)
    return few, logs


@compiled
def rounds(
    steps: int, n: int, trust: np.float32, pseudo: np.float32, prior: Rows, w: Rows, unary: Rows, reach: Rows,
    offsets: Rows, columns: Rows, values: Rows, z: Rows, next: Rows, moved: Rows, moves: Rows, stirred: Rows,
    strayed: Rows,
) -> tuple[Rows, float, Rows]:  # fmt: skip
    """Some z-steps, each with the prior that the one before gives: the last n_k (k), ω and prior (k)."""
    counts, few = prior, 0.0
    for _ in range(steps):
        stirred[:] = F(1)
        rows = (z, next, moved, moves, stirred, strayed)
        _pull(0, n, prior, w, unary, reach, offsets, columns, values, *rows)
        z, next, moved, moves = next, z, moves, moved
        counts = _sums(z)
        few, prior = proportions(counts, n, trust, pseudo)
    return counts, few, prior


@compiled
def _log(v: Rows, exponent: Rows) -> None:
    """v ← log(v), k, as whole vectors: v = 2^e m with m within √2 of 1, and log m = 2 artanh((m − 1)/(m + 1))."""
    bits = v.view(np.int32)
    for c in range(len(v)):
        e = (bits[c] - np.int32(0x3F3504F3)) >> np.int32(23)
        exponent[c] = e
        bits[c] -= e << np.int32(23)
    for c in range(len(v)):
        s = (v[c] - F(1)) / (v[c] + F(1))
        q = s * s
        p = F(2 / 9) * q + F(2 / 7)
        p = p * q + F(2 / 5)
        p = p * q + F(2 / 3)
        v[c] = s * (p * q + F(2)) + F(0.6931472) * exponent[c]
