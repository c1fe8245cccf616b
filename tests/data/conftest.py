"""A collection that many tests of sets take."""

from __future__ import annotations

import numpy as np
import pytest

from builders import normal_arrays
from slosh import Sets


@pytest.fixture
def sets():
    """Four weighted sets of 3, 1, 4 and 2 elements."""
    return Sets(np.concatenate(normal_arrays(3, 1, 4, 2)), [0, 3, 4, 8, 10], np.arange(1, 11))
