"""The kernels of _fast.py and _fast_kedge.py, which say what they are for.

One row of a table is an image, one column a class. Many kernels share these (n images, k classes, d dimensions):

| name                         | shape       | what                                                                   |
|------------------------------|-------------|------------------------------------------------------------------------|
| u, next                      | n×(k+room)  | z_ik = share_i u_ik, before and after a z-step                         |
| unary, w                     | n×(k+room)  | log ŷ + log p / T, and the exponential of it less r_i                  |
| fitted, seen                 | n×(k+room)  | z when a class was last fitted; its drift when the score was computed  |
| log_y, anchored              | n×k         | log ŷ, and `unary` of a class on its anchor                            |
| rows                         | KNOWN×n     | what is known of each image, see below                                 |
| names, slots                 | k+room, k   | the class of a column, the column of a class (−1: idle)                |
| live, stop, idle             | numbers     | live classes are in columns from live to stop, idle ones before idle   |
| graph                        | tuple       | reach (n), the sum of each row of G; and G (n×n): offsets, columns and |
|                              |             | values of compressed sparse rows                                       |
| chosen, classes, vacated     | lists       | columns and classes to be fitted; columns that fall back to anchors    |
| place, drift                 | k+room      | row of a class in the next, and how far its scores have drifted        |
| moments, eta; mass, constant | a×2d; a     | zᵀφ and η; Σ_i z_ik and the constant of log p                          |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Rows = NDArray[Any]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

F = np.float32
AT_REST = F(1e-6)  # a row of z that moved by less (sum of changes) moves nobody else
CLASS_AT_REST = F(1e-5)  # a column of z that moved by less since its class was fitted gives the same fit
SMALLEST = F(-69.0)  # e to this is 1e-30: far below float32's 1e-7 of a sum, far above its denormals, which are slow
LARGEST, LEAST = F(6.0), F(1e-2)  # of log w_ik, and of Σ_k w_ik: beyond, the row gets another r_i. The sum is kept up
# by differences, and between these two it keeps its digits
LITTLE = F(1e-8)  # times T, of an image of a class, in all: changes of z that may be left out of its moments. None of
COARSE = F(8.0)  # them is more than so many times what all n could be
MOST_OF_TWO = F(1.5)  # of the entries of two classes: beyond, all are scored
COLDEST = F(1e-2)  # 1/T: at a higher T no more is left out (kedge's may be without end)
FARTHEST, STEEP = F(4.0), F(3.1)  # a class whose scores may have moved by more is scored anew; e^s − 1 − s is at most
# so many times s², for all s up to that
NEARBY = 128  # images that are taken together, to be still in the cache for the next class; sums of more lose digits
APART = 32  # entries: a few vectors
GENTLE = F(2.0)  # pulls up to this, in either direction, need no exponential of more than a polynomial
HEAVY = F(8.0)  # rows of G that sum to more (hubs, a large λ) are done in logarithms
LOWEST, ENDLESS = F(-3e38), 1e30  # in place of infinities, which fastmath rules out
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)

# What is known of each image: rows of `Solver.rows`. Of the first three there are two, of this z-step and of the next.
SHARE = 0  # z_ik = share_i u_ik
MOVED = 2  # how far z_i moved in a step: at most Σ_k of the changes
DRIFT = 4  # how far its idle classes moved, as the root of the sum of squares
REFERENCE, TOTAL = 6, 7  # r_i, and Σ_k w_ik
STIRRED = 8  # how far w_i, and what pulls at z_i, changed since z_i was last computed
STRAYED = 9  # how far z_i moved since its label was last looked up
IDLE, NORM = 10, 11  # Σ_k u_ik of the idle classes, and the root of Σ_k u_ik²
OWED = 12  # how far the idle classes of its neighbours drifted, as they pull, since its own were last computed
AHEAD = 13  # 1: its idle classes are newer in u than in next
KNOWN = 14


def compiled(kernel: Kernel) -> Kernel:
    """Compile once, keep on disk. fastmath lets sums be vectors; maxima of floats never are, so kernels avoid them.

    Inner loops index whole arrays, z[i, c]: a row of its own, z[i], costs two atomic counts of references. Divisions by
    zero go unchecked, as a check would keep a loop from being vectors.

    Same input, same result, to the bit: a loop is not vectors where it stores within a few vectors of what it reads,
    and that may change a last digit, of sums and of quotients. For it not to depend on where arrays lie in memory, a
    loop that adds up stores nothing, and short arrays of a kernel's own, if quotients, are APART from all others.

    A kernel calls only kernels of its own file, and takes constants of others as arguments: what is kept on disk is
    compiled again when its own file changes, only then.
    """
    flags: dict[str, Any] = {"fastmath": True, "nogil": True, "error_model": "numpy"}
    try:
        return cast(Kernel, njit(cache=True, **flags)(kernel))
    except RuntimeError:  # nowhere to keep it, in a read-only installation: then once per process
        return cast(Kernel, njit(**flags)(kernel))


# Exponentials and logarithms


@compiled
def exp(v: Rows, first: Any, last: Any, power: Rows) -> None:
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
def log(v: Rows, exponent: Rows) -> None:
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


@compiled
def exponentials(begin: int, end: int, logs: Rows, out: Rows) -> None:
    """exp(logs) of these rows, to the first columns of `out`."""
    k = logs.shape[1]
    v, power = np.empty(k, F), np.empty(k, np.int32)
    for i in range(begin, end):
        for c in range(k):
            v[c] = logs[i, c]
        exp(v, 0, k, power)
        for c in range(k):
            out[i, c] = v[c]


# Before the first z-step


@compiled
def mean_distance(of_images: Rows, rows: Rows, log_y: Rows, t: Rows, centre: Rows) -> Rows:
    """The mean of a_i + Σ_k ŷ_ik (t_k − c)² over a batch, d: see `squared_distances` of _gaussian.py.

    a (`of_images`) has d columns and a row of every image, the batch's are in `rows` (n); log ŷ is n×k, t k×d, c (the
    centre) d. Sums of a hundred terms in float32, and of these in float64. Four classes at a time: fewer passes.
    """
    n, k, d = len(rows), log_y.shape[1], np.uint64(len(centre))
    total, part, y, power = np.zeros(d, np.float64), np.empty(d, F), np.empty(k, F), np.empty(k, np.int32)
    mass, part_mass = np.zeros(k + 3, np.float64), np.empty(k, F)
    for first in range(0, n, 100):
        part[:], part_mass[:] = F(0), F(0)
        for i in range(first, min(first + 100, n)):
            row = rows[i]
            for c in range(k):
                y[c] = log_y[i, c]
            exp(y, 0, k, power)
            for c in range(k):
                part_mass[c] += y[c]
            for c in range(d):
                part[c] += of_images[row, c]
        for c in range(k):
            mass[c] += part_mass[c]
        for c in range(d):
            total[c] += part[c]
    for first in range(0, k, 100):
        part[:] = F(0)
        for j in range(first, min(first + 100, k), 4):
            m, m2, m3, m4 = F(mass[j]), F(mass[j + 1]), F(mass[j + 2]), F(mass[j + 3])  # 0 behind the last class
            j2, j3, j4 = np.uint64(min(j + 1, k - 1)), np.uint64(min(j + 2, k - 1)), np.uint64(min(j + 3, k - 1))
            for c in range(d):
                v, v2, v3, v4 = t[j, c] - centre[c], t[j2, c] - centre[c], t[j3, c] - centre[c], t[j4, c] - centre[c]
                part[c] += m * v * v + m2 * v2 * v2 + m3 * v3 * v3 + m4 * v4 * v4
        for c in range(d):
            total[c] += part[c]
    mean: Rows = (total / n).astype(F)
    return mean


@compiled
def nothing_known(n: int) -> Rows:
    """Of n images, before the first z-step: KNOWN×n."""
    rows = np.zeros((KNOWN, n), F)
    for row in (SHARE, MOVED, MOVED + 1, STIRRED, STRAYED):
        for i in range(n):
            rows[row, i] = F(1)
    return rows


@compiled
def unite(names: Rows, slots: Rows, rows: Rows, now: int) -> None:
    """All classes live, in their order: k names and k slots."""
    for k in range(len(slots)):
        names[k] = slots[k] = k
    for i in range(rows.shape[1]):
        rows[IDLE, i], rows[NORM, i] = F(0), F(0)
        rows[MOVED + now, i] = F(1)  # the two tables may differ, even in rows at rest


@compiled
def start(begin: int, end: int, log_y: Rows, constant: Rows, anchored: Rows, unary: Rows, w: Rows, rows: Rows) -> None:
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
        restart(i, unary, w, rows, v, power, 0, k, 0)


@compiled
def restart(i: int, unary: Rows, w: Rows, rows: Rows, v: Rows, power: Rows, start: int, stop: int, idle: int) -> None:
    """w_ik = exp(unary_ik − r_i), of one row, r_i being the row's maximum; v and power: room for a row."""
    left, right, count = np.uint64(start), np.uint64(stop), np.uint64(idle)
    top, total = max(largest(i, unary, start, stop), largest(i, unary, 0, idle)), F(0)
    for c in range(count):
        v[c] = unary[i, c] - top
    for c in range(left, right):
        v[c] = unary[i, c] - top
    exp(v, 0, idle, power)
    exp(v, start, stop, power)
    for c in range(count):
        total += v[c]
    for c in range(left, right):
        total += v[c]
    for c in range(count):
        w[i, c] = v[c]
    for c in range(left, right):
        w[i, c] = v[c]
    rows[REFERENCE, i], rows[TOTAL, i], rows[STIRRED, i], rows[OWED, i] = top, total, F(1), ENDLESS


