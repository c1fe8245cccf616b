"""What clients of PostgreSQL share with others: connections, locks, deadlines, and settings of other people."""

from __future__ import annotations

import errno
import logging
import random
import stat
import threading
from contextlib import ExitStack

import numpy as np
import pytest

import slosh
from builders import PATIENCE, cloud_list, make_index, together
from postgres_server import ask, new_database, shared_server, wait_until
from slosh import errors
from slosh.engines.addresses import without_password
from slosh.engines.spec import IndexSpec

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def url():
    return new_database()


@pytest.fixture
def index(url):
    with make_index(f"{url}#shapes") as made:
        yield made


def options(url, **settings):
    """Return a URL whose connections have these settings."""
    return url + "&options=" + "%20".join(f"-c%20{name}%3D{value}" for name, value in settings.items())


# -- connections -------------------------------------------------------------------------------------------------------


def test_texts_are_what_they_are_whatever_encoding_the_address_asks_for(url, index, monkeypatch):
    index.add(cloud_list(1), ["x"])
    monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    for i, address in enumerate((f"{url}&client_encoding=latin1", url)):
        with slosh.open(address, "shapes", n_jobs=1) as other:
            other.add(cloud_list(1), [f"é{i}"], [{"k": f"ü{i}"}])
    assert index.ids == ["x", "é0", "é1"]
    assert index.select({"k": "ü0"}) == ["é0"]
    assert index.verify().ok


def test_names_and_deadlines_of_connections_are_those_of_the_environment(url, index, monkeypatch):
    names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
    assert ("slosh",) in ask(url, names)
    monkeypatch.setenv("PGAPPNAME", "by-the-environment")
    with slosh.open(url, "shapes", n_jobs=1):
        assert ("by-the-environment",) in ask(url, names)
    monkeypatch.setenv("PGAPPNAME", "x")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    seen, real = [], psycopg.Connection.connect.__func__

    def connect(cls, *a, **given):
        seen.append(given)
        return real(cls, *a, **given)

    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(connect))
    slosh.open(url, "shapes", n_jobs=1).close()
    monkeypatch.delenv("PGCONNECT_TIMEOUT")
    slosh.open(url, "shapes", n_jobs=1).close()
    assert "connect_timeout" not in seen[0]
    assert seen[-1]["connect_timeout"] == "5"


def test_more_threads_than_the_server_has_connections(url):
    """They take turns: what one gives back the next one takes. Whoever gets none is told what to do."""
    database = url.partition("@/")[2].partition("?")[0]
    ask(url, "CREATE EXTENSION vector", "CREATE ROLE few LOGIN CONNECTION LIMIT 5")
    ask(url, f"GRANT ALL ON DATABASE {database} TO few")
    address, all_there = url.replace("slosh@", "few@"), threading.Barrier(16)
    with make_index(f"{address}#a") as index:
        index.add(cloud_list(20))

        def search():
            all_there.wait(PATIENCE)
            for _ in range(10):
                assert len(index.search(cloud_list(1)[0], k=3)) == 3

        together(*[search] * 16)
    wait_until(url, "count(*) = 0 FROM pg_stat_activity WHERE usename = 'few'")
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(psycopg.connect(address))
        with pytest.raises(errors.ServerLost) as told:
            slosh.open(f"{address}#a")
        assert "max_connections" in told.value.remedy
    ask(url, "DROP OWNED BY few", "DROP ROLE few")


def test_only_its_user_can_enter_the_folder_of_a_local_server():
    server = shared_server()
    assert stat.S_IMODE(server.sockets.stat().st_mode) == stat.S_IMODE(server.data.stat().st_mode) == 0o700
    assert server.sockets.stat().st_uid == server.data.stat().st_uid


