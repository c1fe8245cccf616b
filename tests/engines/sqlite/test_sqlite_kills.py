"""What SetIndex promises, tried with processes that are killed, damaged caches, full disks, readers and threads."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import slosh
from slosh.search import ExactSearch, LadderSearch, SetSearch, ladder

sys.path.insert(0, str(Path(__file__).parent))
import index_child as child

CHILD = Path(__file__).with_name("index_child.py")


class Children:
    """A process that forks others."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.line() == "ready"

    def line(self):
        return self.process.stdout.readline().strip()

    def start(self, name, *given):
        self.process.stdin.write(json.dumps([name, [str(x) if isinstance(x, Path) else x for x in given]]) + "\n")
        self.process.stdin.flush()
        return int(self.line())

    def end(self):
        """The exit status, negative for a signal."""
        return int(self.line())

    def run(self, name, *given):
        self.start(name, *given)
        return self.end()

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def several():
    """Two of them, for children at the same time."""
    made = [Children(), Children()]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def children(several):
    return several[0]


def made(path, n, **more):
    """An index of n sets, and its model."""
    index = slosh.SetIndex.create(path, child.DIM, **child.options(**more))
    model = {str(i): [0, 0, -1] for i in range(n)}
    if n:
        index.add([child.points_of(name, 0) for name in model], list(model),
                  [child.metadata_of(name, 0, -1) for name in model])  # fmt: skip
    return index, model


def is_model(index, model):
    """Whether an index holds a model, all of it and nothing else."""
    if sorted(index.ids) != sorted(model):
        return False
    found = index.get(list(model))
    for i, (name, (version, told, batch)) in enumerate(model.items()):
        if found.metadata[i] != child.metadata_of(name, told, batch):
            return False
        if not np.array_equal(found.sets[i], child.points_of(name, version)):
            return False
    return True


# -- a process that is killed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "kills", "longest"), [(0, 170, 0.06), (1100, 30, 0.2)])
def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path, children, n, kills, longest):
    path, log = tmp_path / "index", tmp_path / "log"
    index, model = made(path, n)
    index.close()
    rng = np.random.default_rng(n)
    next_id, batch, changes, halves = 10_000, 0, 0, 0
    compact = 0.06 if n == 0 else 0.2
    query = np.zeros((2, child.DIM), np.float32)
    for kill in range(kills):
        log.unlink(missing_ok=True)
        number = children.start("work", path, log, model, int(rng.integers(1 << 30)), next_id, batch, compact)
        time.sleep(rng.uniform(0, longest))
        os.kill(number, signal.SIGKILL)
        assert children.end() == -signal.SIGKILL
        lines = log.read_text().splitlines() if log.exists() else []
        begun = [json.loads(line) for line in lines if line != "done"]
        done = lines.count("done")
        changes += done
        for what in begun[:done]:
            model = changed_model(model, what)
        possible = [model] + [changed_model(model, what) for what in begun[done:]]
        assert len(possible) <= 2
        with slosh.open(path, read_only=kill % 3 == 0, n_jobs=1) as index:
            found = [one for one in possible if is_model(index, one)]
            assert found, f"kill {kill}: after {begun[:done]}, with {begun[done:]} unfinished"
            halves += len(possible) == 2 and found == possible[1:]
            model = found[-1]
            if n == 0 or kill % 4 == 0:
                report = index.verify()
                assert report.ok, f"kill {kill}: {report}"
            if model:
                assert sorted(index.search(query, k=len(model), recall=1.0).ids) == sorted(model)
                mod = [name for name in model if int(name) % 3 == 1]
                assert sorted(index.search(query, k=len(model), where={"mod": 1}).ids) == sorted(mod)
        next_id, batch = next_id + 10 * (len(begun) + 1), batch + len(begun) + 1
        if len(model) > n + 200:  # or it becomes slow
            with slosh.open(path, n_jobs=1) as index:
                index.remove(list(model)[n + 20 :])
            model = dict(list(model.items())[: n + 20])
    assert changes > kills / 10, changes  # it did something, however slow the machine
    assert halves, changes  # and was killed in the midst of it


changed_model = child.changed


# -- any history -------------------------------------------------------------------------------------------------------

