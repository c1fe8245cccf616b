"""Other processes read an index while one writes: each change is seen whole, and none is seen again as it was."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import threading
from contextlib import suppress

import index_child as child
import numpy as np
import pytest

import slosh
from builders import contents, plain_answer, together
from slosh.errors import AccessDenied, IndexClosed


def batch_of(number, seed=3):
    rng = np.random.default_rng([seed, number])
    return [rng.normal(size=(4, child.DIM)) for _ in range(10)], [f"{number}-{i}" for i in range(10)]


@pytest.mark.parametrize("before", [1, 110], ids=["scanned", "trained"])
def test_readers_see_whole_batches_while_a_writer_goes_on(tmp_path, several, before):
    """Until each of two readers has seen so many changes, however long that takes."""
    path = tmp_path / "index"
    index = slosh.SetIndex.create(path, child.DIM, **child.options())
    last = 0
    for last in range(before):
        index.add(*batch_of(last), {"batch": last})
    logs = [tmp_path / f"log{i}" for i in range(2)]
    codes, ended = [], threading.Event()

    def wait():
        codes.extend(reader.end() for reader in several)
        ended.set()

    for reader, log in zip(several, logs, strict=True):
        reader.start("read", path, log, 6)
    threading.Thread(target=wait, daemon=True).start()
    rng = np.random.default_rng(before)
    there = list(range(before))
    while not ended.is_set():
        dice = rng.random()
        if dice < 0.25 and len(there) > 5:
            gone = there.pop(int(rng.integers(len(there) - 1)))
            index.remove([f"{gone}-{i}" for i in range(10)])
        elif dice < 0.3:
            index.compact()
        elif dice < 0.4 and len(there) > 5:
            number = there[int(rng.integers(len(there)))]
            index.update([f"{number}-{i}" for i in range(10)], batch_of(number, seed=int(rng.integers(99)))[0])
        elif len(there) < before + 60:  # or it becomes slow
            last += 1
            index.add(*batch_of(last), {"batch": last})
            there.append(last)
        else:
            for gone in there[before:-1]:
                index.remove([f"{gone}-{i}" for i in range(10)])
            del there[before:-1]
    assert index.verify().ok
    index.close()
    assert codes == [0, 0]
    assert [json.loads(log.read_text())["seen"] for log in logs] == [6, 6]


def test_a_reader_of_an_index_that_is_made_anew(tmp_path):
    """Compacted many times while it is open, and searched only now and then."""
    index, _ = child.made(tmp_path / "i", 50)
    reader = slosh.open(tmp_path / "i", read_only=True, n_jobs=1)
    query = child.points_of("3", 7)
    for i in range(12):
        index.remove(str(i))
        index.add([child.points_of(str(i), 9)], [f"new{i}"], {"mod": i % 3})
        if i % 2:
            index.compact()
        if i % 3 == 0:
            assert plain_answer(reader.search(query, k=50)) == plain_answer(index.search(query, k=50))
            assert plain_answer(reader.search(query, k=50, where={"mod": 1})) == plain_answer(
                index.search(query, k=50, where={"mod": 1})
            )
    assert contents(reader) == contents(index)
    assert reader.verify().ok
    reader.close()
    index.close()


def test_many_readers_of_one_process(tmp_path):
    index, _ = child.made(tmp_path / "i", 30)
    readers = [slosh.open(tmp_path / "i", read_only=True, n_jobs=1) for _ in range(10)]
    index.remove("7")
    index.close()
    assert {len(reader) for reader in readers} == {29}
    for reader in readers:
        reader.close()


@pytest.fixture
def mounted(tmp_path):
    """Give a function that shows a folder under another name, where nothing may be written."""
    shown = tmp_path / "mounted"
    shown.mkdir()

    def mount(folder):
        if subprocess.run(["mount", "--bind", "-o", "ro", folder, shown], capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
        return shown

    yield mount
    subprocess.run(["umount", shown], capture_output=True)


def test_a_folder_that_may_not_be_written_to_is_read(tmp_path, mounted):
    index, _ = child.made(tmp_path / "i", 30)
    expected = plain_answer(index.search(child.points_of("3", 7), k=30))
    index.close()
    shown = mounted(tmp_path / "i")
    with slosh.open(shown, read_only=True, n_jobs=1) as reader:
        assert plain_answer(reader.search(child.points_of("3", 7), k=30)) == expected
        assert reader.verify().ok
    for call in (lambda: slosh.open(shown), lambda: slosh.SetIndex.create(shown / "new", 2)):
        with pytest.raises(PermissionError) as told:
            call()
        assert isinstance(told.value, AccessDenied)
        assert told.value.location.startswith(str(shown))
        assert told.value.remedy


def test_a_log_beside_a_folder_that_may_not_be_written_to_is_not_overlooked(tmp_path, mounted):
    """SQLite would read the database without its log, as if the last changes had never been."""
    path, copy = tmp_path / "i", tmp_path / "copy"
    index = slosh.SetIndex.create(path, child.DIM, **child.options())
    index.add([child.points_of("1", 0)], ["logged"])
    copy.mkdir()
    for name in ("index.db", "index.db-wal"):
        shutil.copy(path / name, copy / name)
    index.close()
    shown = mounted(copy)
    try:
        with slosh.open(shown, read_only=True, n_jobs=1) as reader:
            seen = reader.ids
    except (ValueError, OSError):
        seen = None
    assert seen in (None, ["logged"])
    shutil.copy(path / "index.db", copy / "index.db")
    (copy / "index.db-wal").unlink()
    with slosh.open(shown, read_only=True, n_jobs=1) as reader:
        assert reader.ids == ["logged"]


def test_a_copy_made_by_sqlite_is_an_index(tmp_path):
    """Made while the index is open, and with another kind of journal, which becomes a log when it is written to."""
    index, _ = child.made(tmp_path / "i", 40)
    held, query = contents(index), child.points_of("3", 7)
    expected = plain_answer(index.search(query, k=40))
    (tmp_path / "copy").mkdir()
    connection = sqlite3.connect(tmp_path / "i" / "index.db")
    connection.execute("VACUUM INTO ?", (str(tmp_path / "copy" / "index.db"),))
    connection.close()
    index.close()
    reader = slosh.open(tmp_path / "copy", read_only=True, n_jobs=1)
    with slosh.open(tmp_path / "copy", n_jobs=1) as copy:
        assert contents(copy) == held
        assert plain_answer(copy.search(query, k=40)) == expected
        for i in range(20):  # while another reads
            assert len(reader) == 40 + i
            copy.add([child.points_of("1", 0)], [f"more{i}"])
        assert (tmp_path / "copy" / "index.db-wal").exists()
        assert copy.verify().ok
    reader.close()


def test_an_index_is_destroyed_while_its_readers_close(tmp_path):
    """They delete files of SQLite themselves, and may find the index closed or gone, and nothing else."""
    path = tmp_path / "index"
    for number in range(30):
        index = slosh.SetIndex.create(path, child.DIM, **child.options())
        index.add(*batch_of(number))
        reader, start = slosh.open(path, read_only=True), threading.Barrier(4)

        def search(index=index, start=start, number=number):
            start.wait()
            with suppress(IndexClosed):
                while True:
                    assert len(index.search(id=f"{number}-0", k=3)) == 3

        def describe(index=index, start=start):
            start.wait()
            with suppress(IndexClosed):
                while True:
                    assert index.info()["sets"] == 10

        def destroy(index=index, start=start):
            start.wait()
            index.destroy()

        def close(reader=reader, start=start):
            start.wait()
            reader.close()

        together(search, describe, destroy, close)
        assert not path.exists()


def test_destroying_an_index_waits_for_no_reader_and_leaves_what_it_reads(tmp_path):
    """A reader that is in the middle of a view goes on to its end; a new index of that name is another one."""
    path = tmp_path / "index"
    index = slosh.SetIndex.create(path, child.DIM, **child.options())
    index.add(*batch_of(0))
    with slosh.open(path, read_only=True) as reader:
        before = contents(reader)
        index.destroy()
        assert contents(reader) == before
        with slosh.SetIndex.create(path, child.DIM, **child.options()) as another:
            another.add(*batch_of(1))
            assert contents(reader) == before
            reader.close()
            assert len(another) == 10
    with slosh.open(path, read_only=True) as found:
        assert list(found.ids) == [f"1-{i}" for i in range(10)]
