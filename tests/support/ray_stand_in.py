"""A stand-in for Ray: actors in this process, which can be lost before or after they do what they are asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from kedge.cluster.actors import Actors, Host


class Ref:
    """A value, or the error that stands for it."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error


def get(ref: Ref) -> Any:
    if ref.error:
        raise ref.error
    return ref.value


class Handle:
    """An actor. `loses` says of every call whether the actor is lost with it: before, after, or not ("")."""

    def __init__(self, number: int, loses: Callable[[int, str], str], error: Exception) -> None:
        self.host, self.number, self.loses, self.error, self.gone = Host(1), number, loses, error, False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(
            remote=lambda *arguments: self._ask(name, 1, arguments),
            options=lambda num_returns: SimpleNamespace(remote=lambda *given: self._ask(name, num_returns, given)),
        )

    def _ask(self, name: str, returns: int, arguments: Sequence[Any]) -> Any:
        what = arguments[0] if arguments and isinstance(arguments[0], str) else name
        lost = "" if self.gone or name == "node" else self.loses(self.number, what)
        self.gone = self.gone or lost == "before"
        found = self._answer(name, returns, arguments)
        self.gone = self.gone or lost == "after"
        return self._refs(returns, Ref(error=self.error)) if self.gone else found

    def _answer(self, name: str, returns: int, arguments: Sequence[Any]) -> Any:
        missing = [each.error for each in arguments if isinstance(each, Ref) and each.error]
        if self.gone:
            return self._refs(returns, Ref(error=self.error))
        if missing:
            return self._refs(returns, Ref(error=RayTaskError("take", "", missing[0])))
        if name == "node":
            return Ref("node")
        found = getattr(self.host, name)(*(each.value if isinstance(each, Ref) else each for each in arguments))
        return Ref(found) if returns == 1 else list(map(Ref, found))

    @staticmethod
    def _refs(returns: int, ref: Ref) -> Any:
        return ref if returns == 1 else [ref] * returns


class Hosts:
    """As `kedge.cluster.actors.Hosts`."""

    def __init__(self, number: int, loses: Callable[[int, str], str], error: Exception | None = None) -> None:
        self.loses, self.error, self.replaced = loses, error or RayActorError(), list[int]()
        self.actors = [self._new(each) for each in range(number)]

    def _new(self, number: int) -> Handle:
        return Handle(number, self.loses, self.error)

    def replace(self, number: int, taken: Iterable[str]) -> str:
        assert set(taken) <= {"node"}
        self.replaced.append(number)
        self.actors[number] = self._new(number)
        return "node"

    def __call__(self, make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Actors:
        return Actors(self, make, arguments)  # type: ignore[arg-type]


RAY = SimpleNamespace(get=get, put=Ref)
