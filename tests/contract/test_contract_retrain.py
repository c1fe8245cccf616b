"""What retraining promises, on every engine: other distances for all sets at once, and nothing else changed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from builders import cloud_list, contents
from slosh import errors
from slosh.embed import DistanceField, SlicedWasserstein, Whitened
from slosh.hash import SignHash
from slosh.search import HammingSearch


def learning(engine, **options):
    """An index that has learnt its anchors from sets unlike those it holds, and its sets."""
    sample, sets = cloud_list(20, seed=9), [points + 30 for points in cloud_list(40)]
    index = engine.create(embedding=DistanceField(8, n_jobs=1), sample=sample, **options)
    index.add(sets, metadata=[{"n": i, "half": i < 20} for i in range(40)])
    return index, sets


def distances_by(embedding, sets, query):
    """Distances by plain NumPy over the embedded vectors."""
    return np.linalg.norm(embedding.transform(sets) - embedding.transform([query])[0], axis=1)


def test_all_sets_are_embedded_by_what_was_learnt(engine):
    index, sets = learning(engine)
    index.remove([str(i) for i in range(30, 40)])
    before, before_that = contents(index), index.embedding
    index.retrain()
    assert contents(index) == before
    fresh = DistanceField(8, n_jobs=1).fit(sets[:30])
    assert np.array_equal(index.embedding.anchors_, fresh.anchors_)
    expected = distances_by(fresh, sets[:30], sets[3])
    hits = index.search(sets[3], k=5, recall=1.0)
    assert hits.distances == pytest.approx(np.sort(expected)[:5], rel=1e-3)
    assert hits.distances == pytest.approx(expected[[int(name) for name in hits.ids]], rel=1e-3)
    assert not np.allclose(expected, distances_by(before_that, sets[:30], sets[3]), rtol=1e-2)
    assert index.search(sets[3], k=30, where={"half": False}).ids
    assert index.verify().ok
    assert index.add([sets[35]], ids=["late"]) == ["late"]
    assert index.search(sets[35], k=1).ids == ["late"]


def test_what_was_learnt_lasts_and_readers_follow(engine):
    index, sets = learning(engine)
    reader = engine.read_only(index)
    index.retrain()
    hits = index.search(sets, k=4, recall=1.0)
    index.compact()
    assert [one.ids for one in index.search(sets, k=4, recall=1.0)] == [one.ids for one in hits]
    if reader is None:
        return
    assert np.array_equal(reader.embedding.anchors_, index.embedding.anchors_)
    assert [one.ids for one in reader.search(sets, k=4, recall=1.0)] == [one.ids for one in hits]
    learnt = index.embedding.anchors_.copy()
    index = engine.reopen(index)
    assert np.array_equal(index.embedding.anchors_, learnt)
    assert index.info()["embedded_on_open"] == 0
    assert [one.ids for one in index.search(sets, k=4, recall=1.0)] == [one.ids for one in hits]


def test_searches_see_the_old_or_the_new_distances(engine):
    """A query is embedded as the stored sets are that it is compared with: it finds itself at the distance zero."""
    index, sets = learning(engine)
    retrained, wrong = threading.Event(), []

    def search():
        i = 0
        while not retrained.is_set():
            hit = index.search(sets[i % 40], k=1, recall=1.0)[0]
            if hit.id != str(i % 40) or hit.distance > 1e-3:
                wrong.append((i % 40, hit))
            i += 1

    thread = threading.Thread(target=search)
    thread.start()
    try:
        for seed in range(5):
            index.retrain(cloud_list(15, seed=seed))
    finally:
        retrained.set()
        thread.join()
    assert not wrong


def test_a_hash_is_learnt_anew_too(engine):
    index, sets = learning(engine, search=HammingSearch())
    index.retrain()
    assert index.search(sets[5], k=1).ids == ["5"]
    assert index.search(sets[5], k=1).distance_kind == "hamming"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sample": []}, "sample is empty"),
        ({"sample": [np.zeros((3, 5))]}, "dimension|features"),
        ({"label": "colour"}, "no set has 'colour'"),
        ({"sample": cloud_list(3), "label": "half"}, "leave sample or label out"),
    ],
)
def test_bad_input_changes_nothing(engine, given, words):
    index, _ = learning(engine)
    before, learnt = contents(index), index.embedding.anchors_.copy()
    with pytest.raises(errors.InputError, match=words):
        index.retrain(**given)
    assert contents(index) == before
    assert np.array_equal(index.embedding.anchors_, learnt)


def test_where_there_is_nothing_to_learn(engine):
    plain = engine.create()
    plain.add(cloud_list(3))
    with pytest.raises(errors.InputError, match="learns nothing"):
        plain.retrain()
    empty = engine.create(embedding=DistanceField(8, n_jobs=1), sample=cloud_list(20))
    with pytest.raises(errors.InputError, match="no sets to learn from"):
        empty.retrain()


def whitened(engine, sample=None, **options):
    return engine.create(embedding=Whitened(SlicedWasserstein(8, n_quantiles=8), n_jobs=1), sample=sample, **options)


def turned_cloud_list(n, angle, seed):
    """Clouds that are long and thin, in about one direction."""
    rng, axis = np.random.default_rng(seed), np.array([np.cos(angle), np.sin(angle)])
    return [rng.normal(size=(12, 1)) * axis + 0.1 * rng.normal(size=(12, 2)) + rng.normal(size=2) for _ in range(n)]


def test_info_says_when_later_sets_are_unlike_those_that_were_learnt_from(engine):
    index = whitened(engine, turned_cloud_list(300, 0.0, seed=1))
    assert index.info()["retrain"] is None
    index.add(turned_cloud_list(300, 0.0, seed=2))
    assert index.info()["retrain"] is None
    index.add(turned_cloud_list(60, np.pi / 2, seed=3))
    assert "farther from those that were learnt from" in index.info()["retrain"]
    index.retrain()
    assert index.info()["retrain"] is None
    assert index.search(turned_cloud_list(1, 0.0, seed=4)[0], k=1).distance_kind == "whitened"


def test_whitened_sets_are_searched_like_others(engine):
    """Exact answers, ranges, duplicates, filters and re-ranking against plain NumPy."""
    sets = turned_cloud_list(400, 0.5, seed=1)
    index = whitened(engine, sets)
    index.add([*sets, sets[7]], metadata=[{"even": i % 2 == 0} for i in range(401)])
    vectors = index.embedding.transform([*sets, sets[7]]).astype(np.float64)
    query = turned_cloud_list(1, 0.6, seed=5)[0]
    away = np.linalg.norm(vectors - index.embedding.transform([query])[0], axis=1)
    hits = index.search(query, k=10, recall=1.0)
    assert hits.distance_kind == "whitened"
    assert hits.distances == pytest.approx(np.sort(away)[:10], abs=2e-4)
    even = index.search(query, k=5, where={"even": True}, recall=1.0)
    assert even.distances == pytest.approx(np.sort(away[::2])[:5], abs=2e-4)
    radius = float(np.sort(away)[19:21].mean())
    assert len(index.range_search(query, radius)) == 20
    assert [set(pair[:2]) for pair in index.duplicates(1e-4)] == [{"7", "400"}]
    near = index.search(query, k=10, rerank="chamfer")
    assert near.distance_kind == "chamfer"
    assert set(near.ids) <= set(index.search(query, k=401, recall=1.0).ids)
    for asked in ({"certify": True}, {"certify": True, "rerank": "sliced"}):
        with pytest.raises(errors.UnsupportedError, match="create it with SlicedWasserstein"):
            index.search(query, k=3, **asked)


def test_compact_never_changes_a_whitened_distance(engine):
    sets = turned_cloud_list(300, 0.5, seed=1)
    index = whitened(engine, sets[:100])
    index.add(sets)
    before = index.search(sets[:20], k=5, recall=1.0)
    index.compact()
    after = index.search(sets[:20], k=5, recall=1.0)
    assert np.array_equal(before.distances, after.distances)


def test_codes_of_whitened_vectors(engine):
    sets = turned_cloud_list(500, 0.5, seed=1)
    index = whitened(engine, sets, search=HammingSearch(SignHash(1024), rerank=50))
    index.add(sets)
    found = index.search(sets[:50], k=1)
    assert [one.ids[0] for one in found] == [str(i) for i in range(50)]
    assert index.search(sets[0], k=3).distance_kind == "whitened"
    index.retrain()
    assert [one.ids[0] for one in index.search(sets[:50], k=1)] == [str(i) for i in range(50)]
