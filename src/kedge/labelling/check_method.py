"""The contract of a method, as checks that you can run on your own method.

    from kedge.labelling.check_method import check_method, method_checks

    check_method(MyMethod())            # raises ContractError with every check that fails

    @pytest.mark.parametrize(("name", "check"), method_checks(MyMethod()))
    def test_contract(name, check):     # or: one test per check
        check()

To skip a check, give a reason. A skipped check must fail:
`check_method(method, skip={"permuted_images_permute_rows": "images enter the cache in their order"})`.

All inputs are small and simulated: random unit prototypes, images scattered around them, and for methods that need one
a tiny encoder with random weights.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from ..arrays import unit
from ..errors import ContractError, InputError, SettingError, did_you_mean
from ..features.text_head import TextHead
from ..methods.contract import UNKNOWN, Batch, Prepares, State, Step, Traits, check_state
from ..methods.narrowing import initial_state, narrowed_step
from ..methods.registry import build, list_methods, make
from ..methods.settings import hints, settings_of
from ..words import count
from .stream import Stream

IMAGES, CLASSES, DIMENSION, VIEWS = (1, 2, 3, 5, 40), (1, 2, 7), 16, 12
SAME = 1e-6  # tolerance in float64, for another order of summation


def check_method(method: Any, skip: Mapping[str, str] | None = None) -> None:
    """Run every check; raise one ContractError that names all checks that fail.

    method: a method object, or text such as "stata".
    skip: check → the reason why this method cannot pass it.
    """
    broken = {}
    for name, check in method_checks(method, skip):
        try:
            check()
        except ContractError as error:
            broken[name] = str(error)
    if broken:
        title = getattr(method, "name", method)
        lines = "".join(f"\n  {name}: {reason}" for name, reason in broken.items())
        raise ContractError(f"{title!r} breaks {count(len(broken), 'check')} of the method contract:{lines}")


def method_checks(method: Any, skip: Mapping[str, str] | None = None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each check with its name; a check returns nothing, or raises ContractError."""
    if isinstance(method, str):
        method = _registered(method)
    skip = dict(skip or {})
    known = [check.__name__ for check in _CHECKS]
    for name, reason in skip.items():
        if name not in known:
            raise SettingError(f"no check is called {name!r}{did_you_mean(name, known)}")
        if not reason.strip():
            raise SettingError(f"check {name!r} is skipped without a reason. Write why the method cannot pass it.")
    for check in _CHECKS:
        yield check.__name__, _bound(check, method, skip.get(check.__name__))


def _registered(text: str) -> Any:
    """The method of a text; raises ContractError if the name is registered and the method still cannot be made."""
    try:
        return build(text)
    except SettingError as error:
        if text in list_methods():
            raise ContractError(str(error)) from error
        raise


def _bound(check: Callable[[Any], None], method: Any, reason: str | None) -> Callable[[], None]:
    def attempt() -> None:
        try:
            check(method)
        except ContractError:
            raise
        except Exception as error:
            raise ContractError(f"{type(error).__name__}: {error}") from error

    def expected_to_fail() -> None:
        try:
            attempt()
        except ContractError:
            return
        raise ContractError(f"passes, although it is skipped ({reason}). Remove the skip.")

    return attempt if reason is None else expected_to_fail


# The checks. Each takes the method, and raises ContractError if the method fails.


def settings_are_frozen(method: Any) -> None:
    """The method is a frozen dataclass, and equal to a copy of itself."""
    _require(dataclasses.is_dataclass(method) and not isinstance(method, type), "not a dataclass object")
    _require(type(method).__dataclass_params__.frozen, "its dataclass is not frozen: use @dataclass(frozen=True)")
    copy = dataclasses.replace(method)
    _require(copy == method and hash(copy) == hash(method), "not equal to a copy with the same settings")


def settings_survive_json(method: Any) -> None:
    """Settings written to JSON and read back give an equal method: records and saved streams depend on it."""
    text = json.dumps(settings_of(method))
    again = make(type(method), json.loads(text), method.name)
    _require(again == method, f"settings {text} read back make {again!r}, not {method!r}")


