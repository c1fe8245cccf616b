"""Databases that earlier versions of slosh have filled are upgraded, with the same sets and the same answers.

Each folder tests/golden/postgres-vN holds a database of the version N of the layout in PostgreSQL: database.sql.gz, and
NAME.json with what each index held and answered when it was made. The script make_postgres_vN.py says how. They are
never made again.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from test_golden import check_answers, check_records, check_tuned

import slosh
from builders import cloud_list, make_index, together
from postgres_server import ask, new_database, wait_until
from slosh.errors import AccessDenied, FormatError, IndexNotFound, StorageError

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
from slosh.engines.postgres.schema import VERSION  # noqa: E402

FOLDER = Path(__file__).parent
OLD = {int(path.name.rpartition("-v")[2]): path for path in FOLDER.glob("postgres-v*")}
WAITING = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
LAYOUT = """
    SELECT c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
        a.attcollation, pg_get_expr(d.adbin, d.adrelid), pg_get_indexdef(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE n.nspname = 'slosh' AND a.attnum > 0 ORDER BY 1, 3"""


@pytest.fixture(params=sorted(OLD))
def old(request):
    """The URL of a database of an older version, and what is known of each of its indexes."""
    url = new_database()
    ask(url, gzip.decompress((OLD[request.param] / "database.sql.gz").read_bytes()).decode())
    told = {path.stem: json.loads(path.read_text()) for path in OLD[request.param].glob("*.json")}
    return url, told


def version_of(url):
    ((found,),) = ask(url, "SELECT value FROM slosh.about WHERE name = 'version'")
    return int(found)


def test_there_is_a_golden_database_of_every_version_so_far():
    assert sorted(OLD) == list(range(1, VERSION))
    assert {path.stem for path in FOLDER.glob("make_postgres_v*.py")} == {f"make_postgres_v{i}" for i in OLD}


def test_an_old_database_is_upgraded_and_is_as_it_was(old):
    url, indexes = old
    for _ in range(2):  # whatever was upgraded stays so
        for name, told in indexes.items():
            with slosh.open(url, name, n_jobs=1) as index:
                check_records(index, told)
                check_answers(index, told)
                if "tuned" in told:
                    assert index.info()["search_info"]["graph"]
                    check_tuned(index, told)
                report = index.verify()
                assert report.ok, str(report)
    assert version_of(url) == VERSION
    with slosh.open(url, "weighted", n_jobs=1) as index:  # and it can be changed in every way
        n = len(index)
        index.add(cloud_list(20), [f"new{i}" for i in range(20)], weights=[[1.0] * len(c) for c in cloud_list(20)])
        index.remove("new3")
        index.compact()
        assert len(index) == n + 19
        assert index.verify().ok


def test_an_upgraded_database_has_the_layout_of_a_new_one(old):
    url, indexes = old
    for name in indexes:
        slosh.open(url, name).close()
    other = new_database()
    make_index(other, name="x").close()
    shared = {"about", "indexes", "learnt", "deltas", "commits", "dropped"}

    def layout(at):
        lines = ask(at, LAYOUT)
        return [line for line in lines if line[0].partition("_")[0] in shared or line[0] in shared]

    assert layout(url) == layout(other)
    assert len(layout(other)) > 30


def test_a_reader_does_not_upgrade_and_says_who_does(old):
    url, indexes = old
    before = version_of(url)
    for name in indexes:
        with pytest.raises(FormatError, match="without read_only") as told:
            slosh.open(url, name, read_only=True)
        assert (told.value.found, told.value.supported) == (before, VERSION)
    with pytest.raises(IndexNotFound):
        slosh.open(url, "missing")
    assert version_of(url) == before
    slosh.open(url, next(iter(indexes))).close()
    for name, told in indexes.items():  # one writer has upgraded all of them
        with slosh.open(url, name, read_only=True) as index:
            check_records(index, told)


def test_another_index_of_an_old_database_is_an_upgrade_too(old):
    url, indexes = old
    with make_index(url, name="another") as index:
        index.add(cloud_list(3))
        assert index.verify().ok
    assert version_of(url) == VERSION
    with slosh.open(url, "weighted", read_only=True) as index:
        check_records(index, indexes["weighted"])


def test_two_clients_that_upgrade_at_once(old):
    """Both have seen the old version before one of them begins: one waits for the other, and does nothing."""
    url, indexes = old
    opened = []
    with psycopg.connect(url) as holding:
        holding.execute("SELECT FROM slosh.about FOR UPDATE")

        def release():
            wait_until(url, f"count(*) = 3 {WAITING}")
            holding.rollback()

        together(release, *[lambda: opened.append(slosh.open(url, "weighted", n_jobs=1))] * 3)
    assert version_of(url) == VERSION
    for index in opened:
        check_records(index, indexes["weighted"])
        index.close()
    assert len(opened) == 3


def test_an_upgrade_that_fails_changes_nothing(old):
    """A role without rights, and a writer that holds the tables for too long: a clear error, and the old version."""
    url, indexes = old
    before, tables = version_of(url), ask(url, LAYOUT)
    ask(url, "DROP ROLE IF EXISTS visitor; CREATE ROLE visitor LOGIN; GRANT USAGE ON SCHEMA slosh TO visitor;"
             " GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA slosh TO visitor")  # fmt: skip
    with pytest.raises(AccessDenied, match="owner"):
        slosh.open(url.replace("slosh@", "visitor@"), "weighted")
    with psycopg.connect(url) as holding:
        holding.execute("SELECT FROM slosh.indexes FOR SHARE")
        with pytest.raises(StorageError, match="while others change"):
            slosh.open(f"{url}&options=-c%20lock_timeout%3D50ms", "weighted")
    with psycopg.connect(url) as cancelling:
        cancelling.execute("LOCK TABLE slosh.commits IN ACCESS EXCLUSIVE MODE")  # what the step needs last

        def kill():
            wait_until(url, f"bool_or(pg_terminate_backend(pid)) {WAITING}")

        def attempt():
            with pytest.raises(StorageError):
                slosh.open(url, "weighted")

        together(kill, attempt)
    assert version_of(url) == before
    assert ask(url, LAYOUT) == tables
    ask(url, "DROP OWNED BY visitor; DROP ROLE visitor")
    with slosh.open(url, "weighted") as index:
        check_records(index, indexes["weighted"])
        assert index.verify().ok


def test_clients_that_have_an_index_open_notice_an_upgrade(old):
    """A newer slosh upgrades while this one has the index open: every use of it says so."""
    url, _ = old
    with slosh.open(url, "weighted", n_jobs=1) as index:
        ask(url, f"UPDATE slosh.about SET value = '{VERSION + 1}'; UPDATE slosh.indexes SET format = {VERSION + 1}")
        for use in (
            lambda: index.search(cloud_list(1)[0]),
            lambda: index.add(cloud_list(1)),
            lambda: index.remove("s01"),
            index.compact,
            lambda: slosh.open(url, "weighted"),
            lambda: slosh.open(url, "weighted", read_only=True),
            lambda: make_index(url, name="more"),
        ):
            with pytest.raises(FormatError, match="newer slosh") as told:
                use()
            assert told.value.found == VERSION + 1