POOL = [child.points_of(str(i), 0) for i in range(9)]  # few, so that many sets are equal
NAMES = [f"{letter}{i}" for letter in "zbq" for i in range(7)]
DAMAGES = ["missing", "stamp", "cut", "flip", "append", "empty", "folder", "file"]


def damage(cache, kind, number, place):
    """Spoils the caches of an index; `number` chooses the file and `place` (0 to 1) where in it."""
    files = sorted(cache.iterdir()) if cache.is_dir() else []
    if not files or kind == "missing":
        shutil.rmtree(cache, ignore_errors=True)
        return
    file = cache / "stamp" if kind == "stamp" else files[number % len(files)]
    content = bytearray(file.read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    if kind == "stamp":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(content[:at])
    elif kind == "flip" and content:
        content[at] ^= 1 << number % 8
        file.write_bytes(content)
    elif kind == "append":
        file.write_bytes(content + b"garbage" * 100)
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    elif kind == "file":
        shutil.rmtree(cache)
        cache.write_bytes(b"no folder")


def nearest(index, model, query, k, names, sliced):
    """By brute force, equal distances by id: from the vectors in NumPy, or from the points by slosh.pairwise."""
    if not names:
        return []
    sets = slosh.Sets.from_list([model[name][0] for name in names])
    asked = slosh.Sets.from_list([query])
    embedding = index._engine.recipe.embedding
    if sliced:
        distances = slosh.pairwise(asked, sets, slices=embedding.slices_)[0]
    else:
        ready = index._engine._sets
        vectors, one = ready._embed(sets)[0], ready._embed(asked)[0]
        if isinstance(ready.vector_search, LadderSearch):
            vectors, one = (ready.vector_search._store.like(x)[0] for x in (vectors, one))
        distances = np.sqrt(np.square(vectors.astype(np.float64) - one).sum(axis=1))
    return sorted(zip(distances.tolist(), names, strict=True))[:k]


class History(RuleBasedStateMachine):
    """Changes of an index and of a dict; what is found is always what brute force over the dict finds."""

    def __init__(self, path, search):
        super().__init__()
        self.path, self.search, self.index, self.reader, self.model = path, search, None, None, {}

    @initialize()
    def create(self):
        self.index = slosh.SetIndex.create(self.path, child.DIM, **child.options(search=self.search))
        if self.path is not None:
            self.reader = slosh.open(self.path, read_only=True, n_jobs=1)

    @rule(data=st.data(), replace=st.booleans(), one_by_one=st.booleans())
    def add(self, data, replace, one_by_one):
        free = NAMES if replace else [name for name in NAMES if name not in self.model]
        names = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=9)) if free else []
        chosen = data.draw(st.lists(st.integers(0, len(POOL) - 1), min_size=len(names), max_size=len(names)))
        new = {name: (POOL[i], {"set": i, "n": len(name)}) for name, i in zip(names, chosen, strict=True)}
        for part in [[name] for name in names] if one_by_one else [names]:
            sets, about = [new[name][0] for name in part], [new[name][1] for name in part]
            self.index.add(sets, part, about, update=replace)
        self.model |= new

    @precondition(lambda self: self.model)
    @rule(data=st.data(), points=st.booleans())
    def update(self, data, points):
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, min_size=1, max_size=4))
        i = data.draw(st.integers(0, len(POOL) - 1))
        new = {name: (POOL[i] if points else self.model[name][0], {"set": i, "new": True}) for name in names}
        self.index.update(names, [POOL[i]] * len(names) if points else None, [about for _, about in new.values()])
        self.model |= new

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, max_size=6))
        self.index.remove(names)
        for name in names:
            del self.model[name]

    @rule()
    def fail(self):
        with pytest.raises(ValueError, match="twice"):
            self.index.add(POOL[:2], ["x", "x"])
        with pytest.raises(KeyError):
            self.index.remove([*list(self.model)[:2], "nobody"])

    @rule()
    def compact(self):
        self.index.compact()
        assert self.index.ids == sorted(self.model)

    @precondition(lambda self: self.path is not None)
    @rule(kind=st.sampled_from([None, *DAMAGES]), number=st.integers(0, 99), place=st.floats(0, 1))
    def reopen(self, kind, number, place):
        self.index.close()
        if kind is not None:
            self.reader.close()  # or it may see its memory change
            damage(self.path / "cache", kind, number, place)
            self.reader = slosh.open(self.path, read_only=True, n_jobs=1)
        self.index = slosh.open(self.path, n_jobs=1)
        if kind is None:
            assert self.index.info()["embedded_on_open"] == 0

    @rule(
        query=st.integers(0, len(POOL) - 1),
        k=st.integers(1, 12),
        certify=st.booleans(),
        where=st.sampled_from([None, {"set": [0, 1, 2, 3]}, {"new": {"exists": True}}, {"set": 4}, {"set": {"!=": 4}}]),
        by_reader=st.booleans(),
    )
    def look(self, query, k, certify, where, by_reader):
        index = self.reader if by_reader and self.reader is not None else self.index
        if not self.model:
            assert len(index) == 0
            return
        node = None if where is None else slosh.where.parse(where)
        names = [name for name, (_, about) in self.model.items() if node is None or slosh.where.matches(node, about)]
        hits = index.search(POOL[query], k, where=where, certify=certify, recall=None if certify else 1.0)
        expected = nearest(index, self.model, POOL[query], k, names, certify)
        assert hits.ids == [name for _, name in expected]
        np.testing.assert_allclose(hits.distances, [distance for distance, _ in expected], rtol=1e-6, atol=1e-7)
        assert [about["set"] for about in hits.metadata] == [self.model[name][1]["set"] for name in hits.ids]
        near = index.range_search(POOL[query], 0.7, where=where, certify=certify)
        everything = nearest(index, self.model, POOL[query], len(names), names, certify)
        assert near.ids == [name for distance, name in everything if distance <= 0.7]
        by_id = sorted(self.model)[query % len(self.model)]
        others = [name for name in names if name != by_id]
        hits = index.search(id=by_id, k=k, where=where, certify=certify, recall=None if certify else 1.0)
        points = self.model[by_id][0]
        assert hits.ids == [name for _, name in nearest(index, self.model, points, k, others, certify)]

    @rule()
    def check(self):
        for index in (self.index, self.reader):
            if index is not None:
                assert sorted(index.ids) == sorted(self.model)
                found = index.get(list(self.model))
                assert found.metadata == [about for _, about in self.model.values()]
                both = zip(found.sets, self.model.values(), strict=True)
                assert all(np.array_equal(x, points) for x, (points, _) in both)
                report = index.verify()
                assert report.ok, str(report)

    def teardown(self):
        if self.index is not None:
            self.check()
            self.index.close()
        if self.reader is not None:
            self.reader.close()


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("search", [LadderSearch(), LadderSearch(precision=32, n_lists=3), ExactSearch()], ids=repr)
def test_answers_do_not_depend_on_history(tmp_path, monkeypatch, where, search):
    monkeypatch.setattr(ladder, "LEAST", 8)  # so that few sets have a basis and lists
    monkeypatch.setattr(ladder, "FEW", 2)
    number = iter(range(10_000))

    def machine():
        return History(tmp_path / str(next(number)) if where == "disk" else None, search)

    few = settings(max_examples=12 if where == "disk" else 20, stateful_step_count=25, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=few)