def test_a_connection_that_is_lost_within_a_search(url, monkeypatch):
    """It is an error of slosh, wherever it happens, and the next search goes on."""
    with make_index(f"{url}#many") as index:
        index.add(list(np.random.default_rng(0).normal(size=(1100, 1, 2))), metadata={"a": 1})
    real = slosh.engines.postgres.search.nearest

    def cut(*arguments):
        ask(url, KILL)
        return real(*arguments)

    for question in ({"recall": 0.9}, {"recall": 1.0}, {"where": {"a": 1}}, {"k": 200}):
        with slosh.open(f"{url}#many", n_jobs=1) as index, monkeypatch.context() as patch:
            patch.setattr("slosh.engines.postgres.search.nearest", cut)
            with pytest.raises(errors.ServerLost):
                index.search(cloud_list(1)[0], **question)
            patch.setattr("slosh.engines.postgres.search.nearest", real)
            assert len(index.search(cloud_list(1)[0], k=3)) == 3


# -- deadlines and locks -----------------------------------------------------------------------------------------------


def test_a_server_that_ends_idle_transactions_lets_a_long_add_be(url, index, monkeypatch):
    """While sets are embedded the connection of a change has nothing to do."""
    done = threading.Event()
    real = IndexSpec.embed

    def slow(*arguments):
        done.wait(0.5)
        return real(*arguments)

    monkeypatch.setattr(IndexSpec, "embed", slow)
    monkeypatch.setattr("slosh.index.changes.TRIES", 1)
    limits = {"idle_in_transaction_session_timeout": "100ms"}
    if ask(url, "SELECT current_setting('transaction_timeout', true)") != [(None,)]:
        limits["transaction_timeout"] = "200ms"
    with slosh.open(options(url, **limits), "shapes", n_jobs=1) as hurried:
        assert hurried.add(cloud_list(1), ["z"]) == ["z"]
    assert index.ids == ["z"]


def test_a_deadline_of_the_address_is_that_of_changes_too(url, index, monkeypatch):
    monkeypatch.setattr("slosh.index.changes.TRIES", 1)
    index.add(cloud_list(2))
    with (
        slosh.open(options(url, statement_timeout="100ms", lock_timeout="60s"), "shapes", n_jobs=1) as hurried,
        psycopg.connect(url) as holding,
    ):
        holding.execute("SELECT FROM slosh.indexes FOR UPDATE")
        for change in (lambda: hurried.add(cloud_list(1)), hurried.compact):
            with pytest.raises(errors.StorageError, match="statement timeout"):
                change()
    index.compact()  # by slosh's own deadline


@pytest.mark.parametrize("lock", ["SELECT FROM slosh.indexes FOR UPDATE", "LOCK TABLE slosh.sets_1_1 IN SHARE MODE"])
def test_one_who_waits_for_long_is_told_what_for(url, index, monkeypatch, lock):
    """It is waited for before anything is embedded."""
    monkeypatch.setattr("slosh.index.changes.TRIES", 1)
    index.add(cloud_list(2))
    embedded = []
    real = IndexSpec.embed
    monkeypatch.setattr(IndexSpec, "embed", lambda *a: embedded.append(1) or real(*a))
    with slosh.open(options(url, lock_timeout="100ms"), "shapes", n_jobs=1) as hurried, psycopg.connect(url) as holding:
        holding.execute(lock)
        with pytest.raises(errors.WriteConflict, match="compact or the build of a graph") as told:
            hurried.add(cloud_list(1), ["z"])
        assert told.value.errno == errno.ETIMEDOUT
        assert "lock_timeout" in told.value.remedy
        assert not embedded


def test_one_who_reads_is_not_told_of_writers(url, index):
    index.add(cloud_list(2))
    with slosh.open(options(url, lock_timeout="100ms"), "shapes", n_jobs=1) as hurried, psycopg.connect(url) as holding:
        holding.execute("LOCK TABLE slosh.sets_1_1 IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(errors.StorageError) as told:
            hurried.search(cloud_list(1)[0])
        assert not isinstance(told.value, errors.WriteConflict)
        assert told.value.errno == errno.ETIMEDOUT


# -- what others have, and do ------------------------------------------------------------------------------------------


def test_the_first_indexes_of_a_database_are_created_at_the_same_time(url):
    ready = threading.Barrier(4)

    def create(i):
        ready.wait(PATIENCE)
        make_index(url, name=f"n{i}").close()

    together(*[lambda i=i: create(i) for i in range(4)])
    assert len(ask(url, "SELECT name FROM slosh.indexes")) == 4


def test_ids_as_long_as_an_index_of_postgresql_takes(index):
    rng = random.Random(0)
    names = ["".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(n)) for n in (1024, 897)]
    with pytest.raises(errors.InputError, match="2,692") as told:
        index.add(cloud_list(2), names)
    assert told.value.id == names[0]
    assert len(index) == 0
    assert index.add(cloud_list(1), names[1:]) == names[1:]
    assert names[1] in index