def has_name_and_traits(method: Any) -> None:
    """The method has a `name` and `traits` with allowed values, and `name` is not a setting."""
    name, traits = getattr(method, "name", None), getattr(method, "traits", None)
    _require(isinstance(name, str), f"the method needs a name (ClassVar[str]); got {name!r}")
    _require(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(name)), f"name must be like 'zero-shot'; got {name!r}")
    settings = dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()
    _require("name" not in [f.name for f in settings], "name is a setting: declare it ClassVar[str]")
    _require(isinstance(traits, Traits), f"the method needs traits (ClassVar[Traits]); got {traits!r}")
    for trait in ("scope", "memory", "needs"):
        value, options = getattr(traits, trait), get_args(hints(Traits)[trait])
        _require(value in options, f"traits.{trait} must be one of {', '.join(options)}; got {value!r}")
    for trait in ("known", "by_class", "graded"):
        value = getattr(traits, trait)
        _require(isinstance(value, bool), f"traits.{trait} must be True or False; got {value!r}")


def has_init_and_step(method: Any) -> None:
    """The calls `init(head)` and `step(state, batch)` are possible."""
    for function, arguments in (("init", ("head",)), ("step", ("state", "batch"))):
        call = f"{function}({', '.join(arguments)})"
        _require(callable(getattr(method, function, None)), f"has no {call}")
        try:
            inspect.signature(getattr(method, function)).bind(*arguments)
        except TypeError as error:
            raise ContractError(f"cannot be called as {call}: {error}") from error


def rows_on_simplex(method: Any) -> None:
    """z is n×k, finite and not negative, and its rows sum to 1, for small and large batches, one class or several."""
    for n in IMAGES:
        for k in CLASSES:
            _check_rows(_run(method, _batch(method, n, k)), n, k)


def rows_on_simplex_for_twin_classes(method: Any) -> None:
    """The same if two classes have the same prototype, and if all have."""
    for copies in (2, 7):
        batch = _batch(method, 5, 7)
        t = batch.head.features.clone()
        t[:copies] = t[0]
        _check_rows(_run(method, dataclasses.replace(batch, head=_head(t))), 5, 7, f"{copies} identical prototypes")


def rows_on_simplex_for_twin_images(method: Any) -> None:
    """The same if some images are duplicates, and if all are the same image."""
    for rows in (torch.arange(5).repeat(2), torch.zeros(10, dtype=torch.long)):
        batch = _picked(_batch(method, 5, 7), rows)
        _check_rows(_run(method, batch), 10, 7, f"{10 - len(set(rows.tolist()))} duplicates")


def rows_on_simplex_at_any_logit_scale(method: Any) -> None:
    """The same if zero-shot probabilities are almost uniform, or almost 0 and 1."""
    for scale in (1e-3, 1e4):
        for n in (1, 40):
            _check_rows(_run(method, _batch(method, n, 7, scale=scale)), n, 7, f"logit scale {scale:g}")


def keeps_precision(method: Any) -> None:
    """float32 in, float32 out; float64 in, float64 out."""
    for dtype in (torch.float32, torch.float64):
        z = _run(method, _batch(method, 5, 7, dtype=dtype)).z
        _require(z.dtype == dtype, f"{dtype} features gave {z.dtype} probabilities")


def repeats_bit_for_bit(method: Any) -> None:
    """The same batch twice gives identical bits: no randomness, no memory outside the state."""
    batch = _batch(method, 40, 7)
    first, second = _run(method, batch).z, _run(method, batch).z
    _require(torch.equal(first, second), f"two runs differ by {_distance(first, second):.1e}")


