"""Who is let in: keys, hosts, origins; and what a server refuses to do at all."""

from __future__ import annotations

import subprocess

import pytest

import slosh
from builders import PATIENCE, cloud_list
from server_process import COMMAND, Server, ask, raw
from slosh import errors

READ, WRITE, OTHER = "r" * 20, "w" * 20, "o" * 20


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# of the tests\n{READ} read\n{WRITE} write\n{OTHER} write wide, more\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def locked(filled, keys_file):
    """A server with keys: its index `shapes` is copied, since one process writes to an index."""
    target = keys_file.parent / "indexes"
    target.mkdir()
    for name in ("shapes", "wide"):
        with slosh.open(filled / f"{name}.slosh", read_only=True) as index:
            index.copy_to(target / f"{name}.slosh")
    with Server(target, options=("--keys", keys_file, "--jobs", 1)) as made:
        yield made


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


ADD = {"sets": [[[0.0, 1.0]]]}
SEARCH = {"id": "s1"}


@pytest.mark.parametrize("headers", [{}, bearer(""), bearer("wrong" * 5), bearer(READ[:-1]), {"Authorization": READ}])
def test_a_key_is_needed(locked, headers):
    for method, path, body in (
        ("GET", "/v1/indexes", None),
        ("POST", "/v1/indexes/shapes/search", SEARCH),
        ("POST", "/v1/indexes/shapes/sets", ADD),
        ("POST", "/v1/indexes/none/search", SEARCH),
        ("GET", "/v1/jobs", None),
        ("GET", "/metrics", None),
        ("DELETE", "/v1/indexes/shapes", None),
    ):
        status, sent, problem = ask(locked, method, path, body, **headers)
        assert status == 401, path
        assert sent["WWW-Authenticate"].startswith("Bearer")
        assert problem["class"] == "AccessDenied"
    assert ask(locked, "GET", "/health", **headers)[0] == 200
    assert ask(locked, "GET", "/", **headers)[0] == 200
    assert ask(locked, "GET", "/v1/server", **headers)[2]["allowed"]["read"] is False


@pytest.mark.parametrize("route", ["search", "sets", "upload?filename=x.npy"])
def test_the_key_is_checked_before_the_body_is_read(locked, route):
    """The answer comes although the body never does."""
    head = f"POST /v1/indexes/shapes/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert raw(locked, f"{head}Content-Length: 1000000\r\n\r\n{{".encode()).startswith(b"HTTP/1.1 401")


def test_a_key_that_reads_does_not_write(locked):
    assert ask(locked, "POST", "/v1/indexes/shapes/search", SEARCH, **bearer(READ))[0] == 200
    for method, path, body in (
        ("POST", "/v1/indexes/shapes/sets", ADD),
        ("PATCH", "/v1/indexes/shapes/sets", {"ids": ["s1"], "metadata": [{}]}),
        ("POST", "/v1/indexes/shapes/remove", {"ids": ["s1"]}),
        ("POST", "/v1/indexes/shapes/jobs", {"kind": "compact"}),
        ("POST", "/v1/indexes", {"name": "x", "dim": 2}),
        ("DELETE", "/v1/indexes/shapes", None),
    ):
        assert ask(locked, method, path, body, **bearer(READ))[0] == 403, (method, path)
    assert ask(locked, "POST", "/v1/indexes/shapes/sets", ADD, **bearer(WRITE))[0] == 201


def test_what_a_key_may_change_is_said(locked):
    for key, read_only in ((READ, True), (WRITE, False)):
        listed = ask(locked, "GET", "/v1/indexes", **bearer(key))[2]["indexes"]
        about = ask(locked, "GET", "/v1/indexes/shapes", **bearer(key))[2]
        assert {each["read_only"] for each in listed} == {about["read_only"]} == {read_only}


def test_a_key_of_other_indexes(locked):
    assert ask(locked, "POST", "/v1/indexes/wide/search", SEARCH, **bearer(OTHER))[0] == 200
    for path in ("/v1/indexes/shapes/search", "/v1/indexes/none/search"):  # it does not say which of them exist
        assert ask(locked, "POST", path, SEARCH, **bearer(OTHER))[0] == 403
    names = [each["name"] for each in ask(locked, "GET", "/v1/indexes", **bearer(OTHER))[2]["indexes"]]
    assert names == ["wide"]
    about = ask(locked, "GET", "/v1/server", **bearer(OTHER))[2]
    assert about["allowed"] == {"read": True, "write": True, "indexes": ["more", "wide"]}
    assert about["can_create"]  # those that it names
    assert not ask(locked, "GET", "/v1/server", **bearer(READ))[2]["can_create"]
    assert ask(locked, "POST", "/v1/indexes", {"name": "y", "dim": 2}, **bearer(OTHER))[0] == 403
    assert ask(locked, "POST", "/v1/indexes", {"name": "more", "dim": 2}, **bearer(OTHER))[0] == 201
    job = ask(locked, "POST", "/v1/indexes/shapes/jobs?wait=30", {"kind": "verify"}, **bearer(READ))[2]["id"]
    assert ask(locked, "GET", f"/v1/jobs/{job}", **bearer(OTHER))[0] == 404
    assert ask(locked, "GET", f"/v1/jobs/{job}", **bearer(READ))[0] == 200


def test_the_client_sends_its_key(locked, monkeypatch):
    address = f"http://:{WRITE}@127.0.0.1:{locked.port}"
    with slosh.open(address, name="shapes") as index:
        assert WRITE not in repr(index)
        assert WRITE not in index.location
        index.add(cloud_list(1), ["by the client"])
    with pytest.raises(errors.AccessDenied, match="needs an API key"):
        slosh.open(locked.url, name="shapes")
    monkeypatch.setenv("SLOSH_API_KEY", READ)
    with slosh.open(locked.url, name="shapes") as index:
        assert "by the client" in index
        with pytest.raises(errors.ReadOnlyIndex):
            index.remove("by the client")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": ""},
    ],
    ids=str,
)
def test_pages_of_other_sites_are_refused(server, headers):
    status, _, problem = ask(server, "POST", "/v1/indexes/shapes/search", SEARCH, **headers)
    assert status == 403
    assert problem["class"] == "AccessDenied"


