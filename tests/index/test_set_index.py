"""SetIndex itself: how one is made, let go of, and kept."""

from __future__ import annotations

import gc
import pickle
import signal
import warnings

import pytest

import slosh
from builders import cloud_list, make_index
from slosh import errors
from slosh.engines.sqlite.database import Database
from slosh.index import changes


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
    with pytest.raises(TypeError, match=r"save it with copy_to\(folder\), and call .* in the other process"):
        pickle.dumps(make_index())
    with make_index(tmp_path / "shapes.slosh") as index, pytest.raises(TypeError, match=r"slosh\.open\('.*shapes"):
        pickle.dumps(index)


@pytest.mark.parametrize("path", ["a.slosh", None])
def test_an_interrupt_says_what_is_stored(tmp_path, monkeypatch, path):
    """Whether it comes in the commit, or in the training after it."""
    index = make_index(None if path is None else tmp_path / path)
    index.add(cloud_list(1), ids=["0"])

    def said(told):
        return " ".join([str(told.value), *getattr(told.value, "__notes__", [])])

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(changes, "train", interrupt)
    with pytest.raises(KeyboardInterrupt) as told:
        index.add(cloud_list(2), ids=["a", "b"])
    assert "2 sets were stored before it" in said(told)
    with pytest.raises(KeyboardInterrupt) as told:
        index.add(iter(cloud_list(2)), ids=["c", "d"])
    assert "sets were stored before it" in said(told)
    assert len(index) == 5
    monkeypatch.undo()
    if path is not None:
        commit = Database.commit

        def commit_and_interrupt(database):
            commit(database)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Database, "commit", commit_and_interrupt)
        with pytest.raises(KeyboardInterrupt) as told:
            index.add(cloud_list(1), ids=["e"])
        assert "1 set was stored before it" in said(told)
        monkeypatch.undo()
        assert "e" in index
        assert index.verify().ok
    index.close()


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


def test_a_backup_is_logged_by_its_name(tmp_path, caplog):
    index = make_index()
    index.add(cloud_list(3))
    caplog.set_level("INFO", logger="slosh")
    index.backup(tmp_path / "b.slosh")
    assert f"index in memory: backed up 3 sets to {tmp_path / 'b.slosh'}" in [
        record.getMessage() for record in caplog.records
    ]
