"""Wrapped: any transformer of sets as an embedding, fitted or not."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import slosh
from builders import clouds
from slosh import Sets
from slosh.embed import MeanPool, SlicedWasserstein, Wrapped
from slosh.errors import InputError


def pipeline(n: int = 6):
    return make_pipeline(SlicedWasserstein(4, 4), StandardScaler(), PCA(n, random_state=0))


class Sizes(TransformerMixin, BaseEstimator):
    """The number of elements of each set, and its square: a transformer that says nothing of itself."""

    def fit(self, X, y=None):
        self.y_ = y
        return self

    def transform(self, X):
        sizes = np.array([len(x) for x in X])
        return np.stack([sizes, sizes**2], axis=1)


def test_vectors_are_those_of_the_pipeline():
    sets = clouds(60, 3)
    given = pipeline()
    model = Wrapped(given).fit(sets)
    expected = pipeline().fit(sets).transform(sets)
    vectors = model.transform(sets)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert model.n_features_in_ == 3
    assert model.vector_length == model.index_length == 6
    assert not hasattr(given[0], "n_features_in_")  # a copy was fitted
    assert np.array_equal(model.transform(list(sets)), vectors)
    np.testing.assert_allclose(model.transform(iter(sets)), vectors, atol=1e-6)
    found, slack = model.index_vectors(sets)
    assert np.array_equal(found, vectors)
    assert not slack.any()
    assert model.index_vectors(sets, slack=False)[1] is None
    assert not model.has_bounds


def test_a_fitted_transformer_is_used_as_it_is():
    sets, others = clouds(60, 3), clouds(20, 3, seed=1)
    given = pipeline().fit(sets)
    expected = given.transform(others)
    model = Wrapped(given)
    assert model.n_features_in_ == 3
    assert model.vector_length == 6
    np.testing.assert_allclose(model.transform(others), expected, atol=1e-6)
    model.fit(others)
    assert model.transformer_ is given
    np.testing.assert_allclose(model.transform(others), expected, atol=1e-6)
    fresh = clone(model)  # as everywhere in scikit-learn: a clone is not fitted
    assert not hasattr(fresh, "n_features_in_")
    assert np.abs(fresh.fit(others).transform(others) - expected).max() > 0.1


def test_labels_are_passed_on():
    near, far = clouds([20] * 30), Sets.from_list([x + 20 for x in clouds([20] * 30, seed=1)])
    sets = Sets.concat([near, far])
    labels = np.repeat([0, 1], 30)
    model = Wrapped(make_pipeline(MeanPool(), LinearDiscriminantAnalysis())).fit(sets, labels)
    projected = model.transform(sets)
    assert projected.shape == (60, 1)
    assert (projected[:30].max() < projected[30:].min()) or (projected[30:].max() < projected[:30].min())
    assert Wrapped(Sizes()).fit(sets, labels).transformer_.y_ is labels


def test_a_transformer_that_does_not_know_its_dimension():
    sets = clouds([5, 7, 9])
    given = Sizes().fit(sets)
    model = Wrapped(given)
    with pytest.raises(NotFittedError):
        model.transform(sets)
    assert model.fit(sets).transformer_ is given
    assert model.transform(sets).tolist() == [[5, 25], [7, 49], [9, 81]]
    with pytest.raises(ValueError, match="3 features"):
        model.transform([np.zeros((4, 3))])


def test_origins_are_minded():
    city = [np.random.default_rng(i).normal(size=(40, 2)) * 10 + [500_000, 4_500_000] for i in range(8)]
    sets = Sets.from_list(city, origin="auto")
    fitted = make_pipeline(SlicedWasserstein(4, 4), PCA(3)).fit(sets)
    for model in (Wrapped(fitted), Wrapped(make_pipeline(SlicedWasserstein(4, 4), PCA(3))).fit(sets)):
        np.testing.assert_allclose(model.transform(city), model.transform(sets), atol=1e-3)
        with pytest.raises(ValueError, match="origin"):
            model.transform(Sets.from_list(city, origin=[499_000, 4_500_000]))


def test_frames_and_sparse_vectors_are_taken():
    pytest.importorskip("pandas")
    sets = clouds([5, 7, 9])

    class Sparse(Sizes):
        def transform(self, X):
            return csr_matrix(super().transform(X))

    framed = pipeline(2).set_output(transform="pandas")
    np.testing.assert_allclose(Wrapped(framed).fit(sets).transform(sets), pipeline(2).fit_transform(sets), atol=1e-6)
    assert Wrapped(Sparse()).fit(sets).transform(sets).tolist() == [[5, 25], [7, 49], [9, 81]]


def test_scikit_learn_contract():
    sets = clouds(20, 3)
    model = Wrapped(pipeline(2)).fit(sets)
    expected = model.transform(sets)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(sets), expected)
    assert model.get_params()["transformer__pca__n_components"] == 2
    assert clone(model).set_params(transformer__pca__n_components=5).fit(sets).vector_length == 5
    assert list(model.get_feature_names_out()) == ["wrapped0", "wrapped1"]
    with pytest.raises(NotFittedError):
        Wrapped(pipeline()).transform(sets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:-1], r"float64 of shape \(2, 2\) from 3 sets: it must return numbers, \(3, D\)"),
        (lambda v: v[:, 0], r"shape \(3,\) from 3 sets"),
        (lambda v: v.astype(str), "<U"),
        (lambda v: v * np.nan, "NaN, infinity or a number beyond float32 from set 0"),
        (lambda v: v * 1e300, "beyond float32"),
        (lambda v: np.tile(v, (1, 1 + (len(v) > 1))), "vectors of 4 numbers, and of 2 before"),
    ],
)
def test_what_comes_out_is_checked(change, message):
    class Wrong(Sizes):
        def transform(self, X):
            vectors = super().transform(X).astype(float)
            return vectors if len(vectors) == 1 and vectors[0, 0] == 5 and "before" not in message else change(vectors)

    with pytest.raises(InputError, match=message):
        Wrapped(Wrong()).fit(clouds([5, 7, 9])).transform(clouds([5, 7, 9]))


def test_what_is_no_transformer_is_refused():
    for wrong in (None, 3, "pca", np.zeros(3), lambda x: x):
        with pytest.raises(InputError, match="has no method fit") as caught:
            Wrapped(wrong).fit(clouds([5, 7]))
        assert caught.value.argument == "transformer"


def test_an_index_in_memory_takes_it():
    sets = clouds(80, 3)
    vectors = pipeline().fit(sets).transform(sets)
    expected = np.sort(np.linalg.norm(vectors - vectors[3], axis=1))[:3]
    for embedding, sample in ((Wrapped(pipeline()), sets), (Wrapped(pipeline().fit(sets)), None)):
        with slosh.SetIndex.create(None, dim=3, embedding=embedding, sample=sample) as index:
            index.add(sets)
            hits = index.search(sets[3], k=3)
            np.testing.assert_allclose([hit.distance for hit in hits], expected, atol=1e-2)
