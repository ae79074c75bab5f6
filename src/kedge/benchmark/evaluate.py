"""One cell: a method on labelled features in a scenario. Pure: no files, no printing; the method never sees a label."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._version import __version__
from ..arrays import row_blocks, unit_rows
from ..errors import ContractError, InputError
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..methods.contract import Batch, Method, Step, check_needs
from ..methods.registry import build
from ..progress import hidden, track
from ..words import count
from .metrics import PerClass, Reliability, paired_bootstrap
from .plan import Plan, draw
from .record import Record, Series
from .scenarios import Scenario

KEPT_ENTRIES = 1 << 28  # of what is computed of all images, n×(k+d): more is not kept, but made for each batch
COMPOSITION_BATCHES = 400  # a longer stream's class composition is not kept: no picture shows more


def evaluate(
    method: str | Method,
    features: FeatureSet,
    scenario: str | Scenario | Plan,
    seed: int = 0,
    tasks: int | None = None,
    images: ImageSource | None = None,
    everything: Batch | None = None,
    **settings: Any,
) -> Record:
    """Run the plan of a scenario (or a plan made before) and score it; zero-shot is scored on the same images.

    images: for methods that adapt the encoder, if it is open already; else it is opened where the features say.
    everything: `all_images(features)`, if it is used more than once: what is computed of all images is kept there.

    The seconds are the method's own: zero-shot's probabilities are made before. What else a method computes of all
    images (StatA and kedge their distances to the prototypes) is in the seconds of the first evaluation that needs it.
    """
    chosen = build(method, settings)
    if features.labels is None:
        raise InputError("a score needs labels, and these features have none. Add `labels` to the feature file.")
    source = (images or ImageSource.of(features)) if chosen.traits.needs == "encoder" else None
    check_needs(chosen, views=features.views is not None, encoder=source is not None)
    labels = features.labels.numpy()
    if isinstance(scenario, Plan):
        plan = scenario
        plan.check_fits(labels)
    else:
        plan = draw(scenario, labels, seed, tasks)
    runner = _Scores(features.head.k)
    _reset_peak_memory()
    for number, indices, step, zero_shot, seconds in _steps(chosen, features, plan, source, everything):
        if not math.isfinite(float(step.z.sum())):  # the best of it would be a label all the same
            raise ContractError(f"{chosen.name} gave probabilities that are not finite, in task {number}.")
        runner.add(number, labels[indices], _Answer.of(step.z), zero_shot, seconds)
    return runner.record(
        method=chosen.name,
        settings=changed_settings(chosen),
        dataset=dataset_name(features),
        encoder=encoder_name(features),
        scenario=plan.scenario,
        seed=plan.seed,
        tasks=len(plan.episodes),
        peak_memory_mb=peak_memory_mb(),
        features_hash=features.hash,
        plan_hash=plan.hash,
        classes=features.head.k,
        simulated=bool(features.provenance.get("simulated", False)),
        kedge=__version__,
        torch=torch.__version__,
        machine=f"{platform.system()} {platform.machine()}, {count(torch.get_num_threads(), 'thread')}",
    )


class _Answer(NamedTuple):
    """For each of n images the label, and the probability it was given."""

    labels: NDArray[np.int64]
    confidence: NDArray[Any]

    @classmethod
    def of(cls, z: Tensor) -> _Answer:
        """From probabilities, n×k."""
        best, labels = z.max(dim=1)
        return cls(labels.numpy(), best.numpy())

    @classmethod
    def of_zero_shot(cls, batch: Batch) -> _Answer:
        """The encoder's own."""
        if len(batch.features) * batch.head.k <= KEPT_ENTRIES:
            best, labels = batch.log_zero_shot.max(dim=1)
        else:  # the method may do without so large an array
            blocks = row_blocks((len(batch.features), batch.head.k))
            found = [batch.head.log_zero_shot(batch.features[rows]).max(dim=1) for rows in blocks]
            best, labels = (torch.cat(column) for column in zip(*found, strict=True))
        return cls(labels.numpy(), best.exp().numpy())


def _steps(
    method: Method, features: FeatureSet, plan: Plan, source: ImageSource | None, everything: Batch | None
) -> Iterator[tuple[int, NDArray[np.int64], Step, _Answer, float]]:
    """Of every batch of a plan: the task's number, the images, the step, zero-shot's answer and the step's seconds."""
    everything = everything or all_images(features)
    x, head = everything.features, everything.head
    sizes = [len(indices) for episode in plan.episodes for indices in episode]
    only_one = len(sizes) == 1  # then it may be long, and is worth a bar of its own
    together = len(x) * (head.k + head.d) <= KEPT_ENTRIES and not only_one and sum(sizes) >= len(x)
    if together:
        zero_shot = _Answer.of_zero_shot(everything)  # once, and taken from there
    for number, episode in enumerate(track(plan.episodes, "tasks")):
        state = method.init(head)
        for indices in episode:
            rows = torch.from_numpy(indices)
            if together:
                batch = everything.take(rows)
            else:  # all images, in their order, need no copy
                batch = Batch(x if np.array_equal(indices, np.arange(len(x))) else x[rows], head)
            if features.views is not None:
                batch = replace(batch, views=unit_rows(features.views[rows], like=x))
            if source:
                batch = replace(batch, images=source.pixels(indices), encoder=source.encoder.visual)
            told = _Answer(*(table[indices] for table in zero_shot)) if together else _Answer.of_zero_shot(batch)
            with nullcontext() if only_one else hidden(), torch.no_grad():  # bars would be timed too
                start = time.perf_counter()
                step = method.step(state, batch)
                seconds = time.perf_counter() - start
            state = step.state
            yield number, indices, step, told, seconds