def test_approximate_answers_are_those_of_a_fresh_build_after_compact(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"{i:05}" for i in rng.permutation(20_000)[:3600]]

    def cloud():
        return rng.normal(size=(4, 2)) * rng.uniform(0.5, 2) + rng.normal(size=2)

    sets = {name: cloud() for name in names}
    index = slosh.SetIndex.create(tmp_path / "index", 2, **child.options())
    for first in range(0, 3600, 900):
        index.add([sets[name] for name in names[first : first + 900]], names[first : first + 900])
    index.update(names[:200], [sets[name] + 1 for name in names[:200]])
    index.remove(names[3000:])
    queries = [cloud() for _ in range(60)]
    found, exact = index.search(queries, k=10), index.search(queries, k=10, recall=1.0)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.ids, exact.ids, strict=True)])
    assert found.stats.recall >= 0.99
    assert recall >= 0.97
    index.compact()
    now = {**sets, **{name: sets[name] + 1 for name in names[:200]}}
    fresh = slosh.SetIndex.create(tmp_path / "fresh", 2, **child.options())
    fresh.add([now[name] for name in sorted(names[:3000])], sorted(names[:3000]))
    memory = slosh.SetIndex.create(None, 2, **child.options())
    memory.add([now[name] for name in sorted(names[:3000])], sorted(names[:3000]))
    a, b, c = (each.search(queries, k=10, recall=0.8) for each in (index, fresh, memory))
    assert a.stats.recall < 1.0
    assert a.ids == b.ids == c.ids
    assert np.array_equal(np.stack(a.distances), np.stack(b.distances))
    assert index.search(queries, k=10).ids == fresh.search(queries, k=10).ids
    for each in (index, fresh):
        each.close()


