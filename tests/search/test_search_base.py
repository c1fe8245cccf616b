"""The protocol, for every search: the same answers as NumPy whatever was added and removed before, and clear errors."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import slosh
from builders import together
from slosh import search
from slosh.data import tensors
from slosh.errors import DamagedError, FormatError, InputError
from slosh.native import kernel
from slosh.search import ExactSearch, LadderSearch, load
from slosh.search.columns import filled
from slosh.search.state import Trained

MAKERS = {
    "exact": lambda: ExactSearch(n_jobs=1),
    "ladder": lambda: LadderSearch(n_jobs=1),
    "ladder32": lambda: LadderSearch(precision=32, n_jobs=1),
    "lists": lambda: LadderSearch(precision=32, n_components=3, n_lists=5, n_jobs=2),
    "lists16": lambda: LadderSearch(n_components=2, n_lists=4),
    "lsh": lambda: search.LSHSearch(n_jobs=1),
    "hamming": lambda: search.HammingSearch(rerank=16, n_jobs=1),
    "faiss": lambda: search.FaissSearch(n_jobs=1),
    "faiss lists": lambda: search.FaissSearch("IVF16,PQ1x4fs", n_jobs=2),
    "faiss graph": lambda: search.FaissSearch("HNSW8,SQ8", n_jobs=1),
}


@pytest.fixture(params=list(MAKERS))
def make(request):
    return MAKERS[request.param]


def nearest(queries, vectors, rows, k):
    """By distance, then row: what every exact search has to give."""
    table = np.square(queries[:, None].astype(np.float64) - vectors[None].astype(np.float64)).sum(axis=2)
    order = np.stack([np.lexsort((rows, line))[:k] for line in table])
    return np.sqrt(np.take_along_axis(table, order, axis=1)), rows[order]


def whole(shape, seed, low=-4, high=5):
    """Vectors of small whole numbers: distances are exact, and there are many ties."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


def in_16_bits(vectors):
    """Vectors as LadderSearch stores them: whole numbers up to 32767 times a scale of the vector."""
    vectors = np.asarray(vectors, np.float32)
    scale = np.maximum(np.abs(vectors).max(axis=1, keepdims=True) / np.float32(32767), np.float32(1e-37))
    return np.rint(vectors / scale).clip(-32767, 32767).astype(np.float32) * scale


def check_exact(index, vectors, rows, queries, k, allowed=None):
    """`index` answers as a scan of the vectors does; 16-bit vectors up to their rounding."""
    result = index.search(queries, k, allowed=allowed, recall=1.0)
    if allowed is not None:
        keep = np.isin(rows, allowed)
        vectors, rows = vectors[keep], rows[keep]
    k = min(k, len(rows))
    assert result.distances.shape == result.rows.shape == (len(queries), k)
    if getattr(index, "precision", 32) == 32:
        distances, found = nearest(queries, vectors, rows, k)
        assert np.array_equal(result.rows, found)
        np.testing.assert_allclose(result.distances, distances, rtol=1e-12)
        return
    stored = index.vectors(rows)
    np.testing.assert_allclose(stored, vectors, atol=1e-4 * max(1, np.abs(vectors).max()))
    asked = in_16_bits(queries)
    distances, _ = nearest(asked, stored, rows, k)
    np.testing.assert_allclose(result.distances, distances, rtol=1e-9, atol=1e-9)
    place = {int(row): i for i, row in enumerate(rows)}
    for query, line, found in zip(asked, result.distances, result.rows, strict=True):
        assert len(set(found.tolist())) == k
        true = np.linalg.norm(stored[[place[r] for r in found.tolist()]].astype(float) - query, axis=1)
        np.testing.assert_allclose(line, true, rtol=1e-9, atol=1e-9)


