"""The matrix product whose bits do not depend on the batch."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from slosh.native.product import ExactProduct


@pytest.mark.parametrize("columns", [1, 3, 100])
def test_it_is_the_product_in_exact_numbers(columns):
    rng = np.random.default_rng(columns)
    rows, weights = rng.normal(size=(4, columns)) * 10.0 ** rng.integers(-9, 9, (4, 1)), rng.normal(size=(5, columns))
    found = ExactProduct(weights)(rows)
    for i, row in enumerate(rows.tolist()):
        for j, weight in enumerate(weights.tolist()):
            exact = sum(Fraction(x) * Fraction(y) for x, y in zip(row, weight, strict=True))
            size = float(np.linalg.norm(row) * np.linalg.norm(weight))
            assert abs(float(exact) - found[i, j]) <= 2.0**-40 * size


def test_the_batch_changes_no_bit():
    rng = np.random.default_rng(0)
    rows, product = rng.normal(size=(500, 37)), ExactProduct(rng.normal(size=(16, 37)))
    whole = product(rows)
    for cut in (1, 7, 250):
        assert np.array_equal(np.concatenate([product(rows[:cut]), product(rows[cut:])]), whole)
    assert np.array_equal(product(rows[::-1])[::-1], whole)
    assert not product(np.zeros((2, 37))).any()


def test_the_threads_of_blas_change_no_bit():
    rng = np.random.default_rng(1)
    rows, product, found = rng.normal(size=(700, 300)), ExactProduct(rng.normal(size=(200, 300))), []
    for threads in (1, 2, 3):
        with threadpool_limits(threads, "blas"):
            found.append(product(rows))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
