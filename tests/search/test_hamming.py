"""HammingSearch and its scan: against the plain Hamming distances in a stable order, ExactSearch, and FAISS."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sklearn.base import clone

from slosh import search as searches
from slosh.data import tensors
from slosh.hash import SignHash, hamming
from slosh.search import ExactSearch, HammingSearch
from slosh.search.calibration import lower_bound


def data(n, dim=24, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) * 0.9 ** np.arange(dim)


def ranked(distances, rows, k):
    """Positions of the k nearest of each query, by distance, then row."""
    order = np.argsort(rows, kind="stable")
    return np.stack([order[np.argsort(line[order], kind="stable")] for line in distances])[:, :k]


# -- the search --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hash_",
    [None, SignHash(100), SignHash(64, "median"), SignHash(40, None, "gaussian"), SignHash(33, "mean", "orthogonal")],
)
def test_hits_are_the_nearest_codes(each_kernel, hash_, tmp_path):
    vectors = data(600)
    search = HammingSearch(hash_)
    rows = np.random.default_rng(0).permutation(5000)[:500]
    search.add(vectors[:300], rows[:300])
    search.add(vectors[300:500], rows[300:])
    search.remove(rows[100:140])
    fitted = clone(hash_ or SignHash()).fit(vectors[:300])  # on the first vectors only
    away = hamming(fitted.transform(vectors[500:]), fitted.transform(vectors[:500])).astype(float)
    away[:, 100:140] = np.inf
    order = ranked(away, rows, 15)
    search.save(tmp_path / "saved")
    for each in (search, searches.load(tmp_path / "saved"), pickle.loads(pickle.dumps(search))):
        result = each.search(vectors[500:], 15)
        np.testing.assert_array_equal(result.rows, rows[order])
        np.testing.assert_array_equal(result.distances, np.take_along_axis(away, order, axis=1))
        assert result.distance_kind == "hamming"
        assert result.stats.recall is None
        assert (result.stats.scanned == 460).all()
        assert (result.stats.candidates == 0).all()
        radius = float(np.floor(np.median(away[:, 0])))
        near = each.range_search(vectors[500:], radius + 0.5)
        for i, (distances, found) in enumerate(near):
            expected = ranked(away[i : i + 1], rows, 500)[0][: int((away[i] <= radius).sum())]
            np.testing.assert_array_equal(found, rows[expected])
            np.testing.assert_array_equal(distances, away[i][expected])


def test_only_the_codes_are_kept():
    search = HammingSearch()
    search.add(data(3200))
    assert search.info()["bytes"] == {"codes": 3200 * 128, "vectors": 0}
    assert search.info()["bytes_per_row"] == 128
    assert search.info()["fitted_on"] == 3200
    with pytest.raises(ValueError, match=r"only codes are kept.*rerank=100"):
        search.vectors([0])
    for recall in (0.9, 1.0):
        with pytest.raises(ValueError, match=rf"recall={recall:g}: only codes are kept.*rerank"):
            search.search(data(1), recall=recall)
        with pytest.raises(ValueError, match="only codes are kept"):
            search.range_search(data(1), 3, recall=recall)
    with pytest.raises(ValueError, match="only codes are kept"):
        search.calibrate()


def test_a_code_of_all_bits_apart(each_kernel):
    search = HammingSearch(SignHash(96, center=None))
    search.add(np.array([[1.0, 2.0], [-1.0, -2.0]]))
    result = search.search([[1.0, 2.0]], 5)
    assert result.rows.tolist() == [[0, 1]]
    assert result.distances.tolist() == [[0, 96]]
    assert [len(rows) for _, rows in search.range_search([[1.0, 2.0]] * 4, [0, 95.9, 96, np.inf])] == [1, 1, 2, 2]


@pytest.mark.parametrize("rerank", [1, 30, 10_000])
def test_rerank(each_kernel, rerank):
    vectors = data(1050)
    search, exact = HammingSearch(SignHash(128), rerank=rerank), ExactSearch()
    for each in (search, exact):
        each.add(vectors[:1000])
        each.remove(np.arange(0, 1000, 3))
    codes = hamming(search.hash_.transform(vectors[1000:]), search.hash_.transform(vectors[:1000])).astype(float)
    codes[:, ::3] = np.inf
    depth = min(max(rerank, 10), 666)
    near = ranked(codes, np.arange(1000), depth)
    result = search.search(vectors[1000:], 10)
    assert result.distance_kind == "embedded"
    assert (result.stats.candidates == depth).all()
    assert result.stats.recall == (1.0 if depth == 666 else None)
    for i, positions in enumerate(near):
        expected = exact.search(vectors[1000 + i : 1001 + i], 10, allowed=positions)
        np.testing.assert_array_equal(result.rows[i], expected.rows[0])
        np.testing.assert_array_equal(result.distances[i], expected.distances[0])
    np.testing.assert_array_equal(search.vectors([1, 2, 4]), vectors[[1, 2, 4]].astype(np.float32))


def test_recall_1_and_ranges_are_exact(each_kernel):
    vectors = data(500)
    search, exact = HammingSearch(SignHash(32), rerank=5), ExactSearch()
    search.add(vectors[:450])
    exact.add(vectors[:450])
    mask = np.arange(450) % 3 > 0
    for allowed in (None, mask, [5, 6, 7]):
        found = search.search(vectors[450:], 7, allowed=allowed, recall=1.0)
        expected = exact.search(vectors[450:], 7, allowed=allowed)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.distances, expected.distances)
        assert found.stats.recall == 1.0
        near = search.range_search(vectors[450:], 2.5, allowed=allowed)
        wanted = exact.range_search(vectors[450:], 2.5, allowed=allowed)
        np.testing.assert_array_equal(near.rows, wanted.rows)
        np.testing.assert_array_equal(near.distances, wanted.distances)


def test_the_recall_asked_for_is_calibrated_kept_and_reached(tmp_path):
    vectors = data(4000, seed=5)
    search, exact = HammingSearch(SignHash(256), rerank=20), ExactSearch()
    search.add(vectors[:3000])
    exact.add(vectors[:3000])
    truth = exact.search(vectors[3000:], 10).rows
    depths = []
    for recall in (0.5, 0.8, 0.95):
        result = search.search(vectors[3000:], 10, recall=recall)
        plan = search.calibrate(10, recall)
        assert recall <= plan.promised <= plan.measured
        assert result.stats.recall == plan.promised
        assert (result.stats.candidates == plan.depth).all()
        found = (result.rows[:, :, None] == truth[:, None]).any(axis=1).mean(axis=1)
        assert found.mean() > recall - 0.02
        assert lower_bound(found) > recall - 0.03
        depths.append(plan.depth)
    assert depths[0] < depths[1] < depths[2] < 3000 / 4
    assert [c["depth"] for c in search.info()["calibrations"]] == depths
    search.save(tmp_path / "saved")
    loaded = HammingSearch.load(tmp_path / "saved")
    assert loaded.info()["calibrations"] == search.info()["calibrations"]
    assert loaded.calibrate(10, 0.95) == plan
    assert loaded.search(vectors[3000:3002], 10, recall=0.95).stats.recall == plan.promised
    search.add(vectors[3000:])
    again = search.search(vectors[3000:3002], 10, recall=0.95)
    assert again.stats.recall == plan.promised  # a third more rows: it is kept
    search.add(data(2500, seed=9))
    assert search.calibrate(10, 0.95).n_rows == 6500  # more than twice as many: measured again
    filtered = search.search(vectors[:2], 10, allowed=np.arange(3000), recall=0.95)
    assert filtered.stats.recall is None  # measured without a filter
    few = search.search(vectors[:2], 10, allowed=np.arange(30), recall=0.95)
    assert few.stats.recall == 1.0


def test_a_promise_holds_while_the_collection_grows():
    """Among more rows, more codes come before that of a neighbour: the depth grows with them."""
    vectors = data(9000, seed=6)
    search = HammingSearch(SignHash(128), rerank=20)
    search.add(vectors[:3000])
    plan = search.calibrate(10, 0.9)
    search.add(vectors[3000:5900])
    result = search.search(vectors[5900:], 10, recall=0.9)
    assert result.stats.recall == plan.promised  # not measured again
    assert (result.stats.candidates == math.ceil(plan.depth * 5900 / 3000)).all()
    distances = np.linalg.norm(vectors[:5900, None] - vectors[5900:6400], axis=2).T
    truth = np.argsort(distances, axis=1)[:, :10]
    assert (result.rows[:500, :, None] == truth[:, None]).any(axis=1).mean() >= plan.promised
    search.remove(np.arange(5000, 5900))
    result = search.search(vectors[5900:5902], 10, recall=0.9)
    assert (result.stats.candidates == math.ceil(plan.depth * 5000 / 3000)).all()


def test_a_recall_that_cannot_be_promised_is_exact():
    vectors = data(900)
    search = HammingSearch(SignHash(1), rerank=20)  # one bit says next to nothing
    search.add(vectors)
    for k, recall in ((10, 0.9), (10, 0.9999), (500, 0.5), (900, 0.5), (5000, 0.5)):
        result = search.search(vectors[:5], k, recall=recall)
        assert result.stats.recall == 1.0
        assert (result.rows[:, 0] == np.arange(5)).all()
    alone = HammingSearch(rerank=1)
    alone.add(vectors[:1])
    assert alone.search(vectors[:1], recall=0.5).rows.tolist() == [[0]]
    with pytest.raises(ValueError, match="two rows"):
        alone.calibrate()


def test_copies_of_a_query_do_not_break_the_calibration():
    vectors = np.repeat(data(40), 50, axis=0)
    search = HammingSearch(SignHash(64), rerank=20)
    search.add(vectors)
    plan = search.calibrate(10, 0.9)
    assert plan.measured == 1.0
    assert plan.depth == 10


def test_the_hash_never_drifts_and_the_users_is_left_alone():
    vectors = data(400)
    given = SignHash(64)
    search = HammingSearch(given)
    search.add(vectors[:100])
    assert not hasattr(given, "center_")
    center = search.hash_.center_.copy()
    search.add(vectors[100:] + 5)
    np.testing.assert_array_equal(search.hash_.center_, center)
    given.fit(vectors)
    search = HammingSearch(given)
    search.add(vectors[:50])
    np.testing.assert_array_equal(search.hash_.center_, given.center_)
    assert search.info()["fitted_on"] is None
    before = search.search(vectors, 3)
    given.set_params(n_bits=9).fit(vectors + 100)
    after = search.search(vectors, 3)
    np.testing.assert_array_equal(before.rows, after.rows)
    np.testing.assert_array_equal(before.distances, after.distances)


def test_a_search_can_begin_empty(tmp_path):
    search = HammingSearch(SignHash(16), rerank=3)
    assert len(search.add(np.empty((0, 5)))) == 0
    assert search.hash_ is None
    with pytest.raises(ValueError, match="empty"):
        search.search(np.zeros((1, 5)))
    search.save(tmp_path / "saved")
    for each in (search, searches.load(tmp_path / "saved")):
        each.add(np.eye(5))
        assert each.search(np.eye(5), 1).rows.ravel().tolist() == [0, 1, 2, 3, 4]


def test_bad_input():
    vectors = data(20)
    for bad, match in (
        ({"hash": "sign"}, "SignHash or None"),
        ({"hash": SignHash(0)}, "n_bits"),
        ({"rerank": -1}, "rerank=-1"),
        ({"rerank": True}, "rerank=True"),
        ({"rerank": 2.5}, r"rerank=2\.5"),
        ({"n_jobs": 0}, "n_jobs"),
    ):
        search = HammingSearch(**bad)
        with pytest.raises(ValueError, match=match):
            search.add(vectors)
        assert len(search) == 0
    with pytest.raises(ValueError, match="fitted on vectors of 3 numbers, and these have 24"):
        HammingSearch(SignHash().fit(np.eye(3))).add(vectors)
    search = HammingSearch(rerank=5)
    with pytest.raises(ValueError, match="NaN"):
        search.add([[np.nan, 1.0]])
    search.add(vectors)
    for action, match in (
        (lambda: search.add(vectors, np.arange(20)), "row 0 exists"),
        (lambda: search.add(vectors[:, :3]), "vectors of 3 numbers"),
        (lambda: search.remove([3, 3]), "twice"),
        (lambda: search.remove([99]), "row 99 is not there"),
        (lambda: search.search(vectors, 0), "k=0"),
        (lambda: search.search(vectors[:, :3]), "vectors of 3 numbers"),
        (lambda: search.search(vectors, recall=0), "recall=0"),
        (lambda: search.search(vectors, allowed=[77]), "row 77"),
        (lambda: search.range_search(vectors, -1), "radius"),
        (lambda: search.calibrate(0), "k=0"),
        (lambda: search.calibrate(5, None), "recall=None"),
    ):
        with pytest.raises(ValueError, match=match):
            action()
    assert search.search(vectors, 50).rows.shape == (20, 20)


def test_nothing_is_added_where_memory_ends(monkeypatch):
    vectors = data(40)
    for rerank in (0, 5):
        search = HammingSearch(SignHash(16), rerank=rerank)
        search.add(vectors[:10])
        before = search.search(vectors, 10)

        def fail(*_):
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr("slosh.search.columns.Column.room" if rerank else "slosh.search.codes.Codes.extend", fail)
            with pytest.raises(MemoryError):
                search.add(vectors)
        assert len(search) == 10
        np.testing.assert_array_equal(search.search(vectors, 10).rows, before.rows)
        search.add(vectors[10:])
        fresh = HammingSearch(search.hash_, rerank=rerank)
        fresh.add(vectors)
        np.testing.assert_array_equal(search.search(vectors, 10).rows, fresh.search(vectors, 10).rows)


# -- files -------------------------------------------------------------------------------------------------------------


def rewritten(path, header=None, trained=None, arrays=None):
    """Write the file again with another header or other arrays, and a right checksum."""
    head, there = tensors.read(path, "slosh search")
    there = {name: array for name, array in {**there, **(arrays or {})}.items() if array is not None}
    head = {**head, **(header or {}), "trained": {**head["trained"], **(trained or {})}}
    tensors.write(path, "slosh search", head, there)


@pytest.mark.parametrize(
    "damage",
    [
        {"arrays": {"column.codes": None}},
        {"arrays": {"column.codes": np.zeros((3, 4), np.uint8)}},
        {"arrays": {"column.codes": np.zeros((40, 4), np.int8)}},
        {"arrays": {"column.codes": np.full((40, 4), 255, np.uint8)}},  # bits beyond the 27th
        {"arrays": {"column.vectors": None}},
        {"arrays": {"column.vectors": np.zeros((40, 3), np.float32)}},
        {"arrays": {"trained.center": None}},
        {"arrays": {"trained.center": np.full(24, np.nan, np.float32)}},
        {"arrays": {"trained.center": np.zeros(5, np.float32)}},
        {"arrays": {"trained.picked": np.full(27, 128)}},
        {"arrays": {"trained.picked": np.zeros(27, np.float32)}},
        {"arrays": {"trained.signs": np.zeros((1, 2, 128), np.float32)}},
        {"arrays": {"trained.turns": np.zeros((1, 2, 2), np.float32)}},
        {"trained": {"hash": None}},
        {"trained": {"hash": {"n_bits": 28, "center": "mean", "rotation": "hadamard", "random_state": 0}}},
        {"trained": {"hash": {"n_bits": 27, "center": "mean", "rotation": "gaussian", "random_state": 0}}},
        {"trained": {"hash": {"n_bits": 27, "center": "median", "rotation": "hadamard", "random_state": 0}}},
        {"trained": {"hash": {"bits": 27}}},
        {"header": {"params": {"rerank": "all"}}},
        {"trained": {"calibrations": [{"k": 1}]}},
        {"header": {"dim": 25}},
    ],
    ids=lambda damage: json.dumps(damage, default=lambda array: f"{array.dtype}{array.shape}"),
)
def test_what_does_not_fit_together_is_refused(damage, tmp_path):
    search = HammingSearch(SignHash(27), rerank=4)
    search.add(data(40))
    search.save(tmp_path / "saved")
    rewritten(tmp_path / "saved")
    assert len(HammingSearch.load(tmp_path / "saved")) == 40
    rewritten(tmp_path / "saved", **damage)
    with pytest.raises(ValueError, match=r"saved is damaged .*: build the search again"):
        HammingSearch.load(tmp_path / "saved")


def test_a_file_cut_short_or_changed_is_refused(tmp_path):
    search = HammingSearch(SignHash(64), rerank=4)
    search.add(data(200))
    path = tmp_path / "saved"
    search.save(path)
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="saved"):
            HammingSearch.load(path)
    at = len(whole) - 20
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(ValueError, match="damaged"):
        HammingSearch.load(path)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="holds a HammingSearch"):
        ExactSearch.load(path)


@pytest.mark.parametrize("given", [False, True])
def test_what_was_given_is_there_again(given, tmp_path):
    vectors = data(60)
    hash_ = SignHash(50, random_state=np.random.RandomState(3))
    if given:
        hash_.fit(vectors)
    search = HammingSearch(hash_, rerank=7)
    search.add(vectors[:30])
    search.save(tmp_path / "saved")
    loaded = searches.load(tmp_path / "saved")
    assert isinstance(loaded, HammingSearch)
    assert loaded.rerank == 7
    assert hasattr(loaded.hash, "center_") == given
    assert loaded.info() == {**search.info(), "hash": {**search.info()["hash"], "random_state": None}}
    for each in (search, loaded):
        each.add(vectors[30:])
    np.testing.assert_array_equal(search.search(vectors, 5).rows, loaded.search(vectors, 5).rows)


# -- any order of adds and removals ------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Whatever was added and removed: the answers are those of a stable sort of the codes that are there."""

    @initialize(n_bits=st.integers(1, 200), rerank=st.sampled_from([0, 0, 6]), seed=st.integers(0, 9))
    def start(self, n_bits, rerank, seed):
        self.rng = np.random.default_rng(seed)
        self.hash = SignHash(n_bits).fit(data(50, 6, seed))
        self.search = HammingSearch(self.hash, rerank=rerank, n_jobs=1)
        self.vectors: dict[int, np.ndarray] = {}
        self.used: set[int] = set()
        self.add(3, False)

    @rule(n=st.integers(0, 60), anywhere=st.booleans())
    def add(self, n, anywhere):
        vectors = np.round(self.rng.normal(size=(n, 6)))
        rows = None
        if anywhere:
            free = np.setdiff1d(np.arange(2000), list(self.used))
            rows = self.rng.permutation(free)[:n]
        for row, vector in zip(self.search.add(vectors, rows).tolist(), vectors, strict=True):
            assert row not in self.vectors
            self.vectors[row] = vector
            self.used.add(row)

    @rule(share=st.sampled_from([0.1, 0.5, 0.95]))
    def remove(self, share):
        rows = [row for row in self.vectors if self.rng.random() < share]
        self.search.remove(rows)
        for row in rows:
            del self.vectors[row]

    @rule()
    def again(self):
        self.search = pickle.loads(pickle.dumps(self.search))

    @invariant()
    def same_as_a_sort(self):
        if not getattr(self, "vectors", None):
            return
        rows = np.array(sorted(self.vectors))
        stored = np.stack([self.vectors[row] for row in rows.tolist()])
        queries = np.round(self.rng.normal(size=(2, 6)))
        allowed = None if self.rng.random() < 0.5 else rows[self.rng.random(len(rows)) < self.rng.random()]
        chosen = np.ones(len(rows), bool) if allowed is None else np.isin(rows, allowed)
        k = int(self.rng.integers(1, len(rows) + 2))
        away = hamming(self.hash.transform(queries), self.hash.transform(stored[chosen])).astype(float)
        order = np.argsort(away, axis=1, kind="stable")
        if self.search.rerank:
            euclidean = np.sqrt(np.square(queries[:, None] - stored[chosen]).sum(axis=2))
            depth = order[:, : max(k, 6)]
            near = np.take_along_axis(euclidean, depth, axis=1)
            order = np.stack([line[np.lexsort((line, d))] for line, d in zip(depth, near, strict=True)])
            away = euclidean
        result = self.search.search(queries, k, allowed=allowed)
        np.testing.assert_array_equal(result.rows, rows[chosen][order[:, :k]])
        np.testing.assert_allclose(result.distances, np.take_along_axis(away, order[:, :k], axis=1), rtol=1e-12)


def test_any_order_of_adds_and_removals(monkeypatch):
    monkeypatch.setattr("slosh.search.base.CLOSE_UP_HOLES", 10)  # so that holes are closed up now and then
    case = AnyOrder.TestCase
    case.settings = settings(max_examples=50, stateful_step_count=12)
    case().runTest()
