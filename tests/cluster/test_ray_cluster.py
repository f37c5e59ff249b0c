"""The cluster that the other tests of this folder use is what they take it for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.conftest import RayCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # a loaded machine imports torch slowly, in many processes


def listening() -> set[str]:
    """The IPv4 addresses, as the kernel writes them, on which processes of this session listen."""
    own = os.environ["VITLAB_TEST_SESSION"].encode()
    inodes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if own in (folder / "environ").read_bytes():
                inodes |= {str(entry.readlink()) for entry in (folder / "fd").iterdir()}
        except OSError:
            continue  # ended meanwhile, or somebody else's
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def test_it_has_two_nodes_which_listen_on_loopback_alone(ray_cluster: RayCluster) -> None:
    import ray

    ray.init(address=ray_cluster.address, log_to_driver=False)
    try:
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    finally:
        ray.shutdown()
    found = listening()
    assert "0100007F" in found  # 127.0.0.1
    assert found <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}  # and ::1


def test_it_reports_nothing_to_anybody() -> None:
    usage = pytest.importorskip("ray._common.usage.usage_lib")
    assert not usage.usage_stats_enabled()
