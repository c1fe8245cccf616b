"""Clients of an index in PostgreSQL that are killed, interrupted, or cut off: with real processes and sockets."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import slosh
from builders import PATIENCE, cloud_list, contents, make_index, together
from postgres_server import ask, new_database, wait_until
from slosh import errors

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

OTHERS = "FROM pg_stat_activity WHERE application_name = 'client' AND datname = current_database()"
READER = """
    import sys, slosh
    index = slosh.open(sys.argv[1], read_only=True, n_jobs=1)
    queries = index.get(index.ids[:20]).sets
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            while True:
                index.search(queries, k=5, recall=1.0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""
WRITER = """
    import sys, numpy as np, slosh
    index = slosh.open(sys.argv[1], n_jobs=1)
    print("ready", flush=True)
    sys.stdin.readline()
    rng = np.random.default_rng(int(sys.argv[2]))
    for batch in range(12):
        try:
            sets, ids = [rng.normal(size=(9, 2)) for _ in range(30)], [f"{batch}-{i}" for i in range(30)]
            index.add(sets, ids, {"by": sys.argv[2]})
            print("stored", flush=True)
        except slosh.errors.DuplicateId:
            print("duplicate", flush=True)
"""


@pytest.fixture
def url():
    return new_database()


@pytest.fixture
def index(url):
    with make_index(f"{url}#shapes") as made:
        made.add(cloud_list(300))
        yield made


def start(code, url, *arguments):
    """Start a process that opens the index, and wait until it has done so."""
    address = f"{url}&application_name=client#shapes"
    command = [sys.executable, "-c", textwrap.dedent(code), address, *arguments]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "ready\n"
    return client


def go_on(client):
    client.stdin.write("go on\n")
    client.stdin.flush()


def end(client):
    client.kill()
    client.communicate()


def test_a_reader_that_is_killed_while_rows_are_sent_to_it(url, index):
    """Nothing of it is left on the server: no connection, no lock; tables that it read are dropped."""
    reader = start(READER, url)
    go_on(reader)
    wait_until(url, f"count(*) > 0 {OTHERS} AND query LIKE '%CURSOR%'")
    reader.kill()
    reader.communicate()
    wait_until(url, f"count(*) = 0 {OTHERS}")
    index.compact()
    index.compact()
    assert ask(url, "SELECT name FROM slosh.dropped") == []
    assert index.verify().ok


@pytest.mark.skipif(sys.platform != "linux", reason="a server looks after its clients on Linux only")
def test_a_reader_that_is_killed_while_the_server_works_for_it(url, index):
    """The server notices by itself, and does not go on for as long as the statement may take."""
    reader = start(READER, url)
    with psycopg.connect(url) as holding:
        holding.execute("LOCK TABLE slosh.sets_1_1 IN ACCESS EXCLUSIVE MODE")
        go_on(reader)
        wait_until(url, f"count(*) = 1 {OTHERS} AND wait_event_type = 'Lock'")
        reader.kill()
        reader.communicate()
        wait_until(url, f"count(*) = 0 {OTHERS}")
    index.add(cloud_list(1), ["more"])
    assert index.verify().ok


def test_a_reader_that_is_interrupted_cancels_its_statement(url, index):
    reader = start(READER, url)
    with psycopg.connect(url) as holding:
        holding.execute("LOCK TABLE slosh.sets_1_1 IN ACCESS EXCLUSIVE MODE")
        go_on(reader)
        wait_until(url, f"count(*) = 1 {OTHERS} AND wait_event_type = 'Lock'")
        reader.send_signal(signal.SIGINT)
        assert reader.stdout.readline() == "interrupted\n"
        wait_until(url, f"count(*) = 0 {OTHERS} AND wait_event_type = 'Lock'")
    go_on(reader)  # and searches again, by the same index
    wait_until(url, f"count(*) > 0 {OTHERS} AND query LIKE '%CURSOR%'")
    end(reader)
    assert index.verify().ok


def test_a_statement_that_another_session_cancels(url, index):
    """A search and an add that wait are cancelled: one clear error each, and nothing of the add."""
    before = contents(index)
    waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    for call in (
        lambda: index.search(cloud_list(1)[0]),
        lambda: index.add(cloud_list(2), ["x", "y"]),
        lambda: index.remove("3"),
    ):
        with psycopg.connect(url) as holding:
            holding.execute("LOCK TABLE slosh.bodies_1, slosh.sets_1_1 IN ACCESS EXCLUSIVE MODE")

            def cancelled(call=call):
                with pytest.raises(errors.StorageError, match="cancel") as told:
                    call()
                assert "try again" in told.value.remedy

            together(lambda: wait_until(url, f"bool_or(pg_cancel_backend(pid)) {waiting}"), cancelled)
    assert contents(index) == before
    assert index.verify().ok
    assert index.add(cloud_list(2), ["x", "y"]) == ["x", "y"]


def test_two_processes_that_add_the_same_ids(url, index):
    """Of each batch one of them is the first; the other is told so. Every set has the points of one of them."""
    writers = [start(WRITER, url, str(i)) for i in range(2)]
    for each in writers:
        go_on(each)
    told = [each.communicate(timeout=PATIENCE)[0].split() for each in writers]
    assert all(sorted(pair) == ["duplicate", "stored"] for pair in zip(*told, strict=True))
    assert len(told[0]) == 12
    assert len(index) == len(set(index.ids)) == 660
    for batch in range(12):
        assert {each["by"] for each in index.get([f"{batch}-{i}" for i in range(30)]).metadata} == {
            str(0 if told[0][batch] == "stored" else 1)
        }
    assert index.verify().ok


# -- a network that loses the answer to a commit -----------------------------------------------------------------------


class Proxy:
    """A socket before the server's. `lose` says what becomes of the next COMMIT of a change.

    "question": the server never gets it. "answer": it does, and its answer is lost. "all": like "answer", and from then
    on nobody gets through.
    """

    def __init__(self, folder, target):
        self.folder, self._target = folder, target
        self.lose, self.lost, self._closed = None, 0, threading.Event()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / Path(target).name))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self._closed.is_set():
            with suppress(OSError):
                client, _ = self._listening.accept()
                if self.lose == "all" and self.lost:
                    client.close()
                    continue
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client):
        changed = False
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._target)
            while True:
                ready, _, _ = select.select([client, server], [], [], PATIENCE)
                if server in ready:
                    content = server.recv(1 << 16)
                    if not content:
                        return
                    client.sendall(content)
                if client in ready:
                    content = client.recv(1 << 16)
                    if not content:
                        return
                    changed |= b"INSERT INTO slosh.commits" in content
                    if changed and self.lose and not self.lost and b"COMMIT\0" in content:
                        self.lost += 1
                        if self.lose != "question":
                            server.sendall(content)
                            assert b"COMMIT" in server.recv(1 << 16)  # it is stored, and the client never hears of it
                        return
                    server.sendall(content)

    def close(self):
        self._closed.set()
        self._listening.close()


