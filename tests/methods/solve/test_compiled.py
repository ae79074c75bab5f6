"""The compiled solver gives what the torch solver gives, in every corner of its settings and shapes.

Only behaviour that users see: `compiled=True` in float32 against torch in float64. Nothing here knows how it solves.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import kedge
from kedge import progress
from kedge.features.simulate import simulate
from kedge.methods.solve import compiling

pytest.importorskip("numba", reason="the compiled solver is the extra `fast`")

METHODS = ["stata", "kedge"]
CLOSE = 2e-5


def largest_difference(
    x: Tensor, t: Tensor, logit_scale: float = 100.0, method: str = "stata", **settings: Any
) -> float:
    """In z, between the compiled solver and torch's in float64."""
    ours = kedge.adapt(x, t, method, logit_scale, **settings)
    exact = kedge.adapt(x.double(), t.double(), method, logit_scale, **settings)
    assert ours.info["iterations"] == exact.info["iterations"]
    assert ours.info["change"] == pytest.approx(exact.info["change"], abs=1e-3)
    assert torch.equal(ours.labels, exact.labels)
    return float((ours.probs.double() - exact.probs).abs().max())


def random_rows(seed: int, *rows: int, d: int, shift: float = 0.0) -> tuple[Tensor, ...]:
    """Unit rows that no encoder made: many similarities are negative."""
    g = torch.Generator().manual_seed(seed)
    return tuple(normalize(torch.randn(n, d, generator=g) + shift) for n in rows)


@pytest.mark.parametrize("k", [40, 700])  # with many, most are in no image's mind
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": "soft"},
        {"beta": "soft", "alpha": 0.1},
        {"beta": "soft", "alpha": 0.01},
        {"alpha": 10.0},
        {"alpha": float("inf")},
        {"laplacian": 0.0},
        {"laplacian": 5.0},
        {"laplacian": 100.0},
        {"neighbours": 1},
        {"neighbours": 200},
        {"unit_means": False},
        {"temperature": 10.0},
        {"temperature": 1.0},
        {"iterations": 0},
        {"iterations": 1, "z_steps": 1},
        {"z_steps": 4},
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any], k: int) -> None:
    f = simulate(max(150, k), k, d=64, k_eff=8, seed=3)
    assert largest_difference(f.image_features[:150], f.head.features, **settings) < CLOSE


@pytest.mark.parametrize("k", [40, 700])
def test_without_anchors(k: int) -> None:
    """Classes are what rounding makes them: torch's float32 is no nearer to float64."""
    f = simulate(max(150, k), k, d=64, k_eff=8, seed=3)
    x = f.image_features[:150]
    exact = kedge.adapt(x.double(), f.head.features.double(), "stata", alpha=0.0).probs
    off = [(kedge.adapt(x, f.head, "stata", alpha=0.0, compiled=on).probs - exact).abs().max() for on in (True, False)]
    assert off[0] < off[1] + CLOSE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("n", "k", "d"),
    [(1, 1, 4), (1, 7, 8), (2, 3, 8), (3, 1, 5), (5, 70, 33), (70, 65, 17), (30, 600, 16), (300, 200, 48)],
)
@pytest.mark.parametrize("logit_scale", [1.0, 20.0])
def test_shapes(method: str, n: int, k: int, d: int, logit_scale: float) -> None:
    x, t = random_rows(n + k, n, k, d=d)
    assert largest_difference(x, t, logit_scale, method=method) < CLOSE


