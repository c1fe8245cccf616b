"""What retraining promises, on every engine: other distances for all sets at once, and nothing else changed."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from builders import cloud_list, contents
from slosh import Sets, errors
from slosh.embed import DistanceField, GeM, SlicedWasserstein, Whitened
from slosh.hash import SignHash
from slosh.search import HammingSearch


def learning(engine, **options):
    """An index that has learnt its anchors from sets unlike those it holds, and its sets."""
    sample, sets = cloud_list(20, seed=9), [points + 30 for points in cloud_list(40)]
    index = engine.create(embedding=DistanceField(8, n_jobs=1), sample=sample, **options)
    about = [{"n": i, "half": i < 20, "all": "same", "list": ["a", i % 2]} for i in range(40)]
    index.add(sets, metadata=about)
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


@pytest.mark.parametrize("fitted", [False, True])
def test_another_embedding(engine, fitted):
    """It takes the place of the one before, learns from stored sets unless it is fitted, and lasts."""
    sets = cloud_list(40)
    index = engine.create(embedding=SlicedWasserstein(n_slices=3, n_jobs=1))
    index.add(sets, metadata=[{"n": i} for i in range(40)])
    reader, before = engine.read_only(index), contents(index)
    given = DistanceField(8, n_jobs=1)
    learnt_from = cloud_list(20, seed=9) if fitted else sets
    expected = DistanceField(8, n_jobs=1).fit(learnt_from)
    index.retrain(embedding=given.fit(learnt_from) if fitted else given)
    assert contents(index) == before
    for open_it in (lambda: index, lambda: reader, lambda: engine.reopen(index)):
        seen = open_it()
        if seen is None:
            continue
        assert np.array_equal(seen.embedding.anchors_, expected.anchors_)
        hits = seen.search(sets[3], k=5, recall=1.0)
        distances = distances_by(expected, sets, sets[3])
        assert hits.distances == pytest.approx(np.sort(distances)[:5], rel=1e-3, abs=1e-6)
        assert seen.info()["vector_length"] == 8


@pytest.mark.filterwarnings("ignore:the embedding had learnt from labels")
def test_another_embedding_learns_from_labels(engine):
    sets = cloud_list(300)
    index = engine.create(embedding=SlicedWasserstein(n_slices=3, n_jobs=1))
    index.add(sets, metadata=[{"kind": "ab"[i % 2]} if i else {} for i in range(300)])
    index.retrain(embedding=Whitened(SlicedWasserstein(n_slices=3, n_jobs=1), n_jobs=1), label="kind")
    assert index.embedding.n_labelled_ == 299
    assert index.search(sets[3], k=1).distance_kind == "whitened"
    index.retrain()
    assert index.embedding.n_labelled_ == 0


def test_another_embedding_of_an_empty_index(engine):
    index, sets = engine.create(), cloud_list(20)
    index.retrain(embedding=GeM(p=2))
    assert index.info()["vector_length"] == 4
    with pytest.raises(errors.InputError, match="anchors='kmeans' is learnt from data"):
        index.retrain(embedding=DistanceField(8, n_jobs=1))
    index.retrain(sets, embedding=DistanceField(8, n_jobs=1))
    index.add(sets)
    assert index.search(sets[2], k=1).ids == ["2"]


def test_another_embedding_with_codes(engine):
    index, sets = learning(engine, search=HammingSearch())
    index.retrain(embedding=SlicedWasserstein(n_slices=3, n_jobs=1).fit(sets))
    assert index.search(sets[5], k=1).ids == ["5"]


class Unknown(GeM):
    """An embedding that a durable index cannot store."""


def test_an_embedding_that_cannot_be_stored_changes_nothing(engine):
    index, sets = learning(engine)
    before, learnt = contents(index), index.embedding.anchors_.copy()
    if engine.read_only(index) is None:  # in memory it can
        index.retrain(embedding=Unknown())
        assert index.search(sets[5], k=1).ids == ["5"]
        return
    with pytest.raises(errors.InputError, match=r"embedding[^ ]* cannot be stored in a file or a database"):
        index.retrain(embedding=Unknown())
    assert contents(index) == before
    assert np.array_equal(index.embedding.anchors_, learnt)
    assert index.add([sets[1]], ids=["late"]) == ["late"]
    assert index.verify().ok


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"embedding": "sliced"}, "give an embedding of slosh.embed"),
        ({"embedding": DistanceField}, "give an embedding of slosh.embed"),
        ({"embedding": GeM(p=2).fit([np.ones((3, 5))])}, "fitted on sets of dimension 5"),
        ({"embedding": GeM(p=2).fit([np.ones((3, 2))]), "label": "half"}, "embedding is fitted and stays as it is"),
        ({"embedding": GeM(p=2).fit([np.ones((3, 2))]), "sample": cloud_list(3)}, "leave sample and label out"),
        ({"sample": []}, "sample is empty"),
        ({"sample": [np.zeros((3, 5))]}, "dimension|features"),
        ({"embedding": Whitened(), "label": "colour"}, "no set has 'colour'"),
        ({"embedding": Whitened(), "label": "all"}, "all sets that have 'all' have the same there, 'same'"),
        ({"embedding": Whitened(), "label": "n"}, "no two sets have the same 'n'"),
        ({"embedding": Whitened(), "label": "list"}, "'list' holds .*: give a field of texts or numbers"),
        ({"label": "half"}, r"DistanceField does not learn from labels: .*Whitened\(...\)"),
        ({"embedding": GeM(p=2), "label": "half"}, r"GeM does not learn from labels: .*Whitened\(...\)"),
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
    assert index.info()["learnt_from"] == {"sets": 300, "labelled": 0}
    assert index.info()["distance_kind"] == "whitened"
    index.add(turned_cloud_list(300, 0.0, seed=2))
    assert index.info()["retrain"] is None
    index.add(turned_cloud_list(60, np.pi / 2, seed=3))
    advice = index.info()["retrain"]
    assert re.fullmatch(
        r"\d\d?% of the sets looked at are farther from those that were learnt from than 95% of those are from each "
        r"other: call retrain\(\)",
        advice,
    )
    index.retrain()
    assert index.info()["retrain"] is None
    assert index.search(turned_cloud_list(1, 0.0, seed=4)[0], k=1).distance_kind == "whitened"


@pytest.mark.parametrize(("n_learnt_from", "is_told"), [(60, False), (100, True)])
def test_few_sets_to_learn_from_tell_less_of_what_is_unlike(engine, n_learnt_from, is_told):
    """A fifth to a third is unlike: that is a reason if many sets were learnt from."""
    index = whitened(engine, turned_cloud_list(n_learnt_from, 0.0, seed=1))
    stored = turned_cloud_list(225, 0.0, seed=2) + turned_cloud_list(31, np.pi / 2, seed=3)
    index.add(stored)
    unlike = index.embedding.novelty(Sets.from_list(stored))
    assert 0.16 < unlike < 0.34
    assert (index.info()["retrain"] is not None) == is_told


def test_info_says_that_all_sets_were_the_same(engine):
    index = whitened(engine, [np.ones((3, 2))] * 30)
    assert "all sets to learn from were the same" in index.info()["retrain"]
    assert "too few sets to learn from" in whitened(engine).info()["retrain"]


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
        with pytest.raises(errors.UnsupportedError, match="this index embeds by Whitened: ") as told:
            index.search(query, k=3, **asked)
        assert "search with rerank='sliced' without certify; or" in told.value.remedy
        assert "index.retrain(embedding=SlicedWasserstein())" in told.value.remedy
    assert index.search(query, k=3, rerank="sliced").distance_kind == "sliced"
    index.retrain(embedding=SlicedWasserstein())
    assert index.search(query, k=3, certify=True).distance_kind == "sliced"


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


def test_what_is_learnt_from_is_bounded(engine, monkeypatch):
    """By sets and by numbers, one set at least."""
    if not engine.in_process:
        pytest.skip("the bounds are those of another process")
    sets = turned_cloud_list(300, 0.5, seed=1)
    index = whitened(engine, sets)
    index.add(sets)
    bounds = (("SAMPLED_SETS", 120, 120), ("SAMPLED_NUMBERS", 100 * 24 + 5, 100), ("SAMPLED_NUMBERS", 3, 1))
    for name, most, n in bounds:
        with monkeypatch.context() as patch:
            patch.setattr(f"slosh.index.retrain.{name}", most)
            index.retrain(random_state=3)
            assert index.embedding.n_samples_ == n
