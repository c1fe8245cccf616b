"""What every embedding shares: sources, streams, outputs, origins and errors; by the example of SlicedWasserstein."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import slosh
from builders import clouds
from slosh import Sets
from slosh.embed import SlicedWasserstein, default_slices


def test_takes_what_sets_takes_and_streams(mnist):
    sets, _ = mnist
    model = SlicedWasserstein().fit(sets)
    expected = model.transform(sets)
    assert expected.dtype == np.float32
    assert expected.shape == (len(sets), default_slices(2) * 16)
    assert np.array_equal(model.transform(list(sets)), expected)
    assert np.array_equal(model.transform(iter(sets)), expected)
    assert np.array_equal(model.transform(sets[i : i + 70] for i in range(0, len(sets), 70)), expected)
    assert np.array_equal(model.transform(Sets.stream(iter(sets), batch_points=1000)), expected)
    assert model.transform([], None).shape == (0, expected.shape[1])
    assert model.transform(iter([])).shape == (0, expected.shape[1])
    residual = model.residual(sets)
    vectors, norms = model.transform(iter(sets), return_residual=True)
    assert np.array_equal(vectors, expected)
    assert np.array_equal(norms, residual)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_an_iterator_of_many_batches_gives_the_rows_of_a_list(at_once, monkeypatch):
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(n, 3)) for n in rng.integers(1, 9, 100)]
    model = SlicedWasserstein(4, 8).fit(sets)
    expected, residuals = model.transform(sets, return_residual=True)
    monkeypatch.setattr(SlicedWasserstein, "_batch_points", lambda self: at_once)
    assert np.array_equal(model.transform(iter(sets)), expected)
    for found, wanted in zip(model.transform(iter(sets), return_residual=True), (expected, residuals), strict=True):
        assert np.array_equal(found, wanted)


def test_writes_into_arrays_and_memory_maps(mnist, tmp_path):
    sets, _ = mnist
    model = SlicedWasserstein(8, 4).fit(sets)
    expected = model.transform(sets)
    mapped = np.lib.format.open_memmap(tmp_path / "vectors.npy", "w+", np.float32, expected.shape)
    assert model.transform(sets, out=mapped) is mapped
    mapped.flush()
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), expected)
    wide = np.zeros((len(sets), 64), np.float64)
    model.transform(sets, out=wide[:, 16:48])
    np.testing.assert_array_equal(wide[:, 16:48], expected)
    assert not wide[:, :16].any()
    assert not wide[:, 48:].any()
    more = np.zeros((len(sets) + 5, 32), np.float32)
    written = model.transform(iter(sets), out=more)
    assert np.shares_memory(written, more)
    assert np.array_equal(written, expected)
    for bad, word in [
        (np.zeros((3, 32), np.float32), "3 rows"),
        (np.zeros((len(sets), 31), np.float32), "32"),
        (np.zeros((len(sets), 32), int), "floating"),
        ([[0.0]], "floating"),
    ]:
        with pytest.raises(ValueError, match=word):
            model.transform(sets, out=bad)
    with pytest.raises(ValueError, match="make it larger"):
        model.transform(iter(sets), out=np.zeros((2, 32), np.float32))


def test_read_only_output_is_refused():
    sets = clouds([20, 30], 3)
    model = SlicedWasserstein(4, 8).fit(sets)
    out = np.zeros((2, 32), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        model.transform(sets, out=out)


def test_bad_input_names_the_remedy():
    sets = clouds([5, 6], 3)
    model = SlicedWasserstein().fit(sets)
    with pytest.raises(ValueError, match="2 features"):
        model.transform([np.zeros((4, 2))])
    with pytest.raises(ValueError, match=r"\[x\]"):
        model.transform(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="set 1"):
        model.transform([np.zeros((4, 3)), np.full((2, 3), np.nan)])
    with pytest.raises(ValueError, match="set 2"):
        model.transform(iter([np.zeros((4, 3)), np.zeros((1, 3)), np.zeros((0, 3))]))
    for nothing in (sets[:0], [], np.zeros((0, 3, 2))):
        with pytest.raises(ValueError, match="at least one set"):
            SlicedWasserstein().fit(nothing)
    with pytest.raises(ValueError, match=r"next\(Sets.stream"):
        SlicedWasserstein().fit(iter(sets))
    with pytest.raises(ValueError, match="average"):
        SlicedWasserstein(quantiles="linear").fit(sets).residual(sets)
    with pytest.raises(NotFittedError):
        SlicedWasserstein().transform(sets)


def test_origin_is_kept_and_checked():
    rng = np.random.default_rng(0)
    city = [rng.normal(size=(50, 2)) * 10 + [500_000, 4_500_000] for _ in range(3)]
    sets = Sets.from_list(city, origin=[500_000, 4_500_000])
    model = SlicedWasserstein().fit(sets)
    expected = SlicedWasserstein().fit_transform([c - [500_000, 4_500_000] for c in city])
    np.testing.assert_allclose(model.transform(sets), expected, atol=1e-6)
    np.testing.assert_allclose(model.transform(city), expected, atol=1e-6)
    np.testing.assert_allclose(model.transform(iter(city)), expected, atol=1e-6)
    with pytest.raises(ValueError, match="origin"):
        model.transform(Sets.from_list(city, origin=[499_000, 4_500_000]))
    with pytest.raises(ValueError, match="origin"):
        model.transform(iter([Sets.from_list([city[0] - 500_000], origin=[0, 4_000_000])]))


def test_scale_warning_at_fit():
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(100, 3)) * [1, 1, 1000] for _ in range(3)]
    with pytest.warns(slosh.ScaleWarning, match="feature 2"):
        SlicedWasserstein().fit(sets)


def test_pipeline_grid_search_and_cross_validation(mnist):
    sets, labels = mnist
    pipeline = make_pipeline(SlicedWasserstein(16, 8), KNeighborsClassifier(3))
    assert pipeline.fit(sets[:400], labels[:400]).score(sets[400:], labels[400:]) > 0.7
    assert cross_val_score(pipeline, sets, labels, cv=3).mean() > 0.7
    assert cross_val_score(pipeline, list(sets), labels, cv=3).mean() > 0.7
    search = GridSearchCV(pipeline, {"slicedwasserstein__n_slices": [1, 16]}, cv=3).fit(sets, labels)
    assert search.best_params_["slicedwasserstein__n_slices"] == 16
