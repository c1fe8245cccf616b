"""FaissSearch: factory strings, histories against NumPy, promises, filters, files that others made, threads."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import slosh
from builders import cloud_list, make_index, plain_answer, together
from slosh.data import tensors
from slosh.errors import DamagedError, InputError, MissingExtra, UnsupportedError
from slosh.search import ExactSearch, FaissSearch, LadderSearch, load
from slosh.search import faiss_index as faiss_objects
from slosh.search.faiss_factory import default_factory, parse_factory
from slosh.search.faiss_index import checked_parts
from slosh.search.state import Trained

faiss = pytest.importorskip("faiss")

FACTORIES = [
    None,
    "IVF32,Flat",
    "IVF32,SQ8",
    "IVF32,SQfp16",
    "IVF32,PQ6x4",
    "IVF32,PQ6x4fs",
    "IVF32,PQ5x4fsr",  # 24 numbers are filled up to 25
    "IVF32,RaBitQ",
    "PCA12,IVF32,Flat",
    "PCAR12,IVF32,PQ6x4fs",
    "RR16,HNSW8",
    "HNSW12",
    "HNSW12,SQ8",
    "SQ8",
    "Flat",
]


def data(n, dim=24, seed=0):
    """Clusters of several sizes."""
    rng = np.random.default_rng(seed)
    centres, of = rng.normal(size=(30, dim)), rng.integers(30, size=n)
    return (centres[of] + rng.uniform(0.1, 0.6, (30, 1))[of] * rng.normal(size=(n, dim))).astype(np.float32)


def share(rows, truth):
    """Return which part of the true rows was found."""
    return float((rows[:, :, None] == truth[:, None]).any(axis=2).mean())


# -- factory strings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory_keeps_its_recall_and_gives_the_distances_of_the_vectors(factory, tmp_path):
    vectors = data(3500)
    stored, queries = vectors[:3000], vectors[3000:]
    search, exact = FaissSearch(factory, n_jobs=1), LadderSearch(n_jobs=1)
    search.add(stored)
    exact.add(stored)
    truth = exact.search(queries, 10, recall=1.0)
    found = search.search(queries, 10, recall=0.9)
    assert found.stats.recall >= 0.9
    assert share(found.rows, truth.rows) >= 0.88
    assert search.info()["trained_on"] == 3000
    assert factory is None or search.info()["factory"] == factory
    same = found.rows == truth.rows
    np.testing.assert_array_equal(found.distances[same], truth.distances[same])  # to the last bit
    everything = search.search(queries, 10, recall=1.0)
    np.testing.assert_array_equal(everything.rows, truth.rows)
    np.testing.assert_array_equal(everything.distances, truth.distances)
    if parse_factory(search.info()["factory"]).n_lists:
        assert found.stats.scanned.max() < 3000
    search.save(tmp_path / "saved")
    for again in (load(tmp_path / "saved"), pickle.loads(pickle.dumps(search))):
        after = again.search(queries, 10, recall=0.9)
        np.testing.assert_array_equal(after.rows, found.rows)
        np.testing.assert_array_equal(after.distances, found.distances)
        assert after.stats.recall == found.stats.recall


def test_a_graph_keeps_its_recall_for_vectors_that_are_not_stored():
    """Stored ones would not show it: their own links lead to their neighbours."""
    vectors = data(9000, 32, seed=8)
    stored, queries = vectors[:8000], vectors[8000:]
    search, exact = FaissSearch("HNSW4", n_jobs=1), ExactSearch()
    for each in (search, exact):
        each.add(stored)
    truth = exact.search(queries, 10).rows
    for recall in (0.8, 0.9, 0.95):
        found = search.search(queries, 10, recall=recall)
        assert not search.calibrate(10, recall).exact
        assert share(found.rows, truth) >= recall - 0.01


def test_opq_is_learnt():
    vectors = data(10_100, 8)
    search = FaissSearch("OPQ2,IVF16,PQ2x4fs", n_jobs=1)
    search.add(vectors[:9000])
    assert search.search(vectors[9000:], 5).stats.recall == 1.0  # too few rows for OPQ
    assert search.info()["needs_rows"] == 9984
    search.add(vectors[9000:])
    found = search.search(vectors[:200], 5, recall=0.9)
    assert found.stats.recall >= 0.9
    assert np.array_equal(found.rows[:, 0], np.arange(200))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("HNSW", "is not known: give one such as"),
        ("ivf8,flat", "is not known"),
        ("IVF8,Flat,RFlat", "candidates are always compared by their vectors"),
        ("BIVF8", "use HammingSearch"),
        ("PQ16", 'put product codes into lists, as in "IVF1,PQ16"'),
        ("IDMap,Flat", "rows are counted by slosh"),
        ("L2norm,Flat", "unit length"),
        ("NSG16", "is not known"),
        ("IVF0,Flat", "0 lists: give 1 to 262,144"),
        ("IVF9999999,Flat", "9999999 lists"),
        ("HNSW1", "1 links: give 2 to 128"),
        ("HNSW999", "999 links"),
        ("IVF8,PQ9999x4fs", "9999 parts"),
        ("IVF8,PQ4x16", "16 bits of a part: give 4 to 10"),
        ("IVF8,PQ4x8fs", "fast scan is for 4 bits"),
        ("PCA0,Flat", "0 numbers of the transform"),
        ("PCA99999,Flat", "99999 numbers"),
        ("OPQ0,IVF8,PQ4", "0 parts of OPQ"),
        ("OPQ4_6,IVF8,PQ4", "equal parts"),
        ("PCA4_4,Flat", "is not known"),
        ("IVF8,Flat\n", "is not known"),
        ("IVF８,Flat", "is no factory string"),
        ("Flat" * 100, "is no factory string"),
        (7, "is no factory string"),
        ("PCA25,Flat", "PCA gives 25 numbers, vectors have 24"),
        ("IVF8,PQ25x4fs", "a product code of 25 parts is made of 24 numbers"),
        ("OPQ32,IVF8,PQ4", "OPQ gives 32 numbers, vectors have 24"),
    ],
)
def test_a_wrong_factory_is_refused_before_anything_is_added(factory, message):
    search = FaissSearch(factory)
    with pytest.raises(InputError, match=message) as caught:
        search.add(data(10))
    assert caught.value.argument == "factory"
    assert len(search) == 0


def test_long_vectors_are_not_rotated_whole():
    for factory in ("RR8,Flat", "OPQ8,IVF8,PQ8"):
        with pytest.raises(InputError, match=r"rotates vectors of 5,000 numbers: use PCA or PCAR"):
            parse_factory(factory).check_dim(5000)


def test_a_factory_that_this_faiss_does_not_know(monkeypatch):
    def refuse(*_):
        raise RuntimeError("Error in faiss\ncould not parse")

    monkeypatch.setattr(faiss, "index_factory", refuse)
    search = FaissSearch("IVF8,RaBitQ")
    search.add(data(1100))
    with pytest.raises(UnsupportedError, match=r"cannot make 'IVF8,RaBitQ' \(could not parse\).*newer faiss-cpu"):
        search.search(data(1))


def test_the_default_fits_every_size():
    for n in (1024, 5000, 60_000, 10**6, 10**8):
        for dim in (1, 2, 15, 16, 17, 65, 128, 129, 1025, 1 << 22):
            made = parse_factory(default_factory(n, dim))
            made.check_dim(dim)
            assert made.rows_needed <= n


def test_a_training_ends_what_was_measured_before():
    """Also if nothing was added since: it was measured with other lists."""
    for search in (FaissSearch("IVF16,SQ8", n_jobs=1), LadderSearch(n_jobs=1)):
        search.add(data(3000))
        search.calibrate(5, 0.9)
        assert search.state.calibrations
        search.train()
        assert not search.state.calibrations


def test_other_bad_parameters():
    for bad, message in (({"recall": 0}, "recall=0"), ({"recall": None}, "recall=None"), ({"n_jobs": 0}, "n_jobs")):
        with pytest.raises(InputError, match=message):
            FaissSearch(**bad).add(data(5))
    with pytest.raises(InputError, match="two rows or more"):
        FaissSearch().train()


# -- too few rows, rows that are added later, removals -----------------------------------------------------------------


def test_few_rows_are_compared_until_there_are_enough():
    search = FaissSearch("IVF256,Flat", n_jobs=1)
    search.add(data(2000))
    search.train()
    assert search.search(data(3), 5, recall=0.5).stats.recall == 1.0
    assert search.info()["needs_rows"] == 2048
    search.add(data(100, seed=1))
    assert search.search(data(3), 5, recall=0.5).stats.recall < 1.0
    assert search.info()["trained_on"] == 2100


@pytest.mark.parametrize("factory", ["IVF32,PQ6x4fs", "HNSW12"])
def test_rows_that_are_added_later_are_found_at_once(factory):
    vectors = data(4500)
    search = FaissSearch(factory, n_jobs=1)
    search.add(vectors[:2000])
    search.search(vectors[:1], 5)
    before = search.state.filled
    search.add(vectors[2000:2500])
    assert search.state.filled is before
    assert search.info()["not_in_faiss"] == 500
    found = search.search(vectors[2000:2500], 1, recall=0.9)
    assert np.array_equal(found.rows[:, 0], np.arange(2000, 2500))  # each of them is compared
    search.add(vectors[2500:])  # too many to compare one by one: another FAISS index, and the old one as it was
    assert search.state.filled is not before
    assert (before.n, search.state.filled.n) == (2000, 4500)
    assert search.info()["trained_on"] == 2000
    found = search.search(vectors, 1, recall=0.9)
    assert np.mean(found.rows[:, 0] == np.arange(4500)) > 0.9


@pytest.mark.parametrize("factory", ["IVF32,PQ6x4fs", "HNSW12"])
def test_an_older_state_answers_as_it_did(factory):
    vectors = data(5000)
    search = FaissSearch(factory, n_jobs=1)
    search.add(vectors[:2000])
    search.search(vectors[:1], 10, recall=0.9)
    old = search.state
    before = old.nearest(vectors[:100], 10, recall=0.9)
    search.add(vectors[2000:])
    search.remove(np.arange(0, 1000, 2))
    search.search(vectors[:1], 10, recall=0.9)
    after = old.nearest(vectors[:100], 10, recall=0.9)
    np.testing.assert_array_equal(before.positions, after.positions)
    np.testing.assert_array_equal(before.distances, after.distances)


@pytest.mark.parametrize("factory", ["IVF32,PQ6x4fs", "IVF32,SQ8", "HNSW12", "Flat"])
def test_what_is_removed_is_not_found(factory):
    vectors = data(3000)
    search = FaissSearch(factory, n_jobs=1)
    search.add(vectors)
    search.search(vectors[:1], 5, recall=0.9)
    gone = np.random.default_rng(1).permutation(3000)[:1200]
    search.remove(gone)
    found = search.search(vectors[gone[:300]], 5, recall=0.9)
    assert found.stats.recall >= 0.9
    assert not np.isin(found.rows, gone).any()
    assert (found.rows >= 0).all()
    left = np.setdiff1d(np.arange(3000), gone)
    exact = ExactSearch()
    exact.add(vectors[left], left)
    assert share(found.rows, exact.search(vectors[gone[:300]], 5).rows) > 0.85


class Collection(RuleBasedStateMachine):
    """Adds, removals, training, pickles: what FAISS leads to is what NumPy says of those rows, and enough of it."""

    factory = "IVF16,SQ8"

    @initialize(seed=st.integers(0, 1 << 16), dim=st.integers(2, 12))
    def start(self, seed, dim):
        self.random, self.dim = np.random.default_rng(seed), dim
        self.centres = self.random.normal(size=(12, dim)) * 3
        self.search = FaissSearch(self.factory, random_state=seed, n_jobs=1)
        self.there: dict[int, np.ndarray] = {}
        self.found, self.promised = [], []
        self.add(1300)

    def drawn(self, n):
        kind = self.random.integers(12, size=n)
        return (self.centres[kind] + self.random.normal(size=(n, self.dim))).astype(np.float32)

    @rule(n=st.sampled_from([1, 40, 1100]))
    def add(self, n):
        vectors = self.drawn(n)
        self.there |= dict(zip(self.search.add(vectors).tolist(), vectors, strict=True))

    @precondition(lambda self: len(self.there) > 1200)
    @rule(part=st.sampled_from([0.01, 0.2, 0.6]))
    def remove(self, part):
        rows = self.random.permutation(list(self.there))[: int(part * len(self.there))]
        self.search.remove(rows)
        for row in rows.tolist():
            del self.there[row]

    @rule()
    def train(self):
        self.search.train()

    @rule()
    def store(self):
        self.search = pickle.loads(pickle.dumps(self.search))

    @invariant()
    def answers_are_right(self):
        if not getattr(self, "there", None):
            return
        rows = np.array(list(self.there))
        vectors = np.stack(list(self.there.values())).astype(np.float64)
        queries, k = self.drawn(15), int(self.random.integers(1, 12))
        table = np.sqrt(np.square(queries[:, None] - vectors[None]).sum(axis=2))
        result = self.search.search(queries, k, recall=0.9)
        assert result.rows.shape == (15, min(k, len(rows)))
        place = {row: i for i, row in enumerate(rows.tolist())}
        at = np.array([[place[row] for row in line] for line in result.rows.tolist()])
        assert all(len(set(line)) == len(line) for line in at.tolist())
        np.testing.assert_allclose(result.distances, np.take_along_axis(table, at, axis=1), atol=2e-3)
        assert (np.diff(result.distances, axis=1) >= 0).all()
        kth = np.sort(table, axis=1)[:, at.shape[1] - 1]
        self.found.append(np.mean(result.distances <= kth[:, None] + 2e-3))
        allowed = rows[self.random.random(len(rows)) < self.random.choice([0.02, 0.5, 0.95])]
        if len(allowed):
            some = self.search.search(queries, k, allowed=allowed, recall=0.9)
            assert some.rows.shape == (15, min(k, len(allowed)))
            assert np.isin(some.rows, allowed).all()

    def teardown(self):
        # Each of them is the mean of 15 queries: far below what was asked for is no chance.
        if len(self.found) > 3:
            assert np.mean(self.found) > 0.85


@pytest.mark.parametrize("factory", ["IVF16,SQ8", "IVF16,PQ2x4fs", "HNSW8", "PCA2,IVF16,Flat"])
def test_any_history(factory, monkeypatch, campaign):
    monkeypatch.setattr("slosh.search.base.CLOSE_UP_HOLES", 200)  # so that holes are closed up now and then
    machine = type("Machine", (Collection,), {"factory": factory})
    case = machine.TestCase
    case.settings = settings(
        max_examples={"part": 3, "all": 60}[campaign],
        stateful_step_count=6,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["IVF64,PQ6x4fs", "IVF64,Flat", "HNSW12", "SQ8"])
@pytest.mark.parametrize("part", [0.001, 0.02, 0.3, 0.6, 0.97])
def test_filters(factory, part):
    vectors = data(8300)
    stored, queries = vectors[:8000], vectors[8000:]
    search, exact = FaissSearch(factory, n_jobs=1), ExactSearch()
    for each in (search, exact):
        each.add(stored)
    search.calibrate(10, 0.9)
    allowed = np.random.default_rng(2).random(8000) < part
    allowed[:3] = True
    found, truth = (each.search(queries, 10, allowed=allowed, recall=0.9) for each in (search, exact))
    n = min(10, int(allowed.sum()))
    assert found.rows.shape == (300, n)
    assert allowed[found.rows].all()
    is_scan = allowed.sum() < 2048
    assert found.stats.recall == (1.0 if is_scan else None)
    assert share(found.rows, truth.rows) > (0.999 if is_scan else 0.8)


@pytest.mark.parametrize("factory", ["IVF64,SQ8", "IVF64,Flat", "HNSW8"])
def test_an_answer_that_a_filter_starves_is_completed(factory):
    """All that is allowed is far from the query: the lists, or the links, near it hold nothing."""
    near, far = data(6000), data(3000, seed=1) + 50
    search, exact = FaissSearch(factory, n_jobs=1), LadderSearch(n_jobs=1)
    for each in (search, exact):
        each.add(np.concatenate([near, far]))
    search.calibrate(10, 0.9)
    allowed = np.arange(6000, 9000)
    found = search.search(near[:50], 10, allowed=allowed, recall=0.9)
    assert (found.rows >= 6000).all()
    assert np.isfinite(found.distances).all()
    truth = exact.search(near[:50], 10, allowed=allowed, recall=1.0)
    assert (found.stats.candidates > 3000).all()  # all that is allowed was compared, after the candidates
    np.testing.assert_array_equal(found.rows, truth.rows)


def test_a_row_of_its_own_is_left_out():
    vectors = data(3000)
    search = FaissSearch("IVF32,PQ6x4fs", n_jobs=1)
    search.add(vectors)
    own = np.arange(0, 3000, 7)
    found = search.search(vectors[own], 5, recall=0.9, exclude=own)
    assert (found.rows != own[:, None]).all()
    assert (found.rows >= 0).all()
    none = search.search(vectors[own], 5, recall=0.9, exclude=np.full(len(own), -1))
    assert np.mean(none.rows[:, 0] == own) > 0.9


# -- seeds and threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["IVF32,PQ6x4fs", "HNSW12", "PCAR12,IVF32,SQ8", "IVF32,PQ6x5"])
def test_the_same_seed_gives_the_same_answers_for_any_threads_and_batches(factory):
    vectors, queries = data(3000), data(300, seed=5)
    answers = []
    for n_jobs in (1, 3):
        search = FaissSearch(factory, random_state=7, n_jobs=n_jobs)
        search.add(vectors)
        search.calibrate(10, 0.8)
        whole = search.search(queries, 10, recall=0.8)
        parts = [search.search(queries[i : i + 7], 10, recall=0.8) for i in range(0, 300, 7)]
        np.testing.assert_array_equal(whole.rows, np.concatenate([part.rows for part in parts]))
        np.testing.assert_array_equal(whole.distances, np.concatenate([part.distances for part in parts]))
        answers.append(whole)
    np.testing.assert_array_equal(answers[0].rows, answers[1].rows)
    np.testing.assert_array_equal(answers[0].distances, answers[1].distances)


def test_threads_with_filters_of_their_own():
    vectors, queries = data(8000), data(100, seed=6)
    search = FaissSearch("IVF64,PQ6x4fs", n_jobs=2)
    search.add(vectors)
    search.calibrate(5, 0.9)
    masks = [np.arange(8000) % 3 != i for i in range(3)] + [None]
    alone = [search.search(queries, 5, allowed=mask, recall=0.9).rows for mask in masks]
    found: list[tuple[int, np.ndarray]] = []
    works = [
        lambda i=i: found.extend((i, search.search(queries, 5, allowed=masks[i], recall=0.9).rows) for _ in range(5))
        for i in range(4)
    ]
    together(*works, *works)
    assert len(found) == 40
    for i, rows in found:
        np.testing.assert_array_equal(rows, alone[i])


def test_threads_search_while_another_adds():
    vectors = data(9000)
    search = FaissSearch("HNSW8", n_jobs=1)
    search.add(vectors[:2000])
    search.calibrate(5, 0.9)

    def add():
        for first in range(2000, 9000, 500):
            search.add(vectors[first : first + 500])

    def ask():
        for i in range(60):
            n = len(search)
            found = search.search(vectors[i * 20 : i * 20 + 20], 5, recall=0.9)
            assert (found.rows >= 0).all()
            assert found.rows.max() < len(search)
            assert n <= len(search)

    together(add, ask, ask)
    assert len(search) == 9000


def test_the_threads_of_faiss_are_left_as_they_are():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        search = FaissSearch("IVF16,PQ6x4fs", n_jobs=2)
        search.add(data(2000))
        search.search(data(200), 5)
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)


# -- numbers that float32 cannot square --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e17])
@pytest.mark.parametrize("factory", ["IVF32,PQ6x4fs", "HNSW12", "PCA12,IVF16,SQ8"])
def test_tiny_and_huge_numbers(factory, scale):
    vectors = data(2100)
    search = FaissSearch(factory, n_jobs=1)
    search.add(vectors[:2000] * np.float32(scale))
    plain = FaissSearch(factory, n_jobs=1)
    plain.add(vectors[:2000])
    a, b = search.search(vectors[2000:] * np.float32(scale), 5, recall=0.9), plain.search(vectors[2000:], 5, recall=0.9)
    assert a.stats.recall >= 0.9
    assert share(a.rows, b.rows) > 0.85
    same = a.rows == b.rows
    np.testing.assert_allclose(a.distances[same] / scale, b.distances[same], rtol=1e-2, atol=1e-3)


def test_rows_that_are_equal():
    search = FaissSearch("IVF32,PQ6x4fs", n_jobs=1)
    search.add(np.ones((2000, 24)), np.random.default_rng(0).permutation(2000))
    found = search.search(np.ones((2, 24)), 5, recall=1.0)
    assert found.rows.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert (search.search(np.ones((2, 24)), 5, recall=0.9).distances == 0).all()


# -- what others may have made -----------------------------------------------------------------------------------------


def rewritten(path, header=None, trained=None, arrays=None):
    head, there = tensors.read(path, "slosh search")
    there = {name: array for name, array in {**there, **(arrays or {})}.items() if array is not None}
    head = {**head, **(header or {}), "trained": {**head["trained"], **(trained or {})}}
    tensors.write(path, "slosh search", head, there)


@pytest.mark.parametrize(
    "damage",
    [
        {"trained": {"factory": "IVF32,SQ8,RFlat"}},
        {"trained": {"factory": "IVF16,PQ6x4fs"}},
        {"trained": {"factory": "HNSW12"}},
        {"trained": {"factory": "IVF32,SQ8"}},
        {"trained": {"factory": "PCA4,IVF32,PQ6x4fs"}},
        {"trained": {"factory": 5}},
        {"trained": {"trained": 0}},
        {"trained": {"exponent": 10**6}},
        {"trained": {"seed": -1}},
        {"trained": {"calibrations": [{"k": 1}]}},
        {"arrays": {"trained.centres": None}},
        {"arrays": {"trained.centres": np.zeros((32, 23), np.float32)}},
        {"arrays": {"trained.centres": np.zeros((33, 24), np.float32)}},
        {"arrays": {"trained.centres": np.zeros((0, 24), np.float32)}},
        {"arrays": {"trained.centres": np.full((32, 24), np.nan, np.float32)}},
        {"arrays": {"trained.code_book": np.zeros(24 * 16 - 1, np.float32)}},
        {"arrays": {"trained.code_book": np.zeros(24 * 16, np.float64)}},
        {"arrays": {"trained.directions": np.zeros((3, 24))}},
        {"header": {"params": {"factory": "IVF8,Flat,RFlat"}}},
    ],
    ids=str,
)
def test_what_was_learnt_and_does_not_fit_is_refused(damage, tmp_path):
    search = FaissSearch("IVF32,PQ6x4fs", n_jobs=1)
    search.add(data(1500))
    search.train()
    search.save(tmp_path / "saved")
    rewritten(tmp_path / "saved")
    assert len(load(tmp_path / "saved")) == 1500
    rewritten(tmp_path / "saved", **damage)
    with pytest.raises(DamagedError, match=r"saved is damaged .*: build the search again"):
        load(tmp_path / "saved")


def test_what_is_derived_and_does_not_fit_is_made_again(tmp_path):
    for factory in ("IVF32,PQ6x4fs", "HNSW12"):
        search, path = FaissSearch(factory, n_jobs=1), tmp_path / "saved"
        search.add(data(1500))
        search.train()
        search.calibrate(5, 0.9)
        before = search.search(data(50), 5, recall=0.9)
        search.save(path)
        good, (_, arrays) = path.read_bytes(), tensors.read(path, "slosh search")
        names = [name for name in arrays if name.startswith("derived.")]
        assert names
        for name in names:
            array = arrays[name]
            for other in (None, array[:-1], array + 10**6, -array - 2, array.astype(np.float64)):
                path.write_bytes(good)
                rewritten(path, arrays={name: other})
                after = load(path).search(data(50), 5, recall=0.9)
                np.testing.assert_array_equal(after.rows, before.rows)


def test_no_graph_that_leads_out_of_itself_reaches_faiss():
    search = FaissSearch("HNSW4", n_jobs=1)
    search.add(data(3000))
    search.train()
    filled = search.state.filled
    training, parts = filled.training, filled.parts
    good = checked_parts(training, filled.as_derived(), 3000)
    assert all(np.array_equal(good[name], parts[name]) for name in parts)
    rng = np.random.default_rng(0)
    index = faiss.index_factory(24, "HNSW4")
    per_level = faiss.vector_to_array(index.hnsw.cum_nneighbor_per_level)
    levels, links = parts["levels"], parts["links"]
    starts = np.cumsum(per_level[levels]) - per_level[levels]
    high = int(np.flatnonzero(levels > 1)[0])
    ground = int(np.flatnonzero(levels == 1)[0])

    def changed(name, at, value):
        array = parts[name].copy()
        array[at] = value
        return {**parts, name: array}

    wrong = [
        changed("links", int(rng.integers(len(links))), 3000),
        changed("links", 0, -2),
        changed("links", int(starts[high]) + int(per_level[1]), ground),  # a row that is not up there
        changed("levels", high, 1),
        changed("levels", ground, 2),
        changed("levels", 0, 0),
        changed("levels", 0, 100),
        changed("entry", 0, 3000),
        changed("entry", 0, -1),
        changed("entry", 0, ground),
    ]
    for each in wrong:
        with pytest.raises(ValueError, match=r"its l"):
            checked_parts(training, Trained({"rows": 3000}, each), 3000)
    for rows in (0, 3001, -1):
        with pytest.raises(ValueError, match="it is of"):
            checked_parts(training, Trained({"rows": rows}, parts), 3000)


def test_a_graph_goes_on_where_a_stored_one_ends(tmp_path):
    vectors = data(3000)
    search = FaissSearch("HNSW8", n_jobs=1)
    search.add(vectors[:2000])
    search.search(vectors[:1], 5, recall=0.9)
    search.add(vectors[2000:2400])  # not in the graph
    assert search.state.filled.n == 2000
    search.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.state.filled.n == 2400
    known = search.state.filled.parts["levels"]
    assert np.array_equal(again.state.filled.parts["levels"][:2000], known)
    found = again.search(vectors[:2400], 1, recall=0.9)
    assert np.mean(found.rows[:, 0] == np.arange(2400)) > 0.9


def test_nothing_of_faiss_s_own_format_is_read_or_written():
    source = Path(faiss_objects.__file__).read_text()
    assert not [name for name in ("read_index", "write_index", "serialize_index") if name in source]


# -- the extra ---------------------------------------------------------------------------------------------------------


def test_without_faiss_it_says_what_to_install(monkeypatch, tmp_path):
    make_index(tmp_path / "i", search=FaissSearch()).close()
    saved = FaissSearch()
    saved.add(data(5))
    saved.save(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "faiss", None)
    calls = [
        lambda: FaissSearch().add(data(5)),
        lambda: make_index(None, search=FaissSearch()),
        lambda: slosh.open(tmp_path / "i"),
        lambda: load(tmp_path / "saved"),
    ]
    for call in calls:
        with pytest.raises(
            MissingExtra, match=r'FaissSearch needs faiss-cpu: .*pip install "slosh\[faiss\]"'
        ) as caught:
            call()
        assert caught.value.extra == "faiss"


def test_faiss_is_imported_when_it_is_needed():
    code = "import sys, slosh.search as s, numpy as np; s.LadderSearch().add(np.eye(3)); print('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# -- in an index -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["IVF16,PQ2x4fs", "HNSW8"])
def test_in_a_folder(tmp_path, factory):
    sets, queries = cloud_list(1800, largest=6), cloud_list(40, largest=6, seed=3)
    index = make_index(tmp_path / "i", search=FaissSearch(factory))
    index.add(sets[:1500], metadata=[{"part": i % 4} for i in range(1500)])
    info = index.info()["search_info"]
    assert info["trained_on"] == 1500
    assert info["factory"] == factory
    before = index.search(queries, k=5, recall=0.9)
    assert before.stats.recall >= 0.9
    index.close()
    for read_only in (True, False):
        with slosh.open(tmp_path / "i", read_only=read_only, n_jobs=1) as again:
            after = again.search(queries, k=5, recall=0.9)
            assert plain_answer(after) == plain_answer(before)
            assert after.stats.recall == before.stats.recall
            assert again.verify().ok
    with slosh.open(tmp_path / "i", n_jobs=1) as again:
        again.add(sets[1500:], ids=[f"n{i}" for i in range(300)])
        assert again.search(sets[1600], k=1).ids == ["n100"]
        again.remove(["3", "n100"])
        assert again.search(sets[1600], k=1).ids != ["n100"]
        hits = again.search(queries[0], k=5, where={"part": 2})
        assert all(hit.metadata["part"] == 2 for hit in hits)
        certified = again.search(queries[:5], k=3, certify=True)
        again.compact()
        assert plain_answer(again.search(queries[:5], k=3, certify=True)) == plain_answer(certified)
        assert len(again.range_search(queries[0], radius=0.5)) == len(
            again.range_search(queries[0], radius=0.5, certify=False)
        )


@pytest.mark.parametrize("factory", ["IVF16,PQ2x4fs", "HNSW8"])
def test_a_damaged_cache_of_an_index_is_made_again(tmp_path, factory):
    sets, queries = cloud_list(1500, largest=6), cloud_list(40, largest=6, seed=3)
    with make_index(tmp_path / "i", search=FaissSearch(factory)) as index:
        index.add(sets)
        before = index.search(queries, k=5, recall=0.9)
    (derived,) = (tmp_path / "i" / "cache").glob("derived.*")
    good = derived.read_bytes()
    half = len(good) // 2
    for content in (good[:half], good[:half] + bytes([good[half] ^ 255]) + good[half + 1 :], b"", None):
        derived.unlink(missing_ok=True)
        if content is not None:
            derived.write_bytes(content)
        with slosh.open(tmp_path / "i", read_only=True, n_jobs=1) as index:
            assert plain_answer(index.search(queries, k=5, recall=0.9)) == plain_answer(before)


def test_an_index_refuses_a_factory_that_its_vectors_are_too_short_for(tmp_path):
    with pytest.raises(InputError, match="PCA gives 2000 numbers"):
        make_index(tmp_path / "i", search=FaissSearch("PCA2000,Flat"))
    assert not (tmp_path / "i").exists()