def test_exact_on_every_kernel(make, each_kernel):
    vectors, rows = whole((300, 9), 0), np.random.default_rng(1).permutation(1000)[:300].astype(np.int64)
    index = make()
    assert np.array_equal(index.add(vectors[:100], rows[:100]), rows[:100])
    index.add(vectors[100:], rows[100:])
    queries = whole((7, 9), 2)
    for k in (1, 5, 300, 1000):
        check_exact(index, vectors, rows, queries, k)
    if hasattr(index, "train"):
        index.train()
        check_exact(index, vectors, rows, queries, 5)
        check_exact(index, vectors, rows, queries, 20, allowed=rows[::3])


def test_range_search(make, each_kernel):
    vectors, queries = whole((200, 6), 3), whole((5, 6), 4)
    index = make()
    index.add(vectors)
    if hasattr(index, "train"):
        index.train()
    if getattr(index, "precision", 32) == 16:
        vectors, queries = index.vectors(np.arange(200)), in_16_bits(queries)
    table = np.linalg.norm(queries[:, None].astype(float) - vectors[None], axis=2)
    for radius in (0.0, 5.0, np.linspace(2, 9, 5), 1e9):
        result = index.range_search(queries, radius + 1e-9, recall=1.0)
        assert len(result) == 5
        for i, (distances, rows) in enumerate(result):
            there = np.flatnonzero(table[i] <= np.broadcast_to(radius, 5)[i] + 1e-9)
            assert set(rows.tolist()) == set(there.tolist())
            assert np.all(np.diff(distances) >= 0)
            np.testing.assert_allclose(distances, table[i][rows], rtol=1e-9, atol=1e-9)
        assert np.array_equal(result[-1][1], result[4][1])
    with pytest.raises(IndexError, match="query 5"):
        result[5]


def test_a_mask_and_a_list_of_rows_are_the_same(make):
    vectors, rows = whole((120, 5), 5), np.arange(120) * 2
    index = make()
    index.add(vectors, rows)
    index.remove([0, 4])
    allowed = rows[10:60:3]
    mask = np.zeros(239, bool)
    mask[allowed] = True
    queries = whole((4, 5), 6)
    a, b = index.search(queries, 5, allowed=mask), index.search(queries, 5, allowed=allowed.tolist())
    assert np.array_equal(a.rows, b.rows)
    assert np.isin(a.rows, allowed).all()
    check_exact(index, vectors[2:], rows[2:], queries, 7, allowed=allowed)
    assert index.search(queries, 5, allowed=[]).rows.shape == (4, 0)
    assert len(index.range_search(queries, 1.0, allowed=[])[0][1]) == 0
    assert index.search(queries[:0], 5).rows.shape == (0, 5)
    with pytest.raises(ValueError, match=r"mask of 10 entries, but row 238 is there: give an entry for each row"):
        index.search(queries, allowed=mask[:10])
    with pytest.raises(ValueError, match="row 4 is not there"):
        index.search(queries, allowed=[2, 4])
    with pytest.raises(ValueError, match="one dimension"):
        index.search(queries, allowed=mask[None])


def test_results_do_not_depend_on_threads_or_batches(make):
    rng = np.random.default_rng(7)
    vectors = (rng.normal(size=(3000, 24)) * 0.8 ** np.arange(24)).astype(np.float32)
    index = make()
    index.add(vectors)
    queries = vectors[:40] + np.float32(0.01)
    one = index.search(queries, 10, recall=0.8)
    index.n_jobs = 3
    many = index.search(queries, 10, recall=0.8)
    assert np.array_equal(one.rows, many.rows)
    assert np.array_equal(one.distances, many.distances)
    for i in (0, 17):
        single = index.search(queries[i : i + 1], 10, recall=0.8)
        assert np.array_equal(single.rows[0], one.rows[i])
        assert np.array_equal(single.distances[0], one.distances[i])


def test_a_stored_vector_is_its_own_nearest(make):
    vectors = np.random.default_rng(8).normal(size=(500, 16)).astype(np.float32) * 1e3
    index = make()
    index.add(vectors)
    distances, rows = index.search(vectors[:50], 1, recall=1.0)
    assert np.array_equal(rows[:, 0], np.arange(50))
    assert np.all(distances == 0)


