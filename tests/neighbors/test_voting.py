"""Classifier and regressor: the answers of scikit-learn on the index vectors, ties, weights, labels of any kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import neighbors as oracle

from slosh import evaluate
from slosh.embed import MeanPool, SlicedWasserstein, Whitened
from slosh.neighbors import KNeighborsClassifier, KNeighborsRegressor

WEIGHTS = ["uniform", "distance", lambda d: np.exp(-d)]


@pytest.mark.parametrize("weights", WEIGHTS, ids=["uniform", "distance", "callable"])
@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_labels_and_probabilities_are_those_of_scikit_learn(data, index_vectors, weights, k):
    train, labels, test, truth = data
    x, z = index_vectors(SlicedWasserstein(), train, test)
    model = KNeighborsClassifier(k, weights=weights).fit(train, labels)
    other = oracle.KNeighborsClassifier(k, weights=weights, algorithm="brute").fit(x, labels)
    np.testing.assert_array_equal(model.predict(test), other.predict(z))
    np.testing.assert_allclose(model.predict_proba(test), other.predict_proba(z), rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(model.predict(None), other.predict(None))
    assert model.score(test, truth) == other.score(z, truth)
    assert model.score(test, truth) > 0.7


@pytest.mark.parametrize("weights", WEIGHTS, ids=["uniform", "distance", "callable"])
def test_numbers_are_those_of_scikit_learn(data, index_vectors, weights):
    train, labels, test, _ = data
    x, z = index_vectors(SlicedWasserstein(), train, test)
    for y in (labels, np.stack([labels, train.sizes, -(train.sizes**0.5)], axis=1)):
        model = KNeighborsRegressor(4, weights=weights).fit(train, y)
        other = oracle.KNeighborsRegressor(4, weights=weights, algorithm="brute").fit(x, y)
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


def test_classes_are_labels_to_the_embedding_and_numbers_are_not(data):
    """-1 is a class like others here, though it stands for no label where an embedding is fitted alone."""
    sets, labels = data[0], np.where(data[1] % 2, 1, -1)
    model = KNeighborsClassifier(embedding=Whitened(SlicedWasserstein(4))).fit(sets, labels)
    assert model.embedding_.n_labelled_ == 400
    for numbers in (labels, labels + 0.5):
        model = KNeighborsRegressor(embedding=Whitened(SlicedWasserstein(4))).fit(sets, numbers)
        assert model.embedding_.n_labelled_ == 0


@pytest.mark.filterwarnings("ignore:The number of unique classes")
@pytest.mark.parametrize("labels", [np.zeros(300), np.arange(300)], ids=["one class", "all alone"])
def test_labels_that_tell_nothing_apart_do_not_stop_a_whitened_embedding(labels):
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(5, 20)) * rng.uniform(0.5, 2, 20) for _ in range(300)]
    model = KNeighborsClassifier(1, embedding=Whitened(MeanPool())).fit(sets, labels)
    assert model.predict(sets[:20]).tolist() == labels[:20].tolist()
