"""Measure `slosh serve` beside the same searches in Python without a server, and beside a FastAPI application around
FAISS, in one run on one machine.

60,000 sets of MNIST are stored; others are the queries. Clients are connections that send the next request when they
have the answer to the last: a small loop over sockets in one process, which shares the cores with the server.

    python benchmarks/bench_server.py            minutes; writes docs/results/server.json
    python benchmarks/bench_server.py --quick    3,000 sets, only to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import search_data
import slosh
from machine import ROOT, cpu
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.wire import BINARY, JSON, NPY, pack, pack_sets

K, RECALL, BATCH = 10, 0.98, 100
CLIENTS = (1, 8, 64)
ROUNDS = 5


class Client:
    """One connection: it sends a request, and waits for its answer."""

    def __init__(self, port: int, requests: list[bytes], first: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests, self.next = requests, first
        self.seconds: list[float] = []
        self.errors = 0
        self.got = b""
        self.wanted = 0

    def send(self) -> None:
        self.got, self.wanted = b"", 0
        self.started = time.perf_counter()
        self.socket.sendall(self.requests[self.next % len(self.requests)])
        self.next += 1

    def receive(self) -> bool:
        """Take what has come, and return whether the answer is whole."""
        self.got += self.socket.recv(1 << 20)
        if not self.wanted:
            end = self.got.find(b"\r\n\r\n")
            if end < 0:
                return False
            length = re.search(rb"content-length: (\d+)", self.got[:end].lower())
            self.wanted = end + 4 + int(length[1])  # type: ignore[index]
        if len(self.got) < self.wanted:
            return False
        self.seconds.append(time.perf_counter() - self.started)
        self.errors += not self.got.startswith(b"HTTP/1.1 200")
        return True


def load(port: int, requests: list[bytes], n_clients: int, seconds: float) -> dict[str, float]:
    """Let clients ask for a while; return requests a second, and the milliseconds that half and 99 of 100 took."""
    selector = selectors.DefaultSelector()
    clients = [Client(port, requests, i * 7) for i in range(n_clients)]
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.send()
    started, open_ = time.perf_counter(), n_clients
    while open_:
        for key, _ in selector.select(timeout=30):
            if key.data.receive():
                if time.perf_counter() - started < seconds:
                    key.data.send()
                else:
                    selector.unregister(key.fileobj)
                    open_ -= 1
    took = time.perf_counter() - started
    times = np.concatenate([client.seconds for client in clients])
    for client in clients:
        client.socket.close()
    p50, p99 = np.percentile(times, [50, 99]) * 1000
    errors = sum(client.errors for client in clients)
    return {"per_second": len(times) / took, "p50_ms": float(p50), "p99_ms": float(p99), "errors": errors}


def request(path: str, kind: str, body: bytes, accept: str = JSON) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def npy(points: Any) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, np.asarray(points))
    return file.getvalue()


@contextmanager
def running(command: list[str], said: str) -> Any:
    """Run a server, and yield its port."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while True:
            line = process.stdout.readline()
            assert line, "the server did not start"
            if found := re.search(said, line):
                yield int(found[1])
                return
    finally:
        process.terminate()
        process.wait()


def in_process(index: slosh.SetIndex, queries: list[Any], seconds: float) -> dict[str, float]:
    """Return what one thread of Python does without a server: single queries a second."""
    for query in queries[:50]:
        index.search(query, k=K)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        index.search(queries[len(times) % len(queries)], k=K)
        times.append(time.perf_counter() - started)
    p50, p99 = np.percentile(times, [50, 99]) * 1000
    return {"per_second": len(times) / sum(times), "p50_ms": float(p50), "p99_ms": float(p99)}


def slosh_server(place: Path, workers: int) -> Any:
    command = [sys.executable, "-m", "slosh", "serve", str(place), "--port", "0", "--no-log", "--workers", str(workers)]
    return running(command, r"http://\S+?:(\d+)")