def test_duplicates_come_in_the_order_of_their_rows(make):
    index = make()
    rows = np.random.default_rng(9).permutation(400)
    index.add(np.ones((400, 3)) * 0.1, rows)
    distances, found = index.search(np.ones((1, 3)) * 0.1, 25, recall=1.0)
    assert np.array_equal(found[0], np.arange(25))
    assert np.all(distances == 0)


def test_extreme_vectors(make, each_kernel):
    """Huge, tiny and mixed sizes: nothing overflows, nothing is lost."""
    base = whole((60, 4), 10)
    for scale in (1e17, 1e-17, 1e-30):
        index = make()
        index.add(base * np.float32(scale))
        distances, rows = index.search(base[:5] * np.float32(scale), 3, recall=1.0)
        want, _ = nearest(base[:5], base, np.arange(60), 3)
        np.testing.assert_allclose(distances, want * np.float32(scale), rtol=1e-3, atol=1e-4 * scale)
        assert np.all(rows >= 0)
    index = make()
    mixed = np.concatenate([base, base + 1e6]).astype(np.float32)
    index.add(mixed)
    distances, _ = index.search(mixed[60:64], 2, recall=1.0)
    assert np.all(distances[:, 0] == 0)
    index = make()
    index.add(np.zeros((10, 4)))
    assert np.array_equal(index.search(np.zeros((1, 4)), 3).rows, [[0, 1, 2]])


def test_saved_and_loaded(make, tmp_path, each_kernel):
    vectors = whole((400, 8), 11)
    index = make()
    index.add(vectors, np.arange(400) + 7)
    index.remove(np.arange(20, 40))
    queries = whole((5, 8), 12)
    before = index.search(queries, 6, recall=0.9)
    index.save(tmp_path / "a.search")
    again = load(tmp_path / "a.search")
    assert type(again) is type(index)
    assert len(again) == 380
    assert np.array_equal(again.rows, index.rows)
    after = again.search(queries, 6, recall=0.9)
    assert np.array_equal(before.rows, after.rows)
    assert np.array_equal(before.distances, after.distances)
    assert again.add(vectors[:2]).tolist() == [407, 408]  # rows go on where they were
    again.remove([30 + 20])
    again.save(tmp_path / "a.search")  # over itself
    assert len(type(index).load(tmp_path / "a.search")) == 381
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.search"]


def test_a_damaged_file_is_refused_with_a_sentence(make, tmp_path):
    index = make()
    index.add(whole((200, 8), 13))
    if hasattr(index, "train"):
        index.train()
    path = tmp_path / "a.search"
    index.save(path)
    good = path.read_bytes()
    rng = np.random.default_rng(14)
    for length in (0, 1, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match=r"a\.search is (cut short or damaged|not a file of the kind)"):
            load(path)
    for at in rng.integers(0, len(good), 150).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << int(rng.integers(8)))]) + good[at + 1 :])
        with pytest.raises((DamagedError, FormatError), match=r"a\.search"):
            load(path)
    path.write_text("not a search at all")
    with pytest.raises(FormatError, match="not a file of the kind 'slosh search'"):
        load(path)
    path.write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(FormatError, match=r"was written by slosh 0\.1.*build it again") as caught:
        load(path)
    assert (caught.value.found, caught.value.supported) == (1, 2)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def rewritten(path, header=None, arrays=None):
    """Write the saved file again with another header or other arrays (None: without it), and a right checksum."""
    head, there = tensors.read(path, "slosh search")
    there = {name: array for name, array in {**there, **(arrays or {})}.items() if array is not None}
    tensors.write(path, "slosh search", {**head, **(header or {})}, there)


