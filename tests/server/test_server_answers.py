"""How large an answer may be, and what becomes of one that nobody reads."""

from __future__ import annotations

import io
import json
import socket
import sys
import time

import numpy as np
import pytest

import slosh
from builders import PATIENCE, small_embedding, until
from server_process import Server, ask
from slosh import errors
from slosh.wire import ARROW, BINARY, pack

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


LIMITS = {
    "numbers": 1_000_000, "json_numbers": 200_000, "answer_bytes": 200_000, "streams": 1,
}  # fmt: skip
TIGHT = f"""
import dataclasses, sys
from slosh.server import settings
own = [(name, int, value) for name, value in {LIMITS}.items()]
settings.Limits = dataclasses.make_dataclass("Limits", own, bases=(settings.Limits,), frozen=True)
from slosh.cli import main
sys.exit(main())
"""
FAT = {"text": "x" * 20_000}


@pytest.fixture(scope="module")
def tight(tmp_path_factory):
    """A server that gives and takes little at a time, and an index of large sets with large metadata."""
    path = tmp_path_factory.mktemp("tight") / "fat.slosh"
    random, names = np.random.default_rng(1), [f"f{i}" for i in range(60)]
    with slosh.SetIndex.create(path, 2, embedding=small_embedding(), n_jobs=1) as index:
        index.add(random.normal(size=(60, 50_000, 2)), names, [{"n": i, **FAT} for i in range(60)])
    command, options = [sys.executable, "-c", TIGHT, "serve"], ("--jobs", 1, "--answer-seconds", 0.2)
    with Server(path, options=options, command=command) as one:
        one.path = path
        yield one


def plain(records):
    sets = [np.asarray(records.sets[i]).tolist() for i in range(len(records.ids))]
    return records.ids, records.metadata, sets


def test_sets_are_described_and_fetched_in_parts(tight):
    """Whatever a server gives at a time, the client has what an index of this process gives."""
    with slosh.open(tight.url) as index, slosh.open(tight.path, read_only=True, n_jobs=1) as local:
        for asked in ({}, {"limit": 25, "offset": 3}, {"where": "n >= 40"}, {"max_bytes": 300_000}, {"max_bytes": 1}):
            found, wanted = index.describe(**asked), local.describe(**asked)
            assert (found.ids, found.metadata) == (wanted.ids, wanted.metadata)
            assert found.sizes.tolist() == wanted.sizes.tolist()
        assert len(local.describe(max_bytes=300_000).ids) == 14
        assert len(local.describe(max_bytes=1).ids) == 1
        wanted = ["f7", *index.ids[::-1], "f7", "f1"]
        assert plain(index.get(wanted)) == plain(local.get(wanted))
        assert index.get([]).ids == []
        with pytest.raises(errors.UnknownId):
            index.get([*wanted, "nowhere"])
    found, offset = [], 0
    while offset is not None:
        page = ask(tight, "POST", "/v1/indexes/fat/describe", {"offset": offset})[2]
        assert len(page["sets"]) <= 9
        found, offset = [*found, *page["sets"]], page["next"]
    assert [each["metadata"]["n"] for each in found] == list(range(60))
    listed = ask(tight, "GET", "/v1/indexes/fat/sets?limit=20")[2]
    assert (len(listed["sets"]), listed["next"], listed["total"]) == (9, 9, 60)


def test_large_metadata(tight):
    fat = "/v1/indexes/fat"
    for path, asked, argument in (
        ("search", {"id": ["f1", "f2"], "k": 6}, "k"),
        ("range_search", {"id": "f1", "radius": 1e6}, "k"),
        ("points", {"ids": ["f1"] * 11, "limit": 5}, "ids"),
        ("get", {"ids": ["f1", "f2", "f3"]}, "ids"),
    ):
        status, _, problem = ask(tight, "POST", f"{fat}/{path}", asked)
        assert (status, problem["fields"]["argument"]) == (400, argument), path
    assert ask(tight, "POST", f"{fat}/search", {"id": ["f1", "f2"], "k": 6, "metadata": False})[0] == 200
    assert ask(tight, "POST", f"{fat}/search", {"id": ["f1", "f2"], "k": 4})[0] == 200
    assert len(ask(tight, "POST", f"{fat}/get", {"ids": ["f1", "f2", "f3"], "part": True})[2]["sets"]) == 2
    said = ask(tight, "POST", f"{fat}/get", {"ids": ["f1", "f2", "f3"]})[2]["detail"]
    most = "200,000 coordinates and 195.3 kB of ids and metadata"
    assert said.startswith(f"these sets have more than {most}: ask for fewer")


def test_json_within_other_bodies(tight):
    """It is counted before it is parsed, as that of a body of JSON is."""
    pa = pytest.importorskip("pyarrow", reason="bodies in Arrow need slosh[tables]")
    lists = "[" + "[]," * 200_000 + "[]]"
    point = {"sets.points": np.ones((1, 2), np.float32), "sets.offsets": np.array([0, 1])}
    stream = io.BytesIO()
    columns = {"points": pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float32()))), "metadata": [f'{{"a": {lists}}}']}
    table = pa.table(columns)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    for path, body, kind in (
        ("get", pack({"ids": json.loads(lists)}), BINARY),
        ("select", pack({"where": None, "limit": json.loads(lists)}), BINARY),
        ("sets", pack({"metadata": [f'{{"a": {lists}}}']}, point), BINARY),
        ("sets", stream.getvalue(), ARROW),
    ):
        status, _, problem = ask(tight, "POST", f"/v1/indexes/fat/{path}", body, content_type=kind, accept=BINARY)
        assert (status, problem["fields"]["argument"]) == (413, "body"), (path, kind)
    for where in (float("nan"), "kind = \ud800", 3):
        body = pack({"where": where}, to_json=json.dumps)
        status, _, problem = ask(tight, "POST", "/v1/indexes/fat/describe", body, content_type=BINARY, accept=BINARY)
        assert status == 400, problem


def test_ids_that_are_none(tight):
    for ids in ([""], ["\ud800"], [True], [["f1"]], [1.5]):
        body = pack({"ids": ids}, to_json=json.dumps)
        status, _, problem = ask(tight, "POST", "/v1/indexes/fat/get", body, content_type=BINARY, accept=BINARY)
        assert (status, problem["fields"]["argument"]) == (400, "ids")


def test_one_who_works_on_a_stream_keeps_it(tight):
    """A batch may take longer than a client may keep an answer waiting; and streams are few at a time."""
    with slosh.open(tight.url) as index:
        records, seen = index.records(2), []
        for batch in records:
            seen += batch.ids
            if len(seen) in (2, 30):
                time.sleep(1.0)  # five times what a client may take for a part of another answer
            if len(seen) == 2:  # the rest does not fit into the buffers of the connection
                status, headers, _ = ask(tight, "GET", "/v1/indexes/fat/records?batch=2")
                assert (status, "retry-after" in headers) == (503, True)
        assert seen == [f"f{i}" for i in range(60)]
        until(lambda: ask(tight, "GET", "/v1/indexes/fat/records?batch=60")[0] == 200)


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
