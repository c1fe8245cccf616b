"""What the tests of sets and readers share: places on a map, and comparisons written without the code under test."""

from __future__ import annotations

import re

import numpy as np
import pytest


def utm(n=500, seed=0):
    """Return points on a map, in metres, far from zero."""
    rng = np.random.default_rng(seed)
    return np.array([500_000.0, 4_500_000.0]) + np.round(rng.uniform(0, 300, (n, 2)), 2)


def same(sets, expected, weights=None):
    """Assert that a `Sets` holds these arrays, and the weights of each."""
    assert len(sets) == len(expected)
    assert sets.points.dtype == np.float32
    assert sets.points.flags.c_contiguous
    assert sets.offsets.dtype == np.int64
    assert sets.offsets[0] == 0
    assert sets.sizes.tolist() == [len(x) for x in expected]
    for one, other in zip(sets, expected, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other, np.float32))
    if weights is None:
        assert sets.weights is None
    else:
        assert sets.weights.dtype == np.float32
        np.testing.assert_array_equal(sets.weights, np.concatenate([np.asarray(w, np.float32) for w in weights]))


def raises(*words, error=ValueError):
    """Expect an error whose message has all of the words, in that order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(word) for word in words))
