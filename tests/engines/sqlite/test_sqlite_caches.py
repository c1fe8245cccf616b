"""The caches of an index in a folder: whatever happens to them, answers stay, and what is damaged is made again.

Files are damaged as a user or a disk would do it; which files there are is not assumed.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib

import index_child as child
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

import slosh
from builders import cloud_list, make_index, plain_answer, small_embedding, within
from history import SEARCHES, History, run_histories
from slosh.engines.sqlite import cache
from slosh.engines.sqlite.database import Database
from slosh.engines.sqlite.mapped_column import MappedColumn
from slosh.errors import DamagedError, StorageError
from slosh.native import kernel
from slosh.search import LadderSearch, store
from slosh.search.lists import Lists


def cut(file, place):
    content = file.read_bytes()
    file.write_bytes(content[: int(place * len(content))])


def flip(file, place):
    content = bytearray(file.read_bytes())
    if content:
        content[min(int(place * len(content)), len(content) - 1)] ^= 0x11
        file.write_bytes(content)


def replace_by_link(file, place):
    elsewhere = file.parents[1] / "elsewhere"
    shutil.copy(file, elsewhere)
    file.unlink()
    file.symlink_to(elsewhere)


def replace_by_folder(file, place):
    file.unlink()
    file.mkdir()
    (file / "inner").write_bytes(b"x")


def replace_by_pipe(file, place):
    file.unlink()
    os.mkfifo(file)


DAMAGES = {
    "cut": cut,
    "empty": lambda file, place: file.write_bytes(b""),
    "flip": flip,
    "append": lambda file, place: file.write_bytes(file.read_bytes() + b"garbage" * 100),
    "zeros": lambda file, place: file.write_bytes(bytes(file.stat().st_size)),
    "delete": lambda file, place: file.unlink(),
    "link": replace_by_link,
    "folder": replace_by_folder,
    "pipe": replace_by_pipe,
}


def ask(index):
    """Return answers of every kind in a form that compares."""
    queries = [child.points_of(str(i), 7) for i in range(20)]
    found = [
        index.search(queries, k=5),
        index.search(queries, k=5, recall=1.0),
        index.search(queries[:5], k=5, certify=True),
        index.range_search(queries[:5], 0.3, where={"mod": 1}),
        index.search(id=["3", "7"], k=4, recall=1.0),
    ]
    return list(map(plain_answer, found))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An index whose search is trained, removed from and updated, and its answers."""
    path = tmp_path_factory.mktemp("trained") / "index"
    index, _ = child.made(path, 1300)
    index.remove([str(i) for i in range(0, 1300, 9)])
    some = [str(i) for i in range(1, 1300, 18)]
    index.update(some, [child.points_of(name, 1) for name in some])
    index.tune(recall=0.8, k=5)
    answers = ask(index)
    assert index.search(child.points_of("1", 7), k=5).stats.recall < 1.0
    index.close()
    return path, answers


def check_rebuilt(path, answers, what):
    """Open a damaged index for reading and for writing, and then once more: the damage is mended by then."""
    rebuilt = 0
    for read_only in (True, False):
        with within(60), slosh.open(path, read_only=read_only, n_jobs=1) as index:
            assert ask(index) == answers, what
            rebuilt += index.info()["embedded_on_open"] > 0
    with slosh.open(path, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 0, what
        assert ask(index) == answers, what
        index.add([child.points_of("1", 3)], ["more"])
        assert len(index) == len(index.ids)
    return rebuilt


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_of_the_cache_is_never_used(fast_disk, trained, damage):
    path, answers = trained
    names = sorted(file.name for file in (path / "cache").iterdir())
    assert 4 <= len(names) <= 12
    rebuilt = 0
    for i, name in enumerate(names):
        copy = fast_disk / f"copy{i}"
        shutil.copytree(path, copy)
        DAMAGES[damage](copy / "cache" / name, i / len(names))
        rebuilt += check_rebuilt(copy, answers, name)
        shutil.rmtree(copy)
    assert rebuilt > 0 or damage == "append"


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6])
def test_a_flipped_byte_is_found_wherever_it_is(fast_disk, trained, place):
    path, answers = trained
    rebuilt = 0
    for file in sorted((path / "cache").iterdir()):
        copy = fast_disk / file.name
        shutil.copytree(path, copy)
        flip(copy / "cache" / file.name, place)
        with slosh.open(copy, read_only=True, n_jobs=1) as index:
            assert ask(index) == answers, file.name
            rebuilt += index.info()["embedded_on_open"] > 0
        shutil.rmtree(copy)
    assert rebuilt > 3