@compiled
def largest(i: int, table: Rows, start: int, stop: int) -> np.float32:
    """The largest entry of a row, from start to stop; of none, the lowest float there is.

    Positive floats are in the order of their bits, negative ones in the reverse: of such integers a maximum is vectors.
    """
    bits, positive, most = table.view(np.int32), np.int32(0x7FFFFFFF), np.int32(-0x7F800000)
    for c in range(np.uint64(start), np.uint64(stop)):
        value = bits[i, c]
        most = max(most, value ^ ((value >> np.int32(31)) & positive))
    return np.int32(most ^ ((most >> np.int32(31)) & positive)).view(np.float32)


# z-steps


@compiled
def weigh(
    begin: int, end: int, start: int, now: int, classes: Rows, slots: Rows, scores: Rows, constant: Rows, own: Rows,
    vacated: Rows, log_y: Rows, anchored: Rows, names: Rows, u: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows,
    live: int, stop: int, idle: int,
) -> None:  # fmt: skip
    """unary and w of these rows, for classes that were fitted and classes that fall back; row i is column i − start."""
    fitted, count, has_own = len(slots), len(slots) + len(vacated), len(own) > 0
    v, power, beyond = np.empty(16 * count, F), np.empty(16 * count, np.int32), np.empty(16, np.bool_)
    old = np.empty(count, F)
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
        exp(v, 0, at, power)
        at = 0
        for i in range(first, last):
            for a in range(fitted):
                old[a] = w[i, slots[a]]
                w[i, slots[a]] = v[at + a]
            for a in range(len(vacated)):
                old[fitted + a] = w[i, vacated[a]]
                w[i, vacated[a]] = v[at + fitted + a]
            rise, change = F(0), F(0)
            for a in range(count):
                rise += v[at + a] - old[a]
                change += abs(v[at + a] - old[a])
            at += count
            rows[TOTAL, i] += rise
            rows[STIRRED, i] += change / max(rows[TOTAL, i], LEAST)
            if beyond[i - first] or rows[TOTAL, i] < LEAST:  # r_i is no longer near the best class's
                if not len(room):
                    room, room_power = np.empty(w.shape[1], F), np.empty(w.shape[1], np.int32)
                restart(i, unary, w, rows, room, room_power, live, stop, idle)
            if reach[i] > GENTLE:  # e^pull makes much of a small change of w
                rows[STIRRED, i] = F(1)


