"""The planner works in batches of queries; no answer depends on where one ends."""

from __future__ import annotations

import numpy as np
import pytest

from builders import cloud_list, make_index, plain_answer
from slosh import Sets
from slosh.index import planner

QUESTIONS = {
    "default": {},
    "exact": {"recall": 1.0},
    "a filter": {"where": {"odd": 1}, "recall": 0.9},
    "certified": {"certify": True},
    "re-ranked": {"rerank": "chamfer"},
    "a page": {"offset": 3},
}


@pytest.fixture(scope="module")
def index():
    made = make_index()
    made.add(cloud_list(1500, largest=5), metadata=[{"odd": i % 2} for i in range(1500)])
    return made


def small_batches(monkeypatch, index, n):
    """Let n queries be worked on together."""
    length = index.embedding.index_length
    monkeypatch.setattr(planner, "BATCH_NUMBERS", n * length + length - 1)
    monkeypatch.setattr(planner, "BATCH_RERANKED", n)


def counts(stats):
    """Return what a search has counted for each query, and what it promises."""
    full = None if stats.full_distances is None else stats.full_distances.tolist()
    unlike = None if stats.unlike is None else stats.unlike.tolist()
    return stats.candidates.tolist(), stats.scanned.tolist(), full, stats.recall, unlike


@pytest.mark.parametrize("n", [1, 4, 11])
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_do_not_depend_on_the_batches(index, monkeypatch, question, n):
    clouds, options = cloud_list(11, seed=1), QUESTIONS[question]
    queries = Sets.from_list([*clouds[:7], *(cloud + 50 for cloud in clouds[7:])])
    whole = index.search(queries, k=4, **options)
    assert counts(whole.stats)[-1] == (None if "where" in options else [False] * 7 + [True] * 4)
    stored = index.search(id=[str(i) for i in range(11)], k=4, **options)
    small_batches(monkeypatch, index, n)
    parts = index.search(queries, k=4, **options)
    assert plain_answer(parts) == plain_answer(whole)
    assert parts.metadata == whole.metadata
    assert (parts.distance_kind, len(parts.stats.candidates)) == (whole.distance_kind, 11)
    assert counts(parts.stats) == counts(whole.stats)
    assert plain_answer(index.search(id=[str(i) for i in range(11)], k=4, **options)) == plain_answer(stored)


@pytest.mark.parametrize("certify", [False, True])
def test_each_query_keeps_its_radius_and_its_place(index, monkeypatch, certify):
    queries, radii = cloud_list(7, seed=1), np.array([0.0, 0.1, 5.0, 0.2, 0.0, 0.3, 0.1])
    whole = index.range_search(queries, radii, certify=certify)
    distances, positions = index.kneighbors(queries, k=3)
    small_batches(monkeypatch, index, 2)
    parts = index.range_search(queries, radii, certify=certify)
    assert plain_answer(parts) == plain_answer(whole)
    assert len(set(map(len, parts))) > 2
    again = index.kneighbors(queries, k=3)
    np.testing.assert_array_equal(again[0], distances)
    np.testing.assert_array_equal(again[1], positions)


def test_no_queries_and_no_sets(index, monkeypatch):
    none = Sets.from_list(cloud_list(1))[:0]
    small_batches(monkeypatch, index, 2)
    assert len(index.search(none)) == 0
    assert make_index().search(cloud_list(5), certify=True).ids == [[]] * 5
