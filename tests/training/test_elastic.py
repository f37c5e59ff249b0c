"""torchrun elastic over hosts: one dies, the job goes on with fewer and later with more, and learns what one process learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.training.hosts import Host, loopback, namespaces, why_no_namespaces
from tests.training.small import run_to
from tests.training.test_distributed import even, losses_of
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_text

pytestmark = pytest.mark.cluster
_PORT = 29_431
_STEPS = 80


@pytest.fixture(params=["namespaces", "loopback"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Host]]:
    if request.param == "namespaces" and (why := why_no_namespaces()) is not None:
        pytest.skip(why)
    with (namespaces if request.param == "namespaces" else loopback)(tmp_path, 4) as made:
        yield made


def elastic() -> RunConfig:
    """A batch of 10 with mixup: 2 ranks have 4 and 6 rows, 3 ranks have 2, 4 and 4."""
    run = even(steps=_STEPS)
    data = replace(run.data, loader=replace(run.data.loader, batch_size=10))
    return replace(run, data=data, train=replace(run.train, hang_timeout=6.0, save_every=5, evaluate_every=0))


class Cluster:
    """The agents of one job, and what its ranks wrote down."""

    def __init__(self, hosts: list[Host], folder: Path, stack: ExitStack) -> None:
        self.hosts, self.folder, self.stack = hosts, folder, stack
        (folder / "run.json").write_text(to_text(elastic()))
        self.log, self.pace = folder / "log", folder / "pace"
        self.log.touch()
        self.go(0.25)

    def go(self, pace: float) -> None:
        """Wait so many seconds after each step."""
        new = self.pace.with_suffix(".new")
        new.write_text(str(pace))
        new.replace(self.pace)

    def start(self, host: Host) -> None:
        """Start torchrun on a host; the first host keeps the rendezvous."""
        first = self.hosts[0]
        rendezvous = f"is_host={int(host is first)},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
        words: list[str | Path] = [
            host.python, "-m", "torch.distributed.run", "--nnodes=1:4", "--nproc-per-node=1", "--max-restarts=9",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{_PORT}", "--rdzv-id=elastic", f"--rdzv-conf={rendezvous}",
            "--monitor-interval=0.2", "--shutdown-timeout=10", f"--local-addr={host.address}", "--no-python",
            host.python, Path(__file__).with_name("elastic_rank.py"),
            self.folder / "run.json", self.folder / "run", self.pace, self.log,
        ]  # fmt: skip
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        if host.namespace is not None:
            environment["GLOO_SOCKET_IFNAME"] = "eth0"
        said = self.stack.enter_context((self.folder / f"{host.name}.txt").open("w"))
        host.agents.append(self.stack.enter_context(processes.started(words, env=environment, stdout=said, stderr=said)))

    def lines(self) -> list[tuple[int, int, str]]:
        """(ranks, step, host) of every step that a rank has made."""
        return [(int(ranks), int(step), host) for ranks, step, host in (line.split() for line in self.log.read_text().splitlines())]

    def reaches(self, *, ranks: int, steps: int) -> None:
        """Wait until so many ranks together have made so many steps."""
        agent = self.hosts[0].agents[0]
        processes.eventually(lambda: len({step for n, step, _ in self.lines() if n == ranks}) >= steps, agent, limit=120)

    def said(self) -> str:
        return "\n".join((self.folder / f"{host.name}.txt").read_text() for host in self.hosts if host.agents)


def test_a_host_dies_and_another_joins_and_the_losses_are_those_of_one_process(hosts: list[Host], tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(hosts, tmp_path, stack)
        for host in hosts[:3]:
            cluster.start(host)
        cluster.reaches(ranks=3, steps=4)
        if hosts[2].namespace is not None:
            hosts[2].cut()  # no packet says that it is gone: only its silence does
        hosts[2].die()
        cluster.reaches(ranks=2, steps=3)
        cluster.start(hosts[3])
        cluster.reaches(ranks=3, steps=8)
        cluster.go(0.0)
        for host in (hosts[0], hosts[1], hosts[3]):
            assert host.agents[0].wait(processes.LIMIT) == 0, cluster.said()
    run_to(elastic(), tmp_path / "alone")
    found, alone = losses_of(tmp_path / "run"), losses_of(tmp_path / "alone")
    assert len(found) == len(alone) == _STEPS
    assert found == pytest.approx(alone, abs=1e-5)
    said = cluster.said()
    if hosts[2].namespace is not None:
        assert {host for _, _, host in cluster.lines()} == {"host-a", "host-b", "host-c", "host-d"}
        assert "on host-c died, is frozen or is cut off" in said, said
