"""Certified answers by the Hausdorff distance: the fields of the sets prove them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from builders import cloud_list, clouds, make_index, plain_answer
from oracle import check_nearest, check_within
from slosh import Sets, errors
from slosh.embed import DistanceField, GeM, SlicedWasserstein
from slosh.engines.base import Capabilities
from slosh.engines.memory import Version
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch

PROVED = {"rerank": "hausdorff", "certify": True}


def hausdorff(a, b):
    """The formula, in float64: of the elements that have a weight."""
    x, y = (np.asarray(points, np.float64)[np.asarray(weights) > 0] for points, weights in (a, b))
    table = cdist(x, y)
    return max(table.min(axis=1).max(), table.min(axis=0).max())


def with_weights(sets):
    """Return the sets as pairs of points and weights."""
    weights = np.ones(len(sets.points)) if sets.weights is None else sets.weights
    spans = [slice(a, b) for a, b in zip(sets.offsets[:-1], sets.offsets[1:], strict=True)]
    return [(sets.points[span], weights[span]) for span in spans]


def field_index(n_anchors=20, dim=2, **options):
    anchors = np.random.default_rng(0).normal(size=(n_anchors, dim)) * 2
    return make_index(dim=dim, **{"embedding": DistanceField(anchors=anchors, n_jobs=1), **options})


@pytest.mark.filterwarnings("ignore::slosh.PrecisionWarning")
@settings(max_examples=30)
@given(
    n=st.integers(1, 60),
    dim=st.integers(1, 4),
    n_anchors=st.integers(1, 40),
    k=st.integers(1, 12),
    weighted=st.booleans(),
    scale=st.sampled_from([1.0, 1e-3, 1e5, 1e-24]),
    seed=st.integers(0, 999),
)
def test_certified_is_the_truth(n, dim, n_anchors, k, weighted, scale, seed):
    drawn = clouds(n + 3, dim, seed, weighted)
    sets = Sets(drawn.points * np.float32(scale), drawn.offsets, drawn.weights)
    anchors = np.random.default_rng(seed).normal(size=(n_anchors, dim)) * scale
    index = make_index(dim=dim, embedding=DistanceField(anchors=anchors, n_jobs=1))
    names = [str(i) for i in range(n)]
    index.add(sets[3:], names)
    stored, radius = dict(zip(names, with_weights(sets[3:]), strict=True)), 2 * scale
    found, near = index.search(sets[:3], k, **PROVED), index.range_search(sets[:3], radius, **PROVED)
    for query, hits, within in zip(with_weights(sets[:3]), found, near, strict=True):
        distances = {name: hausdorff(query, one) for name, one in stored.items()}
        check_nearest(hits, stored, distances, k, 1e-12 * scale)
        check_within(within, stored, distances, radius, 1e-12 * scale)
    assert found.distance_kind == near.distance_kind == "hausdorff"
    assert found.stats.recall == near.stats.recall == 1.0
    assert np.all(found.stats.full_distances <= n)


def test_certified_on_real_sets(mnist, each_kernel):
    """Points on a grid: many sets are equally far, and all of them are told in the order of their ids."""
    queries, stored = mnist[0][:3], mnist[0][10:310]
    if each_kernel == "numpy":
        queries, stored = mnist[0][:2], mnist[0][10:60]
    names = [f"{i:03}" for i in range(len(stored))]
    known = dict(zip(names, with_weights(stored), strict=True))
    true = [{name: hausdorff(query, one) for name, one in known.items()} for query in with_weights(queries)]
    for search in (LadderSearch(), LadderSearch(n_components=4, n_lists=8), ExactSearch()):
        index = make_index(embedding=DistanceField(64, n_jobs=1), sample=mnist[0][:100], search=search)
        index.add(stored, names)
        found = index.search(queries, 10, **PROVED)
        for distances, hits in zip(true, found, strict=True):
            check_nearest(hits, known, distances, 10, 1e-12)
        assert np.all(found.stats.full_distances >= 10)
        if each_kernel != "numpy":
            assert found.stats.full_distances.mean() < len(stored) / 2  # a proof, not a scan


def test_certified_where_the_search_is_trained():
    sets = cloud_list(1300, largest=6)
    known = {str(i): (points, np.ones(len(points))) for i, points in enumerate(sets)}
    queries = cloud_list(3, seed=5)
    true = [{name: hausdorff((x, np.ones(len(x))), one) for name, one in known.items()} for x in queries]
    for search in (LadderSearch(), LadderSearch(n_components=4, n_lists=8)):
        index = field_index(60, search=search)
        index.add(sets)
        found = index.search(queries, 10, **PROVED)
        for distances, hits in zip(true, found, strict=True):
            check_nearest(hits, known, distances, 10, 1e-12)
        assert found.stats.full_distances.mean() < 400


def test_every_search_certifies():
    """Whatever finds the candidates, the proof is by the points."""
    sets, queries = cloud_list(60), cloud_list(3, seed=2)
    answers = []
    for search in (ExactSearch(), LadderSearch(), LadderSearch(precision=32), LSHSearch(), HammingSearch(rerank=20)):
        index = field_index(search=search, sample=sets[:20])
        index.add(sets)
        index.remove(["3", "17"])
        answers.append(plain_answer(index.search(queries, 8, **PROVED)))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("dim", [2, 5])
def test_distances_that_float32_cannot_tell_apart(dim):
    """Single points about the unit sphere: they are told apart in the end, and none is excluded before."""
    points = np.random.default_rng(0).normal(size=(400, dim))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    index = field_index(8, dim, search=ExactSearch())
    index.add(points[:, None])
    true = np.linalg.norm(points.astype(np.float64), axis=1)
    assert np.ptp(true) < 1e-6
    hits = index.search(np.zeros((1, dim)), 6, **PROVED)
    assert hits.ids == [str(i) for i in np.argsort(true, kind="stable")[:6]]
    within = index.range_search(np.zeros((1, dim)), np.sort(true)[199], **PROVED)
    assert set(within.ids) == {str(i) for i in np.flatnonzero(true <= np.sort(true)[199])}


def test_the_distances_are_those_of_a_reranked_search():
    sets, queries = cloud_list(80, dim=3), cloud_list(4, dim=3, seed=2)
    index = field_index(dim=3)
    index.add(sets)
    proved = index.search(queries, 9, **PROVED)
    assert plain_answer(proved) == plain_answer(index.search(queries, 9, rerank="hausdorff", depth=80))


def test_many_queries_and_few_sets_at_a_time(monkeypatch):
    """Sets are fetched, and compared, in parts of bounded size."""
    sets, queries = cloud_list(90), cloud_list(7, seed=2)
    index = field_index(3)
    index.add(sets)
    whole = plain_answer(index.search(queries, 9, **PROVED))
    monkeypatch.setattr("slosh.index.certify.FETCHED_POINTS", 30)
    monkeypatch.setattr("slosh.rank.hausdorff_pairs.TABLE_NUMBERS", 20)
    monkeypatch.setattr("slosh.index.planner.BATCH_RERANKED", 2)
    assert plain_answer(index.search(queries, 9, **PROVED)) == whole


def test_sets_of_very_many_elements(monkeypatch):
    """Which trees compare."""
    sets, queries = cloud_list(40), cloud_list(3, seed=2)
    index = field_index()
    index.add(sets)
    expected = index.search(queries, 5, **PROVED)
    monkeypatch.setattr("slosh.rank.hausdorff_pairs.TREE_PAIRS", 40)
    found = index.search(queries, 5, **PROVED)
    assert found.ids == expected.ids
    for one, other in zip(found.distances, expected.distances, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_cannot_be_certified():
    sets, proof = cloud_list(30), {"certify": True}
    for embedding in (SlicedWasserstein(4, 4), GeM(2)):
        index = make_index(embedding=embedding)
        index.add(sets)
        for ask in (
            lambda each: each.search(sets[0], **PROVED),
            lambda each: each.range_search(sets[0], 1.0, **PROVED),
        ):
            with pytest.raises(
                errors.UnsupportedError, match=r"Hausdorff distance, .*retrain\(embedding=DistanceField"
            ) as told:
                ask(index)
            assert told.value.argument == "certify"
    index = field_index()
    index.add(sets)
    for ask in (index.search, lambda *args, **options: index.range_search(*args, 1.0, **options)):
        with pytest.raises(errors.UnsupportedError, match=r"sliced distance.*rerank='hausdorff'.*SlicedWasserstein"):
            ask(sets[0], **proof)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"rerank": "chamfer"}, "rerank"),
        ({"rerank": lambda query, candidates: candidates.sizes}, "rerank"),
        ({"rerank": hausdorff}, "rerank"),  # one that has the name
        ({"rerank": "hausdorff", "depth": 5}, "certify"),
        ({"rerank": "hausdorff", "recall": 0.9}, "certify"),
    ],
    ids=["chamfer", "a function", "the function", "depth", "recall"],
)
def test_what_certify_leaves_no_room_for(options, argument):
    index = field_index()
    index.add(cloud_list(5))
    with pytest.raises(errors.InputError, match="leave") as told:
        index.search(cloud_list(1)[0], certify=True, **options)
    assert told.value.argument == argument


def test_a_range_search_is_reranked_only_with_a_proof():
    index = field_index()
    index.add(cloud_list(5))
    with pytest.raises(errors.InputError, match="give certify=True") as told:
        index.range_search(cloud_list(1)[0], 1.0, rerank="hausdorff")
    assert told.value.argument == "rerank"


def test_codes_alone_prove_nothing():
    index = field_index(search=HammingSearch(), sample=cloud_list(30))
    index.add(cloud_list(30))
    for ask in (index.search, lambda query, **options: index.range_search(query, 1.0, **options)):
        with pytest.raises(errors.UnsupportedError, match="rerank=100"):
            ask(cloud_list(1)[0], **PROVED)


def test_an_engine_without_the_metric_is_refused(monkeypatch):
    monkeypatch.setattr(Version, "capabilities", Capabilities())
    index = field_index()
    index.add(cloud_list(5))
    with pytest.raises(errors.UnsupportedError, match=r"engine .*: copy the index to a folder"):
        index.search(cloud_list(1)[0], **PROVED)
