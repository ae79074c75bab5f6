"""Extraction on a cluster: shards made by Ray Data, with an actor for each device.

    with connected():
        extract_folder(images, classes, out="features", map_shards=map_shards)

Every actor has the encoder, which comes from the process that started the work, so no node downloads it. A unit of work
is the images of one shard; its actor reads their files and writes the shard by rename, in folders that all nodes share.
If a worker or a node is lost, Ray gives its units to others; a shard that is there is not made again.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import KedgeError, SettingError
from ..features.shard_maker import ShardMaker, Unit
from ..words import count
from .connect import ray_library


class _Actor:
    """Has a shard maker, and so an encoder, from its first unit to its last."""

    def __init__(self, maker: Any) -> None:
        import ray

        self.maker: ShardMaker = ray.get(maker)

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        return {"images": self.maker(pickle.loads(row["unit"]))}


def map_shards(maker: ShardMaker, units: Iterable[Unit], number: int) -> Iterator[int]:
    """Make the shards of all units on the cluster that is connected; the number of images of each, as it is done."""
    ray = ray_library()
    if not number:
        return
    gpu = maker.encoder.device.type == "cuda"
    if maker.workers is None and not gpu:
        maker = replace(maker, workers=0)  # the other processors have encoders of their own
    wanted = {"CPU": 1 + (maker.workers or 0), **({"GPU": 1} if gpu else {})}  # of each actor
    room = [min(node["Resources"].get(kind, 0) // size for kind, size in wanted.items()) for node in _alive(ray)]
    if not sum(room):
        needed = " and ".join(count(size, kind) for kind, size in wanted.items())
        raise SettingError(
            f"no node of the cluster has {needed} for a worker. Use another --device, or fewer --workers."
        )
    most = int(min(sum(room), number))
    rows = [{"unit": pickle.dumps(unit)} for unit in units]
    try:
        sent = ray.put(maker)
    except Exception as error:  # the encoder may be of any library
        raise SettingError(f"the encoder {maker.encoder.name} cannot be sent to a cluster: {error}") from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    made = ray.data.from_items(rows, override_num_blocks=number).map(
        _Actor,
        fn_constructor_args=(sent,),
        compute=ray.data.ActorPoolStrategy(  # from one on: those of a lost node give way to the others
            min_size=1, initial_size=most, max_size=most, max_tasks_in_flight_per_actor=1
        ),
        num_cpus=wanted["CPU"],
        num_gpus=wanted.get("GPU", 0),
    )
    try:
        for row in made.iter_rows():
            yield row["images"]
    except ray.exceptions.RayError as error:
        raise _cause(error) from error


def _alive(ray: Any) -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def _cause(error: BaseException) -> BaseException:
    """The error of kedge in a worker that ended the work, without Ray's around it; or else this one."""
    found: BaseException = error
    inner: Any = error
    while inner is not None:
        if isinstance(inner, KedgeError):
            found = inner
        inner = getattr(inner, "cause", None) or inner.__cause__
    return found