@pytest.mark.parametrize("what", ["missing", "a file", "a link", "empty", "only the stamp", "no stamp"])
def test_a_cache_that_is_not_there_is_made_again(fast_disk, trained, what):
    path, answers = trained
    copy = fast_disk / "copy"
    shutil.copytree(path, copy)
    cache = copy / "cache"
    if what in ("missing", "a file", "a link"):
        shutil.move(cache, fast_disk / "away")
    if what == "a file":
        cache.write_bytes(b"no folder")
    elif what == "a link":
        cache.symlink_to(fast_disk / "away")
    elif what == "no stamp":
        (cache / "stamp").unlink()
    elif what in ("empty", "only the stamp"):
        for file in cache.iterdir():
            if what == "empty" or file.name != "stamp":
                file.unlink()
    check_rebuilt(copy, answers, what)


def test_the_cache_of_another_index_is_not_used(tmp_path):
    (a, _), (b, _) = child.made(tmp_path / "a", 60), child.made(tmp_path / "b", 0)
    b.add([child.points_of(str(i + 500), 3) for i in range(60)], list(map(str, range(60))))
    query = child.points_of("3", 3)
    expected = plain_answer(b.search(query, k=60))
    for each in (a, b):
        each.close()
    shutil.rmtree(tmp_path / "b" / "cache")
    shutil.copytree(tmp_path / "a" / "cache", tmp_path / "b" / "cache")
    with slosh.open(tmp_path / "b", n_jobs=1) as b:
        assert plain_answer(b.search(query, k=60)) == expected
        assert b.verify().ok


@pytest.mark.parametrize("then", ["nothing", "remove", "add", "add more", "update", "compact"])
def test_a_database_restored_from_a_copy_does_not_use_the_newer_cache(tmp_path, then):
    """As the errors say: restore it from a copy. The cache is then of a future that never came."""
    path = tmp_path / "index"
    index, _ = child.made(path, 20)
    index.close()
    shutil.copy(path / "index.db", tmp_path / "copy.db")
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of(str(i), 5) for i in range(5)], [f"lost{i}" for i in range(5)])
    shutil.copytree(path / "cache", tmp_path / "newer")
    shutil.copy(tmp_path / "copy.db", path / "index.db")

    def change(index):
        if then == "remove":
            index.remove([str(i) for i in range(5)])
        elif then.startswith("add"):
            n = 5 if then == "add" else 9
            index.add([child.points_of(str(i + 100), 6) for i in range(n)], [f"new{i}" for i in range(n)])
        elif then == "update":
            index.update([str(i) for i in range(5)], [child.points_of(str(i), 8) for i in range(5)])
        elif then == "compact":
            index.compact()

    # The cache comes back after the change, and before it.
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 20
        change(index)
        assert index.verify().ok
        expected = plain_answer(index.search(child.points_of("7", 5), k=40))
    shutil.rmtree(path / "cache")
    shutil.copytree(tmp_path / "newer", path / "cache")
    for read_only in (True, False):
        with slosh.open(path, read_only=read_only, n_jobs=1) as index:
            assert index.verify().ok
            assert plain_answer(index.search(child.points_of("7", 5), k=40)) == expected