def test_the_own_page_is_let_in(server):
    own = {"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}"}
    assert ask(server, "POST", "/v1/indexes/shapes/search", SEARCH, **own, Sec_Fetch_Site="same-origin")[0] == 200
    assert ask(server, "GET", "/", Sec_Fetch_Site="cross-site")[0] == 200  # a link on another page


def test_headers(server):
    for path in ("/", "/v1/indexes", "/openapi.json", "/none"):
        _, headers, _ = ask(server, "GET", path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "Access-Control-Allow-Origin" not in headers
        assert headers.get("Server") is None
    assert ask(server, "OPTIONS", "/v1/indexes/shapes/search", Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../keys.py", "/static/%2e%2e/keys.py", "/static//etc/passwd", "/static/..%2f..%2fkeys.py",
        "/v1/indexes/..%2f..%2fetc", "/v1/indexes/%2fetc%2fpasswd", "/v1/indexes/shapes.slosh", "/v1/indexes/.",
        "/v1/indexes/%00", "/v1/indexes/%ff%fe", "/%", "//", "/v1/indexes//search",
    ],
)  # fmt: skip
def test_no_path_reaches_the_files(server, path):
    assert ask(server, "GET", path)[0] in (404, 405)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 101, "a\0b", "a b", "ü", "-x"])
def test_names_of_new_indexes(server, name):
    assert ask(server, "POST", "/v1/indexes", {"name": name, "dim": 2})[0] == 400


def test_a_server_that_only_reads(filled, tmp_path):
    with slosh.open(filled / "shapes.slosh", read_only=True) as index:
        index.copy_to(tmp_path / "copy.slosh")
    with Server(tmp_path / "copy.slosh", options=("--read-only",)) as reading:
        assert ask(reading, "POST", "/v1/indexes/copy/search", SEARCH)[0] == 200
        status, _, problem = ask(reading, "POST", "/v1/indexes/copy/sets", ADD)
        assert (status, problem["class"]) == (403, "ReadOnlyIndex")
        with slosh.open(reading.url) as index:
            assert index.read_only
            with pytest.raises(errors.ReadOnlyIndex):
                index.add(cloud_list(1))
        with slosh.open(tmp_path / "copy.slosh") as index:  # it holds no lock
            index.add(cloud_list(1), ["meanwhile"])
        assert ask(reading, "POST", "/v1/indexes/copy/get", {"ids": ["meanwhile"]})[0] == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "--keys FILE"),
        (("--keys", "none"), "No such file"),
        (("--host", "192.0.2.1", "--insecure"), "give an address of this machine as host"),  # nobody has this one
    ],
)
def test_a_server_that_does_not_start(filled, options, words):
    done = subprocess.run(
        [*COMMAND, str(filled / "wide.slosh"), "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("short read\n", 0o600, "less than 16"),
        (f"{READ} admin\n", 0o600, "is not a key"),
        ("# nothing\n", 0o600, "has no key"),
        (f"{READ} read\n", 0o644, "chmod 600"),
    ],
)
def test_bad_files_of_keys(tmp_path, text, mode, words):
    from slosh.server.keys import read_keys

    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(errors.SloshError, match=words):
        read_keys(str(path))