# -- caches ------------------------------------------------------------------------------------------------------------


def vectors_embedded(monkeypatch):
    """Counts the sets that are embedded."""
    calls, real = [], SetSearch._vectors

    def counted(self, sets):
        calls.append(len(sets))
        return real(self, sets)

    monkeypatch.setattr(SetSearch, "_vectors", counted)
    return calls


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An index of some thousand sets, removed from and updated, whose ladder is trained; and its answers."""
    path = tmp_path_factory.mktemp("trained") / "index"
    index, _ = made(path, 2600)
    index.remove([str(i) for i in range(0, 2600, 9)])
    some = [str(i) for i in range(1, 2600, 18)]
    index.update(some, [child.points_of(name, 1) for name in some])
    answers = ask(index)
    assert index.info()["search_info"]["trained_on"] > 0
    index.close()
    return path, answers


def ask(index):
    """Answers of every kind, in plain lists."""
    queries = [child.points_of(str(i), 7) for i in range(40)]
    fast = index.search(queries, k=5, recall=0.8)
    assert fast.stats.recall < 1.0
    default, exact = index.search(queries, k=5), index.search(queries, k=5, recall=1.0)
    true = index.search(queries[:5], k=5, certify=True)
    near = index.range_search(queries[:5], 0.3, where={"mod": 1})
    return [(each.ids, [d.tolist() for d in each.distances]) for each in (fast, default, exact, true, near)]


SPOILT = [
    *((kind, number, place) for kind, place in [("flip", 0.0), ("cut", 0.5)] for number in range(10)),
    *((kind, number, 0.5) for kind in ("append", "empty", "folder") for number in (0, 5)),
    ("missing", 0, 0),
    ("stamp", 0, 0),
    ("file", 0, 0),
    ("flip", 9, 0.99),
]


def test_a_spoilt_cache_is_made_again(tmp_path, trained):
    path, answers = trained
    n_files = len(list((path / "cache").iterdir()))
    assert n_files <= 10
    rebuilt = 0
    for kind, number, place in SPOILT:
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        damage(copy / "cache", kind, number, place)
        for read_only in (True, False):
            with slosh.open(copy, read_only=read_only, n_jobs=1) as index:
                assert ask(index) == answers, (kind, number, place)
                rebuilt += index.info()["embedded_on_open"] > 0
        with slosh.open(copy, n_jobs=1) as index:
            assert index.info()["embedded_on_open"] == 0, (kind, number, place)
            index.add([child.points_of("1", 3)], ["more"])
            assert len(index) == len(index.ids)
        shutil.rmtree(copy)
    assert rebuilt > len(SPOILT) / 2


def test_every_byte_of_the_cache_counts_and_is_checked(tmp_path, trained):
    path, _ = trained
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        assert index.verify().ok
        assert index.info()["embedded_on_open"] == 0
        assert index.info()["cache_rebuilt"] is None


def test_the_cache_of_another_index_is_not_used(tmp_path):
    (a, _), (b, _) = made(tmp_path / "a", 60), made(tmp_path / "b", 0)
    b.add([child.points_of(str(i + 500), 3) for i in range(60)], list(map(str, range(60))))
    query = child.points_of("3", 3)
    expected = b.search(query, k=60)
    for each in (a, b):
        each.close()
    shutil.rmtree(tmp_path / "b" / "cache")
    shutil.copytree(tmp_path / "a" / "cache", tmp_path / "b" / "cache")
    with slosh.open(tmp_path / "b", n_jobs=1) as b:
        found = b.search(query, k=60)
        assert found.ids == expected.ids
        assert np.array_equal(found.distances, expected.distances)
        assert b.verify().ok


@pytest.mark.parametrize("then", ["nothing", "remove", "add", "add more", "compact"])
def test_a_database_restored_from_a_copy_does_not_use_the_newer_cache(tmp_path, then):
    """As the errors say: restore it from a copy. The cache is then of a future that never came."""
    path = tmp_path / "index"
    index, _ = made(path, 20)
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
        elif then == "compact":
            index.compact()

    # The cache comes back after the change, and before it.
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 20
        change(index)
        assert index.verify().ok
        expected = index.search(child.points_of("7", 5), k=40)
    shutil.rmtree(path / "cache")
    shutil.copytree(tmp_path / "newer", path / "cache")
    for read_only in (True, False):
        with slosh.open(path, read_only=read_only, n_jobs=1) as index:
            assert index.verify().ok
            found = index.search(child.points_of("7", 5), k=40)
            assert found.ids == expected.ids
            assert np.array_equal(found.distances, expected.distances)


def test_one_more_set_is_one_more_to_embed(tmp_path, children, monkeypatch):
    path = tmp_path / "index"
    index, _ = made(path, 3000)
    index.close()
    calls = vectors_embedded(monkeypatch)
    with slosh.open(path, n_jobs=1) as index:
        assert calls == []
        assert index.info()["embedded_on_open"] == 0
    calls.clear()
    assert children.run("add_and_die", path, "50000") == -signal.SIGKILL
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 1
        assert calls == [1]
    with slosh.open(path, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 1
        assert calls == [1, 1]
        assert "50000" in index
        assert index.search(child.points_of("50000", 0), k=1, recall=1.0).distances[0] == 0
    calls.clear()
    stamp = (path / "cache" / "stamp").read_bytes()
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of(str(i), 0) for i in range(7)], [f"x{i}" for i in range(7)])
    calls.clear()
    (path / "cache" / "stamp").write_bytes(stamp)
    with slosh.open(path, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 7
        assert sum(calls) == 7
        assert index.verify().ok
    calls.clear()
    with slosh.open(path, n_jobs=1) as index:
        assert index.info()["embedded_on_open"] == 0
        assert calls == []


# -- one writer, many readers ------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_at_once(tmp_path, children):
    path = tmp_path / "index"
    index, _ = made(path, 5)
    started = time.monotonic()
    with pytest.raises(slosh.IndexLocked, match=f"process {os.getpid()}"):
        slosh.open(path, n_jobs=1)
    assert time.monotonic() - started < 1
    index.close()
    other = children
    number = other.start("hold", path, 60)
    assert other.line() == "held"
    started = time.monotonic()
    with pytest.raises(OSError, match=f"{number}.*read_only=True"):
        slosh.open(path, n_jobs=1)
    assert time.monotonic() - started < 1
    with slosh.open(path, read_only=True, n_jobs=1) as reader:
        assert len(reader) == 5
    os.kill(number, signal.SIGKILL)
    assert other.end() == -signal.SIGKILL
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 5


def test_a_reader_sees_each_change_at_its_next_call(tmp_path):
    index = slosh.SetIndex.create(tmp_path / "index", child.DIM, **child.options())
    reader = slosh.open(tmp_path / "index", read_only=True, n_jobs=1)
    assert len(reader) == 0
    with pytest.raises(ValueError, match="empty"):
        reader.search(POOL[0])
    index.add(POOL, ids=list("abcdefghi"), metadata={"x": 1})
    assert reader.search(POOL[0], k=9).ids == index.search(POOL[0], k=9).ids
    index.remove(["b", "c"])
    assert reader.ids == list("adefghi")
    index.update("a", POOL[4])
    assert np.array_equal(reader.get("a").points, POOL[4])
    index.update("d", metadata={"y": 2})
    assert reader.search(POOL[0], where={"y": 2}).ids == ["d"]
    index.compact()
    index.add([POOL[0]], ids=["z"])
    assert reader.ids == list("adefghiz")
    index.tune(recall=0.9, k=2)
    assert reader.info()["recall"] == 0.9
    index.close()
    assert reader.search(POOL[0], k=9).ids[0] == "z"
    with slosh.open(tmp_path / "index", n_jobs=1) as index:
        index.add([POOL[0]], ids=["0"])
        assert reader.search(POOL[0], k=1).ids == ["0"]
    assert reader.verify().ok
    reader.close()


def batch_of(number, seed=3):
    rng = np.random.default_rng([seed, number])
    return [rng.normal(size=(4, child.DIM)) for _ in range(10)], [f"{number}-{i}" for i in range(10)]


@pytest.mark.parametrize("before", [1, 110])  # the ladder is not trained, and is
def test_readers_see_whole_batches_while_a_writer_goes_on(tmp_path, several, before):
    path, seconds = tmp_path / "index", 2.5
    index = slosh.SetIndex.create(path, child.DIM, **child.options())
    last = 0
    for last in range(before):
        index.add(*batch_of(last), {"batch": last})
    readers = several
    logs = [tmp_path / f"log{i}" for i in range(2)]
    for reader, log in zip(readers, logs, strict=True):
        reader.start("read", path, log, seconds)
    end = time.monotonic() + seconds + 0.5
    rng = np.random.default_rng(before)
    there = list(range(before))
    while time.monotonic() < end:
        dice = rng.random()
        if dice < 0.25 and len(there) > 5:
            gone = there.pop(int(rng.integers(len(there) - 1)))
            index.remove([f"{gone}-{i}" for i in range(10)])
        elif dice < 0.3:
            index.compact()
        elif dice < 0.4 and len(there) > 5:
            number = there[int(rng.integers(len(there)))]
            index.update([f"{number}-{i}" for i in range(10)], batch_of(number, seed=int(rng.integers(99)))[0])
        else:
            last += 1
            index.add(*batch_of(last), {"batch": last})
            there.append(last)
    assert index.verify().ok
    index.close()
    for reader, log in zip(readers, logs, strict=True):
        assert reader.end() == 0
        told = json.loads(log.read_text())
        assert told["seen"] > 3, told


# -- threads -----------------------------------------------------------------------------------------------------------


def together(*works, seconds=60):
    """Runs each in a thread of its own; the first error, or a thread that does not end, is the test's."""
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback()
        pytest.fail("threads wait for each other")
    if errors:
        raise errors[0]


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("search", [LadderSearch(), ExactSearch()], ids=repr)
def test_threads_search_while_another_changes_the_index(tmp_path, where, search):
    index = slosh.SetIndex.create(
        tmp_path / "i" if where == "disk" else None, child.DIM, **child.options(search=search)
    )
    rng = np.random.default_rng(0)
    index.add(
        [rng.normal(size=(4, 2)) for _ in range(1200)], metadata=[{"near": True, "mod": i % 7} for i in range(1200)]
    )
    queries = [rng.normal(size=(3, 2)) for _ in range(6)]

    def ask():
        found = [
            index.search(queries, k=5, recall=1.0),
            index.search(queries, k=5, certify=True),
            index.search(queries, k=5, where={"near": True, "mod": [1, 2]}),
            index.search(id=["0", "77"], k=4, recall=1.0),
            index.range_search(queries, 0.2),
        ]
        return [(each.ids, [d.tolist() for d in each.distances]) for each in found]

    expected, stop = ask(), threading.Event()
    counts = [0, 0, 0]

    def look(i):
        while not stop.is_set():
            assert ask() == expected
            assert len(index.get(["0", "1"]).ids) == 2
            assert len(index.search(queries[0], k=5)) == 5
            counts[i] += 1

    def change():
        try:
            end, n = time.monotonic() + 1.2, 0
            while time.monotonic() < end:
                names = [f"far{n}-{i}" for i in range(5)]
                index.add([rng.normal(size=(3, 2)) + 100 for _ in names], names, {"near": False})
                if n % 2:
                    index.remove(names)
                if n % 3 == 0:
                    index.update(names[0] if not n % 2 else "far0-0", metadata={"near": False, "n": n})
                if n % 8 == 7:
                    index.compact()
                n += 1
        finally:
            stop.set()
        assert n > 3

    together(lambda: look(0), lambda: look(1), lambda: look(2), change)
    assert min(counts) > 0
    assert ask() == expected
    assert index.verify().ok
    index.close()


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_function_that_ranks_may_use_the_index_while_another_thread_waits_to_change_it(tmp_path, where):
    index, _ = made(tmp_path / "i" if where == "disk" else None, 30)
    asked, done = threading.Event(), []

    def own(query, candidates):
        asked.set()
        time.sleep(0.3)  # the other thread waits by now
        return np.full(len(candidates), float(len(index.ids)))

    def look():
        done.append(index.search(child.points_of("1", 0), k=3, rerank=own))

    def change():
        asked.wait(10)
        index.add([child.points_of("1", 5)], ["more"])

    together(look, change, seconds=20)
    assert len(done[0]) == 3
    assert len(index) == 31
    index.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_closing_while_others_search(tmp_path, read_only):
    path = tmp_path / "i"
    made(path, 200)[0].close()
    for _ in range(5):
        index = slosh.open(path, read_only=read_only, n_jobs=1)
        query = child.points_of("1", 0)

        def ask(index=index, query=query):
            while True:
                assert len(index.search(query, k=5, where={"mod": 1})) == 5
                index.get("3")

        def look(ask=ask):
            with pytest.raises(ValueError, match="closed"):
                ask()

        def close(index=index):
            time.sleep(0.05)
            index.close()

        together(look, look, look, close, seconds=20)


