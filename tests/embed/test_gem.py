"""GeM pooling beyond what holds for every embedding (test_pooling.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ragged import some_sets

from slosh.embed import GeM


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
