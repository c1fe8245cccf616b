"""Where an index in a folder may be made and opened, and how it is called."""

from __future__ import annotations

import os

import pytest

import slosh
from builders import cloud_list, make_index
from slosh import errors


def test_names_that_are_taken_or_wrong(tmp_path):
    make_index(tmp_path / "i").close()
    with pytest.raises(FileExistsError, match=r"slosh\.open") as told:
        make_index(tmp_path / "i")
    assert isinstance(told.value, errors.IndexExists)
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.IndexExists):
        make_index(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="folder") as told:
        make_index(tmp_path / "no" / "such")
    assert isinstance(told.value, errors.FolderNotFound)
    assert told.value.location == str(tmp_path / "no")
    with pytest.raises(FileNotFoundError, match="create"):
        slosh.open(tmp_path / "nothing")
    with pytest.raises(errors.FormatError, match="not an index"):
        slosh.open(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.FormatError, match="not an index"):
        slosh.open(tmp_path / "folder")
    make_index(tmp_path / "folder").close()  # an empty folder is as good as none
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(errors.IndexExists):
        make_index(tmp_path / "full")
    assert (tmp_path / "file").read_text() == "x"
    assert os.listdir(tmp_path / "full") == ["notes"]


@pytest.mark.parametrize("name", ["with space", "q?mode=memory", "50%25#x", "ü日", "a'b\"c", "-x", "a.b.slosh"])
def test_odd_names_of_folders(tmp_path, name):
    with make_index(tmp_path / name) as index:
        index.add(cloud_list(3))
        assert str(tmp_path / name) in str(index.path)
    assert (tmp_path / name / "index.db").exists()
    assert os.listdir(tmp_path) == [name]
    with slosh.open(str(tmp_path / name), n_jobs=1) as index:
        assert len(index) == 3


def test_a_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with make_index("i") as index:
        index.add(cloud_list(3))
        monkeypatch.chdir(tmp_path / "elsewhere")
        index.add(cloud_list(3))
        assert len(index.search(cloud_list(1)[0])) == 6
        index.compact()
    assert os.listdir(tmp_path / "elsewhere") == []
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        assert len(index) == 6
        assert index.info()["embedded_on_open"] == 0


def test_an_index_may_be_moved(tmp_path):
    with make_index(tmp_path / "i") as index:
        index.add(cloud_list(5))
        before = index.search(cloud_list(1)[0], k=5).ids
    os.rename(tmp_path / "i", tmp_path / "moved")
    with slosh.open(tmp_path / "moved", n_jobs=1) as index:
        assert index.search(cloud_list(1)[0], k=5).ids == before
        assert index.info()["embedded_on_open"] == 0
        assert index.path == tmp_path / "moved"


def test_info_says_what_is_on_disk(tmp_path):
    with make_index(tmp_path / "i") as index:
        index.add(cloud_list(50))
        sizes = index.info()["disk_bytes"]
        assert sizes["database"] == (tmp_path / "i" / "index.db").stat().st_size
        assert sizes["cache"] == sum(file.stat().st_size for file in (tmp_path / "i" / "cache").iterdir())
        assert index.info()["path"] == str(tmp_path / "i")
