"""SetIndex itself: how one is made, let go of, and kept."""

from __future__ import annotations

import gc
import pickle
import warnings

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, make_index
from slosh import errors


@pytest.mark.parametrize("place", ["x.slosh", None, 3], ids=repr)
def test_the_constructor_says_what_to_call(place):
    with pytest.raises(errors.InputError, match=r"slosh\.open"):
        slosh.SetIndex(place)


def test_a_forgotten_index_is_named(tmp_path):
    def forget():
        make_index(tmp_path / "shapes.slosh").add(cloud_list(2))
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"shapes\.slosh"):
        forget()
    with slosh.open(tmp_path / "shapes.slosh") as again:  # its lock is free
        assert len(again) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del again
        make_index()
        gc.collect()


def test_pickle_says_how_another_process_gets_it(tmp_path):
    with pytest.raises(TypeError, match="copy_to"):
        pickle.dumps(make_index())
    with make_index(tmp_path / "shapes.slosh") as index, pytest.raises(TypeError, match=r"slosh\.open\('.*shapes"):
        pickle.dumps(index)


def test_backup_of_an_index_in_memory(tmp_path):
    index = make_index(weighted=True)
    index.add(cloud_list(6), metadata={"x": [1, "a"]}, weights=[np.arange(1, len(x) + 1) for x in cloud_list(6)])
    assert index.backup(tmp_path / "b.slosh") == 6
    with slosh.open(tmp_path / "b.slosh") as copy:
        assert contents(copy) == contents(index)
        assert copy.search(cloud_list(1)[0]).ids == index.search(cloud_list(1)[0]).ids
    assert [path.name for path in tmp_path.iterdir()] == ["b.slosh"]


def test_a_backup_is_one_version_and_replaces_another(tmp_path, monkeypatch):
    backup = tmp_path / "b.slosh"
    with make_index(tmp_path / "a.slosh") as index:
        index.add(cloud_list(3))
        index.backup(backup)
        with pytest.raises(errors.IndexExists, match="replace=True"):
            index.backup(backup)
        index.add(cloud_list(2))
        index.backup(backup, replace=True)
        with slosh.open(backup) as copy:
            assert len(copy) == 5
        index.add(cloud_list(1))

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("slosh.index.changes.add", fail)
        with pytest.raises(OSError, match="space"):
            index.backup(backup, replace=True)
        monkeypatch.undo()
        with slosh.open(backup) as copy:  # the one before is untouched
            assert len(copy) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.slosh", "b.slosh"]


def test_a_backup_replaces_only_an_index(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"x")
    with pytest.raises(errors.SloshError):
        make_index().backup(tmp_path / "photos", replace=True)
    assert (tmp_path / "photos" / "me.jpg").read_bytes() == b"x"


def test_what_is_done_is_logged(tmp_path, caplog):
    caplog.set_level("INFO", logger="slosh")
    with make_index(tmp_path / "a.slosh") as index:
        index.add(cloud_list(1100, largest=4), metadata={"x": 1})
        index.update("0", metadata={"x": 2})
        index.remove(where={"x": 2})
        index.compact()
    slosh.open(tmp_path / "a.slosh").close()
    said = [record.getMessage() for record in caplog.records]
    assert all(str(tmp_path / "a.slosh") in line for line in said)
    for what in (
        "added 1100 sets",
        "trained the search",
        "updated 1 sets",
        "removed 1 sets",
        "compacted",
        "opened 1099",
    ):
        assert sum(what in line for line in said) == 1, what