def measure_slosh(
    index: slosh.SetIndex, place: Path, workers: int, queries: list[Any], batches: list[Sets], seconds: float
) -> dict[str, Any]:
    path = f"/v1/indexes/{place.name.removesuffix('.slosh')}/search"
    in_json = [request(path, JSON, json.dumps({"queries": np.asarray(q).tolist(), "k": K}).encode()) for q in queries]
    in_npy = [request(f"{path}?k={K}", NPY, npy(q)) for q in queries]
    ones = (Sets.from_list([np.asarray(q)]) for q in queries)
    binary = [request(path, BINARY, pack({"k": K, "single": True}, pack_sets("queries", q)), BINARY) for q in ones]
    bulk = [request(path, BINARY, pack({"k": K}, pack_sets("queries", q)), BINARY) for q in batches]
    found: dict[str, Any] = {}
    with slosh_server(place, workers) as port:
        load(port, in_json, 4, 1.0)
        for n in CLIENTS:
            found[f"JSON, {n} clients"] = load(port, in_json, n, seconds)
            found[f"binary, {n} clients"] = load(port, binary, n, seconds)
        found["npy, 8 clients"] = load(port, in_npy, 8, seconds)
        found["batches of 100, in turns"] = in_turns(index, port, bulk, batches, seconds)
    return found


def in_turns(
    index: slosh.SetIndex, port: int, bulk: list[bytes], batches: list[Sets], seconds: float
) -> dict[str, float]:
    """Return batches a second without a server, with one client and with two, measured in turns: their medians."""
    rows = []
    for _ in range(ROUNDS):
        n, started, part = 0, time.perf_counter(), seconds / ROUNDS
        while time.perf_counter() - started < part:
            list(index.search(batches[n % len(batches)], k=K))  # the hits of each query
            n += 1
        alone = n / (time.perf_counter() - started)
        rows.append([alone, *(load(port, bulk, clients, part)["per_second"] for clients in (1, 2))])
    alone, one, two = np.array(rows).T
    return {
        "in_process_per_second": float(np.median(alone)),
        "1_client_per_second": float(np.median(one)),
        "2_clients_per_second": float(np.median(two)),
        "1_client_ratio": float(np.median(one / alone)),
        "2_clients_ratio": float(np.median(two / alone)),
    }


def measure_faiss(place: Path, queries: list[Any], seconds: float) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / "faiss_server.py"), str(place)]
    bodies = [
        request("/search", JSON, json.dumps({"points": np.asarray(q).tolist(), "k": K}).encode()) for q in queries
    ]
    with running(command, r"listening on (\d+)") as port:
        load(port, bodies, 4, 1.0)
        return {f"JSON, {n} clients": load(port, bodies, n, seconds) for n in CLIENTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    n, n_queries, seconds = (3000, 300, 0.5) if options.quick else (60_000, 1000, 5.0)
    data, stored, asked = search_data.read(n, n_queries)
    queries, batches = [asked[i] for i in range(len(asked))], [asked[i : i + BATCH] for i in range(0, n_queries, BATCH)]
    results: dict[str, Any] = {
        "date": str(date.today()),
        "data": data,
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "sets": n,
        "k": K,
        "recall": RECALL,
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "mnist.slosh"
        with slosh.SetIndex.create(place, stored.dim, embedding=SlicedWasserstein(32, 32)) as index:
            index.add(stored, metadata=[{"digit": int(x)} for x in search_data.labels(n)])
            results["tuned"] = str(index.tune(RECALL, k=K))
        with slosh.open(place, read_only=True) as index:
            results["in process"] = in_process(index, queries, seconds)
            for workers in (1, 2):
                name = f"slosh serve, {workers} process{'es' * (workers > 1)}"
                results[name] = measure_slosh(index, place, workers, queries, batches, seconds)
            results["FastAPI and FAISS"] = measure_faiss(place, queries, seconds)
            results["in process, again"] = in_process(index, queries, seconds)
    results["goals"] = goals(results)
    print(json.dumps(results, indent=1))
    if not options.quick:
        (ROOT / "docs" / "results" / "server.json").write_text(json.dumps(results, indent=1) + "\n")


def goals(results: dict[str, Any]) -> dict[str, Any]:
    """Return what was to be reached, and what was."""
    found: dict[str, Any] = {}
    for name in ("slosh serve, 1 process", "slosh serve, 2 processes"):
        part = results[name]
        eight, many, bulk = part["JSON, 8 clients"], part["JSON, 64 clients"], part["batches of 100, in turns"]
        found[name] = {
            "batches of 100, 1 client, beside in process": bulk["1_client_ratio"],
            "batches of 100, 2 clients, beside in process": bulk["2_clients_ratio"],
            "single JSON a second, 8 clients": eight["per_second"],
            "p99 / p50, 8 clients": eight["p99_ms"] / eight["p50_ms"],
            "64 clients / 8 clients": many["per_second"] / eight["per_second"],
            "errors": sum(each.get("errors", 0) for each in part.values()),
        }
    return found


if __name__ == "__main__":
    main()
