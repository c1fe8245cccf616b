"""The baselines against slow plain loops in float64: with and without weights, any sizes, any batching."""

from __future__ import annotations

import pickle
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from slosh.data.sets import Sets
from slosh.embed import covariance, pooling
from slosh.embed.covariance import Covariance
from slosh.embed.gem import GeM
from slosh.embed.pooling import MaxPool, MeanPool, SumPool
from slosh.embed.references import reference_points
from slosh.embed.wasserstein import WassersteinEmbedding

BASELINES = [
    MeanPool(),
    SumPool(),
    MaxPool(),
    GeM(1),
    GeM(4),
    GeM(7),
    Covariance(),
    Covariance(0.5),
    WassersteinEmbedding("normal", 5),
]


def some_sets(n: int = 40, dim: int = 3, weighted: bool = False, seed: int = 0, largest: int = 60) -> Sets:
    random = np.random.RandomState(seed)
    arrays = [random.standard_normal((random.randint(1, largest), dim)) + random.standard_normal(dim) for _ in range(n)]
    arrays[1] = arrays[1][:1]
    weights = None
    if weighted:
        weights = [random.uniform(size=len(a)) * (random.uniform(size=len(a)) < 0.8) for a in arrays]
        for w in weights:
            w[random.randint(len(w))] = 0.7  # at least one is not zero
    return Sets.from_list(arrays, weights)


def each(sets: Sets) -> list[tuple[np.ndarray, np.ndarray]]:
    """The points and weights of each set, in float64; the weights as given."""
    pairs = []
    for i in range(len(sets)):
        part = sets[i : i + 1]
        weights = np.ones(len(part.points)) if part.weights is None else part.weights.astype(float)
        pairs.append((part.points.astype(float), weights))
    return pairs


