"""Kernels for what a solver starts from: each makes a table or a row of numbers."""

from __future__ import annotations

import numpy as np

from ._kernels import F, Rows, compiled


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
def centred(x: Rows, order: Rows, centre: Rows, y: Rows, spread: Rows) -> None:
    """y = x − centre (n×d), its rows in this order, and the largest norms of y and of y² (2)."""
    for i in range(len(x)):
        first, second, row = F(0), F(0), order[i]
        for c in range(len(centre)):
            y[i, c] = x[row, c] - centre[c]
        for c in range(len(centre)):
            square = y[i, c] * y[i, c]
            first += square
            second += square * square
        spread[0], spread[1] = max(spread[0], np.sqrt(first)), max(spread[1], np.sqrt(second))


@compiled
def over(cooling: np.float32, var0: Rows) -> Rows:
    """cooling / Σ', d, in the middle of an array: far from all others, as `compiled` asks of quotients."""
    d = len(var0)
    scale = np.empty(d + 64, F)[32 : 32 + d]
    for c in range(d):
        scale[c] = cooling / var0[c]
    return scale


@compiled
def linear(y: Rows, centre: Rows, var0: Rows, cooling: np.float32, out: Rows) -> Rows:
    """y / Σ', over T, to `out` (rows×d), y = x − centre; returns its product with the centre, rows."""
    n, d = len(y), len(centre)
    own, scale = np.empty(n, F), over(cooling, var0)
    for i in range(n):
        total = F(0)
        for c in range(d):
            total += y[i, c] * scale[c] * centre[c]
        own[i] = total
        for c in range(d):
            out[i, c] = y[i, c] * scale[c]
    return own


@compiled
def constants(t: Rows, centre: Rows, var0: Rows, cooling: np.float32) -> Rows:
    """½ Σ_d (t_kd − centre_d)² / Σ'_d, over T: k."""
    k, d = t.shape
    constant, scale = np.empty(k, F), over(cooling, var0)
    for j in range(k):
        total = F(0)
        for c in range(d):
            shift = t[j, c] - centre[c]
            total += shift * shift * scale[c]
        constant[j] = F(0.5) * total
    return constant


@compiled
def symmetric(indices: Rows, values: Rows, weight: np.float32) -> tuple[Rows, Rows, Rows]:
    """weight · (W + Wᵀ) as compressed sparse rows, an image's own neighbours first: offsets, columns and values."""
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
                columns[place[row]], weights[place[row]] = column, weight * values[i, q]
                place[row] += 1
    return offsets, columns, weights


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
