"""The kernels of _fast.py, which says what they are for. One row of a table is an image, one column a class."""

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
GENTLE = F(2.0)  # pulls up to this, in either direction, need no exponential of more than a polynomial
HEAVY = F(8.0)  # rows of G that sum to more (hubs, a large λ) are done in logarithms
LOWEST, ENDLESS = F(-3e38), 1e30  # in place of infinities, which fastmath rules out
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
AHEAD = 12  # 1: its idle classes are newer in u than in next
UNSEEN = 13  # 1: the best of its idle classes was not looked up since they were computed
BEST = 14  # u of that class
KNOWN = 15


def compiled(kernel: Kernel) -> Kernel:
    """Compile once, keep on disk. fastmath lets sums be vectors; maxima of floats never are, so kernels avoid them.

    Inner loops index whole arrays, z[i, c]: a row of its own, z[i], costs two atomic counts of references. Divisions by
    zero go unchecked, as a check would keep a loop from being vectors. A loop that adds up stores nothing: whether it
    may be vectors would depend on where arrays lie in memory, and so would the last digit. A kernel calls only kernels
    of its own file, and takes constants of others as arguments: what is kept on disk is compiled again when its own
    file changes, only then.
    """
    flags: dict[str, Any] = {"fastmath": True, "nogil": True, "error_model": "numpy"}
    try:
        return cast(Kernel, njit(cache=True, **flags)(kernel))
    except RuntimeError:  # nowhere to keep it, in a read-only installation: then once per process
        return cast(Kernel, njit(**flags)(kernel))


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
def centre(x: Rows) -> Rows:
    """The mean of the rows, d, in float64 until the end."""
    n, d = x.shape
    total = np.zeros(d, np.float64)
    for i in range(n):
        for c in range(d):
            total[c] += np.float64(x[i, c])
    mean: Rows = (total / n).astype(F)
    return mean


@compiled
def phi(begin: int, end: int, start: int, x: Rows, centre: Rows, phi: Rows) -> None:
    """φ = [x − centre, (x − centre)²], from row `start` of x on."""
    d = len(centre)
    for i in range(begin, end):
        for c in range(d):
            phi[i, c] = x[start + i, c] - centre[c]
        for c in range(d):
            phi[i, d + c] = phi[i, c] * phi[i, c]


