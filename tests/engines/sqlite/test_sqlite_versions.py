"""Versions of an index in a folder: what readers load, and what a change leaves behind that was given up."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

import slosh
from builders import clouds
from slosh.embed import SlicedWasserstein
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


def test_version_2_learns_that_empty_lists_exist(tmp_path):
    """It had no lines for them, else it was as it is now."""
    path = tmp_path / "a.slosh"
    metadata = [{"tags": []}, {"tags": ["a"]}, {"tags": None}, {"deep": {"er": [None]}}, {"n": 1}]
    with slosh.SetIndex.create(path, 2, embedding=small(), n_jobs=1) as index:
        index.add(clouds(5), metadata=metadata)
    with contextlib.closing(sqlite3.connect(path / "index.db")) as connection, connection:
        assert connection.execute("DELETE FROM fields WHERE typeof(value) = 'blob'").rowcount == 2
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(slosh.errors.FormatError, match=r"format version 2.*open it for writing once"):
        slosh.open(path, read_only=True)
    for read_only in (False, True):
        with slosh.open(path, read_only=read_only, n_jobs=1) as index:
            assert index.select("tags exists") == ["0", "1"]
            assert index.select("deep exists") == ["3"]
            assert index.info()["embedded_on_open"] == 0
            assert index.verify().ok
