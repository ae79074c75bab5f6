"""Connecting to a cluster of Ray (extra `cluster`), without its messages and without its usage statistics."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from .. import progress
from ..errors import MissingExtra, SettingError
from ..words import count

REACHED_IN = 5.0  # seconds; Ray itself tries for twenty, and writes a line in each
AUTO = "auto"  # the cluster that runs on this machine, or else one of its own for as long as the work takes


def ray_library() -> Any:
    """The library; raises MissingExtra with the pip command."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            f'a cluster needs Ray, which cannot be imported ({error}). Install it with: pip install "kedge[cluster]"'
        ) from error
    return ray


@contextlib.contextmanager
def connected(address: str = AUTO) -> Iterator[Any]:
    """Ray, connected to the cluster at this address (host:port, or `AUTO`) inside the block.

    A connection that is there already is used, and stays.
    """
    ray = ray_library()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # it prints what happens to its nodes
        if ray.is_initialized():
            yield ray
            return
        _check_reachable(address)
        try:
            ray.init(
                address=None if address == AUTO else address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError, AssertionError) as error:
            raise _no_cluster(address, error) from error
        try:
            nodes = [node for node in ray.nodes() if node["Alive"]]
            cpus, gpus = (int(ray.cluster_resources().get(kind, 0)) for kind in ("CPU", "GPU"))
            processors = count(cpus, "CPU") + (f" and {count(gpus, 'GPU')}" if gpus else "")
            progress.notice(f"cluster: {count(len(nodes), 'node')} with {processors}")
            yield ray
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise SettingError if the address is host:port and nothing answers there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # another form, which Ray knows
    try:
        reach(host.strip("[]"), int(port))
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def reach(host: str, port: int) -> None:
    """Raise OSError if nothing answers there."""
    socket.create_connection((host, port), REACHED_IN).close()


def _no_cluster(address: str, error: Exception) -> SettingError:
    reason = " ".join(str(error).split()).rstrip(".")
    return SettingError(
        f"cannot connect to a cluster at {address}: {reason}. Start one with `ray start --head`, or leave the address "
        "out."
    )
