"""A cluster of Ray with three nodes on this machine, shared by the tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kedge.cluster.connect import ray_library


class NeedsRay(pytest.Module):
    """A file of tests that is skipped as a whole."""

    def collect(self) -> Any:
        pytest.skip("needs Ray: pip install 'kedge[cluster]'")


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    without = module_path.name == "test_without_ray.py"
    return None if without or find_spec("ray") else NeedsRay.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """The cluster, to which this process is connected: a head and two nodes, with a CPU each."""
    ray = ray_library()
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    found = os.pathsep.join(filter(None, sys.path))  # by workers, which get classes of tests/support
    patched = pytest.MonkeyPatch()
    patched.setenv("PYTHONPATH", found)
    cluster = Cluster(initialize_head=True, head_node_args=small)
    for _ in range(2):
        cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patched.undo()
