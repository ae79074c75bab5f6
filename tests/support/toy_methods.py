"""Small methods for the tests: five that keep the contract, and many that each break it in one place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

import kedge
from kedge import Batch, Step, TextHead
from kedge.methods.contract import Method, State, Traits
from kedge.methods.settings import Configured, setting


@dataclass(frozen=True)
class Plain:
    """Zero-shot: keeps every promise."""

    name: ClassVar[str] = "plain"
    traits: ClassVar[Traits] = Traits("none", 2000, scope="image", memory="none")
    weight: float = 1.0

    def init(self, head: TextHead) -> State | None:
        return None

    def step(self, state: State | None, batch: Batch) -> Step:
        return Step(None, self.z(batch))

    def z(self, batch: Batch) -> Tensor:
        return batch.log_zero_shot.exp()


@dataclass(frozen=True)
class Running(Plain):
    """A prior over classes that follows the stream: an honest method with memory."""

    name: ClassVar[str] = "running"
    traits: ClassVar[Traits] = Traits("none", 2000, scope="batch", memory="stream", by_class=True)

    def init(self, head: TextHead) -> State | None:
        return {"prior": torch.ones(head.k, dtype=head.features.dtype)}

    def step(self, state: State | None, batch: Batch) -> Step:
        assert state is not None
        prior = state["prior"] + self.weight * batch.log_zero_shot.exp().sum(dim=0)
        z = (batch.log_zero_shot + prior.log()).softmax(dim=1)
        return Step({"prior": prior}, z, {"seen": float(prior.sum())})


@dataclass(frozen=True)
class Viewing(Plain):
    """Labels the mean of the views; says how many it saw."""

    name: ClassVar[str] = "viewing"
    traits: ClassVar[Traits] = replace(Plain.traits, needs="views")

    def step(self, state: State | None, batch: Batch) -> Step:
        assert batch.views is not None
        z = (100 * batch.views.mean(dim=1) @ batch.head.features.T).softmax(dim=1)
        return Step(None, z, {"views": batch.views.shape[1], "dtype": str(batch.views.dtype)})


@dataclass(frozen=True)
class Told(Plain):
    """Zero-shot, which keeps known labels."""

    name: ClassVar[str] = "told"
    traits: ClassVar[Traits] = replace(Plain.traits, known=True)


@dataclass(frozen=True)
class Tempered(Configured):
    """A wrapper: z^strength of another method, with rows scaled to sum 1."""

    name: ClassVar[str] = "tempered"
    method: Method = setting(kedge.ZeroShot(), "the method that is tempered")
    strength: float = setting(1.0, "exponent of z", above=0)
    note: str = setting("", "a remark, without effect")

    @property
    def traits(self) -> Traits:
        return replace(self.method.traits, paper="none", year=2000)

    def init(self, head: TextHead) -> State | None:
        return self.method.init(head)

    def step(self, state: State | None, batch: Batch) -> Step:
        step = self.method.step(state, batch)
        return Step(step.state, (self.strength * step.z.log()).softmax(dim=1), {**step.info, "note": self.note})


@dataclass(frozen=True)
class Bare:
    """A wrapper whose inner method has no default; not a Configured."""

    method: Method
    name: ClassVar[str] = "bare"
    traits: ClassVar[Traits] = Plain.traits

    def init(self, head: TextHead) -> State | None:
        return self.method.init(head)

    def step(self, state: State | None, batch: Batch) -> Step:
        return self.method.step(state, batch)


# From here on, broken ones.
BATCH = replace(Plain.traits, scope="batch")


@dataclass  # not frozen
class Changeable:
    name: ClassVar[str] = "changeable"
    traits: ClassVar[Traits] = Plain.traits
    init = Plain.init
    step = Plain.step
    z = Plain.z
    weight: float = 1.0

    def __hash__(self) -> int:
        return hash(self.weight)


@dataclass(frozen=True)
class TupleSetting(Plain):
    """JSON gives a list back."""

    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class BadName(Plain):
    name: ClassVar[str] = "Bad Name"


@dataclass(frozen=True)
class BadTraits(Plain):
    traits: ClassVar[Traits] = replace(Plain.traits, needs="luck")  # type: ignore[arg-type]


@dataclass(frozen=True)
class KeywordOnly(Told):
    def init(self, head: TextHead, *, seed: int) -> State | None:  # type: ignore[override]
        return None


@dataclass(frozen=True)
class NotNormalised(Plain):
    def z(self, batch: Batch) -> Tensor:
        return 2 * super().z(batch)


@dataclass(frozen=True)
class CrashesForOneImage(Plain):
    def z(self, batch: Batch) -> Tensor:
        if len(batch.features) == 1 and batch.head.k == 1:
            raise IndexError("no second image")
        return super().z(batch)


def no_twins(rows: Tensor) -> Tensor:
    """1, or 0 if two rows are the same."""
    return ((rows @ rows.T).fill_diagonal_(0).max() < 1 - 1e-9).to(rows.dtype)


@dataclass(frozen=True)
class DividesByPrototypeDistance(Plain):
    def z(self, batch: Batch) -> Tensor:
        return super().z(batch) / no_twins(batch.head.features)


@dataclass(frozen=True)
class DividesByImageDistance(Plain):
    traits: ClassVar[Traits] = BATCH

    def z(self, batch: Batch) -> Tensor:
        return super().z(batch) / no_twins(batch.features)


@dataclass(frozen=True)
class ExponentiatesLogits(Plain):
    def z(self, batch: Batch) -> Tensor:
        logits = (batch.head.logit_scale * batch.features @ batch.head.features.T).exp()  # no shift: overflows
        return logits / logits.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class AlwaysFloat32(Plain):
    def z(self, batch: Batch) -> Tensor:
        return super().z(batch).float()


@dataclass(frozen=True)
class WritesToFeatures(Plain):
    def z(self, batch: Batch) -> Tensor:
        z = super().z(batch)
        batch.features.mul_(1 + 1e-9)
        return z


@dataclass(frozen=True)
class SetsTheSeed(Plain):
    def z(self, batch: Batch) -> Tensor:
        torch.manual_seed(0)
        return super().z(batch)


@dataclass(frozen=True)
class WritesToState(Running):
    def step(self, state: State | None, batch: Batch) -> Step:
        assert state is not None
        step = super().step({name: value.clone() for name, value in state.items()}, batch)
        state["prior"].mul_(2)
        return step


@dataclass(frozen=True)
class ReadsClassNames(Plain):
    def z(self, batch: Batch) -> Tensor:
        z = super().z(batch)
        return z if batch.head.class_names[0].startswith("class") else z.sqrt() / z.sqrt().sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class LooksAtOtherImages(Plain):
    """Scope says "image"."""

    def z(self, batch: Batch) -> Tensor:
        return (batch.log_zero_shot + super().z(batch).mean(dim=0)).softmax(dim=1)


@dataclass(frozen=True)
class PreparesOfAllImages(Plain):
    """A table whose rows depend on the other images it was made with."""

    traits: ClassVar[Traits] = BATCH

    def prepare(self, batch: Batch) -> dict[str, Tensor]:
        return {"mean": super().z(batch).mean(dim=0).expand(len(batch.features), -1)}

    def z(self, batch: Batch) -> Tensor:
        mean = batch.tables.get("mean", self.prepare(batch)["mean"])
        return (batch.log_zero_shot + mean).softmax(dim=1)


@dataclass(frozen=True)
class DependsOnOrder(Plain):
    traits: ClassVar[Traits] = BATCH

    def z(self, batch: Batch) -> Tensor:
        return super().z(batch).cumsum(dim=0) / torch.arange(1, len(batch.features) + 1)[:, None]


@dataclass(frozen=True)
class PrefersTheFirstClass(Plain):
    def z(self, batch: Batch) -> Tensor:
        return (batch.log_zero_shot - 0.1 * torch.arange(batch.head.k)).softmax(dim=1)


@dataclass(frozen=True)
class KeepsAnUndeclaredState(Running):
    traits: ClassVar[Traits] = BATCH


@dataclass(frozen=True)
class StateOfNumbers(Running):
    """A number beside the tensors is no tensor; reading it back gives nothing."""

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        return Step({**(step.state or {}), "images": 3}, step.z, step.info)  # type: ignore[dict-item]


@dataclass(frozen=True)
class StateGrows(Running):
    """A name that init did not give: a file with it cannot be checked."""

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        return Step({**(step.state or {}), "images": torch.tensor(3)}, step.z, step.info)


@dataclass(frozen=True)
class CountsOutsideTheState(Running):
    """Half of its memory is in a hidden place, which no file holds."""

    hidden: ClassVar[dict[int, int]] = {}

    def init(self, head: TextHead) -> State | None:
        self.hidden.clear()
        return super().init(head)

    def step(self, state: State | None, batch: Batch) -> Step:
        step = super().step(state, batch)
        seen = len(self.hidden)
        self.hidden[seen] = 1
        return Step(step.state, (step.z.log() * (1 + 0.01 * seen)).softmax(dim=1), step.info)


@dataclass(frozen=True)
class IgnoresKnown(Told):
    def z(self, batch: Batch) -> Tensor:
        return super().z(replace(batch, known=None))


@dataclass(frozen=True)
class DropsKnownRows(Told):
    """Returns only the rows that are not known."""

    def z(self, batch: Batch) -> Tensor:
        return super().z(batch) if batch.known is None else super().z(batch)[batch.known < 0]


@dataclass(frozen=True)
class WritesToKnown(Told):
    def z(self, batch: Batch) -> Tensor:
        z = super().z(batch)
        if batch.known is not None:
            batch.known.clamp_max_(0)
        return z


@dataclass(frozen=True)
class MixesClasses(Running):
    """Its state has one row for all classes; by_class says otherwise."""

    def init(self, head: TextHead) -> State | None:
        return {"prior": torch.ones(1, head.k, dtype=head.features.dtype)}

    def step(self, state: State | None, batch: Batch) -> Step:
        assert state is not None
        step = super().step({"prior": state["prior"][0]}, batch)
        return Step({"prior": (step.state or {})["prior"][None]}, step.z, step.info)


@dataclass(frozen=True)
class NeedsAllClasses(Plain):
    def z(self, batch: Batch) -> Tensor:
        return super().z(batch) / (batch.head.k != 3)


@dataclass(frozen=True)
class Ungraded(Plain):
    """Does not say that it gives labels alone."""

    def z(self, batch: Batch) -> Tensor:
        return torch.eye(batch.head.k, dtype=batch.features.dtype)[super().z(batch).argmax(dim=1)]


@dataclass(frozen=True)
class Graded(Plain):
    """Says that it gives labels alone."""

    traits: ClassVar[Traits] = replace(Plain.traits, graded=False)


@dataclass(frozen=True)
class NameIsASetting:
    """Then a description has two names."""

    name: str = "name-is-a-setting"
    traits: ClassVar[Traits] = Plain.traits
    init = Plain.init
    step = Plain.step
    z = Plain.z


@dataclass(frozen=True)
class TensorInInfo(Plain):
    def step(self, state: State | None, batch: Batch) -> Step:
        return Step(None, self.z(batch), {"mean": batch.features.mean()})


@dataclass(frozen=True)
class Random(Plain):
    def z(self, batch: Batch) -> Tensor:
        random = torch.Generator().manual_seed(next(_seeds))
        noise = 1e-9 * torch.rand(len(batch.features), 1, generator=random, dtype=batch.features.dtype)
        return super().z(batch) * (1 - noise)


_seeds = itertools.count()
