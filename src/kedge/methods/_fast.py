"""StatA's solver once more, compiled: the extra `fast` (numba), for float32 on CPUs.

Same equations as stata.py, same result to float32's last digits. Why a second form: a solve of 64 images is some seven
hundred small torch calls, and most of its time is the calls themselves. Here matrix products stay torch's, and compiled
kernels do what is between them:

    weigh    after a fit: w_ik = exp(log ŷ_ik + log p_ik / T − r_i), the part of z that z-steps do not change
    pull     one z-step: u_ik = w_ik exp((G z)_ik), and share_i = 1 / Σ_k u_ik: z_ik = share_i u_ik
    best     the label of each image
    choose   the classes whose images are others than at their last fit, and (gather) their columns of z
    fit      from the moments zᵀφ to the classes' new natural parameters η

What is at rest is left alone. Between z-steps only z changes: an image whose own w and whose neighbours moved by less
than 1e-6 would itself move by little more (rows that others pull strongly are always looked at after a fit). A class
whose column of z moved by less than 1e-5 since its last fit (sum over images) would get nearly the same parameters.
Both are most of the work in later iterations, and leaving it out changes z by some 1e-6, as float32's rounding does.

What hardly changed is not multiplied again. After some iterations few entries of z still move, and a fit takes no
product of matrices: moments change by Σ_i Δz_ik φ_i (renew), and scores η φ_i are computed where they can move z at all
(rescore). How far they can have moved, the Cauchy–Schwarz inequality says, of the change of η. An image and a class so
cost four times what they do in a product, so it is done where a quarter of them or fewer count, and where n×k is not so
large that columns are far from the cache. There is nothing for torch to do then: a single call (around) goes from fit
to fit.

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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..features import TextHead
from ..progress import track
from . import Batch, _kernels, _tables
from ._gaussian import VARIANCE_FLOOR
from ._kernels import AHEAD, ENDLESS, OWED, REFERENCE, SHARE, STIRRED, STRAYED, F, Rows
from ._neighbours import Neighbours


class Graph(NamedTuple):
    """A symmetric n×n matrix as compressed sparse rows: row i has the entries offsets[i] to offsets[i+1]."""

    offsets: Rows
    columns: Rows
    values: Rows


HELD_ROWS = 4096  # of φ that are made once and kept; a larger batch has φ made again in
BLOCK_ROWS = 1024  # rows at a time: near enough to the cache
SMALL_ENTRIES = 1 << 21  # of n×(k + 2d): up to this a solver is kept for the next batch of its size
THREADED_ENTRIES = 1 << 19  # of n×k: with fewer, a second thread costs more than it brings
NEAR = 16  # n×k up to so many times d²: fits without products pay. Beyond, columns are far away or products cheap
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
    done = 0
    for iteration in track(range(iterations), "StatA"):
        if iteration < done:
            continue  # the last round came that far
        anchors = head.unit if rounded and iteration == 0 else None
        counts, fits = solver.round(z_steps, soft, anchors, iterations - iteration)
        done = iteration + fits + 1
        if done > iterations:
            break
        moments, mass = solver.moments(counts)  # M-step, for the active classes
        if solver.at_rest:
            break  # nothing will change any more
        solver.fit(moments, mass, counts)
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

    def __init__(self, n: int, k: int, d: int, most: int, room: int, held: bool, alone: bool) -> None:
        """Tables, with nothing in them; see `of`."""
        self.size, self.room, self.alone = (n, k, d, most, room, held, alone), room, alone
        self.small = held and n * (k + room + 2 * d) <= SMALL_ENTRIES
        # Columns of all tables: the classes, and then room for those that are live while the others are idle
        self.u, self.next, self.w, self.unary = (np.empty((n, k + room), F) for _ in range(4))
        self.anchors, self.before = Table(n, k), np.empty((n, k + room), F)
        self.anchored = self.anchors.array
        # z when a class was last fitted; how far its scores had drifted when that of an image was last computed
        near = n * (k + room) <= NEAR * d * d
        self.fitted = np.zeros((n, k + room) if held or near else (0, 0), F)
        self.seen = np.zeros((n, k + room) if near and alone else (0, 0), F)
        self.names, self.slots = np.empty(k + room, np.uint64), np.empty(k, np.int64)  # class of a column, and reverse
        self.live, self.idle = (0, k), 0  # live classes are in columns from the one to the other, idle ones before idle
        self.labels, self.idle_labels = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.no_prior, self.no_own = np.ones(k + room, F), np.empty(0, F)
        # What is to be fitted, columns and classes; columns that fall back to their anchors; are moments summed anew?
        self.lists = (*(np.empty(k, np.uint64) for _ in range(3)), np.empty(k, np.bool_))
        block = n if held else BLOCK_ROWS
        self.columns, self.scores, self.phi = Table(most, block), Table(most, block), Table(block, 2 * d)
        # Of classes that were fitted: zᵀφ and Σ_i z_ik, η and constant of log p, how far that can have moved a score
        self.moment, self.mass = Table(most, 2 * d), np.empty(most, F)
        self.eta, self.constant, self.moved = Table(most, 2 * d), np.empty(most, F), np.empty(most, F)
        # Of each column: the row of its class in these (−1: none), and how far its scores have drifted
        self.place, self.drift, self.in_order = np.empty(k + room, np.int64), np.zeros(k + room, F), np.arange(most)
        phi_t, self.linear = Table(2 * d, n if held else 0), Table(block, d)
        self.whole = Part(0, n, self.phi.tensor, phi_t.tensor) if held else None

    @classmethod
    def of(cls, batch: Batch, graph: Graph, cooling: float, alpha: float, unit_means: bool, most: int) -> Solver:
        """One for this batch, before its first z-step. cooling: 1/T. most: no more classes are ever fitted at once."""
        n, k, d, held = len(batch.features), batch.head.k, batch.head.d, len(batch.features) <= HELD_ROWS
        room = k // FEW if held and most < k and k >= APART else 0
        size = (n, k, d, min(most, k), room, held, not many(n, k))
        solver: Solver | None = _kept.__dict__.pop("solver", None)
        if solver is None or solver.size != size:
            solver = cls(*size)
        solver.begin(batch, graph, cooling, alpha, unit_means)
        return solver

    def begin(self, batch: Batch, graph: Graph, cooling: float, alpha: float, unit_means: bool) -> None:
        """Every class on its anchor, z = ŷ."""
        self.x = batch.features.contiguous().numpy()  # kernels are compiled for rows without gaps
        self.centre, self.var0, self.spread = _tables.centre(self.x), batch.shared_variance.numpy(), np.zeros(2, F)
        self.cooling, t = F(cooling), batch.head.features.contiguous().numpy()
        # What a fit is made of, beside the moments
        self.model = (t, self.var0, min(alpha, ENDLESS), unit_means, self.cooling, VARIANCE_FLOOR / len(self.var0))
        self.log_y, self.graph = batch.log_zero_shot.contiguous().numpy(), graph
        self.reach = _tables.reach(graph.offsets, graph.values)
        if self.whole:
            by_rows(_tables.phi, self.phi.array, 0, self.x, self.centre, self.phi.array)
            _tables.transpose(self.phi.array, self.whole.phi_t.numpy())
        self.rows, self.now = _kernels.nothing_known(len(self.x)), 0
        self._unite()
        self.chosen = self.classes = self.vacated = self.lists[0][:0]
        self.fitted_counts = np.zeros(len(self.slots), F)
        self.changed: tuple[int, int] | None = None  # how many are in the lists, if they are up to date
        self.fresh: Rows | None = None  # of a fit that is still to be weighed: own (c)
        by_rows(_kernels.exponentials, self.log_y, self.log_y, self.u)
        self.anchor(batch.head)

    def anchor(self, head: TextHead) -> None:
        """Put every class on N(t_k, Σ'), t the head's. Fits are still anchored on the batch's own."""
        constant = _tables.constants(head.features.contiguous().numpy(), self.centre, self.var0, self.cooling)
        for part in self._parts():
            rows, size = slice(part.start, part.stop), part.stop - part.start
            own = _tables.linear(part.phi.numpy(), self.centre, self.var0, self.cooling, self.linear.array)
            out = self.anchors.top(size) if self.whole else self.anchors.tensor[rows]
            torch.mm(self.linear.top(size), head.columns, out=out)
            self.rows[REFERENCE, rows] = own
        by_rows(_kernels.start, self.log_y, self.log_y, constant, self.anchored, self.unary, self.w, self.rows)

    def pull(self, steps: int, prior: Rows | None = None) -> None:
        """z ← softmax_k( log ŷ + log p / T + log prior + G z ), `steps` times (Eq. z_update); prior: k, a new one."""
        self.weigh()
        if prior is None:
            prior = self.no_prior
        else:
            self.rows[STIRRED] = 1
        if self.alone:
            _kernels.pulls(steps, prior, self.now, *self.pulled)
            return self.turn(steps)
        for _ in range(steps):
            by_rows(_kernels.pull, self.log_y, prior, self.now, *self.pulled)
            self.turn(1)

    def round(self, steps: int, soft: bool, anchors: TextHead | None, limit: int) -> tuple[Rows, int]:
        """z-steps, and then n_k (k); anchors: where classes are after the z-steps.

        Where little changes it goes on from there: returns also how many fits it made, up to the limit.
        """
        if len(self.seen) and self.fresh is not None and not soft:
            return self._rounds(steps, limit)
        self.pull(steps)
        if anchors is not None:
            self.anchor(anchors)
        return self.soft_counts() if soft else self.hard_counts(), 0

    def _rounds(self, steps: int, limit: int) -> tuple[Rows, int]:
        """The same in a single call, with the choice of the classes to be fitted, and fits after it."""
        self.weigh()
        known = (self.log_y, self.anchored, self.names, self.slots, self.idle_labels, self.labels)
        last, model = (self.fitted_counts, self.fitted), (self.x, self.centre, self.spread, *self.model)
        tables = (self.moment.array, self.mass, self.eta.array, self.constant, self.moved)
        kept = (*tables, self.place, self.drift, self.seen)
        told: tuple[Any, ...] = (self.no_prior, self.now, self.pulled, known, last, self.lists, model, kept)
        fits, turns, self.fitted_counts, counts, missing, found, lost = _kernels.around(limit, steps, *told)
        self.turn(steps * turns)
        if missing:
            self._revive(counts, missing)
        else:
            self.changed = found, lost
        return counts, fits

    @property
    def pulled(self) -> tuple[Any, ...]:
        """What a z-step works on beside the prior, in the order of `pull`."""
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
        change = _kernels.largest_change(self.u, shares, *told)
        spare = self.next.shape == self.log_y.shape and not self.small  # its memory is not needed any more
        z = self.next if spare else np.empty_like(self.log_y)
        by_rows(_kernels.assemble, z, z, self.u, shares, self.names, *self.live)
        if self.small:
            del self.x, self.model, self.log_y, self.graph  # what is not its own
            _kept.solver = self
        return torch.from_numpy(z), change

    def soft_counts(self) -> Rows:
        """Σ_i z_ik, k, while all classes are live."""
        return _kernels.sums(self.u, self.rows[SHARE + self.now], *self.live)

    def hard_counts(self) -> Rows:
        """How many images have class k as their best, k. Classes that have any become live."""
        told = (self.u, self.rows, self.names, self.idle_labels, self.labels, *self.live, self.idle)
        by_rows(_kernels.best, self.log_y, *told)
        counts, active, missing = _kernels.tally(self.labels, self.slots)
        self.enliven(counts, active, missing)
        return counts

    def enliven(self, counts: Rows, active: int, missing: int) -> None:
        """Let all classes live that have images in `counts` (k): so many, of which some are idle."""
        k = len(counts)
        room = len(self.names) - k
        if not self.idle and 0 < active <= room and not self.fitted_counts.any():  # all are on their anchors still
            self.live, self.idle = (k, k), k
            self.slots.fill(-1)
            self.rows[OWED], self.rows[AHEAD] = ENDLESS, 1
            missing = active
        if missing:
            self._revive(counts, missing)

    def _revive(self, counts: Rows, missing: int) -> None:
        """Make idle classes live that have images in `counts` (k)."""
        start, stop = self.live
        if stop + missing > len(self.names):
            _kernels.give_back(self.u, self.next, self.w, self.unary, self.fitted, self.names, *self.live)
            return self._unite()
        self.live = start, stop + missing
        told = (self.u, self.next, self.w, self.unary, self.rows, self.names, self.slots, self.idle)
        _kernels.revive(counts, stop, *told)

    def _unite(self) -> None:
        """Let all classes be live, in their order."""
        self.live, self.idle = (0, len(self.slots)), 0
        self.place.fill(-1)
        _kernels.unite(self.names, self.slots, self.rows, self.now)

    def moments(self, counts: Rows, *, resting: bool = False) -> tuple[Rows, Rows]:
        """zᵀφ (c×2d) and Σ_i z_ik (c) of the classes to be fitted, `self.classes`, which have n_k > 0 in `counts` (k).

        resting: also of those whose z is what it was when they were last fitted.
        """
        chosen, classes, vacated, _ = self.lists
        share, fitted = self.rows[SHARE + self.now], self.fitted[:0] if resting else self.fitted
        if self.changed is None:
            told: tuple[Any, ...] = (self.names, *self.live, counts, self.fitted_counts, fitted, *self.lists)
            _, found, lost = _kernels.choose(self.u, share, *(*told, self.place, 0, self.cooling))
        else:
            found, lost = self.changed
        for part in self._parts():
            size = part.stop - part.start
            columns = self.columns if size == self.columns.array.shape[1] else Table(len(self.columns.array), size)
            rows = (part.start, chosen[:found], fitted, self.place, self.drift)
            _kernels.gather(self.u, share, *rows, columns.array, self.mass)
            out = self.moment.top(found)
            torch.addmm(out, columns.top(found), part.phi, beta=1 if part.start else 0, out=out)
        self.fitted_counts, self.changed = counts, None
        self.chosen, self.classes, self.vacated = chosen[:found], classes[:found], vacated[:lost]
        return self.moment.array[:found], self.mass

    @property
    def at_rest(self) -> bool:
        """Is every class what it was when it was fitted last?"""
        return not (self.classes.size or self.vacated.size)

    def fit(self, moments: Rows, mass: Rows, counts: Rows, own: Rows | None = None) -> None:
        """Fit `self.classes` to moments (c×2d) and mass (c), n_k in `counts` (k); log p / T is less own (c) · z."""
        found = len(self.classes)
        told = (moments, mass, counts, self.centre, *self.model)
        _kernels.fit(self.classes, self.in_order, *told, self.eta.array, self.constant, self.moved, self.spread)
        self.fresh = self.no_own if own is None else own
        if self.whole:
            torch.mm(self.eta.top(found), self.whole.phi_t, out=self.scores.top(found))

    def weigh(self) -> None:
        """After a fit: log ŷ + log p / T, and w."""
        if self.fresh is None:
            return
        found = len(self.classes)
        tables = (self.seen, self.u, self.w, self.unary, self.rows, self.reach, *self.live, self.idle)
        for part in self._parts():
            scores = self.scores
            if not self.whole:
                size = part.stop - part.start
                scores = scores if size == scores.array.shape[1] else Table(found, size)
                torch.mm(self.eta.top(found), part.phi_t, out=scores.top(found))
            fitted = (self.classes, self.chosen, scores.array, self.constant, self.fresh, self.vacated)
            told = (part.start, self.now, *fitted, self.log_y, self.anchored, self.names, *tables)
            by_rows(_kernels.weigh, self.log_y, *told, start=part.start, stop=part.stop)
        self.fresh = None

    def _parts(self) -> Iterable[Part]:
        """All of x, in one part or (if it is large) in blocks made when they are needed."""
        return (self.whole,) if self.whole else self._blocks()

    def _blocks(self) -> Iterator[Part]:
        for start in range(0, len(self.x), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(self.x))
            by_rows(_tables.phi, self.phi.array, start, self.x, self.centre, self.phi.array, stop=stop - start)
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


def symmetric_graph(nearest: Neighbours, weight: float) -> Graph:
    """weight · (W + Wᵀ), W having the similarity of each image's nearest."""
    return Graph(*_tables.symmetric(nearest.indices.numpy(), nearest.similarity.numpy(), F(weight)))