def test_files_of_different_times_are_not_mixed(fast_disk):
    """Each file of the cache in turn is one of another time: older, newer, or of a future that never came."""
    path = fast_disk / "index"
    index, _ = child.made(path, 1100)
    index.close()
    moments = [files_of(path)]
    for version in (1, 2):  # two futures of the same database, with other sets at the same places
        write_files(path, moments[0])
        with slosh.open(path, n_jobs=1) as index:
            names = [str(i) for i in range(2000, 3500)]
            index.add([child.points_of(name, version) for name in names], names)
            index.tune(recall=0.8, k=5)
        moments.append(files_of(path))
    with slosh.open(path, n_jobs=1) as index:
        index.remove(names[:100])
        index.add([child.points_of(str(i), 3) for i in range(50)], [f"new{i}" for i in range(50)])
    last = files_of(path)

    def answers(index):
        queries = [child.points_of(str(i), 7) for i in range(20)]
        return [plain_answer(index.search(queries, k=5, recall=1.0)),
                plain_answer(index.search(id=["2100", "3000", "new0"], k=3, recall=1.0))]  # fmt: skip

    with slosh.open(path, n_jobs=1) as index:
        expected = answers(index)
    for old in moments[:2]:
        for name in sorted(name for name in set(last) | set(old) if name.startswith("cache/")):
            mixed = {**last, name: old[name]} if name in old else {n: c for n, c in last.items() if n != name}
            write_files(path, mixed)
            with slosh.open(path, n_jobs=1) as index:
                assert answers(index) == expected, name
                assert index.verify(sample=50).ok, name


def files_of(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def write_files(path, files):
    shutil.rmtree(path)
    (path / "cache").mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)


