"""The contract every method keeps, as checks that anyone can run on their own.

    from kedge.checks import check_method, method_checks

    check_method(MyMethod())            # raises ContractError and names every broken check

    @pytest.mark.parametrize(("name", "check"), method_checks(MyMethod()))
    def test_contract(name, check):     # or: one test per check
        check()

A check may be skipped only with a written reason, and only as long as it fails:
`check_method(method, skip={"permuted_images_permute_rows": "images enter the cache in their order"})`.

All inputs are small and simulated: random unit prototypes with images scattered around them, and a tiny encoder of
random weights for methods that need one.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from ..arrays import unit
from ..errors import ContractError, SettingError, did_you_mean
from ..features.text_head import TextHead
from ..methods.contract import Batch, Prepares, Step, Traits
from ..methods.registry import build
from ..words import count
from .stream import Stream

IMAGES, CLASSES, DIMENSION, VIEWS = (1, 2, 3, 5, 40), (1, 2, 7), 16, 4
SAME = 1e-6  # in float64: the same result by another order of summation


def check_method(method: Any, skip: Mapping[str, str] | None = None) -> None:
    """Try every check; raise one ContractError that names all that are broken.

    method: a method object, or a registered name. skip: check → the reason why this method can not pass it.
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
    """Each check with its name; a call returns or raises ContractError."""
    if isinstance(method, str):
        method = build(method)
    skip = dict(skip or {})
    known = [check.__name__ for check in _CHECKS]
    for name, reason in skip.items():
        if name not in known:
            raise SettingError(f"no check is called {name!r}{did_you_mean(name, known)}")
        if not reason.strip():
            raise SettingError(f"check {name!r} is skipped without a reason. Write why the method can not pass it.")
    for check in _CHECKS:
        yield check.__name__, _bound(check, method, skip.get(check.__name__))


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


# The checks. Each takes the method, returns nothing, and raises ContractError with what was found.


def settings_are_frozen(method: Any) -> None:
    """The method is a frozen dataclass, equal to a copy of itself."""
    _require(dataclasses.is_dataclass(method) and not isinstance(method, type), "not a dataclass object")
    _require(type(method).__dataclass_params__.frozen, "its dataclass is not frozen: use @dataclass(frozen=True)")
    copy = dataclasses.replace(method)
    _require(copy == method and hash(copy) == hash(method), "not equal to a copy with the same settings")


def settings_survive_json(method: Any) -> None:
    """Settings written as JSON and read back make an equal method: records and saved streams depend on it."""
    text = json.dumps(dataclasses.asdict(method))
    again = type(method)(**json.loads(text))
    _require(again == method, f"settings {text} read back make {again!r}, not {method!r}")


def has_name_and_traits(method: Any) -> None:
    """`name` and `traits` belong to the class, and say something."""
    cls = type(method)
    name, traits = getattr(cls, "name", None), getattr(cls, "traits", None)
    _require(isinstance(name, str), f"the class needs a name (ClassVar[str]); got {name!r}")
    _require(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(name)), f"name must be like 'zero-shot'; got {name!r}")
    _require(isinstance(traits, Traits), f"the class needs traits (ClassVar[Traits]); got {traits!r}")
    hints = get_type_hints(Traits)
    for trait in ("scope", "memory", "needs"):
        value, options = getattr(traits, trait), get_args(hints[trait])
        _require(value in options, f"traits.{trait} must be one of {', '.join(options)}; got {value!r}")


def has_init_and_step(method: Any) -> None:
    """`init(head)` and `step(state, batch)` can be called so."""
    for function, arguments in (("init", ("head",)), ("step", ("state", "batch"))):
        call = f"{function}({', '.join(arguments)})"
        _require(callable(getattr(method, function, None)), f"has no {call}")
        try:
            inspect.signature(getattr(method, function)).bind(*arguments)
        except TypeError as error:
            raise ContractError(f"can not be called as {call}: {error}") from error


def rows_on_simplex(method: Any) -> None:
    """z is n×k, finite, not negative, rows sum to 1: for tiny and ordinary batches, one class or several."""
    for n in IMAGES:
        for k in CLASSES:
            _check_rows(_run(method, _batch(method, n, k)), n, k)