@compiled
def pull(
    begin: int, end: int, prior: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, graph: Any,
    live: int, stop: int, idle: int,
) -> None:  # fmt: skip
    """One z-step: next_ik = w_ik prior_k exp(Σ_j g_ij z_jk), for these rows, and what they are divided by.

    Live classes are the columns from `live` to `stop`, idle ones those before `idle`. All in one function: to call
    another for each row would take as long as its work.
    """
    reach, offsets, columns, values = graph
    pull, power = np.empty(u.shape[1], F), np.empty(u.shape[1], np.int32)
    shares, moved, drifted = rows[SHARE + now], rows[MOVED + now], rows[DRIFT + now]
    next_shares, moves, drifts = rows[SHARE + 1 - now], rows[MOVED + 1 - now], rows[DRIFT + 1 - now]
    for i in range(begin, end):
        first, last = offsets[i], offsets[i + 1]
        stirred, owed, strength = rows[STIRRED, i], rows[OWED, i], reach[i]
        for e in range(first, last):
            stirred += abs(values[e]) * moved[columns[e]]
        for e in range(first, last if idle > 0 else first):
            owed += abs(values[e]) * drifted[columns[e]]
        rows[OWED, i], share, at_idle, norm = owed, shares[i], rows[IDLE, i], rows[NORM, i]
        if stirred <= AT_REST:
            rows[STIRRED, i] = stirred
            if moved[i] > F(0):  # else both tables have it
                for c in range(np.uint64(live), np.uint64(stop)):
                    next[i, c] = u[i, c]
            if rows[AHEAD, i] > F(0):
                for c in range(np.uint64(idle)):
                    next[i, c] = u[i, c]
            rows[AHEAD, i] = F(0)
            next_shares[i], moves[i], drifts[i] = share, F(0), F(0)
            continue

        total, change, idle_total, idle_change, drift, next_norm = F(0), F(0), at_idle, F(0), F(0), norm
        stale = idle > 0 and (strength > HEAVY or owed >= ENDLESS)
        for part in range(2):
            if part == 1 and not stale:
                break
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

            mass, step, steps, squares = F(0), F(0), F(0), F(0)
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
                    pull[c] = p * p * w[i, c] * prior[c]
            elif strength <= HEAVY:
                exp(pull, left, right, power)
                for c in range(left, right):
                    pull[c] *= w[i, c] * prior[c]
            for c in range(left, right):  # nothing is stored here, see `compiled`
                mass += pull[c]
                step += abs(pull[c] - u[i, c])
            for c in range(left, right):
                next[i, c] = pull[c]
            if part == 0:
                total, change = mass, step
                # Would the idle classes' z move by this? By Cauchy and Schwarz Σ_k u_ik δ_k is at most |u_i| |δ|
                stale |= idle > 0 and owed * norm > AT_REST * (mass + at_idle)
            else:
                for c in range(left, right):
                    steps += (pull[c] - u[i, c]) ** 2
                    squares += pull[c] * pull[c]
                idle_total, idle_change, drift, next_norm = mass, step, np.sqrt(steps), np.sqrt(squares)
        if strength > HEAVY:
            told = (prior, unary, u, next, pull, power, live, stop, idle)
            total, change, idle_total, idle_change = in_logarithms(i, *told)
            drift, next_norm = idle_change, idle_total  # which are no less
        if stale:
            rows[OWED, i], rows[AHEAD, i] = F(0), F(1)
        elif rows[AHEAD, i] > F(0):  # let both tables have the same
            for c in range(np.uint64(idle)):
                next[i, c] = u[i, c]
            rows[AHEAD, i] = F(0)
        total += idle_total
        # |u'/U' − u/U| ≤ |u' − u|/U' + u |1/U' − 1/U|, of live and of idle classes
        share_next = F(1) / total
        shift = abs(share_next - share)
        drifts[i] = drift * share_next + norm * shift
        moves[i] = (change + idle_change) * share_next + shift / share
        next_shares[i], rows[IDLE, i], rows[NORM, i], rows[STIRRED, i] = share_next, idle_total, next_norm, F(0)
        rows[STRAYED, i] += moves[i]


