"""Several processes of one server: what they count, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

import slosh
from builders import PATIENCE, cloud_list, small_embedding, together, until, within
from server_process import Server, ask

ROOT = "/v1/indexes/live"
WORKERS = ("--workers", 2, "--jobs", 1)


@pytest.fixture
def live(tmp_path):
    """The path of an index with 200 sets."""
    path = tmp_path / "live.slosh"
    with slosh.SetIndex.create(path, 2, embedding=small_embedding(), n_jobs=1) as index:
        index.add(cloud_list(200))
    return path


def is_refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def numbers(server):
    """Return the metrics by their names and labels."""
    lines = ask(server, "GET", "/metrics")[2].decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


@pytest.mark.parametrize("options", [("--jobs", 1), WORKERS])
def test_each_request_is_counted_and_logged_once(live, options):
    """Also one that a worker forwards to the process that writes."""
    with Server(live, options=(*options, "--log")) as server:
        for _ in range(3):
            status, headers, _ = ask(server, "POST", f"{ROOT}/sets", {"sets": [[[0, 1], [2, 3]]]})
            assert status == 201
            assert headers.get_all("X-Request-Id") == [headers["X-Request-Id"]]
        until(lambda: numbers(server)["slosh_http_in_flight"] == 1)  # the one that asks: all others are counted
        found = numbers(server)
        assert found['slosh_http_requests_total{route="POST /v1/indexes/{name}/sets",status="2xx"}'] == 3
        assert found['slosh_http_request_seconds_count{route="POST /v1/indexes/{name}/sets"}'] == 3
        server.stop()
        logged = [json.loads(line) for line in server.errors if '"POST"' in line]
        assert [(line["route"], line["status"], line["client"]) for line in logged] == [
            ("/v1/indexes/{name}/sets", 201, "127.0.0.1")
        ] * 3
        assert len({line["id"] for line in logged}) == 3


@pytest.mark.parametrize("options", [("--jobs", 1), WORKERS])
def test_jobs_that_run_are_counted_whoever_is_asked(live, options):
    with Server(live, options=options) as server:

        def is_counted():
            for _ in range(10):
                ask(server, "POST", f"{ROOT}/jobs", {"kind": "neighbor_graph", "arguments": {"k": 50, "certify": True}})
            return numbers(server)["slosh_jobs_running"] > 0

        until(is_counted)
        until(lambda: numbers(server)["slosh_jobs_running"] == 0)


HOLDING = """
import sys, time
from slosh.checkpoints import checkpoint
from slosh.cli import main
from slosh.server import job_routes

def hold(index, sample):
    while True:
        checkpoint()
        time.sleep(0.01)

