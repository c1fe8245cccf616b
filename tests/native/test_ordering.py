"""The order of numbers within sets, against Python's own sort."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.native import kernel
from slosh.native.ordering import order


@pytest.mark.parametrize("is_compiled", [True, False])
@given(
    sizes=st.lists(st.one_of(st.integers(0, 9), st.integers(40, 60), st.just(300)), max_size=12),
    rows=st.integers(0, 4),
    kinds=st.integers(1, 50),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_set_is_in_order(is_compiled, sizes, rows, kinds, threads, seed):
    random = np.random.default_rng(seed)
    n, offsets = sum(sizes), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    several = random.normal(size=kinds)
    # Some are the same number as float32, or none that it has.
    near = np.nextafter(several, np.inf)
    values = random.choice([-np.inf, np.inf, -1e-300, 0.0, 1e300, 2e300, *several, *near], size=(rows, n))
    ties = random.permutation(n)
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(kernel, "is_compiled", lambda: False)
        found = order(values, offsets, ties, threads)
    for row, places in zip(values.tolist(), found.tolist(), strict=True):
        expected = [
            i for first, last in pairwise(offsets) for i in sorted(range(first, last), key=lambda i: (row[i], ties[i]))
        ]
        assert places == expected


@pytest.mark.skipif(kernel.native is None, reason="the kernel was not built")
@pytest.mark.parametrize("offsets", [[0, 3], [1, 4], [0, 5, 4], [0, 2, 1, 4], [-1, 4]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets must"):
        kernel.native.order(np.zeros((2, 4)), np.array(offsets), np.arange(4), np.empty((2, 4), np.int64), 1)
