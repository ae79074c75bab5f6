"""kedge against outputs of the authors' program on real features (../shared/golden), and against the oracle.

The recordings are float32, and some are further from float64 than the tolerance: images between two classes
multiply rounding errors, about fourfold per iteration. `RECORDING_OFF` names those entries with the distance
measured, and the test asks something else of them. It is the arithmetic, not the method: on the largest case
the oracle agrees with our float64 to 1e-13 (hard β), while the oracle's own float32 run is 0.038 (hard β) and
0.032 (soft β) away, mostly in the images where the recording is off. That took minutes, so it is no test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

import kedge
import oracle
from kedge.methods.solve.gaussian import Features
from kedge.methods.solve.neighbours import nearest_neighbours
from recordings import (
    DUPLICATES,
    column_distance,
    comparable_rows,
    distances,
    entries,
    inputs,
    recording,
)

TOLERANCE = 2e-3  # on z, against a float32 recording
NEAR_TIE = 1e-3  # two classes this close in float64: either may be the label in float32
SETTINGS: dict[str, dict[str, Any]] = {
    "zs": {"method": "zero-shot"},
    "stata_released": {"released_variance": True},  # a difference for n > 2500 only
    "stata_soft_released": {"beta": "soft", "released_variance": True},
    "stata_fixed": {},
    "stata_soft_fixed": {"beta": "soft"},
    "stata_alpha0.1": {"alpha": 0.1},
    "stata_alpha10": {"alpha": 10.0},
}


@dataclass(frozen=True)
class Off:
    """How far a recording is from us: its worst entry, its rows beyond TOLERANCE, its worst column sum."""

    entry: float
    rows: int
    column: float = 0.0  # recorded for large cases only
    own: float = 1e-4  # how far our float32 may be from our float64


RECORDING_OFF = {
    # Our own float32 is 5e-5 to 1.0e-4 from our float64 here, by the order of the images.
    ("sun397_val_vitb32", "case_b", "stata_soft_released"): Off(0.0044, 1, own=2e-4),
    ("sun397_val_vitb32", "case_d", "stata_released"): Off(0.0130, 11, 0.0134),
    ("sun397_val_vitb32", "case_d", "stata_soft_released"): Off(0.0048, 5, 0.0111),
    ("sun397_val_vitb32", "case_d", "stata_fixed"): Off(0.1034, 34, 0.2033),
    ("sun397_val_vitb32", "case_d", "stata_soft_fixed"): Off(0.0639, 16, 0.1437),
}
COLUMN_TOLERANCE = 1e-3  # on sums of a column of z over some thousand images
# Exact duplicates: the program drops the best match unseen, so these stay their own neighbours. Ours do not.


@lru_cache(maxsize=64)
def solve(name: str, case: str, entry: str, dtype: type = np.float32) -> np.ndarray:
    return kedge.adapt(*inputs(name, case, dtype), **{"method": "stata", **SETTINGS[entry]}).probs


@pytest.mark.parametrize(("name", "case", "entry"), list(entries(rf"case_\w/({'|'.join(SETTINGS)})/pred")))
def test_recorded_output(name: str, case: str, entry: str) -> None:
    z = solve(name, case, entry)
    rows = comparable_rows(name, case, len(z))
    off = distances(name, case, entry, z)[rows]
    column = column_distance(name, case, entry, z)
    known = RECORDING_OFF.get((name, case, entry))
    if known is None:
        assert off.max() <= TOLERANCE
        assert column <= COLUMN_TOLERANCE
    else:
        # It is the recording: our float64 solve is just as far from it, and our float32 is on our float64.
        z64 = solve(name, case, entry, np.float64)
        off64 = distances(name, case, entry, z64)[rows]
        assert np.abs(z - z64).max() <= known.own
        assert off64.max() > TOLERANCE
        found = Off(off.max(), (off > TOLERANCE).sum(), column)
        assert found.entry <= 1.05 * known.entry
        assert found.rows <= 1.05 * known.rows
        assert found.column <= 1.05 * known.column

    flipped = np.flatnonzero(z.argmax(axis=1) != recording(name)[f"{case}/{entry}/pred"])
    if len(flipped):  # a label may differ only where float64 itself hardly decides
        z64 = solve(name, case, entry, np.float64)
        best = np.sort(z64[flipped], axis=1)
        assert (best[:, -1] - best[:, -2]).max() < NEAR_TIE


@pytest.mark.parametrize(("name", "case", "entry"), list(entries(r"case_\w/stata_f64/z")))
def test_recorded_output_in_float64(name: str, case: str, entry: str) -> None:
    z = solve(name, case, "stata_released", np.float64)
    assert np.abs(z - recording(name)[f"{case}/{entry}/z"]).max() <= 1e-9


def test_every_recording_is_compared(shared: object) -> None:
    """The parametrised tests look for what is there; this one says what must be."""
    found = [param.values for param in entries(r"case_\w/(stata\S*|zs)/pred")]
    unknown = {entry for _, _, entry in found} - set(SETTINGS) - {"stata_f64"}
    assert not unknown
    assert len(found) >= 80
    assert set(RECORDING_OFF) <= set(found)


def test_neighbours_are_the_recorded_ones(shared: object) -> None:
    for name in ("dtd_test_vitb32", "sun397_val_vitb32"):
        x, _ = inputs(name, "case_d")
        rows = comparable_rows(name, "case_d", len(x))
        ours = nearest_neighbours(torch.from_numpy(x), 3).indices.sort(dim=1).values.numpy()
        theirs = np.sort(recording(name)["case_d/knn_top4_idx"][:, 1:].astype(int), axis=1)
        assert (ours == theirs)[rows].all()


def test_duplicates_are_neighbours_and_nobody_is_their_own(shared: object) -> None:
    x, _ = inputs("dtd_test_vitb32", "case_d")
    index, value = nearest_neighbours(torch.from_numpy(x), 3)[:2]
    assert not (index == torch.arange(len(x))[:, None]).any()
    twins = DUPLICATES["dtd_test_vitb32", "case_d"]
    assert index[twins, 0].tolist() == recording("dtd_test_vitb32")["case_d/knn_top4_idx"][twins, 0].tolist()
    assert (value[twins, 0] > 0.9999).all()


def test_chunk_bug_changes_the_recorded_number_of_labels(shared: object) -> None:
    """The program's mistake in Σ' changed 163 of 3970 labels. Our switch for it does too, up to near ties."""
    case = ("sun397_val_vitb32", "case_d")
    ours = (solve(*case, "stata_fixed").argmax(axis=1) != solve(*case, "stata_released").argmax(axis=1)).sum()
    g = recording(case[0])
    theirs = (g["case_d/stata_fixed/pred"] != g["case_d/stata_released/pred"]).sum()
    assert theirs == 163
    assert abs(ours - theirs) <= 1


def test_step_by_step(shared: object) -> None:
    """Every quantity of every iteration on dtd case_a: graph, Σ', z, log p, β, μ, Σ."""
    name = "dtd_test_vitb32"
    recorded = {
        key.split("/")[-1]: torch.from_numpy(recording(name)[key])
        for key in recording(name).files
        if key.startswith("internals/dtd_case_a/")
    }
    x, t = (torch.from_numpy(a) for a in inputs(name, "case_a"))
    n, k = len(x), len(t)

    index, value = nearest_neighbours(x, 3)[:2]
    order = index.argsort(dim=1)
    row, column = recorded["W_row_col"].long()
    by_row = (row * n + column).argsort()
    assert torch.equal(row[by_row], torch.arange(n).repeat_interleave(3))
    assert torch.equal(column[by_row], index.gather(1, order).flatten())
    torch.testing.assert_close(value.gather(1, order).flatten(), recorded["W_val"][by_row], atol=1e-6, rtol=0)

    steps = list(kedge.StatA().iterate(kedge.Batch(x, kedge.TextHead(t))))
    assert len(steps) == len(recorded["z"]) == len(recorded["mu"]) + 1 == 11
    var0 = steps[0].var0
    assert var0 is not None
    torch.testing.assert_close(var0, recorded["init_cov"], rtol=1e-5, atol=0)

    for i, step in enumerate(steps):
        # The recorded "likelihoods" are log p without log |Σ|; ours lack what all classes have in common.
        mu, var = (recorded["mu"][i - 1], recorded["cov"][i - 1]) if i else (t, var0.expand_as(t))
        features = Features.of(x)
        ours = features.log_density(features.natural(mu, var, var0)) + 0.5 * (var / var0).log().sum(dim=1)
        gap = (recorded["likelihoods"][i] - ours).double()
        assert (gap - gap.mean(dim=1, keepdim=True)).abs().max() <= 1e-3, i
        torch.testing.assert_close(step.z, recorded["z"][i], atol=1e-4, rtol=0)
        if step.active is None:
            assert i == 10
            break
        assert step.beta is not None
        assert step.mu is not None
        assert step.var is not None
        # All classes: those that were not updated are on their anchors.
        beta = torch.zeros(k).index_copy(0, step.active, step.beta)
        mu = t.index_copy(0, step.active, step.mu)
        var = var0.expand_as(t).index_copy(0, step.active, step.var)
        torch.testing.assert_close(beta, recorded["beta"][i], atol=1e-6, rtol=0)
        torch.testing.assert_close(mu, recorded["mu"][i], atol=2e-6, rtol=0)
        torch.testing.assert_close(var, recorded["cov"][i], atol=0, rtol=1e-4)


