"""StatA's solver once more, compiled: the extra `fast` (numba), for float32 on CPUs.

Same equations as stata.py, same result to float32's last digits. Why a second form: a solve of 64 images is some seven
hundred small torch calls, and most of its time is the calls themselves. Here a kernel makes each step,

    pull     one z-step: u_ik = w_ik exp((G z)_ik), and share_i = 1 / Σ_k u_ik: z_ik = share_i u_ik
    best     the label of each image
    choose   the classes whose images are others than at their last fit
    renew    their moments zᵀφ, φ = [x, x²]
    fit      from moments to the classes' new natural parameters η
    rescore  w_ik = exp(log ŷ_ik + log p_ik / T − r_i), the part of z that z-steps do not change, from scores η φ_i

and one call (iterate) makes all of them but the first z-steps. Which of this can be left out?

What is at rest. Between z-steps only z changes: an image whose own w and whose neighbours' pull moved by less than 1e-6
since it was last computed would itself move by little more (rows that others pull strongly are always looked at after a
fit). A class whose column of z moved by less than 1e-5 since its last fit (sum over images) would get nearly the same
parameters. Both are most of the work in later iterations, and leaving it out changes z by some 1e-6, as float32's
rounding does.

What hardly changed. Moments change by Σ_i Δz_ik φ_i, and few entries of z move much; half of them are next to nothing
from the first fit on. Scores are computed where they can move z at all: how far they can have moved, the Cauchy–Schwarz
inequality says, of the change of η. An image and a class so take about as long as in a product of matrices, 25 ns or
so at d = 512, and there are a third as many of them.

Live and idle classes. Of a thousand classes a small batch has some thirty, and only their w ever changes. The others
are idle: of an image's idle classes, u changes only as its neighbours' idle classes do. These hold little and move
less, so that after the second iteration idle columns are hardly ever computed: share_i says for all of them at once how
they shrink or grow. An image's are computed anew when its neighbours' idle classes have moved so far that its own z
would, by 1e-6. Live classes have columns of their own behind the others; a class becomes live when it first is the
label of an image. With few classes, or if images have many of them, all are live.

Order. Neighbours mostly have the same label. If tables are larger than the cache, images of one label are put side by
side, and z-steps find the neighbours' rows there.

Blocks. Of more images or classes, φ is never held as a whole: rows are taken in blocks, moments and scores are products
of matrices, and only class statistics are carried from one block to the next. Kernels release the interpreter's lock
and take a range of rows, so that threads can share a large batch; how many, torch.set_num_threads says.

What was tried and did not pay: keeping only classes whose z can matter (at logit scale 100 every image has a hundred,
and lists cost more than whole vectors save); solving many batches together in padded arrays (15 % at best, for twice
the code: to call a kernel takes 1 µs); BLAS from within kernels (half the speed of torch's for few classes); one loop
over the neighbours, the exponential and the weights of a z-step (more arrays in a loop, slower than three loops).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...features.text_head import TextHead
from ...progress import track
from ..contract import Batch
from ..solve import _kernels, _tables
from ._kernels import AHEAD, ENDLESS, OWED, REFERENCE, SHARE, STIRRED, STRAYED, F, Rows
from .gaussian import VARIANCE_FLOOR, anchor_variance
from .neighbours import Neighbours


class Graph(NamedTuple):
    """A symmetric n×n matrix as compressed sparse rows: row i has the entries offsets[i] to offsets[i+1]."""

    offsets: Rows
    columns: Rows
    values: Rows


BLOCK_ROWS = 1024  # of φ, at a time: near enough to the cache
SMALL_ENTRIES = 1 << 21  # of n×(k + 2d): up to this a solver is kept for the next batch of its size
CACHED = (
    1 << 18
)  # entries of a table that are in the cache. If there are more, images of one label are put side by side
THREADED_ENTRIES = 1 << 19  # of n×k: with fewer, a second thread costs more than it brings
NEAR = 1 << 23  # of n×k, and twice that of n×d: up to this, fits without products are faster than threads
FEW, APART = 4, 256  # if images have at most every fourth of so many classes, the others are set apart


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
    solver = Solver.of(batch, graph, 1 / temperature, alpha, unit_means, head.k if soft else len(batch.features))
    # After the first z-steps an empty class is at unit(t_k), β_k = 0; rounded input is only nearly that.
    rounded = unit_means and head.unit is not head
    if solver.room and not (soft or rounded):
        solver.hard_counts()  # zero-shot's: most classes are idle from the first z-step on
    if iterations == 0:
        solver.mark()
        solver.pull(z_steps)
        return solver.result()
    solver.pull(z_steps)
    if rounded:
        solver.anchor(head.unit)
    if solver.near:
        if solver.room and not (soft or solver.idle):
            solver.hard_counts()
        solver.iterate(iterations, z_steps, soft)
        return solver.result()
    for iteration in track(range(iterations), "StatA"):
        counts = solver.soft_counts() if soft else solver.hard_counts()
        solver.fit(*solver.moments(counts), counts)  # M-step, for the active classes
        if iteration == iterations - 1:
            solver.mark()
        solver.pull(z_steps)
    return solver.result()


class Table:
    """The same memory for kernels and for matrix products.

    It is torch's: where an array begins in memory decides how a product is rounded, and torch's always begin alike.
    """

    def __init__(self, rows: int, columns: int) -> None:
        # A tensor made in inference mode can not be written to outside of it, and solvers are kept.
        with torch.inference_mode(False):
            self.tensor = torch.empty(rows, columns)
        self.array = self.tensor.numpy()
        self.tops: dict[int, Tensor] = {}

    def top(self, rows: int) -> Tensor:
        """The first rows. Kept, as to cut a tensor takes as long as a small kernel."""
        if rows not in self.tops:
            self.tops[rows] = self.tensor[:rows]
        return self.tops[rows]


class Solver:
    """Assignments z (n×k) and the classes fitted to them, for StatA and methods like it.

    In a small solve every call from Python counts: whatever can be made once, is. Even the solver: a small one is kept
    for the next batch of the same size.
    """

    def __init__(self, n: int, k: int, d: int, most: int, room: int, near: bool) -> None:
        """Tables, with nothing in them; see `of`."""
        self.size, self.room, self.near = (n, k, d, most, room, near), room, near
        self.small = near and n * (k + room + 2 * d) <= SMALL_ENTRIES
        # Columns of all tables: the classes, and then room for those that are live while the others are idle
        self.u, self.next, self.w, self.unary = (np.empty((n, k + room), F) for _ in range(4))
        self.anchors, self.before = Table(n, k), (np.empty((n, k + room), F), np.empty(n, F))
        self.anchored = self.anchors.array
        self.names, self.slots = np.empty(k + room, np.uint64), np.empty(k, np.int64)  # class of a column, and reverse
        self.live, self.idle = (0, k), 0  # live classes are in columns from the one to the other, idle ones before idle
        self.in_turn = np.arange(n)  # images in the order they are given
        self.labels = np.zeros(n, np.int64)
        self.no_prior, self.no_own = np.ones(k + room, F), np.empty(0, F)
        # What is to be fitted, columns and classes; columns that fall back to their anchors; are moments summed anew?
        self.lists = (*(np.empty(k, np.uint64) for _ in range(3)), np.empty(k, np.bool_))
        # Of classes to be fitted: zᵀφ and Σ_i z_ik, η and constant of log p, how far that can have moved a score
        self.moment, self.mass, self.first_rows = Table(most, 2 * d), np.empty(most, F), np.arange(most)
        self.eta, self.constant, self.moved = Table(most, 2 * d), np.empty(most, F), np.empty(most, F)
        # Where all is near, x − centre; elsewhere only blocks of z and φ. And what else is made of rows of x
        held, block = (n, 0) if near else (0, BLOCK_ROWS)
        self.y, self.columns, self.phi = Table(held, d), Table(most, block), Table(block, 2 * d)
        self.scores, self.linear = Table(most, held + block), Table(held + block, d)
        # Where all is near: zᵀφ and Σ_i z_ik that are kept up to date, and in which of their rows a class is (−1: none)
        self.sums, self.masses = Table(most if near else 0, 2 * d), np.empty(most, F)
        self.place, self.places = np.empty(k + room, np.int64), np.empty(most, np.int64)
        # How far a class's scores have drifted, and had when that of an image was computed; z when it was fitted
        self.drift, self.seen, self.fitted = np.zeros(k + room, F), *(np.zeros((held, k + room), F) for _ in range(2))

    @classmethod
    def of(cls, batch: Batch, graph: Graph, cooling: float, alpha: float, unit_means: bool, most: int) -> Solver:
        """One for this batch, before its first z-step. cooling: 1/T. most: no more classes are ever fitted at once."""
        n, k, d = len(batch.features), batch.head.k, batch.head.d
        near = is_near(n, k, d)
        room = k // FEW if near and most < k and k >= APART else 0
        size = (n, k, d, min(most, k), room, near)
        solver: Solver | None = _kept.__dict__.pop("solver", None)
        if solver is None or solver.size != size:
            solver = cls(*size)
        solver.begin(batch, graph, cooling, alpha, unit_means)
        return solver

    def begin(self, batch: Batch, graph: Graph, cooling: float, alpha: float, unit_means: bool) -> None:
        """Every class on its anchor, z = ŷ."""
        self.x = batch.features.contiguous().numpy()  # kernels are compiled for rows without gaps
        self.centre, self.var0, self.spread = _tables.centre(self.x), anchor_variance(batch).numpy(), np.zeros(2, F)
        self.cooling, t = F(cooling), batch.head.features.contiguous().numpy()
        # What a fit is made of, beside the moments
        settings = (min(alpha, ENDLESS), unit_means, self.cooling, VARIANCE_FLOOR / len(self.var0))
        self.model = (self.centre, t, self.var0, *settings)
        self.log_y, self.graph, self.order = batch.log_zero_shot.contiguous().numpy(), graph, self.in_turn
        if self.near and self.log_y.size > CACHED:
            self.order = np.argsort(batch.log_zero_shot.argmax(dim=1).numpy(), kind="stable")
            self.log_y, self.graph = self.log_y[self.order], in_order(graph, self.order)
        self.reach = _tables.reach(self.graph.offsets, self.graph.values)
        if self.near:
            _tables.centred(self.x, self.order, self.centre, self.y.array, self.spread)
        self.rows, self.now = _kernels.nothing_known(len(self.x)), 0
        self.live, self.idle = (0, len(self.slots)), 0
        self.place.fill(-1)
        _kernels.unite(self.names, self.slots, self.rows, self.now)
        self.chosen = self.classes = self.vacated = self.lists[0][:0]
        self.fitted_counts = np.zeros(len(self.slots), F)
        self.fresh: Rows | None = None  # of a fit that is still to be weighed: own (c)
        by_rows(_kernels.exponentials, self.log_y, self.log_y, self.u)
        self.anchor(batch.head)

    def anchor(self, head: TextHead) -> None:
        """Put every class on N(t_k, Σ'), t the head's. Fits are still anchored on the batch's own."""
        constant = _tables.constants(head.features.contiguous().numpy(), self.centre, self.var0, self.cooling)
        for start, stop, y in self._blocks():  # or φ, which begins with it
            own = _tables.linear(y.numpy(), self.centre, self.var0, self.cooling, self.linear.array)
            out = self.anchors.tensor if self.near else self.anchors.tensor[start:stop]
            torch.mm(self.linear.top(stop - start), head.columns, out=out)
            self.rows[REFERENCE, start:stop] = own
        by_rows(_kernels.start, self.log_y, self.log_y, constant, self.anchored, self.unary, self.w, self.rows)

    def pull(self, steps: int, prior: Rows | None = None) -> None:
        """z ← softmax_k( log ŷ + log p / T + log prior + G z ), `steps` times (Eq. z_update); prior: k, a new one."""
        self.weigh()
        if prior is None:
            prior = self.no_prior
        else:
            self.rows[STIRRED] = 1
        if self.near:
            _kernels.pulls(steps, prior, self.now, *self.pulled)
            return self.turn((self.now + steps) % 2)
        for _ in range(steps):
            by_rows(_kernels.pull, self.log_y, prior, self.now, *self.pulled)
            self.turn(1 - self.now)

    def iterate(self, iterations: int, steps: int, soft: bool) -> None:
        """Fits, and z-steps after each: all that is left to do after the first z-steps, of few images."""
        known = (self.log_y, self.y.array, self.anchored, self.names, self.slots, self.labels, self.cooling)
        classes = (self.eta.array, self.constant, self.moved, self.spread, self.place, self.drift)
        kept = (self.sums.array, self.masses, *classes, self.fitted, self.seen)
        told: tuple[Any, ...] = (self.pulled, known, (*self.lists, self.places), self.model, kept, self.before)
        now, live, stop, self.idle = _kernels.iterate(iterations, steps, soft, self.now, self.no_prior, *told)
        self.live = live, stop
        self.turn(now)

    @property
    def pulled(self) -> tuple[Any, ...]:
        """What a z-step works on beside the prior, in the order of `pull`."""
        graph = (self.reach, *self.graph)
        return (self.u, self.next, self.w, self.unary, self.rows, graph, *self.live, self.idle)

    def turn(self, now: int) -> None:
        """After z-steps: each has left its z in `next`, and `now` changed."""
        if now != self.now:
            self.u, self.next, self.now = self.next, self.u, now

    def mark(self) -> None:
        """Before the last z-steps: `result` tells how far they went."""
        _kernels.mark(self.u, self.rows, self.now, *self.live, self.idle, *self.before)

    def result(self) -> tuple[Tensor, float]:
        """z (n×k), and the largest change of an entry since `mark`. The solver must not be used any more."""
        shares = self.rows[SHARE + self.now]
        told = (*self.before, self.rows[STRAYED], *self.live, self.idle)
        change = _kernels.largest_change(self.u, shares, *told)
        spare = self.next.shape == self.log_y.shape and not self.small  # its memory is not needed any more
        z = self.next if spare else np.empty_like(self.log_y)
        by_rows(_kernels.assemble, z, z, self.order, self.u, shares, self.names, *self.live)
        if self.small:
            del self.x, self.var0, self.model, self.log_y, self.graph  # what is not its own
            _kept.solver = self
        return torch.from_numpy(z), change

    def soft_counts(self) -> Rows:
        """Σ_i z_ik, k, while all classes are live."""
        return _kernels.sums(self.u, self.rows[SHARE + self.now], *self.live)

    def hard_counts(self) -> Rows:
        """How many images have class k as their best, k. Classes that have any become live."""
        told = (self.u, self.rows, self.names, self.labels, *self.live, self.idle)
        by_rows(_kernels.best, self.log_y, *told)
        counts, active, missing = _kernels.tally(self.labels, self.slots)
        self.enliven(counts, active, missing)
        return counts

    def enliven(self, counts: Rows, active: int, missing: int) -> None:
        """Let all classes live that have images in `counts` (k): so many, of which some are idle."""
        k = len(counts)
        if not self.idle and 0 < active <= self.room and not self.fitted_counts.any():  # all are on their anchors still
            self.live, self.idle = (k, k), k
            self.slots.fill(-1)
            self.rows[OWED], self.rows[AHEAD] = ENDLESS, 1
            missing = active
        if missing:
            tables = (self.u, self.next, self.w, self.unary, self.rows, *self.live, self.idle)
            told = (self.fitted, self.names, self.slots, self.place, self.now, *tables)
            live, stop, self.idle = _kernels.enliven(counts, missing, *told)
            self.live = live, stop

    def moments(self, counts: Rows) -> tuple[Rows, Rows]:
        """zᵀφ (c×2d) and Σ_i z_ik (c) of the classes to be fitted, `self.classes`: all with n_k > 0 in `counts` (k)."""
        chosen, classes, vacated, anew = self.lists
        share, all_of_them = self.rows[SHARE + self.now], F(-1)
        told = (self.names, *self.live, counts, self.fitted_counts, self.fitted, all_of_them, self.cooling, self.place)
        found, lost = _kernels.choose(self.u, share, *told, *self.lists)
        self.chosen, self.classes, self.vacated = chosen[:found], classes[:found], vacated[:lost]
        self.fitted_counts = counts
        if self.near:
            tables = (self.u, share, self.fitted, self.y.array, self.cooling, self.sums.array, self.masses)
            places = (self.place, self.drift, self.places)
            _kernels.renew(self.chosen, self.classes, anew, counts, *tables, *places)
            np.take(self.sums.array, self.places[:found], axis=0, out=self.moment.array[:found])
            np.take(self.masses, self.places[:found], out=self.mass[:found])
        else:
            out = self.moment.top(found)
            for start, stop, phi in self._blocks():
                columns = self._wide(self.columns, stop - start)
                _kernels.gather(self.u, share, start, self.chosen, columns.array, self.mass)
                torch.addmm(out, columns.top(found), phi, beta=1 if start else 0, out=out)
        return self.moment.array[:found], self.mass

    def fit(self, moments: Rows, mass: Rows, counts: Rows, own: Rows | None = None) -> None:
        """Fit `self.classes` to moments (c×2d) and mass (c), n_k in `counts` (k); log p / T is less own (c) · z."""
        told = (moments, mass, counts, self.model)
        _kernels.fit(self.classes, self.first_rows, *told, self.eta.array, self.constant, self.moved, self.spread)
        self.fresh = self.no_own if own is None else own

    def weigh(self) -> None:
        """After a fit: log ŷ + log p / T, and w."""
        if self.fresh is None:
            return
        found = len(self.classes)
        tables = (self.u, self.w, self.unary, self.rows, self.reach, *self.live, self.idle)
        for start, stop, phi in self._blocks():
            scores = self._wide(self.scores, stop - start)
            if self.near:
                _kernels.all_scores(self.y.array, self.eta.array[:found], scores.array)
            else:
                torch.mm(self.eta.top(found), phi.T, out=scores.top(found))
            fitted = (self.classes, self.chosen, scores.array, self.constant, self.fresh, self.vacated)
            told = (start, self.now, *fitted, self.log_y, self.anchored, self.names, *tables)
            by_rows(_kernels.weigh, self.log_y, *told, start=start, stop=stop)
        self.fresh = None

    def _blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """φ = [x − centre, (x − centre)²] (rows×2d), see _gaussian.py, of rows start to stop: made when needed.

        Where all is near, x − centre (n×d) alone, which is kept.
        """
        if self.near:
            yield 0, len(self.x), self.y.tensor
            return
        for start in range(0, len(self.x), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(self.x))
            by_rows(_tables.phi, self.phi.array, start, self.x, self.centre, self.phi.array, stop=stop - start)
            yield start, stop, self.phi.top(stop - start)

    @staticmethod
    def _wide(table: Table, size: int) -> Table:
        """A table of so many columns: this one, but for the last block."""
        return table if size == table.array.shape[1] else Table(len(table.array), size)


_kept = threading.local()  # .solver: the last small one


def is_near(n: int, k: int, d: int) -> bool:
    """Are images and classes so few that x − centre and zᵀφ are kept, and a fit takes no product of matrices?"""
    return n * k <= NEAR and n * d <= 2 * NEAR


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


def symmetric_graph(nearest: Neighbours, weight: float) -> Graph:
    """weight · (W + Wᵀ), W having the similarity of each image's nearest."""
    return Graph(*_tables.symmetric(nearest.indices.numpy(), nearest.similarity.numpy(), F(weight)))


def in_order(graph: Graph, order: Rows) -> Graph:
    """The same graph of images in another order (n)."""
    place, counts = np.empty(len(order), graph.columns.dtype), np.diff(graph.offsets)[order]
    place[order] = np.arange(len(order))
    offsets = np.concatenate([graph.offsets[:1], np.cumsum(counts)])
    entries = np.repeat(graph.offsets[order] - offsets[:-1], counts) + np.arange(len(graph.columns))
    return Graph(offsets, place[graph.columns[entries]], graph.values[entries])