def test_many_threads_leave_no_files_open(tmp_path):
    index, _ = made(tmp_path / "i", 20)
    query = child.points_of("1", 0)
    index.search(query)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        together(*[lambda: index.search(query)] * 4)
    assert len(os.listdir("/proc/self/fd")) <= before + 4 * 3
    index.close()
    for _ in range(20):
        with pytest.raises(slosh.IndexLocked), slosh.open(tmp_path / "i", n_jobs=1) as index:
            slosh.open(tmp_path / "i", n_jobs=1)
    assert len(os.listdir("/proc/self/fd")) <= before


# -- a full disk, an interrupt -----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A folder with little room."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def no_room(folder):
    """Takes all that is left."""
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
    ballast = no_room(small_disk)
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
            assert re.search("full|disk|room|space", str(error)), error  # noqa: PT017
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


@pytest.mark.parametrize("most", [1 << 17, 1 << 20])
def test_files_that_may_not_grow(tmp_path, children, most):
    index = slosh.SetIndex.create(tmp_path / "index", child.DIM, **child.options())
    index.close()
    assert children.run("small_files", tmp_path / "index", tmp_path / "log", most) == 0
    done = json.loads((tmp_path / "log").read_text())["done"]
    with slosh.open(tmp_path / "index", n_jobs=1) as index:
        assert len(index) == 10 * done + 1
        assert index.verify().ok


