"""WassersteinEmbedding against POT and the claims of the paper."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from ragged import each, some_sets

from slosh import Sets
from slosh.embed import MeanPool, WassersteinEmbedding


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