@contextmanager
def cut_off(url, tmp_path):
    """Give an index whose connections go through a proxy, and the proxy."""
    host = url.partition("host=")[2]
    folder = Path(os.path.relpath(tmp_path)) if len(str(tmp_path)) > 80 else tmp_path
    proxy = Proxy(folder, f"{host}/.s.PGSQL.5432")
    try:
        with slosh.open(url.replace(host, str(folder)), "shapes", n_jobs=1) as index:
            yield index, proxy
    finally:
        proxy.close()


@pytest.mark.parametrize("lose", ["question", "answer"])
@pytest.mark.parametrize("change", ["add", "update", "remove"])
def test_a_commit_whose_answer_is_lost_is_found_out(url, index, tmp_path, lose, change):
    """The change is made exactly once, whether the server had got the commit or not."""
    versions = ask(url, "SELECT sum(changes) FROM slosh.deltas")
    with cut_off(url, tmp_path) as (behind, proxy):
        proxy.lose = lose
        if change == "add":
            assert behind.add(cloud_list(2), ["x", "y"]) == ["x", "y"]
            assert len(index) == 302
        elif change == "update":
            behind.update("7", metadata={"n": 1}, merge=True)
            assert index.get("7").metadata == {"n": 1}
        else:
            assert behind.remove(["7", "8"]) == ["7", "8"]
            assert len(index) == 298
        assert proxy.lost == 1
    assert ask(url, "SELECT sum(changes) FROM slosh.deltas")[0][0] == versions[0][0] + 1
    assert index.verify().ok


def test_a_commit_whose_answer_is_lost_for_good(url, index, tmp_path, monkeypatch):
    """Nobody can tell: the error says so, names the sets, and what can be done later without harm."""
    monkeypatch.setattr("slosh.engines.postgres.connections.RECONNECT_SECONDS", 0.3)
    monkeypatch.setattr("slosh.engines.postgres.outcome.RECONNECT_SECONDS", 0.3)
    with cut_off(url, tmp_path) as (behind, proxy):
        proxy.lose = "all"
        with pytest.raises(errors.UnknownOutcome) as told:
            behind.add(cloud_list(2), ["x", "y"])
        assert told.value.ids == ("x", "y")
        proxy.lose = None
        assert "x" in behind
        assert behind.add(cloud_list(2), ["x", "y"], update=True) == ["x", "y"]
    assert len(index) == 302
    assert index.verify().ok


@pytest.mark.parametrize("lose", ["question", "answer"])
@pytest.mark.parametrize("change", ["create", "compact", "destroy"])
def test_what_became_of_other_changes_is_found_out(url, index, tmp_path, lose, change):
    """It happened, or nothing was changed: never an error that says the one where the other is true."""
    with cut_off(url, tmp_path) as (behind, proxy):
        address = behind.location.partition("#")[0]
        work = {"create": lambda: make_index(address, name="x").close(), "compact": behind.compact,
                "destroy": behind.destroy}[change]  # fmt: skip
        proxy.lose = lose
        if lose == "question":
            with pytest.raises(errors.ServerLost, match="nothing was changed"):
                work()
            assert ask(url, "SELECT name, generation FROM slosh.indexes") == [("shapes", 1)]
            assert index.verify().ok
        work()  # made once, or made again
        assert proxy.lost == 1
    there = {"create": [("shapes", 1), ("x", 1)], "compact": [("shapes", 2)], "destroy": []}[change]
    assert ask(url, "SELECT name, generation FROM slosh.indexes ORDER BY name") == there