@pytest.mark.parametrize("step", ["insert", "number", "put", "load"])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_change_that_fails_at_any_step(tmp_path, monkeypatch, step, weighted):
    """After it, all is as before, in memory too, and the next change is as if nothing had been."""
    from slosh.engines import lines, local

    def broken(*given, **more):
        raise OSError(28, "no room")

    index = slosh.SetIndex.create(tmp_path / "i", child.DIM, **child.options())
    index.compact()
    owner, name = {
        "insert": (lines, "insert"),
        "number": (lines, "number"),
        "put": (local.Local, "_put"),
        "load": (local.Local, "_catch_up"),
    }[step]
    sets = [child.points_of(str(i), 0) for i in range(12)]
    for n in range(2):
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(owner, name, broken)
            if step == "load":
                index.compact()
            else:
                index.add(sets[:5], [f"lost{i}" for i in range(5)])
        own = [np.arange(1, len(x) + 1) for x in sets[6 * n : 6 * n + 6]] if weighted else None
        index.add(sets[6 * n : 6 * n + 6], [f"{n}-{i}" for i in range(6)], weights=own)
    assert len(index) == 12
    assert index.verify().ok
    before = index.search(sets[3], k=12)
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        after = index.search(sets[3], k=12)
        assert after.ids == before.ids
        assert np.array_equal(after.distances, before.distances)


def test_an_interrupt_leaves_all_of_a_change_or_nothing(tmp_path, children):
    path = tmp_path / "index"
    made(path, 0)[0].close()
    process, log = children, tmp_path / "log"
    rng = np.random.default_rng(0)
    for i in range(8):
        log.unlink(missing_ok=True)
        number = process.start("interrupt", path, log)
        while not log.exists() or b"done" not in log.read_bytes():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(number, signal.SIGINT)
        assert process.end() == 0, i
        assert log.read_bytes().endswith(b"well\n")
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) % 50 == 8
        assert index.verify().ok
