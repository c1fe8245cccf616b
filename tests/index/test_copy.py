"""Copies and backups, as far as they are not the contract of every engine: what is at their place, before and after."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, make_index
from slosh import errors
from slosh.index import changes


def test_a_copy_needs_a_place():
    with pytest.raises(errors.InputError, match="memory") as told:
        make_index().copy_to(None)
    assert told.value.argument == "target"


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    index = make_index()
    index.add(cloud_list(25))
    stored = slosh.index.changes.add

    def fail_at_last(engine, sets, *more):
        if len(sets) < 10:
            raise OSError(28, "No space left on device")
        return stored(engine, sets, *more)

    monkeypatch.setattr("slosh.index.copy.COPY_BATCH_SETS", 10)
    monkeypatch.setattr("slosh.index.changes.add", fail_at_last)
    with pytest.raises(OSError, match="space"):
        index.copy_to(tmp_path / "copy.slosh")
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
    assert index.copy_to(tmp_path / "copy.slosh") == 25


def test_a_copy_keeps_what_was_tuned(tmp_path):
    index = make_index()
    index.add(cloud_list(5))
    index.tune(recall=0.93, k=2)
    index.copy_to(tmp_path / "copy.slosh")
    with slosh.open(tmp_path / "copy.slosh") as copy:
        assert copy.info()["recall"] == 0.93


def test_backup_of_an_index_in_memory(tmp_path):
    index = make_index(weighted=True)
    index.add(cloud_list(6), metadata={"x": [1, "a"]}, weights=[np.arange(1, len(x) + 1) for x in cloud_list(6)])
    assert index.backup(tmp_path / "b.slosh") == 6
    with slosh.open(tmp_path / "b.slosh") as copy:
        assert contents(copy) == contents(index)
        assert copy.search(cloud_list(1)[0]).ids == index.search(cloud_list(1)[0]).ids
    assert [path.name for path in tmp_path.iterdir()] == ["b.slosh"]


def test_a_backup_is_of_one_version_and_whole(tmp_path, monkeypatch):
    """Sets come and go while it is made; after an error there is nothing."""
    real = changes.add

    def add_and_change(*arguments):
        real(*arguments)
        if len(index) == 3:
            index.remove("1")
            index.add(cloud_list(4), ids=list("abcd"))

    with make_index(tmp_path / "a.slosh") as index:
        index.add(cloud_list(3))
        monkeypatch.setattr(changes, "add", add_and_change)
        assert index.backup(tmp_path / "b.slosh") == 3
        monkeypatch.undo()
        assert len(index) == 6
        with slosh.open(tmp_path / "b.slosh") as copy:
            assert copy.ids == ["0", "1", "2"]
            assert copy.verify().ok

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(changes, "add", fail)
        with pytest.raises(OSError, match="space"):
            index.backup(tmp_path / "c.slosh")
        monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.slosh", "b.slosh"]


def test_a_backup_replaces_nothing(tmp_path):
    with make_index(tmp_path / "a.slosh") as index:
        index.add(cloud_list(2))
        (tmp_path / "photos").mkdir()
        for place in (tmp_path / "photos", tmp_path / "a.slosh"):
            with pytest.raises(errors.IndexExists, match="new folder"):
                index.backup(place)
        for bad in (None, 3, "sqlite://b.slosh"):
            with pytest.raises(errors.InputError, match="folder"):
                index.backup(bad)
        assert len(index) == 2