@pytest.mark.parametrize("method", METHODS)
def test_duplicates(method: str) -> None:
    f = simulate(60, 20, d=32, seed=5)
    x = f.image_features[torch.arange(60) // 3]  # every image three times; a third neighbour would be a tie
    assert largest_difference(x, f.head.features, method=method, neighbours=2) < CLOSE


@pytest.mark.parametrize("n", [8, 60])
@pytest.mark.parametrize(
    "settings", [{}, {"alpha": 10.0, "temperature": 1.0}, {"unit_means": False}, {"method": "kedge"}], ids=str
)
def test_rounded_prototypes(n: int, settings: dict[str, Any]) -> None:
    """Not quite of unit norm: an empty class is at t at first, and at unit(t) after the first fit."""
    f = simulate(60, 20, d=32, seed=5)
    assert largest_difference(f.image_features[:n], f.head.features * (1 + 9e-4), **settings) < CLOSE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crowd", [100, 800])
def test_a_hub(method: str, crowd: int) -> None:
    """One image that is everybody's nearest: what pulls at it is beyond e^88."""
    f = simulate(50, 20, d=64, seed=5)
    middle, (around,) = f.image_features[:1], random_rows(0, crowd, d=64)
    x = torch.cat([middle, normalize(middle + 0.6 * around), f.image_features])
    assert largest_difference(x, f.head.features, method=method) < CLOSE


@pytest.mark.parametrize("seed", [1, 29, 59, 113])
def test_a_very_strong_graph(seed: int) -> None:
    """Changes of log p far below the sum of all decide once they are multiplied by e^100."""
    x, t = random_rows(seed, 12, 5, d=32, shift=0.5)
    assert largest_difference(x, t, laplacian=100.0) < CLOSE


@pytest.mark.parametrize(
    ("seed", "n", "k", "d", "settings"),
    [
        (12, 60, 40, 12, {}),
        (100, 20, 60, 24, {}),
        (159, 20, 60, 24, {"temperature": 200.0, "presence": False}),
    ],
)
def test_a_graph_that_raises_hopeless_classes(seed: int, n: int, k: int, d: int, settings: dict[str, Any]) -> None:
    """With λ = 50 a class goes from z = 1e-20 to a label when the neighbours change to it: its log p is needed then."""
    x, t = random_rows(seed, n, k, d=d, shift=0.5)
    strong = {"laplacian": 50.0, "neighbours": 2, "alpha": 0.01, "guard": False}
    assert largest_difference(x, t, method="kedge", **strong, **settings) < CLOSE


@pytest.mark.parametrize("away", [0.215, 0.22, 0.225])
def test_a_class_spread_thin_over_many_images(away: float) -> None:
    """Each image has less than 1e-10 of it, all together more than 1e-6: soft counts, but next to no mass."""
    g = torch.Generator().manual_seed(0)
    axis, *others = torch.linalg.qr(torch.randn(16, 16, generator=g)).Q.T
    cosines = torch.tensor([0.8, 0.8, 0.8, 0.8 - away])
    t = torch.stack([c * axis + (1 - c**2).sqrt() * o for c, o in zip(cosines, others, strict=False)])
    x = normalize(axis + 3e-4 * torch.randn(20_000, 16, generator=g))
    settings = {"beta": "soft", "laplacian": 0.0, "temperature": 500.0, "iterations": 1, "z_steps": 1}
    probs = kedge.adapt(x, t, "stata", normalize=True, **settings).probs
    assert torch.allclose(probs.sum(dim=1), torch.ones(len(x)), atol=1e-4)


@pytest.mark.parametrize(
    ("seed", "n", "k", "d", "alpha", "iterations"), [(355, 8, 3, 16, 1.0, 25), (1860, 20, 6, 8, 1e-3, 15)]
)
def test_classes_of_hardly_more_than_an_image(seed: int, n: int, k: int, d: int, alpha: float, iterations: int) -> None:
    """At T = 1 their small variance multiplies every rounding."""
    x, t = random_rows(seed, n, k, d=d)
    assert largest_difference(x, t, 20.0, temperature=1.0, alpha=alpha, iterations=iterations) < CLOSE


@pytest.mark.parametrize(("seed", "temperature"), [(1, 5.0), (4, 5.0), (4, 20.0), (5, 20.0), (1, 50.0), (5, 50.0)])
def test_a_class_nobody_considers_at_first_becomes_a_label(seed: int, temperature: float) -> None:
    """The odd image among two hundred that are alike: their class leaves it, for one with 1e-4 of its best at first."""
    g = torch.Generator().manual_seed(seed)
    t, two = (normalize(torch.randn(rows, 64, generator=g)) for rows in (20, 2))
    alike = 0.35 * t[0] + 0.9 * two[0] + 0.03 * torch.randn(200, 64, generator=g)
    odd = 0.4 * t[0] + 0.34 * t[1] + 0.6 * two[1] + 0.1 * torch.randn(1, 64, generator=g)
    x, settings = normalize(torch.cat([alike, odd])), {"temperature": temperature, "alpha": 0.1}
    start = kedge.adapt(x, t, "stata", iterations=0, z_steps=1, **settings).probs
    of_best = (start / start.amax(dim=1, keepdim=True)).amax(dim=0)
    assert of_best[kedge.adapt(x, t, "stata", **settings).labels].min() < 1e-4
    assert largest_difference(x, t, **settings) < CLOSE


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"presence": False},
        {"leave_one_out": False},
        {"guard": False},
        {"alpha": 10.0},
        {"iterations": 0},
        {"z_steps": 1},
    ],
    ids=str,
)
def test_kedge_along_a_stream(settings: dict[str, Any]) -> None:
    """Later batches have a memory of earlier ones. Of two or five images the guard trusts nothing: T has no end."""
    f = simulate(150, 40, d=64, k_eff=8, seed=3)
    compiled, plain = (kedge.Stream(f.head, compiled=on, **settings) for on in (True, False))
    for rows in (slice(0, 80), slice(80, 150), slice(149, 150), slice(3, 5), slice(20, 25), slice(0, 80)):
        ours, theirs = compiled.step(f.image_features[rows]), plain.step(f.image_features[rows])
        torch.testing.assert_close(ours.probs, theirs.probs, atol=CLOSE, rtol=0)
        assert ours.info.keys() == theirs.info.keys()