# Against our own float64 oracle, on the same inputs. sun397's larger cases would take it minutes.
WITH_ORACLE = [
    ("dtd_test_vitb32", "case_a"),
    ("dtd_test_vitb32", "case_b"),
    ("whurs19_clip_vitb32", "case_a"),
]
WITH_ORACLE += [
    ("whurs19_clip_rn50", "case_a"),
    ("whurs19_clip_rn50", "case_b"),
    ("sun397_val_vitb32", "case_a"),
]


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("beta", ["hard", "soft"])
@pytest.mark.parametrize(("name", "case"), WITH_ORACLE)
def test_against_oracle(shared: object, name: str, case: str, beta: Any, alpha: float) -> None:
    x, t = (torch.from_numpy(a) for a in inputs(name, case))
    knobs: dict[str, Any] = {"beta": beta, "alpha": alpha}
    truth = oracle.stata(x.double(), t.double(), **knobs).z[-1]
    assert (kedge.adapt(x.double(), t.double(), method="stata", **knobs).probs - truth).abs().max() <= 1e-9
    off = (kedge.adapt(x, t, method="stata", **knobs).probs - truth).abs().max()
    if off > 1e-4:
        # An image between two classes: up to 3e-4 measured (whurs19_clip_rn50 case_b, soft). The oracle's own
        # float32 run tells how much float32 itself loses there; ours may not lose more.
        assert off <= (oracle.stata(x, t, **knobs).z[-1] - truth).abs().max()
        assert off <= 1e-3