def test_a_file_that_claims_what_it_does_not_have(tmp_path):
    path = tmp_path / "a.search"
    index = LadderSearch(n_components=2, n_lists=3)
    index.add(whole((100, 4), 15))
    index.train()
    index.save(path)
    good, (_, arrays) = path.read_bytes(), tensors.read(path, "slosh search")
    before = index.search(whole((5, 4), 16), 7, recall=1.0)
    for name, array in arrays.items():
        for other in (None, array[:-1], array.reshape(1, *array.shape), array.astype(np.complex64)):
            path.write_bytes(good)
            rewritten(path, arrays={name: other})
            if name.startswith("derived"):  # what can be computed again is not used
                after = load(path).search(whole((5, 4), 16), 7, recall=1.0)
                assert np.array_equal(before.rows, after.rows)
                assert np.array_equal(before.distances, after.distances)
                continue
            with pytest.raises(DamagedError, match="is damaged"):
                load(path)
    for key, value, message in [
        ("class", "os.system", "holds a os.system"),
        ("dim", 5, "damaged"),
        ("highest", "x", "damaged"),
        ("params", {"recall": 7}, "damaged"),
        ("params", {"nonsense": 1}, "damaged"),
        ("params", None, "damaged"),
        ("trained", {"trained": 0}, "damaged"),
        ("trained", [], "damaged"),
    ]:
        path.write_bytes(good)
        rewritten(path, header={key: value})
        with pytest.raises(ValueError, match=message):
            load(path)
    path.write_bytes(good)
    with pytest.raises(FormatError, match="holds a LadderSearch"):
        ExactSearch.load(path)


