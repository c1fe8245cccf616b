"""An index in memory: versions that readers keep, writes that are given up, and an end with its process."""

from __future__ import annotations

import os

import numpy as np
import pytest

from builders import cloud_list, contents, make_index, small_embedding
from slosh import Sets, errors
from slosh.engines.base import Entries
from slosh.engines.memory import MemoryEngine
from slosh.engines.spec import make_spec
from slosh.where import checked_metadata


@pytest.fixture
def engine():
    return MemoryEngine.create(None, make_spec(2, small_embedding()), weighted=False, n_jobs=1)


def upsert(write, ids, seed=0, **about):
    sets = Sets.from_list(cloud_list(len(ids), seed=seed))
    entries = Entries(sets, list(ids), [checked_metadata(about, "metadata") for _ in ids])
    write.upsert(entries, write.view.spec.embed(sets))


def test_a_view_keeps_its_version(engine):
    with engine.write() as write:
        upsert(write, "abc", x=1)
    with engine.view() as before:
        with engine.write() as write:
            upsert(write, "bd", seed=1, x=2)
            write.delete(write.view.keys(["c"]))
        with engine.view() as now:
            assert now.version == before.version + 1
            assert now.ids(now.select()) == ["a", "b", "d"]
        engine.compact()
        assert before.ids(before.select()) == ["a", "b", "c"]
        assert before.keys(["b", "d"]).tolist() == [1, -1]
        assert [each["x"] for each in before.records(before.select()).metadata] == [1, 1, 1]


def test_a_write_that_is_given_up_leaves_nothing(engine):
    """Its rows are used by the next one."""
    with engine.write() as write:
        upsert(write, "ab", x=1)

    def give_up():
        with engine.write() as write:
            upsert(write, "bcd", seed=1, x=2)
            write.set_metadata(write.view.keys(["a"]), [checked_metadata({"x": 3}, "metadata")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        give_up()
    with engine.write() as write:
        upsert(write, "ec", seed=2, x=4)
    with engine.view() as view:
        assert view.ids(view.select()) == ["a", "b", "e", "c"]
        assert view.keys(list("abcde")).tolist() == [0, 1, 3, -1, 2]
        found = view.records(view.select())
        assert [each["x"] for each in found.metadata] == [1, 1, 4, 4]
        np.testing.assert_array_equal(found.sets[3], cloud_list(2, seed=2)[1])
        assert view.holds(view.select(), view.spec.embed(found.sets)).all()


def test_ids_are_counted_on(engine):
    with engine.write() as write:
        assert write.free_ids(2) == ["0", "1"]
        upsert(write, "01")
    with engine.write() as write:
        upsert(write, "3")
    with engine.write() as write:
        names = write.free_ids(2)
        assert not set(names) & {"0", "1", "3"}


def test_closed_and_forked(monkeypatch):
    index = make_index()
    index.add(cloud_list(3))
    before = contents(index)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        for call in (lambda: len(index), lambda: index.add(cloud_list(1)), index.compact):
            with pytest.raises(errors.IndexClosed, match="forked"):
                call()
    assert contents(index) == before
    index.close()
    with pytest.raises(errors.IndexClosed, match="gone"):
        len(index)
