"""What the local engines share: they train and calibrate when sets are added, never while they are searched."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import slosh
from builders import cloud_list, clouds, make_index, split
from slosh import errors
from slosh.where import FieldColumns

QUESTIONS = [(k, recall) for k in (1, 3, 10, 11, 50) for recall in (None, 0.5, 0.9, 0.93, 0.99, 1.0)]


@pytest.fixture
def no_training(monkeypatch):
    """Return a function from whose call on nothing can be learnt or measured any more."""

    def forbid():
        def fail(*args, **options):
            raise AssertionError("a search trains")

        for name in ("ladder_state.learn", "calibration.settle", "lsh_state.tuning.choose"):
            monkeypatch.setattr(f"slosh.search.{name}", fail)

    return forbid


def ask(index, queries):
    return {each: index.search(queries, k=each[0], recall=each[1]).stats.recall for each in QUESTIONS}


@pytest.fixture(scope="module")
def sets():
    return cloud_list(3000, largest=6)


def test_a_search_answers_by_what_a_writer_has_measured(place, sets, no_training):
    index = make_index(place)
    index.add(sets)
    no_training()
    promised = ask(index, sets[:3])
    for (k, recall), promise in promised.items():
        assert promise >= (0.99 if recall is None else recall)
        assert (promise == 1.0) == (k > 10 or recall == 1.0), "what nothing covers is exact"
    if place is not None:
        index.close()
        with slosh.open(place, read_only=True) as reader:
            assert ask(reader, sets[:3]) == promised


def test_what_was_never_trained_is_exact(place, sets, no_training, monkeypatch):
    index = make_index(place)
    with monkeypatch.context() as patch:
        patch.setattr("slosh.search.ladder_state.LadderState.train", lambda self: (_ for _ in ()).throw(MemoryError))
        with pytest.warns(RuntimeWarning, match="could not be trained"):
            index.add(sets)
    no_training()
    assert set(ask(index, sets[:3]).values()) == {1.0}


def test_a_defect_in_training_reaches_the_caller(place, sets, monkeypatch):
    """Only what the machine lacks is a warning; the sets are stored all the same."""
    index = make_index(place)
    with monkeypatch.context() as patch:
        patch.setattr("slosh.search.ladder_state.LadderState.train", lambda self: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            index.add(sets)
    assert len(index) == len(sets)


def test_tune_measures_what_it_is_asked_for_and_every_process_uses_it(place, sets, no_training):
    index = make_index(place)
    index.add(sets)
    tuned = index.tune(recall=0.93, k=50)
    assert 0.93 <= tuned.promised <= tuned.measured
    assert not tuned.exact
    assert index.info()["recall"] == 0.93
    no_training()
    readers = [index] if place is None else [index, slosh.open(place, read_only=True)]
    for reader in readers:
        assert reader.search(sets[0], k=50).stats.recall == tuned.promised
        assert reader.search(sets[0], k=20).stats.recall == 0.93  # fewer neighbours, as many as it was measured for
        assert reader.search(sets[0], k=51).stats.recall == 1.0
        assert reader.search(sets[0], k=50, recall=0.95).stats.recall == 1.0
        reader.close()


def test_what_does_not_hold_any_more_is_measured_again_by_the_next_add(place, sets):
    index = make_index(place)
    index.add(sets[:1100])
    index.tune(recall=0.9, k=20)
    index.add(sets[1100:1200])
    assert {each["n_rows"] for each in index.info()["search_info"]["calibrations"]} == {1100}
    index.add(sets[1200:2100])
    about = index.info()["search_info"]
    assert about["trained_on"] == 1100
    assert {each["n_rows"] for each in about["calibrations"]} == {2100}
    assert (20, 0.9) in {(each["k"], each["recall"]) for each in about["calibrations"]}
    index.remove(index.ids[:1300])
    assert index.search(sets[0], k=10).stats.recall == 1.0  # nobody has measured since
    index.compact()
    assert {each["n_rows"] for each in index.info()["search_info"]["calibrations"]} <= {800}


@pytest.mark.parametrize(("n", "k"), [(300, 10), (1200, 40)], ids=["few sets", "many neighbours"])
def test_tune_states_no_recall_where_every_search_is_exact(place, sets, n, k):
    index = make_index(place)
    index.add(sets[:n])
    tuned = index.tune(recall=0.9, k=k)
    assert tuned.exact
    assert (tuned.promised, tuned.measured, tuned.n_queries) == (1.0, 1.0, 0)
    assert index.search(sets[0], k=k).stats.recall == 1.0


def test_a_removal_or_an_update_leaves_a_small_index_as_fast(place, sets):
    """The holes are no filter: as many vectors are compared as before, and none a second time for ties."""
    index = make_index(place)
    index.add(sets[:2000])
    before = index.search(sets[:50], k=5, recall=1.0).stats
    index.remove([index.ids[77]])
    index.update([index.ids[5]], [sets[2001]])
    after = index.search(sets[:50], k=5, recall=1.0).stats
    assert after.candidates.mean() < 1.1 * before.candidates.mean() < 400
    assert after.scanned.mean() < 1.1 * before.scanned.mean()


def test_an_add_that_trains_nothing_stores_no_training(tmp_path, sets, monkeypatch):
    with make_index(tmp_path / "a.slosh") as index:
        index.add(sets[:1500])
        monkeypatch.setattr("slosh.data.tensors.pack", None)  # what was learnt is not even put together
        index.add(sets[1500:1600])
        index.remove(index.ids[:3])


def test_a_removal_keeps_masks_and_ids(place, sets, monkeypatch):
    index = make_index(place)
    index.add(sets[:200], metadata=[{"odd": i % 2} for i in range(200)])
    first = index.search(sets[7], k=3, where={"odd": 1})
    assert index.search(id=index.ids[0], k=3)
    index.remove(first.ids[:1])
    index.tune(recall=0.95, k=3)
    engine = "slosh.engines.memory.Version" if place is None else "slosh.engines.sqlite.view.SqliteView"
    with monkeypatch.context() as patch:
        patch.setattr(f"{engine}.matching", None)
        again = index.search(sets[7], k=2, where={"odd": 1})
    assert again.ids == first.ids[1:]
    index.update(again.ids[:1], metadata={"odd": 0})
    assert index.search(sets[7], k=1, where={"odd": 1}).ids == again.ids[1:]
    index.add(sets[7:8], ids=["new"], metadata={"odd": 1})
    assert index.search(sets[7], k=1, where={"odd": 1}).ids == ["new"]


def test_the_recall_is_about_the_distance_that_hits_show(sets):
    """Vector and residual norm together; the vectors alone order near sets differently."""
    index = make_index()
    index.add(sets[:2900])
    queries, model = sets[2900:], index.embedding
    vectors = np.column_stack([model.transform(sets), model.residual(sets)]).astype(np.float64)
    away = np.linalg.norm(vectors[2900:, None] - vectors[None, :2900], axis=2)
    hits = index.search(queries, k=10, recall=0.9)
    found = np.array([[int(name) for name in ids] for ids in hits.ids])
    np.testing.assert_allclose(hits.distances, np.take_along_axis(away, found, axis=1), rtol=1e-3, atol=1e-4)
    assert hits.distance_kind == "embedded"
    right = np.take_along_axis(away, found, axis=1) <= np.sort(away, axis=1)[:, 9:10] * (1 + 1e-3)
    assert right.mean() >= hits.stats.recall - 3 * right.mean(axis=1).std() / np.sqrt(len(right))
    assert 0.9 <= hits.stats.recall < 1


def test_an_index_in_memory_looks_only_at_what_was_added_since_a_filter_was_asked(sets, monkeypatch):
    looked_at, mask = [], FieldColumns.mask

    def noted(self, node, n, first=0):
        looked_at.append(n - first)
        return mask(self, node, n, first)

    monkeypatch.setattr(FieldColumns, "mask", noted)
    index = make_index(None)
    index.add(sets[:200], metadata=[{"year": i % 50} for i in range(200)])
    index.update("4", metadata={"year": 99})
    assert len(index.select("year >= 5")) == 181
    index.add(sets[200:203], metadata=[{"year": 1}, {"year": 20}, {"year": 30}])
    assert len(index.select("year >= 5")) == 183
    index.remove("20")
    index.tune(recall=0.9)
    assert len(index.select("year >= 5")) == 182
    index.update("0", metadata={"year": 99})
    assert len(index.select("year >= 5")) == 183
    assert looked_at == [201, 3, 204]


@pytest.mark.parametrize(("far", "trained_on"), [(0.0, 1100), (300.0, 1700)], ids=["alike", "unlike"])
def test_unlike_sets_are_learnt_from_before_the_index_has_doubled(place, sets, far, trained_on):
    index = make_index(place)
    index.add(sets[:1100])
    index.add([points + far for points in sets[1100:1700]], ids=[f"n{i}" for i in range(600)])
    assert index.info()["search_info"]["trained_on"] == trained_on


def test_replaced_sets_are_measured(place, sets):
    """Their number stays, and what was measured says nothing of them: `update` measures again, and no search has to."""
    index = make_index(place)
    index.add(sets[:1200])
    index.update(index.ids, sets[1200:2400])
    about = index.info()["search_info"]["calibrations"]
    assert about
    assert {each["n_added"] for each in about} == {2400}
    assert index.search(sets[1200]).stats.recall != 1.0


def test_a_change_within_a_write_is_refused():
    """A transformer of the user's own runs in the middle of an add; what it changes would be lost."""

    class Meddling(BaseEstimator):
        def fit(self, sets, y=None):
            return self

        def transform(self, sets):
            if index is not None:
                index.remove("first")
            return np.array([points.mean(axis=0) for points in split(sets)])

    index, embedding = None, Meddling()
    made = slosh.SetIndex.create(None, 2, embedding=embedding, sample=clouds(3), n_jobs=1)
    made.add(clouds(1), ids=["first"])
    index = made
    with pytest.raises(errors.NestedChange):
        made.add(clouds(1), ids=["second"])
    index = None
    assert made.ids == ["first"]
    made.add(clouds(1), ids=["third"])
    assert made.ids == ["first", "third"]
