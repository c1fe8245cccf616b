"""States: what one holds never changes, whatever comes after it; against NumPy."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import hurried_threads, together
from slosh.errors import DamagedError
from slosh.hash import PStableHash, SignHash
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch, Search
from slosh.search.columns import Column, FileColumn, filled
from slosh.search.state import Allowed, Trained

MAKERS = {
    "exact": lambda: ExactSearch(n_jobs=1),
    "ladder": lambda: LadderSearch(precision=32, n_components=3, n_lists=5, n_jobs=1),
    "ladder16": lambda: LadderSearch(n_components=2, n_lists=4, n_jobs=1),
    "hamming": lambda: HammingSearch(SignHash(64), rerank=8, n_jobs=1),
    "lsh": lambda: LSHSearch(PStableHash(4.0, 2, 4), n_jobs=1),
}
EXACT = ["exact", "ladder", "hamming", "lsh"]  # those that store float32


@pytest.fixture(params=list(MAKERS))
def make(request):
    return MAKERS[request.param]


def whole(rng, n, dim):
    """Vectors of small whole numbers: distances are exact, and there are many ties."""
    return rng.integers(-3, 4, (n, dim)).astype(np.float32)


def answers(state, queries, allowed=None):
    """The bits of all that a state answers to these queries, exactly and approximately."""
    if not state.n_alive:
        return [state.n, state.n_alive]
    exact = state.nearest(queries, 4, recall=1.0, allowed=allowed)
    rough = state.nearest(queries, 3, allowed=allowed, recall=0.5)
    near = state.within(queries, np.full(len(queries), 3.0), recall=1.0, allowed=allowed)
    parts = [exact.distances, exact.positions, exact.tied, rough.distances, rough.positions, near.offsets]
    parts += [near.distances, near.positions, state.alive, *state.columns().values()]
    return [state.n, state.n_alive, *(np.asarray(part).tobytes() for part in parts)]


def check_oracle(state, vectors, queries):
    """Exact answers are those of a scan in NumPy, ties by position; `tied` says whether one is left out."""
    alive = np.flatnonzero(state.alive)
    found = state.nearest(queries, 4, recall=1.0)
    k = min(4, len(alive))
    assert found.positions.shape == (len(queries), k)
    for i, query in enumerate(queries):
        away = np.sqrt(np.square(vectors[alive].astype(float) - query).sum(axis=1))
        order = np.lexsort((alive, away))
        assert found.positions[i].tolist() == alive[order[:k]].tolist()
        np.testing.assert_allclose(found.distances[i], away[order[:k]], rtol=1e-12)
        if k:
            assert found.tied[i] == (len(alive) > k and away[order[k]] == away[order[k - 1]])


@pytest.mark.parametrize("maker", list(MAKERS))
@settings(max_examples=25)
@given(
    steps=st.lists(st.sampled_from(["extend", "extend", "abandon", "remove", "train"]), min_size=3, max_size=9),
    seed=st.integers(0, 10_000),
    ask_at_once=st.booleans(),
)
def test_what_a_state_holds_never_changes(maker, steps, seed, ask_at_once):
    """A random history: every state that is kept gives the same bits later as when it was made."""
    rng = np.random.default_rng(seed)
    dim, queries = 4, whole(rng, 3, 4)
    state, vectors, kept = MAKERS[maker]().start(dim), np.empty((0, dim), np.float32), []
    for step in ["extend", *steps]:
        if step == "extend":
            more = whole(rng, int(rng.integers(1, 60)), dim)
            state, vectors = state.extend(more), np.concatenate([vectors, more])
        elif step == "abandon":
            other = state.extend(whole(rng, int(rng.integers(1, 60)), dim) + 1)
            if rng.random() < 0.5:
                answers(other, queries)
            del other
        elif step == "remove" and state.n_alive:
            alive = np.flatnonzero(state.alive)
            state = state.remove(rng.choice(alive, int(rng.integers(1, len(alive) + 1)), replace=False))
        elif step == "train" and state.n_alive >= 2:
            state = state.train()
        allowed = Allowed.from_mask(state.alive & (rng.random(state.n) < 0.5))
        if ask_at_once:
            before = [answers(state, queries), answers(state, queries, allowed)]
        else:  # what is asked only after newer states were made is what a copy made now answers
            content = {name: np.array(array) for name, array in state.columns().items()}
            about = {"n": state.n, "alive": state.alive.copy(), "trained": state.trained()}
            before = MAKERS[maker]().start(dim, columns=filled(content), **about)
        kept.append((state, vectors, allowed, before))
    for each, held, allowed, before in kept:
        if ask_at_once:
            assert [answers(each, queries), answers(each, queries, allowed)] == before
        else:
            assert answers(each, queries)[:5] == answers(before, queries)[:5]
            assert answers(each, queries, allowed)[:5] == answers(before, queries, allowed)[:5]
        if maker in EXACT:
            assert np.array_equal(each.vectors(np.arange(each.n)), held)
            check_oracle(each, held, queries)
        alive = np.flatnonzero(each.alive)
        assert each.holds(alive, held[alive]).all()
        assert not each.holds(alive, held[alive] + 7).any()


def test_positions_that_a_query_must_not_find(make):
    rng = np.random.default_rng(1)
    state = make().start(4).extend(whole(rng, 60, 4))
    state = state.remove(np.arange(5))
    vectors = state.vectors(np.arange(60))
    own = np.arange(10, 30)
    for allowed in (None, Allowed.from_mask(state.alive & (np.arange(60) % 3 > 0))):
        there = np.flatnonzero(state.alive if allowed is None else allowed.mask)
        for k in (1, 7, len(there), 100):
            found = state.nearest(vectors[own], k, allowed=allowed, recall=1.0, exclude=own)
            for i, position in enumerate(own.tolist()):
                left = there[there != position]
                away = np.sqrt(np.square(vectors[left].astype(float) - vectors[position]).sum(axis=1))
                n = min(k, len(left))
                assert found.positions.shape[1] == min(k, len(there))
                np.testing.assert_allclose(found.distances[i][:n], np.sort(away)[:n], rtol=1e-6, atol=1e-4)
                assert position not in found.positions[i]
                assert np.all(found.positions[i][n:] == -1)
                assert np.all(np.isinf(found.distances[i][n:]))
                if k < len(left) and not isinstance(state.search, LadderSearch):
                    away.sort()
                    assert found.tied[i] == (away[k] == away[k - 1])
    nobody = state.nearest(vectors[own], 5, recall=1.0, exclude=np.full(20, -1))
    assert np.array_equal(nobody.positions, state.nearest(vectors[own], 5, recall=1.0).positions)
    rough = state.nearest(vectors[own], 3, exclude=own)
    assert not (rough.positions == own[:, None]).any()


def test_positions_that_a_query_must_not_find_within_a_radius(make):
    rng = np.random.default_rng(1)
    state = make().start(4).extend(whole(rng, 60, 4)).remove(np.arange(5))
    vectors = state.vectors(np.arange(60))
    own = np.concatenate([np.arange(10, 30), [-1]])  # the last query may find all
    queries, radii = vectors[own], np.repeat([2.5, 4.1, 0.1], 7)  # none is the distance of a pair
    for allowed in (None, Allowed.from_mask(state.alive & (np.arange(60) % 3 > 0))):
        there = np.flatnonzero(state.alive if allowed is None else allowed.mask)
        found = state.within(queries, radii, allowed=allowed, recall=1.0, exclude=own)
        assert np.array_equal(found.query, np.repeat(np.arange(21), np.diff(found.offsets)))
        for i, position in enumerate(own.tolist()):
            left = there[there != position]
            away = np.sqrt(np.square(vectors[left].astype(float) - queries[i]).sum(axis=1))
            part = slice(found.offsets[i], found.offsets[i + 1])
            assert sorted(found.positions[part]) == left[away <= radii[i]].tolist()
            np.testing.assert_allclose(found.distances[part], np.sort(away[away <= radii[i]]), atol=1e-3)


def test_exclude_by_row():
    search = LadderSearch(precision=32)
    vectors = np.random.default_rng(2).normal(size=(3000, 8)) * 0.8 ** np.arange(8)
    rows = search.add(vectors, np.random.default_rng(3).permutation(3000))
    for recall in (0.9, 1.0):
        found = search.search(vectors[:50], 5, recall=recall, exclude=rows[:50])
        more = search.search(vectors[:50], 6, recall=1.0)
        assert not (found.rows == rows[:50, None]).any()
        if recall == 1.0:
            assert np.array_equal(found.rows, more.rows[:, 1:])


@pytest.mark.parametrize("maker", list(MAKERS))
def test_a_stored_state_is_the_original_bit_for_bit(maker):
    rng = np.random.default_rng(4)
    vectors = (rng.normal(size=(2600, 6)) * 0.7 ** np.arange(6)).astype(np.float32)
    search = MAKERS[maker]()
    state = search.start(6).extend(vectors[:2000]).train().extend(vectors[2000:]).remove(np.arange(0, 2600, 9))
    queries = vectors[:40] + np.float32(0.01)
    if maker != "exact":
        state = state.calibrate(3, 0.5)
    expected = answers(state, queries)
    content, trained, derived = state.columns(), state.trained(), state.derived()
    again = search.start(
        6, n=state.n, columns=filled(content), alive=state.alive.copy(), trained=trained, derived=derived
    )
    assert answers(again, queries) == expected
    assert (again.trained() is None) == (trained is None)
    if trained is not None:
        assert again.trained().header == trained.header
    assert {name: array.dtype for name, array in content.items()} == {
        name: dtype for name, (_, dtype) in search.column_names(6).items()
    }
    for other in (None, Trained({}, {}), Trained({"filed": 3}, {"place": np.zeros(3)})):  # made anew
        anew = search.start(
            6, n=state.n, columns=filled(content), alive=state.alive.copy(), trained=trained, derived=other
        )
        assert answers(anew, queries)[2:5] == expected[2:5]
    if trained is not None:
        wrong = [
            Trained({}, trained.arrays),
            Trained(trained.header, {}),
            Trained({**trained.header, "calibrations": 3}, {}),
        ]
        for bad in wrong:
            with pytest.raises(DamagedError, match="the trained state does not fit"):
                search.start(6, n=state.n, columns=filled(content), alive=state.alive.copy(), trained=bad)
    version = state.trained_version
    assert state.extend(vectors[:1]).trained_version == version
    if maker != "exact":
        assert state.calibrate(4, 0.5).trained_version != version


def test_columns_in_files(make, tmp_path):
    """A state over files holds what one in memory does, and starts again from the files."""
    rng, columns, number = np.random.default_rng(5), {}, itertools.count()

    def in_files(name, width, dtype):
        columns[name] = FileColumn(tmp_path / f"{name}{next(number)}", width, dtype)
        return columns[name]

    search, vectors, queries = make(), whole(rng, 300, 4), whole(rng, 5, 4)
    state = search.start(4, columns=in_files).extend(vectors[:200]).extend(vectors[200:])
    memory = make().start(4).extend(vectors[:200]).extend(vectors[200:])
    assert answers(state, queries) == answers(memory, queries)
    assert set(columns) == set(search.column_names(4))

    def there(name, width, dtype):
        return columns[name]

    again = search.start(4, n=300, columns=there, trained=state.trained())
    assert answers(again, queries) == answers(memory, queries)
    assert answers(again.extend(vectors[:3]), queries) == answers(memory.extend(vectors[:3]), queries)


@pytest.mark.parametrize("maker", list(MAKERS))
def test_threads_with_different_filters(maker):
    """Each thread finds what its own filter allows, however the others ask meanwhile."""
    rng = np.random.default_rng(6)
    vectors = (rng.normal(size=(6000, 12)) * 0.8 ** np.arange(12)).astype(np.float32)
    state = MAKERS[maker]().start(12).extend(vectors).train().calibrated()
    filters = [Allowed.from_mask(np.arange(6000) % 2 == i) for i in range(2)]
    filters.append(Allowed.from_mask(np.arange(6000) >= 100))

    def answers_to(allowed):
        near = state.nearest(vectors[:3], 5, allowed=allowed).positions.tolist()
        return near, state.within(vectors[:3], np.full(3, 1.0), allowed=allowed).positions.tolist()

    expected = [answers_to(each) for each in filters]
    begin = threading.Barrier(6)

    def ask(i):
        begin.wait()
        shared = filters[i % 3]
        for turn in range(40):
            allowed = shared if turn % 2 else Allowed.from_mask(shared.mask)
            assert answers_to(allowed) == expected[i % 3]

    with hurried_threads():
        together(*[lambda i=i: ask(i) for i in range(6)])


def parts_of(thing, name="state"):
    """Return the identity of all that an object of slosh.search consists of, by name.

    It looks inside, since no behaviour shows what it is for: that a search leaves no trace in what threads share. A
    trace that is harmful only if another thread comes at the wrong moment changes no answer of a single thread.
    """
    found = {name: id(thing)}
    if type(thing).__module__.startswith("slosh.search") and not isinstance(thing, Search):
        for key, value in getattr(thing, "__dict__", {}).items():
            found |= parts_of(value, f"{name}.{key}")
    return found


@pytest.mark.parametrize("maker", list(MAKERS))
def test_a_search_leaves_no_trace_in_what_threads_share(maker):
    """Whatever is asked for or saved, the state, its lists and its tables are the same objects afterwards."""
    vectors = (np.random.default_rng(8).normal(size=(3300, 12)) * 0.8 ** np.arange(12)).astype(np.float32)
    state = MAKERS[maker]().start(12).extend(vectors[:3000]).train().calibrated()
    state.nearest(vectors[:3], 5)  # files what is in no bucket yet
    state = state.extend(vectors[3000:])
    state.nearest(vectors[:3], 5, recall=1.0)
    state.nearest(vectors[:3], 5)
    before = parts_of(state)
    assert len(before) > 5
    for i, recall in enumerate((None, 0.9, 1.0)):
        allowed = Allowed.from_mask(np.arange(3300) % (i + 2) > 0)
        state.nearest(vectors[:3], 4 + i, allowed=allowed, recall=recall)
        state.within(vectors[:3], np.full(3, 1.0), allowed=allowed)
    state.trained(), state.derived(), state.columns(), state.info()
    assert parts_of(state) == before


def test_searching_while_another_thread_adds_and_removes(make):
    """A search sees a whole number of batches, and every answer is that of a scan of them."""
    rng = np.random.default_rng(7)
    vectors, batch, search, done = whole(rng, 3000, 4), 100, make(), threading.Event()
    search.add(vectors[:batch])
    queries = whole(rng, 4, 4)

    def ask():
        seen = 0
        while not done.is_set() or not seen:
            state = search.state
            found = state.nearest(queries, 3, recall=1.0)
            assert state.n % batch == 0
            stored = state.vectors(np.flatnonzero(state.alive)).astype(float)
            away = np.sqrt(np.square(stored[None] - queries[:, None]).sum(axis=2))
            np.testing.assert_allclose(found.distances, np.sort(away, axis=1)[:, :3], rtol=1e-3, atol=1e-3)
            assert np.all(search.search(queries, 3).rows < 3000)
            seen += 1
        return seen

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(ask) for _ in range(3)]
        try:
            for first in range(batch, 3000, batch):
                search.add(vectors[first : first + batch])
                if first % 500 == 0:
                    search.remove(np.arange(first - 400, first - 350))
        finally:
            done.set()
        assert all(each.result() > 0 for each in threads)
    assert len(search) == 3000 - 50 * 5


def test_adding_one_row_copies_neither_vectors_nor_blocks(monkeypatch):
    """The cost of an add is that of its rows: columns grow by halves, and are otherwise written in place."""
    vectors = (np.random.default_rng(8).normal(size=(4000, 16)) * 0.8 ** np.arange(16)).astype(np.float32)
    state = LadderSearch().start(16).extend(vectors[:3000]).train()
    state = state.extend(vectors[3000:3001])
    grown, grow = [], Column.grown
    monkeypatch.setattr(Column, "grown", lambda self, used, size: grown.append(len(used)) or grow(self, used, size))
    for i in range(3001, 3400):
        state = state.extend(vectors[i : i + 1])
    assert sum(grown) < 3 * 3400
    assert state.n == 3400


def test_nothing_to_find(make):
    state = make().start(3).extend(np.eye(3))
    for found in (
        state.nearest(np.eye(3, dtype=np.float32), 2, allowed=Allowed.from_mask(np.zeros(3, bool))),
        state.nearest(np.empty((0, 3), np.float32), 0),
        state.remove(np.arange(3)).nearest(np.eye(3, dtype=np.float32), 2),
    ):
        assert found.positions.shape[1] == 0
        assert found.promise == 1.0
    near = state.within(np.eye(3, dtype=np.float32), np.ones(3), allowed=Allowed.from_mask(np.zeros(3, bool)))
    assert near.offsets.tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="alive is"):
        make().start(3, alive=np.ones(2, bool))