@compiled
def transpose(table: Rows, out: Rows) -> None:
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
def nothing_known(n: int) -> Rows:
    """Of n images, before the first z-step."""
    rows = np.zeros((KNOWN, n), F)
    for row in (SHARE, MOVED, MOVED + 1, STIRRED, STRAYED):
        for i in range(n):
            rows[row, i] = F(1)
    return rows


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
def weigh(
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
        exp(v, 0, at, power)
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
                restart(i, unary, w, rows, room, room_power, live, stop, idle)
            if reach[i] > GENTLE:  # e^pull makes much of a small change of w
                rows[STIRRED, i] = F(1)


@compiled
def pull(
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
        most, owed, strength = F(0), rows[OWED, i], reach[i]
        for e in range(first, last):
            most = max(most, moved[columns[e]])
        if strength > GENTLE:  # their pulls add up
            most *= strength
        for e in range(first, last if idle > 0 else first):
            owed += abs(values[e]) * drifted[columns[e]]
        rows[OWED, i], share, at_idle = owed, shares[i], rows[IDLE, i]
        at_rest = max(most, rows[STIRRED, i]) <= AT_REST
        if at_rest:
            if moved[i] > F(0):  # else both tables have it
                for c in range(np.uint64(live), np.uint64(stop)):
                    next[i, c] = u[i, c]
            if rows[AHEAD, i] > F(0):
                for c in range(np.uint64(idle)):
                    next[i, c] = u[i, c]
            rows[AHEAD, i] = F(0)
            next_shares[i], moves[i], drifts[i] = share, F(0), F(0)
            continue

        total, change, idle_total, idle_change = F(0), F(0), at_idle, F(0)
        stale = idle > 0 and strength > HEAVY
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
                # Are the idle classes to be computed anew, because z would move by this otherwise?
                stale |= idle > 0 and owed * at_idle > AT_REST * (mass + at_idle)
            else:
                idle_total, idle_change = mass, step
        if strength > HEAVY:
            told = (prior, unary, u, next, pull, power, live, stop, idle)
            total, change, idle_total, idle_change = in_logarithms(i, *told)
        if stale:
            rows[OWED, i], rows[AHEAD, i], rows[UNSEEN, i] = F(0), F(1), F(1)
        elif rows[AHEAD, i] > F(0):  # let both tables have the same
            for c in range(np.uint64(idle)):
                next[i, c] = u[i, c]
            rows[AHEAD, i] = F(0)
        total += idle_total
        # |u'/U' − u/U| ≤ |u' − u|/U' + u |1/U' − 1/U|, of live and of idle classes
        share_next = F(1) / total
        shift = abs(share_next - share)
        drifts[i] = idle_change * share_next + at_idle * shift
        moves[i] = drifts[i] + change * share_next + abs(F(1) / share - at_idle) * shift
        next_shares[i], rows[IDLE, i], rows[STIRRED, i] = share_next, idle_total, F(0)
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
    steps: int, prior: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows,
    offsets: Rows, columns: Rows, values: Rows, live: int, stop: int, idle: int,
) -> None:  # fmt: skip
    """Some z-steps of all rows; after an odd number the last z is in `next`."""
    for _ in range(steps):
        graph = (reach, offsets, columns, values)
        pull(0, len(u), prior, now, u, next, w, unary, rows, *graph, live, stop, idle)
        u, next, now = next, u, 1 - now


@compiled
def around(
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
    weigh(0, len(u), 0, now, *fit, log_y, anchored, names, u, w, unary, rows, reach, *ranges)
    pulls(steps, prior, now, u, next, w, unary, rows, reach, offsets, columns, values, *ranges)
    if steps % 2:
        u, now = next, 1 - now
    best(0, len(u), u, rows, names, idle_labels, labels, *ranges)
    counts, _, missing = tally(labels, slots)
    if missing:
        return counts, missing, 0, 0
    last = (names, live, stop, counts, fitted_counts, fitted)
    return counts, 0, *changed(0, u, rows[SHARE + now], *last, found, found_classes, lost, mass, table)


@compiled
def assemble(begin: int, end: int, z: Rows, u: Rows, share: Rows, names: Rows, live: int, stop: int) -> None:
    """z_ik = share_i u_ik: n×k, in the order of the classes."""
    for i in range(begin, end):
        for c in range(z.shape[1]):
            z[i, c] = share[i] * u[i, c]
        for c in range(live if live > 0 else stop, stop):
            z[i, names[c]] = share[i] * u[i, c]


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
        total = F(0)
        for c in range(idle):
            total += u[i, c]
        rows[IDLE, i], rows[UNSEEN, i] = total, F(1)


@compiled
def give_back(u: Rows, next: Rows, w: Rows, unary: Rows, fitted: Rows, names: Rows, live: int, stop: int) -> None:
    """Move live classes back to their own columns, when there is no room for more of them."""
    for i in range(len(u)):
        for c in range(live, stop):
            k = names[c]
            u[i, k], next[i, k], w[i, k], unary[i, k] = u[i, c], next[i, c], w[i, c], unary[i, c]
            fitted[i, k] = fitted[i, c]


@compiled
def reach(offsets: Rows, values: Rows) -> Rows:
    """The largest pull there can be on each row, n."""
    reach = np.empty(len(offsets) - 1, F)
    for i in range(len(reach)):
        total = F(0)
        for e in range(offsets[i], offsets[i + 1]):
            total += abs(values[e])
        reach[i] = total
    return reach


@compiled
def best(
    begin: int, end: int, u: Rows, rows: Rows, names: Rows, idle_labels: Rows, labels: Rows, live: int, stop: int,
    idle: int,
) -> None:  # fmt: skip
    """The best class of the rows that strayed, the first of equals."""
    for i in range(begin, end):
        if rows[STRAYED, i] <= AT_REST:
            continue
        rows[STRAYED, i] = F(0)
        column = top(i, u, live, stop)
        label, best = np.int64(names[column]), u[i, column]
        if idle > 0:
            if rows[UNSEEN, i] > F(0):
                idle_labels[i] = top(i, u, 0, idle)
                rows[BEST, i], rows[UNSEEN, i] = u[i, idle_labels[i]], F(0)
            if rows[BEST, i] > best or (rows[BEST, i] == best and idle_labels[i] < label):
                label = idle_labels[i]
        labels[i] = label


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
def changed(
    start: int, u: Rows, share: Rows, names: Rows, live: int, stop: int, counts: Rows, fitted_counts: Rows,
    fitted: Rows, chosen: Rows, classes: Rows, vacated: Rows, mass: Rows, columns: Rows,
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
            chosen[found], classes[found] = slot, k
            found += 1
    for first in range(0, found, 8):
        last = min(first + 8, found)
        for i in range(n):
            for a in range(first, last):
                z = share[start + i] * u[start + i, chosen[a]]
                columns[a, i] = z
                if remembers:
                    fitted[start + i, chosen[a]] = z
    for a in range(found):
        total = mass[a] if start else F(0)
        for i in range(n):
            total += columns[a, i]
        mass[a] = total
    return found, lost


@compiled
def fit(
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
        constant[a] = cooling * F(0.5) * (quadratic + F(sum_of_logs(ratio, bits)))


@compiled
def sum_of_logs(ratio: Rows, bits: Rows) -> float:
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
def constants(t: Rows, centre: Rows, var0: Rows, cooling: np.float32) -> Rows:
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
def linear(phi: Rows, centre: Rows, var0: Rows, cooling: np.float32, out: Rows) -> Rows:
    """(x − centre) / Σ', over T, to `out` (rows×d); returns its product with the centre, rows."""
    n, d = len(phi), len(centre)
    own, scale = np.empty(n, F), cooling / var0
    for i in range(n):
        total = F(0)
        for c in range(d):
            total += phi[i, c] * scale[c] * centre[c]
        own[i] = total
        for c in range(d):
            out[i, c] = phi[i, c] * scale[c]
    return own


@compiled
def symmetric(indices: Rows, values: Rows) -> tuple[Rows, Rows, Rows]:
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
    slots: Rows, now: int, u: Rows, next: Rows, w: Rows, unary: Rows, rows: Rows, reach: Rows, offsets: Rows,
    columns: Rows, values: Rows, live: int, stop: int, idle: int,
) -> float:  # fmt: skip
    """Some z-steps, each with the prior (of columns) that n_k (k) of the one before gives, both in place; returns ω.

    drifted: one entry, how far z moved in the idle columns since their n_k were computed.
    """
    few = 0.0
    for _ in range(steps):
        graph = (reach, offsets, columns, values)
        pull(0, len(u), prior, now, u, next, w, unary, rows, *graph, live, stop, idle)
        u, next, now = next, u, 1 - now
        share = rows[SHARE + now]
        of_live = sums(u, share, live, stop)
        for c in range(live, stop):
            counts[names[c]] = of_live[c]
        for i in range(len(u)):
            drifted[0] += rows[DRIFT + now, i]
        if idle > 0 and drifted[0] > CLASS_AT_REST:
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
            rows[OWED, i] += idle_turned
    return few


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