def rows_on_simplex_for_twin_classes(method: Any) -> None:
    """The same when two classes have the same prototype, and when all have."""
    for copies in (2, 7):
        batch = _batch(method, 5, 7)
        t = batch.head.features.clone()
        t[:copies] = t[0]
        _check_rows(_run(method, dataclasses.replace(batch, head=_head(t))), 5, 7, f"{copies} identical prototypes")


def rows_on_simplex_for_twin_images(method: Any) -> None:
    """The same when images are duplicates, and when all are one image."""
    for rows in (torch.arange(5).repeat(2), torch.zeros(10, dtype=torch.long)):
        batch = _picked(_batch(method, 5, 7), rows)
        _check_rows(_run(method, batch), 10, 7, f"{10 - len(set(rows.tolist()))} duplicates")


def rows_on_simplex_at_any_logit_scale(method: Any) -> None:
    """The same for an encoder whose probabilities are all flat, or all 0 and 1."""
    for scale in (1e-3, 1e4):
        for n in (1, 40):
            _check_rows(_run(method, _batch(method, n, 7, scale=scale)), n, 7, f"logit scale {scale:g}")


def keeps_precision(method: Any) -> None:
    """float32 in, float32 out; float64 in, float64 out."""
    for dtype in (torch.float32, torch.float64):
        z = _run(method, _batch(method, 5, 7, dtype=dtype)).z
        _require(z.dtype == dtype, f"{dtype} features gave {z.dtype} probabilities")


def repeats_bit_for_bit(method: Any) -> None:
    """The same batch twice gives the same bits: no randomness of its own, no memory outside the state."""
    batch = _batch(method, 40, 7)
    first, second = _run(method, batch).z, _run(method, batch).z
    _require(torch.equal(first, second), f"two runs differ by {_distance(first, second):.1e}")


def changes_nothing_it_is_given(method: Any) -> None:
    """A step writes neither to the batch nor to the state, and leaves torch's random state alone."""
    batch = _batch(method, 40, 7)
    state = _advance(method, method.init(batch.head), _batch(method, 40, 7, seed=1)).state
    given = {
        "features": batch.features,
        "head.features": batch.head.features,
        "log_zero_shot": batch.log_zero_shot,
    }
    given |= {f"state[{name!r}]": value for name, value in (state or {}).items()}
    given |= {} if batch.views is None else {"views": batch.views}
    given |= {} if batch.images is None else {"images": batch.images}
    given |= {} if batch.encoder is None else {f"encoder.{n}": p for n, p in batch.encoder.state_dict().items()}
    before = {name: value.clone() for name, value in given.items()}
    names = None if state is None else sorted(state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1715)  # one that nobody else sets
        random = torch.get_rng_state()
        _advance(method, state, batch)
        _require(torch.equal(torch.get_rng_state(), random), "torch's global random state was used or set")
    for name, value in given.items():
        _require(torch.equal(value, before[name]), f"step wrote to {name}")
    _require(state is None or sorted(state) == names, "step added to or took from the state it was given")


def sees_only_the_features(method: Any) -> None:
    """Copies of the tensors under other class names give the same bits: nothing is looked up elsewhere."""
    batch = _batch(method, 40, 7)
    head = TextHead(batch.head.features.clone(), batch.head.logit_scale, tuple("abcdefg"))
    copy = dataclasses.replace(_picked(batch, torch.arange(40)), head=head)
    first, second = _run(method, batch).z, _run(method, copy).z
    _require(
        torch.equal(first, second),
        f"a copy under other class names differs by {_distance(first, second):.1e}",
    )


def prepared_tables_change_nothing(method: Any) -> None:
    """What is prepared for many images and handed to a batch as rows gives what the batch gives alone."""
    everyone, rows = _batch(method, 40, 7), torch.arange(12)
    tables = {"log_zero_shot": everyone.log_zero_shot}
    if isinstance(method, Prepares):
        tables.update(method.prepare(everyone))
    alone = _picked(everyone, rows)
    prepared = dataclasses.replace(alone, tables={name: table[rows] for name, table in tables.items()})
    gap = _distance(_run(method, prepared).z, _run(method, alone).z)
    _require(gap <= SAME, f"rows change by {gap:.1e} when tables are prepared for more images than the batch has")