job_routes.WORK["verify"] = ("read", hold)
sys.exit(main())
"""
HOLDS = [sys.executable, "-c", HOLDING, "serve"]
"""A server whose jobs `verify` last until they are cancelled."""


@pytest.mark.parametrize("options", [("--jobs", 1), WORKERS])
def test_those_who_wait_for_a_job_keep_nobody_else_waiting(live, options):
    """Sixteen clients wait; a count, a change and another wait are answered before any of them."""
    with Server(live, options=options, command=HOLDS) as server:
        job = ask(server, "POST", f"{ROOT}/jobs", {"kind": "verify"})[2]
        path, answers = f"/v1/jobs/{job['id']}", []

        def wait():
            answers.append(ask(server, "GET", f"{path}?wait=30"))

        def others():
            until(lambda: numbers(server)["slosh_http_in_flight"] == 17)
            assert ask(server, "GET", f"{ROOT}/count")[2] == {"count": 200}
            assert ask(server, "POST", f"{ROOT}/sets", {"sets": [[[0, 1], [2, 3]]]})[0] == 201
            assert ask(server, "GET", "/v1/indexes")[2]["indexes"][0]["sets"] == 201
            assert ask(server, "GET", path)[2]["state"] == "running"
            assert answers == []
            ask(server, "DELETE", path)

        together(*[wait] * 16, others)
        assert {(status, answer["state"]) for status, _, answer in answers} == {(200, "cancelled")}


@pytest.mark.parametrize("options", [("--jobs", 1), WORKERS])
def test_a_stop_does_not_wait_for_those_who_wait_for_a_job(live, options):
    """They are answered by the stop: its patience ends before theirs."""
    impatient = HOLDING.replace(
        "sys.exit", "import slosh.server.process\nslosh.server.process.STOP_SECONDS = 10\nsys.exit"
    )
    with Server(live, options=options, command=[sys.executable, "-c", impatient, "serve"]) as server:
        answers = []
        job = ask(server, "POST", f"{ROOT}/jobs", {"kind": "verify"})[2]

        def stop():
            until(lambda: numbers(server)["slosh_http_in_flight"] == 3)
            server.tell_to_stop()

        together(
            lambda: answers.append(ask(server, "GET", f"/v1/jobs/{job['id']}?wait=30")),
            lambda: answers.append(ask(server, "POST", f"{ROOT}/jobs?wait=30", {"kind": "verify"})),
            stop,
        )
        assert {(status, answer["state"]) for status, _, answer in answers} == {(200, "running"), (202, "running")}
        assert server.stop() == 0


def test_workers_end_with_the_process_that_writes(live):
    """Nobody goes on answering searches, and refusing changes, on an address that a new server cannot take."""
    server = Server(live, options=WORKERS)
    assert ask(server, "GET", f"{ROOT}/count")[2] == {"count": 200}
    server.process.kill()
    until(lambda: is_refused(server.port))
    server.stop()
    assert sum("the process that writes has ended" in line for line in server.errors) == 2
    with Server(live, options=(*WORKERS, "--port", server.port)) as again:
        assert ask(again, "GET", f"{ROOT}/count")[2] == {"count": 200}


@pytest.mark.parametrize("options", [("--jobs", 1), WORKERS])
def test_nobody_is_let_in_while_a_server_finishes_what_it_has_begun(live, options):
    """A new client is refused at once, rather than kept waiting; the old one gets its answer."""
    body = json.dumps({"sets": [[[0, 1], [2, 3]]]}).encode()
    head = f"POST {ROOT}/sets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with Server(live, options=options) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
            until(lambda: numbers(server)["slosh_http_in_flight"] == 2)
            server.tell_to_stop()
            until(lambda: is_refused(server.port))
            assert server.process.poll() is None
            connection.sendall(body[5:])
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 201")
        assert server.stop() == 0
        assert server.errors == []
    with slosh.open(live, read_only=True) as index:
        assert len(index) == 201


def test_what_is_not_done_when_a_server_has_waited_long_enough_is_answered(live):
    code = "import sys, slosh.server.process as p; p.STOP_SECONDS = 1; from slosh.cli import main; sys.exit(main())"
    head = f"POST {ROOT}/sets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    command, options = [sys.executable, "-c", code, "serve"], ("--jobs", 1, "--body-seconds", 1000)
    with Server(live, options=options, command=command) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: 99\r\n\r\n".encode())
            until(lambda: numbers(server)["slosh_http_in_flight"] == 2)
            server.tell_to_stop()
            answer = connection.recv(1 << 16)
        assert server.stop() == 0
        assert answer.startswith(b"HTTP/1.1 503")
        assert not any("Traceback" in line for line in server.errors)


STARTING = """
import multiprocessing, os, signal, time
from pathlib import Path
from slosh.server import process

run = process.run_worker

def killed_once(settings, listening, folder, number):
    marker = Path(__file__).with_name(f"begun-{number}")
    if number == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    run(settings, listening, folder, number)

def killed(settings, listening, folder, number):
    if number == 0:
        Path(__file__).with_name("pid").write_text(str(os.getpid()))
    else:
        while not Path(__file__).with_name("pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    run(settings, listening, folder, number)

def stuck(settings, listening, folder, number):
    Path(__file__).with_name(f"begun-{number}").touch()
    multiprocessing.parent_process().join()
"""


@contextmanager
def starting(live, worker):
    """A server whose workers are a function of `STARTING`; it has not said yet that it serves."""
    folder = live.parent / "code"
    folder.mkdir()
    (folder / "starting.py").write_text(STARTING)
    code = f"""
import sys
sys.path.insert(0, {str(folder)!r})
import slosh.server.process, starting
slosh.server.process.run_worker = starting.{worker}
from slosh.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "serve", live, "--port", "0", "--no-log", *WORKERS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*map(str, command)], **pipes, start_new_session=True) as process:
        try:
            yield process, folder
        finally:
            process.kill()


def test_a_worker_that_dies_while_it_starts_is_started_again(live):
    with starting(live, "killed_once") as (process, _):
        with within(PATIENCE):
            assert process.stdout.readline().startswith("serving 1 index at http://")
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert said.count("is started again") == 1
        assert "worker 1 ended with code -9, and is started again" in said
        assert "Traceback" not in said


def test_a_server_whose_worker_cannot_start_says_so(live):
    """The other worker, which could, is stopped."""
    with starting(live, "killed") as (process, folder):
        printed, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode, printed) == (1, "")
        assert said.count("is started again") == 3
        assert "worker 1 ended 4 times while it started, with code -9" in said.splitlines()[-1]
        assert "Traceback" not in said
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), 0)


@pytest.mark.parametrize("stop", ["SIGTERM", "SIGINT", "Ctrl-C"])
def test_a_server_that_waits_for_its_workers_can_be_stopped(live, stop):
    """Ctrl-C in a terminal goes to the workers, too."""
    with starting(live, "stuck") as (process, folder):
        until(lambda: len(list(folder.glob("begun-*"))) == 2)
        if stop == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(getattr(signal, stop))
        printed, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode, printed) == (0, "")
        assert "Traceback" not in said
        assert "is started again" not in said
    with slosh.open(live, n_jobs=1) as index:
        assert len(index) == 200
