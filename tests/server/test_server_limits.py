"""What a server does when there is too much of something, or when something it serves goes away."""

from __future__ import annotations

import json
import re
import resource
import shutil
import socket
import sys

import numpy as np
import pytest

import slosh
from builders import PATIENCE, cloud_list, small_embedding, together
from conftest import fill
from server_process import Server, ask, raw
from slosh import errors
from slosh.server.jobs import Job, Jobs
from slosh.wire import problem_of

MEGABYTE = 1 << 20


def begin(server, lines, sent=b""):
    """Send the head of a request and a part of its body, and return the connection."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    connection.sendall("\r\n".join([*lines, "Host: localhost", "", ""]).encode() + sent)
    return connection


def status_of(connection):
    """Return the status of the answer that comes."""
    return int(connection.makefile("rb").readline().split()[1])


def test_features_of_a_new_index(server):
    status, _, problem = ask(server, "POST", "/v1/indexes", {"name": "x", "dim": 65_537})
    assert (status, problem["fields"]["argument"]) == (400, "dim")
    assert ask(server, "GET", "/v1/server")[2]["limits"]["dim"] == 65_536
    schemas = ask(server, "GET", "/openapi.json")[2]["components"]["schemas"]
    assert schemas["CreateBody"]["properties"]["dim"]["maximum"] == 65_536
    many = {"name": "x", "dim": 60_000, "embedding": {"class": "SlicedWasserstein", "parameters": {"n_slices": 60_000}}}
    assert ask(server, "POST", "/v1/indexes", many)[0] == 400


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is of Linux")
def test_memory_that_is_not_there(tmp_path):
    """The server says so, and goes on."""
    path = fill(tmp_path)
    assert problem_of(MemoryError())["status"] == 503
    with Server(path, options=("--jobs", 1)) as server:
        with open(f"/proc/{server.process.pid}/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        ask(server, "POST", "/v1/indexes/shapes/search", {"id": "s1"})
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + 160 * MEGABYTE, resource.RLIM_INFINITY))
        large = b'{"queries": [[1, 2]' + b",[1.5,2.5]" * (3 * MEGABYTE) + b"]}"
        status, headers, problem = ask(server, "POST", "/v1/indexes/shapes/search", large)
        assert (status, problem["class"]) == (503, "StorageError")
        assert "memory" in problem["detail"]
        assert int(headers["Retry-After"]) >= 1
        assert ask(server, "POST", "/v1/indexes/shapes/search", {"id": "s1"})[0] == 200


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("alone", [True, False])
def test_an_index_whose_folder_is_removed(tmp_path, alone, workers):
    path = fill(tmp_path, "gone")
    with Server(path if alone else tmp_path, options=("--jobs", 1, "--workers", workers)) as server:
        assert ask(server, "GET", "/v1/indexes/gone/count")[0] == 200
        shutil.rmtree(path)
        for _ in range(2):
            for method, route, body in (
                ("GET", "", None),
                ("GET", "/count", None),
                ("POST", "/search", {"id": "s1"}),
                ("POST", "/sets", {"sets": [[[0.0, 1.0]]]}),
                ("DELETE", "", None),
            ):
                status, _, problem = ask(server, method, f"/v1/indexes/gone{route}", body)
                assert (status, problem["class"]) == (404, "IndexNotFound"), (method, route)
            assert ask(server, "GET", "/v1/indexes")[::2] == (200, {"indexes": []})
        assert ask(server, "GET", "/ready")[0] == (503 if alone else 200)
        assert ask(server, "GET", "/health")[0] == 200
        if not alone:
            assert ask(server, "POST", "/v1/indexes", {"name": "gone", "dim": 2})[0] == 201
    assert not [line for line in server.errors if "Traceback" in line], "".join(server.errors)


def test_bodies_are_counted_while_they_come(filled, tmp_path):
    """Four bodies that say their length take nearly all of it; what is left is not enough for a fifth, or a stream."""
    path = fill(tmp_path)
    head = ("POST /v1/indexes/shapes/search HTTP/1.1", "Content-Type: application/json")
    upload = ("POST /v1/indexes/shapes/upload?filename=x.npy HTTP/1.1", "Content-Type: application/octet-stream")
    with Server(path, options=("--jobs", 1)) as server:
        length = f"Content-Length: {255 * MEGABYTE}"
        held = [begin(server, (*head, length, "Expect: 100-continue")) for _ in range(3)]
        held.append(begin(server, (*upload, length, "Expect: 100-continue")))
        assert {status_of(each) for each in held} == {100}  # it has begun to read them
        with begin(server, (*head, length)) as another:
            assert status_of(another) == 503
        with begin(server, (*head, "Transfer-Encoding: chunked"), b"500000\r\n" + b" " * 0x500000) as stream:
            assert status_of(stream) == 503
        assert ask(server, "POST", "/v1/indexes/shapes/search", {"id": "s1"})[0] == 200
        for each in held:
            each.close()
        large = b" " * (5 * MEGABYTE) + b'{"id": "s1"}'
        for _ in range(PATIENCE * 20):
            status = ask(server, "POST", "/v1/indexes/shapes/search", large)[0]
            if status == 200:
                break
        assert status == 200  # what was held is given back


def test_names_that_several_clients_create_and_delete(tmp_path, monkeypatch):
    """Each call works, or finds that another client was faster; no message has a path of the server."""
    (tmp_path / "idx").mkdir()
    monkeypatch.chdir(tmp_path)
    with Server("idx", options=("--jobs", 1)) as server:
        faster = (errors.IndexExists, errors.IndexNotFound, errors.IndexClosed, errors.UnknownId, errors.DuplicateId)
        said = []

        def client(seed):
            for i in range(12):
                name = f"tmp{(seed + i) % 2}"
                try:
                    with slosh.SetIndex.create(f"{server.url}#{name}", 2, embedding=small_embedding()) as index:
                        index.add(cloud_list(2))
                        index.search(id="0")
                        index.destroy()
                except faster as error:
                    said.append(str(error))
                for each in ask(server, "GET", "/v1/indexes")[2]["indexes"]:
                    assert each["problem"] is None

        together(*[lambda seed=seed: client(seed) for seed in range(3)])
        assert not any(str(tmp_path) in text for text in said)
        for name in ("tmp0", "tmp1"):
            ask(server, "DELETE", f"/v1/indexes/{name}")
        assert ask(server, "GET", "/v1/indexes")[2] == {"indexes": []}
        assert list((tmp_path / "idx").iterdir()) == []
    assert not [line for line in server.errors if "Traceback" in line], "".join(server.errors)


def test_messages_have_no_paths(tmp_path):
    """Of an index that another process writes to, of a damaged one, and of a job that fails."""
    taken, damaged = fill(tmp_path, "taken"), fill(tmp_path, "damaged")
    with slosh.open(taken), Server(tmp_path, options=("--jobs", 1)) as server:
        for each in ask(server, "GET", "/v1/indexes")[2]["indexes"]:
            assert (each["name"] == "taken") == (each["problem"] is not None)
            assert "/" not in str(each["problem"])
        (damaged / "index.db").write_bytes(b"no database" * 1000)
        for name in ("taken", "damaged"):
            problems = [ask(server, "POST", f"/v1/indexes/{name}/search", {"id": "s1"})[2]]
            problems.append(ask(server, "POST", f"/v1/indexes/{name}/jobs?wait=30", {"kind": "verify"})[2])
            for problem in problems:
                assert not re.search(r"/\w+/", str(problem).replace("/v1/", "")), problem


def test_head_and_options(server):
    for path in ("/", "/health", "/ready", "/metrics", "/v1/indexes/shapes", "/v1/indexes/shapes/count", "/none"):
        got, head = (ask(server, method, path) for method in ("GET", "HEAD"))
        assert head[0] == got[0], path
        assert head[1]["Content-Type"] == got[1]["Content-Type"]
        assert int(head[1]["Content-Length"]) > 0
    status, headers, body = ask(server, "OPTIONS", "/v1/indexes")
    assert (status, headers["Allow"], body) == (204, "GET, HEAD, OPTIONS, POST", b"")
    assert ask(server, "OPTIONS", "/none")[0] == 404
    status, headers, _ = ask(server, "DELETE", "/health")
    assert (status, headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert ask(server, "HEAD", "/v1/indexes/shapes/search")[0] == 405


def test_heads_that_are_too_large(server):
    line = "GET /health HTTP/1.1"
    assert ask(server, "GET", "/health", X="y" * 50_000)[0] == 200
    for lines, sent in (
        ((line, "X: " + "y" * 66_000), b""),
        ((line, *(f"X-{i}: y" for i in range(101))), b""),
        ((f"GET /health?{'x' * 66_000} HTTP/1.1",), b""),
        ((line, *(f"X-{i}: y" for i in range(20_000))), b""),
    ):
        with begin(server, lines, sent) as connection:
            assert status_of(connection) == 431
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(f"{line}\r\nX: ".encode())
        try:
            for _ in range(50):  # 50 MB, which are not taken
                connection.sendall(b"y" * MEGABYTE)
            answer = connection.recv(20)
        except ConnectionError:
            answer = b"HTTP/1.1 431"
        assert answer.startswith(b"HTTP/1.1 431")
    chunked = (
        "POST /v1/indexes/shapes/search HTTP/1.1",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    )
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"id": "s1"}' + b" " * 50_000)
    with begin(server, chunked, body + b"0\r\n\r\n") as connection:
        assert status_of(connection) == 200
    with begin(server, chunked, b'c\r\n{"id": "s1"}\r\n0\r\nX: ' + b"y" * MEGABYTE) as connection:  # a trailer
        assert status_of(connection) == 400
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(b"no HTTP at all\r\n\r\n")
        answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"application/problem+json" in answer


@pytest.mark.parametrize("log", [True, False])
def test_all_lines_of_the_log_are_json(tmp_path, log):
    """Also those of what is no HTTP, of headers that do not come, and of a body with a broken frame."""
    path = fill(tmp_path)
    options = ("--jobs", 1, "--header-seconds", 0.5, *(("--log",) if log else ()))
    chunked = (
        "POST /v1/indexes/shapes/search HTTP/1.1",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    )
    with Server(path, options=options) as server:
        assert raw(server, b"no HTTP at all\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert raw(server, b"GET /health HTTP/1.1\r\n").startswith(b"HTTP/1.1 408")
        with begin(server, chunked, b"zz\r\n") as connection:
            assert status_of(connection) == 400
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert ask(server, "GET", "/health", **upgrade)[0] == 200
        server.stop()
    lines = [json.loads(line) for line in server.errors]
    assert [line["status"] for line in lines if not line["method"]] == ([400, 408] if log else [])
    assert {line["client"] for line in lines} == ({"127.0.0.1"} if log else set())
    assert [line["method"] for line in lines if line["method"]] == (["POST", "GET"] if log else [])


def test_connections_that_are_silent_slow_or_too_many(tmp_path):
    path, line = fill(tmp_path), b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    options = ("--jobs", 1, "--max-connections", 3, "--header-seconds", 0.5)
    with Server(path, options=options) as server:

        def connect():
            return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)

        with connect() as silent, connect() as half, connect() as kept:
            half.sendall(line)
            kept.sendall(line + b"\r\n")
            assert status_of(kept) == 200
            kept.sendall(line[:10])  # half of another request
            assert silent.recv(100) == b""
            assert half.recv(100).startswith(b"HTTP/1.1 408")
            assert b"HTTP/1.1 408" in kept.makefile("rb").read()
        with connect() as first, connect() as second, connect() as third:
            for each in (first, second, third):
                each.sendall(line + b"\r\n")
                assert status_of(each) == 200
            with connect() as fourth:
                answer = fourth.recv(1000)
                assert answer.startswith(b"HTTP/1.1 503")
                assert b"Retry-After: 1" in answer
        for _ in range(PATIENCE * 20):
            with connect() as again:
                again.sendall(line + b"Connection: close\r\n\r\n")
                if b"HTTP/1.1 200" in again.recv(1000):
                    break
        else:
            raise AssertionError("connections that were closed still count")


@pytest.mark.parametrize(
    ("kind", "arguments", "argument"),
    [
        ("duplicates", {"radius": "x"}, "radius"),
        ("duplicates", {"radius": -1}, "radius"),
        ("duplicates", {"where": "and and"}, "where"),
        ("neighbor_graph", {"k": 0}, "k"),
        ("neighbor_graph", {"mode": "other"}, "mode"),
        ("neighbor_graph", {"k": 10_000_000}, "k"),
        ("kneighbors", {"where": {"n": {"~": 3}}}, "where"),
        ("kneighbors", {"radius": 1}, "radius"),
        ("verify", {"sample": "many"}, "sample"),
        ("tune", {"recall": 2}, "recall"),
        ("tune", {"queries": [[[1, 2]]]}, "queries"),
        ("enable", {"feature": "x"}, "feature"),
        ("retrain", {"label": 3}, "label"),
        ("finish_copy", {"calibrated": [1]}, "calibrated"),
        ("unknown", {}, "kind"),
    ],
)
def test_arguments_of_jobs_are_checked_before_they_begin(server, kind, arguments, argument):
    status, _, problem = ask(server, "POST", "/v1/indexes/shapes/jobs", {"kind": kind, "arguments": arguments})
    assert status == 400
    assert problem["fields"]["argument"] == argument


def test_results_of_jobs_are_bounded(tmp_path):
    path = tmp_path / "points.slosh"
    with slosh.SetIndex.create(path, 2, embedding=small_embedding(), n_jobs=1) as index:
        index.add(np.random.default_rng(0).normal(size=(1500, 1, 2)))
        with pytest.raises(errors.InputError, match="more than 10 pairs") as raised:
            index.duplicates(radius=100, limit=10)
        assert raised.value.argument == "radius"
        assert len(index.duplicates(radius=100, id=["7", "8", "9"], limit=10_000)) < 10_000
    with Server(path, options=("--jobs", 1)) as server, slosh.open(server.url) as index:
        with pytest.raises(errors.InputError, match="more than 1,000,000 pairs"):
            index.duplicates(radius=100)
        with pytest.raises(errors.InputError, match="more than 5 pairs"):
            index.duplicates(radius=100, limit=5)
        assert index.verify(sample=3).ok


def test_results_that_are_kept_are_bounded():
    """The oldest go first; the newest stays, however large it is."""
    jobs = Jobs(lambda error: {}, kept_bytes=100)
    begun = []
    for size in (40, 0, 40, 40, 500):
        begun.append(jobs.begin(Job("a", "verify", "read", lambda size=size: ("result", size))))
        assert begun[-1].finished.wait(PATIENCE)
        jobs.begin(Job("a", "verify", "read", lambda: (None, 0))).finished.wait(PATIENCE)
        jobs.begin(Job("a", "verify", "read", lambda: (None, 0))).finished.wait(PATIENCE)
        there = [each.n_bytes for each in begun if jobs.get(each.id) is not None]
        assert sum(there) <= max(100, size)
    assert there == [0, 500]
    jobs.close()