@compiled
def in_logarithms(
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
    exp(pull, 0, idle, power)
    exp(pull, live, stop, power)
    for c in range(idle):
        idle_total += pull[c]
        idle_change += abs(pull[c] - u[i, c])
    for c in range(live, stop):
        total += pull[c]
        change += abs(pull[c] - u[i, c])
    for c in range(idle):
        next[i, c] = pull[c]
    for c in range(live, stop):
        next[i, c] = pull[c]
    return total, change, idle_total, idle_change


@compiled
def pulls(
    steps: int, prior: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, graph: Any, live: int,
    stop: int, idle: int,
) -> None:  # fmt: skip
    """Some z-steps of all rows; after an odd number the last z is in `next`."""
    for _ in range(steps):
        pull(0, len(u), prior, now, u, next, w, unary, rows, graph, live, stop, idle)
        u, next, now = next, u, 1 - now


# Labels and counts


@compiled
def best(begin: int, end: int, u: Rows, rows: Rows, names: Rows, labels: Rows, live: int, stop: int, idle: int) -> None:
    """The best class of the rows that strayed, the first of equals."""
    for i in range(begin, end):
        if rows[STRAYED, i] <= AT_REST:
            continue
        rows[STRAYED, i] = F(0)
        column = top(i, u, live, stop)
        labels[i] = names[column]
        if idle > 0 and F(1.001) * rows[NORM, i] >= u[i, column]:  # a norm is no less than the largest (but for digits)
            other = top(i, u, 0, idle)
            if u[i, other] > u[i, column] or (u[i, other] == u[i, column] and other < labels[i]):
                labels[i] = other


@compiled
def top(i: int, u: Rows, start: int, stop: int) -> int:
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
def tally(labels: Rows, slots: Rows) -> tuple[Rows, int, int]:
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
def sums(u: Rows, share: Rows, start: int, stop: int) -> Rows:
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


# M-steps: in blocks of rows, with a product of matrices after `gather`; or of few images, `renew`, `fit` and `rescore`


@compiled
def choose(
    u: Rows, share: Rows, names: Rows, live: int, stop: int, counts: Rows, fitted_counts: Rows, fitted: Rows,
    at_rest: np.float32, cooling: np.float32, place: Rows, chosen: Rows, classes: Rows, vacated: Rows, anew: Rows,
) -> tuple[int, int]:  # fmt: skip
    """Classes that have images and are not at rest, and classes that have none any more: how many of each.

    Without what they were fitted to (fitted: no rows), all that have images. anew: has a class no moments, are fewer
    entries of z to be added to zero than have changed, or would so little be left of the moments that digits are lost?
    """
    n, left, right, remembers = len(u), np.uint64(live), np.uint64(stop), len(fitted) > 0
    found, lost = 0, 0
    distance, moved, held = np.full(stop, F(0) if remembers else F(1)), np.zeros(stop, F), np.zeros(stop, F)
    least, total, rise = np.empty(stop, F), np.zeros(stop, F), np.zeros(stop, F)
    for c in range(left, right):
        least[c] = COARSE * dispensable(counts[names[c]], cooling) / F(n)
    for i in range(len(fitted)):
        for c in range(left, right):
            z = share[i] * u[i, c]
            change = abs(z - fitted[i, c])
            distance[c] += change
            moved[c] += F(1) if change > least[c] else F(0)
            held[c] += F(1) if z > least[c] else F(0)
        for c in range(left, right):
            z = share[i] * u[i, c]
            total[c] += z
            rise[c] += z - fitted[i, c]
    for slot in range(live, stop):
        k = names[slot]
        if counts[k] == F(0):
            if fitted_counts[k] > F(0):
                vacated[lost], place[slot] = slot, -1
                lost += 1
        elif distance[slot] > at_rest or fitted_counts[k] == F(0) or abs(counts[k] - fitted_counts[k]) > F(0.5):
            chosen[found], classes[found] = slot, k
            anew[found] = place[slot] < 0 or held[slot] < moved[slot] or total[slot] < -rise[slot]
            found += 1
    return found, lost


@compiled
def dispensable(count: np.float32, cooling: np.float32) -> np.float32:
    """The part of Σ_i z_ik that does not matter to log p / T of a class of so many images; of one, its variance."""
    return LITTLE * max(count - F(1) + F(1) / COARSE, count / COARSE) / max(cooling, COLDEST)


@compiled
def gather(u: Rows, share: Rows, start: int, chosen: Rows, columns: Rows, mass: Rows) -> None:
    """Columns of z from row `start` on, for a product of matrices, and their mass.

    Row by row, a few classes at a time: as u lies in memory.
    """
    n, found = columns.shape[1], len(chosen)
    for first in range(0, found, 8):
        last = min(first + 8, found)
        for i in range(n):
            for a in range(first, last):
                columns[a, i] = share[start + i] * u[start + i, chosen[a]]
    for a in range(found):
        total = mass[a] if start else F(0)
        for i in range(n):
            total += columns[a, i]
        mass[a] = total


@compiled
def fit(
    classes: Rows, places: Rows, moments: Rows, mass: Rows, counts: Rows, model: Any, eta: Rows, constant: Rows,
    moved: Rows, spread: Rows,
) -> None:  # fmt: skip
    """The M-step (Eq. regularized-updates): the natural parameters η (2d) and constant of log p, over T, of each class.

    Of class classes[a] all is in row places[a]. moved: how far the class's scores can have changed, of images with at
    most the norms `spread` of both halves of φ. Many short loops: one with many arrays does not become vectors.
    """
    centre, t, var0, alpha, unit_means, cooling, smallest = model
    d, floor, images, half = len(centre), F(smallest), F(alpha), cooling * F(0.5)
    room, used = np.empty((5, d + 2 * APART), F), slice(APART, APART + d)  # as far from each other as `compiled` asks
    mu, first, var, ratio, precision0 = room[0][used], room[1][used], room[2][used], room[3][used], room[4][used]
    bits, second = ratio.view(np.int32), np.uint64(d)
    for c in range(d):
        precision0[c] = F(1) / var0[c]
    for a in range(len(classes)):
        k, p = classes[a], places[a]
        inverse = F(1) / max(mass[p], F(1e-37))
        beta = counts[k] / (counts[k] + images)  # Eq. hard_beta_k
        for c in range(d):
            first[c] = moments[p, c] * inverse
            mu[c] = first[c] + centre[c]  # v_k = Σ_i z_ik x_i / Σ_i z_ik
        of_v, of_t = beta, F(1) - beta  # μ_k = β v + (1 − β) t
        if unit_means:  # … of unit norm, of v of unit norm
            vv, vt, tt = F(0), F(0), F(0)
            for c in range(d):
                vv += mu[c] * mu[c]
                vt += mu[c] * t[k, c]
                tt += t[k, c] * t[k, c]
            of_v /= max(np.sqrt(vv), F(1e-37))
            square = of_v * (of_v * vv + F(2) * of_t * vt) + of_t * of_t * tt
            scale = F(1) / np.sqrt(max(square, F(1e-37)))
            of_v, of_t = of_v * scale, of_t * scale
        for c in range(d):
            mean = of_v * mu[c] + of_t * t[k, c]
            away = t[k, c] - mean
            mu[c] = mean - centre[c]
            var[c] = (F(1) - beta) * (var0[c] + away * away)
        share = beta * inverse
        for c in range(second):  # + β T_k
            scatter = beta * mu[c] * (mu[c] - F(2) * first[c]) + share * moments[p, second + c]
            var[c] = max(var[c] + scatter, floor)
        for c in range(d):
            precision = F(1) / var[c]
            ratio[c] = var[c] * precision0[c]
            first[c] = cooling * mu[c] * precision
            var[c] = half * (precision0[c] - precision)
        quadratic, linear, square = F(0), F(0), F(0)
        for c in range(second):
            quadratic += mu[c] * first[c]
            linear += (first[c] - eta[p, c]) ** 2
            square += (var[c] - eta[p, second + c]) ** 2
        before, constant[p] = constant[p], F(0.5) * quadratic + half * F(sum_of_logs(ratio, bits))
        moved[p] = np.sqrt(linear) * spread[0] + np.sqrt(square) * spread[1] + abs(constant[p] - before)
        for c in range(second):
            eta[p, c] = first[c]
            eta[p, second + c] = var[c]


@compiled
def sum_of_logs(ratio: Rows, bits: Rows) -> float:
    """Σ_d log ratio_d, given as floats and as their bits: exponents added, significands multiplied, one logarithm."""
    d, exponents, product, logs = len(ratio), np.int32(0), 1.0, 0.0
    for c in range(d):
        exponents += (bits[c] >> np.int32(23)) - np.int32(127)
    for c in range(d):
        bits[c] = (bits[c] & np.int32(0x7FFFFF)) | np.int32(0x3F800000)
    for left in range(0, d, 64):  # each is below 2, and 2^64 is within float32, 2^1000 within float64
        part = F(1)
        for c in range(np.uint64(left), np.uint64(min(left + 64, d))):
            part *= ratio[c]
        product *= np.float64(part)
        if product > 1e280:
            logs, product = logs + np.log(product), 1.0
    return float(logs + np.log(product) + exponents * 0.6931471805599453)


@compiled
def renew(
    chosen: Rows, classes: Rows, anew: Rows, counts: Rows, u: Rows, share: Rows, fitted: Rows, y: Rows,
    cooling: np.float32, moments: Rows, mass: Rows, place: Rows, drift: Rows, places: Rows,
) -> None:  # fmt: skip
    """Moments of the chosen classes, by the entries of z that changed: zᵀφ changes by Σ_i Δz_ik φ_i, or is summed anew.

    Small changes are left out as long as their sum is what a class can do without. places: out, the classes' rows.
    """
    n, d, found, free = len(u), np.uint64(y.shape[1]), len(chosen), 0
    images, changes, step = np.empty(NEARBY + 3, np.uint64), np.empty(NEARBY + 3, F), np.empty((2, d), F)
    table, left, taken = np.empty((found, NEARBY), F), np.empty(found, F), np.zeros(len(mass), np.bool_)
    for slot in range(len(place)):
        if place[slot] >= 0:
            taken[place[slot]] = True
    for a in range(found):
        slot = chosen[a]
        if place[slot] < 0:  # a class that falls back has given up its row, so there are enough
            while taken[free]:
                free += 1
            place[slot], drift[slot], taken[free] = free, ENDLESS, True
        p = places[a] = place[slot]
        left[a] = dispensable(counts[classes[a]], cooling)
        if anew[a]:
            mass[p] = F(0)
            for c in range(d + d):
                moments[p, c] = F(0)
            for i in range(n):
                fitted[i, slot] = F(0)
    for first in range(0, n, NEARBY):
        count = min(NEARBY, n - first)
        for i in range(count):  # as tables lie in memory
            for a in range(found):
                z = share[first + i] * u[first + i, chosen[a]]
                table[a, i] = z - fitted[first + i, chosen[a]]
        for a in range(found):
            slot, p = chosen[a], places[a]
            least, small, total = COARSE * dispensable(counts[classes[a]], cooling) / F(n), F(0), F(0)
            for i in range(count):
                small += abs(table[a, i]) if abs(table[a, i]) <= least else F(0)
            if small > left[a]:
                least, small = F(0), F(0)
            left[a] -= small
            size = above(least, table, a, count, first, images, changes)
            if size == 0:
                continue
            for e in range(size):
                total += changes[e]
            for e in range(size):
                fitted[images[e], slot] += changes[e]
            mass[p] += total
            add_rows(size, images, changes, y, step)
            for c in range(d):
                moments[p, c] += step[0, c]
            for c in range(d):
                moments[p, d + c] += step[1, c]


@compiled
def above(least: np.float32, table: Rows, a: int, count: int, first: int, images: Rows, values: Rows) -> Any:
    """The entries of row a that are more than this, either way: how many, of which images, the first of them `first`.

    Without a branch. Behind them are three images more, of value 0, so that they can be taken four at a time.
    """
    size: Any = np.uint64(0)
    for i in range(count):
        images[size], values[size] = first + i, table[a, i]
        size += np.uint64(abs(table[a, i]) > least)
    for e in range(size, size + np.uint64(3)):
        images[e], values[e] = first, F(0)
    return size


@compiled
def add_rows(size: int, images: Rows, changes: Rows, y: Rows, total: Rows) -> None:
    """Σ_e changes_e φ_e of so many images e, φ = [y, y²], to `total` (2×d).

    Four at a time, see `above`: fewer passes.
    """
    d = np.uint64(y.shape[1])
    for c in range(d):
        total[0, c] = F(0)
    for c in range(d):
        total[1, c] = F(0)
    for e in range(0, size, 4):
        i, i2, i3, i4 = images[e], images[e + 1], images[e + 2], images[e + 3]
        g, g2, g3, g4 = changes[e], changes[e + 1], changes[e + 2], changes[e + 3]
        for c in range(d):
            v, v2, v3, v4 = y[i, c], y[i2, c], y[i3, c], y[i4, c]
            p, p2, p3, p4 = g * v, g2 * v2, g3 * v3, g4 * v4
            total[0, c] += p + p2 + p3 + p4
            total[1, c] += p * v + p2 * v2 + p3 * v3 + p4 * v4


@compiled
def rescore(
    chosen: Rows, classes: Rows, places: Rows, log_y: Rows, y: Rows, u: Rows, w: Rows, unary: Rows, rows: Rows,
    reach: Rows, now: int, ranges: Any, eta: Rows, constant: Rows, moved: Rows, drift: Rows, seen: Rows,
) -> None:  # fmt: skip
    """unary and w after `fit`, where it matters: of entries whose z moves by more than AT_REST / 20.

    The scores of a class have drifted by at most `drift` since all were computed, and by at most s = drift − seen_ik
    since that of image i was. w_ik moves by at most e^s − 1 ≤ s + STEEP s² of itself, and z_ik by no more (but in a row
    that is pulled strongly, and where the same fit takes a row's best class far away: that is seen only at the next).
    """
    n, found, power = len(u), len(chosen), np.empty(NEARBY, np.int32)
    images, images2 = np.empty(NEARBY + 3, np.uint64), np.empty(NEARBY + 3, np.uint64)
    v, v2 = np.empty(NEARBY + 3, F), np.empty(NEARBY + 3, F)
    share, beyond, of_all = rows[SHARE + now], np.zeros(n, np.bool_), np.empty(len(chosen), F)
    table = np.empty((len(chosen), NEARBY), F)
    for a in range(len(chosen)):
        slot = chosen[a]
        if drift[slot] <= FARTHEST:  # else it had no scores to begin with
            drift[slot] += moved[places[a]]
        of_all[a] = F(1) if drift[slot] > FARTHEST else F(0)
        if of_all[a] > F(0):
            drift[slot] = F(0)
    for first in range(0, n, NEARBY):
        count = min(NEARBY, n - first)
        for i in range(count):
            strong = F(1) if reach[first + i] > GENTLE else F(0)
            for a in range(len(chosen)):
                slot = chosen[a]
                stale = drift[slot] - seen[first + i, slot]
                moves = stale + STEEP * stale * stale
                table[a, i] = share[first + i] * u[first + i, slot] * moves + strong + of_all[a]
        for a in range(0, found, 2):
            b = min(a + 1, found - 1)
            size = above(F(0.05) * AT_REST, table, a, count, first, images, v)
            size2 = above(F(0.05) * AT_REST, table, b, count if b > a else 0, first, images2, v2)
            if b > a and size + size2 > MOST_OF_TWO * count:  # nearly all images of two classes are faster than some
                for i in range(count + 3):
                    images[i] = images2[i] = min(first + i, n - 1)
                size = size2 = np.uint64(count)
                scores_of_two(count, images, y, eta, places[a], places[b], v, v2)
            else:
                scores_of(size, images, y, eta, places[a], v)
                scores_of(size2, images2, y, eta, places[b], v2)
            for e in range(size):
                seen[images[e], chosen[a]] = drift[chosen[a]]
            reweigh(size, images, v, chosen[a], classes[a], constant[places[a]], log_y, w, unary, rows, beyond, power)
            for e in range(size2):
                seen[images2[e], chosen[b]] = drift[chosen[b]]
            reweigh(
                size2, images2, v2, chosen[b], classes[b], constant[places[b]], log_y, w, unary, rows, beyond, power
            )
    for i in range(n):
        if beyond[i] or rows[TOTAL, i] < LEAST:
            restart(i, unary, w, rows, np.empty(w.shape[1], F), np.empty(w.shape[1], np.int32), *ranges)
        if reach[i] > GENTLE:
            rows[STIRRED, i] = F(1)


@compiled
def scores_of(size: int, images: Rows, y: Rows, eta: Rows, p: int, out: Rows) -> None:
    """η_p · φ_e of so many images e, φ = [y, y²]; four at a time, as `add_rows`."""
    d = np.uint64(y.shape[1])
    for e in range(0, size, 4):
        i, i2, i3, i4 = images[e], images[e + 1], images[e + 2], images[e + 3]
        s = s2 = s3 = s4 = F(0)
        for c in range(d):
            g, h = eta[p, c], eta[p, d + c]
            v, v2, v3, v4 = y[i, c], y[i2, c], y[i3, c], y[i4, c]
            s += (g + h * v) * v
            s2 += (g + h * v2) * v2
            s3 += (g + h * v3) * v3
            s4 += (g + h * v4) * v4
        out[e], out[e + 1], out[e + 2], out[e + 3] = s, s2, s3, s4


@compiled
def scores_of_two(size: int, images: Rows, y: Rows, eta: Rows, p: int, q: int, out: Rows, out2: Rows) -> None:
    """The same of two classes, p and q: eight sums at a time need fewer reads of y."""
    d = np.uint64(y.shape[1])
    for e in range(0, size, 4):
        i, i2, i3, i4 = images[e], images[e + 1], images[e + 2], images[e + 3]
        s = s2 = s3 = s4 = r = r2 = r3 = r4 = F(0)
        for c in range(d):
            v, v2, v3, v4 = y[i, c], y[i2, c], y[i3, c], y[i4, c]
            g, h = eta[p, c], eta[p, d + c]
            s += (g + h * v) * v
            s2 += (g + h * v2) * v2
            s3 += (g + h * v3) * v3
            s4 += (g + h * v4) * v4
            g, h = eta[q, c], eta[q, d + c]
            r += (g + h * v) * v
            r2 += (g + h * v2) * v2
            r3 += (g + h * v3) * v3
            r4 += (g + h * v4) * v4
        out[e], out[e + 1], out[e + 2], out[e + 3] = s, s2, s3, s4
        out2[e], out2[e + 1], out2[e + 2], out2[e + 3] = r, r2, r3, r4


@compiled
def reweigh(
    size: int, images: Rows, scores: Rows, slot: int, k: int, constant: np.float32, log_y: Rows, w: Rows, unary: Rows,
    rows: Rows, beyond: Rows, power: Rows,
) -> None:  # fmt: skip
    """unary and w of a class, for so many images with these scores, which are overwritten."""
    for e in range(size):
        i = images[e]
        unary[i, slot] = log_y[i, k] + scores[e] - constant
        scores[e] = unary[i, slot] - rows[REFERENCE, i]
        beyond[i] |= scores[e] > LARGEST
    exp(scores, 0, size, power)
    for e in range(size):
        i = images[e]
        step = scores[e] - w[i, slot]
        w[i, slot] = scores[e]
        rows[TOTAL, i] += step
        rows[STIRRED, i] += abs(step) / max(rows[TOTAL, i], LEAST)


@compiled
def all_scores(y: Rows, eta: Rows, scores: Rows) -> None:
    """η φᵀ (a×n), φ = [y, y²]."""
    found, n = len(eta), len(y)
    images, v, v2 = np.empty(NEARBY + 3, np.uint64), np.empty(NEARBY + 3, F), np.empty(NEARBY + 3, F)
    for first in range(0, n, NEARBY):
        count = min(NEARBY, n - first)
        for i in range(count + 3):
            images[i] = min(first + i, n - 1)
        for a in range(0, found, 2):
            b = min(a + 1, found - 1)
            scores_of_two(count, images, y, eta, a, b, v, v2)
            for i in range(count):
                scores[a, first + i], scores[b, first + i] = v[i], v2[i]


@compiled
def iterate(
    iterations: int, steps: int, soft: bool, now: int, prior: Rows, pulled: Any, known: Any, lists: Any, model: Any,
    kept: Any, before: Any,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Fits with z-steps after each, up to this many: all there is to do after the first z-steps, where all is near.

    Returns now, live, stop and idle of the end. before: z before the last z-steps, out.
    """
    u, next, w, unary, rows, graph, live, stop, idle = pulled
    log_y, y, anchored, names, slots, labels, cooling = known
    chosen, classes, vacated, anew, places = lists
    moments, mass, eta, constant, moved, spread, place, drift, fitted, seen = kept
    fitted_counts, none = np.zeros(len(slots), F), np.empty(0, F)
    for iteration in range(iterations):
        if soft:
            counts = sums(u, rows[SHARE + now], live, stop)
        else:
            best(0, len(u), u, rows, names, labels, live, stop, idle)
            counts, _, missing = tally(labels, slots)
            if missing:
                tables = (fitted, names, slots, place, now, u, next, w, unary, rows)
                live, stop, idle = enliven(counts, missing, *tables, live, stop, idle)
        share, ranges = rows[SHARE + now], (live, stop, idle)
        told = (names, live, stop, counts, fitted_counts, fitted, CLASS_AT_REST, cooling, place)
        found, lost = choose(u, share, *told, chosen, classes, vacated, anew)
        of_these, ks = chosen[:found], classes[:found]
        renew(of_these, ks, anew, counts, u, share, fitted, y, cooling, moments, mass, place, drift, places)
        fit(ks, places, moments, mass, counts, model, eta, constant, moved, spread)
        scored = (eta, constant, moved, drift, seen)
        rescore(of_these, ks, places, log_y, y, u, w, unary, rows, graph[0], now, ranges, *scored)
        if lost:
            fallen = (chosen[:0], chosen[:0], anchored, none, none, vacated[:lost])
            weigh(0, len(u), 0, now, *fallen, log_y, anchored, names, u, w, unary, rows, graph[0], live, stop, idle)
        fitted_counts, last = counts, iteration == iterations - 1 or found + lost == 0
        if last:
            mark(u, rows, now, live, stop, idle, *before)
        pulls(steps, prior, now, u, next, w, unary, rows, graph, live, stop, idle)
        if steps % 2:
            u, next, now = next, u, 1 - now
        if last:
            break  # no class is to be fitted again
    return now, live, stop, idle


# Idle classes that become live, and back


@compiled
def enliven(
    counts: Rows, missing: int, fitted: Rows, names: Rows, slots: Rows, place: Rows, now: int, u: Rows, next: Rows,
    w: Rows, unary: Rows, rows: Rows, live: int, stop: int, idle: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Make the idle classes live that have images in `counts` (k), so many; returns live, stop and idle from now on."""
    if stop + missing <= len(names):
        revive(counts, stop, u, next, w, unary, rows, names, slots, idle)
        return live, stop + missing, idle
    give_back(u, next, w, unary, fitted, names, live, stop)
    unite(names, slots, rows, now)
    place[:] = -1
    return 0, len(slots), 0


@compiled
def revive(
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
        total, squares = F(0), F(0)
        for c in range(idle):
            total += u[i, c]
            squares += u[i, c] * u[i, c]
        norm, spread = np.sqrt(squares), total * rows[NORM, i]
        if spread > rows[IDLE, i] * norm > F(0):  # what all of them are owed alike weighs more: see `rounds`
            rows[OWED, i] *= spread / (rows[IDLE, i] * norm)
        rows[IDLE, i], rows[NORM, i] = total, norm


@compiled
def give_back(u: Rows, next: Rows, w: Rows, unary: Rows, fitted: Rows, names: Rows, live: int, stop: int) -> None:
    """Move live classes back to their own columns, when there is no room for more of them."""
    for i in range(len(u)):
        for c in range(live, stop):
            k = names[c]
            u[i, k], next[i, k], w[i, k], unary[i, k] = u[i, c], next[i, c], w[i, c], unary[i, c]
            fitted[i, k] = fitted[i, c]


# The result


@compiled
def mark(
    u: Rows, rows: Rows, now: int, live: int, stop: int, idle: int, before: Rows, share_before: Rows
) -> None:  # fmt: skip
    """Keep z as it is, for `largest_change`."""
    for i in range(len(u)):
        for c in range(np.uint64(idle)):
            before[i, c] = u[i, c]
        for c in range(np.uint64(live), np.uint64(stop)):
            before[i, c] = u[i, c]
        share_before[i], rows[STRAYED, i] = rows[SHARE + now, i], F(0)


@compiled
def largest_change(
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
def assemble(
    begin: int, end: int, z: Rows, order: Rows, u: Rows, share: Rows, names: Rows, live: int, stop: int
) -> None:
    """z_ik = share_i u_ik: n×k, in the order of the classes and of the images, of which `order` (n) are the rows."""
    for i in range(begin, end):
        row = order[i]
        for c in range(z.shape[1]):
            z[row, c] = share[i] * u[i, c]
        for c in range(live if live > 0 else stop, stop):
            z[row, names[c]] = share[i] * u[i, c]


# kedge


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
        exp(y, 0, k, power)
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
        scale = (F(1) - share) / max(mass[a], F(1e-37))
        for c in range(d):
            shift = mean[k, c] - centre[c]
            moments[a, c] = moments[a, c] * scale + share * shift
            moments[a, d + c] = moments[a, d + c] * scale + share * (var[k, c] + shift * shift)
        mass[a] = F(1)


@compiled
def remember(
    x: Rows, z: Rows, trust: np.float32, sure: np.float32, present: np.float32, most: np.float32, known: Rows,
    mean: Rows, var: Rows,
) -> None:  # fmt: skip
    """`remembered` of kedge.py, in place, for x (n×d) and z (n×k). At most one class of an image is sure."""
    n, k, d = len(z), z.shape[1], np.uint64(x.shape[1])
    counts, established, power = sums(z, np.ones(n, F), 0, k), np.empty(k, F), np.empty(k, np.int32)
    for c in range(k):
        established[c] = max(counts[c], F(1e-30))
    log(established, power)
    entropy = 0.0
    for c in range(k):
        entropy -= counts[c] * established[c]
    typical = n / np.exp(np.log(n) + entropy / n)  # images of a class, about
    for c in range(k):
        u = min(counts[c] / F(typical), F(1))
        established[c] = trust * u * u * (F(3) - F(2) * u)
    weight, labels, new = np.zeros(n, F), np.empty(n, np.int64), np.zeros(k, F)
    for i in range(n):
        labels[i] = top(i, z, 0, k)
        if z[i, labels[i]] > sure:
            weight[i] = z[i, labels[i]] * established[labels[i]]
            new[labels[i]] += weight[i]
    place, learned = np.full(k, -1), 0
    for c in range(k):
        if new[c] > present:
            place[c], learned = learned, learned + 1
    first, second = np.zeros((learned, d), F), np.zeros((learned, d), F)
    for i in range(n):
        a = place[labels[i]]
        if a >= 0 and weight[i] > F(0):
            w = weight[i] / new[labels[i]]
            for c in range(d):
                first[a, c] += w * x[i, c]
            for c in range(d):
                second[a, c] += w * x[i, c] * x[i, c]
    for k in range(len(new)):
        if place[k] < 0:
            continue
        a, share = place[k], new[k] / (known[k] + new[k])
        for c in range(d):
            before, of_batch = mean[k, c], first[a, c]
            after = before + share * (of_batch - before)
            spread = max(second[a, c] - of_batch * of_batch, F(0)) + (of_batch - after) ** 2
            old = var[k, c] + (before - after) ** 2
            first[a, c], var[k, c] = after, old + share * (spread - old)
        for c in range(d):
            mean[k, c] = first[a, c]
        known[k] = min(known[k] + new[k], most)


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
    log(logs, power)
    for c in range(k):
        entropy -= counts[c] / total * logs[c]
    few = F(1) - np.exp(entropy) / F(k)
    u = min(max(few, F(0)), F(1))
    weight = trust * u * u * (F(3) - F(2) * u)
    for c in range(k):
        logs[c] = (counts[c] + pseudo) / (F(n) + pseudo * F(k))
    log(logs, power)
    for c in range(k):
        logs[c] *= weight
    exp(logs, 0, k, power)
    return few, logs


@compiled
def rounds(
    steps: int, trust: np.float32, pseudo: np.float32, counts: Rows, prior: Rows, drifted: Rows, names: Rows,
    slots: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, graph: Any, live: int, stop: int,
    idle: int,
) -> float:  # fmt: skip
    """Some z-steps, each with the prior (of columns) that n_k (k) of the one before gives, both in place; returns ω.

    drifted: one entry, how far z moved in the idle columns since their n_k were computed.
    """
    few = 0.0
    for _ in range(steps):
        pull(0, len(u), prior, now, u, next, w, unary, rows, graph, live, stop, idle)
        u, next, now = next, u, 1 - now
        share = rows[SHARE + now]
        of_live = sums(u, share, live, stop)
        for c in range(live, stop):
            counts[names[c]] = of_live[c]
        drift = F(0)
        for i in range(len(u)):
            drift += rows[DRIFT + now, i]
        drifted[0] += drift
        if idle > 0 and drifted[0] > F(0.1) * CLASS_AT_REST:  # a tenth: of a norm, and sums move by more
            of_idle, drifted[0] = sums(u, share, 0, idle), F(0)
            for c in range(idle):
                if slots[c] < 0:
                    counts[c] = of_idle[c]
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
            rows[OWED, i] += idle_turned * rows[IDLE, i] / max(rows[NORM, i], F(1e-30))
    return few
