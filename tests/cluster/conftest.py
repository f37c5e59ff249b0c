"""Clusters on this machine, for the tests marked `cluster`: counts and waits are limited, and processes listen on 127.0.0.1."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests import processes
from tests.conftest import CHECKOUT

# Before Ray is imported: its addresses are this machine's loopback, and no process reports anything to anybody.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# A token of this session: Ray would otherwise ask for the one in the user's folder, if there is one, or write one there.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

# Workers of Ray import this package too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]))

_STARTS = 3
STORE_BYTES = 100_000_000  # shared memory of a node, for objects


class RayCluster:
    """A Ray cluster of this machine. `address` is that of its head; nodes have one core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={**_node(), "include_dashboard": False})
        self.address: str = self._cluster.address
        self.second = self.add_node()

    def add_node(self) -> Any:
        """One more node."""
        for _ in range(_STARTS - 1):
            try:
                return self._cluster.add_node(**_node())
            except Exception as error:  # noqa: BLE001 (Ray's own are plain ones)
                print(f"the node did not start: {error}")
        return self._cluster.add_node(**_node())

    def kill_node(self, node: Any) -> None:
        """End a node at once, with everything that runs on it, as a power cut would."""
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self) -> None:
        """End every process of the cluster."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _node() -> dict[str, Any]:
    return {"num_cpus": 1, "num_gpus": 0, "object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1"}


def ray_processes(name: str) -> list[int]:
    """The processes of this session in which Ray runs an actor or a task of that name."""
    found = processes.with_environment("VITLAB_TEST_SESSION", os.environ["VITLAB_TEST_SESSION"])
    return [pid for pid, command in found.items() if command.startswith("ray::") and name in command]


def _started() -> RayCluster:
    """A cluster; Ray gives a node 30 seconds to start, which a loaded machine may need more than once."""
    for _ in range(_STARTS - 1):
        try:
            return RayCluster()
        except Exception as error:  # noqa: BLE001 (Ray's own are plain ones)
            print(f"the cluster did not start: {error}")
            for pid, command in processes.with_environment("VITLAB_TEST_SESSION", os.environ["VITLAB_TEST_SESSION"]).items():
                if "/ray/" in command or command.startswith("ray::"):
                    os.kill(pid, signal.SIGKILL)
    return RayCluster()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray cluster of two nodes."""
    pytest.importorskip("ray", reason="Ray is not installed: run `make test-cluster`")
    cluster = _started()
    try:
        yield cluster
    finally:
        cluster.shutdown()
