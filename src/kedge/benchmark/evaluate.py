"""Evaluate one method on labelled features in one scenario. No files, no printing.

The method never sees a label, except those that `known` and `oracle_classes` ask for: see `feedback`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._version import __version__
from ..answers.answer import Answer
from ..answers.calibration import Reliability
from ..arrays import row_blocks, unit_rows
from ..errors import InputError
from ..features.feature_set import FeatureSet
from ..features.image_source import ImageSource
from ..methods.contract import Batch, Method, Prepares, check_needs
from ..methods.narrowing import Narrowing, initial_state, narrowed_step
from ..methods.registry import build
from ..methods.results import check_step
from ..methods.settings import changed_settings
from ..progress import hidden, track
from ..words import count
from .feedback import Feedback, KnownBy, OracleClasses
from .metrics import PerClass, paired_bootstrap, tail
from .oracle import Revealed, reveal, unfit
from .plan import Plan, draw
from .record import Record, Series
from .scenarios import Scenario

TABLE_ENTRIES = 1 << 28  # maximum size, n×(k+d), of tables computed once for all images; else computed per batch
COMPOSITION_BATCHES = 400  # number of batches of a stream whose class composition is kept, for the figures


def evaluate(
    method: str | Method,
    features: FeatureSet,
    scenario: str | Scenario | Plan,
    seed: int = 0,
    tasks: int | None = None,
    images: ImageSource | None = None,
    known: int = 0,
    known_by: KnownBy | None = None,
    oracle_classes: OracleClasses | None = None,
    **settings: Any,
) -> Record:
    """Run a method on the plan of a scenario (or on a given plan) and score it; zero-shot is scored on the same images.

    images: for methods that adapt the encoder; by default `ImageSource.of(features)`.
    known: labels that are revealed in each batch, all at once; in a batch of no more images, all but one. These images
        are not scored.
    known_by: "random" (the default), or "review": the first of the review order of the method's unaided answer.
    oracle_classes: "true" narrows each batch to the classes that it has; "found" to those of them that the method's
        unaided answer found, as if a person had taken out the others. If none of those found is there, all stay.

    With any of these each batch is labelled twice, first unaided; a stream goes on from the second answer. `seconds` is
    the time in the method for the answer that is scored, including tables that it prepares once for all images, but not
    the time for zero-shot probabilities.
    """
    chosen, feedback = build(method, settings), Feedback(known, known_by, oracle_classes)
    if not isinstance(features, FeatureSet):
        found = type(features).__name__
        raise InputError(f"features must be a FeatureSet; got {found}. Load the file: FeatureSet.load(path).")
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
    if reason := unfit(feedback, chosen, streams=any(len(episode) > 1 for episode in plan.episodes)):
        raise InputError(reason)
    if feedback.known >= (largest := max(map(len, plan.batches()))):
        found = count(largest, "image")
        raise InputError(f"known={feedback.known} leaves nothing to score: the largest batch has {found}. Take fewer.")
    scores = _Scores(features.head.k)
    for batch in _labelled(chosen, features, plan, source, feedback):
        scores.add(batch, labels[batch.images])
    return scores.record(
        method=chosen.name,
        settings=changed_settings(chosen),
        dataset=features.dataset,
        encoder=features.encoder,
        scenario=plan.scenario,
        seed=plan.seed,
        tasks=len(plan.episodes),
        **asdict(feedback),
        features_hash=features.hash,
        weights=features.weights,
        precision=features.precision,
        plan_hash=plan.hash,
        classes=features.head.k,
        available=len(features),
        simulated=features.simulated,
        kedge=__version__,
        torch=torch.__version__,
        machine=f"{platform.system()} {platform.machine()}, {count(torch.get_num_threads(), 'thread')}",
    )


class _Labels(NamedTuple):
    """The label of each of n images, and its probability."""

    labels: NDArray[np.int64]
    confidence: NDArray[Any]

    @classmethod
    def of(cls, z: Tensor) -> _Labels:
        """From probabilities z, n×k."""
        best, labels = z.max(dim=1)
        return cls(labels.numpy(), best.numpy())

    def of_some(self, which: NDArray[np.bool_]) -> _Labels:
        """Of these images only."""
        return _Labels(self.labels[which], self.confidence[which])

    @classmethod
    def of_zero_shot(cls, batch: Batch) -> _Labels:
        """From the zero-shot probabilities of a batch."""
        if len(batch.features) * batch.head.k <= TABLE_ENTRIES:
            best, labels = batch.log_zero_shot.max(dim=1)
        else:  # in blocks: the method may not need so large an array
            blocks = row_blocks((len(batch.features), batch.head.k))
            found = [batch.head.log_zero_shot(batch.features[rows]).max(dim=1) for rows in blocks]
            best, labels = (torch.cat(column) for column in zip(*found, strict=True))
        return cls(labels.numpy(), best.exp().numpy())


class _Labelled(NamedTuple):
    """One batch with its answers."""

    episode: int
    images: NDArray[np.int64]  # their numbers
    scored: NDArray[np.bool_]  # of each image: is it scored? Not if its label was given
    answer: _Labels
    zero_shot: _Labels
    unaided: _Labels | None  # the method's answer without feedback
    revealed: Revealed
    seconds: float


def _labelled(
    method: Method, features: FeatureSet, plan: Plan, source: ImageSource | None, feedback: Feedback
) -> Iterator[_Labelled]:
    """Label every batch of a plan."""
    assert features.labels is not None
    x, head = unit_rows(features.image_features, like=features.head.features), features.head
    sizes = [len(indices) for episode in plan.episodes for indices in episode]
    only_one = len(sizes) == 1  # then the step may be long, and shows its own progress bar
    everyone = Batch(x, head)
    tables: dict[str, Tensor] = {}
    spent = 0.0
    if len(x) * (head.k + head.d) <= TABLE_ENTRIES and not only_one and sum(sizes) >= len(x):
        of_all = _Labels.of_zero_shot(everyone)
        tables["log_zero_shot"] = everyone.log_zero_shot
        if isinstance(method, Prepares):
            start = time.perf_counter()
            tables.update(method.prepare(everyone))
            spent = time.perf_counter() - start
    for number, episode in enumerate(track(plan.episodes, "tasks")):
        state = method.init(head)
        for at, indices in enumerate(episode):
            rows = torch.from_numpy(indices)
            whole = only_one and np.array_equal(indices, np.arange(len(x)))  # no copy of all images in order
            batch = Batch(
                x if whole else x.index_select(0, rows),
                head,
                views=None if features.views is None else unit_rows(features.views[rows], like=x),
                images=source.pixels(indices) if source else None,
                encoder=source.encoder.visual if source else None,
                tables={name: table.index_select(0, rows) for name, table in tables.items()},
            )
            zero_shot = _Labels(*(column[indices] for column in of_all)) if tables else _Labels.of_zero_shot(batch)
            said, unaided = Revealed(), None
            with nullcontext() if only_one else hidden(), torch.no_grad():  # without progress bars, which take time
                if feedback:
                    z = narrowed_step(method, state, batch, None).z
                    random = np.random.default_rng([plan.seed, number, 1 + at])  # the plan's is [seed, number]
                    answer = Answer(batch.features, head, batch.log_zero_shot.exp(), z)
                    said, unaided = reveal(feedback, answer, features.labels[rows], random), _Labels.of(z)
                    batch = replace(batch, known=said.known)
                    if said.present is not None and not method.traits.by_class:  # then nothing came before: see `unfit`
                        state = initial_state(method, head, said.present)
                narrowing = Narrowing.of(batch, said.present)
                before = narrowing.state(method, state)
                start = time.perf_counter()
                step = method.step(before, narrowing.part)
                spent += time.perf_counter() - start
            check_step(method, step, narrowing.part, before)
            step = narrowing.widened(method, state, step)
            state = step.state
            scored = np.ones(len(indices), bool) if batch.known is None else (batch.known < 0).numpy()
            yield _Labelled(number, indices, scored, _Labels.of(step.z), zero_shot, unaided, said, spent)
            spent = 0.0


class _Scores:
    """Accumulates batches; `record` computes the scores."""

    def __init__(self, k: int) -> None:
        self.k, self.series = k, Series()
        self.reliability, self.zero_shot_reliability = Reliability.empty(), Reliability.empty()
        self.per_class, self.zero_shot_per_class = PerClass.empty(k), PerClass.empty(k)
        self.unaided: list[float] = []  # accuracy per batch
        self.shown: list[int] = []  # classes per batch
        self.unticked: list[int] = []
        self.labelled, self.seconds = 0, 0.0

    def add(self, batch: _Labelled, labels: NDArray[Any]) -> None:
        """Score the answers for one batch with these labels (n)."""
        scored = batch.scored
        right = self._count(labels[scored], batch.answer.of_some(scored), self.reliability, self.per_class)
        right0 = self._count(
            labels[scored], batch.zero_shot.of_some(scored), self.zero_shot_reliability, self.zero_shot_per_class
        )
        if batch.unaided is not None:
            self.unaided.append(float((batch.unaided.labels == labels)[scored].mean()))
        self.shown.append(batch.revealed.shown)
        self.unticked.append(batch.revealed.unticked)
        self.labelled += len(labels)
        self.seconds += batch.seconds
        series, episode = self.series, batch.episode
        series.episode.append(episode)
        series.images.append(len(right))
        series.classes.append(len(np.unique(labels)))
        series.accuracy.append(float(right.mean()))
        series.zero_shot.append(float(right0.mean()))
        if episode == 0 and len(series.composition) < COMPOSITION_BATCHES:
            series.composition.append((np.bincount(labels, minlength=self.k) / len(labels)).round(4).tolist())

    @staticmethod
    def _count(labels: NDArray[Any], answer: _Labels, reliability: Reliability, per_class: PerClass) -> NDArray[Any]:
        right: NDArray[Any] = answer.labels == labels
        reliability.add(answer.confidence, right)
        per_class.add(labels, right)
        return right

    def record(self, **provenance: Any) -> Record:
        series = self.series
        accuracy, zero_shot = np.array(series.accuracy), np.array(series.zero_shot)
        images, episode = np.array(series.images), np.array(series.episode)
        batches_of = np.bincount(episode)
        per_task, per_task0 = (np.bincount(episode, weights=each) / batches_of for each in (accuracy, zero_shot))
        low, high = paired_bootstrap(per_task - per_task0, seed=provenance["seed"])
        streams = bool((batches_of > 1).any())
        return Record(
            accuracy=float(per_task.mean()),
            zero_shot=float(per_task0.mean()),
            gain=float((per_task - per_task0).mean()),
            gain_low=low,
            gain_high=high,
            tail=tail(per_task),
            zero_shot_tail=tail(per_task0),
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
            seconds_per_image=self.seconds / self.labelled,
            unaided=float((np.bincount(episode, weights=self.unaided) / batches_of).mean()) if self.unaided else None,
            classes_shown=float(np.mean(self.shown)) if any(self.shown) else None,
            classes_unticked=float(np.mean(self.unticked)) if any(self.shown) else None,
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
