"""FSPool is the sliced embedding along the axes."""

from __future__ import annotations

import numpy as np
import pytest

from builders import clouds
from slosh.embed import FSPool, SlicedWasserstein


@pytest.mark.parametrize("rule", ["linear", "average"])
def test_fspool_is_the_axis_sliced_embedding(each_kernel, rule):
    sets = clouds([1, 9, 30, 200], 5, weighted=True)
    pooled = FSPool(n_quantiles=12, quantiles=rule).fit_transform(sets)
    embedded = SlicedWasserstein(n_quantiles=12, slices="axis", quantiles=rule).fit_transform(sets)
    np.testing.assert_allclose(pooled, embedded * np.sqrt(60), atol=1e-5)
    with pytest.raises(ValueError, match="n_quantiles"):
        FSPool(n_quantiles=0).fit(sets)
    with pytest.raises(ValueError, match="quantiles"):
        FSPool(quantiles="cubic").fit(sets)
