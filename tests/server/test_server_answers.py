"""How large an answer may be, and what becomes of one that nobody reads."""

from __future__ import annotations

import json
import socket
import time

import numpy as np
import pytest

import slosh
from builders import PATIENCE, small_embedding
from server_process import Server, ask
from slosh import errors
from slosh.wire import BINARY, pack

ROOT, LARGE, N_SMALL = "/v1/indexes/many", 10_000, 6000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An index of many sets of one point, and a few large ones."""
    path = tmp_path_factory.mktemp("answers") / "many.slosh"
    random = np.random.default_rng(0)
    with slosh.SetIndex.create(path, 2, embedding=small_embedding(), n_jobs=1) as index:
        index.add(random.normal(size=(N_SMALL, 1, 2)), [f"s{i}" for i in range(N_SMALL)], {"kind": "small"})
        index.add(random.normal(size=(2, LARGE, 2)), ["large0", "large1"], {"kind": "large"})
    return path


@pytest.fixture(scope="module")
def server(place):
    with Server(place, options=("--jobs", 1)) as one:
        yield one


def refused(server, path, asked, argument):
    status, _, problem = ask(server, "POST", f"{ROOT}/{path}", asked)
    assert (status, problem["fields"]["argument"]) == (400, argument)
    return problem["detail"]


def test_whole_sets(server):
    assert "coordinates" in refused(server, "get", {"ids": ["large0"] * 501}, "ids")
    found = ask(server, "POST", f"{ROOT}/get", {"ids": ["large0", "s1", *["large1"] * 40]})[2]["sets"]
    assert [len(one["points"]) for one in found] == [LARGE, 1, *[LARGE] * 40]
    body = pack({"ids": ["large1"] * 3400})
    status, _, problem = ask(server, "POST", f"{ROOT}/get", body, content_type=BINARY, accept=BINARY)
    assert (status, problem["fields"]["argument"]) == (400, "ids")
    assert ask(server, "POST", f"{ROOT}/get", {"ids": ["nowhere", "large0"]})[0] == 404


def test_hits(server):
    many = [f"s{i}" for i in range(200)]
    assert "6,002 sets each" in refused(server, "search", {"id": many, "k": 100_000}, "k")
    refused(server, "search", {"id": many, "k": 10, "offset": 100_000}, "k")
    refused(server, "kneighbors", {"id": many, "k": 100_000}, "k")
    assert len(ask(server, "POST", f"{ROOT}/search", {"id": many, "k": 20})[2]["hits"]) == 200
    said = refused(server, "range_search", {"id": many, "radius": 1e6}, "radius")
    assert "more than 1,000,000 sets are within the radius" in said
    assert "more than 5 sets" in refused(server, "range_search", {"id": "s1", "radius": 1e6, "max_hits": 5}, "radius")
    assert ask(server, "POST", f"{ROOT}/range_search", {"id": many, "radius": 0.01})[0] == 200


def test_points_that_are_drawn(server):
    assert "1,010,000 points" in refused(server, "points", {"ids": ["large0"] * 101, "limit": 10_000}, "limit")
    drawn = ask(server, "POST", f"{ROOT}/points", {"ids": ["large1", "s3", "large1"], "limit": 100})[2]["sets"]
    assert [(one["id"], one["size"], len(one["points"])) for one in drawn] == [
        ("large1", LARGE, 100), ("s3", 1, 1), ("large1", LARGE, 100),
    ]  # fmt: skip


def test_exact_transport_between_large_sets(server):
    said = refused(server, "search", {"id": "large0", "rerank": "wasserstein", "where": {"kind": "large"}}, "rerank")
    assert "10,000 and 10,000 elements" in said
    assert ask(server, "POST", f"{ROOT}/search", {"id": "large0", "rerank": "chamfer", "depth": 10})[0] == 200
    assert ask(server, "POST", f"{ROOT}/search", {"queries": [[1, 2]], "rerank": "wasserstein"})[0] in (200, 501)


def test_sets_are_described_and_fetched_in_parts(server, monkeypatch):
    monkeypatch.setattr("slosh.index.remote.DESCRIBED_SETS", 1000)
    monkeypatch.setattr("slosh.index.remote.GET_SETS", 700)
    monkeypatch.setattr("slosh.index.remote.GET_NUMBERS", 30_000)
    with slosh.open(server.url, name="many") as index:
        found = index.describe(limit=2500, offset=3600)
        assert found.ids == index.ids[3600:]
        assert found.sizes.tolist() == [1] * 2400 + [LARGE] * 2
        wanted = ["large1", *index.ids[::-1], "s0"]
        records = index.get(wanted)
        assert records.ids == wanted
        assert records.sets.sizes.tolist() == [LARGE, LARGE, LARGE, *[1] * (N_SMALL + 1)]
        assert np.array_equal(records.sets[1], index.get("large1").points)
        with pytest.raises(errors.UnknownId):
            index.get([*wanted, "nowhere"])
    lines = ask(server, "POST", f"{ROOT}/describe", {"where": "kind = large"})[2]["sets"]
    assert lines == [{"id": f"large{i}", "size": LARGE, "metadata": {"kind": "large"}} for i in (0, 1)]
    assert ask(server, "POST", f"{ROOT}/describe", {"limit": 10_001})[0] == 400


def test_answers_that_nobody_reads_do_not_keep_the_server(place):
    """Neither their memory nor their connections: two of them are all that there are."""
    sent = json.dumps({"ids": ["large0"] * 40}).encode()
    head = f"POST {ROOT}/get HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(sent)}\r\n\r\n"
    with Server(place, options=("--jobs", 1, "--read-only", "--max-connections", 2, "--answer-seconds", 0.3)) as server:
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(2)]
        for each in held:
            each.sendall(head.encode() + sent)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as other:
                other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                try:
                    if b"HTTP/1.1 200" in other.recv(1000):
                        break
                except ConnectionResetError:
                    pass
            time.sleep(0.05)
        else:
            raise AssertionError("two clients that read nothing lock all others out")
        for each in held:
            each.close()
