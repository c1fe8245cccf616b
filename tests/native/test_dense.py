"""Dense layers: against products in double precision, and the bits of a row, which depend on that row alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.native import kernel
from slosh.native.dense import DenseLayer


def layer(n_inputs, n_outputs, seed=0, slope=0.0):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(n_outputs, n_inputs)).astype(np.float32)
    return weights, rng.normal(size=n_outputs).astype(np.float32), slope


@pytest.fixture(params=["compiled", "numpy"])
def either_kernel(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "native", None)
        monkeypatch.setattr(kernel, "is_compiled", lambda: False)
    elif kernel.native is None:
        pytest.skip("the kernel was not built")


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("n_inputs", "n_outputs"), [(1, 1), (3, 64), (65, 7), (130, 200), (515, 65)])
def test_it_is_the_product_in_double_precision(n_inputs, n_outputs, slope, either_kernel):
    weights, bias, slope = layer(n_inputs, n_outputs, 1, slope)
    rows = np.random.default_rng(2).normal(size=(23, n_inputs)).astype(np.float32)
    sums = rows.astype(float) @ weights.T.astype(float) + bias
    found = DenseLayer(weights, bias, slope)(rows, 2)
    assert found.dtype == np.float32
    sizes = np.abs(rows) @ np.abs(weights.T) + np.abs(bias)
    assert (np.abs(found - np.where(sums > 0, sums, slope * sums)) <= 1e-6 * sizes).all()


@given(cut=st.integers(1, 119), threads=st.integers(1, 4))
def test_neither_the_batch_nor_the_threads_change_a_bit(cut, threads):
    weights, bias, _ = layer(37, 130)
    dense, rows = DenseLayer(weights, bias), np.random.default_rng(0).normal(size=(120, 37)).astype(np.float32)
    whole = dense(rows, 1)
    assert np.array_equal(np.concatenate([dense(rows[:cut], threads), dense(rows[cut:], threads)]), whole)
    assert np.array_equal(dense(rows[::-1], threads)[::-1], whole)


@pytest.mark.skipif(kernel.native is None, reason="the kernel was not built")
def test_every_instruction_set_agrees():
    weights, bias, _ = layer(100, 150)
    rows, before = np.random.default_rng(3).normal(size=(50, 100)).astype(np.float32), kernel.native.name()
    try:
        found = []
        for name in kernel.native.names():
            kernel.native.use(name)
            found.append(DenseLayer(weights, bias)(rows, 2))
    finally:
        kernel.native.use(before)
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=1e-4)


def test_no_rows():
    weights, bias, _ = layer(5, 9)
    assert DenseLayer(weights, bias)(np.empty((0, 5), np.float32), -1).shape == (0, 9)
