"""The check of many numbers at once, against a plain loop."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from slosh.data.checks import FEW_NUMBERS, first_beyond

LIMIT = 1e15
AT, BEYOND = np.float32(LIMIT), np.nextafter(np.float32(LIMIT), np.float32(np.inf))


@pytest.mark.parametrize("n_rows", [0, 1, 7, FEW_NUMBERS // 3, FEW_NUMBERS])
@pytest.mark.parametrize("fill", [0.0, 1.0, float(AT), -float(AT) / 2])
@pytest.mark.parametrize("value", [0.0, AT, -AT, BEYOND, -BEYOND, np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("n_places", [1, 3])
def test_the_first_number_beyond_a_limit(n_rows, fill, value, n_places):
    x = np.full((n_rows, 3), fill, np.float32)
    wrong = not abs(float(value)) <= float(AT)
    places = {(i * n_rows // 3, i % 3) for i in range(n_places)} if n_rows else set()
    for place in places:
        x[place] = value
    expected = None
    for place in sorted(places) if wrong else []:
        assert math.isnan(value) or abs(float(x[place])) > LIMIT
        expected = expected or place
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first_beyond(x, LIMIT) == expected
        assert first_beyond(np.asfortranarray(x), LIMIT) == expected
