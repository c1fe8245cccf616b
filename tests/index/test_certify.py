"""Certified answers: the true nearest sets under the sliced distance, proved by bounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slosh
from builders import cloud_list, clouds, make_index, plain_answer, small_embedding, split
from oracle import Oracle, check_nearest, check_within
from slosh import PrecisionWarning, Sets
from slosh.embed import GeM, SlicedWasserstein
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch


def as_pairs(sets):
    """Return the sets as the oracle takes them."""
    spans = [slice(a, b) for a, b in pairwise(sets.offsets.tolist())]
    return [(sets.points[span], None if sets.weights is None else sets.weights[span]) for span in spans]


def directions(n, dim, seed):
    found = np.random.default_rng(seed).normal(size=(n, dim))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.filterwarnings("ignore::slosh.PrecisionWarning")
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
    sets = clouds(n + 3, dim, seed, weighted)
    sets = Sets(sets.points * np.float32(scale), sets.offsets, sets.weights)
    queries, stored = sets[:3], as_pairs(sets[3:])
    oracle = Oracle(directions(n_slices, dim, seed), n_quantiles)
    embedding = SlicedWasserstein(None, n_quantiles, slices=oracle.directions, reference="normal", n_jobs=1)
    index = make_index(dim=dim, embedding=embedding)
    names = [str(i) for i in range(n)]
    index.add(sets[3:], names)
    stored = dict(zip(names, stored, strict=True))
    found = index.search(queries, k, certify=True)
    radius = 1.5 * scale
    near = index.range_search(queries, radius, certify=True)
    for query, hits, within in zip(as_pairs(queries), found, near, strict=True):
        distances = oracle.distances(query, stored, certify=True)
        check_nearest(hits, stored, distances, k, 1e-5 * scale)
        check_within(within, stored, distances, radius, 1e-5 * scale)
    assert found.distance_kind == near.distance_kind == "sliced"
    assert np.all(found.stats.full_distances <= n)


ANGLES = np.pi * (np.arange(16) + 0.5) / 16
REAL = Oracle(np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1), 16)


def test_certified_on_real_sets(mnist, each_kernel):
    sets, _ = mnist
    queries, stored = sets[:3], sets[10:160]
    if each_kernel == "numpy":
        queries, stored = sets[:2], sets[10:60]
    names = [str(i) for i in range(len(stored))]
    known = dict(zip(names, as_pairs(stored), strict=True))
    for search in (LadderSearch(), LadderSearch(n_components=4, n_lists=8), ExactSearch()):
        index = make_index(embedding=SlicedWasserstein(None, 16, slices=REAL.directions, n_jobs=1), search=search)
        index.add(stored)
        found = index.search(queries, 10, certify=True)
        for query, hits in zip(as_pairs(queries), found, strict=True):
            check_nearest(hits, known, REAL.distances(query, known, certify=True), 10, 1e-6)
        assert np.all(found.stats.full_distances >= 10)
        if each_kernel != "numpy":
            assert found.stats.full_distances.mean() < len(stored) / 2  # a proof, not a scan


def test_certified_where_the_search_is_trained():
    """With a basis and lists, of few components, so that the bounds have something to do."""
    sets = cloud_list(1300, largest=6)
    oracle = Oracle(directions(5, 2, 0), 8)
    for search in (LadderSearch(), LadderSearch(n_components=4, n_lists=8)):
        index = make_index(embedding=SlicedWasserstein(None, 8, slices=oracle.directions, n_jobs=1), search=search)
        index.add(sets)
        index.tune(recall=0.9, k=10)
        known = {str(i): (points, None) for i, points in enumerate(sets)}
        queries = cloud_list(4, seed=5)
        found = index.search(queries, 10, certify=True)
        for query, hits in zip(queries, found, strict=True):
            check_nearest(hits, known, oracle.distances((query, None), known, certify=True), 10, 1e-5)
        assert found.stats.full_distances.mean() < 200


def test_bounds_enclose_the_sliced_distance():
    """The distance that an index ranks by is never larger than the sliced distance, but for rounding."""
    sets, queries = cloud_list(80), cloud_list(5, seed=3)
    index = make_index(search=LadderSearch(precision=32))
    index.add(sets)
    embedded = index.search(queries, 80, recall=1.0)
    sliced = index.search(queries, 80, certify=True)
    for a, b in zip(embedded, sliced, strict=True):
        true = dict(zip(b.ids, b.distances, strict=True))
        assert all(distance <= true[name] + 1e-6 for name, distance in zip(a.ids, a.distances, strict=True))


def test_ties_are_broken_by_id():
    cloud = np.random.default_rng(1).normal(size=(20, 2))
    index = make_index()
    index.add([cloud[::-1] if i % 2 else cloud for i in range(30)], [f"{i:02}" for i in range(30)][::-1])
    hits = index.search(cloud, 7, certify=True)
    assert hits.ids == [f"{i:02}" for i in range(7)]
    assert np.all(hits.distances == 0)


def test_slices_that_are_not_linear():
    sets, queries = cloud_list(36, seed=5), cloud_list(4, seed=6)
    embedding = small_embedding(n_slices=6, n_quantiles=8, slices=slosh.slices.Circular()).fit(sets)
    centers = embedding.slices_.centers_.astype(np.float64)
    oracle = Oracle(np.eye(6), 8, project=lambda points: np.linalg.norm(points[:, None] - centers, axis=2))
    index = make_index(embedding=embedding)
    index.add(sets)
    known = {str(i): (points, None) for i, points in enumerate(sets)}
    for query, hits in zip(queries, index.search(queries, 5, certify=True), strict=True):
        check_nearest(hits, known, oracle.distances((query, None), known, certify=True), 5, 1e-5)


def test_sets_of_very_many_elements():
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(n, 2)).astype(np.float32) * scale for n, scale in ((200_000, 1), (3, 1), (150_000, 1.3))]
    sets += cloud_list(20)
    oracle = Oracle(directions(4, 2, 0), 4)
    index = make_index(embedding=SlicedWasserstein(None, 4, slices=oracle.directions, n_jobs=1))
    index.add(sets)
    known = {str(i): (points, None) for i, points in enumerate(sets)}
    query = rng.normal(size=(100_000, 2)).astype(np.float32)
    distances = oracle.distances((query, None), known, certify=True)
    check_nearest(index.search(query, 6, certify=True), known, distances, 6, 1e-5)


def test_what_cannot_be_certified():
    sets = cloud_list(50)
    index = make_index(embedding=GeM(p=2))
    index.add(sets)
    assert index.search(sets[3], 1).ids == ["3"]
    with pytest.raises(ValueError, match="certify needs bounds"):
        index.search(sets[0], certify=True)
    linear = make_index(embedding=small_embedding(quantiles="linear"))
    linear.add(sets)
    with pytest.raises(ValueError, match=r"certify needs bounds .* by SlicedWasserstein with quantiles='linear': "):
        linear.range_search(sets[0], 1.0, certify=True)


@pytest.mark.parametrize("options", [{"rerank": "chamfer"}, {"depth": 5}, {"recall": 0.9}], ids=str)
def test_what_certify_leaves_no_room_for(options):
    index = make_index()
    index.add(cloud_list(5))
    with pytest.raises(ValueError, match="leave"):
        index.search(cloud_list(1)[0], certify=True, **options)


def test_every_search_certifies():
    """Whatever finds the candidates, the proof is by the points."""
    sets, queries = cloud_list(60), cloud_list(3, seed=2)
    answers = []
    for search in (ExactSearch(), LadderSearch(), LadderSearch(precision=32), LSHSearch(), HammingSearch(rerank=20)):
        index = make_index(search=search, sample=sets[:20])
        index.add(sets)
        answers.append(plain_answer(index.search(queries, 8, certify=True)))
    assert all(answer == answers[0] for answer in answers)


def test_the_recall_of_a_range_search_is_that_of_its_search():
    index = make_index(search=LSHSearch())
    index.add(cloud_list(300))
    exact = index.range_search(cloud_list(5, seed=1), 0.5, recall=1.0)
    assert exact.stats.recall == 1.0
    for some, every in zip(index.range_search(cloud_list(5, seed=1), 0.5), exact, strict=True):
        assert set(some.ids) <= set(every.ids)


def test_distances_of_codes_are_called_what_they_are():
    index = make_index(search=HammingSearch(), sample=cloud_list(30))
    index.add(cloud_list(30))
    assert index.search(cloud_list(1, seed=4)[0], 2).distance_kind == "hamming"
    assert index.range_search(cloud_list(1, seed=4)[0], 400).distance_kind == "hamming"


def test_sixteen_bits_that_are_too_few_are_said():
    far = [x + np.float32(3e4) for x in cloud_list(40)]
    index = make_index()
    with pytest.warns(PrecisionWarning, match="precision=32"):
        (index.add(far), index.search(far[0], 5))
    assert index.search(far[0], 1, certify=True).ids == ["0"]
    assert len(split(index.get(index.ids).sets)) == 40
