"""Stored vectors: rounding that is bounded, and vectors that do not change when more come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.search.state import Stored
from slosh.search.store import FloatVectors, ShortVectors, rounded


@given(
    vectors=st.lists(
        st.lists(st.floats(-(2.0**59), 2.0**59, width=32), min_size=3, max_size=3), min_size=1, max_size=20
    ).map(lambda x: np.array(x, np.float32))
)
def test_rounded_to_16_bits(vectors):
    wholes, scale, errors = rounded(vectors)
    back = wholes * scale[:, None]
    away = np.linalg.norm(back.astype(np.float64) - vectors, axis=1)
    assert np.all(away <= errors)
    assert np.all(errors <= np.abs(vectors).max(axis=1) * 6e-5 + 1e-36)
    again = ShortVectors.start(Stored(3)).as_stored(back)
    assert np.array_equal(ShortVectors.start(Stored(3)).moved_by(vectors), errors)
    np.testing.assert_allclose(again, back, rtol=2e-7, atol=1e-37)


@pytest.mark.parametrize("kind", [FloatVectors, ShortVectors])
def test_vectors_that_are_there_do_not_change(kind):
    rng = np.random.default_rng(0)
    store, kept = kind.start(Stored(5)), []
    for n in (1, 3, 200, 7, 1000):
        vectors = rng.normal(size=(n, 5)).astype(np.float32)
        store.extend(vectors + 9)  # abandoned
        store = store.extend(vectors)
        kept.append((store, store.take(slice(None)), {name: np.array(a) for name, a in store.columns().items()}))
    for each, before, columns in kept:
        assert np.array_equal(each.take(slice(None)), before)
        for name, array in each.columns().items():
            assert np.array_equal(array, columns[name])
    at = np.array([999, 3, 2])
    assert store.holds(at + store.n - 1000, vectors[at]).all()
    assert not store.holds(at + store.n - 1000, vectors[at] + 1).any()


def test_sizes_about_the_middle_follow_every_state():
    """The sizes are shared by states that follow each other: also those of an extension that was abandoned."""
    rng = np.random.default_rng(1)

    def check(store):
        point, squares, norms = store.about_middle()
        vectors = store.take(slice(None)).astype(np.float64)
        np.testing.assert_allclose(squares, np.square(vectors - point).sum(axis=1), rtol=1e-12)
        np.testing.assert_allclose(norms, np.linalg.norm(vectors, axis=1), rtol=1e-12)

    store, kept = FloatVectors.start(Stored(4)), []
    for n in (50, 20, 100, 5, 5, 400):
        abandoned = store.extend(rng.normal(size=(n, 4)).astype(np.float32))
        if rng.random() < 0.7:
            check(abandoned)
        store = store.extend(rng.normal(size=(n, 4)).astype(np.float32) + 3)
        kept.append(store)
        if rng.random() < 0.5:
            check(store)
    for each in kept[::-1]:
        check(each)