def changes_nothing_it_is_given(method: Any) -> None:
    """A step writes neither to the batch nor to the state, and does not touch torch's random state."""
    batch = _batch(method, 40, 7)
    if method.traits.known:
        batch = dataclasses.replace(batch, known=_some_known(40, 7))
    state = _advance(method, method.init(batch.head), _batch(method, 40, 7, seed=1)).state
    given = {
        "features": batch.features,
        "head.features": batch.head.features,
        "log_zero_shot": batch.log_zero_shot,
    }
    given |= {f"state[{name!r}]": value for name, value in (state or {}).items()}
    given |= {} if batch.views is None else {"views": batch.views}
    given |= {} if batch.images is None else {"images": batch.images}
    given |= {} if batch.known is None else {"known": batch.known}
    given |= {} if batch.encoder is None else {f"encoder.{n}": p for n, p in batch.encoder.state_dict().items()}
    before = {name: value.clone() for name, value in given.items()}
    names = None if state is None else sorted(state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1715)  # a seed that no method uses
        random = torch.get_rng_state()
        _advance(method, state, batch)
        _require(torch.equal(torch.get_rng_state(), random), "step used or set torch's global random state")
    for name, value in given.items():
        _require(torch.equal(value, before[name]), f"step wrote to {name}")
    _require(state is None or sorted(state) == names, "step added entries to the given state or removed some")


def sees_only_the_features(method: Any) -> None:
    """Copies of the tensors with other class names give identical bits: class names have no effect."""
    batch = _batch(method, 40, 7)
    head = TextHead(batch.head.features.clone(), batch.head.logit_scale, tuple("abcdefg"))
    copy = dataclasses.replace(_picked(batch, torch.arange(40)), head=head)
    first, second = _run(method, batch).z, _run(method, copy).z
    _require(
        torch.equal(first, second),
        f"a copy with other class names differs by {_distance(first, second):.1e}",
    )


def prepared_tables_change_nothing(method: Any) -> None:
    """A batch with rows of tables prepared for many images gives the same result as the batch alone."""
    everyone, rows = _batch(method, 40, 7), torch.arange(12)
    tables = {"log_zero_shot": everyone.log_zero_shot}
    if isinstance(method, Prepares):
        tables.update(method.prepare(everyone))
    alone = _picked(everyone, rows)
    prepared = dataclasses.replace(alone, tables={name: table[rows] for name, table in tables.items()})
    gap = _distance(_run(method, prepared).z, _run(method, alone).z)
    _require(gap <= SAME, f"rows change by {gap:.1e} if tables are prepared for more images than the batch has")


def image_scope_keeps_rows_apart(method: Any) -> None:
    """Scope "image": a row does not depend on the other images of the batch."""
    if method.traits.scope != "image":
        return
    batch = _batch(method, 12, 7)
    together = _run(method, batch).z
    alone = torch.cat([_run(method, _picked(batch, torch.tensor([i]))).z for i in range(12)])
    _require(
        _distance(together, alone) <= SAME,
        f'scope is "image", but a row changes by {_distance(together, alone):.1e} without the other images',
    )


def permuted_images_permute_rows(method: Any) -> None:
    """The order of the images in a batch has no effect."""
    batch = _batch(method, 40, 7)
    order = torch.randperm(40, generator=_generator(2))
    gap = _distance(_run(method, _picked(batch, order)).z, _run(method, batch).z[order])
    _require(gap <= SAME, f"rows change by {gap:.1e} if the images are permuted")


def permuted_classes_permute_columns(method: Any) -> None:
    """The order of the classes has no effect."""
    batch = _batch(method, 40, 7)
    order = torch.randperm(7, generator=_generator(3))
    head = _head(batch.head.features[order])
    gap = _distance(_run(method, dataclasses.replace(batch, head=head)).z, _run(method, batch).z[:, order])
    _require(gap <= SAME, f"columns change by {gap:.1e} if the classes are permuted")


def memory_is_as_declared(method: Any) -> None:
    """Memory "none": no state, and no effect of earlier batches. Memory "stream": a state of named tensors."""
    first, second = _batch(method, 40, 7), _batch(method, 40, 7, seed=1)
    states = [method.init(first.head)]
    after = _advance(method, states[0], first)
    states.append(after.state)
    if method.traits.memory == "none":
        for state in states:
            _require(state is None, f'memory is "none", but the state is {type(state).__name__}')
        gap = _distance(_advance(method, None, second).z, _run(method, second).z)
        _require(gap == 0, f'memory is "none", but an earlier batch changes the next by {gap:.1e}')
        return
    for state in states:
        _require(isinstance(state, Mapping), f'memory is "stream", but the state is {type(state).__name__}')
        for name, value in (state or {}).items():
            _require(isinstance(name, str), f"names in a state must be text; got {name!r}")
            _require(isinstance(value, Tensor), f"a state holds tensors; {name!r} is {type(value).__name__}")
    try:
        check_state(method, after.state, first.head)
    except InputError as error:
        raise ContractError(f"a later state is not like the one of init: {error}") from error


