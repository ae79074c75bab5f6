"""StatA's solver once more, compiled: the extra `fast` (numba), for float32 on CPUs.

Same equations as stata.py, same result to float32's last digits. Why a second form: a solve of 64 images is some seven
hundred small torch calls, and most of its time is the calls themselves. Here matrix products stay torch's, and compiled
kernels do what is between them:

    weigh    once per iteration: w_ik = exp(log ŷ_ik + log p_ik / T − max), the part of z that z-steps do not change
    pull     one z-step: z_ik ∝ w_ik exp((G z)_ik)
    fit      from the moments zᵀφ to the classes' new natural parameters, in one pass
    nearest  the best entries of each row of a block of similarities

Rows at rest. Between z-steps only z changes, so an image whose neighbours moved by less than 1e-7 would move by less
than that itself: it is left where it is. That is every second row.

Blocks. φ = [x, x²] of a large batch is never held as a whole: rows are taken in blocks, and only class statistics are
carried from one to the next. Kernels release the interpreter's lock and take a range of rows, so that threads can share
a large batch; how many, torch.set_num_threads says.

What was tried and did not pay: keeping only classes whose z can matter (at logit scale 100 a quarter of them can, and
lists cost more than whole vectors save); solving many batches together in padded arrays (15 % faster, twice the code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import is_unit, unit
from ..progress import track
from ._gaussian import VARIANCE_FLOOR, floored
from ._graph import BLOCK_ENTRIES

Rows = NDArray[Any]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


class Graph(NamedTuple):
    """A symmetric n×n matrix as compressed sparse rows: row i has the entries offsets[i] to offsets[i+1]."""

    offsets: Rows
    columns: Rows
    values: Rows


F = np.float32
AT_REST = F(1e-7)  # a row of z that moved by less (sum of changes) moves nobody else
BLOCK_ROWS = 8192  # of φ held at once
NEIGHBOUR_ROWS = 512  # of x xᵀ looked at together
THREADED_ENTRIES = 1 << 19  # of n×k: with fewer, a second thread costs more than it brings
SMALLEST = F(-69.0)  # e to this is 1e-30: far below float32's 1e-7 of a sum, far above its denormals, which are slow
HEAVY = F(30.0)  # rows of G that sum to more (hubs, a large λ) are done in logarithms: e^88 is all float32 holds
LOWEST, ENDLESS = F(-3e38), 1e30  # in place of infinities, which fastmath rules out
LOG_LANES, LOG_FACTORS = 16, 32  # ratios of variances are within 1e±9, so 32 of them multiplied are within float64
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)


def solve(
    x: Tensor,
    t: Tensor,
    log_y: Tensor,
    *,
    alpha: float,
    soft: bool,
    temperature: float,
    neighbours: int,
    laplacian: float,
    unit_means: bool,
    iterations: int,
    z_steps: int,
) -> tuple[Tensor, Tensor]:
    """z (n×k) and the z of an iteration before, for x (n×d), t (k×d) and log ŷ (n×k)."""
    t, log_y = t.contiguous(), log_y.contiguous()  # kernels are compiled for rows without gaps
    parts = Parts(x)
    nearest, similarity = nearest_neighbours(x, neighbours)
    z = Assignments(log_y, symmetric_graph(nearest, similarity * (laplacian / (2 * neighbours))))
    var0 = parts.shared_variance(z.tensor, t)  # Eq. parameter-initialization
    anchored = parts.anchored(log_y, t, var0, 1 / temperature)
    active, scores = np.empty(0, np.int64), torch.empty(0, len(x))
    for iteration in track(range(iterations), "StatA"):
        z.weigh(anchored, active, scores)
        z.pull(z_steps)

        # M-step, for the active classes
        counts = z.tensor.sum(dim=0).numpy() if soft else _hard_counts(z.array)
        active = counts.nonzero()[0]
        z_a = z.tensor.index_select(1, torch.from_numpy(active))
        mass, t_a = z_a.sum(dim=0), t.index_select(0, torch.from_numpy(active))
        moments = parts.moments(z_a)
        scores = parts.fitted(moments, mass, counts[active], t_a, var0, alpha, unit_means, 1 / temperature)
        if iteration == 0 and unit_means and not is_unit(t):
            # From here on an empty class is at unit(t_k), β_k = 0; rounded input is only nearly that.
            anchored = parts.anchored(log_y, unit(t), var0, 1 / temperature)

    before = z.tensor.clone()
    z.weigh(anchored, active, scores)
    z.pull(z_steps)
    return z.tensor, before


class Parts:
    """The rows of x (n×d) as φ = [x − centre, (x − centre)²], see _gaussian.py; of a large batch in blocks."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.centre = x, x.mean(dim=0)
        self.whole = self._phi(slice(None)) if len(x) <= BLOCK_ROWS else None

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, their φ (rows×2d) and its transpose, which is faster for a product with few classes."""
        if self.whole:
            yield self.whole
        else:
            for start in range(0, len(self.x), BLOCK_ROWS):
                yield self._phi(slice(start, start + BLOCK_ROWS))

    def _phi(self, rows: slice) -> tuple[slice, Tensor, Tensor]:
        x = self.x[rows] - self.centre
        phi = torch.cat([x, x * x], dim=1)
        return rows, phi, phi.T.contiguous() if len(self.x) <= BLOCK_ROWS else phi.T

    def shared_variance(self, y: Tensor, t: Tensor) -> Tensor:
        """Σ' = Σ_ik y_ik (x_i − t_k)² / n, d; long sums in float64."""
        d = len(self.centre)
        total = torch.from_numpy(_weighted_squares(t.numpy(), self.centre.numpy(), y.sum(dim=0).numpy()))
        for rows, phi, _ in self:
            x, x2 = phi[:, :d], phi[:, d:]
            of_class = (y[rows] @ t).sub_(self.centre)
            total += torch.addcmul(x2, x, of_class, value=-2).sum(dim=0, dtype=torch.float64)
        return floored((total / len(self.x)).float())

    def anchored(self, log_y: Tensor, t: Tensor, var0: Tensor, cooling: float) -> Tensor:
        """log ŷ + cooling · log p, n×k, for classes on their anchors N(t_k, Σ'); cooling is 1/T."""
        scaled, constant = _natural(t.numpy(), self.centre.numpy(), var0.numpy(), F(cooling))
        mean = torch.from_numpy(scaled).T
        out = torch.empty_like(log_y)
        for rows, phi, _ in self:
            torch.addmm(log_y[rows], phi[:, : len(mean)], mean, out=out[rows])
        return out.sub_(torch.from_numpy(constant))

    def moments(self, z: Tensor) -> Tensor:
        """zᵀ φ, a×2d, for the active columns of z (n×a)."""
        total, *more = (z[rows].T @ phi for rows, phi, _ in self)
        for block in more:
            total += block
        return total

    def fitted(
        self, moments: Tensor, mass: Tensor, counts: Rows, t: Tensor, var0: Tensor, alpha: float, unit_means: bool,
        cooling: float,
    ) -> Tensor:  # fmt: skip
        """The M-step, and then cooling · log p, a×n, from zᵀφ (a×2d), Σ_i z (a), n_k behind β (a), anchors t (a×d)."""
        eta, constant = torch.empty_like(moments), torch.empty(len(t))
        floor = F(VARIANCE_FLOOR / len(var0))
        _fit(
            moments.numpy(), mass.numpy(), counts, t.numpy(), self.centre.numpy(), var0.numpy(),
            F(min(alpha, ENDLESS)), unit_means, F(cooling), floor, eta.numpy(), constant.numpy(),
        )  # fmt: skip
        out = torch.empty(len(eta), len(self.x))
        for rows, _, phi_t in self:
            out[:, rows] = eta @ phi_t
        return out.sub_(constant[:, None])


