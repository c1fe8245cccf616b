"""The cost model of LadderSearch."""

from __future__ import annotations

import numpy as np

from slosh.search import basis as bases
from slosh.search.cost_model import candidate_depths, prefix_length


def test_the_length_of_a_prefix_follows_the_data():
    lengths, rng = [], np.random.default_rng(3)
    for rate in (0.5, 0.9, 0.97):
        sample = (rng.normal(size=(3000, 128)) * rate ** np.arange(128)).astype(np.float32)
        prefixes, _ = bases.fit(sample, 127, np.random.RandomState(0)).prefixes(sample, None, 2)
        lengths.append(prefix_length(prefixes, sample))
    assert lengths[0] < lengths[1] < lengths[2]


def test_candidate_depths():
    assert candidate_depths(3, 3) == [3]
    depths = candidate_depths(10, 100)
    assert (depths[0], depths[-1]) == (10, 100)
    assert np.all(np.diff(depths) > 0)