def test_one_more_set_is_one_more_to_embed(tmp_path):
    """A process that was killed after a commit leaves a cache that is a little behind."""
    path = tmp_path / "index"
    index, _ = child.made(path, 1500)
    index.close()
    with slosh.open(path, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 0
    for n in (1, 7):
        shutil.copytree(path / "cache", tmp_path / f"before{n}")
        names = [str(60_000 + 10 * n + i) for i in range(n)]
        with slosh.open(path, n_jobs=1) as index:
            index.add([child.points_of(name, 0) for name in names], names)
        shutil.rmtree(path / "cache")
        shutil.copytree(tmp_path / f"before{n}", path / "cache")
        for read_only in (True, False):
            with slosh.open(path, read_only=read_only, n_jobs=1) as index:
                assert index.info()["embedded_on_open"] == n
                assert index.search(child.points_of(names[0], 0), k=1, recall=1.0).distances[0] == 0
                assert names[-1] in index
        with slosh.open(path, n_jobs=1) as index:
            assert index.info()["embedded_on_open"] == 0
            assert index.verify().ok


def test_a_lost_cache_forgets_removed_sets_as_the_index_does(tmp_path):
    path, sets = tmp_path / "i", cloud_list(2000, largest=8)
    queries = cloud_list(200, seed=4, largest=8)
    with make_index(path, search=LadderSearch(n_lists=16)) as index:
        index.add(sets)
        far = index.add([x * 9 for x in cloud_list(100, seed=3)])
        index.remove(far)
        index.tune(recall=0.8, k=5)
        before = index.search(queries, k=5).ids
    shutil.rmtree(path / "cache")
    with slosh.open(path, n_jobs=1) as index:
        assert index.search(queries, k=5).ids == before


def test_many_changes_that_add_nothing_keep_the_cache(fast_disk):
    """More than a thousand removals and changes of metadata, in several sessions, and no set is embedded again."""
    path = fast_disk / "index"
    child.made(path, 700)[0].close()
    for session in range(6):
        with slosh.open(path, n_jobs=1) as index:
            assert index.info()["embedded_on_open"] == 0
            for i in range(100):
                index.remove(str(100 * session + i))
                index.update("699", metadata={"session": session})
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 0
        assert len(index) == 100


# -- what is checked, and when -----------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    """Checksums of so few bytes that a small array has many."""
    monkeypatch.setattr(cache, "CHECKSUM_BYTES", 512)
    monkeypatch.setattr(store, "MARKED_BYTES", 128)


def array_files(path):
    """Return the files of arrays that have several blocks."""
    files = sorted(path.glob("cache/*.*"))
    return [file for file in files if file.suffix[1:].isdecimal() and not file.name.startswith("derived")]


def change_first_byte(file):
    """Change a file as a failing disk does."""
    with open(file, "r+b") as stream:
        first = stream.read(1)
        stream.seek(0)
        stream.write(bytes([first[0] ^ 1]))


def test_opening_does_not_read_what_was_flushed_and_verify_does(fast_disk, small_blocks):
    path = fast_disk / "index"
    child.made(path, 300)[0].close()
    files = array_files(path)
    assert len(files) > 3
    for file in files:
        change_first_byte(file)
        with slosh.open(path, read_only=True, n_jobs=1) as index:
            assert index.info()["embedded_on_open"] == 0, file.name
            report = index.verify(sample=1)
            assert not report.ok, file.name
            assert any(file.stem in problem for problem in report.problems)
        change_first_byte(file)
        with slosh.open(path, read_only=True, n_jobs=1) as index:
            assert index.verify().ok


def answers_or_errors(path, n_jobs=1):
    """Return the answer to each of many questions, each of a reader that has used nothing before; None if damaged."""
    queries = [child.points_of(str(i), 7) for i in range(8)]
    questions = [
        *(lambda index, query=query: index.search(query, k=2, recall=0.8) for query in queries),
        *(lambda index, query=query: index.search(query, k=2, where={"mod": 1}, recall=1.0) for query in queries[:2]),
        lambda index: index.search(queries, k=5),
        lambda index: index.search(queries, k=5, recall=1.0),
        lambda index: index.search(queries[:2], k=3, certify=True),
        lambda index: index.search(queries[:2], k=3, rerank="sliced"),
        lambda index: index.range_search(queries[:2], 0.3),
        lambda index: index.search(id=["3", "7"], k=4),
        lambda index: index.duplicates(0.001),
    ]

    def ask_one(question):
        with slosh.open(path, read_only=True, n_jobs=n_jobs) as index:
            try:
                found = question(index)
            except DamagedError:
                return None
            return plain_answer(found) if hasattr(found, "distances") else list(found)

    return [ask_one(question) for question in questions]


def stamp_of(path):
    return json.loads(json.loads((path / "cache" / "stamp").read_bytes())["content"])


def flip_at(file, place, n=1):
    with open(file, "r+b") as stream:
        stream.seek(place)
        content = stream.read(n)
        stream.seek(place)
        stream.write(bytes(byte ^ 0x11 for byte in content))


@pytest.fixture
def trained_in_small_blocks(fast_disk, small_blocks):
    path = fast_disk / "index"
    index, _ = child.made(path, 1300)
    index.tune(recall=0.8, k=2)
    assert index.search(child.points_of("1", 7), k=2, recall=0.8).stats.recall < 1.0
    index.close()
    return path


def test_what_a_damaged_block_says_is_never_in_an_answer(trained_in_small_blocks):
    """Whatever part is changed, an answer is the right one or an error, and who does not need the part gets one."""
    path = trained_in_small_blocks
    expected = answers_or_errors(path)
    assert None not in expected
    stamped = stamp_of(path)
    some_answered = set()
    for file in array_files(path):
        about = stamped["arrays"][file.stem]
        n = stamped["points" if file.stem == "points" else "rows"]
        size = np.dtype(about["dtype"]).itemsize * int(np.prod(about["width"])) * n
        raised = 0
        for place in (0, size // 3, 2 * size // 3):
            flip_at(file, place, size // 12)
            found = answers_or_errors(path, n_jobs=2)
            flip_at(file, place, size // 12)
            for answer, right in zip(found, expected, strict=True):
                assert answer is None or answer == right, (file.name, place)
            raised += found.count(None)
            if 0 < found.count(None) < len(found):
                some_answered.add(file.stem)
        assert raised > 0, file.name
    lazily = {"points", "ends"} | ({"vectors"} if kernel.native is not None else set())  # NumPy checks all vectors
    assert lazily <= some_answered
    assert answers_or_errors(path) == expected


def test_a_block_is_checked_once_and_only_when_it_is_used(tmp_path):
    data = np.arange(100, dtype=np.int16).reshape(50, 2)  # 200 bytes in blocks of 32: the last has 8
    (tmp_path / "x").write_bytes(data.tobytes() + bytes(40))
    column = MappedColumn(tmp_path / "x", (2,), np.int16, False)
    sums = [zlib.crc32(data.tobytes()[i : i + 32]) for i in range(0, 200, 32)]
    sums[2] ^= 1
    column.expect(sums, 50, 32, range(6))
    assert not column.is_checked
    column.check(np.array([0, 24]), np.array([16, 27]))  # blocks 0, 1 and 3
    assert column.unchecked_blocks() == {2, 4, 5}
    column.check(np.array([48, 55]), np.array([60, 60]))  # the last one, and nothing
    column.check(7, 7)
    for rows in ((23, 24), (0, 50), (np.array([1, 20]), np.array([2, 21]))):
        with pytest.raises(DamagedError, match=str(tmp_path / "x")):
            column.check(*rows)
    with pytest.raises(DamagedError):
        column.view(20)
    assert np.array_equal(column.unchecked_view(50), data)
    assert 2 in column.unchecked_blocks()
    sums[2] ^= 1
    assert np.array_equal(column.view(50), data)
    assert column.is_checked


def test_a_reader_that_follows_checks_what_was_added(fast_disk, small_blocks):
    """Also what was flushed to disk in between."""
    path = fast_disk / "index"
    index, _ = child.made(path, 200)
    index.close()
    with slosh.open(path, read_only=True, n_jobs=1) as reader:
        before = reader.search(id="3", k=1).ids
        with slosh.open(path, n_jobs=1) as index:
            index.add([child.points_of(str(i), 0) for i in range(1000, 1200)], [str(i) for i in range(1000, 1200)])
        flip_at(path / "cache" / "points.1", 8 * stamp_of(path)["points"] * 3 // 4)
        found = [set_or_none(reader, str(i)) for i in (*range(200), *range(1000, 1200))]
        assert found.count(None) > 0
        assert None not in found[:100]
        assert reader.search(id="3", k=1).ids == before


def set_or_none(reader, name):
    try:
        return reader.search(id=name, k=1).ids  # which needs the points of this set alone
    except DamagedError:
        return None


@pytest.mark.parametrize("read_only", [False, True])
def test_damage_that_opening_comes_across_is_mended(trained_in_small_blocks, tmp_path, read_only):
    """The caches lack a set, and what has to be filed before it is damaged."""
    path = trained_in_small_blocks
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of(str(i), 0) for i in range(1300, 1500)], [str(i) for i in range(1300, 1500)])
    shutil.copytree(path / "cache", tmp_path / "before")
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("1", 7)], ["last"])
        expected = ask(index)
    shutil.rmtree(path / "cache")
    shutil.copytree(tmp_path / "before", path / "cache")
    flip_at(path / "cache" / "vectors.1", 2 * 16 * 1400)
    with slosh.open(path, read_only=read_only, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 1501
        assert "vectors" in index.info()["cache_rebuilt"]
        assert ask(index) == expected
        assert index.verify().ok


@pytest.mark.parametrize("read_only", [False, True])
def test_damaged_lists_are_found_by_the_first_search_and_filed_again(fast_disk, trained, monkeypatch, read_only):
    path, answers = trained
    copy = fast_disk / "copy"
    shutil.copytree(path, copy)
    flip(next(copy.glob("cache/derived.*")), 0.7)
    filed, append = [], Lists.append
    monkeypatch.setattr(Lists, "append", lambda lists, rows: filed.append(len(rows)) or append(lists, rows))
    with slosh.open(copy, read_only=read_only, n_jobs=1) as index:
        assert not filed
        assert ask(index) == answers
        assert sum(filed) > 1000
    filed.clear()
    with slosh.open(copy, read_only=True, n_jobs=1) as index:
        assert ask(index) == answers
    assert (sum(filed) > 1000) == read_only  # a writer has stored them when it was closed


def test_closing_leaves_little_to_file(fast_disk, monkeypatch):
    path = fast_disk / "index"
    n = 40_000  # of which a sixteenth is more than may be missing
    with make_index(path) as index:
        index.add(cloud_list(n, largest=4))
        index.add(cloud_list(2000, seed=1, largest=4), ids=[f"n{i}" for i in range(2000)])
    filed, append = [], Lists.append
    monkeypatch.setattr(Lists, "append", lambda lists, rows: filed.append(len(rows)) or append(lists, rows))
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        index.search(cloud_list(1)[0])
    assert sum(filed) == 0


def test_what_was_not_flushed_is_checked(fast_disk, small_blocks):
    """As after a power cut: the index was not closed, and a part of a file was never written."""
    path = fast_disk / "index"
    child.made(path, 100)[0].close()
    index = slosh.open(path, n_jobs=1)
    names = [str(i) for i in range(1000, 1300)]
    index.add([child.points_of(name, 0) for name in names], names)
    for file in array_files(path):
        copy = fast_disk / f"copy-{file.name}"
        shutil.copytree(path, copy)
        content = bytearray((copy / "cache" / file.name).read_bytes())
        half = len(content) // 8 * 3  # behind the first hundred sets, before the last ones
        content[half : half + 64] = bytes(64)
        (copy / "cache" / file.name).write_bytes(content)
        with slosh.open(copy, read_only=True, n_jobs=1) as torn:
            assert torn.info()["embedded_on_open"] == 400, file.name
            assert torn.verify().ok
    index.close()


def test_a_commit_that_fails_leaves_the_stamp_before_it(fast_disk, monkeypatch):
    """The next one is written before the commit; a process that ends there leaves caches that fit."""
    path = fast_disk / "index"
    index, _ = child.made(path, 100)

    def fail(database):
        shutil.copytree(path, fast_disk / "copy")
        raise StorageError("the disk failed", location=str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", fail)
        with pytest.raises(StorageError):
            index.add([child.points_of("1", 7)], ["new"])
    assert "new" not in index
    for place in (path, fast_disk / "copy"):
        with slosh.open(place, read_only=True, n_jobs=1) as reader:
            assert reader.info()["embedded_on_open"] == 0
            assert len(reader) == 100
    index.add([child.points_of("2", 7)], ["other"])
    index.close()
    with slosh.open(path, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 0
        assert index.verify().ok


class DamagedHistory(History):
    """A history in which the caches are damaged whenever the index is closed."""

    @rule(damage=st.sampled_from([*DAMAGES, "missing"]), number=st.integers(0, 99), place=st.floats(0, 1))
    def reopen_damaged(self, damage, number, place):
        path = self.index.path
        self.index.close()
        self.reader.close()  # or it may see its memory change
        files = sorted((path / "cache").iterdir()) if (path / "cache").is_dir() else []
        if damage == "missing" or not files:
            shutil.rmtree(path / "cache", ignore_errors=True)
        elif files[number % len(files)].is_file():
            DAMAGES[damage](files[number % len(files)], place)
        self.reader = slosh.open(path, read_only=True, n_jobs=1)
        self.index = slosh.open(path, n_jobs=1)


class Folder:
    """An engine as History needs it."""

    def __init__(self, folder):
        self.folder, self.n = folder, 0

    def create(self, dim, **options):
        self.n += 1
        return make_index(self.folder / f"{self.n}", dim, **{"embedding": small_embedding(), **options})

    def reopen(self, index):
        index.close()
        return slosh.open(index.path, n_jobs=1)

    def read_only(self, index):
        return slosh.open(index.path, read_only=True, n_jobs=1)


@pytest.mark.parametrize("search", ["exact", "default"])
def test_answers_do_not_depend_on_what_happened_to_the_caches(fast_disk, search, campaign):
    folder = Folder(fast_disk)
    run_histories(
        lambda: DamagedHistory(folder, *SEARCHES[search], many=False),
        f"damaged {search}",
        campaign,
        examples={"part": 8, "all": 150}[campaign],
        steps=25,
    )


def test_a_reader_changes_no_file(tmp_path, trained):
    path, answers = trained
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    before = {p.name: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    with slosh.open(copy, read_only=True, n_jobs=1) as index:
        assert ask(index) == answers
        index.neighbor_graph(2)
        assert index.verify().ok
    after = {p.name: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    assert {n: b for n, b in after.items() if not n.endswith(("-shm", "-wal"))} == before


def test_what_was_learnt_anew_is_derived_once(tmp_path, monkeypatch):
    """Basis and lists are learnt again though the index has hardly grown: who opens it then files nothing again."""
    sets = cloud_list(1700, largest=6)
    with make_index(tmp_path / "a") as index:
        index.add(sets[:1100])
        index.add([points + 300 for points in sets[1100:]], ids=[f"n{i}" for i in range(600)])
        assert index.info()["search_info"]["trained_on"] == 1700
    filed, append = [], Lists.append

    def count(lists, prefixes):
        filed.append(len(prefixes))
        return append(lists, prefixes)

    monkeypatch.setattr(Lists, "append", count)
    with slosh.open(tmp_path / "a", read_only=True, n_jobs=1) as index:
        index.search(sets[0])
    assert sum(filed) == 0