def saved_stream_continues(method: Any) -> None:
    """A stream that is saved and loaded continues with identical bits."""
    batches = [_batch(method, 5, 7, seed=seed) for seed in range(4)]
    stream = Stream(batches[0].head, method)
    for batch in batches[:2]:
        _step(stream, batch)
    with tempfile.TemporaryDirectory() as folder:
        stream.save(Path(folder) / "stream.safetensors")
        loaded = Stream.load(Path(folder) / "stream.safetensors", method)
    for batch in batches[2:]:
        whole, resumed = _step(stream, batch), _step(loaded, batch)
        _require(torch.equal(whole, resumed), f"the loaded stream differs by {_distance(whole, resumed):.1e}")


def unknown_labels_change_nothing(method: Any) -> None:
    """Known labels that are all −1 (unknown) give the same bits as no known labels."""
    unknown = dataclasses.replace(_batch(method, 40, 7), known=torch.full((40,), UNKNOWN))
    first, second = _run(method, _batch(method, 40, 7)).z, _run(method, unknown).z
    _require(torch.equal(first, second), f"known labels that are all −1 change z by {_distance(first, second):.1e}")


def known_labels_are_kept(method: Any) -> None:
    """Traits.known: the argmax of an image with a known label is that label; z is n×k with rows on the simplex."""
    if not method.traits.known:
        return
    for n in IMAGES:
        for k in CLASSES:
            known = _some_known(n, k)
            step = _run(method, dataclasses.replace(_batch(method, n, k), known=known.clone()))
            _check_rows(step, n, k, "with known labels")
            lost = (known >= 0) & (step.z.argmax(dim=1) != known)
            _require(not lost.any(), f"n={n}, k={k}: {int(lost.sum())} of {int((known >= 0).sum())} known labels lost")


def classes_come_and_go(method: Any) -> None:
    """Any method works on part of the classes. With Traits.by_class, also in the middle of a stream."""
    first, second, third = (_batch(method, 40, 7, seed=seed) for seed in range(3))
    present = torch.tensor([0, 2, 5])

    def narrowed(state: State | None, batch: Batch) -> Step:
        with torch.no_grad():
            step = narrowed_step(method, state, batch, present)
        _check_rows(step, 40, 7, "with 3 classes that can occur")
        return step

    narrowed(initial_state(method, first.head, present), first)
    if not method.traits.by_class:
        return
    state = _run(method, first).state
    for name, value in (state or {}).items():
        _require(value.shape[:1] == (7,), f"by_class: {name} in the state has shape {tuple(value.shape)}, not 7 rows")
    _check_rows(_advance(method, narrowed(state, second).state, third), 40, 7, "with all classes again")


def graded_is_as_declared(method: Any) -> None:
    """Traits.graded: z is one-hot if that is False, and not if it is True."""
    one_hot = _run(method, _batch(method, 40, 7, scale=10)).z.amax(dim=1) == 1
    if method.traits.graded:
        _require(not one_hot.all(), "graded, but every row of z is one-hot")
    else:
        _require(one_hot.all(), f"not graded, but {int((~one_hot).sum())} of 40 rows of z are not one-hot")


def info_is_json(method: Any) -> None:
    """`info` is a dict with text keys that JSON can hold, because it goes into records."""
    info = _run(method, _batch(method, 5, 7)).info
    _require(isinstance(info, dict), f"info must be a dict; got {type(info).__name__}")
    _require(all(isinstance(key, str) for key in info), f"info's keys must be text; got {list(info)}")
    json.dumps(info)


