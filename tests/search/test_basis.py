"""The basis: a prefix is never farther than its vector."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slosh.search import basis as bases


@given(
    n=st.integers(2, 40),
    dim=st.integers(1, 30),
    p=st.integers(0, 12),
    scale=st.sampled_from([1e-12, 1.0, 1e9]),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
    seed=st.integers(0, 999),
)
def test_a_prefix_is_never_farther_than_its_vector(n, dim, p, scale, offset, seed):
    rng = np.random.default_rng(seed)
    sample = ((rng.normal(size=(n, dim)) + offset) * scale).astype(np.float32)
    basis = bases.fit(sample, p, np.random.RandomState(0)) if p else bases.Basis(np.zeros(dim), np.empty((0, dim)))
    vectors = np.concatenate([sample, (rng.normal(size=(5, dim)) * scale).astype(np.float32)])
    prefixes, norms = basis.prefixes(vectors, None, 1)
    low = np.linalg.norm(prefixes[:, None].astype(np.float64) - prefixes[None], axis=2)
    true = np.linalg.norm(vectors[:, None].astype(np.float64) - vectors[None], axis=2)
    slack = bases.ROUNDING * (norms[:, None] + norms[None])
    assert np.all(low <= true * (1 + 1e-12) + slack)
    rest = prefixes[:, -1] if p else np.zeros(len(vectors))  # without directions the prefix is all of the vector
    high = np.sqrt(np.square(low) + 4 * rest[:, None] * rest[None])  # rest norms added, not subtracted
    assert np.all(true <= high * (1 + 1e-6) + slack)


def test_prefixes_do_not_depend_on_the_batch_or_the_kernel(each_kernel):
    vectors = (np.random.default_rng(1).normal(size=(37, 21)) * 0.85 ** np.arange(21)).astype(np.float32)
    basis = bases.fit(vectors, 5, np.random.RandomState(0))
    assert np.allclose(basis.directions @ basis.directions.T, np.eye(5), atol=1e-14)
    whole, norms = basis.prefixes(vectors, None, 2)
    for i in (0, 9, 36):
        one, _ = basis.prefixes(vectors[i : i + 1], None, 1)
        assert np.array_equal(one[0], whole[i])
    centred = vectors - basis.middle
    np.testing.assert_allclose(whole[:, :-1], centred @ basis.directions.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norms, np.linalg.norm(centred, axis=1), rtol=1e-12)
    rest = np.linalg.norm(centred - centred @ basis.directions.T @ basis.directions, axis=1)
    np.testing.assert_allclose(whole[:, -1], rest, rtol=1e-5)
