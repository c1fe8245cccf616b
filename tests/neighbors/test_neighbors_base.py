"""What the estimators share: neighbours as scikit-learn finds them on the index vectors, streams, copies, bad input."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from sklearn import neighbors as oracle
from sklearn.base import clone, is_classifier, is_outlier_detector, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline

from slosh import SetIndex, Sets, evaluate
from slosh.embed import Covariance, GeM, SlicedWasserstein
from slosh.neighbors import KNeighborsClassifier, KNeighborsRegressor, OutlierScore, base
from slosh.search import ExactSearch

EMBEDDINGS = [SlicedWasserstein(), SlicedWasserstein(8, 4, reference="barycenter"), GeM(2), Covariance()]
LINE = [[[float(i)]] for i in range(4)]


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda e: type(e).__name__)
def test_neighbours_are_those_of_scikit_learn(data, index_vectors, embedding):
    train, labels, test, _ = data
    x, z = index_vectors(embedding, train, test)
    model = KNeighborsClassifier(7, embedding=embedding).fit(train, labels)
    other = oracle.KNeighborsClassifier(7, algorithm="brute").fit(x, labels)
    for k in (None, 20):
        for queries, rows in ((test, z), (None, None)):
            distances, indices = model.kneighbors(queries, k)
            expected = other.kneighbors(rows, k)
            np.testing.assert_allclose(distances, expected[0], rtol=1e-5, atol=1e-7)
            np.testing.assert_array_equal(indices, expected[1])
            np.testing.assert_array_equal(indices, model.kneighbors(queries, k, return_distance=False))
            for mode in ("connectivity", "distance"):
                graph = model.kneighbors_graph(queries, k, mode)
                wanted = other.kneighbors_graph(rows, k, mode)
                assert graph.shape == wanted.shape
                assert graph.nnz == wanted.nnz
                np.testing.assert_allclose(graph.toarray(), wanted.toarray(), rtol=1e-5, atol=1e-7)


# -- streams, batches, adding ------------------------------------------------------------------------------------------


def test_streams_are_read_once_and_give_the_same(mnist, monkeypatch):
    sets, labels = mnist
    whole = KNeighborsClassifier().fit(sets[:400], labels[:400])
    expected, before = whole.predict(sets[400:]), whole.predict(None)
    monkeypatch.setattr(base, "STREAM_SETS", 64)
    np.testing.assert_array_equal(whole.predict(sets[400:]), expected)
    np.testing.assert_array_equal(whole.predict(iter(sets[400:])), expected)
    np.testing.assert_array_equal(whole.predict(None), before)
    for stream in (iter(sets[:400]), iter([sets[:150], sets[150:400]])):
        model = KNeighborsClassifier().fit(stream, labels[:400])
        assert model.n_samples_fit_ == 400
        np.testing.assert_array_equal(model.predict(iter(sets[400:])), expected)
    outliers = OutlierScore().fit(iter(sets[:400]))
    np.testing.assert_array_equal(outliers.training_scores_, OutlierScore().fit(sets[:400]).training_scores_)


def test_a_stream_is_never_held(monkeypatch):
    monkeypatch.setattr(base, "STREAM_SETS", 10)
    alive = 0

    class Counted(np.ndarray):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def read():
        nonlocal alive
        for i in range(200):
            alive += 1
            x = np.full((3, 2), float(i)).view(Counted)
            yield x
            del x
            assert alive <= 25

    model = KNeighborsRegressor(1).fit(read(), np.arange(200.0))
    assert model.predict([np.full((5, 2), 17.2)]) == 17
    np.testing.assert_array_equal(model.predict(read()), np.arange(200.0))


def test_a_stream_longer_than_y_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(base, "STREAM_SETS", 10)
    seen = 0

    def read():
        nonlocal seen
        for seen in range(1000):
            yield [[float(seen)]]

    with pytest.raises(ValueError, match=r"X has at least 30 sets, y has 25 entries"):
        KNeighborsRegressor().fit(read(), np.arange(25.0))
    assert seen < 50
    with pytest.raises(ValueError, match=r"X has 1000 sets, y has 1001 entries"):
        KNeighborsRegressor().fit(read(), np.arange(1001.0))


def test_adding_is_fitting_all(mnist):
    sets, labels = mnist
    labels = labels.astype(str)
    first = np.flatnonzero(labels[:200] != labels[0])  # a label is new later
    rest = np.setdiff1d(np.arange(400), first)
    order = np.concatenate([first, rest])
    whole = KNeighborsClassifier(4).fit(sets.take(order), labels[order])
    parts = KNeighborsClassifier(4).partial_fit(sets.take(first), labels[first])
    parts.partial_fit(sets.take(rest[:7]), labels[rest[:7]]).partial_fit(iter(sets.take(rest[7:])), labels[rest[7:]])
    np.testing.assert_array_equal(parts.classes_, whole.classes_)
    np.testing.assert_array_equal(parts.predict(sets[400:]), whole.predict(sets[400:]))
    np.testing.assert_array_equal(parts.predict(None), whole.predict(None))
    y = np.stack([np.arange(500.0), sets.sizes], axis=1)
    whole = KNeighborsRegressor().fit(sets[:400], y[:400])
    parts = KNeighborsRegressor().partial_fit(sets[:100], y[:100]).partial_fit(sets[100:400], y[100:400])
    np.testing.assert_array_equal(parts.predict(sets[400:]), whole.predict(sets[400:]))


def test_what_cannot_be_added_changes_nothing():
    sets = [[[0.0]], [[1.0]], [[4.0]]]
    model = KNeighborsClassifier(1).fit(sets, ["a", "b", "c"])
    numbers = KNeighborsRegressor(1).fit(sets, [0.0, 1.0, 4.0])
    for one, bad in (
        (model, (sets, ["a", "b"])),
        (model, (sets, [1, 2, 3])),
        (model, ([*sets[:2], [[np.nan]]], ["d", "e", "f"])),
        (model, ([[[1.0, 2.0]]], ["d"])),
        (numbers, (sets, [[1.0], [2.0], [3.0]])),
        (numbers, (sets, [1.0, 2.0, np.nan])),
    ):
        with pytest.raises(ValueError, match=r"y|Mix of label|finite|features"):
            one.partial_fit(*bad)
        assert one.n_samples_fit_ == len(one.index_) == 3
    assert model.predict([[[3.5]]]).tolist() == ["c"]
    assert model.partial_fit([], []).predict([[[3.5]]]).tolist() == ["c"]


# -- searches ----------------------------------------------------------------------------------------------------------


def test_what_is_given_is_copied_and_stays_as_it_is(mnist):
    sets, labels = mnist
    embedding, search = SlicedWasserstein(4, 4), ExactSearch(n_jobs=1)
    model = KNeighborsClassifier(embedding=embedding, search=search, recall=1.0).fit(sets[:50], labels[:50])
    assert model.embedding is embedding
    assert model.search is search
    assert not hasattr(embedding, "slices_")
    assert len(search) == 0
    assert len(model.index_) == 50
    assert model.index_.info()["search"].startswith("ExactSearch(")
    assert "LadderSearch(precision=32" in KNeighborsClassifier().fit(sets[:9], labels[:9]).index_.info()["search"]


def test_where_too_few_are_found_they_are_searched_for_exactly(mnist, monkeypatch):
    sets, labels = mnist
    model = KNeighborsClassifier(recall=0.5).fit(sets[:100], labels[:100])
    expected = [model.kneighbors(asked) for asked in (sets[100:150], None)]
    search, asked_for = SetIndex.kneighbors, []

    def forgetful(index, *arguments, recall=None, **more):
        """Find none of the neighbours of every second query, and half of the others', unless all are wanted."""
        asked_for.append(recall)
        distances, rows = search(index, *arguments, recall=recall, **more)
        if recall != 1.0:
            for half, first in enumerate((0, rows.shape[1] // 2)):
                distances[half::2, first:], rows[half::2, first:] = np.inf, -1
        return distances, rows

    monkeypatch.setattr(SetIndex, "kneighbors", forgetful)
    for asked, wanted in zip((sets[100:150], None), expected, strict=True):
        for found, other in zip(model.kneighbors(asked), wanted, strict=True):
            np.testing.assert_array_equal(found, other)
    assert asked_for == [0.5, 1.0, 0.5, 1.0]


def test_recall_is_passed_on(mnist):
    """Enough sets for the default search not to compare all of them."""
    sets = mnist[0]
    rng = np.random.default_rng(0)
    moved = [sets[i % 500] * rng.uniform(0.8, 1.2, 2) + rng.normal(scale=0.02, size=2) for i in range(3200)]
    labels = np.arange(3000) % 500
    exact = KNeighborsClassifier(search=ExactSearch()).fit(moved[:3000], labels)
    wanted = exact.kneighbors(moved[3000:])
    model = KNeighborsClassifier().fit(moved[:3000], labels)
    assert evaluate.recall_at_k(model.kneighbors(moved[3000:], return_distance=False), wanted[1]) >= 0.97
    for found, expected in zip(model.set_params(recall=1.0).kneighbors(moved[3000:]), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


# -- in scikit-learn's world -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KNeighborsClassifier, KNeighborsRegressor, OutlierScore])
def test_parameters_and_copies(mnist, kind):
    sets, labels = mnist
    model = kind(3, embedding=GeM(2), search=ExactSearch(n_jobs=1), recall=1.0)
    assert model.get_params()["embedding__p"] == 2
    assert model.get_params()["search__n_jobs"] == 1
    other = clone(model).set_params(n_neighbors=4, embedding__p=1)
    assert (other.n_neighbors, other.embedding.p, model.embedding.p) == (4, 1, 2)
    with pytest.raises(NotFittedError):
        model.predict(sets[:2])
    with pytest.raises(NotFittedError):
        model.kneighbors(sets[:2])
    pickle.loads(pickle.dumps(model))
    model.fit(sets[:100], labels[:100])
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(twin.predict(sets[100:]), model.predict(sets[100:]))
        assert twin.index_ is not model.index_
        twin.index_.add(sets[:1])
    assert len(model.index_) == 100
    assert not hasattr(clone(model), "index_")
    assert model.n_features_in_ == 2
    assert "n_neighbors=3" in repr(model)
    assert [is_classifier(model), is_regressor(model), is_outlier_detector(model)] == [
        kind is k for k in (KNeighborsClassifier, KNeighborsRegressor, OutlierScore)
    ]


def test_cross_validation_takes_sets_however_they_come(mnist):
    sets, labels = mnist
    sets, labels = sets[:120], labels[:120]
    x, _ = SlicedWasserstein().fit(sets).index_vectors(sets)
    arrays = np.empty(len(sets), object)
    arrays[:] = list(sets)
    expected = cross_val_score(oracle.KNeighborsClassifier(3, algorithm="brute"), x.astype(np.float64), labels, cv=3)
    for given_sets in (sets, list(sets), arrays):
        scores = cross_val_score(KNeighborsClassifier(3), given_sets, labels, cv=3)
        np.testing.assert_allclose(scores, expected)
    assert len(cross_val_predict(KNeighborsRegressor(), sets, sets.sizes, cv=3)) == len(sets)
    box = np.random.default_rng(0).normal(size=(60, 5, 2)) * np.repeat([1, 3], 30)[:, None, None]
    assert cross_val_score(KNeighborsClassifier(3), box, np.repeat([1, 3], 30), cv=3).mean() > 0.8


def test_grid_index_and_pipelines(digits):
    sets, labels = digits
    sets, labels = sets[:200], labels[:200]
    grid = {"n_neighbors": [1, 5], "embedding__n_quantiles": [1, 16], "weights": ["uniform", "distance"]}
    search = GridSearchCV(KNeighborsClassifier(embedding=SlicedWasserstein()), grid, cv=3).fit(sets, labels)
    assert search.best_params_["embedding__n_quantiles"] == 16
    assert search.score(sets[:50], labels[:50]) > 0.8
    train, test, known, truth = train_test_split(sets, labels, stratify=labels, random_state=0)
    calibrated = CalibratedClassifierCV(KNeighborsClassifier(), cv=3).fit(train, known)
    assert calibrated.score(test, truth) > 0.7
    steps = Pipeline([("classify", KNeighborsClassifier())])
    grid = {"embedding__n_slices": [2, 8], "search__precision": [16]}
    search = GridSearchCV(KNeighborsClassifier(), grid, cv=3).fit(sets, labels)
    assert search.best_estimator_.embedding_.n_slices_ == search.best_params_["embedding__n_slices"]
    assert search.best_estimator_.search.precision == 16
    assert OutlierScore().set_params(embedding=None, embedding__n_quantiles=3).embedding.n_quantiles == 3
    assert cross_val_score(steps.set_params(classify__n_neighbors=1), sets, labels, cv=3).mean() > 0.7
    reduced = make_pipeline(SlicedWasserstein(), PCA(20, random_state=0))
    model = KNeighborsClassifier(embedding=reduced).fit(sets[:150], labels[:150])
    assert model.index_.info()["vector_length"] == 20
    assert model.score(sets[150:], labels[150:]) > 0.7
    named = KNeighborsClassifier(embedding=GeM(2).set_output(transform="pandas")).fit(sets[:150], labels[:150])
    np.testing.assert_array_equal(
        named.predict(sets[150:]),
        KNeighborsClassifier(embedding=GeM(2)).fit(sets[:150], labels[:150]).predict(sets[150:]),
    )


def test_origins_are_minded():
    far = np.array([5e6, -3e6])
    rng = np.random.default_rng(0)
    clouds = [far + rng.normal(size=(20, 2)) + i % 2 for i in range(40)]
    sets = Sets.from_list(clouds, origin="auto")
    model = KNeighborsClassifier(3).fit(sets, np.arange(40) % 2)
    for again in (clouds, iter(clouds), sets):
        assert model.score(again, np.arange(40) % 2) > 0.9
    with pytest.raises(ValueError, match="the same origin="):
        model.predict(Sets.from_list(clouds, origin=far))
    with pytest.raises(ValueError, match="the same origin="):
        model.predict(iter([Sets.from_list(clouds, origin=far)]))


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "X", "y", "message"),
    [
        (KNeighborsClassifier(0), LINE, [0, 1, 0, 1], r"n_neighbors=0 must be a whole number, 1 or more"),
        (KNeighborsClassifier(2.0), LINE, [0, 1, 0, 1], r"n_neighbors=2.0 must be"),
        (KNeighborsClassifier(weights="near"), LINE, [0, 1, 0, 1], r"weights='near': give \"uniform\""),
        (KNeighborsClassifier(recall=2), LINE, [0, 1, 0, 1], r"recall=2 must be"),
        (KNeighborsClassifier(search="exact"), LINE, [0, 1, 0, 1], r"search='exact': give a search of slosh.search"),
        (KNeighborsClassifier(search=ExactSearch), LINE, [0, 1, 0, 1], r"search=<class .*ExactSearch'>: give a search"),
        (KNeighborsClassifier(embedding=3), LINE, [0, 1, 0, 1], r"embedding is an? int: give an embedding such as"),
        (KNeighborsClassifier(), LINE, [0, 1, 0], r"X has 4 sets, y has 3 entries: give one for each set"),
        (KNeighborsClassifier(), iter(LINE), [0, 1, 0], r"X has at least 4 sets, y has 3 entries"),
        (KNeighborsClassifier(), [], [], r"KNeighborsClassifier.fit got 0 sets: it needs at least 1"),
        (KNeighborsClassifier(), iter([]), [], r"fit got 0 sets"),
        (KNeighborsClassifier(), LINE, [[0, 1]] * 4, r"one label for each set, not of shape \(4, 2\)"),
        (KNeighborsClassifier(), LINE, np.array([0, "a", 0, 1], object), r"y mixes labels of the types int, str"),
        (KNeighborsClassifier(), LINE, [0, 1, np.nan, 1], r"y\[2\] is nan: give every set a label"),
        (KNeighborsClassifier(), LINE, [0.5, 1, 0.3, 1], r"Unknown label type: continuous"),
        (KNeighborsClassifier(), LINE, 3, r"y must be \(n,\)"),
        (KNeighborsClassifier(), np.zeros((4, 2)), [0, 1, 0, 1], r"a 2-D array is one set"),
        (KNeighborsRegressor(), LINE, ["a"] * 4, r"y must be numbers"),
        (KNeighborsRegressor(), LINE, np.zeros((4, 2, 2)), r"y must be numbers, .* not float64 of shape \(4, 2, 2\)"),
        (KNeighborsRegressor(), LINE, [[0, 1], [2, np.inf], [0, 0], [0, 0]], r"y\[1, 1\] is inf: put a number"),
        (KNeighborsRegressor(weights=1), LINE, [0, 1, 2, 3], r"weights=1: give"),
        (OutlierScore(method="far"), LINE, None, r"method='far': give one of 'lof', 'distance', 'density'"),
        (OutlierScore(contamination=0.7), LINE, None, r"contamination=0.7: give \"auto\""),
        (OutlierScore(contamination="some"), LINE, None, r"contamination='some': give"),
        (OutlierScore(bandwidth=0), LINE, None, r"bandwidth=0: give a distance above 0"),
        (OutlierScore(), LINE[:1], None, r"OutlierScore.fit got 1 set: it needs at least 2"),
    ],
)
def test_fit_refuses(model, X, y, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "index_")


def test_predict_refuses():
    model = KNeighborsClassifier(5).fit(LINE, list("abab"))
    with pytest.raises(ValueError, match=r"n_neighbors=5, but 4 sets were fitted: give at most 4, or fit more sets"):
        model.predict(LINE)
    with pytest.raises(ValueError, match=r"n_neighbors=4, but 4 sets were fitted and none is its own .* at most 3"):
        model.kneighbors(None, 4)
    model.set_params(n_neighbors=2)
    with pytest.raises(ValueError, match=r"set 0 has 2 features, expected 1"):
        model.predict([[[0.0, 1.0]]])
    with pytest.raises(ValueError, match=r"set 2 has 2 features, expected 1"):
        model.predict(iter([*LINE[:2], [[0.0, 1.0]]]))
    with pytest.raises(ValueError, match=r"set 1, element 0, feature 0.* nan"):
        model.predict([[[0.0]], [[np.nan]]])
    with pytest.raises(ValueError, match="mode='both'"):
        model.kneighbors_graph(LINE, mode="both")
    for wrong, message in (
        (lambda d: d[:, 0], r"weights gave the shape \(4,\) for distances of \(4, 2\)"),
        (lambda d: -1 - d, r"weights gave -1.0 for the distance 0 \(query 0, neighbour 0\)"),
        (lambda d: np.full(d.shape, np.nan), r"weights gave nan"),
        (lambda d: (d > 5) * 1.0, r"weights gave nothing but 0 for query 0"),
    ):
        with pytest.raises(ValueError, match=message):
            model.set_params(weights=wrong).predict(LINE)
    with pytest.raises(ValueError, match=r"X is None: .* training_scores_"):
        OutlierScore(2).fit(LINE).predict(None)


def test_no_sets_to_ask_for():
    model = KNeighborsClassifier(2).fit(LINE, list("abab"))
    assert model.predict([]).shape == (0,)
    assert model.predict_proba(iter([])).shape == (0, 2)
    assert model.kneighbors([])[0].shape == (0, 2)
    assert model.kneighbors_graph([]).shape == (0, 4)
    assert KNeighborsRegressor(2).fit(LINE, np.zeros((4, 3))).predict([]).shape == (0, 3)
    assert OutlierScore(2).fit(LINE).predict([]).shape == (0,)


def test_a_fit_that_fails_leaves_the_old_one():
    model = KNeighborsClassifier(1).fit(LINE, list("abab"))
    for X, y in (
        (LINE, list("ccc")),
        (iter([*LINE, [[np.nan]]]), list("ccccc")),
        ([[[1.0, 1.0]], [[2.0]]], ["c", "c"]),
    ):
        with pytest.raises(ValueError, match=r"y has|finite|features"):
            model.fit(X, y)
        assert model.predict(LINE).tolist() == list("abab")


def test_little_is_said():
    """No warnings from what is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = KNeighborsClassifier(1, weights="distance").fit(LINE, list("abab"))
        model.predict_proba(LINE)
        OutlierScore(3).fit(LINE).predict(LINE)