class Assignments:
    """z (n×k) and its z-steps."""

    def __init__(self, log_y: Tensor, graph: Graph) -> None:
        self.tensor, self.log_y, self.graph = log_y.exp(), log_y.numpy(), graph
        self.array, self.heavy = self.tensor.numpy(), _heavy(graph.offsets, graph.values)
        self.next, self.w = np.empty_like(self.array), np.empty_like(self.array)
        self.moved, self.moves = np.empty(len(log_y), F), np.empty(len(log_y), F)

    def weigh(self, anchored: Tensor, active: Rows, scores: Tensor) -> None:
        """w ∝ exp(log ŷ + log p / T): as `anchored` (n×k), but for the active classes (a) from their `scores` (a×n)."""
        ceiling = anchored.amax(dim=1).numpy()
        by_rows(_weigh, self.array, anchored.numpy(), ceiling, self.log_y, active, scores.numpy(), self.heavy, self.w)

    def pull(self, steps: int, prior: Rows | None = None) -> Tensor:
        """z ← softmax_k( log w + log prior + G z ), `steps` times, Eq. z_update; with a prior (k) one at a time."""
        if prior is None:
            prior = np.ones(self.array.shape[1], F)
        for step in range(steps):
            buffers = (self.array, self.next, self.moved, self.moves)
            by_rows(_pull, self.array, step == 0, self.w, prior, self.heavy, *self.graph, *buffers)
            self.array, self.next, self.moved, self.moves = self.next, self.array, self.moves, self.moved
        self.tensor = torch.from_numpy(self.array)
        return self.tensor


