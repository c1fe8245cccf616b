"""The Python client: what it says of servers, keys and addresses that are not right, and what it sends in parts."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import slosh
from builders import PATIENCE, small_embedding
from conftest import fill
from server_process import Server, ask
from slosh import errors
from slosh.index import remote

READ = "r" * 20


@contextmanager
def other_server(status, content):
    """An HTTP server that is not one of slosh, and answers everything in the same way; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *about):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            made.shutdown()
            thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("status", "content"), [(404, b"no such page"), (404, b'{"detail": "Not Found"}'), (200, b"<html>"), (200, b"{}")]
)
@pytest.mark.parametrize("name", ["shapes", None])
def test_a_server_that_is_not_slosh(status, content, name):
    with other_server(status, content) as address:
        with pytest.raises(errors.StorageError, match=r"as slosh serve does.*: check the address") as raised:
            slosh.open(address, name)
        assert type(raised.value) is errors.StorageError


def test_an_address_with_a_prefix_that_is_not_there(server):
    with pytest.raises(errors.StorageError, match="there is no route /prefix/v1") as raised:
        slosh.open(f"{server.url}/prefix", name="shapes")
    assert type(raised.value) is errors.StorageError
    assert ask(server, "GET", "/none")[2]["class"] == "StorageError"
    assert ask(server, "PUT", "/health")[2]["class"] == "StorageError"


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"{READ} read\n")
    keys.chmod(0o600)
    (tmp_path / "served").mkdir()
    with Server(fill(tmp_path / "served"), options=("--keys", keys, "--jobs", 1)) as server:
        for key, words in (("", "needs an API key"), (":wrong@", "does not know this API key")):
            with pytest.raises(errors.AccessDenied, match=f"{words}: set SLOSH_API_KEY") as raised:
                slosh.open(f"http://{key}127.0.0.1:{server.port}", name="shapes")
            assert "Bearer" not in str(raised.value)
        with slosh.open(f"http://:{READ}@127.0.0.1:{server.port}", name="shapes") as index:
            assert index.read_only
            assert f"SetIndex('http://127.0.0.1:{server.port}#shapes', 60 sets, dim=2, read only" in repr(index)
            with pytest.raises(errors.ReadOnlyIndex, match="use a key, or a server, that lets you write"):
                index.remove("s1")


def test_an_add_that_is_too_large_for_one_request(tmp_path, monkeypatch):
    """It goes in parts, each of which is stored whole; an error says how many sets were stored before it."""
    monkeypatch.setattr(remote, "ADD_SETS", 10)
    with slosh.SetIndex.create(tmp_path / "live.slosh", 2, embedding=small_embedding(), n_jobs=1):
        pass
    sets = np.random.default_rng(0).normal(size=(25, 3, 2))
    with Server(tmp_path / "live.slosh", options=("--jobs", 1)) as server, slosh.open(server.url) as index:
        assert index.add(sets, [f"a{i}" for i in range(25)], [{"n": i} for i in range(25)]) == index.ids
        assert index.get("a17").metadata == {"n": 17}
        assert np.allclose(index.get("a17").points, sets[17], atol=1e-6)
        assert b'route="POST /v1/indexes/{name}/sets",status="2xx"} 3' in ask(server, "GET", "/metrics")[2]
        with pytest.raises(errors.DuplicateId) as raised:
            index.add(sets, [f"b{i}" for i in range(24)] + ["a0"])
        assert raised.value.stored == 20
        assert len(index) == 45


def test_the_access_log(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"{READ} read\n")
    keys.chmod(0o600)
    (tmp_path / "served").mkdir()
    options = ("--keys", keys, "--jobs", 1, "--log")
    with Server(fill(tmp_path / "served"), options=options) as server:
        key = {"Authorization": f"Bearer {READ}"}
        ids = [
            ask(server, *asked, **key)[1]["X-Request-Id"]
            for asked in (("GET", "/v1/indexes/shapes/records"), ("HEAD", "/health"), ("GET", "/none/of?these=1"))
        ]
        ask(server, "GET", "/v1/indexes")
    lines = [json.loads(line) for line in server.errors if line.startswith("{")]
    by_id = {each["id"]: each for each in lines}  # a stream is logged when its last part is sent
    stream, head, unknown = (by_id.pop(each) for each in ids)
    (refused,) = by_id.values()
    assert stream["bytes"] > 1000
    assert len(stream["key"]) == 8
    assert stream["key"] not in READ
    assert stream["time"].endswith("+00:00")
    assert head["method"] == "HEAD"
    assert (unknown["route"], unknown["path"], unknown["status"]) == ("", "/none/of", 404)
    assert (refused["key"], refused["status"]) == ("", 401)
