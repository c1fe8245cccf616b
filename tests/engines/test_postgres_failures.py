"""Failures of an index in PostgreSQL, with real processes: killed servers and clients, full disks, standbys."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import slosh
from builders import PATIENCE, cloud_list, contents, make_index
from postgres_server import ask, wait_until
from slosh import errors
from slosh.checkpoints import held, watched
from slosh.engines.postgres.connections import Pool, Session
from slosh.engines.postgres.local_server import LocalServer
from slosh.engines.postgres.outcome import happened

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

TESTS = Path(__file__).parents[1]
CLIENT = """
    import itertools, sys
    import numpy as np
    import slosh
    index = slosh.open(sys.argv[1], n_jobs=1)
    rng = np.random.default_rng(0)
    for batch in itertools.count():
        sets = [rng.normal(size=(30, 2)) for _ in range(200)]
        index.add(sets, [f"{sys.argv[2]}-{batch}-{i}" for i in range(200)], {"batch": batch})
        print(batch, flush=True)
"""


@pytest.fixture
def server():
    """A server of its own, which loses nothing in a crash."""
    try:
        made = LocalServer(settings={"shared_buffers": "64MB", "max_connections": "40"})
    except errors.MissingExtra as error:
        pytest.skip(str(error))
    try:
        yield made.start()
    finally:
        made.remove()


def start_client(address, name="c"):
    """Start a process that adds batches of 200 for ever, and prints the number of each when it is stored."""
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), address, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS)


@contextmanager
def in_the_midst_of_an_add(url):
    """Hold up whoever adds sets: its points are copied, and the COPY of its vectors is under way."""
    with psycopg.connect(url) as holding:
        holding.execute("LOCK TABLE slosh.exact_1_1 IN SHARE MODE")
        copies = "FROM pg_stat_activity WHERE query LIKE 'COPY slosh.exact%'"
        wait_until(url, f"count(*) = 1 {copies} AND wait_event = 'relation'")
        yield


def check_whole(index, stored=()):
    """Check that every batch is there as a whole, and those that were said to be stored are there at all."""
    counts = {}
    for name in index.ids:
        batch = name.rpartition("-")[0]
        counts[batch] = counts.get(batch, 0) + 1
    assert set(counts.values()) <= {200}
    assert set(stored) <= set(counts)
    report = index.verify()
    assert report.ok, str(report)


def test_a_client_that_is_killed_in_the_midst_of_an_add(server):
    address = f"{server.url}#a"
    with make_index(address) as index:
        index.add(cloud_list(1), ["x"])
        index.remove("x")
        for i in range(2):
            client = start_client(address, f"c{i}")
            stored = [f"c{i}-{client.stdout.readline().strip()}" for _ in range(2)]
            with in_the_midst_of_an_add(server.url):
                client.kill()
                client.communicate()
            check_whole(index, stored)
        index.add(cloud_list(3), ["a", "b", "c"])
        index.remove(["a", "b", "c"])


def test_a_server_that_is_killed_in_the_midst_of_an_add(server):
    """kill -9 of all of it: what was said to be stored is there after a restart, and readers go on."""
    address = f"{server.url}#a"
    index = make_index(address)
    client = start_client(address)
    stored = [f"c-{client.stdout.readline().strip()}" for _ in range(2)]
    with suppress(psycopg.OperationalError), in_the_midst_of_an_add(server.url):
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
    for left in server.data.glob("postmaster.pid"):
        left.unlink()
    server.start()
    stored.append(f"c-{client.stdout.readline().strip()}")  # the client waits, and goes on
    client.kill()
    client.communicate()
    check_whole(index, stored)
    index.close()


def test_a_server_that_is_stopped_and_started_while_clients_go_on(server):
    """Searches and adds wait for it, or fail with one clear error; nothing is lost or doubled."""
    address = f"{server.url}#a"
    index = make_index(address)
    index.add(cloud_list(50), [f"s{i}" for i in range(50)])
    stop, wrong, done = threading.Event(), [], {"searches": 0, "adds": 0}

    def search():
        with slosh.open(address, read_only=True, n_jobs=1) as reader:
            while not stop.is_set():
                try:
                    if len(reader.search(cloud_list(1)[0], k=5)) != 5:
                        wrong.append("hits")
                    done["searches"] += 1
                except errors.ServerLost:
                    continue
                except BaseException as error:
                    wrong.append(error)
                    return

    def add():
        with slosh.open(address, n_jobs=1) as writer:
            while not stop.is_set():
                name = f"n{done['adds']}"
                try:
                    writer.add(cloud_list(1), [name])
                except (errors.ServerLost, errors.UnknownOutcome):
                    if name not in writer:
                        continue
                except BaseException as error:
                    wrong.append(error)
                    return
                done["adds"] += 1

    threads = [threading.Thread(target=work) for work in (search, search, add)]
    for thread in threads:
        thread.start()

    def wait_for_more():
        before, end = dict(done), time.monotonic() + PATIENCE
        while any(done[name] < before[name] + 3 for name in done) and time.monotonic() < end and not wrong:
            time.sleep(0.01)

    try:
        for how in ("fast", "immediate"):
            wait_for_more()
            server.stop(how)
            server.start()
        wait_for_more()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not wrong
    assert len(index) == 50 + done["adds"] == len(set(index.ids))
    assert index.verify().ok
    index.close()


def test_a_server_that_is_away(server, monkeypatch):
    """After a while there is one clear error, and the index works when it is back."""
    index = make_index(f"{server.url}#a")
    index.add(cloud_list(5))
    before = contents(index)
    server.stop()
    monkeypatch.setattr("slosh.engines.postgres.connections.RECONNECT_SECONDS", 0.3)
    monkeypatch.setattr("slosh.index.changes.TRIES", 2)
    for call in (lambda: index.search(cloud_list(1)[0]), lambda: index.add(cloud_list(1)), index.compact):
        with pytest.raises(errors.ServerLost):
            call()
    server.start()
    assert contents(index) == before
    index.add(cloud_list(1))
    assert index.verify().ok
    index.close()


def test_a_full_disk(server, tmp_path):
    """An add for which there is no room is an error, and leaves nothing; the index can be read meanwhile."""
    room = server.folder / "small"
    server.own(room)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(room)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode()!r:.100}")
    try:
        server.own(room)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{room}'")
            connection.execute("CREATE DATABASE little TABLESPACE small")
        index = make_index(f"{server.url.replace('/postgres?', '/little?')}#a")
        index.add(cloud_list(50))
        before, rng = contents(index), np.random.default_rng(0)
        large = [rng.normal(size=(4000, 2)) for _ in range(700)]
        with pytest.raises(errors.StorageError) as told:
            index.add(large, [f"large{i}" for i in range(len(large))])
        assert told.value.errno == errno.ENOSPC
        assert contents(index) == before
        assert index.verify().ok
        subprocess.run(["mount", "-o", "remount,size=200m", str(room)], check=True)
        index.add(large, [f"large{i}" for i in range(len(large))])  # there is room now
        assert len(index) == 750
        assert index.verify(sample=20).ok
        index.close()
    finally:
        server.stop("immediate")
        subprocess.run(["umount", "-l", str(room)], check=True)


def check_conflicts_of_one_who_reads(index, standby, reader):
    """The primary drops tables that are read: the standby stops those who read, who are told so, and go on."""
    records = reader.records(10)
    next(records)
    index.compact()
    stopped = "count(*) = 0 FROM pg_stat_activity WHERE state = 'idle in transaction' AND pid <> pg_backend_pid()"
    wait_until(standby.url, stopped)
    with pytest.raises(errors.ServerLost, match="conflict with recovery") as told:
        list(records)
    assert "hot_standby_feedback" in told.value.remedy
    assert len(reader.search(cloud_list(1)[0], k=3)) == 3


def check_one_that_is_cut_off(standby, reader):
    """It has all that it was sent, and yet is behind."""
    ((source,),) = ask(standby.url, "SHOW primary_conninfo")
    ask(standby.url, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
    wait_until(standby.url, "count(*) = 0 FROM pg_stat_wal_receiver")
    assert reader.info()["lag_seconds"] > 0
    quoted = source.replace("'", "''")
    ask(standby.url, f"ALTER SYSTEM SET primary_conninfo = '{quoted}'", "SELECT pg_reload_conf()")
    wait_until(standby.url, "count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'")


def test_a_standby_is_read_and_promoted(server, monkeypatch):
    """It answers, says how far behind it is, takes no changes, and takes them once it is promoted.

    Clients whose address names both servers go on by themselves.
    """
    address = f"{server.url}#a"
    index = make_index(address)
    index.add(cloud_list(60), metadata={"x": 1})
    settings = {"shared_buffers": "64MB", "hot_standby": "on", "max_connections": "40"}
    settings |= {"max_standby_streaming_delay": "50ms", "wal_retrieve_retry_interval": "100ms"}
    standby = LocalServer(settings=settings)
    try:
        standby.folder.chmod(0o755)
        standby.own(standby.data)
        source = ["-h", str(server.sockets), "-U", "slosh", "-D", str(standby.data)]
        standby.run("pg_basebackup", *source, "-R", "-X", "stream", "-c", "fast")
        standby.start()
        reader = slosh.open(f"{standby.url}#a", read_only=True, n_jobs=1)
        index.add(cloud_list(5, seed=2), list("abcde"))
        end = time.monotonic() + PATIENCE
        while len(reader) < 65 and time.monotonic() < end:
            time.sleep(0.02)
        assert contents(reader) == contents(index)
        query = cloud_list(1, seed=9)[0]
        assert reader.search(query, k=9, certify=True).ids == index.search(query, k=9, certify=True).ids
        about = reader.info()
        assert about["standby"]
        assert about["lag_seconds"] >= 0
        check_conflicts_of_one_who_reads(index, standby, reader)
        check_one_that_is_cut_off(standby, reader)
        token = "0" * 32  # of a commit that it has not heard of, and may hear of later
        monkeypatch.setattr("slosh.engines.postgres.outcome.RECONNECT_SECONDS", 0.2)
        assert happened(Pool(standby.url, "standby"), "standby", token, "3") is None
        both = f"postgresql://slosh@/postgres?host={server.sockets},{standby.sockets}&target_session_attrs=read-write"
        with slosh.open(f"{standby.url}#a", n_jobs=1) as writer, slosh.open(f"{both}#a", n_jobs=1) as following:
            following.remove("0")
            with pytest.raises(errors.ReadOnlyIndex):
                writer.add(cloud_list(1))
            index.close()
            server.stop("immediate")
            standby.run("pg_ctl", "promote", "-D", str(standby.data), "-w")
            assert writer.add(cloud_list(1), ["after"]) == ["after"]
            assert following.add(cloud_list(1), ["followed"]) == ["followed"]
            assert following.search(id="after", k=1).ids
        assert len(reader) == 66
        assert "0" not in reader
        assert "standby" not in reader.info()
        assert reader.verify().ok
        reader.close()
    finally:
        standby.remove()


@pytest.mark.long
def test_partitions_on_other_servers(monkeypatch):
    """The script of docs/postgres.md: the graph of each shard is walked there, and the nearest of all are merged."""
    monkeypatch.syspath_prepend(str(TESTS.parent / "benchmarks"))
    import postgres_shards

    measured = postgres_shards.run(600, 2, 20)
    assert measured["plan"].count("ORDER BY (vector OPERATOR") == 2
    assert measured["shards"]["recall"] > 0.9


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_process_that_started_it(number):
    """Whatever ends it, also if the server runs as another user; and nothing of it is left."""
    code = """
        import sys, time
        from slosh.engines.postgres.local_server import NOT_DURABLE, LocalServer
        server = LocalServer(settings=NOT_DURABLE).start()
        print(server.process.pid, server.folder, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    started, _, folder = owner.stdout.readline().strip().partition(" ")
    assert is_running(int(started))
    owner.send_signal(number)
    owner.communicate()
    end = time.monotonic() + PATIENCE
    while (is_running(int(started)) or os.path.exists(folder)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(int(started))
    assert not os.path.exists(folder)


def is_running(process):
    """Whether a process is there; one that has ended and that nobody has asked for is not."""
    try:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    except FileNotFoundError:
        state = (
            Path(f"/proc/{process}/stat").read_text().rpartition(")")[2] if os.path.exists(f"/proc/{process}") else ""
        )
    return bool(state.strip()) and not state.strip().startswith("Z")


def test_nobody_waits_again_for_a_server_that_is_known_to_be_away(server, monkeypatch):
    """The first request waits for it; those after it ask once each, and the first that reaches it finds it."""
    index, asked = make_index(f"{server.url}#a"), []
    index.add(cloud_list(5))

    def connect(url):
        asked.append(url)
        return Session(url)

    monkeypatch.setattr("slosh.engines.postgres.connections.Session", connect)
    monkeypatch.setattr("slosh.engines.postgres.connections.RECONNECT_SECONDS", 0.3)
    server.stop()
    for is_first in (True, False, False):
        asked.clear()
        with pytest.raises(errors.StorageError, match="see whether the server runs"):
            index.search(cloud_list(1)[0])
        assert (len(asked) > 1) == is_first
    server.start()
    assert len(index.search(cloud_list(1)[0], k=5)) == 5
    index.close()


def test_a_statement_is_cancelled_at_a_checkpoint(server):
    """And the connection can be used again."""
    session, calls = Session(server.url), []

    def enough(*step):
        calls.append(step)
        raise TimeoutError

    with watched(enough), pytest.raises(TimeoutError):
        session.execute("SELECT pg_sleep(3600)")
    assert len(calls) == 1
    assert session.idle
    with watched(enough), held():
        assert session.execute("SELECT 1 FROM pg_sleep(0.5)").fetchone() == (1,)
    assert len(calls) > 1
    session.close()