def test_a_view_of_somebody_on_a_table_of_a_deleted_index(url, index, caplog):
    index.add(cloud_list(3))
    ask(url, "CREATE VIEW public.mine AS SELECT id FROM slosh.sets_1_1")
    with caplog.at_level(logging.WARNING):
        index.destroy()
    assert "view mine depends on" in caplog.text
    with pytest.raises(errors.IndexNotFound):
        slosh.open(url, "shapes")
    with make_index(url, name="other") as other:
        other.add(cloud_list(2))
        assert other.verify().ok
    ask(url, "DROP VIEW public.mine")
    slosh.open(url, "other", n_jobs=1).close()
    assert ask(url, "SELECT to_regclass('slosh.sets_1_1')::text") == [(None,)]


def test_tables_that_somebody_read_are_dropped_later(url, index):
    index.add(cloud_list(30))

    def generations():
        return ask(url, "SELECT relname FROM pg_class WHERE relname ~ '^sets_1_[0-9]+$' ORDER BY relname")

    for later in (lambda: index.add(cloud_list(1), ["x"]), lambda: slosh.open(url, "shapes").close()):
        with slosh.open(url, "shapes", read_only=True, n_jobs=1) as reader:
            records = reader.records(5)
            next(records)
            index.compact()
            assert len(generations()) == 2
            records.close()
        later()
        assert len(generations()) == 1


@pytest.mark.parametrize(
    "parameter",
    ["oauth_client_secret=s3cret", "scram_client_key=s3cret", "pass%77ord=s3cret", "password=a&s3cret", "new=s3cret"],
)
def test_parameters_that_are_not_known_to_be_harmless_are_not_shown(parameter):
    shown = without_password(f"postgresql://u@h/d?{parameter}&port=1&options=-c%20jit%3Doff#x")
    assert shown == "postgresql://u@h/d?port=1&options=-c%20jit%3Doff#x"


def test_queries_that_lack_hits_are_scanned_together(url, monkeypatch):
    """What the filter leaves lies far from them: all sets are read once, and not once for each."""
    monkeypatch.setattr("slosh.engines.postgres.search.SCANNED_ALONE", 100)
    rng = np.random.default_rng(0)
    with make_index(f"{url}#many") as index:
        sets = [rng.normal(size=(1, 2)) + (i % 4 == 3) * 30 for i in range(3000)]
        index.add(sets, metadata=[{"part": i % 4, "half": i % 2} for i in range(3000)])
        real, scans = slosh.engines.postgres.scanning.nearest_exactly, []

        def scan(*arguments):
            scans.append(len(arguments[2]))
            return real(*arguments)

        monkeypatch.setattr("slosh.engines.postgres.scanning.nearest_exactly", scan)
        queries = [rng.normal(size=(1, 2)) for _ in range(30)]
        found = index.search(queries, k=10, recall=0.9, where={"part": 3})
        assert scans == [30]
        assert found.ids == index.search(queries, k=10, recall=1.0, where={"part": 3}).ids


def test_wide_ranges_come_in_blocks(url, index, monkeypatch):
    """All sets are within the radius; they are not held at once."""
    index.add(cloud_list(50))
    monkeypatch.setattr("slosh.engines.postgres.scanning.BLOCK_ROWS", 7)
    real, sizes = slosh.engines.postgres.scanning.compared, []

    def compared(*arguments):
        sizes.append(len(arguments[3]))
        return real(*arguments)

    monkeypatch.setattr("slosh.engines.postgres.scanning.compared", compared)
    found = index.range_search(cloud_list(1)[0], 1e6)
    assert len(found) == 50
    assert (np.diff(found.distances) >= 0).all()
    assert max(sizes) <= 7
