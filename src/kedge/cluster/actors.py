"""Parts of a solve as actors of Ray: `methods/solve/parts.py` on more than one machine.

Ray places the actors, passes what they give each other from node to node, and notices when one is gone. Here is what
only a solve knows: an actor that takes the place of a lost one is made again from its files, and the calls that last
are made of it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import SettingError
from ..methods.solve.parts import PartLost
from ..progress import notice
from .connect import ray_library, reach

RETRIES = 10  # losses in one call after which the solve gives up


class Made(NamedTuple):
    """A lasting call, to be made again of a new actor."""

    give: str | None  # of an exchange
    call: str
    own: Sequence[Any] | None
    giving: tuple[Any, ...]
    shared: tuple[Any, ...]


class Host:
    """What an actor is: one object at a time, made where it is needed."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.part: Any = None

    def make(self, make: Callable[..., Any], arguments: tuple[Any, ...], again: bool) -> None:
        """Make the object. again: it takes the place of one that was lost."""
        self.part = None  # let go of the one before
        self.part = make(*arguments)
        if again and hasattr(self.part, "resume"):
            self.part.resume()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the object."""
        return getattr(self.part, name)(*arguments)

    def give(self, name: str, *arguments: Any) -> Any:
        """Nothing, and then each entry of what the function gives: Ray keeps them apart, and says when all is there."""
        return (None, *self.call(name, *arguments))

    def take(self, name: str, parts: int, *arguments: Any) -> Any:
        """Call a function with a list of what so many parts gave, and what is shared."""
        return self.call(name, list(arguments[:parts]), *arguments[parts:])

    def node(self) -> str:
        """The node that the actor is on. Ray raises an error if the actor is gone."""
        found: str = ray_library().get_runtime_context().get_node_id()
        return found


class Hosts:
    """So many actors: the engine that makes parts on a cluster."""

    def __init__(self, number: int) -> None:
        self.threads = _threads(number)
        self.actors = [self._new(num_cpus=self.threads, scheduling_strategy="SPREAD") for _ in range(number)]

    def replace(self, number: int, taken: Iterable[str]) -> str:
        """Another actor in place of one that is gone, on the node that has the fewest; the node.

        taken: the nodes of the others. The lost actor may have gone with its node, so that no processor is free for
        another one: it shares those of a part.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actors = Counter(taken)
        node: str = min((node["NodeID"] for node in _nodes()), key=lambda node: actors[node])
        there = NodeAffinitySchedulingStrategy(node, soft=True)
        self.actors[number] = self._new(num_cpus=0, scheduling_strategy=there)
        return node

    def _new(self, **place: Any) -> Any:
        return ray_library().remote(Host).options(**place).remote(self.threads)

    def __call__(self, make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Actors:
        """An object of each of these arguments, one in each actor; they replace those before."""
        return Actors(self, make, arguments)

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            ray_library().kill(actor)


class Actors:
    """Objects, each in an actor; see `methods.solve.parts.Parts`."""

    def __init__(self, hosts: Hosts, make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
        self.hosts, self.make, self.arguments = hosts, make, arguments
        self.lasting: dict[str, Made] = {}
        self.used = False
        self._make(range(len(self)), again=False)

    def __len__(self) -> int:
        return len(self.arguments)

    def each(self, call: str, *shared: Any, own: Sequence[Any] | None = None, lasting: bool = False) -> list[Any]:
        """See `Parts`."""
        made = Made(None, call, own, (), shared)
        found = self._all(made)
        if lasting:
            self.lasting[call] = made  # the place in the order stays that of the first call
        return found

    def exchange(
        self, give: str, take: str, *shared: Any, giving: tuple[Any, ...] = (), lasting: bool = False
    ) -> list[Any]:
        """See `Parts`."""
        made = Made(give, take, None, giving, shared)
        found = self._all(made)
        if lasting:
            self.lasting[take] = made
        return found

    def close(self) -> None:
        """See `Parts`."""
        _answers({n: actor.make.remote(dict, (), False) for n, actor in enumerate(self.hosts.actors)})

    def _all(self, made: Made) -> list[Any]:
        """Make a call of every part; of those that are lost before they answer, again."""
        found: dict[int, Any] = {}
        pending = list(range(len(self)))
        for _ in range(RETRIES):
            found |= self._of(made, pending)
            pending = [number for number in pending if number not in found]
            self.used = True
            if not pending:
                return [found[number] for number in range(len(self))]
            self._replace_lost()
        raise PartLost(f"parts were lost {RETRIES} times in one call, {made.call}. Look at the nodes of the cluster.")

    def _of(self, made: Made, numbers: Sequence[int]) -> dict[int, Any]:
        """Make a call of some parts; the results of those that answered."""
        actors = self.hosts.actors
        shared = [ray_library().put(each) for each in made.shared]
        if made.give is None:
            own = [[]] * len(self) if made.own is None else [[each] for each in made.own]
            return _answers({n: actors[n].call.remote(made.call, *own[n], *shared) for n in numbers})
        several = len(self) + 1
        given = [actor.give.options(num_returns=several).remote(made.give, *made.giving) for actor in actors]
        if len(_answers({number: refs[0] for number, refs in enumerate(given)})) < len(self):
            return {}  # first those that are lost are replaced
        entries = {n: [refs[n + 1] for refs in given] for n in numbers}
        return _answers({n: actors[n].take.remote(made.call, len(self), *entries[n], *shared) for n in numbers})

    def _replace_lost(self) -> None:
        """Replace every actor that is gone, and make the lasting calls of it again."""
        there = _answers({number: actor.node.remote() for number, actor in enumerate(self.hosts.actors)})
        lost = [number for number in range(len(self)) if number not in there]
        if lost and self.used and not self.lasting:
            raise PartLost("an actor was lost before any of its work could be continued.")
        for number in lost:
            notice(f"part {number} was lost, and is made again")
            there[number] = self.hosts.replace(number, there.values())
        self._make(lost, again=True)
        for made in self.lasting.values():
            self._of(made, lost)  # one that is lost again is found out by the call that is to be made

    def _make(self, numbers: Sequence[int], again: bool) -> None:
        actors = self.hosts.actors
        _answers({n: actors[n].make.remote(self.make, self.arguments[n], again) for n in numbers})


def _answers(refs: dict[int, Any]) -> dict[int, Any]:
    """The results that came, by part. Those of parts that are gone, or whose input is, are left out."""
    ray = ray_library()
    from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

    found = {}
    for number, ref in refs.items():
        try:
            found[number] = ray.get(ref)
        except (RayActorError, ObjectLostError):
            continue
        except RayTaskError as error:
            if isinstance(error.cause, RayActorError | ObjectLostError):
                continue
            raise error.cause from None
    return found


def _threads(actors: int) -> int:
    """Cores for each of so many actors: so many that all find a place."""
    nodes = [int(node["Resources"]["CPU"]) for node in _nodes()]
    for threads in range(max(nodes, default=0), 0, -1):
        if sum(cores // threads for cores in nodes) >= actors:
            return threads
    raise SettingError(
        f"{actors} actors need as many cores; the cluster has {sum(nodes)}. Ask for fewer, or add nodes."
    )


def _nodes() -> list[Any]:
    """The nodes that have processors."""
    return [node for node in ray_library().nodes() if _is_there(node) and node["Resources"].get("CPU", 0) >= 1]


def _is_there(node: Any) -> bool:
    """Does this node answer? Ray itself may take a minute to notice that one is gone."""
    try:
        reach(node["NodeManagerAddress"], node["NodeManagerPort"])
    except OSError:
        return False
    return bool(node["Alive"])
