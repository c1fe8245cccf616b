"""A disk that is full, files that may not grow, and databases that refuse a statement: errors, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import sqlite3
import subprocess

import index_child as child
import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, make_index, plain_answer
from slosh.search import ExactSearch, LadderSearch


def take_all_room(folder):
    """Fill the disk, and return the file that does."""
    with open(folder / "ballast", "ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))
    return folder / "ballast"


@pytest.mark.parametrize("search", [LadderSearch(), ExactSearch()], ids=repr)
def test_a_full_disk_is_an_error_and_nothing_is_lost(small_disk, search):
    path = small_disk / "index"
    index = slosh.SetIndex.create(path, child.DIM, **child.options(search=search))
    done = child.fill(index, tries=5)
    assert done > 10
    ballast = take_all_room(small_disk)
    for change in (
        lambda: index.add([child.points_of("1", 1)] * 400),
        lambda: index.update([str(i) for i in range(10)], [np.zeros((5000, 2))] * 10),
        lambda: index.compact(),
    ):
        with pytest.raises(OSError, match=r"full|disk|room|space"):
            change()
        child.check_batches(index, done)
        assert index.verify().ok
    index.close()
    for read_only in (True, False):  # it may open or not, but never shows less than there is
        try:
            index = slosh.open(path, read_only=read_only, n_jobs=1)
        except OSError as error:
            refused = error
            assert re.search("full|disk|room|space", str(refused)), refused
        else:
            child.check_batches(index, done)
            index.close()
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    with slosh.open(path, n_jobs=1) as index:
        child.check_batches(index, done)
        assert index.verify().ok
        index.add([child.points_of("1", 1)], ["after"])
        index.compact()
        assert len(index) == 10 * done + 1
        assert index.verify().ok


def test_more_room_is_enough_to_go_on(small_disk):
    index = slosh.SetIndex.create(small_disk / "index", child.DIM, **child.options())
    done = child.fill(index)
    with contextlib.suppress(OSError):
        index.compact()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    rng = np.random.default_rng(1)
    for more in range(5):
        index.add([rng.normal(size=(200, 2)) for _ in range(10)], metadata={"batch": done + more})
    child.check_batches(index, done + 5)
    assert index.verify().ok
    index.compact()
    child.check_batches(index, done + 5)
    index.close()
    with slosh.open(small_disk / "index", n_jobs=1) as index:
        child.check_batches(index, done + 5)
        assert index.info()["embedded_on_open"] == 0


MOST = {"part": [1 << 17, 1 << 20], "all": [1 << 15, *range(1 << 16, 1 << 20, 20_011), 1 << 21]}


@pytest.mark.parametrize("most", [*MOST["part"], *(pytest.param(most, marks=pytest.mark.long) for most in MOST["all"])])
def test_files_that_may_not_grow(tmp_path, children, most):
    slosh.SetIndex.create(tmp_path / "index", child.DIM, **child.options()).close()
    assert children.run("small_files", tmp_path / "index", tmp_path / "log", most) == 0
    done = json.loads((tmp_path / "log").read_text())["done"]
    with slosh.open(tmp_path / "index", n_jobs=1) as index:
        assert len(index) == 10 * done + 1
        assert index.verify().ok


def tables_of(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


@contextlib.contextmanager
def refusing(path, table, statement):
    """Let a database that is open refuse every statement of a kind on a table, after it was opened."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute(
            f"CREATE TRIGGER refusing BEFORE {statement} ON {table} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        try:
            yield
        finally:
            connection.execute("DROP TRIGGER IF EXISTS refusing")


CHANGES = {
    "add": lambda index: index.add(cloud_list(5, seed=1), [f"lost{i}" for i in range(5)], {"x": 1}),
    "replace": lambda index: index.add(cloud_list(2, seed=1), ["3", "new"], {"x": 1}, update=True),
    "update": lambda index: index.update(["4", "5"], cloud_list(2, seed=1)),
    "describe": lambda index: index.update(["6", "7"], metadata={"n": "other"}),
    "remove": lambda index: index.remove(["8", "9"]),
    "compact": lambda index: index.compact(),
    "tune": lambda index: index.tune(recall=0.9, k=3),
}


@pytest.mark.parametrize("weighted", [True, False])
def test_a_change_that_fails_at_any_step(fast_disk, weighted):
    """Wherever the database refuses it: all is as before, in memory too, and the next change as if nothing had been."""
    sets = cloud_list(20)
    with make_index(fast_disk / "i") as index:
        more = {"weights": [np.arange(1.0, len(x) + 1) for x in sets]} if weighted else {}
        index.add(sets, [str(i) for i in range(20)], [{"n": i, "tags": ["a", "b"]} for i in range(20)], **more)
        index.remove(["0", "1"])
        before, answers = contents(index), plain_answer(index.search(sets[3], k=20, certify=True))
    refused = dict.fromkeys(CHANGES, 0)
    for table in tables_of(fast_disk / "i" / "index.db"):
        for (name, change), statement in itertools.product(CHANGES.items(), ("INSERT", "UPDATE", "DELETE")):
            path = fast_disk / "copy"
            shutil.copytree(fast_disk / "i", path)
            with slosh.open(path, n_jobs=1) as index:
                told = None
                with refusing(path / "index.db", table, statement):
                    try:
                        change(index)
                    except (OSError, ValueError) as error:
                        told = error
                if told is not None:
                    refused[name] += 1
                    assert contents(index) == before, (name, table, statement)
                    assert plain_answer(index.search(sets[3], k=20, certify=True)) == answers
                    assert index.verify().ok, (name, table, statement)
                    index.add(cloud_list(3, seed=5), ["after0", "after1", "after2"])
                    index.remove(["after0", "after1", "after2"])
                    assert plain_answer(index.search(sets[3], k=20, certify=True)) == answers
            if told is not None:
                with slosh.open(path, n_jobs=1) as index:
                    assert contents(index) == before, (name, table, statement)
                    assert plain_answer(index.search(sets[3], k=20, certify=True)) == answers
            shutil.rmtree(path)
    assert all(refused.values()), refused