@pytest.mark.parametrize("logit_scale", [1.0, 20.0])
def test_kedge_where_no_class_is_present(logit_scale: float) -> None:
    """Two undecided images: no class has a tenth of an image, at first or ever."""
    x, t = random_rows(0, 2, 300, d=16)
    assert largest_difference(x, t, logit_scale, method="kedge", guard=False) < CLOSE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("logit_scale", [20.0, 100.0])
@pytest.mark.parametrize("n", [10, 60])
def test_identical_images_get_identical_answers(method: str, logit_scale: float, n: int) -> None:
    """Equal features and, as everybody is everybody's neighbour, equal edges: nothing at rest may freeze apart."""
    f = simulate(n, 12, d=32, seed=1)
    x = f.image_features[torch.arange(n) // 2]
    z = kedge.adapt(x, f.head.features, method, logit_scale, neighbours=n - 1).probs
    assert (z[0::2] - z[1::2]).abs().max() < 1e-5


@pytest.mark.parametrize(
    "settings",
    [{"graph": "dense"}, {"tol": 1e-3}, {"objective": True}, {"released_variance": True}, {"alpha": 0, "beta": "soft"}],
    ids=str,
)
def test_what_it_can_not_do_is_left_to_torch(settings: dict[str, Any]) -> None:
    f = simulate(80, 5, d=16, seed=0)
    ours, theirs = (kedge.adapt(f, method="stata", compiled=on, **settings) for on in (True, False))
    assert ours.info.keys() == theirs.info.keys()
    torch.testing.assert_close(ours.probs, theirs.probs, atol=1e-6, rtol=0)


# Same input, same result, to the bit


def some_tasks() -> list[tuple[kedge.FeatureSet, str, dict[str, Any]]]:
    features = [simulate(60, 60, d=16, k_eff=k_eff, seed=k_eff).take(slice(30)) for k_eff in (3, 8, 20)]
    return [
        (features[0], "stata", {}),
        (features[0], "stata", {"neighbours": 10, "z_steps": 4}),
        (features[1], "stata", {"laplacian": 100.0}),
        (features[1], "stata", {"beta": "soft"}),
        (features[2], "kedge", {}),
        (features[2], "stata", {"iterations": 0, "z_steps": 1}),
        (features[0], "stata", {"temperature": 5.0}),
    ]


def results() -> list[Tensor]:
    return [kedge.adapt(f, method=method, **settings).probs for f, method, settings in some_tasks()]


def test_what_ran_before_does_not_matter() -> None:
    tasks, expected = some_tasks(), results()
    for (f, method, settings), z in reversed(list(zip(tasks, expected, strict=True))):
        assert torch.equal(kedge.adapt(f, method=method, **settings).probs, z)


def test_threads_solve_at_once() -> None:
    expected = results()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: results(), range(12)):
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_streams_in_several_threads_do_not_touch() -> None:
    f = simulate(400, 30, d=32, k_eff=6, seed=2)

    def walk(_: int = 0) -> list[Tensor]:
        stream = kedge.Stream(f.head)
        return [stream.step(f.image_features[start : start + 50]).probs for start in range(0, 400, 50)]

    expected = walk()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(walk, range(8)):
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def _in_a_fork(expected: list[np.ndarray], answers: Any) -> None:
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    answers.put(all(np.array_equal(z.numpy(), known) for z, known in zip(results(), expected, strict=True)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_goes_on_solving() -> None:
    expected = [z.numpy() for z in results()]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_a_fork, args=(expected, answers))
    child.start()
    assert answers.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0


def test_inference_mode_changes_nothing() -> None:
    f = simulate(21, 13, d=16, seed=0)
    with torch.inference_mode():
        inside = kedge.adapt(f).probs.numpy()
    np.testing.assert_array_equal(kedge.adapt(f).probs.numpy(), inside)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "k", "d"), [(70, 60, 16), (2, 5, 8), (3, 16, 5), (20, 300, 16)])
