"""The optimal matching of two sets."""

from __future__ import annotations

import numpy as np
import pytest

from builders import clouds
from slosh import rank

pytest.importorskip("ot")


@pytest.mark.parametrize("weighted", [False, True])
def test_match_is_the_optimal_plan(weighted):
    sets = clouds([12, 17], 2, weighted=weighted)
    found = rank.match(sets[:1], sets[1:])
    plan = found.plan().toarray()
    assert plan.shape == (12, 17)
    u, v = (np.ones(n) if w is None else w for n, w in ((12, sets.weights_of(0)), (17, sets.weights_of(1))))
    np.testing.assert_allclose(plan.sum(axis=1), u / u.sum(), atol=1e-6)
    np.testing.assert_allclose(plan.sum(axis=0), v / v.sum(), atol=1e-6)
    assert found.distance == pytest.approx(np.sqrt(found.mass @ found.lengths**2))
    assert found.distance == pytest.approx(rank.wasserstein(sets[:1], sets[1:])[0])
    np.testing.assert_allclose(
        found.lengths, np.linalg.norm(sets[0][found.rows] - sets[1][found.columns], axis=1), atol=1e-5
    )
    assert len(found) == len(found.mass)


def test_match_of_a_permuted_set_is_the_permutation():
    x = clouds([30], 3)[0]
    order = np.random.default_rng(1).permutation(30)
    found = rank.match(x, x[order])
    assert found.distance == pytest.approx(0, abs=1e-6)
    np.testing.assert_array_equal(order[found.columns], found.rows)
