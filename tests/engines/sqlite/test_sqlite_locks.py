"""Who may change an index in a folder: one process at a time; and what is let go of in the end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import index_child as child
import pytest

import slosh
from builders import PATIENCE, cloud_list, make_index, together
from slosh import errors
from slosh.engines.spec import IndexSpec


def test_a_second_writer_is_told_at_once(tmp_path, children):
    """Not after waiting for the first, which stays."""
    path = tmp_path / "index"
    index, _ = child.made(path, 5)
    with pytest.raises(slosh.IndexLocked, match=f"process {os.getpid()}") as told:
        slosh.open(path, n_jobs=1)
    assert told.value.pid == os.getpid()
    index.close()
    number = children.start("hold", path)
    assert children.line() == "held"
    with pytest.raises(OSError, match=f"{number}.*read_only=True") as told:
        slosh.open(path, n_jobs=1)
    assert isinstance(told.value, errors.IndexLocked)
    assert told.value.pid == number
    with slosh.open(path, read_only=True, n_jobs=1) as reader:
        assert len(reader) == 5
    os.kill(number, signal.SIGKILL)
    assert children.end() == -signal.SIGKILL
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_neither_keeps_the_lock_nor_writes(tmp_path):
    index = make_index(tmp_path / "i")
    index.add(cloud_list(10))
    context = multiprocessing.get_context("fork")
    ready, go = context.Event(), context.Event()

    def forked():
        for call in (lambda: len(index), lambda: index.add(cloud_list(1)), lambda: index.search(cloud_list(1)[0])):
            with pytest.raises(errors.IndexClosed, match="forked"):
                call()
        index.close()
        ready.set()
        go.wait(PATIENCE)

    process = context.Process(target=forked)
    process.start()
    assert ready.wait(PATIENCE)
    index.add(cloud_list(1))
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as again:  # although the other process lives
        assert len(again) == 11
    go.set()
    process.join(PATIENCE)
    assert process.exitcode == 0


def test_of_several_that_create_the_same_index_one_does(tmp_path, several):
    for i in range(10):
        path = tmp_path / f"{i}"
        for each in several:
            each.start("create", path)
        codes = sorted(each.end() for each in several)
        assert codes == [0, 17], "one is made, the other is told"
        with slosh.open(path, n_jobs=1) as index:
            assert len(index) == 1


def test_of_several_threads_that_create_the_same_index_one_does(tmp_path):
    for i in range(5):
        made, told, barrier = [], [], threading.Barrier(4)

        def create(path=tmp_path / f"{i}", made=made, told=told, barrier=barrier):
            barrier.wait()
            try:
                made.append(make_index(path))
            except (errors.IndexExists, errors.IndexLocked) as error:
                told.append(error)

        together(*[create] * 4)
        assert (len(made), len(told)) == (1, 3)
        made[0].add(cloud_list(3))
        made[0].close()
        with slosh.open(tmp_path / f"{i}", n_jobs=1) as index:
            assert len(index) == 3


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the number of open files is not known")
def test_nothing_stays_open(tmp_path):
    before = open_files()
    index, _ = child.made(tmp_path / "i", 20)
    query = child.points_of("1", 0)
    index.search(query)
    working = open_files()
    for _ in range(20):
        together(*[lambda: index.search(query)] * 4)
    assert open_files() <= working + 4 * 3  # connections of threads are used again
    index.close()
    assert open_files() <= before
    for _ in range(20):
        with slosh.open(tmp_path / "i", n_jobs=1), pytest.raises(slosh.IndexLocked):
            slosh.open(tmp_path / "i", n_jobs=1)
    assert open_files() <= before
    (tmp_path / "i" / "index.db").write_bytes(b"nothing of the kind")
    for read_only in (True, False) * 10:
        with pytest.raises(ValueError, match=r"damaged|not"):
            slosh.open(tmp_path / "i", read_only=read_only, n_jobs=1)
    assert open_files() <= before


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the number of open files is not known")
def test_an_index_that_does_not_open_leaves_nothing_open(tmp_path):
    """Neither its database nor its lock: once the damage is mended, it opens."""
    path = tmp_path / "i"
    child.made(path, 20)[0].close()
    whole = (path / "index.db").read_bytes()
    with contextlib.closing(sqlite3.connect(path / "index.db", isolation_level=None)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [line[1] for line in connection.execute(f"PRAGMA table_info({table})")]
            if len(columns) == 2:
                connection.execute(f"UPDATE {table} SET {columns[1]} = 'x'")
    before = open_files()
    for read_only in (True, False) * 5:
        with pytest.raises(errors.DamagedError, match="damaged") as told:
            slosh.open(path, read_only=read_only, n_jobs=1)
        assert told.value.location == str(path / "index.db")
    assert open_files() <= before
    (path / "index.db").write_bytes(whole)
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 20


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the number of open files is not known")
def test_an_index_that_cannot_be_started_leaves_nothing_open(tmp_path, monkeypatch):
    """Neither when it is created, which leaves no folder either, nor when it is opened."""
    make_index(tmp_path / "i").close()
    before = open_files()

    def fail(*given):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(IndexSpec, "unpack", fail)
        with pytest.raises(MemoryError):
            make_index(tmp_path / "other")
        assert not (tmp_path / "other").exists()
        for read_only in (True, False):
            with pytest.raises(MemoryError):
                slosh.open(tmp_path / "i", read_only=read_only, n_jobs=1)
        gc.disable()  # nothing is left to the collector
        try:
            assert open_files() <= before
        finally:
            gc.enable()
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        assert len(index) == 0


def test_a_process_that_forgets_to_close_ends_quietly(tmp_path):
    """Nothing can be written any more when the interpreter ends, and nothing has to be."""
    script = """
import builtins, sys, numpy, slosh
index = slosh.SetIndex.create(sys.argv[1], 2, n_jobs=1)
index.add([numpy.ones((3, 2))] * 5)
builtins.kept = index
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "i"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        assert len(index) == 5
        assert index.info()["embedded_on_open"] == 0
