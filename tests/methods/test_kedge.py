"""kedge's own method: its equations against a plain form, its guard, its memory, and what it gains on real features.

Simulated features unless a test takes `shared`.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import oracle
from cases import simulated
from kedge import Batch, FeatureSet, Stream, TextHead, adapt
from kedge.arrays import effective_classes, unit
from kedge.benchmark.evaluate import evaluate
from kedge.benchmark.plan import draw
from kedge.features.simulate import simulate
from kedge.methods.contract import Step
from kedge.methods.kedge import Evidence, Kedge, Prior, smooth

ALONE = Kedge(memory=False)


def solved(x: Tensor, t: Tensor, scale: float = 100.0, method: Kedge = ALONE) -> Step:
    head = TextHead(t, scale)
    return method.step(method.init(head), Batch(x, head))


def plain(x: Tensor, t: Tensor, scale: float, iterations: int = 10, z_steps: int = 3) -> Tensor:
    """z by the equations of the docstring, class by class and with every n×n and n×k array there is."""
    n, d = x.shape
    k, w = len(t), oracle.nearest(x, 3)
    raw = y = (scale * x @ t.T).softmax(dim=1)
    raw_sure = float(raw.amax(dim=1).mean())

    def evidence(y: Tensor) -> tuple[float, float, float]:
        """Information of ŷ as a share of log K, κ and K̂."""
        labels, pi = y.argmax(dim=1), y.mean(dim=0)
        same = (labels[:, None] == labels) & (w > 0)
        for _ in range(5):
            pi = torch.stack([y[i] * pi / (y[i] @ pi) for i in range(n)]).mean(dim=0)
        agreement = float(same.sum()) / int((w > 0).sum())
        return 1 - entropy(y) / math.log(k), (agreement - 1 / k) / (1 - 1 / k), math.exp(entropy(pi))

    information, kappa, classes = evidence(y)
    p, reach = y.mean(dim=0), min(1.0, max(n / k - 1, 0) / 3)
    share = (1 - entropy(p) / math.log(k)) / information
    even = min(1.0, max(0.0, 2 - share / 0.05))
    weight = min(1.0, 4 * information) * even * smooth((classes / k + raw_sure - 0.8) / 0.2)
    y = (y.log() - (weight * smooth((kappa / reach - 0.1) / 0.4) if reach else 0) * p.log()).softmax(dim=1)

    information, kappa, classes = evidence(y)
    decided = min(1.0, 4 * information)
    visual, q = decided * smooth((kappa - 0.1) / 0.4), classes / k
    b = n / classes / (1 - float(y.amax(dim=1).mean()) + 1e-3)
    r, rho = q / (q + (1 - q) * (1 + b)), decided * (1 - q) * (1 - math.exp(-n / classes)) * (1 - even)
    var0 = sum((raw[:, j, None] * (x - t[j]).square()).sum(dim=0) for j in range(k)) / n
    mu, var, own = list(t), [var0] * k, torch.zeros(n, k, dtype=x.dtype)
    z, prior = y, torch.zeros(n, k, dtype=x.dtype)
    for iteration in range(iterations + 1):
        log_p = torch.stack([-0.5 * ((x - mu[j]).square() / var[j] + var[j].log()).sum(dim=1) for j in range(k)], dim=1)
        for _ in range(z_steps):
            scores = y.log() + prior + visual * ((log_p - own) / 50 + (w + w.T) @ z / 6)
            z = scores.softmax(dim=1)
            n_k = z.sum(dim=0)
            m = n_k - z
            prior = rho * ((m + r * b + 1e-6) / (m + b)).log()
        if iteration == iterations:
            break
        for j in range(k):
            mu[j], var[j], own[:, j] = t[j], var0, 0
            if n_k[j] > 0.1:
                beta = n_k[j] / (n_k[j] + 1)
                v = (z[:, j, None] * x).sum(dim=0) / n_k[j]
                u = beta * v / v.norm() + (1 - beta) * t[j]
                mu[j] = u / u.norm()
                scatter = (z[:, j, None] * (x - mu[j]).square()).sum(dim=0) / n_k[j]
                var[j] = beta * scatter + (1 - beta) * (var0 + (t[j] - mu[j]).square())
                own[:, j] = rho * d * z[:, j] / (n_k[j] + 1)
    return torch.stack([cooled(scores[i], float(z[i].max() + raw[i].max()) / 2) for i in range(n)])


def cooled(scores: Tensor, target: float) -> Tensor:
    """softmax(L/ϑ) with the ϑ from 1 to 50 at which the largest is `target`, by bisection."""
    low, high = 1.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float((scores / middle).softmax(dim=0).max()) > target else (low, middle)
    return (scores / low).softmax(dim=0)


def entropy(p: Tensor) -> float:
    return float(torch.distributions.Categorical(p).entropy().mean())


@pytest.mark.parametrize(
    ("n", "k", "present", "noise", "scale"),
    [(30, 5, None, 0.3, 20.0), (40, 12, 3, 0.4, 10.0), (2, 3, None, 0.3, 20.0), (25, 6, 2, 0.8, 4.0)],
)
def test_plain_form(n: int, k: int, present: int | None, noise: float, scale: float) -> None:
    x, t = simulated(n, k, noise=noise, present=present, seed=n)
    assert (solved(x, t, scale).z - plain(x, t, scale)).abs().max() <= 1e-8


def test_the_cases_of_the_plain_form_try_the_guard() -> None:
    """Between trusted and not: else the comparison above would not see v."""
    x, t = simulated(25, 6, noise=0.8, present=2, seed=25)
    assert 0.05 < solved(x, t, 4.0).info["trust"] < 0.95


def test_objective_does_not_rise() -> None:
    """z-steps with fixed trust and Gaussians, without a graph and with m = n_k: each lowers L or keeps it."""
    x, t = simulated(40, 8, noise=0.5, present=3)
    unary = (10 * x @ t.T).log_softmax(dim=1)
    z, prior = unary.exp(), Prior(floor=0.05, size=12.0, weight=0.7)

    def loss() -> float:
        n = z.sum(dim=0)
        f = (n + prior.floor) * (n + prior.floor).log() - (n + prior.size) * (n + prior.size).log()
        return float(torch.special.xlogy(z, z).sum() - (z * unary).sum() - prior.weight * f.sum())

    values = [loss()]
    for _ in range(10):
        z = (unary + prior.log(z.sum(dim=0), 0.0)).softmax(dim=1)
        values.append(loss())
    assert all(after <= before + 1e-10 for before, after in itertools.pairwise(values))
    assert values[-1] < values[0] - 0.1


def test_presences_do_not_grow_without_bound() -> None:
    """A class of many images gains nothing by one more; an image alone in its class pays log r."""
    prior = Prior(floor=0.2, size=20.0, weight=1.0)
    n = torch.tensor([1.0, 20.0, 1000.0, 2000.0], dtype=torch.float64)
    alone, some, many, more = prior.log(n, 1.0).tolist()
    assert alone == pytest.approx(math.log(0.2 / 20))
    assert some < many < more < 0
    assert more - many < 0.01


def test_every_part_can_be_taken_out() -> None:
    """Each changes something where it applies: a whole set for the bias step, few classes for the rest."""
    few, all_of_them = simulate(64, 50, k_eff=4, seed=1), simulate(400, 10, accuracy=0.6, seed=2)
    for name, features in (
        ("bias", all_of_them), ("presence", few), ("leave_one_out", few), ("honest", few),
    ):  # fmt: skip
        whole, without = adapt(features), adapt(features, **{name: False})
        assert (whole.probs - without.probs).abs().max() > 1e-3, name
        if name == "honest":
            assert torch.equal(whole.labels, without.labels)
            assert whole.probs.amax(dim=1).mean() < without.probs.amax(dim=1).mean() - 0.01


def test_without_its_parts_it_is_stata_with_soft_counts() -> None:
    x, t = simulated(40, 7, noise=0.4)
    parts = dict.fromkeys(("bias", "presence", "leave_one_out", "guard", "honest", "memory"), False)
    stata = adapt(x, t, "stata", logit_scale=10.0, beta="soft").probs
    bare = solved(x, t, 10.0, Kedge(**parts, z_steps=5))  # type: ignore[arg-type]
    assert (bare.z - stata).abs().max() <= 2e-3  # classes below a tenth of an image differ
    assert (solved(x, t, 10.0).z - stata).abs().max() > 0.02


def test_bias_is_taken_out_of_a_whole_set(shared: Path) -> None:
    features = FeatureSet.from_npz(shared / "features" / "whurs19_clip_vitb32.npz", normalize=True)
    y = features.labels
    assert y is not None
    with_step, without = (adapt(features, bias=on).labels for on in (True, False))
    assert (with_step == y).double().mean() > (without == y).double().mean() + 0.02
    few = features.take((y < 4).nonzero().squeeze(1))  # uneven because few are there
    assert torch.equal(adapt(few).probs, adapt(few, bias=False).probs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("known", [False, True])
def test_a_class_that_no_image_can_be_of_has_no_bias(known: bool, dtype: torch.dtype) -> None:
    """Its mean ŷ is 0, where the bias step takes a logarithm: labels are known, or the logit scale is large."""
    labels, t = torch.arange(120) % 29, torch.eye(30, dtype=dtype)  # of 30 classes
    head = TextHead(t, 20.0 if known else 5000.0)
    batch = Batch(t[labels], head, known=labels if known else None)
    step = ALONE.step(ALONE.init(head), batch)
    assert ALONE._bias_weight(Evidence.of(batch.log_zero_shot, torch.arange(120)[:, None]), 120, 30) > 0.9
    assert torch.equal(step.z.argmax(dim=1), labels)
    assert (step.z.amax(dim=1) > 1 - 1e-6).all()


def test_noise_does_not_pass_for_all_classes(shared: Path) -> None:
    """70 of 397 classes under noise: mean ŷ is nearly even, and taking it out would cost eight points and more."""
    features = FeatureSet.from_npz(shared / "features" / "sun397_val_vitb32.npz", normalize=True)
    random = torch.Generator().manual_seed(0)
    x = unit(features.image_features + unit(torch.randn(features.image_features.shape, generator=random)))
    assert features.labels is not None
    x = x[features.labels < 70]
    head = features.head
    noisy = Evidence.of(head.log_zero_shot(x), torch.zeros(len(x), 1, dtype=torch.long))._replace(agreement=0.3)
    assert noisy.share < 0.1
    assert Kedge()._bias_weight(noisy, len(x), head.k) == 0


def test_knows_how_many_classes_are_there() -> None:
    features = simulate(64, 50, k_eff=3, seed=1)
    r = adapt(features, method="kedge")
    zero_shot = effective_classes(torch.as_tensor(r.zero_shot).sum(dim=0))
    assert 2 <= r.info["effective_classes"] < 10 < zero_shot


def test_smooth_is_a_switch() -> None:
    assert [smooth(u) for u in (-1.0, 0.0, 0.5, 1.0, 7.0)] == [0, 0, 0.5, 1, 1]


# The guard


def test_undecided_zero_shot_is_kept() -> None:
    """At a logit scale a hundredth of the right one all probabilities are flat: little is built on them."""
    features = simulate(64, 20, seed=2)
    x, t = features.image_features.double(), features.head.features.double()
    step, zero_shot = solved(x, t, 1.0), (x @ t.T).softmax(dim=1)
    assert step.info["trust"] < 0.05
    assert (step.z.argmax(dim=1) == zero_shot.argmax(dim=1)).double().mean() > 0.95
    unguarded = solved(x, t, 1.0, Kedge(guard=False, memory=False)).z  # runs away from it
    assert (unguarded.argmax(dim=1) == zero_shot.argmax(dim=1)).double().mean() < 0.8


def test_images_without_a_common_look_are_not_built_on() -> None:
    """Noise: zero-shot labels that no neighbour shares. Looks then count for nothing."""
    random = torch.Generator().manual_seed(0)
    x, t = (unit(torch.randn(rows, 64, generator=random, dtype=torch.float64)) for rows in (60, 10))
    step = solved(x, t, 30.0)
    assert step.info["trust"] < 0.1 < step.info["trust_zero_shot"]


def test_clear_batches_are_trusted() -> None:
    step = solved(*simulated(40, 7, noise=0.1), 100.0)
    assert step.info["trust"] == step.info["trust_zero_shot"] == 1


@pytest.mark.parametrize(("n", "k"), [(1, 7), (5, 1)])
def test_one_image_or_one_class_is_zero_shot(n: int, k: int) -> None:
    x, t = simulated(n, k, noise=0.8)
    step = solved(x, t, 5.0)
    assert (step.z - (5 * x @ t.T).softmax(dim=1)).abs().max() <= 1e-12


# The stream


def batches(count: int, n: int = 40) -> tuple[list[Tensor], Tensor]:
    x, t = simulated(count * n, 6, noise=0.3)
    return list(x.split(n)), t


def test_first_batch_is_solved_as_if_alone() -> None:
    (x, *_), t = batches(1)
    assert torch.equal(solved(x, t, 20.0, Kedge()).z, solved(x, t, 20.0).z)


def test_later_batches_are_helped() -> None:
    (first, second), t = batches(2)
    stream, alone = Stream(t, Kedge(), 10.0), Stream(t, ALONE, 10.0)
    for s in (stream, alone):
        s.step(first)
    assert (stream.step(second).probs - alone.step(second).probs).abs().max() > 1e-3
    assert alone.state == {}


def test_memory_is_of_constant_size_and_bounded() -> None:
    many, t = batches(12)
    stream = Stream(t, Kedge(), 100.0)
    assert stream.state is not None
    shapes = {name: value.shape for name, value in stream.state.items()}
    for x in many:
        stream.step(x)
        assert {name: value.shape for name, value in stream.state.items()} == shapes
    assert stream.state["counts"].max() == 64
    assert (stream.state["var"] >= 0).all()


def test_memory_is_the_mean_and_variance_of_what_was_seen() -> None:
    """Two classes with as many images in each batch, and every image sure: the memory is that of all their images."""
    t = torch.eye(2, 8, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    x = unit(t.repeat(20, 1) + 0.1 * torch.randn(40, 8, generator=random, dtype=torch.float64))
    stream = Stream(t, Kedge())
    for batch in x.split(20):
        assert (torch.as_tensor(stream.step(batch).probs).amax(dim=1) > 1 - 1e-9).all()
    assert stream.state is not None
    for j in range(2):
        assert float(stream.state["counts"][j]) == pytest.approx(20)
        assert (stream.state["mean"][j] - x[j::2].mean(dim=0)).abs().max() < 1e-8
        assert (stream.state["var"][j] - x[j::2].var(dim=0, unbiased=False)).abs().max() < 1e-8


def test_nothing_is_learned_from_a_batch_that_is_not_trusted() -> None:
    """Noise at a high logit scale: every image is sure, and no neighbour agrees."""
    random = torch.Generator().manual_seed(0)
    x, t = (unit(torch.randn(rows, 64, generator=random, dtype=torch.float64)) for rows in (60, 10))
    step = solved(x, t, 500.0, Kedge())
    assert step.state is not None
    assert step.info["trust"] < 0.05
    assert (step.z.amax(dim=1) > 0.9).sum() > 40
    assert float(step.state["counts"].sum()) < 3


def test_a_class_that_is_gone_is_not_missed() -> None:
    """Classes of earlier batches draw no images of others: a stream that moves on scores about as without memory."""
    features = simulate(1200, 12, accuracy=0.6, seed=3)
    plan = draw("stream-separate", features.labels.numpy(), 100, 1)  # type: ignore[union-attr]
    with_memory, without = evaluate(Kedge(), features, plan), evaluate(ALONE, features, plan)
    assert with_memory.accuracy > without.accuracy - 0.02  # 0.04 below it with the memory in β
    assert with_memory.accuracy > with_memory.zero_shot + 0.05


# Real features


@pytest.mark.parametrize("name", ["dtd_test_vitb32", "whurs19_clip_rn50"])
@pytest.mark.parametrize("scenario", ["very-low", "low", "stream-medium"])
def test_gains_on_real_features(shared: Path, name: str, scenario: str) -> None:
    features = FeatureSet.from_npz(shared / "features" / f"{name}.npz", normalize=True)
    plan = draw(scenario, features.labels.numpy(), 101, 1 if "stream" in scenario else 12)  # type: ignore[union-attr]
    ours, stata = evaluate("kedge", features, plan), evaluate("stata", features, plan)
    assert ours.gain > 0.03
    assert ours.accuracy > stata.accuracy
