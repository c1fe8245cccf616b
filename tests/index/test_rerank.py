"""Candidates that are ordered by an exact distance, or by a function of the caller's; explanations of a distance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from builders import cloud_list, clouds, make_index
from oracle import Oracle
from slosh import Sets
from slosh.embed import GeM, SlicedWasserstein

ORACLE = Oracle([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96]], 4)


def chamfer(a, b, u, v):
    table = cdist(a, b)
    return (table.min(axis=1) @ u + table.min(axis=0) @ v) / 2


def hausdorff(a, b, u, v):
    table = cdist(a, b)
    return max(table.min(axis=1).max(), table.min(axis=0).max())


def wasserstein(a, b, u, v):
    ot = pytest.importorskip("ot")
    return np.sqrt(ot.emd2(u, v, cdist(a, b, "sqeuclidean")))


def sliced(a, b, u, v):
    return ORACLE.sliced((a, u), (b, v))


FORMULAS = {"chamfer": chamfer, "hausdorff": hausdorff, "wasserstein": wasserstein, "sliced": sliced}


def parts(sets):
    """Return the points of each set that have a weight, and their weights, which sum to one."""
    for a, b in pairwise(sets.offsets.tolist()):
        weights = np.ones(b - a) if sets.weights is None else sets.weights[a:b].astype(np.float64)
        counts = weights > 0
        yield sets.points[a:b][counts].astype(np.float64), weights[counts] / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_reranked(name, weighted):
    sets = clouds(43, weighted=weighted, largest=15)
    stored, queries = sets[:40], sets[40:]
    index = make_index(embedding=SlicedWasserstein(None, 4, slices=ORACLE.directions, n_jobs=1))
    index.add(stored, [f"{i:02}" for i in range(40)])
    found = index.search(queries, 5, rerank=name, depth=40)
    for (a, u), hits in zip(parts(queries), found, strict=True):
        distances = np.array([FORMULAS[name](a, b, u, v) for b, v in parts(stored)])
        order = np.argsort(distances, kind="stable")[:5]
        assert hits.ids == [f"{i:02}" for i in order]
        np.testing.assert_allclose(hits.distances, distances[order], rtol=1e-5)
    assert found.distance_kind == name
    assert np.all(found.stats.full_distances == 40)


def test_only_the_nearest_are_ranked():
    """`depth` is how many; None is 4 k, at least 32."""
    sets = cloud_list(100)
    index = make_index()
    index.add(sets)
    near = index.search(sets[0], 20).ids
    hits = index.search(sets[0], 5, rerank="chamfer", depth=20)
    assert set(hits.ids) <= set(near)
    for k, depth in ((1, 32), (10, 40), (90, 100)):
        found = index.search(sets[:2], k, rerank="hausdorff")
        assert found.stats.full_distances.tolist() == [depth, depth]


def test_reranked_by_a_function():
    sets = cloud_list(42)
    index = make_index()
    index.add(sets[:40])

    def sizes(query, candidates):
        assert isinstance(candidates, Sets)
        assert len(query) == 1
        return np.abs(candidates.sizes - query.sizes[0])

    found = index.search(sets[40:], 3, rerank=sizes, depth=40)
    expected = np.sort(np.abs(np.array([len(x) for x in sets[:40]]) - len(sets[40])))[:3]
    assert np.array_equal(found[0].distances, expected)
    with pytest.raises(ValueError, match="40 distances"):
        index.search(sets[40], 3, rerank=lambda query, candidates: [1.0], depth=40)
    with pytest.raises(ValueError, match="nan for candidate 3 of 40"):
        index.search(sets[40], 3, rerank=lambda query, candidates: [0, 0, 0, np.nan] + [1] * 36, depth=40)
    own = index.search(sets[0], k=3, rerank=lambda query, candidates: -candidates.sizes.astype(float), depth=40)
    assert own[0].distance == -max(map(len, sets[:40]))


class Refused(Exception):
    """An error of the caller's own."""


def test_an_error_of_a_function_is_the_callers():
    index = make_index()
    index.add(cloud_list(40))

    def broken(query, candidates):
        raise Refused("mine")

    with pytest.raises(Refused, match="mine"):
        index.search(cloud_list(1)[0], 3, rerank=broken)
    assert len(index.search(cloud_list(1)[0], 3)) == 3
    index.add(cloud_list(1), ["after"])
    assert index.verify().ok


def test_what_cannot_be_ranked():
    index = make_index(embedding=GeM(p=2))
    index.add(cloud_list(5))
    with pytest.raises(ValueError, match="slices"):
        index.search(cloud_list(1)[0], rerank="sliced")
    with pytest.raises(ValueError, match="rerank='nearest'"):
        index.search(cloud_list(1)[0], rerank="nearest")
    with pytest.raises(ValueError, match="rerank"):
        index.search(cloud_list(1)[0], depth=5)


def test_a_linear_embedding_is_ranked_by_its_slices():
    sets = cloud_list(50)
    index = make_index(embedding=SlicedWasserstein(None, 4, slices=ORACLE.directions, quantiles="linear", n_jobs=1))
    index.add(sets)
    hits = index.search(sets[3], 5, rerank="sliced", depth=50)
    distances = [ORACLE.sliced((sets[3], None), (other, None)) for other in sets]
    assert hits.ids == [str(i) for i in np.argsort(distances, kind="stable")[:5]]


def test_explain():
    sets = cloud_list(12)
    index = make_index(embedding=SlicedWasserstein(None, 4, slices=ORACLE.directions, n_jobs=1))
    index.add(sets, ids=list("abcdefghijkl"))
    told = index.explain(sets[0], "b")
    assert np.isclose(told.distance, ORACLE.sliced((sets[0], None), (sets[1], None)), rtol=1e-5)
    assert index.explain("a", "b").distance == told.distance
    assert index.explain([sets[0]], "b").distance == told.distance