def test_bad_input(make):
    index = make()
    with pytest.raises(ValueError, match="the collection is empty: add vectors first"):
        index.search(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="nothing to remove"):
        index.remove([0])
    with pytest.raises(ValueError, match="nothing to save"):
        index.save("never-written")
    index.add(whole((30, 3), 17))
    for queries, message in [
        (np.zeros((1, 4)), r"queries has vectors of 4 numbers; those of this search have 3"),
        (np.zeros(3), r"queries is 1-D, of 3 numbers: vectors must be \(n, D\), so pass x\[None\]"),
        ([[0, 1, np.nan]], r"queries: row 0 holds NaN \(column 2\)"),
        ([[0, np.inf, 1]], "queries: row 0 holds infinity"),
        ([["a", "b", "c"]], "queries must be numbers, not of dtype"),
        (None, "queries is None"),
        ([[0, 1], [1, 2, 3]], "row 1 has 3 numbers, row 0 has 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            index.search(queries)
        with pytest.raises(ValueError, match=message):
            index.range_search(queries, 1.0)
    for k in (0, -1, 1.5, "3", True, None):
        with pytest.raises(ValueError, match=r"k=.* must be a whole number, 1 or more"):
            index.search(np.zeros((1, 3)), k)
    for recall in (0, -0.5, 1.5, "high", np.nan):
        with pytest.raises(ValueError, match=r"recall=.* must be more than 0 and at most 1"):
            index.search(np.zeros((1, 3)), recall=recall)
    for radius in (-1.0, np.nan, "far", [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"radius=.* must be a distance, 0 or more"):
            index.range_search(np.zeros((1, 3)), radius)
    with pytest.raises(InputError, match="row 99 is not there") as caught:
        index.vectors([99])
    assert caught.value.argument == "rows"
    for exclude in ([1, 2], 3, [0.5], ["a"]):
        with pytest.raises(ValueError, match=r"exclude is .*: give 1 rows, one for each query, -1 for none"):
            index.search(np.zeros((1, 3)), exclude=exclude)


def test_an_error_changes_nothing(make):
    vectors = whole((30, 3), 18)
    index = make()
    index.add(vectors, np.arange(30))
    queries = whole((3, 3), 19)
    before = index.search(queries, 30, recall=1.0)
    bad = vectors[:3].copy()
    bad[2, 1] = np.nan
    for call, message in [
        (lambda: index.add(vectors[:2], [30, 3]), "row 3 exists: remove it first, or give another; nothing was added"),
        (lambda: index.add(vectors[:2], [31, 31]), "row 31 is given twice"),
        (lambda: index.add(vectors[:2], [31]), "there are 2 vectors and 1 rows: give one row for each vector"),
        (lambda: index.add(vectors[:2], [-1, 31]), "rows holds -1: a row is 0"),
        (lambda: index.add(vectors[:2], [0.5, 31]), "rows must be whole numbers"),
        (lambda: index.add(vectors[:2, :2]), "vectors has vectors of 2 numbers; those of this search have 3"),
        (lambda: index.add(bad), r"vectors: row 2 holds NaN \(column 1\)"),
        (lambda: index.remove([3, 99]), "row 99 is not there: it was never added, or is removed already"),
        (lambda: index.remove([3, 3]), "row 3 is given twice: give it once; nothing was changed"),
        (lambda: index.remove([[3]]), "one dimension"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
        assert len(index) == 30
    after = index.search(queries, 30, recall=1.0)
    assert np.array_equal(before.rows, after.rows)
    assert np.array_equal(before.distances, after.distances)
    index.remove([3])
    with pytest.raises(ValueError, match="row 3 is not there: it was never added, or is removed already"):
        index.remove([3])
    assert 3 not in index
    assert 4 in index
    assert index.add(vectors[3:4], [3]).tolist() == [3]  # what was removed may come again, if the user says so
    assert index.add(vectors[:1]).tolist() == [30]


def test_nothing_is_started_by_vectors_that_are_refused(make):
    index = make()
    with pytest.raises(ValueError, match="NaN"):
        index.add([[np.nan, 1.0]])
    assert len(index) == 0
    assert index.dim is None
    index.add([[1.0, 2.0, 3.0]])
    assert index.dim == 3
    assert index.add(np.empty((0, 3))).tolist() == []


def test_copies_are_independent(make):
    index = make()
    index.add(whole((50, 3), 20))
    for other in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        other.remove([0])
        assert len(index) == 50
        assert len(other) == 49


def test_threads_may_search_together(make):
    vectors = np.random.default_rng(21).normal(size=(2500, 12)).astype(np.float32)
    index = make()
    index.add(vectors)
    found = []
    together(*[lambda: found.append(index.search(vectors[:20], 5, recall=0.9).rows)] * 8)
    assert len(found) == 8
    assert all(np.array_equal(rows, found[0]) for rows in found)


def test_stats_and_info(make):
    index = make()
    assert index.info()["rows"] == 0
    index.add(whole((64, 3), 22))
    result = index.search(whole((4, 3), 23), 5, recall=1.0)
    assert result.stats.recall == 1.0
    assert result.stats.candidates.shape == result.stats.scanned.shape == (4,)
    assert "exact" in str(result.stats)
    distances, rows = result
    assert distances is result.distances
    assert rows is result.rows
    assert len(result) == 4
    about = index.info()
    assert about["rows"] == 64
    assert about["dim"] == 3
    assert about["bytes_per_row"] > 0
    json.dumps(about)


class Collection(RuleBasedStateMachine):
    """Adds, removes, trains, saves: after every step the answers are those of a scan, and of a fresh build."""

    maker = "exact"

    @initialize(seed=st.integers(0, 1 << 16), dim=st.integers(1, 6))
    def start(self, seed, dim):
        self.random, self.dim = np.random.default_rng(seed), dim
        self.index = MAKERS[self.maker]()
        self.there: dict[int, np.ndarray] = {}

    @rule(n=st.integers(1, 40), own=st.booleans())
    def add(self, n, own):
        vectors = self.random.integers(-3, 4, (n, self.dim)).astype(np.float32)
        free = np.setdiff1d(np.arange(4000), list(self.there))
        rows = self.index.add(vectors, self.random.choice(free, n, replace=False) if own else None)
        assert not set(rows.tolist()) & set(self.there)
        self.there |= dict(zip(rows.tolist(), vectors, strict=True))

    @precondition(lambda self: self.there)
    @rule(part=st.floats(0, 1))
    def remove(self, part):
        rows = self.random.permutation(list(self.there))[: int(part * len(self.there)) + 1]
        self.index.remove(rows)
        for row in rows.tolist():
            del self.there[row]

    @precondition(lambda self: len(self.there) >= 2)
    @rule()
    def train(self):
        if hasattr(self.index, "train"):
            self.index.train()

    @precondition(lambda self: self.there)
    @rule()
    def store(self):
        self.index = pickle.loads(pickle.dumps(self.index))

    @precondition(lambda self: self.there)
    @rule(k=st.integers(1, 60), part=st.floats(0, 1))
    def ask_some(self, k, part):
        rows = np.array(sorted(self.there))
        allowed = self.random.choice(rows, int(part * len(rows)), replace=False)
        if len(allowed):
            self._check(k, allowed)

    @invariant()
    def same_as_a_scan(self):
        if getattr(self, "there", None):
            self._check(5, None)

    def _check(self, k, allowed):
        assert len(self.index) == len(self.there)
        rows = np.array(sorted(self.there))
        vectors = np.stack([self.there[row] for row in rows.tolist()])
        queries = self.random.integers(-3, 4, (3, self.dim)).astype(np.float32)
        check_exact(self.index, vectors, rows, queries, k, allowed)
        fresh = MAKERS[self.maker]()
        fresh.add(vectors, rows)
        a = fresh.search(queries, k, allowed=allowed, recall=1.0)
        b = self.index.search(queries, k, allowed=allowed, recall=1.0)
        assert np.array_equal(a.rows, b.rows)
        assert np.array_equal(a.distances, b.distances)


@pytest.mark.parametrize("maker", list(MAKERS))
def test_any_order_of_adds_and_removes(maker, monkeypatch, campaign):
    monkeypatch.setattr("slosh.search.base.CLOSE_UP_HOLES", 20)  # so that holes are closed up now and then
    machine = type("Machine", (Collection,), {"maker": maker})
    state = machine.TestCase
    state.settings = settings(
        max_examples={"part": 20, "all": 200}[campaign],
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    state().runTest()


def test_numpy_gives_the_same_as_the_kernel():
    if kernel.native is None:
        pytest.skip("no native kernel here")
    vectors = np.random.default_rng(24).normal(size=(2000, 20)).astype(np.float32)
    queries = vectors[:30] + np.float32(0.05)
    search = LadderSearch(n_lists=16, n_components=4, n_jobs=1)
    state = search.start(20).extend(vectors).train()
    about = {"k": 10, "recall": 0.9, "reach": 1.0, "depth": 40, "measured": 0.9, "promised": 0.9, "n_queries": 500}
    header, arrays = state.trained()
    trained = Trained({**header, "calibrations": [{**about, "n_rows": 2000}]}, arrays)
    state = search.start(20, n=2000, columns=filled(state.columns()), trained=trained, derived=state.derived())
    a = state.nearest(queries, 10, recall=0.9)
    native, kernel.native = kernel.native, None
    try:
        b = state.nearest(queries, 10, recall=0.9)
    finally:
        kernel.native = native
    same = a.positions == b.positions
    assert a.promise == b.promise == 0.9
    # The kernel codes queries in eight bits: a list, or a row, at the edge may round to the other side.
    assert np.mean([len(set(x) & set(y)) for x, y in zip(a.positions, b.positions, strict=True)]) > 9.5
    np.testing.assert_allclose(a.distances[same], b.distances[same], rtol=1e-12)
    assert np.mean(same) > 0.7


STEPS = {
    "write": ("slosh.search.columns.Column.room", lambda self, at, n: 1 / 0),
    "rows": ("slosh.search.row_table.RowTable.extend", lambda self, rows, alive: 1 / 0),
    "file": ("slosh.search.lists.Lists.nearest", lambda self, prefixes: 1 / 0),
}


@pytest.mark.parametrize("step", list(STEPS))
def test_an_add_that_is_interrupted_leaves_nothing(make, step, monkeypatch):
    """Whichever step does not come to its end, all is as it was before."""
    vectors = np.random.default_rng(30).normal(size=(1500, 6)).astype(np.float32)
    index = make()
    index.add(vectors[:1200])
    if hasattr(index, "train"):
        index.train()
    before = index.search(vectors[:20], 5, recall=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step])
        try:
            index.add(vectors[1200:])
            interrupted = False
        except ZeroDivisionError:
            interrupted = True
    assert interrupted or step != "rows"
    assert len(index) == (1200 if interrupted else 1500)
    if interrupted:
        after = index.search(vectors[:20], 5, recall=1.0)
        assert np.array_equal(after.rows, before.rows)
        assert np.array_equal(after.distances, before.distances)
        index.add(vectors[1200:])
    found = index.search(vectors[1200:1230], 1, recall=1.0)
    assert np.array_equal(found.rows[:, 0], np.arange(1200, 1230))


@pytest.mark.parametrize("step", ["prefix_length", "centroids", "Lists"])
def test_a_training_that_is_interrupted_changes_nothing(step, monkeypatch):
    vectors = np.random.default_rng(31).normal(size=(3000, 6)).astype(np.float32)
    index = LadderSearch()
    index.add(vectors[:1500])
    index.train()
    index.add(vectors[1500:] * 5)
    before = index.search(vectors[:20], 5, recall=1.0)

    def broken(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"slosh.search.filing.{step}", broken)
        with pytest.raises(KeyboardInterrupt):
            index.train()
    after = index.search(vectors[:20], 5, recall=1.0)
    assert np.array_equal(before.rows, after.rows)
    assert np.array_equal(before.distances, after.distances)


def test_a_file_of_vectors_belongs_to_one_search(tmp_path):
    path = tmp_path / "vectors"
    vectors = whole((50, 4), 32)
    one = LadderSearch(path=path)
    one.add(vectors)
    with pytest.raises(ValueError, match="exists, and may belong to another search: delete it, or give another"):
        LadderSearch(path=path).add(vectors)
    other = copy.deepcopy(one)
    other.add(vectors + 100, np.arange(50, 100))
    one.add(vectors - 100, np.arange(50, 100))
    assert one.search(vectors[:1] - 100, 1).distances[0, 0] < 1e-2
    assert other.search(vectors[:1] + 100, 1).distances[0, 0] < 1e-2
    one.save(tmp_path / "a.search")
    again = load(tmp_path / "a.search", path=tmp_path / "again", n_jobs=1)
    assert again.n_jobs == 1
    assert (tmp_path / "again").stat().st_size >= 100 * 4 * 2
    assert np.array_equal(again.search(vectors[:5], 3).rows, one.search(vectors[:5], 3).rows)
    with pytest.raises(ValueError, match="no parameter wrong"):
        load(tmp_path / "a.search", wrong=1)


def test_what_is_saved_may_be_numbers_of_numpy(tmp_path):
    index = LadderSearch(n_components=np.int64(2), recall=np.float32(0.9), n_jobs=np.int64(1))
    index.add(whole((2000, 4), 33))
    index.calibrate(np.int64(5), np.float64(0.5))
    index.save(tmp_path / "a.search")
    assert load(tmp_path / "a.search").n_components == 2
    for bad, error in ((tmp_path / "none" / "a", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match=r"is not a folder|is a folder"):
            index.save(bad)


def test_it_says_when_16_bits_are_too_few():
    vectors = np.random.default_rng(34).normal(size=(1500, 8)) + 1e4
    index = LadderSearch()
    index.add(vectors)
    with pytest.warns(
        slosh.PrecisionWarning, match=r"subtract the mean from all vectors .*LadderSearch\(precision=32\)"
    ):
        index.train()


def test_printed(make):
    index = make()
    assert "rows" not in repr(index)
    index.add(whole((30, 3), 35))
    assert "with 30 rows of 3 numbers" in repr(index)
    result = index.search(whole((2, 3), 36), 4)
    assert "4 nearest by" in str(result)
    assert "rows by" in str(index.range_search(whole((2, 3), 36), 4.0))
    assert result != index.search(whole((2, 3), 36), 4)
    with pytest.raises(ValueError, match=r"rows is a single number: pass a list, \[5\]"):
        index.remove(5)
    with pytest.raises(ValueError, match="not strings: keep the names in an array"):
        index.remove(["a"])
    assert index.search(whole((1, 3), 37), 2, allowed={3, 5}).rows.shape == (1, 2)