def by_rows(kernel: Callable[..., None], table: Rows, *arguments: Any) -> None:
    """kernel(begin, end, *arguments) for all rows of a table, by as many threads as torch has if the table is large."""
    n, threads = len(table), torch.get_num_threads()
    if threads == 1 or table.size < THREADED_ENTRIES:
        return kernel(0, n, *arguments)
    cuts = np.linspace(0, n, 4 * threads + 1).astype(int)  # more parts than threads: they differ in work
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda begin, end: kernel(begin, end, *arguments), cuts[:-1], cuts[1:]))


def nearest_neighbours(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m nearest other rows of x (n×d) by cosine: indices and similarities, both n×min(m, n−1); as in _graph.py."""
    n = len(x)
    m = min(m, n - 1)
    indices, values = torch.empty(n, m, dtype=torch.int32), torch.empty(n, m)
    step = max(1, min(NEIGHBOUR_ROWS, BLOCK_ENTRIES // n))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        similarity = (x[rows] @ x.T).numpy()
        by_rows(_nearest, similarity, similarity, start, indices[rows].numpy(), values[rows].numpy())
    return indices, values


def symmetric_graph(indices: Tensor, values: Tensor) -> Graph:
    """W + Wᵀ, W having these values (n×m) at these columns (n×m)."""
    return Graph(*_symmetric(indices.numpy(), values.numpy()))


def compiled(kernel: Kernel) -> Kernel:
    """Compile once, keep on disk. fastmath lets sums be vectors; maxima of floats never are, so kernels avoid them."""
    try:
        return cast(Kernel, njit(cache=True, fastmath=True, nogil=True)(kernel))
    except RuntimeError:  # nowhere to keep it, in a read-only installation: then once per process
        return cast(Kernel, njit(fastmath=True, nogil=True)(kernel))


@compiled
def _exp(v: Rows, power: Rows) -> None:
    """v ← exp(v), k, as whole vectors: 2^m · polynomial(r), where v = m log 2 + r."""
    scale = power.view(np.float32)
    for c in range(len(v)):
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
    for c in range(len(v)):
        v[c] *= scale[c]


@compiled
def _weigh(
    begin: int, end: int, anchored: Rows, ceiling: Rows, log_y: Rows, active: Rows, scores: Rows, heavy: Rows, w: Rows
) -> None:
    """w_ik = exp(log ŷ_ik + log p_ik / T − top), for these rows, or of heavy rows its logarithm; top ≥ the maximum."""
    k = w.shape[1]
    power = np.empty(k, np.int32)
    for i in range(begin, end):
        w_i, anchored_i = w[i], anchored[i]
        top = ceiling[i]
        total = F(0)
        while total < F(1e-12):
            for c in range(k):
                w_i[c] = anchored_i[c]
            for a in range(len(active)):
                w_i[active[a]] = log_y[i, active[a]] + scores[a, i]
                top = max(top, w_i[active[a]])
            if heavy[i]:
                break
            if total > F(0):  # the second time: the ceiling was far too high, as the class it is from has moved away
                top = w_i[0]
                for c in range(1, k):
                    top = max(top, w_i[c])
            for c in range(k):
                w_i[c] -= top
            _exp(w_i, power)
            total = F(0)
            for c in range(k):
                total += w_i[c]


@compiled
def _pull(
    begin: int, end: int, first: bool, w: Rows, prior: Rows, heavy: Rows, offsets: Rows, columns: Rows, values: Rows,
    z: Rows, next: Rows, moved: Rows, moves: Rows,
) -> None:  # fmt: skip
    """One z-step: next_ik ∝ w_ik prior_k exp(Σ_j g_ij z_jk), for these rows, which `moved` last time."""
    k = z.shape[1]
    power = np.empty(k, np.int32)
    for i in range(begin, end):
        old, new, w_i = z[i], next[i], w[i]
        if not first:
            most = F(0)
            for e in range(offsets[i], offsets[i + 1]):
                most = max(most, moved[columns[e]])
            if most <= AT_REST:
                for c in range(k):
                    new[c] = old[c]
                moves[i] = F(0)
                continue
        for c in range(k):
            new[c] = F(0)
        for e in range(offsets[i], offsets[i + 1]):
            g, z_j = values[e], z[columns[e]]
            for c in range(k):
                new[c] += g * z_j[c]
        if heavy[i]:
            top = LOWEST
            for c in range(k):
                new[c] += w_i[c] + np.log(prior[c])
                top = max(top, new[c])
            for c in range(k):
                new[c] -= top
        _exp(new, power)
        if not heavy[i]:
            for c in range(k):
                new[c] *= w_i[c] * prior[c]
        total = F(0)
        for c in range(k):
            total += new[c]
        share, distance = F(1) / total, F(0)
        for c in range(k):
            new[c] *= share
            distance += abs(new[c] - old[c])
        moves[i] = distance


@compiled
def _heavy(offsets: Rows, values: Rows) -> Rows:
    """Rows whose pull could leave float32's range when taken to the exponential, n."""
    heavy = np.zeros(len(offsets) - 1, np.bool_)
    for i in range(len(heavy)):
        reach = F(0)
        for e in range(offsets[i], offsets[i + 1]):
            reach += abs(values[e])
        heavy[i] = reach > HEAVY
    return heavy


@compiled
def _hard_counts(z: Rows) -> Rows:
    """How many images have class k as their best, k. Positive floats are in the order of their bits."""
    n, k = z.shape
    counts = np.zeros(k, F)
    for i in range(n):
        bits = z[i].view(np.int32)
        most, where = np.int32(-1), 0
        for left in range(0, k, 64):
            here = np.int32(-1)
            for c in range(left, min(left + 64, k)):
                here = max(here, bits[c])
            if here > most:
                most, where = here, left
        while bits[where] != most:
            where += 1
        counts[where] += F(1)
    return counts


@compiled
def _fit(
    moments: Rows, mass: Rows, counts: Rows, t: Rows, centre: Rows, var0: Rows,
    alpha: np.float32, unit_means: bool, cooling: np.float32, floor: np.float32, eta: Rows, constant: Rows,
) -> None:  # fmt: skip
    """The M-step (Eq. regularized-updates): the natural parameters η (a×2d) and constant (a) of log p, over T."""
    d = len(centre)
    mu, anchor, var, precision = np.empty(d, F), np.empty(d, F), np.empty(d, F), np.empty(d, F)
    product = np.empty(LOG_LANES, np.float64)
    precision0 = F(1) / var0
    for a in range(len(t)):
        inverse = F(1) / max(mass[a], F(1e-37))
        beta = counts[a] / (counts[a] + alpha)  # Eq. hard_beta_k
        t_a, first, second = t[a], moments[a, :d], moments[a, d:]
        mean, spread = eta[a, :d], eta[a, d:]
        length = F(0)
        for c in range(d):
            mu[c] = first[c] * inverse + centre[c]  # v_k = Σ_i z_ik x_i / Σ_i z_ik
            length += mu[c] * mu[c]
        scale = beta / max(np.sqrt(length), F(1e-37)) if unit_means else beta
        length = F(0)
        for c in range(d):
            mu[c] = mu[c] * scale + (F(1) - beta) * t_a[c]  # β v + (1 − β) t
            length += mu[c] * mu[c]
        scale = F(1) / max(np.sqrt(length), F(1e-37)) if unit_means else F(1)
        for c in range(d):  # short loops: one with many arrays does not become vectors
            away = t_a[c] - mu[c] * scale
            anchor[c] = (F(1) - beta) * (var0[c] + away * away)
        for c in range(d):
            mu[c] = mu[c] * scale - centre[c]
            scatter = second[c] * inverse + mu[c] * (mu[c] - F(2) * first[c] * inverse)  # T_k
            var[c] = max(beta * scatter + anchor[c], floor)
        quadratic = F(0)
        for c in range(d):
            precision[c] = F(1) / var[c]
            quadratic += mu[c] * mu[c] * precision[c]
        for c in range(d):
            mean[c] = cooling * mu[c] * precision[c]
            spread[c] = cooling * F(0.5) * (precision0[c] - precision[c])
        logs = 0.0
        for left in range(
            0, d, LOG_LANES * LOG_FACTORS
        ):  # Σ_d log σ²_k/σ'²: one logarithm for a product of many, in float64
            right = min(left + LOG_LANES * LOG_FACTORS, d)
            product[:] = 1.0
            for start in range(left, right, LOG_LANES):
                for c in range(min(LOG_LANES, right - start)):
                    product[c] *= np.float64(var[start + c] * precision0[start + c])
            logs += np.sum(np.log(product))
        constant[a] = cooling * F(0.5) * (quadratic + F(logs))


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
def _weighted_squares(t: Rows, centre: Rows, mass: Rows) -> Rows:
    """Σ_k mass_k (t_k − centre)², d, in float64."""
    total = np.zeros(len(centre), np.float64)
    for j in range(len(t)):
        t_j, share = t[j], mass[j]
        for c in range(len(centre)):
            shift = t_j[c] - centre[c]
            total[c] += np.float64(share * shift * shift)
    return total


@compiled
def _nearest(begin: int, end: int, similarity: Rows, start: int, indices: Rows, values: Rows) -> None:
    """The best entries of each row but the diagonal's, in falling order; row i is image start + i."""
    n, m = similarity.shape[1], indices.shape[1]
    for i in range(begin, end):
        row, best, at = similarity[i], values[i], indices[i]
        found, least = 0, LOWEST
        for left in range(0, n, 64):
            right = min(left + 64, n)
            better = 0
            for c in range(left, right):
                better += row[c] > least
            if found == m and better == 0:
                continue
            for c in range(left, right):
                if c == start + i or (found == m and row[c] <= least):
                    continue
                place = min(found, m - 1)
                while place > 0 and best[place - 1] < row[c]:
                    best[place], at[place] = best[place - 1], at[place - 1]
                    place -= 1
                best[place], at[place] = row[c], c
                found = min(found + 1, m)
                least = best[found - 1]


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
