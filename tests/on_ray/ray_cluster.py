"""Ray for tests: one small cluster, with one more node than the head has, that a module shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

STORE_BYTES = 100_000_000


@contextmanager
def running_cluster(n_nodes: int = 2) -> Iterator[Any]:
    """Start nodes on this machine, of which the first stays; what it yields can add and remove others."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.others = [cluster.add_node(**node) for _ in range(n_nodes - 1)]
        ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_shard(index: Any, name: str) -> None:
    """Kill the process that holds a shard, as a machine without memory would."""
    os.kill(index.info()["shards"][name]["pid"], signal.SIGKILL)