def plain(estimator: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One vector by the formula of the docstring, element by element."""
    v = w / w.sum()
    n, d = x.shape
    if isinstance(estimator, SumPool):
        return sum(w[i] * x[i] for i in range(n))
    if isinstance(estimator, MaxPool):
        return np.array([max(x[i, k] for i in range(n) if w[i] > 0) for k in range(d)])
    if isinstance(estimator, MeanPool):
        return sum(v[i] * x[i] for i in range(n))
    if isinstance(estimator, GeM):
        orders = []
        for q in range(1, estimator.p + 1):
            mean = sum(v[i] * x[i] ** q for i in range(n))
            orders.append(np.sign(mean) * np.abs(mean) ** (1 / q))
        return np.concatenate(orders)
    if isinstance(estimator, Covariance):
        if np.count_nonzero(w) == 1:
            return np.zeros(d * d)
        mean = sum(v[i] * x[i] for i in range(n))
        matrix = sum(v[i] * np.outer(x[i] - mean, x[i] - mean) for i in range(n)) / (1 - (v * v).sum())
        return (matrix + estimator.regularization * np.trace(matrix) * np.eye(d)).ravel()
    raise TypeError


@pytest.mark.parametrize("estimator", BASELINES[:-1], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3, 16, 17, 40])
def test_equals_the_plain_loop(estimator: Any, weighted: bool, dim: int) -> None:
    sets = some_sets(dim=dim, weighted=weighted)
    vectors = clone(estimator).fit_transform(sets)
    expected = np.stack([plain(estimator, x, w) for x, w in each(sets)])
    assert vectors.dtype == np.float32
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 5, 30])
def test_batching_changes_no_bit(estimator: Any, weighted: bool, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = some_sets(50, dim, weighted, largest=400)
    fitted = clone(estimator).fit(sets)
    whole = fitted.transform(sets)
    random = np.random.RandomState(0)
    for _ in range(3):
        cuts = [0, *np.sort(random.choice(np.arange(1, 50), 6, replace=False)), 50]
        parts = [fitted.transform(sets[a:b]) for a, b in pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(np.concatenate([fitted.transform(sets[i : i + 1]) for i in range(50)]), whole)
    order = random.permutation(50)
    np.testing.assert_array_equal(fitted.transform(sets.take(order)), whole[order])
    monkeypatch.setattr(pooling, "BLOCK_NUMBERS", 500)
    np.testing.assert_array_equal(fitted.transform(sets), whole)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_order_of_elements_does_not_matter(estimator: Any, weighted: bool) -> None:
    sets = some_sets(weighted=weighted)
    random = np.random.RandomState(1)
    orders = [random.permutation(size) for size in sets.sizes]
    pairs = each(sets)
    shuffled = Sets.from_list(
        [x[order] for (x, _), order in zip(pairs, orders, strict=True)],
        [w[order] for (_, w), order in zip(pairs, orders, strict=True)] if weighted else None,
    )
    fitted = clone(estimator).fit(sets)
    np.testing.assert_allclose(fitted.transform(shuffled), fitted.transform(sets), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
def test_equal_weights_are_no_weights(estimator: Any) -> None:
    if isinstance(estimator, SumPool):
        estimator = MeanPool()
    sets = some_sets()
    weighted = Sets(sets.points, sets.offsets, np.full(len(sets.points), 0.3))
    fitted = clone(estimator).fit(sets)
    np.testing.assert_allclose(fitted.transform(weighted), fitted.transform(sets), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", [MeanPool(), MaxPool(), GeM(3), Covariance(), WassersteinEmbedding("normal", 5)])
def test_weight_zero_is_not_there(estimator: Any) -> None:
    sets = some_sets()
    arrays = [np.concatenate([x, 100 + x]) for x, _ in each(sets)]
    weights = [np.concatenate([np.full(len(x) // 2, 2.0), np.zeros(len(x) // 2)]) for x in arrays]
    fitted = clone(estimator).fit(sets)
    vectors = fitted.transform(Sets.from_list(arrays, weights))
    np.testing.assert_allclose(vectors, fitted.transform(sets), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
def test_clone_pickle_parameters(estimator: Any) -> None:
    sets = some_sets()
    fitted = clone(estimator).fit(sets)
    vectors = fitted.transform(sets)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(sets), vectors)
    np.testing.assert_array_equal(clone(fitted).fit_transform(sets), vectors)
    assert clone(fitted).get_params() == estimator.get_params()
    assert vectors.shape == (len(sets), fitted.vector_length)


# ---- GeM


def test_gem_of_very_large_and_very_small_numbers() -> None:
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (30, 2))
    expected = GeM(12).fit_transform([x])
    for scale in (1e-37, 1e15):
        with np.errstate(all="raise", under="ignore"):
            vectors = GeM(12).fit_transform([x * scale])
        np.testing.assert_allclose(vectors / np.float32(scale), expected, rtol=1e-5)
    assert not GeM(3).fit_transform([np.zeros((4, 2))]).any()


@pytest.mark.parametrize("p", [0, -1, 1.5, "2", None, True])
def test_gem_order_is_checked(p: Any) -> None:
    with pytest.raises(ValueError, match=f"p={p!r} must be"):
        GeM(p).fit(some_sets())


# ---- Covariance


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [2, 24])
def test_covariance_is_numpys(weighted: bool, dim: int) -> None:
    sets = some_sets(dim=dim, weighted=weighted)
    vectors = Covariance(0).fit_transform(sets).reshape(-1, dim, dim)
    for matrix, (x, w) in zip(vectors, each(sets), strict=True):
        np.testing.assert_array_equal(matrix, matrix.T)
        if np.count_nonzero(w) > 1:
            np.testing.assert_allclose(matrix, np.cov(x.T, aweights=w), rtol=1e-5, atol=1e-6)
        else:
            assert not matrix.any()


@pytest.mark.parametrize("dim", [2, covariance.RAGGED_DIM + 1])
def test_covariance_of_one_element_is_zero(dim: int) -> None:
    x = np.full((1, dim), 0.1)
    assert not Covariance().fit_transform([x, x]).any()
    assert not Covariance().fit_transform(Sets.from_list([x, x], [[0.3], [7]])).any()
    pair = np.repeat(x, 2, axis=0) * [[1], [5]]
    assert not Covariance().fit_transform(Sets.from_list([pair], [[0.3, 0]])).any()


def test_covariance_far_from_zero() -> None:
    x = np.random.RandomState(0).randint(-50, 50, (200, 2)).astype(np.float32)
    near, far = Covariance(0).fit_transform([x]), Covariance(0).fit_transform([x + np.float32(2**23)])
    np.testing.assert_allclose(far, near, rtol=1e-6)


def test_covariance_errors() -> None:
    for value in (-1e-4, np.inf, np.nan, "1", None):
        with pytest.raises(ValueError, match="regularization="):
            Covariance(value).fit(some_sets())  # type: ignore[arg-type]
    assert Covariance().fit_transform([[[1e15], [-1e15]]]) == pytest.approx(2e30, rel=1e-3)  # the largest numbers
    with pytest.raises(ValueError, match="too large for float32"):
        SumPool().fit_transform(Sets.from_list([[[1e15]]], [[1e30]]))


# ---- references


def test_references_drawn_without_data() -> None:
    sets = some_sets()
    uniform, weights = reference_points("uniform", sets, 500, 3, 0)
    assert uniform.shape == (500, 3)
    assert uniform.dtype == np.float64
    assert weights is None
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() <= 1
    normal, _ = reference_points("normal", sets, 500, 3, 0)
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1
    np.testing.assert_array_equal(uniform, reference_points("uniform", sets, 500, 3, np.random.RandomState(0))[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_reference_sample_is_one_of_the_sets(weighted: bool) -> None:
    sets = some_sets(weighted=weighted)
    pairs = each(sets)
    seen = set()
    for seed in range(30):
        points, weights = reference_points("sample", sets, None, 3, seed)
        found = [i for i, (x, _) in enumerate(pairs) if x.shape == points.shape and np.array_equal(x, points)]
        seen.update(found)
        assert len(found) == 1
        if weighted:
            np.testing.assert_array_equal(weights, pairs[found[0]][1])
        else:
            assert weights is None
    assert len(seen) > 10


def test_reference_kmeans_finds_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.RandomState(0)
    true = np.array([[0.0, 0], [100, 0], [0, 100], [70, 70]])
    sets = Sets.from_list([true[random.randint(4, size=50)] + random.standard_normal((50, 2)) for _ in range(40)])

    def sorted_centres(sets: Sets) -> np.ndarray:
        centres, weights = reference_points("kmeans", sets, 4, 2, 0)
        assert weights is None
        return centres[np.lexsort(centres.round(-1).T)]

    expected = true[np.lexsort(true.T)]
    np.testing.assert_allclose(sorted_centres(sets), expected, atol=1)
    monkeypatch.setattr("slosh.embed.references.KMEANS_ELEMENTS", (200, 300))
    np.testing.assert_allclose(sorted_centres(sets), expected, atol=1)
    np.testing.assert_array_equal(sorted_centres(sets), sorted_centres(sets))
    weights = (np.abs(sets.points[:, 0] - 100) < 20) + 1e-6  # nearly all the weight on one cluster
    heavy = Sets(sets.points, sets.offsets, weights)
    centre, _ = reference_points("kmeans", heavy, 1, 2, 0)
    np.testing.assert_allclose(centre, [[100, 0]], atol=1)


def test_reference_of_ones_own() -> None:
    sets = some_sets()
    own = [[1, 2, 3], [4, 5, 6]]
    points, weights = reference_points(own, sets, 9, 3)
    np.testing.assert_array_equal(points, own)
    assert points.dtype == np.float64
    assert weights is None
    one = Sets.from_list([own], [[1, 3]])
    points, weights = reference_points(one, sets, None, 3)
    np.testing.assert_array_equal(points, own)
    np.testing.assert_array_equal(weights, [1, 3])
    for wrong, message in [
        ("gauss", "'gauss' is not known; choose one of 'uniform', 'normal', 'sample', 'kmeans'"),
        (np.ones((4, 2)), r"array \(M, 3\).*got shape \(4, 2\)"),
        (np.ones(3), r"got shape \(3,\)"),
        (np.ones((0, 3)), r"got shape \(0, 3\)"),
        ([[1, 2, np.inf]], "row 0 holds NaN or infinity"),
        ([[1, 2, 3], [1]], "array of numbers"),
        (sets, "must be one set; these are 40"),
    ]:
        with pytest.raises(ValueError, match=message):
            reference_points(wrong, sets, 5, 3)  # type: ignore[arg-type]
    for count in (0, None, 2.5):
        with pytest.raises(ValueError, match="n_points"):
            reference_points("uniform", sets, count, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs as many elements; the sets have"):
        reference_points("kmeans", sets, 10**6, 3)


# ---- WassersteinEmbedding


@pytest.mark.parametrize("weighted", [False, True])
def test_wasserstein_is_the_barycentric_projection(weighted: bool) -> None:
    ot = pytest.importorskip("ot")
    sets = some_sets(20, weighted=weighted)
    fitted = WassersteinEmbedding("normal", 8, random_state=3).fit(sets)
    x0 = fitted.reference_
    assert x0.shape == (8, 3)
    for vector, (x, w) in zip(fitted.transform(sets), each(sets), strict=True):
        plan = ot.emd(np.full(8, 1 / 8), w / w.sum(), ot.dist(x0, x))
        expected = [(8 * sum(plan[m, n] * x[n] for n in range(len(x))) - x0[m]) / np.sqrt(8) for m in range(8)]
        np.testing.assert_allclose(vector, np.ravel(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_wasserstein_norm_is_the_distance_to_the_reference(scale: float) -> None:
    """C1 and C2 of the paper: phi(X0) = 0, and |phi(X)| = W2(X, X0) with N = M."""
    ot = pytest.importorskip("ot")
    random = np.random.RandomState(0)
    arrays = [random.standard_normal((30, 2)).astype(np.float32) * np.float32(scale) for _ in range(10)]
    fitted = WassersteinEmbedding(arrays[0]).fit(arrays)
    vectors = fitted.transform(arrays)
    assert np.abs(vectors[0]).max() < 1e-6 * scale
    for x, vector in zip(arrays[1:], vectors[1:], strict=True):
        cost = ot.dist(arrays[0].astype(float) / scale, x.astype(float) / scale)
        assert np.linalg.norm(vector) == pytest.approx(scale * np.sqrt(ot.emd2([], [], cost)), rel=1e-5)


def test_wasserstein_of_a_moved_set() -> None:
    """phi(X + v) - phi(X) = v / sqrt(M) at every reference point: the distance is |v|, as it must be."""
    sets = some_sets(15)
    v = np.float32([1, -2, 0.5])
    fitted = WassersteinEmbedding("sample", random_state=1).fit(sets)
    moved = fitted.transform(Sets(sets.points + v, sets.offsets))
    n_points = len(fitted.reference_)
    difference = (moved - fitted.transform(sets)).reshape(15, n_points, 3)
    np.testing.assert_allclose(difference, np.broadcast_to(v / np.sqrt(n_points), difference.shape), atol=1e-5)


def test_wasserstein_of_a_weighted_reference() -> None:
    """Its points of weight zero are dropped, and the middle of what the others move to is the middle of the set."""
    sets = some_sets(10)
    x0 = np.random.RandomState(5).standard_normal((4, 3))
    weighted = WassersteinEmbedding(Sets.from_list([x0], [[2, 1, 0, 1]])).fit(sets)
    assert weighted.reference_.shape == (3, 3)
    np.testing.assert_allclose(weighted.reference_weights_, [0.5, 0.25, 0.25])
    itself = weighted.transform(Sets.from_list([x0], [[2, 1, 0, 1]]))
    assert np.abs(itself).max() < 1e-6
    moved = weighted.transform(sets).reshape(10, 3, 3) * np.sqrt(weighted.reference_weights_)[:, None]
    centres = MeanPool().fit_transform(sets) - np.average(x0, axis=0, weights=[2, 1, 0, 1])
    np.testing.assert_allclose(moved.sum(axis=1), centres, atol=1e-5)


@pytest.mark.parametrize("reference", ["kmeans", "uniform", "normal", "sample"])
def test_wasserstein_threads_change_nothing(reference: str) -> None:
    sets = some_sets(30)
    one = WassersteinEmbedding(reference, 10, n_jobs=1).fit_transform(sets)
    two = WassersteinEmbedding(reference, 10, n_jobs=2).fit_transform(sets)
    np.testing.assert_array_equal(one, two)


def test_wasserstein_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = some_sets()
    for count in (0, 1.5, None):
        with pytest.raises(ValueError, match="n_reference="):
            WassersteinEmbedding(n_reference=count).fit(sets)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_jobs=0"):
        WassersteinEmbedding(n_jobs=0).fit(sets)
    with pytest.raises(ValueError, match="'barycentre' is not known"):
        WassersteinEmbedding("barycentre").fit(sets)
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ImportError, match=r'pip install "slosh\[transport\]"'):
        WassersteinEmbedding("normal").fit(sets)