def test_where_arrays_lie_in_memory_does_not_matter(method: str, n: int, k: int, d: int) -> None:
    """They are new in every solve, and some touch where they are short."""
    (x, t), rng, seen = random_rows(3, n, k, d=d), np.random.default_rng(0), set()
    for _ in range(100):
        between = [np.empty(size, np.float32) for size in rng.integers(1, 3000, rng.integers(0, 20))]
        seen.add(kedge.adapt(x, t, method=method, iterations=2).probs.numpy().tobytes())
        del between
    assert len(seen) == 1


# The first call


def warmed_up(cache: Path, *, shown: bool = True) -> str:
    """What people see of `kedge.warm_up` in a new process."""
    inside = "progress.on_stderr()" if shown else "nullcontext()"
    program = f"""
from contextlib import nullcontext
import kedge
from kedge import progress
from kedge.features.simulate import simulate
with {inside}:
    kedge.warm_up()
    print("warm", flush=True)
    for n in (60, 300):
        for method in ("stata", "kedge"):
            kedge.adapt(simulate(n, 20, d=16, seed=0), method=method)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "warm\n"
    return done.stderr


def test_compiling_says_so_once_on_a_machine(tmp_path: Path) -> None:
    assert warmed_up(tmp_path) == "compiling the solver, once on this machine (about 10 s)\n"
    files = sorted(tmp_path.rglob("*.nbc"))
    assert warmed_up(tmp_path) == ""
    assert sorted(tmp_path.rglob("*.nbc")) == files  # `warm_up` left nothing to compile


def test_who_waits_without_numba_hears_of_it_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    f = simulate(20, 5, d=16, seed=0)
    monkeypatch.setattr(compiling, "has_numba", lambda: False)
    monkeypatch.setattr(compiling, "_said", set())
    with progress.on_stderr():
        kedge.adapt(f)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(compiling, "LONG", 0)
        for method in METHODS:
            kedge.adapt(f, method=method)
    assert capsys.readouterr().err == 'this takes less time with the compiled solver: pip install "kedge[fast]"\n'
    kedge.warm_up()
    torch.testing.assert_close(kedge.adapt(f).probs, kedge.adapt(f, compiled=False).probs, atol=0, rtol=0)


def test_ctrl_c_in_a_kernel_is_no_error_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        overloads = True

        def __call__(self) -> None:
            try:
                raise SystemError("returned a result with an exception set") from KeyboardInterrupt()
            except SystemError as error:
                raise SystemError("returned a result with an exception set") from error

    monkeypatch.setattr("numba.njit", lambda **_: lambda _: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        compiling.kernel(lambda: None)()