def image_scope_keeps_rows_apart(method: Any) -> None:
    """Scope "image": a row is the same whether the other images are there or not."""
    if method.traits.scope != "image":
        return
    batch = _batch(method, 12, 7)
    together = _run(method, batch).z
    alone = torch.cat([_run(method, _picked(batch, torch.tensor([i]))).z for i in range(12)])
    _require(
        _distance(together, alone) <= SAME,
        f'scope is "image", but a row changes by {_distance(together, alone):.1e} when the others are gone',
    )


def permuted_images_permute_rows(method: Any) -> None:
    """The order of the images in a batch carries no meaning."""
    batch = _batch(method, 40, 7)
    order = torch.randperm(40, generator=_generator(2))
    gap = _distance(_run(method, _picked(batch, order)).z, _run(method, batch).z[order])
    _require(gap <= SAME, f"rows change by {gap:.1e} when the images are permuted")


def permuted_classes_permute_columns(method: Any) -> None:
    """The order of the classes carries no meaning."""
    batch = _batch(method, 40, 7)
    order = torch.randperm(7, generator=_generator(3))
    head = _head(batch.head.features[order])
    gap = _distance(_run(method, dataclasses.replace(batch, head=head)).z, _run(method, batch).z[:, order])
    _require(gap <= SAME, f"columns change by {gap:.1e} when the classes are permuted")


def memory_is_as_declared(method: Any) -> None:
    """Memory "none": no state, and no trace of earlier batches. Memory "stream": a state of named tensors."""
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
            _require(isinstance(name, str), f"a state's names are text; got {name!r}")
            _require(isinstance(value, Tensor), f"a state holds tensors; {name!r} is {type(value).__name__}")


def saved_stream_continues(method: Any) -> None:
    """A stream saved and loaded in the middle goes on bit for bit."""
    batches = [_batch(method, 5, 7, seed=seed) for seed in range(4)]
    stream = Stream(method, batches[0].head)
    for batch in batches[:2]:
        _step(stream, batch)
    with tempfile.TemporaryDirectory() as folder:
        stream.save(Path(folder) / "stream.safetensors")
        loaded = Stream.load(Path(folder) / "stream.safetensors", method)
    for batch in batches[2:]:
        whole, resumed = _step(stream, batch), _step(loaded, batch)
        _require(torch.equal(whole, resumed), f"the loaded stream differs by {_distance(whole, resumed):.1e}")


def info_is_json(method: Any) -> None:
    """`info` is a dict with text keys that JSON can hold: it goes into records."""
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
    info_is_json,
)


def _batch(
    method: Any, n: int, k: int, *, dtype: torch.dtype = torch.float64, scale: float = 100.0, seed: int = 0
) -> Batch:
    """A simulated batch of what the method needs: n images around k prototypes, which depend on k alone."""
    t = unit(torch.randn(k, DIMENSION, generator=_generator(k), dtype=torch.float64))
    random = _generator(1000 + seed)
    classes = torch.randint(k, (n,), generator=random)
    noise = torch.randn(n, VIEWS, DIMENSION, generator=random, dtype=torch.float64)
    views = unit(t[classes][:, None] + 0.3 * noise).to(dtype)
    head = _head(t.to(dtype), scale)
    if method.traits.needs == "encoder":
        encoder, images = TinyEncoder().to(dtype), views[:, 0].clone()
        with torch.no_grad():
            return Batch(encoder(images), head, None, images, encoder)
    return Batch(views[:, 0].clone(), head, views if method.traits.needs == "views" else None)


class TinyEncoder(torch.nn.Module):
    """An encoder for checks: an "image" is a vector of DIMENSION numbers; two norms and a product, always the same."""

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
    return z  # type: ignore[no-any-return]


def _run(method: Any, batch: Batch) -> Step:
    """The batch as the first of a stream."""
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