def all_images(features: FeatureSet) -> Batch:
    """All images of a feature set in one batch, ready to take others from."""
    return Batch(unit_rows(features.image_features, like=features.head.features), features.head)


def changed_settings(method: Method) -> dict[str, Any]:
    """The settings that are not the method's defaults."""
    return {
        f.name: getattr(method, f.name)
        for f in fields(method)  # type: ignore[arg-type]
        if getattr(method, f.name) != f.default
    }


def dataset_name(features: FeatureSet) -> str:
    """What the features call themselves: `dataset` in their provenance, else the file they came from."""
    source = str(features.provenance.get("source", ""))
    file = source.removesuffix(".npz") if source.endswith(".npz") else "features"  # `source` may be any remark
    return str(features.provenance.get("dataset") or file)


def encoder_name(features: FeatureSet) -> str:
    """What the features say they come from."""
    return str(features.provenance.get("encoder") or features.provenance.get("backbone") or "unknown")


class _Scores:
    """Adds up batches; `record` makes the scores of them."""

    def __init__(self, k: int) -> None:
        self.k, self.series = k, Series()
        self.reliability, self.zero_shot_reliability = Reliability.empty(), Reliability.empty()
        self.per_class, self.zero_shot_per_class = PerClass.empty(k), PerClass.empty(k)
        self.seconds = 0.0

    def add(self, episode: int, labels: NDArray[Any], answer: _Answer, zero_shot: _Answer, seconds: float) -> None:
        """Score the answers for one batch with these labels (n)."""
        right = self._count(labels, answer, self.reliability, self.per_class)
        right0 = self._count(labels, zero_shot, self.zero_shot_reliability, self.zero_shot_per_class)
        self.seconds += seconds
        series = self.series
        series.episode.append(episode)
        series.images.append(len(labels))
        series.classes.append(len(np.unique(labels)))
        series.accuracy.append(float(right.mean()))
        series.zero_shot.append(float(right0.mean()))
        if episode == 0 and len(series.composition) < COMPOSITION_BATCHES:
            series.composition.append((np.bincount(labels, minlength=self.k) / len(labels)).round(4).tolist())

    @staticmethod
    def _count(labels: NDArray[Any], answer: _Answer, reliability: Reliability, per_class: PerClass) -> NDArray[Any]:
        right: NDArray[Any] = answer.labels == labels
        reliability.add(answer.confidence, right)
        per_class.add(labels, right)
        return right

    def record(self, **provenance: Any) -> Record:
        series = self.series
        accuracy, zero_shot = np.array(series.accuracy), np.array(series.zero_shot)
        images, episode = np.array(series.images), np.array(series.episode)
        batches_of = np.bincount(episode)
        per_task = np.bincount(episode, weights=accuracy) / batches_of
        per_task0 = np.bincount(episode, weights=zero_shot) / batches_of
        low, high = paired_bootstrap(per_task - per_task0, seed=provenance["seed"])
        streams = bool((batches_of > 1).any())
        return Record(
            accuracy=float(per_task.mean()),
            zero_shot=float(per_task0.mean()),
            gain=float((per_task - per_task0).mean()),
            gain_low=low,
            gain_high=high,
            accuracy_per_image=float(accuracy @ images / images.sum()),
            zero_shot_per_image=float(zero_shot @ images / images.sum()),
            macro=self.per_class.macro(),
            zero_shot_macro=self.zero_shot_per_class.macro(),
            harmed=float((accuracy < zero_shot).mean()),
            worst=float((accuracy - zero_shot).min()),
            calibration_error=self.reliability.error(),
            zero_shot_calibration_error=self.zero_shot_reliability.error(),
            images=int(images.sum()),
            batches=len(images),
            seconds=self.seconds,
            seconds_per_image=self.seconds / float(images.sum()),
            series=Series(
                series.episode,
                series.images,
                series.classes,
                series.accuracy,
                series.zero_shot,
                _as_lists(self.reliability),
                _as_lists(self.zero_shot_reliability),
                series.composition if streams else [],
            ),
            **provenance,
        )


def _as_lists(reliability: Reliability) -> Mapping[str, list[float]]:
    return {name: value.tolist() for name, value in asdict(reliability).items()}


def _reset_peak_memory() -> None:
    """Let the peak begin anew, where the system can (Linux)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is the process's own, from its start


def peak_memory_mb() -> float:
    """Most memory this process has held, since the last reset where there is one.

    Linux's own figure for the program is preferred: getrusage's also counts the process that started it.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) / 1e3 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource  # not there on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)
