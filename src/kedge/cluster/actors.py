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
from ..words import count
from .connect import ray_library, reach

RETRIES = 10  # losses in one call after which the solve gives up
PATIENCE = 60.0  # seconds for actors to start


class Made(NamedTuple):
    """A call of every part; if it lasts, it is made again of a new actor."""

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
        there = [actor.node.remote() for actor in self.actors]
        waiting = ray_library().wait(there, num_returns=number, timeout=PATIENCE)[1]
        if waiting:
            notice(f"{len(waiting)} of {number} parts wait; each needs {count(self.threads, 'free CPU')}")

    def replace(self, number: int, taken: Iterable[str]) -> str:
        """Another actor in place of one that is gone, on the node that has the fewest; the node.

        taken: the nodes of the others. The lost actor may have gone with its node, so that no processor is free for
        another one: it shares those of a part.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray_library().kill(self.actors[number])  # it may only have been out of reach
        actors, left = Counter(taken), [node["NodeID"] for node in nodes() if _reachable(node)]
        if not left:
            raise PartLost("no node of the cluster is left. Add nodes, and run this again.")
        node: str = min(left, key=lambda node: actors[node])
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
        self.lasting: list[Made] = []
        self.used = False  # a call was answered by all
        self.gone: dict[int, str] = {}  # parts whose actor is gone, and why
        self.behind = set(range(len(self)))  # parts without an object, or whose object lacks lasting calls
        for _ in range(RETRIES):
            if self._mended():
                return
        raise self._lost("it was made")

    def __len__(self) -> int:
        return len(self.arguments)

    def each(self, call: str, *shared: Any, own: Sequence[Any] | None = None, lasting: bool = False) -> list[Any]:
        """See `Parts`."""
        return self._all(Made(None, call, own, (), shared), lasting)

    def exchange(
        self, give: str, take: str, *shared: Any, giving: tuple[Any, ...] = (), lasting: bool = False
    ) -> list[Any]:
        """See `Parts`."""
        return self._all(Made(give, take, None, giving, shared), lasting)

    def forget(self, call: str) -> None:
        """See `Parts`."""
        last = [place for place, made in enumerate(self.lasting) if made.call == call][-1:]
        self.lasting = self.lasting[: last[0]] if last else self.lasting

    def close(self) -> None:
        """See `Parts`. Nobody waits for it: an actor may be busy for long."""
        for actor in self.hosts.actors:
            actor.make.remote(dict, (), False)

    def _all(self, made: Made, lasting: bool) -> list[Any]:
        """Make a call of every part; of those that are lost before they answer, again."""
        found: dict[int, Any] = {}
        for _ in range(RETRIES):
            if lasting:  # an object that is made again has lost what this call did to the one before
                found = {number: result for number, result in found.items() if number not in self.behind}
            if not self._mended():
                continue
            found |= self._of(made, [number for number in range(len(self)) if number not in found])
            if len(found) == len(self) and not self.gone:
                self.used = True
                self.lasting += [made] if lasting else []
                return [found[number] for number in range(len(self))]
        raise self._lost(f"all had answered {made.call}")

    def _of(self, made: Made, numbers: Sequence[int]) -> dict[int, Any]:
        """Make a call of some parts; the results of those that answered. Parts whose actor is gone are noted."""
        actors = self.hosts.actors
        shared = [ray_library().put(each) for each in made.shared]
        if made.give is None:
            own = [[]] * len(self) if made.own is None else [[each] for each in made.own]
            return self._answers({n: actors[n].call.remote(made.call, *own[n], *shared) for n in numbers})
        several = len(self) + 1
        given = [actor.give.options(num_returns=several).remote(made.give, *made.giving) for actor in actors]
        if len(self._answers({number: refs[0] for number, refs in enumerate(given)})) < len(self):
            return {}  # first those that are lost are replaced
        entries = {n: [refs[n + 1] for refs in given] for n in numbers}
        return self._answers({n: actors[n].take.remote(made.call, len(self), *entries[n], *shared) for n in numbers})

    def _answers(self, refs: dict[int, Any]) -> dict[int, Any]:
        """The results that came, by part. Those of parts that are gone, or whose input is, are left out."""
        ray = ray_library()
        from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError

        found = {}
        for number, ref in refs.items():
            try:
                found[number] = ray.get(ref)
            except RayTaskError as error:  # raised in the actor: by the part, or because what others gave is lost
                if not isinstance(error.cause, RayActorError | ObjectLostError):
                    raise error.cause from None
            except ObjectLostError:
                pass
            except RayError as error:  # it may have been in the middle of the call, which must not be made of it twice
                self.gone[number] = str(error).strip().partition("\n")[0] or type(error).__name__
        self.behind |= self.gone.keys()
        return found

    def _mended(self) -> bool:
        """Replace every actor that is gone, and make the lasting calls of its part again. False: others were lost."""
        if self.gone and self.used and not self.lasting:
            raise self._lost("any of its work could be continued")
        lost, actors = sorted(self.gone), self.hosts.actors
        on = self._answers({n: actors[n].node.remote() for n in range(len(self)) if lost and n not in lost})
        for number in lost:
            notice(f"part {number} was lost, and is made again")
            on[number] = self.hosts.replace(number, on.values())
            del self.gone[number]
        behind = sorted(self.behind)
        made = self._answers({n: actors[n].make.remote(self.make, self.arguments[n], self.used) for n in behind})
        if len(made) < len(behind):
            return False
        for call in self.lasting if behind else ():
            if len(self._of(call, behind)) < len(behind):
                return False
        self.behind.clear()
        return True

    def _lost(self, before: str) -> PartLost:
        reason = next(iter(self.gone.values()), "what it was given did not arrive")
        return PartLost(f"a part was lost before {before}: {reason.rstrip('.')}. Look at the nodes of the cluster.")


def _threads(actors: int) -> int:
    """Cores for each of so many actors: so many that all find a place."""
    cores = sorted((int(node["Resources"]["CPU"]) for node in nodes()), reverse=True)
    most = cores[min(actors, len(cores)) - 1] if cores else 0  # so that each can be on a node of its own
    for threads in range(most, 0, -1):
        if sum(each // threads for each in cores) >= actors:
            return threads
    raise SettingError(
        f"{actors} actors need as many cores; the cluster has {sum(cores)}. Ask for fewer, or add nodes."
    )


def nodes() -> list[Any]:
    """The nodes that have processors."""
    return [node for node in ray_library().nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def _reachable(node: Any) -> bool:
    """Is this node there? Ray itself may take a minute to notice that one is gone."""
    try:
        reach(node["NodeManagerAddress"], node["NodeManagerPort"])
    except OSError:
        return False
    return True
