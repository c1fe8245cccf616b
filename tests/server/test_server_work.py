"""Work under load, in several processes, and through the end of a server."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

import slosh
from builders import PATIENCE, cloud_list, contents, small_embedding, together
from server_process import Server, ask
from slosh import errors
from slosh.server.exchange import Exchange

ROOT = "/v1/indexes/live"


@pytest.fixture
def live(tmp_path):
    """The path of an index with 200 sets near the origin."""
    path = tmp_path / "live.slosh"
    with slosh.SetIndex.create(path, 2, embedding=small_embedding(), n_jobs=1) as index:
        index.add(cloud_list(200), [f"near{i}" for i in range(200)], {"near": True})
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_searches_while_another_client_adds_and_removes(live, workers):
    """Every answer is right for some moment, and none is lost: batches are seen whole, what stays is found."""
    with Server(live, options=("--workers", workers, "--jobs", 1)) as server:
        queries = cloud_list(6, seed=9)
        with slosh.open(server.url) as index:
            truth = [index.search(query, k=5, recall=1.0) for query in queries]
        rounds, stop = [0, 0, 0], threading.Event()

        def look(i):
            try:
                with slosh.open(server.url) as index:
                    while not stop.is_set():
                        for query, right in zip(queries, truth, strict=True):
                            hits = index.search(query, k=5, recall=1.0)
                            assert hits.ids == right.ids
                            assert hits.distances.tolist() == right.distances.tolist()
                        far = index.search(np.full((1, 2), 500.0), k=10, recall=1.0, where={"near": False})
                        batches = {about["batch"] for about in far.metadata}
                        assert len(far) % 5 == 0
                        assert len(far) == 5 * len(batches) or len(far) == 10
                        rounds[i] += 1
            finally:
                stop.set()

        def change():
            try:
                with slosh.open(server.url) as index:
                    n = 0
                    while not stop.is_set() and (n < 10 or min(rounds) < 3):
                        names = [f"far{n}-{i}" for i in range(5)]
                        index.add([np.full((1, 2), 500.0 + n)] * 5, names, {"near": False, "batch": n})
                        assert names[0] in index  # it sees its own change at once, whoever answers
                        if n % 2:
                            index.remove(names)
                        n += 1
            finally:
                stop.set()

        together(lambda: look(0), lambda: look(1), lambda: look(2), change)
        with slosh.open(server.url) as index:
            assert index.verify().ok


def test_workers_follow_what_the_writer_does(tmp_path):
    """Indexes that are created and deleted, on whatever process a request comes to; and numbers of all of them."""
    with Server(tmp_path, options=("--workers", 2, "--jobs", 1)) as server:
        for number in range(3):
            with slosh.SetIndex.create(f"{server.url}#one", 2, embedding=small_embedding()) as index:
                index.add(cloud_list(3 + number))
                for _ in range(10):
                    assert ask(server, "GET", "/v1/indexes/one/count")[2] == {"count": 3 + number}
                index.destroy()
            for _ in range(10):
                assert ask(server, "GET", "/v1/indexes/one/count")[0] == 404
        found = ask(server, "GET", "/metrics")[2].decode()
        line = next(x for x in found.splitlines() if 'route="GET /v1/indexes/{name}/count",status="2xx"' in x)
        assert float(line.split()[-1]) >= 30


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_that_is_late_is_given_up_and_a_change_that_has_begun_is_finished(live, workers):
    with Server(live, options=("--jobs", 1, "--deadline", 0.1, "--workers", workers)) as server:
        slow = {"id": [f"near{i}" for i in range(200)], "k": 100, "rerank": "wasserstein", "depth": 200}
        status, headers, problem = ask(server, "POST", f"{ROOT}/search", slow)
        assert (status, problem["class"]) == (504, "DeadlineExceeded")
        assert "Retry-After" not in headers
        sets = [x.tolist() for x in cloud_list(2000, largest=30, seed=3)]
        body = json.dumps({"sets": sets, "metadata": {"near": False}}).encode()
        status, _, answer = ask(server, "POST", f"{ROOT}/sets", body)
        assert status == 504 or (status, len(answer["ids"])) == (201, 2000)  # it may not have begun in time
        with slosh.open(live, read_only=True) as index:
            assert len(index) == (2200 if status == 201 else 200)
        status, _, job = ask(server, "POST", f"{ROOT}/jobs?wait=30", {"kind": "verify"})
        assert status == 504 or job["state"] == "done"  # to wait is no work


def test_abandoned_work_does_not_keep_short_requests_waiting(tmp_path):
    """A distance between large sets may go on after its deadline, and take the only thread.

    Where the distance can be left to end by itself, the thread is free at once.
    """
    path, rng = tmp_path / "live.slosh", np.random.default_rng(0)
    with slosh.SetIndex.create(path, 2, embedding=small_embedding(), n_jobs=1) as index:
        index.add([rng.normal(size=(2000, 2)) for _ in range(2)])
    with Server(path, options=("--jobs", 1, "--threads", 1, "--deadline", 0.3)) as server:
        with slosh.open(server.url) as index, pytest.raises(errors.DeadlineExceeded, match="in time"):
            index.search(id="0", k=1, rerank="wasserstein")
        assert b"slosh_http_in_flight 2" in ask(server, "GET", "/metrics")[2]  # it still runs
        for route in ("", "/count", "/sets"):
            assert ask(server, "GET", ROOT + route)[0] == 200
        asked = ask(server, "POST", f"{ROOT}/range_search", {"id": "0", "radius": 1})  # it waits for the thread
        found = ask(server, "GET", "/metrics")[2].decode()
        assert asked[0] == 504 or (asked[0] == 200 and "slosh_http_in_flight 1\n" in found)
        kind = f"{asked[0] // 100}xx"
        assert f'route="POST /v1/indexes/{{name}}/range_search",status="{kind}"}} 1' in found  # and waits no longer
        while "slosh_http_in_flight 1\n" not in found:
            time.sleep(0.05)
            found = ask(server, "GET", "/metrics")[2].decode()
        assert 'route="POST /v1/indexes/{name}/search",status="5xx"} 1\n' in found  # the client sent it once


def test_what_has_begun_does_not_expire():
    late, begun = Exchange(60), Exchange(60)
    begun.begin()
    assert not begun.expire()
    begun.check()
    late.check()
    assert late.expire()
    with pytest.raises(errors.DeadlineExceeded, match="in time"):
        late.check()
    with pytest.raises(errors.DeadlineExceeded, match="in time"):
        late.begin()


def test_workers_forward_files(live):
    body = io.BytesIO()
    np.save(body, cloud_list(1, seed=8)[0])
    with Server(live, options=("--jobs", 1, "--workers", 2)) as server:
        path, kind = f"{ROOT}/upload?filename=one.npy", "application/octet-stream"
        assert ask(server, "POST", path, body.getvalue(), Content_Type=kind)[2] == {"ids": ["one.npy"]}
        status, _, problem = ask(server, "POST", path, b"no array", Content_Type=kind)
        assert (status, problem["class"]) == (400, "ReaderError")
        assert ask(server, "POST", f"{ROOT}/search", {"id": "one.npy"})[0] == 200


def test_requests_that_are_answered_together_are_answered_as_alone(live):
    """Many clients at once, each with questions of its own: other k, filters, forms, and some that are wrong."""
    with Server(live, options=("--jobs", 1)) as server, slosh.open(server.url) as index:
        queries = [x.astype(float).round(4).tolist() for x in cloud_list(12, seed=4)]
        asked = [
            {"queries": query, "k": k, "recall": 1.0, **more}
            for query in queries
            for k in (1, 4)
            for more in ({}, {"where": {"near": True}}, {"metadata": False})
        ]
        asked += [{"queries": [[1, 2, 3]]}, {"id": "none"}, {"id": "near3"}, {"queries": queries[:3]}] * 4
        alone = [ask(server, "POST", f"{ROOT}/search", each) for each in asked]

        def client(numbers):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            for i in numbers:
                connection.request("POST", f"{ROOT}/search", json.dumps(asked[i]), {"Content-Type": "application/json"})
                response = connection.getresponse()
                found = json.loads(response.read())
                assert response.status == alone[i][0]
                if response.status == 200:
                    assert found["hits"] == alone[i][2]["hits"]
                else:
                    assert found == alone[i][2]
            connection.close()

        rng = np.random.default_rng(0)
        orders = [rng.permutation(len(asked)).tolist() for _ in range(8)]
        together(*[lambda order=order: client(order) for order in orders])
        assert len(index) == 200


def test_a_kill_in_the_middle_of_an_upload(live):
    """Nothing is half added, neither of a body that was still coming nor of a change that was being made."""
    with slosh.open(live, read_only=True) as index:
        before = contents(index)
    body = io.BytesIO()
    np.savez(body, **{f"new{i}": np.random.default_rng(i).normal(size=(50, 2)) for i in range(3000)})
    sent = body.getvalue()
    head = (
        f"POST {ROOT}/upload?filename=x.npz HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    )
    head = f"{head}Content-Length: {len(sent)}\r\n\r\n".encode()
    for share, pause in ((0.5, 0.0), (1.0, 0.02), (1.0, 0.2)):
        server = Server(live, options=("--jobs", 1))
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + sent[: int(share * len(sent))])
            time.sleep(pause)  # to be at another place, wherever that is
            server.process.kill()
            server.stop()
        with slosh.open(live, n_jobs=1) as index:
            assert len(index) in (200, 3200)
            if len(index) == 3200:
                index.remove([name for name in index.ids if name not in before])
            assert contents(index) == before
            assert index.verify().ok


def test_a_stop_finishes_what_was_begun(live):
    """SIGTERM while a large batch is being added: it is answered, and stored."""
    with Server(live, options=("--jobs", 1)) as server, slosh.open(server.url) as index:
        sets = cloud_list(3000, largest=30)
        done, begun = [], threading.Event()

        def add():
            begun.set()
            done.append(index.add(sets, metadata={"near": False}))

        def stop():
            assert begun.wait(PATIENCE)
            while b"slosh_http_in_flight 2" not in ask(server, "GET", "/metrics")[2] and not done:
                time.sleep(0.005)
            assert server.stop() == 0

        together(add, stop)
        with slosh.open(live, read_only=True) as again:
            assert len(again) == 3200
        assert len(done[0]) == 3000
        with pytest.raises(errors.ServerLost, match="cannot be reached"):
            len(index)


def test_a_client_outlives_its_server(live):
    """A server that is started again is found by the client that was opened before."""
    server = Server(live, options=("--jobs", 1))
    port = server.port
    with slosh.open(server.url) as index:
        assert len(index) == 200
        assert server.stop(signal.SIGINT) == 0
        with pytest.raises(errors.ServerLost):
            index.search(id="near1")
        with Server(live, options=("--jobs", 1, "--port", port)):
            assert index.search(id="near1", k=3).ids


def test_a_job_is_cancelled(tmp_path):
    """By a request, or by a client whose progress function has had enough; the index goes on."""
    path = tmp_path / "live.slosh"
    with slosh.SetIndex.create(path, 2, n_jobs=1) as index:
        index.add(cloud_list(4000, largest=30))
    with Server(path, options=("--jobs", 1)) as server:
        asked = {"kind": "neighbor_graph", "arguments": {"k": 15, "certify": True}}
        job = ask(server, "POST", f"{ROOT}/jobs", asked)[2]
        ended = ask(server, "DELETE", f"/v1/jobs/{job['id']}?wait=30")[2]
        for _ in range(PATIENCE):
            if ended["state"] not in ("waiting", "running"):
                break
            ended = ask(server, "GET", f"/v1/jobs/{job['id']}?wait=1")[2]
        assert ended["state"] == "cancelled"
        assert ended["result"] is None
        calls = []
        with slosh.open(server.url) as index:

            def progress(done, total):
                calls.append((done, total))
                raise RuntimeError("enough")

            with pytest.raises(RuntimeError, match="enough"):
                index.neighbor_graph(15, certify=True, progress=progress)
            assert calls
            states = [each["state"] for each in ask(server, "GET", "/v1/jobs")[2]["jobs"]]
            assert states[-1] in ("cancelled", "done")  # it may have ended before it was asked for
            assert index.search(id="3", k=2).ids


def test_streams_that_nobody_takes_are_given_up(live):
    """A client that goes away in the middle of a stream leaves nothing open."""
    with Server(live, options=("--jobs", 1)) as server, slosh.open(server.url) as index:
        folder = f"/proc/{server.process.pid}/fd"
        for _ in range(3):
            parts = index.records(batch=1)
            next(parts)
            parts.close()
        len(index)
        if not os.path.isdir(folder):
            return
        before = None
        for _ in range(PATIENCE * 10):
            before = len(os.listdir(folder))
            for _ in range(5):
                parts = index.records(batch=1)
                next(parts)
                parts.close()
            if len(os.listdir(folder)) <= before + 2:
                return
            time.sleep(0.1)
        raise AssertionError("files stay open")


@pytest.mark.long
def test_two_hours_of_mixed_load(live):
    """Memory and open files stay flat. SLOSH_LOAD_SECONDS chooses how long it takes."""
    seconds = float(os.environ.get("SLOSH_LOAD_SECONDS", 7200))
    with Server(live, options=("--jobs", 1)) as server:
        end, seen = time.monotonic() + seconds, []

        def look(seed):
            rng = np.random.default_rng(seed)
            with slosh.open(server.url) as index:
                while time.monotonic() < end:
                    query = rng.normal(size=(int(rng.integers(2, 200)), 2))
                    index.search(
                        query, k=int(rng.integers(1, 50)), where={"near": True}, certify=bool(rng.random() < 0.1)
                    )
                    index.get(["near1", "near2"])

        def change():
            with slosh.open(server.url) as index:
                n = 0
                while time.monotonic() < end:
                    names = index.add(cloud_list(20, seed=n), metadata={"n": n})
                    index.update(names[0], metadata={"n": -n})
                    index.remove(names)
                    n += 1
                    if n % 50 == 0:
                        index.compact()

        def watch():
            while time.monotonic() < end:
                with open(f"/proc/{server.process.pid}/statm") as file:
                    resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                seen.append((resident, len(os.listdir(f"/proc/{server.process.pid}/fd"))))
                time.sleep(min(10, seconds / 40))

        together(lambda: look(0), lambda: look(1), change, watch, seconds=seconds + PATIENCE)
        quarter = len(seen) // 4
        memory, files = np.array(seen).T
        assert memory[-quarter:].mean() < 1.15 * memory[quarter : 2 * quarter].mean() + (32 << 20)
        assert files[-quarter:].mean() < files[quarter : 2 * quarter].mean() + 10
