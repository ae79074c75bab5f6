"""What a person may say of a stream, sense and nonsense, to any method: known labels, present classes, a threshold.

    random = np.random.default_rng(seed)
    assert not fault(random_trial(random))          "" if it is as it should be, else what went wrong

A trial ends in results that respect what was said, or in one line of a KedgeError.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kedge
from kedge.arrays import working
from kedge.labelling.check_method import DIMENSION
from kedge.methods.contract import UNKNOWN
from kedge.methods.given import NONE
from kedge.methods.registry import build, list_methods
from sweeping import CHEAP, ODD, hostile_inputs, judged, wrong_rows

LABELS: tuple[Any, ...] = (
    *(-2, -1, 0, 1, 2, -3, 10**9, 2**63, 1.0, float("nan"), "class 0", "class 1", "Class 1", "klass", "none", "\n"),
    *(np.int8(1), np.bool_(True), np.array(1), np.array([0, 1]), torch.tensor(1), torch.tensor([]), {}, object, *ODD),
)
KEYS = [label for label in LABELS if isinstance(label, Hashable)]


@dataclass(frozen=True)
class Trial:
    """A method, the name of an input, and what is said of it; of two batches of a stream, of the second anew."""

    method: str
    inputs: str
    known: Any
    present: tuple[Any, Any]
    reject: Any


def random_trial(random: np.random.Generator) -> Trial:
    """Many make sense: then known labels are among the classes that can occur."""
    inputs = str(random.choice(list(hostile_inputs())))
    n, k = len(hostile_inputs()[inputs].batches[0]), len(hostile_inputs()[inputs].text)
    classes = random.permutation(k)[: random.integers(1, k + 1)]
    present = (_present(random, classes), _present(random, classes))
    reject = (None, None, 0.5, 1, 1e-9, np.float32(0.3), _any(random))[random.integers(7)]
    return Trial(str(random.choice(list_methods())), inputs, _known(random, n, classes), present, reject)


def _known(random: np.random.Generator, n: int, classes: NDArray[Any]) -> Any:
    labels = random.choice([NONE, UNKNOWN, *classes], n)
    some = {int(i): int(labels[i]) for i in random.permutation(n)[: random.integers(n + 1)]}
    kind = random.integers(10)
    if kind < 5:
        return (labels, torch.from_numpy(labels), labels.tolist(), some, None)[kind]
    if kind == 5:
        return labels[: random.integers(n + 1)].astype(random.choice(["i1", "u1", "f4", "?", "U3", "O"]))
    if kind == 6:
        return _any(random)
    return {KEYS[random.integers(len(KEYS))]: 0} if kind == 7 else {**some, int(random.integers(n)): _any(random)}


def _present(random: np.random.Generator, classes: NDArray[Any]) -> Any:
    kind = random.integers(8)
    if kind < 5:
        names = [f"class {number}" for number in classes]
        return (classes, torch.from_numpy(classes), names, set(classes.tolist()), None)[kind]
    return _any(random) if kind == 5 else [_any(random), *classes.tolist()][: random.integers(1, 3)]


def _any(random: np.random.Generator) -> Any:
    return LABELS[random.integers(len(LABELS))]


def fault(trial: Trial) -> str:
    """What went wrong with a trial, "" if nothing."""
    return judged(lambda: _outcome(trial))


def _outcome(trial: Trial) -> str:
    given, method = hostile_inputs()[trial.inputs], build(trial.method, CHEAP.get(trial.method))
    if method.traits.needs == "encoder" and given.text.shape[1] != DIMENSION:
        return ""  # the encoder of the tests has this dimension
    head = kedge.TextHead.from_arrays(given.text, given.logit_scale)
    stream = kedge.Stream(head, method, present=trial.present[0])
    for number, x in enumerate(given.batches):
        if number:
            stream.present = trial.present[number]
        result = stream.step(x, known=trial.known, reject=trial.reject, **given.extras(method, working(x)))
        z, answer = torch.as_tensor(result.probs), result.answer
        if wrong := wrong_rows(z, len(x), head.k):
            return f"step {number}: {wrong}"
        if answer.present is not None and z.index_fill(1, answer.present, 0).any():
            return f"step {number}: a class that cannot occur has a probability"
        shows = answer.given >= 0
        if not bool((torch.as_tensor(result.labels) == answer.given)[shows].all()):
            return f"step {number}: a known label is lost"
        scores = torch.as_tensor(result.none)
        if not bool(((scores >= 0) & (scores <= 1)).all()):
            return f"step {number}: a score that is not from 0 to 1"
        if sorted(result.review.tolist()) != answer.unknown.nonzero().squeeze(1).tolist():
            return f"step {number}: the review order is not all images that are not known"
        if not result.verdict.sentence.endswith("."):
            return f"step {number}: a verdict that is no sentence"
        if not set(torch.as_tensor(result.labels).tolist()) <= {-1, *(each.number for each in result.classes)}:
            return f"step {number}: a label that is not among the classes found"
    return ""
