"""SetSearch: the true nearest sets under the sliced distance, proved; and re-ranked ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slosh
from slosh import Sets, rank
from slosh.embed import GeM, SlicedWasserstein
from slosh.native import kernel
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch, SetSearch
from slosh.search.store import Grown


def clouds(n, dim, seed, weighted=False, largest=40):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest, n)
    points = [rng.normal(size=(size, dim)) * rng.uniform(0.2, 2) + rng.normal(size=dim) * 0.3 for size in sizes]
    weights = [rng.uniform(0, 1, size) + 1e-3 for size in sizes] if weighted else None
    return Sets.from_list(points, weights)


def true_nearest(queries, sets, slices, k, rows=None):
    table = slosh.pairwise(queries, sets, slices=slices)
    rows = np.arange(len(sets)) if rows is None else rows
    order = np.stack([np.lexsort((rows, line))[:k] for line in table])
    return np.take_along_axis(table, order, axis=1), rows[order], table


@settings(max_examples=25)
@given(
    n=st.integers(1, 60),
    dim=st.integers(1, 4),
    n_slices=st.integers(1, 9),
    n_quantiles=st.integers(1, 12),
    k=st.integers(1, 12),
    weighted=st.booleans(),
    scale=st.sampled_from([1.0, 1e-3, 1e5]),
    seed=st.integers(0, 999),
)
def test_certified_is_the_truth(n, dim, n_slices, n_quantiles, k, weighted, scale, seed):
    sets = clouds(n + 4, dim, seed, weighted)
    sets = Sets(sets.points * np.float32(scale), sets.offsets, sets.weights)
    queries, stored = sets[:4], sets[4:]
    model = SlicedWasserstein(n_slices, n_quantiles, slices="random", reference="normal")
    search = SetSearch(model)
    search.add(stored)
    result = search.search(queries, k, certify=True)
    distances, rows, table = true_nearest(queries, stored, search.embedding.slices_, min(k, n))
    assert np.array_equal(result.rows, rows)
    assert np.array_equal(result.distances, distances)
    assert result.distance_kind == "sliced"
    assert np.all(result.stats.full_distances <= n)
    radius = float(np.median(table))
    for i, (found, at) in enumerate(search.range_search(queries, radius, certify=True)):
        there = np.flatnonzero(table[i] <= radius)
        assert set(at.tolist()) == set(there.tolist())
        assert np.array_equal(found, np.sort(table[i][there]))


def test_certified_on_real_sets(mnist, each_kernel):
    sets, _ = mnist
    queries, stored = sets[:10], sets[10:]
    if each_kernel == "numpy":
        queries, stored = sets[:2], sets[10:60]
    for method in (LadderSearch(), LadderSearch(n_components=4, n_lists=8), ExactSearch()):
        search = SetSearch(SlicedWasserstein(16, 16), method)
        search.add(stored)
        if isinstance(method, LadderSearch):
            search.vector_search.train()
        result = search.search(queries, 10, certify=True)
        distances, rows, _ = true_nearest(queries, stored, search.embedding.slices_, 10)
        assert np.array_equal(result.rows, rows)
        assert np.array_equal(result.distances, distances)
        assert np.all(result.stats.full_distances >= 10)
        if each_kernel != "numpy":
            assert result.stats.full_distances.mean() < len(stored) / 5  # a proof, not a scan


def test_the_same_whatever_the_order(mnist):
    sets, _ = mnist
    rows = np.random.default_rng(0).permutation(300)
    one, many = SetSearch(), SetSearch()
    one.add(sets[:300])
    for first in range(0, 300, 37):
        part = rows[first : first + 37]
        many.add(sets.take(part), part)
    gone = rows[:50]
    one.remove(gone)
    many.remove(gone)
    a, b = one.search(sets[300:310], 8, certify=True), many.search(sets[300:310], 8, certify=True)
    assert np.array_equal(a.rows, b.rows)
    assert np.array_equal(a.distances, b.distances)
    assert not np.isin(a.rows, gone).any()
    allowed = np.setdiff1d(rows[100:200], gone)
    found = one.search(sets[300:303], 5, certify=True, allowed=allowed)
    _, want, _ = true_nearest(sets[300:303], sets.take(allowed), one.embedding.slices_, 5, allowed)
    assert np.array_equal(found.rows, want)


def test_ties_are_broken_by_row():
    cloud = np.random.default_rng(1).normal(size=(20, 2))
    search = SetSearch()
    search.add([cloud[::-1] if i % 2 else cloud for i in range(30)], np.arange(30)[::-1].copy())
    result = search.search([cloud], 7, certify=True)
    assert result.rows.tolist() == [list(range(7))]
    assert np.all(result.distances == 0)


@pytest.mark.parametrize("name", ["sliced", "chamfer", "hausdorff", "wasserstein"])
def test_reranked(mnist, name):
    if name == "wasserstein":
        pytest.importorskip("ot")
    sets, _ = mnist
    stored, queries = sets[:60], sets[60:63]
    search = SetSearch()
    search.add(stored)
    result = search.search(queries, 5, rerank=name, depth=60)
    for i in range(3):
        if name == "sliced":
            distances = rank.sliced_wasserstein(queries[i], stored, slices=search.embedding.slices_)
        else:
            distances = getattr(rank, name)(queries[i], stored)
        order = np.argsort(distances, kind="stable")[:5]
        assert np.array_equal(result.rows[i], order)
        np.testing.assert_allclose(result.distances[i], distances[order], rtol=1e-6)
    assert result.distance_kind == name
    assert np.all(result.stats.full_distances == 60)


def test_reranked_by_a_function(mnist):
    sets, _ = mnist
    search = SetSearch()
    search.add(sets[:40])

    def sizes(query, candidates):
        assert len(query) == 1
        return np.abs(candidates.sizes - query.sizes[0])

    result = search.search(sets[40:42], 3, rerank=sizes, depth=40)
    assert np.array_equal(result.distances[0], np.sort(np.abs(sets[:40].sizes - sets.sizes[40]))[:3])
    with pytest.raises(ValueError, match="rerank must return 40 distances"):
        search.search(sets[40:41], 3, rerank=lambda a, b: [1.0], depth=40)


def test_without_points_it_ranks_by_the_vectors(mnist):
    sets, _ = mnist
    search = SetSearch(SlicedWasserstein(16, 16), ExactSearch())
    search.add(sets[:100])
    vectors, residuals = search.embedding.transform(sets, return_residual=True)
    full = np.column_stack([vectors, residuals.astype(np.float32)]).astype(np.float64)
    table = np.linalg.norm(full[100:105, None] - full[None, :100], axis=2)
    result = search.search(sets[100:105], 4)
    assert np.array_equal(result.rows, np.argsort(table, axis=1)[:, :4])
    assert result.distance_kind == "embedded"
    exact = slosh.pairwise(sets[100:105], sets[:100], slices=search.embedding.slices_)
    assert np.all(result.distances <= np.take_along_axis(exact, result.rows, 1) + 1e-6)
    lines = search.range_search(sets[100:102], 0.1)
    assert lines.distance_kind == "embedded"


def test_other_embeddings(mnist):
    sets, _ = mnist
    search = SetSearch(GeM(p=2))
    search.add(sets[:50])
    assert search.search(sets[3:4], 1).rows.tolist() == [[3]]
    with pytest.raises(ValueError, match="certify needs bounds on the sliced distance"):
        search.search(sets[:1], certify=True)
    with pytest.raises(ValueError, match="takes its slices from SlicedWasserstein"):
        search.search(sets[:1], rerank="sliced")
    linear = SetSearch(SlicedWasserstein(8, 8, quantiles="linear"))
    linear.add(sets[:50])
    with pytest.raises(ValueError, match="certify needs bounds"):
        linear.range_search(sets[:1], 1.0, certify=True)
    assert linear.search(sets[3:4], 1, rerank="sliced").rows.tolist() == [[3]]


def test_non_linear_slices():
    sets = clouds(40, 2, 5)
    search = SetSearch(SlicedWasserstein(6, 8, slices=slosh.slices.Circular()))
    search.add(sets[:36])
    result = search.search(sets[36:], 5, certify=True)
    _, rows, _ = true_nearest(sets[36:], sets[:36], search.embedding.slices_, 5)
    assert np.array_equal(result.rows, rows)


def test_bad_input(mnist):
    sets, _ = mnist
    search = SetSearch()
    with pytest.raises(ValueError, match="the collection is empty: add sets first"):
        search.search(sets[:1])
    with pytest.raises(ValueError, match="nothing to remove"):
        search.remove([0])
    search.add(sets[:20])
    before = search.search(sets[:3], 20, certify=True)
    weighted = Sets(sets[:2].points, sets[:2].offsets, np.ones(len(sets[:2].points)))
    for call, message in [
        (lambda: search.add(sets[20:22], [3, 30]), "row 3 exists"),
        (lambda: search.add([np.zeros((3, 3))]), "expected 2"),
        (lambda: search.add([[[np.nan, 0.0]]]), "nan is not a finite number"),
        (lambda: search.add(weighted), "weights"),
        (lambda: search.remove([1, 1]), "twice"),
        (lambda: search.remove([77]), "row 77 is not there"),
        (lambda: search.search(sets[:1], 0), "k=0"),
        (lambda: search.search(sets[:1], rerank="sliced", depth=0), "depth=0"),
        (lambda: search.search([np.zeros((3, 3))]), "expected 2"),
        (lambda: search.search(sets[:1], rerank="nearest"), "rerank='nearest': give 'sliced'"),
        (lambda: search.search(sets[:1], rerank="chamfer", certify=True), "leave rerank, depth and recall out"),
        (lambda: search.search(sets[:1], depth=5), "give rerank too"),
        (lambda: search.add(iter([sets[0]]), [77]), "its length is not known"),
        (lambda: SetSearch(LadderSearch()), "give an embedding of slosh.embed"),
        (lambda: SetSearch(search=search), "give a search of slosh.search"),
        (lambda: SetSearch(search=search.vector_search), "holds 20 rows already"),
        (lambda: search.range_search(sets[:1], -1), "radius=-1"),
        (lambda: search.sets([99]), "row 99 is not there"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
        assert len(search) == 20
    after = search.search(sets[:3], 20, certify=True)
    assert np.array_equal(before.rows, after.rows)
    assert search.search(sets[:0], 5).rows.shape == (0, 5)
    assert search.search(sets[:2], 5, allowed=[], certify=True).rows.shape == (2, 0)
    assert np.array_equal(search.sets([5])[0], sets[5])
    assert search.info()["rows"] == 20


def test_an_interrupted_add_leaves_nothing(mnist, monkeypatch):
    sets, _ = mnist
    search = SetSearch()
    search.add(sets[:50])
    monkeypatch.setattr("slosh.search.set_search.CHUNK", 10 * 256)
    calls = []
    real = SlicedWasserstein._embed

    def broken(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(SlicedWasserstein, "_embed", broken)
    with pytest.raises(KeyboardInterrupt):
        search.add(sets[50:200])
    monkeypatch.setattr(SlicedWasserstein, "_embed", real)
    assert len(search) == len(search.vector_search) == 50
    search.add(sets[50:200])
    result = search.search(sets[200:205], 5, certify=True)
    order = search.rows
    assert len(order) == 200
    fresh = SetSearch()
    fresh.add(sets[:200], order)
    assert np.array_equal(fresh.search(sets[200:205], 5, certify=True).rows, result.rows)


def test_large_sets_in_turns(monkeypatch):
    monkeypatch.setattr("slosh.search.set_search.NUMBERS", 2000)
    sets = clouds(30, 2, 9, largest=300)
    search = SetSearch(SlicedWasserstein(8, 4))
    search.add(sets[:28])
    result = search.search(sets[28:], 6, certify=True)
    _, rows, _ = true_nearest(sets[28:], sets[:28], search.embedding.slices_, 6)
    assert np.array_equal(result.rows, rows)


def test_closing_up(mnist, monkeypatch):
    sets, _ = mnist
    search = SetSearch()
    rows = np.arange(2500)
    search.add(Sets.concat([sets] * 5), rows)
    search.remove(rows[:2300])
    result = search.search(sets[400:402], 3, certify=True)
    _, want, _ = true_nearest(sets[400:402], sets[300:500], search.embedding.slices_, 3, np.arange(2300, 2500))
    assert np.array_equal(result.rows, want)
    assert kernel.name()


def test_a_stream_of_sets(mnist):
    sets, _ = mnist
    search, whole = SetSearch(), SetSearch()
    assert np.array_equal(search.add(iter([sets[i] for i in range(40)])), np.arange(40))
    whole.add(sets[:40])
    a, b = search.search(sets[40:45], 5, certify=True), whole.search(sets[40:45], 5, certify=True)
    assert np.array_equal(a.rows, b.rows)
    assert "40 sets, d = 2" in repr(search)
    assert 39 in search
    assert 40 not in search

    def broken():
        yield sets[1]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        search.add(broken())
    assert len(search) == 40
    assert SetSearch().add([]).tolist() == []


def test_a_first_add_that_fails_leaves_nothing(mnist, monkeypatch):
    sets, _ = mnist
    search = SetSearch()
    with monkeypatch.context() as patch:
        patch.setattr(Grown, "extend", lambda self, values: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search.add(sets[:20])
    assert len(search) == 0
    assert search.dim is None
    search.add([np.zeros((3, 5)), np.ones((2, 5))])  # of another dimension
    assert search.search([np.ones((1, 5))], 1, certify=True).rows.tolist() == [[1]]


def test_the_recall_of_a_range_search_is_that_of_its_search(mnist):
    sets, _ = mnist
    search = SetSearch(SlicedWasserstein(8, 8), LSHSearch())
    search.add(Sets.concat([sets] * 5))
    exact = search.range_search(sets[:5], 0.2, recall=1.0)
    assert exact.stats.recall == 1.0
    assert len(search.range_search(sets[:5], 0.2).rows) <= len(exact.rows)
    with pytest.raises(ValueError, match="leave recall out"):
        search.range_search(sets[:1], 0.2, recall=0.5, certify=True)


def test_distances_of_codes_are_called_what_they_are():
    search = SetSearch(SlicedWasserstein(4, 4), HammingSearch())
    search.add(clouds(30, 2, 3))
    assert search.search(clouds(1, 2, 4), 2).distance_kind == "hamming"
    assert search.range_search(clouds(1, 2, 4), 400).distance_kind == "hamming"