_CHECKS: tuple[Callable[[Any], None], ...] = (
    settings_are_frozen,
    settings_survive_json,
    has_name_and_traits,
    has_init_and_step,
    rows_on_simplex,
    rows_on_simplex_for_twin_classes,
    rows_on_simplex_for_twin_images,
    rows_on_simplex_at_any_logit_scale,
    keeps_precision,
    repeats_bit_for_bit,
    changes_nothing_it_is_given,
    sees_only_the_features,
    prepared_tables_change_nothing,
    image_scope_keeps_rows_apart,
    permuted_images_permute_rows,
    permuted_classes_permute_columns,
    memory_is_as_declared,
    saved_stream_continues,
    unknown_labels_change_nothing,
    known_labels_are_kept,
    classes_come_and_go,
    graded_is_as_declared,
    info_is_json,
)


def _batch(
    method: Any, n: int, k: int, *, dtype: torch.dtype = torch.float64, scale: float = 100.0, seed: int = 0
) -> Batch:
    """A simulated batch with what the method needs: n images around k prototypes, which depend only on k."""
    t = unit(torch.randn(k, DIMENSION, generator=_generator(k), dtype=torch.float64))
    random = _generator(1000 + seed)
    classes = torch.randint(k, (n,), generator=random)
    noise = torch.randn(n, VIEWS, DIMENSION, generator=random, dtype=torch.float64)
    noise[:, 1:] *= 2  # so that views disagree
    views = unit(t[classes][:, None] + 0.3 * noise).to(dtype)
    head = _head(t.to(dtype), scale)
    if method.traits.needs == "encoder":
        encoder, images = TinyEncoder().to(dtype), views[:, 0].clone()
        with torch.no_grad():
            return Batch(encoder(images), head, None, images, encoder)
    return Batch(views[:, 0].clone(), head, views if method.traits.needs == "views" else None)


def _some_known(n: int, k: int) -> Tensor:
    """Known labels, n: random classes (most of them wrong), and UNKNOWN. The first image has a class."""
    known = torch.randint(UNKNOWN, k, (n,), generator=_generator(4))
    known[0] = k - 1
    return known


class TinyEncoder(torch.nn.Module):
    """An encoder for the checks, with fixed weights: two norms and a matrix. An "image" is a vector of DIMENSION."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.LayerNorm(DIMENSION)
        self.mix = torch.nn.Parameter(
            torch.eye(DIMENSION) + 0.1 * torch.randn((DIMENSION,) * 2, generator=_generator(7))
        )
        self.after = torch.nn.LayerNorm(DIMENSION)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """n×DIMENSION → unit n×DIMENSION."""
        return torch.nn.functional.normalize(self.after(self.before(images) @ self.mix))


def _head(t: Tensor, scale: float = 100.0) -> TextHead:
    return TextHead(t, scale, tuple(f"class {j}" for j in range(len(t))))


def _picked(batch: Batch, rows: Tensor) -> Batch:
    """The batch of these rows, without known labels."""
    views, images = (None if part is None else part[rows] for part in (batch.views, batch.images))
    return Batch(batch.features[rows], batch.head, views, images, batch.encoder)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _advance(method: Any, state: Any, batch: Batch) -> Step:
    with torch.no_grad():
        step = method.step(state, batch)
    _require(isinstance(step, Step), f"step must return a kedge.Step; got {type(step).__name__}")
    return step  # type: ignore[no-any-return]


def _step(stream: Stream, batch: Batch) -> Tensor:
    """The probabilities of the next batch of a stream."""
    z = stream.step(batch.features.clone(), batch.views, images=batch.images, encoder=batch.encoder).probs
    return z


def _run(method: Any, batch: Batch) -> Step:
    """The first step of a stream, with this batch."""
    return _advance(method, method.init(batch.head), batch)


def _check_rows(step: Step, n: int, k: int, where: str = "") -> None:
    z, where = step.z, f"n={n}, k={k}" + (f", {where}" if where else "")
    _require(tuple(z.shape) == (n, k), f"{where}: z has shape {tuple(z.shape)}")
    _require(
        bool(z.isfinite().all()),
        f"{where}: z has {int((~z.isfinite()).sum())} entries that are NaN or infinite",
    )
    _require(bool((z >= 0).all()), f"{where}: z has negative entries, down to {float(z.min()):.1e}")
    gap = float((z.double().sum(dim=1) - 1).abs().max())
    _require(gap <= 1e-5, f"{where}: a row sums to 1 ± {gap:.1e}")


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ContractError(message)
