"""The server as a process: a port that is taken, a log that cannot be written, a model that is replaced, a kill."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests import processes
from tests.inference import small
from tests.serving.small import LIMIT, Reply, ask, photo, server_process
from vitlab.inference import Predictor
from vitlab.inference.engine import Engine
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Source
from vitlab.serving.server import Server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.saved(tmp_path_factory.mktemp("model") / "tiny.safetensors")


def test_a_port_that_is_taken_is_one_sentence_and_a_hint(warm: Path, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = processes.run([warm / "vitlab", "serve", model, "--port", str(port)], check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == f"error: port {port} of 127.0.0.1 is taken"
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--host", "not.an.address.invalid"], "host"),
        (["--host", "203.0.113.1"], "host"),
        (["--port", "70000"], "port"),
        (["--queue", "1"], "queue"),
        (["--origins", "example.org"], "origin"),
        (["--keys", "/dev/null"], "null"),
        (["--batch-size", "0"], "--batch-size 0"),
    ],
)
def test_a_setting_that_is_not_possible_is_refused_before_a_model_is_loaded(
    warm: Path, model: Path, options: list[str], word: str
) -> None:
    done = processes.run([warm / "vitlab", "serve", model, *options], check=False)
    assert done.returncode in (1, 2)
    assert word in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_two_models_of_one_name_are_refused(warm: Path, model: Path, tmp_path: Path) -> None:
    other = shutil.copy(model, tmp_path)
    done = processes.run([warm / "vitlab", "serve", model, other], check=False)
    assert done.returncode == 1
    assert "two models are called tiny" in done.stderr


def test_a_log_on_a_full_disk_costs_no_answer_and_is_counted(warm: Path, model: Path) -> None:
    command = ["/bin/sh", "-c", 'exec "$0" "$@" 2>/dev/full', str(warm / "vitlab")]
    with processes.started([*command, "serve", str(model), "--port", "0", "--backend", "torch"]) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert [ask(url, "/v1/predict", photo(seed)).status for seed in range(5)] == [200] * 5

        def dropped() -> float:
            text = ask(url, "/metrics").body.decode()
            return float(next(line.split()[1] for line in text.splitlines() if line.startswith("vitlab_log_lines_dropped_total")))

        processes.eventually(lambda: dropped() >= 5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.LIMIT) == 0


def test_a_log_that_nobody_reads_does_not_stop_the_server(warm: Path, model: Path) -> None:
    """A pipe holds 64 KiB; then whoever writes into it waits."""
    read, write = os.pipe()
    try:
        words = [str(warm / "vitlab"), "serve", str(model), "--port", "0", "--backend", "torch"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=write, text=True, start_new_session=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            for _ in range(300):  # of 250 bytes each
                assert ask(url, "/healthz").status == 200
            assert ask(url, "/v1/predict", photo()).status == 200
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=processes.LIMIT)
    finally:
        os.close(read)
        os.close(write)


def test_a_replaced_model_is_taken_over_without_a_lost_request_and_a_broken_one_is_refused(warm: Path, tmp_path: Path) -> None:
    path, content = small.saved(tmp_path / "tiny.safetensors", seed=0), photo(5)
    other = small.saved(tmp_path / "other.safetensors", seed=1)
    known = [Predictor(file, backend="torch")(content)[0].to_json(7)["top"] for file in (path, other)]
    assert known[0] != known[1]
    with server_process(warm, tmp_path, path) as served:
        answers, ended = list[object](), threading.Event()

        def client() -> None:
            while not ended.is_set():
                reply = ask(served.url, "/v1/predict?top=7", content)
                answers.append(reply.json["predictions"][0]["top"] if reply.status == 200 else reply.status)

        def told(outcome: str) -> bool:
            return any(line["event"] == "reload" and line["outcome"] == outcome for line in served.lines())

        asking = [threading.Thread(target=client) for _ in range(4)]
        for thread in asking:
            thread.start()
        try:
            processes.eventually(lambda: len(answers) > 5, served.process)
            (tmp_path / "other.safetensors").replace(path)
            served.process.send_signal(signal.SIGHUP)
            processes.eventually(lambda: answers[-1] == known[1], served.process)
            path.write_bytes(path.read_bytes()[:-50])
            served.process.send_signal(signal.SIGHUP)
            processes.eventually(lambda: told("refused"), served.process)
        finally:
            ended.set()
            for thread in asking:
                thread.join()
        assert all(answer in known for answer in answers), "a request was lost"
        assert ask(served.url, "/v1/predict?top=7", content).json["predictions"][0]["top"] == known[1]
        assert told("taken over")


def test_a_killed_server_leaves_its_port_free_for_the_next(warm: Path, model: Path, tmp_path: Path) -> None:
    with server_process(warm, tmp_path, model) as served:
        first = ask(served.url, "/v1/predict", photo()).json
        with served.connect() as connection:  # an open connection, which the kill resets
            connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
            served.process.send_signal(signal.SIGKILL)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        served.process.wait(processes.LIMIT)
        port = served.port

    def free() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    processes.eventually(free)  # `warm` kills the process itself when its stand-in is dead
    with server_process(warm, tmp_path, model, "--port", str(port)) as again:
        assert again.port == port
        assert ask(again.url, "/v1/predict", photo()).json == first


def test_ctrl_c_drains_and_says_what_was_served(warm: Path, model: Path, tmp_path: Path) -> None:
    with server_process(warm, tmp_path, model) as served:
        assert ask(served.url, "/v1/predict", photo()).status == 200
        served.process.send_signal(signal.SIGINT)
        out, _ = served.process.communicate(timeout=processes.LIMIT)
    assert served.process.returncode == 0
    assert "requests" in out
    assert "Traceback" not in served.log.read_text()


def test_a_server_that_is_asked_to_end_while_it_starts_does_not_wait_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may_settle = threading.Event(), threading.Event()

    def settle(engine: Engine, like: Engine | None = None) -> None:
        entered.set()
        assert may_settle.wait(LIMIT)

    monkeypatch.setattr(Engine, "settle", settle)
    server = Server([Source(name="tiny", open=small.checkpoint)], ServeConfig(port=0), backend="torch", log=io.StringIO())
    serving = threading.Thread(target=server.run)
    serving.start()
    assert entered.wait(LIMIT)
    server.stop()
    serving.join(LIMIT)
    try:
        assert not serving.is_alive()
    finally:
        may_settle.set()


def test_a_supervised_server_that_is_killed_is_started_again_and_new_clients_wait_for_it(
    warm: Path, model: Path, tmp_path: Path
) -> None:
    with server_process(warm, tmp_path, model, "--restart") as served:

        def workers() -> list[int]:
            return [line["pid"] for line in served.lines() if line["event"] == "listening"]

        first = ask(served.url, "/v1/predict", photo()).json
        os.kill(workers()[0], signal.SIGKILL)
        assert ask_again(served.url).json == first
        assert len(set(workers())) == 2
        assert any("SIGKILL" in line["message"] for line in served.lines() if line["event"] == "restart")
        served.process.send_signal(signal.SIGTERM)
        served.process.communicate(timeout=processes.LIMIT)
    assert served.process.returncode == 0
    assert not any(processes.is_running(pid) for pid in workers())


def ask_again(url: str) -> Reply:
    """Ask until the server is ready; a connection may be reset by the kill, but none is refused."""
    found: list[Reply] = []

    def answered() -> bool:
        with suppress(ConnectionResetError, http.client.RemoteDisconnected):
            found.append(ask(url, "/v1/predict", photo()))
        return bool(found) and found[-1].status == 200

    processes.eventually(answered)
    return found[-1]


def test_a_supervised_server_ends_with_its_supervisor(warm: Path, model: Path, tmp_path: Path) -> None:
    lines = [
        "import os, signal, sys",
        "from pathlib import Path",
        "from vitlab.cli.main import main",
        "Path(sys.argv[1]).write_text(str(os.getpid()))",
        "main(['serve', sys.argv[2], '--port', '0', '--backend', 'torch', '--restart'])",
    ]
    pid_file, log = tmp_path / "pid", tmp_path / "log"
    command = ["/bin/sh", "-c", f'exec "$0" "$@" 2>{log}', str(warm / "python"), "-c", "\n".join(lines), str(pid_file), str(model)]
    with processes.started(command) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://"), log.read_text()
        worker = next(json.loads(line)["pid"] for line in log.read_text().splitlines() if '"listening"' in line)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        processes.eventually(lambda: not processes.is_running(worker))
