"""Copies by several threads: every byte arrives, and no other one changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.native import kernel
from slosh.native.copying import copy

TOGETHER = 4 << 20
"""Bytes that a thread copies at a time."""


@given(
    n=st.one_of(st.integers(0, 200), st.integers(TOGETHER - 70, 2 * TOGETHER + 70)),
    before=st.integers(0, 70),
    source_before=st.integers(0, 70),
    threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_every_byte_arrives(n, before, source_before, threads, seed):
    random = np.random.default_rng(seed)
    target, source = (random.integers(0, 256, n + 80 + more, dtype=np.uint8) for more in (before, source_before))
    expected = target.copy()
    expected[before : before + n] = source[source_before : source_before + n]
    source.flags.writeable = False
    copy(target[before : before + n], source[source_before : source_before + n], threads)
    assert target.tobytes() == expected.tobytes()


@given(
    n=st.integers(1, 9),
    width=st.one_of(st.integers(0, 200), st.sampled_from([TOGETHER // 4 - 1, TOGETHER // 4 + 17, TOGETHER // 3])),
    gaps=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    threads=st.integers(1, 5),
)
def test_rows_that_are_apart(n, width, gaps, threads):
    target, source = (np.full((n, width + gap), k, np.float32) for k, gap in enumerate(gaps))
    source += np.arange(source.size, dtype=np.float32).reshape(source.shape)
    source.flags.writeable = False
    expected = target.copy()
    expected[:, :width] = source[:, :width]
    copy(target[:, :width], source[:, :width], threads)
    assert target.tobytes() == expected.tobytes()


@pytest.mark.parametrize("turn", [np.transpose, lambda x: x[::-1], lambda x: x[:, ::2], lambda x: x[:, :1].T, np.ravel])
def test_other_layouts_of_memory(turn):
    held = np.arange(12.0).reshape(3, 4)
    for order in "CF":
        source, target = turn(np.array(held, order=order)), np.zeros_like(turn(held))
        copy(target, source, 2)
        np.testing.assert_array_equal(target, source)
        into = turn(np.zeros((3, 4), order=order))
        copy(into, target, 2)
        np.testing.assert_array_equal(into, source)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_numbers_and_rows_that_are_apart(dtype, is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(kernel, "is_compiled", lambda: False)
    source = np.random.default_rng(0).normal(size=(700, 900)).astype(dtype)
    together, wide = np.zeros_like(source), np.zeros((700, 1000), dtype)
    copy(together, source, 3)
    copy(wide[:, 50:950], source, 3)
    np.testing.assert_array_equal(together, source)
    np.testing.assert_array_equal(wide[:, 50:950], source)
    assert not wide[:, :50].any()
    assert not wide[:, 950:].any()
    with pytest.raises(AssertionError):
        copy(together, source[1:], 3)
    if is_compiled and kernel.native is not None:
        with pytest.raises(ValueError, match="the same shape"):
            kernel.native.copy(np.zeros((1, 3), np.uint8), np.zeros((1, 4), np.uint8), 1)
        with pytest.raises(ValueError, match="side by side"):
            kernel.native.copy(np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8).T, 1)
