"""Columns: they grow in memory and in a file, and what a view shows never changes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.errors import InputError, StorageError
from slosh.search.columns import Column, FileColumn, filled, in_memory, lengthen, positions_up_to


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    if request.param == "memory":
        return lambda width, dtype: in_memory("any", width, dtype)
    return lambda width, dtype: FileColumn(tmp_path / "column", width, dtype)


def test_it_grows_and_views_stay(make):
    column, want, views = make((3,), np.float32), np.empty((0, 3), np.float32), []
    rng = np.random.default_rng(0)
    for n in (1, 5, 0, 100, 7, 1000):
        part = rng.normal(size=(n, 3)).astype(np.float32)
        column.write(len(want), part + 1)  # abandoned
        column.write(len(want), part)
        want = np.concatenate([want, part])
        views.append((column.view(len(want)), want))
    for view, expected in views:
        assert np.array_equal(view, expected)
    column.room(len(want), 2)[...] = 5
    assert (column.view(len(want) + 2)[-2:] == 5).all()
    assert (column.width, column.dtype, column.row_bytes) == ((3,), np.float32, 12)
    assert column.n_bytes(10) == (120 if type(column) is Column else 0)


def test_scalars_and_wide_rows(make):
    column = make((2, 4), np.int16)
    column.write(0, np.arange(24).reshape(3, 2, 4))
    assert column.view(2).shape == (2, 2, 4)
    assert column.view(3).sum() == 276


def test_a_file_keeps_its_rows_when_it_is_renamed(tmp_path):
    column = FileColumn(tmp_path / "a", (), np.int64)
    column.write(0, np.arange(10))
    (tmp_path / "a").rename(tmp_path / "b")
    column.write(10, np.arange(10, 5000))
    assert np.array_equal(column.view(5000), np.arange(5000))
    assert np.array_equal(np.fromfile(tmp_path / "b", np.int64)[:5000], np.arange(5000))
    assert not (tmp_path / "a").exists()
    with pytest.raises(InputError, match="exists, and may belong to another search: delete it, or give another"):
        FileColumn(tmp_path / "b", (), np.int64)


@pytest.fixture(params=["fallocate", "writes"])
def with_and_without_fallocate(request, monkeypatch):
    if request.param == "writes":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)


@pytest.mark.usefixtures("with_and_without_fallocate")
def test_a_file_is_made_longer_and_never_shorter(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    for size in (100_000, 5_000_000, 7):
        lengthen(path, size)
        with open(path, "r+b") as stream:
            lengthen(stream, size)
    assert path.read_bytes() == b"abc" + bytes(5_000_000 - 3)
    with pytest.raises(StorageError) as caught:
        lengthen(tmp_path / "none", 1)
    assert (caught.value.errno, caught.value.location) == (errno.ENOENT, str(tmp_path / "none"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full")
def test_a_full_disk_is_an_error_where_nothing_allocates(monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with pytest.raises(StorageError) as caught:
        lengthen(Path("/dev/full"), 100)
    assert caught.value.errno == errno.ENOSPC


def test_content_that_does_not_fit_is_refused():
    make = filled({"vectors": np.zeros((4, 3), np.float32)})
    assert make("vectors", (3,), np.float32).view(4).shape == (4, 3)
    assert len(make("other", (3,), np.float32).view(0)) == 0
    for width, dtype in (((4,), np.float32), ((3,), np.float64), ((), np.float32)):
        with pytest.raises(ValueError, match="its vectors are float32 of shape"):
            make("vectors", width, dtype)


@given(st.lists(st.integers(0, 3000), max_size=8))
def test_positions(sizes):
    views = [positions_up_to(n) for n in sizes]
    for n, view in zip(sizes, views, strict=True):
        assert np.array_equal(view, np.arange(n))
        assert not n or not view.flags.writeable
