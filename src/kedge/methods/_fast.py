"""StatA's solver once more, compiled: the extra `fast` (numba), for float32 on CPUs.

Same equations as stata.py, same result to float32's last digits. Why a second form: a solve of 64 images is some seven
hundred small torch calls, and most of its time is the calls themselves. Here matrix products stay torch's, and compiled
kernels do what is between them:

    weigh    after a fit: w_ik = exp(log ŷ_ik + log p_ik / T − r_i), the part of z that z-steps do not change
    pull     one z-step: u_ik = w_ik exp((G z)_ik), and share_i = 1 / Σ_k u_ik: z_ik = share_i u_ik
    best     the label of each image
    changed  the classes whose images are others than at their last fit, and their columns of z
    fit      from the moments zᵀφ to the classes' new natural parameters

For a small batch all but the last are a single call (around).

What is at rest is left alone. Between z-steps only z changes: an image whose own w and whose neighbours moved by less
than 1e-6 would itself move by little more (rows that others pull strongly are always looked at after a fit). A class
whose column of z moved by less than 1e-5 since its last fit (sum over images) would get nearly the same parameters.
Both are most of the work in later iterations, and leaving it out changes z by some 1e-6, as float32's rounding does.

Live and idle classes. Of a thousand classes a small batch has some thirty, and only their w ever changes. The others
are idle: of an image's idle classes, u changes only as its neighbours' idle classes do. These hold little and move
less, so that after the second iteration idle columns are hardly ever computed: share_i says for all of them at once how
they shrink or grow. An image's are computed anew when its neighbours' idle classes have moved so far that its own z
would, by 1e-6. Live classes have columns of their own behind the others; a class becomes live when it first is the
label of an image. With few classes, or if images have many of them, all are live.

Blocks. φ = [x, x²] of a large batch is never held as a whole: rows are taken in blocks, and only class statistics are
carried from one to the next. Kernels release the interpreter's lock and take a range of rows, so that threads can share
a large batch; how many, torch.set_num_threads says.

What was tried and did not pay: keeping only classes whose z can matter (at logit scale 100 every image has a hundred,
and lists cost more than whole vectors save); solving many batches together in padded arrays (15 % at best, for twice
the code: to call a kernel takes 1 µs); BLAS from within kernels (half the speed of torch's for few classes).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ..features import TextHead
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
SMALL_ENTRIES = 1 << 21  # of n×(k + 2d): up to this a solver is kept for the next batch of its size
THREADED_ENTRIES = 1 << 19  # of n×k: with fewer, a second thread costs more than it brings
SMALLEST = F(-69.0)  # e to this is 1e-30: far below float32's 1e-7 of a sum, far above its denormals, which are slow
LARGEST, LEAST = F(6.0), F(1e-2)  # of log w_ik, and of Σ_k w_ik: beyond, the row gets another r_i. The sum is kept up
# by differences, and between these two it keeps its digits
GENTLE = F(2.0)  # pulls up to this, in either direction, need no exponential of more than a polynomial
HEAVY = F(8.0)  # rows of G that sum to more (hubs, a large λ) are done in logarithms
LOWEST, ENDLESS = F(-3e38), 1e30  # in place of infinities, which fastmath rules out
FEW, APART = 4, 256  # if images have at most every fourth of so many classes, the others are set apart
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)

# What is known of each image: rows of `Solver.rows`. Of the first three there are two, of this z-step and of the next.
SHARE = 0  # z_ik = share_i u_ik
MOVED = 2  # how far z_i moved in a step: at most Σ_k of the changes
DRIFT = 4  # of that, its idle classes
REFERENCE, TOTAL = 6, 7  # r_i, and Σ_k w_ik
STIRRED = 8  # how far w_i changed since z_i last moved
STRAYED = 9  # how far z_i moved since its label was last looked up
IDLE = 10  # Σ u_ik of the idle classes
OWED = 11  # how far the idle classes of its neighbours drifted, as they pull, since its own were last computed
AHEAD = 12  # 1: its idle classes are newer in one of the two tables
UNSEEN = 13  # 1: the best of its idle classes was not looked up since they were computed
BEST = 14  # u of that class
KNOWN = 15


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
) -> tuple[Tensor, float]:
    """z (n×k) and the largest change of an entry in the last iteration, for G (n×n)."""
    head = batch.head
    solver = Solver.of(batch, graph, 1 / temperature, most=head.k if soft else len(batch.features))
    for iteration in track(range(iterations), "StatA"):
        # After the first z-steps an empty class is at unit(t_k), β_k = 0; rounded input is only nearly that.
        rounded = iteration == 0 and unit_means and head.unit is not head
        counts = solver.round(z_steps, soft, head.unit if rounded else None)
        moments, mass = solver.moments(counts)  # M-step, for the active classes
        if solver.at_rest:
            break  # nothing will change any more
        solver.fit(moments, mass, counts, alpha, unit_means)
    solver.mark()
    solver.pull(z_steps)
    return solver.result()


class Table:
    """The same memory for kernels and for matrix products."""

    def __init__(self, rows: int, columns: int) -> None:
        self.array = np.empty((rows, columns), F)
        self.tensor = torch.from_numpy(self.array)
        self.tops: dict[int, Tensor] = {}

    def top(self, rows: int) -> Tensor:
        """The first rows. Kept, as to cut a tensor takes as long as a small kernel."""
        if rows not in self.tops:
            self.tops[rows] = self.tensor[:rows]
        return self.tops[rows]


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

    In a small solve every call from Python counts: whatever can be made once, is. Even the solver: a small one is kept
    for the next batch of the same size.
    """

    def __init__(self, n: int, k: int, d: int, most: int, room: int, held: bool) -> None:
        """Tables, with nothing in them; see `of`."""
        self.size = (n, k, d, most, room, held)
        self.small = held and n * (k + room + 2 * d) <= SMALL_ENTRIES
        # Columns of all tables: the classes, and then room for those that are live while the others are idle
        self.u, self.next, self.w, self.unary = (np.empty((n, k + room), F) for _ in range(4))
        self.anchored, self.before = np.empty((n, k), F), np.empty((n, k + room), F)
        self.fitted = np.zeros((n, k + room) if held else (0, 0), F)  # z when a class was last fitted
        self.names, self.slots = np.empty(k + room, np.uint64), np.empty(k, np.int64)  # class of a column, and reverse
        self.live, self.idle = (0, k), 0  # live classes are in columns from and to, idle ones in columns to
        self.labels, self.idle_labels = np.empty(n, np.int64), np.empty(n, np.int64)
        self.no_prior, self.no_own = np.ones(k + room, F), np.empty(0, F)
        # What was fitted last, columns and classes; columns that were put back on their anchors; mass of the former
        self.lists = (np.empty(k, np.uint64), np.empty(k, np.uint64), np.empty(k, np.uint64), np.empty(k, F))
        block = n if held else BLOCK_ROWS
        self.columns, self.scores = Table(most, block), Table(most, block)
        self.moment, self.eta, self.phi = Table(most, 2 * d), Table(most, 2 * d), Table(block, 2 * d)
        phi_t = Table(2 * d, n if held else 0)
        self.whole = Part(0, n, self.phi.tensor, phi_t.tensor) if held else None

    @classmethod
    def of(cls, batch: Batch, graph: Graph, cooling: float, most: int) -> Solver:
        """One for this batch, before its first z-step. cooling: 1/T. most: no more classes are ever fitted at once."""
        n, k, d, held = len(batch.features), batch.head.k, batch.head.d, len(batch.features) <= HELD_ROWS
        size = (n, k, d, min(most, k), k // FEW if held and most < k and k >= APART else 0, held)
        solver: Solver | None = _kept.__dict__.pop("solver", None)
        if solver is None or solver.size != size:
            solver = cls(*size)
        solver.begin(batch, graph, cooling)
        return solver

    def begin(self, batch: Batch, graph: Graph, cooling: float) -> None:
        """Every class on its anchor, z = ŷ."""
        self.x = batch.features.contiguous()  # kernels are compiled for rows without gaps
        self.t = batch.head.features.contiguous().numpy()
        self.centre, self.var0, self.cooling = _centre(self.x.numpy()), batch.shared_variance.numpy(), F(cooling)
        self.log_y, self.graph = batch.log_zero_shot.contiguous().numpy(), graph
        self.reach = _reach(graph.offsets, graph.values)
        if self.whole:
            by_rows(_phi, self.phi.array, 0, self.x.numpy(), self.centre, self.phi.array)
            _transpose(self.phi.array, self.whole.phi_t.numpy())
        self.rows, self.now = _nothing_known(len(self.x)), 0
        self._unite()
        self.chosen = self.classes = self.vacated = self.lists[0][:0]
        self.fitted_counts = np.zeros(len(self.t), F)
        self.changed: tuple[int, int] | None = None  # how many are in the lists, if they are up to date
        self.fresh: tuple[Rows, Rows] | None = None  # of a fit that is still to be weighed: constant and own (c)
        np.exp(self.log_y, out=self.u[:, : len(self.t)])
        self.anchor(batch.head)

    def anchor(self, head: TextHead) -> None:
        """Put every class on N(t_k, Σ'), t the head's. Fits are still anchored on the batch's own."""
        constant = _constants(head.features.contiguous().numpy(), self.centre, self.var0, self.cooling)
        for part in self._parts():
            linear, own = _linear(part.phi.numpy(), self.centre, self.var0, self.cooling)
            rows = slice(part.start, part.stop)
            torch.mm(torch.from_numpy(linear), head.columns, out=torch.from_numpy(self.anchored[rows]))
            self.rows[REFERENCE, rows] = own
        by_rows(_start, self.log_y, self.log_y, constant, self.anchored, self.unary, self.w, self.rows)

    def pull(self, steps: int, prior: Rows | None = None) -> None:
        """z ← softmax_k( log ŷ + log p / T + log prior + G z ), `steps` times (Eq. z_update); prior: k, a new one."""
        self.weigh()
        if prior is None:
            prior = self.no_prior
        else:
            self.rows[STIRRED] = 1
        if not many(*self.log_y.shape):
            _pulls(steps, prior, self.now, *self.pulled)
            return self.turn(steps)
        for _ in range(steps):
            by_rows(_pull, self.log_y, prior, self.now, *self.pulled)
            self.turn(1)

    def round(self, steps: int, soft: bool, anchors: TextHead | None = None) -> Rows:
        """z-steps, and then n_k (k); anchors: where classes are after the z-steps."""
        if self.whole and self.fresh and not soft and not many(*self.log_y.shape):
            return self._round(steps, *self.fresh)
        self.pull(steps)
        if anchors is not None:
            self.anchor(anchors)
        return self.soft_counts() if soft else self.hard_counts()

    def _round(self, steps: int, constant: Rows, own: Rows) -> Rows:
        """The same for a small batch in a single call, with what is before it (weigh) and after it (changed)."""
        fit = (self.classes, self.chosen, self.scores.array, constant, own, self.vacated)
        classes = (self.names, self.slots, self.idle_labels, self.labels, self.fitted_counts, self.fitted)
        told: tuple[Any, ...] = (*fit, self.log_y, self.anchored, *classes, *self.lists, self.columns.array)
        counts, missing, found, lost = _around(steps, self.no_prior, self.now, *self.pulled, *told)
        self.turn(steps)
        self.fresh = None
        if missing:
            self._revive(counts, missing)
        else:
            self.changed = found, lost
        return counts

    @property
    def pulled(self) -> tuple[Any, ...]:
        """What a z-step works on beside the prior, in the order of `_pull`."""
        graph = (self.reach, *self.graph)
        return (self.u, self.next, self.w, self.unary, self.rows, *graph, *self.live, self.idle)

    def turn(self, steps: int) -> None:
        """After so many z-steps: each has left its z in `next`."""
        if steps % 2:
            self.u, self.next, self.now = self.next, self.u, 1 - self.now

    def mark(self) -> None:
        """Before the last z-steps: `result` tells how far they went."""
        self.before[:], self.shares = self.u, self.rows[SHARE + self.now].copy()
        self.rows[STRAYED] = 0

    def result(self) -> tuple[Tensor, float]:
        """z (n×k), and the largest change of an entry since `mark`. The solver must not be used any more."""
        shares = self.rows[SHARE + self.now]
        told = (self.before, self.shares, self.rows[STRAYED], *self.live, self.idle)
        change = _largest_change(self.u, shares, *told)
        z = np.empty_like(self.log_y) if self.small else self.next
        by_rows(_assemble, z, z, self.u, shares, self.names, *self.live)
        if self.small:
            del self.x, self.t, self.log_y, self.graph  # what is not its own
            _kept.solver = self
        return torch.from_numpy(z), change

    def soft_counts(self) -> Rows:
        """Σ_i z_ik, k. For methods that use it all classes stay live."""
        return _sums(self.u, self.rows[SHARE + self.now], *self.live)

    def hard_counts(self) -> Rows:
        """How many images have class k as their best, k. Classes that have any become live."""
        told = (self.u, self.rows, self.names, self.idle_labels, self.labels, *self.live, self.idle)
        by_rows(_best, self.log_y, *told)
        counts, active, missing = _tally(self.labels, self.slots)
        self.enliven(counts, active, missing)
        return counts

    def enliven(self, counts: Rows, active: int, missing: int) -> None:
        """Let all classes live that have images in `counts` (k): so many, of which some are idle."""
        k = len(counts)
        if active <= len(self.names) - k and not self.fitted_counts.any():  # there is room, and it is the first time
            self.live, self.idle = (k, k), k
            self.slots.fill(-1)
            self.rows[OWED] = ENDLESS
            missing = active
        if missing:
            self._revive(counts, missing)

    def _revive(self, counts: Rows, missing: int) -> None:
        """Make idle classes live that have images in `counts` (k)."""
        start, stop = self.live
        if stop + missing > len(self.names):
            _give_back(self.u, self.next, self.w, self.unary, self.fitted, self.names, *self.live)
            return self._unite()
        self.live = start, stop + missing
        told = (self.u, self.next, self.w, self.unary, self.rows, self.names, self.slots, self.idle)
        _revive(counts, stop, *told)

    def _unite(self) -> None:
        """Let all classes be live, in their order."""
        k = len(self.slots)
        self.names[:k] = self.slots[:] = np.arange(k)
        self.live, self.idle = (0, k), 0
        self.rows[IDLE] = 0

    def moments(self, counts: Rows, *, resting: bool = False) -> tuple[Rows, Rows]:
        """zᵀφ (c×2d) and Σ_i z_ik (c) of the classes to be fitted, `self.classes`, which have n_k > 0 in `counts` (k).

        resting: also of those whose z is what it was when they were last fitted.
        """
        slots, classes, vacated, mass = self.lists
        fitted = self.fitted[:0] if resting else self.fitted
        last = (self.names, *self.live, counts, self.fitted_counts, fitted)
        for part in self._parts():
            size = part.stop - part.start
            columns = self.columns if size == self.columns.array.shape[1] else Table(len(self.columns.array), size)
            if not self.changed:
                told = (self.rows[SHARE + self.now], *last, *self.lists, columns.array)
                found, lost = _changed(part.start, self.u, *told)
            else:
                found, lost = self.changed
            out = self.moment.top(found)
            torch.addmm(out, columns.top(found), part.phi, beta=1 if part.start else 0, out=out)
        self.fitted_counts, self.changed = counts, None
        self.chosen, self.classes, self.vacated = slots[:found], classes[:found], vacated[:lost]
        return self.moment.array[:found], mass

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
        self.fresh = constant, own
        if self.whole:
            torch.mm(self.eta.top(found), self.whole.phi_t, out=self.scores.top(found))

    def weigh(self) -> None:
        """After a fit: log ŷ + log p / T, and w."""
        if self.fresh is None:
            return
        constant, own = self.fresh
        found = len(self.classes)
        tables = (self.u, self.w, self.unary, self.rows, self.reach, *self.live, self.idle)
        for part in self._parts():
            scores = self.scores
            if not self.whole:
                size = part.stop - part.start
                scores = scores if size == scores.array.shape[1] else Table(found, size)
                torch.mm(self.eta.top(found), part.phi_t, out=scores.top(found))
            fitted = (self.classes, self.chosen, scores.array, constant, own, self.vacated)
            told = (part.start, self.now, *fitted, self.log_y, self.anchored, self.names, *tables)
            by_rows(_weigh, self.log_y, *told, start=part.start, stop=part.stop)
        self.fresh = None

    def _parts(self) -> Iterable[Part]:
        """All of x, in one part or (if it is large) in blocks made when they are needed."""
        return (self.whole,) if self.whole else self._blocks()

    def _blocks(self) -> Iterator[Part]:
        n, x = len(self.x), self.x.numpy()
        for start in range(0, n, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, n)
            by_rows(_phi, self.phi.array, start, x, self.centre, self.phi.array, stop=stop - start)
            phi = self.phi.tensor[: stop - start]
            yield Part(start, stop, phi, phi.T)


_kept = threading.local()  # .solver: the last small one


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
def _exp(v: Rows, first: Any, last: Any, power: Rows) -> None:
    """v ← exp(v), for the entries from first to last, as whole vectors: 2^m · polynomial(r), where v = m log 2 + r."""
    scale = power.view(np.float32)
    for c in range(np.uint64(first), np.uint64(last)):
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
    for c in range(np.uint64(first), np.uint64(last)):
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
def _nothing_known(n: int) -> Rows:
    """Of n images, before the first z-step."""
    rows = np.zeros((KNOWN, n), F)
    for row in (SHARE, MOVED, MOVED + 1, STIRRED, STRAYED):
        for i in range(n):
            rows[row, i] = F(1)
    return rows


@compiled
def _start(begin: int, end: int, log_y: Rows, constant: Rows, anchored: Rows, unary: Rows, w: Rows, rows: Rows) -> None:
    """Classes on their anchors: from η φ in `anchored`, less a constant and what is each row's own, to
    log ŷ + log p / T, there and in `unary`, and to w."""
    k = log_y.shape[1]
    v, power = np.empty(k, F), np.empty(k, np.int32)
    for i in range(begin, end):
        own = rows[REFERENCE, i]
        for c in range(k):
            value = anchored[i, c] + log_y[i, c] - constant[c] - own
            anchored[i, c] = value
            unary[i, c] = value
        _restart(i, unary, w, rows, v, power, 0, k, 0)


@compiled
def _restart(i: int, unary: Rows, w: Rows, rows: Rows, v: Rows, power: Rows, start: int, stop: int, idle: int) -> None:
    """w_ik = exp(unary_ik − r_i), of one row, r_i being the row's maximum; v and power: room for a row."""
    left, right, count = np.uint64(start), np.uint64(stop), np.uint64(idle)
    for c in range(len(v)):  # maxima of 64 columns side by side are vectors, a maximum over all is not
        v[c] = LOWEST
    for first in range(start, stop, 64):
        for c in range(min(64, stop - first)):
            v[c] = max(v[c], unary[i, first + c])
    for first in range(0, idle, 64):
        for c in range(min(64, idle - first)):
            v[c] = max(v[c], unary[i, first + c])
    top, total = LOWEST, F(0)
    for c in range(min(64, len(v))):
        top = max(top, v[c])
    for c in range(count):
        v[c] = unary[i, c] - top
    for c in range(left, right):
        v[c] = unary[i, c] - top
    _exp(v, 0, idle, power)
    _exp(v, start, stop, power)
    for c in range(count):
        w[i, c] = v[c]
        total += v[c]
    for c in range(left, right):
        w[i, c] = v[c]
        total += v[c]
    rows[REFERENCE, i], rows[TOTAL, i], rows[STIRRED, i], rows[OWED, i] = top, total, F(1), ENDLESS


@compiled
def _weigh(
    begin: int, end: int, start: int, now: int, classes: Rows, slots: Rows, scores: Rows, constant: Rows, own: Rows,
    vacated: Rows, log_y: Rows, anchored: Rows, names: Rows, u: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows,
    live: int, stop: int, idle: int,
) -> None:  # fmt: skip
    """unary and w of these rows, for classes that were fitted and classes that fall back; row i is column i − start."""
    fitted, count, has_own = len(slots), len(slots) + len(vacated), len(own) > 0
    v, power, beyond = np.empty(16 * count, F), np.empty(16 * count, np.int32), np.empty(16, np.bool_)
    room, room_power = np.empty(0, F), np.empty(0, np.int32)
    for first in range(begin, end, 16):  # exponentials of some rows at once
        last, at = min(first + 16, end), 0
        for i in range(first, last):
            share, reference, above = rows[SHARE + now, i], rows[REFERENCE, i], False
            for a in range(fitted):
                value = log_y[i, classes[a]] + scores[a, i - start] - constant[a]
                if has_own:
                    value -= own[a] * share * u[i, slots[a]]
                unary[i, slots[a]] = value
                v[at + a] = value - reference
                above |= value - reference > LARGEST
            for a in range(len(vacated)):
                value = anchored[i, names[vacated[a]]]
                unary[i, vacated[a]] = value
                v[at + fitted + a] = value - reference
                above |= value - reference > LARGEST
            at += count
            beyond[i - first] = above
        _exp(v, 0, at, power)
        at = 0
        for i in range(first, last):
            rise, change = F(0), F(0)
            for a in range(fitted):
                step = v[at + a] - w[i, slots[a]]
                rise += step
                change += abs(step)
                w[i, slots[a]] = v[at + a]
            for a in range(len(vacated)):
                step = v[at + fitted + a] - w[i, vacated[a]]
                rise += step
                change += abs(step)
                w[i, vacated[a]] = v[at + fitted + a]
            at += count
            rows[TOTAL, i] += rise
            rows[STIRRED, i] += change / max(rows[TOTAL, i], LEAST)
            if beyond[i - first] or rows[TOTAL, i] < LEAST:  # r_i is no longer near the best class's
                if not len(room):
                    room, room_power = np.empty(w.shape[1], F), np.empty(w.shape[1], np.int32)
                _restart(i, unary, w, rows, room, room_power, live, stop, idle)
            if reach[i] > GENTLE:  # e^pull makes much of a small change of w
                rows[STIRRED, i] = F(1)


@compiled
def _pull(
    begin: int, end: int, prior: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows,
    offsets: Rows, columns: Rows, values: Rows, live: int, stop: int, idle: int,
) -> None:  # fmt: skip
    """One z-step: next_ik = w_ik prior_k exp(Σ_j g_ij z_jk), for these rows, and what they are divided by.

    Live classes are the columns from `live` to `stop`, idle ones those before `idle`. All in one function: to call
    another for each row would take as long as its work.
    """
    pull, power = np.empty(u.shape[1], F), np.empty(u.shape[1], np.int32)
    shares, moved, drifted = rows[SHARE + now], rows[MOVED + now], rows[DRIFT + now]
    next_shares, moves, drifts = rows[SHARE + 1 - now], rows[MOVED + 1 - now], rows[DRIFT + 1 - now]
    for i in range(begin, end):
        first, last = offsets[i], offsets[i + 1]
        most, owed = rows[STIRRED, i], rows[OWED, i]
        for e in range(first, last):
            most = max(most, moved[columns[e]])
        for e in range(first, last if idle > 0 else first):
            owed += abs(values[e]) * drifted[columns[e]]
        share, at_idle, strength = shares[i], rows[IDLE, i], reach[i]
        at_rest = most <= AT_REST
        # Are the idle classes to be computed anew?
        stale = idle > 0 and not at_rest and (owed * at_idle * share > AT_REST or strength > HEAVY)
        if rows[AHEAD, i] > F(0) and not stale:  # let both tables have the same
            for c in range(np.uint64(idle)):
                next[i, c] = u[i, c]
            rows[AHEAD, i] = F(0)
        rows[OWED, i] = owed
        if at_rest:
            if moved[i] > F(0):  # else both tables have it
                for c in range(np.uint64(live), np.uint64(stop)):
                    next[i, c] = u[i, c]
            next_shares[i], moves[i], drifts[i] = share, F(0), F(0)
            continue

        total, change, idle_total, idle_change = F(0), F(0), at_idle, F(0)
        for part in range(2 if stale else 1):
            left, right = (np.uint64(live), np.uint64(stop)) if part == 0 else (np.uint64(0), np.uint64(idle))
            odd = (last - first) % 3  # three neighbours at a time: fewer passes
            if odd == 2:
                j, j2 = columns[first], columns[first + 1]
                g, g2 = values[first] * shares[j], values[first + 1] * shares[j2]
                for c in range(left, right):
                    pull[c] = g * u[j, c] + g2 * u[j2, c]
            elif odd == 1:
                j = columns[first]
                g = values[first] * shares[j]
                for c in range(left, right):
                    pull[c] = g * u[j, c]
            else:
                for c in range(left, right):
                    pull[c] = F(0)
            for e in range(first + odd, last, 3):
                j, j2, j3 = columns[e], columns[e + 1], columns[e + 2]
                g, g2 = values[e] * shares[j], values[e + 1] * shares[j2]
                g3 = values[e + 2] * shares[j3]
                for c in range(left, right):
                    pull[c] += g * u[j, c] + g2 * u[j2, c] + g3 * u[j3, c]

            mass, step = F(0), F(0)
            if strength <= GENTLE:  # exp(v) = exp(v/8)^8, with |v/8| ≤ 1/4
                for c in range(left, right):
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
                    mass += p
                    step += abs(p - u[i, c])
                    next[i, c] = p
            elif strength <= HEAVY:
                _exp(pull, left, right, power)
                for c in range(left, right):
                    p = pull[c] * w[i, c] * prior[c]
                    mass += p
                    step += abs(p - u[i, c])
                    next[i, c] = p
            if part == 0:
                total, change = mass, step
            else:
                idle_total, idle_change = mass, step
        if strength > HEAVY:
            told = (prior, unary, u, next, pull, power, live, stop, idle)
            total, change, idle_total, idle_change = _in_logarithms(i, *told)
        if stale:
            rows[OWED, i], rows[AHEAD, i], rows[UNSEEN, i] = F(0), F(1), F(1)
        total += idle_total
        # |u'/U' − u/U| ≤ |u' − u|/U' + u |1/U' − 1/U|, of live and of idle classes
        share_next = F(1) / total
        shift = abs(share_next - share)
        drifts[i] = idle_change * share_next + at_idle * shift
        moves[i] = drifts[i] + change * share_next + abs(F(1) / share - at_idle) * shift
        next_shares[i], rows[IDLE, i], rows[STIRRED, i] = share_next, idle_total, F(0)
        rows[STRAYED, i] += moves[i]


@compiled
def _in_logarithms(
    i: int, prior: Rows, unary: Rows, u: Rows, next: Rows, pull: Rows, power: Rows, live: int, stop: int, idle: int
) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """next_ik ∝ exp(unary_ik + log prior_k + pull_k), of one row: sums and changes of live and of idle classes."""
    top, total, change, idle_total, idle_change = LOWEST, F(0), F(0), F(0), F(0)
    for c in range(idle):
        pull[c] += unary[i, c] + np.log(prior[c])
        top = max(top, pull[c])
    for c in range(live, stop):
        pull[c] += unary[i, c] + np.log(prior[c])
        top = max(top, pull[c])
    for c in range(idle):
        pull[c] -= top
    for c in range(live, stop):
        pull[c] -= top
    _exp(pull, 0, idle, power)
    _exp(pull, live, stop, power)
    for c in range(idle):
        idle_total += pull[c]
        idle_change += abs(pull[c] - u[i, c])
        next[i, c] = pull[c]
    for c in range(live, stop):
        total += pull[c]
        change += abs(pull[c] - u[i, c])
        next[i, c] = pull[c]
    return total, change, idle_total, idle_change


@compiled
def _pulls(
    steps: int, prior: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows,
    offsets: Rows, columns: Rows, values: Rows, live: int, stop: int, idle: int,
) -> None:  # fmt: skip
    """Some z-steps of all rows; after an odd number the last z is in `next`."""
    for _ in range(steps):
        graph = (reach, offsets, columns, values)
        _pull(0, len(u), prior, now, u, next, w, unary, rows, *graph, live, stop, idle)
        u, next, now = next, u, 1 - now


@compiled
def _around(
    steps: int, prior: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows,
    offsets: Rows, columns: Rows, values: Rows, live: int, stop: int, idle: int, classes: Rows, chosen: Rows,
    scores: Rows, constant: Rows, own: Rows, vacated: Rows, log_y: Rows, anchored: Rows, names: Rows, slots: Rows,
    idle_labels: Rows, labels: Rows, fitted_counts: Rows, fitted: Rows, found: Rows, found_classes: Rows, lost: Rows,
    mass: Rows, table: Rows,
) -> tuple[Rows, int, int, int]:  # fmt: skip
    """From one fit to the next: weigh, z-steps, n_k, and the classes to be fitted next, if all that have images live.

    Returns n_k (k), how many have images and are not live, how many are to be fitted and how many fall back.
    """
    fit, ranges = (classes, chosen, scores, constant, own, vacated), (live, stop, idle)
    _weigh(0, len(u), 0, now, *fit, log_y, anchored, names, u, w, unary, rows, reach, *ranges)
    _pulls(steps, prior, now, u, next, w, unary, rows, reach, offsets, columns, values, *ranges)
    if steps % 2:
        u, now = next, 1 - now
    _best(0, len(u), u, rows, names, idle_labels, labels, *ranges)
    counts, _, missing = _tally(labels, slots)
    if missing:
        return counts, missing, 0, 0
    last = (names, live, stop, counts, fitted_counts, fitted)
    return counts, 0, *_changed(0, u, rows[SHARE + now], *last, found, found_classes, lost, mass, table)


@compiled
def _assemble(begin: int, end: int, z: Rows, u: Rows, share: Rows, names: Rows, live: int, stop: int) -> None:
    """z_ik = share_i u_ik: n×k, in the order of the classes."""
    for i in range(begin, end):
        for c in range(z.shape[1]):
            z[i, c] = share[i] * u[i, c]
        for c in range(live if live > 0 else stop, stop):
            z[i, names[c]] = share[i] * u[i, c]


@compiled
def _largest_change(
    u: Rows, share: Rows, before: Rows, share_before: Rows, strayed: Rows, live: int, stop: int, idle: int
) -> float:
    """Of z, among rows that strayed."""
    most = F(0)
    for i in range(len(u)):
        if strayed[i] > F(0):
            for c in range(live, stop):
                most = max(most, abs(share[i] * u[i, c] - share_before[i] * before[i, c]))
            for c in range(idle):
                most = max(most, abs(share[i] * u[i, c] - share_before[i] * before[i, c]))
    return float(most)


@compiled
def _revive(
    counts: Rows, column: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, names: Rows, slots: Rows,
    idle: int,
) -> None:  # fmt: skip
    """Move the classes that have images and are idle to the columns from this one on."""
    for k in range(len(counts)):
        if counts[k] > F(0) and slots[k] < 0:
            names[column], slots[k] = k, column
            for i in range(len(u)):
                u[i, column], next[i, column], w[i, column] = u[i, k], next[i, k], w[i, k]
                unary[i, column] = unary[i, k]
                u[i, k], next[i, k], w[i, k], unary[i, k] = F(0), F(0), F(0), LOWEST
            column += 1
    for i in range(len(u)):
        total = F(0)
        for c in range(idle):
            total += u[i, c]
        rows[IDLE, i], rows[UNSEEN, i] = total, F(1)


@compiled
def _give_back(u: Rows, next: Rows, w: Rows, unary: Rows, fitted: Rows, names: Rows, live: int, stop: int) -> None:
    """Move live classes back to their own columns."""
    for i in range(len(u)):
        for c in range(live, stop):
            k = names[c]
            u[i, k], next[i, k], w[i, k], unary[i, k] = u[i, c], next[i, c], w[i, c], unary[i, c]
            fitted[i, k] = fitted[i, c]


@compiled
def _reach(offsets: Rows, values: Rows) -> Rows:
    """The largest pull there can be on each row, n."""
    reach = np.zeros(len(offsets) - 1, F)
    for i in range(len(reach)):
        for e in range(offsets[i], offsets[i + 1]):
            reach[i] += abs(values[e])
    return reach


@compiled
def _best(
    begin: int, end: int, u: Rows, rows: Rows, names: Rows, idle_labels: Rows, labels: Rows, live: int, stop: int,
    idle: int,
) -> None:  # fmt: skip
    """The best class of the rows that strayed, the first of equals."""
    for i in range(begin, end):
        if rows[STRAYED, i] <= AT_REST:
            continue
        rows[STRAYED, i] = F(0)
        column = _top(i, u, live, stop)
        label, best = names[column], u[i, column]
        if idle > 0:
            if rows[UNSEEN, i] > F(0):
                idle_labels[i] = _top(i, u, 0, idle)
                rows[BEST, i], rows[UNSEEN, i] = u[i, idle_labels[i]], F(0)
            if rows[BEST, i] > best or (rows[BEST, i] == best and idle_labels[i] < label):
                label = idle_labels[i]
        labels[i] = label


@compiled
def _top(i: int, u: Rows, start: int, stop: int) -> int:
    """The column of a row's largest entry. Positive floats are in the order of their bits."""
    bits, most, where = u.view(np.int32), np.int32(-1), start
    for left in range(start, stop, 64):
        here = np.int32(-1)
        for c in range(np.uint64(left), np.uint64(min(left + 64, stop))):
            here = max(here, bits[i, c])
        if here > most:
            most, where = here, left
    while where < stop - 1 and bits[i, where] != most:  # of NaN there is no best
        where += 1
    return where


@compiled
def _sums(u: Rows, share: Rows, start: int, stop: int) -> Rows:
    """Σ_i z_ik of columns from start to stop, of a hundred rows at a time: one long sum would lose digits."""
    n, left, right = len(u), np.uint64(start), np.uint64(stop)
    total, part = np.zeros(stop, F), np.empty(stop, F)
    for top in range(0, n, 100):
        part[:] = F(0)
        for i in range(top, min(top + 100, n)):
            for c in range(left, right):
                part[c] += share[i] * u[i, c]
        for c in range(left, right):
            total[c] += part[c]
    return total


@compiled
def _tally(labels: Rows, slots: Rows) -> tuple[Rows, int, int]:
    """How often each label is there, k; how many classes have any, and how many of these are not live."""
    counts, active, missing = np.zeros(len(slots), F), 0, 0
    for i in range(len(labels)):
        c = labels[i]
        if counts[c] == F(0):
            active += 1
            missing += slots[c] < 0
        counts[c] += F(1)
    return counts, active, missing


@compiled
def _changed(
    start: int, u: Rows, share: Rows, names: Rows, live: int, stop: int, counts: Rows, fitted_counts: Rows,
    fitted: Rows, slots: Rows, classes: Rows, vacated: Rows, mass: Rows, columns: Rows,
) -> tuple[int, int]:  # fmt: skip
    """Classes that have images and are not at rest, with their columns of z from row `start` on and their mass; classes
    that have none any more. Returns how many of each. Row by row, a few classes at a time: as u lies in memory."""
    n, found, lost, remembers = columns.shape[1], 0, 0, len(fitted) > 0
    distance = np.full(stop, F(0) if remembers else F(1))
    for i in range(len(fitted)):
        for c in range(np.uint64(live), np.uint64(stop)):
            distance[c] += abs(share[i] * u[i, c] - fitted[i, c])
    for slot in range(live, stop):
        k = names[slot]
        if counts[k] == F(0):
            if fitted_counts[k] > F(0):
                vacated[lost] = slot
                lost += 1
        elif distance[slot] > CLASS_AT_REST or fitted_counts[k] == F(0) or abs(counts[k] - fitted_counts[k]) > F(0.5):
            slots[found], classes[found] = slot, k
            found += 1
    for first in range(0, found, 8):
        last = min(first + 8, found)
        for i in range(n):
            for a in range(first, last):
                z = share[start + i] * u[start + i, slots[a]]
                columns[a, i] = z
                if remembers:
                    fitted[start + i, slots[a]] = z
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
def _constants(t: Rows, centre: Rows, var0: Rows, cooling: np.float32) -> Rows:
    """½ Σ_d (t_kd − centre_d)² / Σ'_d, over T: k."""
    k, d = t.shape
    constant, scale = np.empty(k, F), cooling / var0
    for j in range(k):
        total = F(0)
        for c in range(d):
            shift = t[j, c] - centre[c]
            total += shift * shift * scale[c]
        constant[j] = F(0.5) * total
    return constant


@compiled
def _linear(phi: Rows, centre: Rows, var0: Rows, cooling: np.float32) -> tuple[Rows, Rows]:
    """(x − centre) / Σ', over T: rows×d, and its product with the centre, rows."""
    n, d = len(phi), len(centre)
    linear, own, scale = np.empty((n, d), F), np.empty(n, F), cooling / var0
    for i in range(n):
        total = F(0)
        for c in range(d):
            v = phi[i, c] * scale[c]
            linear[i, c] = v
            total += v * centre[c]
        own[i] = total
    return linear, own


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
def evidence(log_y: Rows, nearest: Rows) -> tuple[float, float]:
    """What kedge's guard looks at, see kedge.py, for log ŷ (n×k) and the neighbours of each image (n×m)."""
    n, k = log_y.shape
    y, power, labels = np.empty(k, F), np.empty(k, np.int32), np.empty(n, np.int64)
    entropy, agreed = 0.0, 0
    for i in range(n):
        best = 0
        for c in range(k):
            y[c] = log_y[i, c]
        _exp(y, 0, k, power)
        row = F(0)
        for c in range(k):
            row -= y[c] * log_y[i, c]
        for c in range(1, k):
            if log_y[i, c] > log_y[i, best]:
                best = c
        entropy += float(row)
        labels[i] = best
    for i in range(n):
        for q in range(nearest.shape[1]):
            agreed += labels[nearest[i, q]] == labels[i]
    return entropy / n, agreed / nearest.size


@compiled
def recall(
    reliance: np.float32, centre: Rows, classes: Rows, counts: Rows, moments: Rows, mass: Rows, known: Rows, mean: Rows,
    var: Rows,
) -> None:  # fmt: skip
    """`recalled` of kedge.py, in place: moments (a×2d) divided by mass (a), which is 1 then; counts: a."""
    d = len(centre)
    for a in range(len(classes)):
        k = classes[a]
        of_past = min(known[k], reliance * counts[a])
        share = of_past / (counts[a] + of_past)
        scale = (F(1) - share) / mass[a]
        for c in range(d):
            shift = mean[k, c] - centre[c]
            moments[a, c] = moments[a, c] * scale + share * shift
            moments[a, d + c] = moments[a, d + c] * scale + share * (var[k, c] + shift * shift)
        mass[a] = F(1)


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
    _exp(logs, 0, k, power)
    return few, logs


@compiled
def rounds(
    steps: int, trust: np.float32, pseudo: np.float32, counts: Rows, prior: Rows, drifted: Rows, names: Rows,
    slots: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows, offsets: Rows,
    columns: Rows, values: Rows, live: int, stop: int, idle: int,
) -> float:  # fmt: skip
    """Some z-steps, each with the prior (of columns) that n_k (k) of the one before gives, both in place; returns ω.

    drifted: one entry, how far z moved in the idle columns since their n_k were computed.
    """
    few = 0.0
    for _ in range(steps):
        graph = (reach, offsets, columns, values)
        _pull(0, len(u), prior, now, u, next, w, unary, rows, *graph, live, stop, idle)
        u, next, now = next, u, 1 - now
        share = rows[SHARE + now]
        sums = _sums(u, share, live, stop)
        for c in range(live, stop):
            counts[names[c]] = sums[c]
        for i in range(len(u)):
            drifted[0] += rows[DRIFT + now, i]
        if idle > 0 and drifted[0] > CLASS_AT_REST:
            sums, drifted[0] = _sums(u, share, 0, idle), F(0)
            for c in range(idle):
                if slots[c] < 0:
                    counts[c] = sums[c]
        few, by_class = proportions(counts, len(u), trust, pseudo)
        turned, idle_turned = F(0), F(0)  # the largest change, as part of the prior
        for c in range(live, stop):
            v = by_class[names[c]]
            turned = max(turned, abs(v - prior[c]) / prior[c])
            prior[c] = v
        for c in range(idle):
            if slots[c] < 0:
                idle_turned = max(idle_turned, abs(by_class[c] - prior[c]) / prior[c])
            prior[c] = by_class[c]
        for i in range(len(u)):
            rows[STIRRED, i] += turned
            rows[OWED, i] += idle_turned
    return few


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
