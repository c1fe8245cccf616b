"""Versions of an index in a folder: what readers load, and what a change leaves behind that was given up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import slosh
from builders import clouds, make_index, plain_answer, together
from slosh.embed import SlicedWasserstein
from slosh.engines.sqlite.database import Connection, Database
from slosh.engines.sqlite.schema import FORMAT_VERSION

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def small():
    return SlicedWasserstein(4, 4, n_jobs=1)


def test_there_are_golden_indexes_of_the_present_format():
    assert any((GOLDEN / f"index-v{FORMAT_VERSION}").glob("*.slosh"))


def test_a_first_add_with_weights_that_failed_leaves_the_caches_whole(tmp_path, monkeypatch):
    """It fails while sets are embedded: by then an array for weights has been made."""
    path = tmp_path / "a.slosh"

    def fail(*given, **options):
        raise MemoryError

    with slosh.SetIndex.create(path, 2, embedding=small(), n_jobs=1) as index:
        with monkeypatch.context() as patch:
            patch.setattr(SlicedWasserstein, "index_vectors", fail)
            with pytest.raises(MemoryError):
                index.add(clouds(5, weighted=True))
        index.add(clouds(20))
    with slosh.open(path, read_only=True, n_jobs=1) as reader:
        assert reader.info()["cache_rebuilt"] is None
        assert reader.info()["embedded_on_open"] == 0


def test_a_reader_takes_a_compacted_index_from_the_caches(tmp_path):
    path, sets = tmp_path / "a.slosh", clouds(1500, largest=6)
    with slosh.SetIndex.create(path, 2, embedding=small(), n_jobs=1) as index:
        index.add(sets)
        with slosh.open(path, read_only=True, n_jobs=1) as reader:
            query = sets[7]
            before = reader.search(query, k=5, recall=1.0)
            index.remove([str(i) for i in range(1000, 1500)])
            index.compact()
            after = reader.search(query, k=5, recall=1.0)
            assert after.ids == index.search(query, k=5, recall=1.0).ids
            assert before.ids[0] == after.ids[0] == "7"
            assert reader.info()["embedded_on_open"] == 0
            assert reader.info()["compacted"] == 1


CHANGES = {
    "add": lambda index: index.add(clouds(3000, seed=1, largest=4), [f"new{i}" for i in range(3000)]),
    "remove": lambda index: index.remove("0"),
    "compact": lambda index: index.compact(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whoever_sees_a_commit_finds_everything_that_belongs_to_it(tmp_path, monkeypatch, name):
    """At the very moment of the commit: threads find the snapshot, other readers the caches, and nobody waits."""
    path, seen = tmp_path / "a.slosh", []
    index = make_index(path)
    index.add(clouds(20))
    reader = slosh.open(path, read_only=True, n_jobs=1)
    query = clouds(1)[0]
    assert len(reader) == 20
    real = Database.commit

    def commit(database):
        real(database)
        together(lambda: seen.append((index.ids, index.search(query, k=1).ids)))
        together(lambda: seen.append((reader.ids, reader.search(query, k=1).ids)))
        seen.append(reader.info()["embedded_on_open"])

    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", commit)
        CHANGES[name](index)
    assert seen
    for i in range(0, len(seen), 3):
        assert seen[i] == seen[i + 1]
        assert len(seen[i][0]) == {"add": 3020, "remove": 19, "compact": 20}[name]
        assert seen[i + 2] == 0
    reader.close()
    index.close()


def test_no_transaction_is_open_while_sets_are_embedded(tmp_path, monkeypatch):
    """Another program may write to the database meanwhile, at once."""
    path, free = tmp_path / "a.slosh", []
    real = SlicedWasserstein.index_vectors

    def index_vectors(embedding, sets, **options):
        with closing(sqlite3.connect(path / "index.db", timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            free.append(len(sets))
        return real(embedding, sets, **options)

    with make_index(path) as index:
        with monkeypatch.context() as patch:
            patch.setattr(SlicedWasserstein, "index_vectors", index_vectors)
            index.add(clouds(50))
            index.update([str(i) for i in range(30)], clouds(30, seed=1))
        assert sum(free) == 80
        assert index.verify().ok


def test_a_version_of_another_program_is_refused(tmp_path):
    """The writer has loaded all that it has committed; it does not wait for what it never will."""
    path = tmp_path / "a.slosh"
    with make_index(path) as index:
        index.add(clouds(5))
        with closing(sqlite3.connect(path / "index.db", isolation_level=None)) as connection:
            connection.execute("UPDATE settings SET value = value + 10 WHERE key = 'version'")
        with pytest.raises(slosh.errors.StorageError, match="another program"):
            len(index)


@pytest.mark.parametrize("stored", ["value + 0.0", "'text'", "-1", "NULL"])
def test_a_version_that_is_not_a_number_is_damage(tmp_path, stored):
    """Also one that is equal to a number that is known, and is no whole number."""
    path = tmp_path / "a.slosh"
    with make_index(path) as index, slosh.open(path, read_only=True, n_jobs=1) as reader:
        index.add(clouds(5))
        assert len(reader) == 5
        with closing(sqlite3.connect(path / "index.db", isolation_level=None)) as connection:
            connection.execute(f"UPDATE settings SET value = {stored} WHERE key = 'version'")
        for each in (index, reader):
            with pytest.raises(slosh.errors.DamagedError, match="its setting version is"):
                len(each)


def test_a_search_leaves_no_transaction_open(tmp_path):
    """Neither one that was answered nor one that was refused, whoever still holds the error."""
    path = tmp_path / "a.slosh"
    with make_index(path) as index, closing(sqlite3.connect(path / "index.db", timeout=0)) as connection:
        index.add(clouds(5))
        assert len(index.search(clouds(1)[0], k=3)) == 3
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        index.add(clouds(5, seed=1))
        with pytest.raises(slosh.errors.InputError) as kept:
            index.search(clouds(1)[0], k=0)
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        assert kept.value.argument == "k"


def test_what_is_seen_after_an_error_in_the_midst_of_reading(tmp_path):
    """Its traceback holds a cursor that was not read to its end, and so a version: nobody else is to see that one."""
    path = tmp_path / "a.slosh"
    with make_index(path) as index, closing(sqlite3.connect(path / "index.db")) as connection:
        index.add(clouds(5))
        numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT 10000)"
        connection.execute(f"{numbers} INSERT INTO fields SELECT 'year', n, 'no row ' || n FROM numbers")
        connection.commit()
        overlapping = [{"year": {">": n}, "shop": n} for n in range(20)]  # so many that all years are read in turns
        with pytest.raises(slosh.errors.DamagedError) as kept:
            index.search(clouds(1)[0], where={"or": overlapping})
        index.add(clouds(5, seed=1))
        assert len(index.search(clouds(1)[0], k=20)) == len(index) == 10
        assert "are no rows" in kept.value.problem


@pytest.mark.parametrize("remembered", [0, 7, 1000])
def test_ids_and_metadata_are_right_however_many_are_remembered(tmp_path, monkeypatch, remembered):
    monkeypatch.setattr("slosh.engines.sqlite.view.MAX_DESCRIBED", remembered)
    sets, ids = clouds(40), [f"set {i}" for i in range(40)]
    about = [{"n": i} for i in range(40)]
    with make_index(tmp_path / "a.slosh") as index, make_index() as other:
        for each in (index, other):
            each.add(sets, ids=ids, metadata=about)
        for queries in (sets[3], sets[30:32], sets, sets[5]):  # several find the same sets
            assert plain_answer(index.search(queries, k=4)) == plain_answer(other.search(queries, k=4))
        hits = index.search(sets[9], k=5)
        assert hits.metadata == [{"n": int(name.removeprefix("set "))} for name in hits.ids]


def test_version_2_learns_that_empty_lists_exist(tmp_path):
    """It had no lines for them, else it was as it is now."""
    path = tmp_path / "a.slosh"
    metadata = [{"tags": []}, {"tags": ["a"]}, {"tags": None}, {"deep": {"er": [None]}}, {"n": 1}]
    with slosh.SetIndex.create(path, 2, embedding=small(), n_jobs=1) as index:
        index.add(clouds(5), metadata=metadata)
    with closing(sqlite3.connect(path / "index.db")) as connection, connection:
        assert connection.execute("DELETE FROM fields WHERE typeof(value) = 'blob'").rowcount == 2
        connection.execute("DELETE FROM settings WHERE key = 'metadata_version'")
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(slosh.errors.FormatError, match=r"format version 2.*open it for writing once"):
        slosh.open(path, read_only=True)
    for read_only in (False, True):
        with slosh.open(path, read_only=read_only, n_jobs=1) as index:
            assert index.select("tags exists") == ["0", "1"]
            assert index.select("deep exists") == ["3"]
            assert index.info()["embedded_on_open"] == 0
            assert index.verify().ok
    with closing(sqlite3.connect(path / "index.db")) as connection:
        settings = dict(connection.execute("SELECT key, value FROM settings"))
        assert settings["metadata_version"] == settings["version"]


@pytest.fixture
def asked(monkeypatch):
    """Every statement that is executed, by whichever connection."""
    statements, execute = [], Connection.execute

    def noted(self, *given):
        statements.append(given[0])
        return execute(self, *given)

    monkeypatch.setattr(Connection, "execute", noted)
    return statements


@pytest.fixture
def writer_and_reader(tmp_path):
    with slosh.SetIndex.create(tmp_path / "a.slosh", 2, embedding=small(), n_jobs=1) as index:
        index.add(clouds(300, largest=4), metadata=[{"year": i % 50, "kind": "ab"[i % 2]} for i in range(300)])
        with slosh.open(tmp_path / "a.slosh", read_only=True, n_jobs=1) as reader:
            yield index, reader


FILTERED = ["year >= 5", "kind = a", "kind exists", "not kind = a", "kind = a and year < 40"]
CHANGES_OF_OTHERS = {
    "add": lambda index: index.add(clouds(1), metadata={"year": 7, "kind": "a"}),
    "add many": lambda index: index.add(clouds(200, largest=4), metadata=[{"year": 7, "kind": "a"}] * 200),
    "replace": lambda index: index.update("299", clouds(1)[0]),
    "remove": lambda index: index.remove(["200", "3"]),
    "tune": lambda index: index.tune(recall=0.9),
}


@pytest.mark.parametrize("change", CHANGES_OF_OTHERS)
def test_what_is_known_of_rows_outlives_a_change_of_others(writer_and_reader, asked, change):
    """Neither a writer nor a reader looks again at the metadata of sets that were there and were not changed."""
    index, _ = writer_and_reader
    for each in writer_and_reader:
        for where in FILTERED:
            each.search(clouds(1)[0], k=5, where=where)
        each.search(clouds(1)[0], k=5)
    CHANGES_OF_OTHERS[change](index)
    for each in writer_and_reader:
        asked.clear()
        for where in FILTERED:
            each.select(where, limit=1)
        over_fields = [sql for sql in asked if "FROM fields" in sql or "FROM sets WHERE row NOT IN" in sql]
        assert all("row >= 300" in sql for sql in over_fields)
        assert bool(over_fields) == (change == "add many"), "few rows are read by themselves"
    for each in writer_and_reader:
        found = each.search(clouds(1)[0], k=2)
        asked.clear()
        each.search(clouds(1)[0], k=2)
        assert not any("metadata" in sql for sql in asked)
        assert found.ids == index.search(clouds(1)[0], k=2).ids


@pytest.mark.parametrize("stored", [True, False])
def test_metadata_that_were_changed_are_read_again(writer_and_reader, stored):
    """Also by a reader, which learns from the database that they were; one that does not say so may have changed."""
    index, _ = writer_and_reader
    if not stored:
        with closing(sqlite3.connect(index.path / "index.db")) as connection, connection:
            assert connection.execute("DELETE FROM settings WHERE key = 'metadata_version'").rowcount == 1
    query = clouds(1)[0]
    for number in range(3):
        nearest = [each.search(query, k=1)[0].id for each in writer_and_reader]
        assert nearest[0] == nearest[1]
        assert [each.select("year = 77") for each in writer_and_reader] == [nearest[:1] * bool(number)] * 2
        index.update(nearest[0], metadata={"year": 77, "number": number})
        index.add(clouds(1, seed=number + 9))  # the reader sees both changes at once
        for each in writer_and_reader:
            assert each.search(query, k=1)[0].metadata == {"year": 77, "number": number}
            assert each.select("year = 77") == nearest[:1]
            assert each.select(f"number = {number}") == nearest[:1]
