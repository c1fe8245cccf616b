"""slosh.neighbors: the answers that scikit-learn gives on the embedded vectors, and sets wherever it takes samples."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import neighbors as oracle
from sklearn.base import clone, is_classifier, is_outlier_detector, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from threadpoolctl import threadpool_limits

from slosh import Sets, evaluate, neighbors
from slosh.embed import Covariance, GeM, MeanPool, SlicedWasserstein
from slosh.neighbors.estimators import KNeighborsClassifier, KNeighborsRegressor, OutlierScore
from slosh.search import ExactSearch, default_search

EMBEDDINGS = [SlicedWasserstein(), SlicedWasserstein(8, 4, reference="barycenter"), GeM(2), Covariance()]
WEIGHTS = ["uniform", "distance", lambda d: np.exp(-d)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The threads of scikit-learn spin while they wait, on a machine that others use too."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def digits():
    """600 digits of scikit-learn: a pixel is an element, its ink the weight."""
    images, labels = load_digits(return_X_y=True)
    images = images[:600].reshape(-1, 8, 8)
    image, row, column = np.nonzero(images)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(image))])
    return Sets(np.stack([column, row], axis=1), offsets, images[image, row, column]), labels[:600]


@pytest.fixture(scope="module", params=["mnist", "digits"])
def data(request):
    """Sets to fit, their labels, sets to ask for, their labels."""
    sets, labels = request.getfixturevalue(request.param)
    return sets[:400], labels[:400], sets[400:], labels[400:]


def vectors(embedding, *collections):
    model = clone(embedding).fit(collections[0])
    return [model.transform(sets).astype(np.float64) for sets in collections]


EXACT = {"algorithm": "brute"}


# -- the same as scikit-learn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda e: type(e).__name__)
def test_neighbours_are_those_of_scikit_learn(data, embedding):
    train, labels, test, _ = data
    x, z = vectors(embedding, train, test)
    model = KNeighborsClassifier(7, embedding=embedding).fit(train, labels)
    other = oracle.KNeighborsClassifier(7, **EXACT).fit(x, labels)
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


@pytest.mark.parametrize("weights", WEIGHTS, ids=["uniform", "distance", "callable"])
@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_labels_and_probabilities_are_those_of_scikit_learn(data, weights, k):
    train, labels, test, truth = data
    x, z = vectors(SlicedWasserstein(), train, test)
    model = KNeighborsClassifier(k, weights=weights).fit(train, labels)
    other = oracle.KNeighborsClassifier(k, weights=weights, **EXACT).fit(x, labels)
    np.testing.assert_array_equal(model.predict(test), other.predict(z))
    np.testing.assert_allclose(model.predict_proba(test), other.predict_proba(z), rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(model.predict(None), other.predict(None))
    assert model.score(test, truth) == other.score(z, truth)
    assert model.score(test, truth) > 0.7


@pytest.mark.parametrize("weights", WEIGHTS, ids=["uniform", "distance", "callable"])
def test_numbers_are_those_of_scikit_learn(data, weights):
    train, labels, test, _ = data
    x, z = vectors(SlicedWasserstein(), train, test)
    for y in (labels, np.stack([labels, train.sizes, -(train.sizes**0.5)], axis=1)):
        model = KNeighborsRegressor(4, weights=weights).fit(train, y)
        other = oracle.KNeighborsRegressor(4, weights=weights, **EXACT).fit(x, y)
        np.testing.assert_allclose(model.predict(test), other.predict(z), rtol=1e-6)
        np.testing.assert_allclose(model.predict(None), other.predict(None), rtol=1e-6)
        assert model.predict(test).shape == (len(test), *y.shape[1:])
    assert model.score(test, model.predict(test)) == 1.0


def test_a_set_that_is_met_again_decides_alone(data):
    train, labels, _, _ = data
    for k in (1, 5):
        model = KNeighborsClassifier(k, weights="distance").fit(train, labels)
        np.testing.assert_array_equal(model.predict(train), labels)
        assert model.predict_proba(train).max(axis=1).min() == 1.0
    y = np.random.default_rng(0).normal(size=len(train))
    np.testing.assert_array_equal(KNeighborsRegressor(5, weights="distance").fit(train, y).predict(train), y)


def test_score_is_the_vote_accuracy(data):
    train, labels, test, truth = data
    for k in (2, 4, 10):  # even: ties
        model = KNeighborsClassifier(k).fit(train, labels)
        near = labels[model.kneighbors(test, return_distance=False)]
        assert model.score(test, truth) == evaluate.vote_accuracy(near, truth)


@settings(max_examples=60)
@given(st.data())
def test_votes_one_by_one(data):
    """Few places and few labels: many copies, many ties."""
    places = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=12))
    names = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(places), max_size=len(places)))
    asked = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    k = data.draw(st.integers(1, len(places)))
    model = KNeighborsClassifier(k).fit([[[float(x)]] for x in places], names)
    found = model.predict([[[float(x)]] for x in asked])
    for x, label in zip(asked, found, strict=True):
        near = sorted(range(len(places)), key=lambda i: (abs(places[i] - x), i))[:k]
        votes = [names[i] for i in near]
        assert label == min(set(votes), key=lambda name: (-votes.count(name), name))
    if k < len(places):
        for i, row in enumerate(model.kneighbors(None, return_distance=False)):
            others = sorted(set(range(len(places))) - {i}, key=lambda j: (abs(places[j] - places[i]), j))
            assert row.tolist() == others[:k]


@pytest.mark.parametrize("labels", [["b", "a", "b"], [3, -1, 3], [2.0, 1.0, 2.0], [True, False, True]])
def test_labels_of_any_kind(labels):
    sets = [[[0.0]], [[5.0]], [[1.0]]]
    for y in (labels, np.array(labels), np.array(labels, object), np.array(labels)[:, None]):
        model = KNeighborsClassifier(2).fit(sets, y)
        np.testing.assert_array_equal(model.classes_, sorted(set(labels)))
        found = model.predict([[[0.2]], [[4.0]]])  # the second one is a tie
        assert found.tolist() == [labels[0], labels[1]]
        assert found.dtype == np.array(labels).dtype


# -- outliers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 20])
def test_lof_is_that_of_scikit_learn(data, k):
    train, _, test, _ = data
    x, z = vectors(SlicedWasserstein(), train, test)
    for contamination in ("auto", 0.05):
        model = OutlierScore(k, contamination=contamination)
        inside = model.fit_predict(train)
        other = oracle.LocalOutlierFactor(k, novelty=True, contamination=contamination, **EXACT).fit(x)
        np.testing.assert_allclose(model.training_scores_, other.negative_outlier_factor_, rtol=1e-6)
        np.testing.assert_allclose(model.score_samples(test), other.score_samples(z), rtol=1e-6)
        np.testing.assert_allclose(model.decision_function(test), other.decision_function(z), rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(model.predict(test), other.predict(z))
        assert model.offset_ == pytest.approx(other.offset_)
        again = oracle.LocalOutlierFactor(k, contamination=contamination, **EXACT)
        np.testing.assert_array_equal(inside, again.fit_predict(x))


def test_distance_and_density_by_their_formulas(data):
    train, _, test, _ = data
    x, z = vectors(SlicedWasserstein(), train, test)
    tree = oracle.NearestNeighbors(n_neighbors=20, **EXACT).fit(x)
    near, own = tree.kneighbors(z)[0], tree.kneighbors()[0]
    model = OutlierScore(method="distance").fit(train)
    np.testing.assert_allclose(model.score_samples(test), -near[:, -1], rtol=1e-6)
    np.testing.assert_allclose(model.training_scores_, -own[:, -1], rtol=1e-6)
    low, high = np.percentile(-own[:, -1], [25, 75])
    assert model.offset_ == pytest.approx(low - 1.5 * (high - low))

    model = OutlierScore(method="density").fit(train)
    h = np.median(own[:, -1])
    assert model.bandwidth_ == pytest.approx(h)
    np.testing.assert_allclose(
        model.score_samples(test), np.log(np.exp(-((near / h) ** 2) / 2).sum(axis=1) / len(train)), rtol=1e-6
    )
    np.testing.assert_allclose(
        model.training_scores_, np.log(np.exp(-((own / h) ** 2) / 2).sum(axis=1) / len(train)), rtol=1e-6
    )


def test_density_of_all_neighbours_is_the_kernel_density(data):
    train, _, test, _ = data
    x, z = vectors(MeanPool(), train, test)
    with pytest.warns(UserWarning, match=r"n_neighbors=400, .* 399 are used"):
        model = OutlierScore(400, method="density", bandwidth=0.3, embedding=MeanPool()).fit(train)
    model.n_neighbors_ = 400  # new sets have them all
    density = oracle.KernelDensity(bandwidth=0.3).fit(x).score_samples(z)
    volume = z.shape[1] / 2 * np.log(2 * np.pi * 0.3**2)
    np.testing.assert_allclose(model.score_samples(test), density + volume, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ("lof", "distance", "density"))
def test_odd_sets_are_found(digits, method):
    sets, labels = digits
    zeros, odd = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)[:6]
    model = OutlierScore(10, method=method).fit(sets.take(zeros[:40]))
    assert np.mean(model.predict(sets.take(odd)) == -1) >= 0.8
    assert np.mean(model.predict(sets.take(zeros[40:])) == 1) >= 0.8
    mixed = sets.take(np.concatenate([zeros, odd]))
    model = OutlierScore(10, method=method, contamination=len(odd) / len(mixed))
    found = model.fit_predict(mixed)
    assert np.mean(found[len(zeros) :] == -1) >= 0.6
    assert abs(int((found == -1).sum()) - len(odd)) <= 1
    np.testing.assert_array_equal(found == -1, model.training_scores_ < model.offset_)


@pytest.mark.parametrize("exponent", [-40, 30])
def test_outlier_factors_have_no_unit(digits, exponent):
    sets = digits[0][:100]
    scaled = Sets(sets.points * np.float32(2.0**exponent), sets.offsets, sets.weights)
    a, b = (OutlierScore(5).fit(s).training_scores_ for s in (sets, scaled))
    np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("method", ("lof", "distance", "density"))
def test_copies(method):
    """Among copies every distance is 0: they are as usual as can be, and nothing is NaN."""
    same = [[[1.0, 2.0]]] * 30
    model = OutlierScore(5, method=method).fit(same)
    assert np.isfinite(model.training_scores_).all()
    np.testing.assert_array_equal(model.fit_predict(same), 1)
    model.fit([*same, [[1.5, 2.0]]])
    assert np.isfinite(model.training_scores_).all()
    assert model.training_scores_.argmin() == 30
    assert model.predict([[[4.0, 4.0]], [[1.0, 2.0]]]).tolist() == [-1, 1]


# -- streams, batches, adding ------------------------------------------------------------------------------------------


def test_streams_are_read_once_and_give_the_same(mnist, monkeypatch):
    sets, labels = mnist
    whole = KNeighborsClassifier().fit(sets[:400], labels[:400])
    expected, before = whole.predict(sets[400:]), whole.predict(None)
    monkeypatch.setattr(neighbors, "AT_ONCE", 64)
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
    monkeypatch.setattr(neighbors, "AT_ONCE", 10)
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
    monkeypatch.setattr(neighbors, "AT_ONCE", 10)
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
        assert one.n_samples_fit_ == len(one.search_) == 3
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
    assert len(model.search_) == 50
    assert model.search_.n_jobs == 1
    assert type(KNeighborsClassifier().fit(sets[:9], labels[:9]).search_) is type(default_search())


class Forgetful(ExactSearch):
    """Finds none of the neighbours of every second query, and half of the others', unless asked for all."""

    def _search(self, queries, k, mask, n_allowed, recall):
        squares, positions, work = super()._search(queries, k, mask, n_allowed, recall)
        if recall != 1.0:
            squares[:, (k + 1) // 2 :], positions[:, (k + 1) // 2 :] = np.inf, -1
            squares[::2], positions[::2] = np.inf, -1
        return squares, positions, work


def test_where_a_search_finds_too_few_it_is_asked_again(mnist):
    sets, labels = mnist
    model = KNeighborsClassifier(search=Forgetful(), recall=0.5).fit(sets[:100], labels[:100])
    whole = KNeighborsClassifier().fit(sets[:100], labels[:100])
    for asked in (sets[100:150], None):
        for found, expected in zip(model.kneighbors(asked), whole.kneighbors(asked), strict=True):
            np.testing.assert_array_equal(found, expected)


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
        assert twin.search_ is not model.search_
        twin.search_.add(twin.search_.vectors([0]))
    assert len(model.search_) == 100
    assert not hasattr(clone(model), "search_")
    assert model.n_features_in_ == 2
    assert "n_neighbors=3" in repr(model)
    assert [is_classifier(model), is_regressor(model), is_outlier_detector(model)] == [
        kind is k for k in (KNeighborsClassifier, KNeighborsRegressor, OutlierScore)
    ]


def test_cross_validation_takes_sets_however_they_come(mnist):
    sets, labels = mnist
    sets, labels = sets[:120], labels[:120]
    x = SlicedWasserstein().fit_transform(sets)
    arrays = np.empty(len(sets), object)
    arrays[:] = list(sets)
    expected = cross_val_score(oracle.KNeighborsClassifier(3, **EXACT), x.astype(np.float64), labels, cv=3)
    for given_sets in (sets, list(sets), arrays):
        scores = cross_val_score(KNeighborsClassifier(3), given_sets, labels, cv=3)
        np.testing.assert_allclose(scores, expected)
    assert len(cross_val_predict(KNeighborsRegressor(), sets, sets.sizes, cv=3)) == len(sets)
    box = np.random.default_rng(0).normal(size=(60, 5, 2)) * np.repeat([1, 3], 30)[:, None, None]
    assert cross_val_score(KNeighborsClassifier(3), box, np.repeat([1, 3], 30), cv=3).mean() > 0.8


def test_grid_search_and_pipelines(digits):
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
    assert cross_val_score(steps.set_params(classify__n_neighbors=1), sets, labels, cv=3).mean() > 0.7
    reduced = make_pipeline(SlicedWasserstein(), PCA(20, random_state=0))
    model = KNeighborsClassifier(embedding=reduced).fit(sets[:150], labels[:150])
    assert model.search_.dim == 20
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

LINE = [[[float(i)]] for i in range(4)]


@pytest.mark.parametrize(
    ("model", "X", "y", "message"),
    [
        (KNeighborsClassifier(0), LINE, [0, 1, 0, 1], r"n_neighbors=0 must be a whole number, 1 or more"),
        (KNeighborsClassifier(2.0), LINE, [0, 1, 0, 1], r"n_neighbors=2.0 must be"),
        (KNeighborsClassifier(weights="near"), LINE, [0, 1, 0, 1], r"weights='near': give \"uniform\""),
        (KNeighborsClassifier(recall=2), LINE, [0, 1, 0, 1], r"recall=2 must be"),
        (KNeighborsClassifier(search="exact"), LINE, [0, 1, 0, 1], r"search is a str: give a search such as"),
        (KNeighborsClassifier(search=ExactSearch), LINE, [0, 1, 0, 1], r"search is the class ExactSearch: give"),
        (KNeighborsClassifier(embedding=3), LINE, [0, 1, 0, 1], r"embedding is an int: give an embedding such as"),
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
    assert not hasattr(model, "search_")


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
    with pytest.raises(ValueError, match=r"set 1, element 0, feature 0 is nan"):
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
