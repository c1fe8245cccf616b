"""SetIndex itself: how one is made, let go of, and kept."""

from __future__ import annotations

import gc
import pickle
import warnings

import pytest

import slosh
from builders import cloud_list, make_index
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
