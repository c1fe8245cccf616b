"""Tables: how likely a row at a distance is found, and which rows belong where."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.hash import PStableHash, probing
from slosh.search.state import Trained
from slosh.search.tables import Tables, success


def test_success_is_a_lower_bound_and_rises_with_the_probes():
    levels = [success(5, 8, n_probes, 0.35, 2) for n_probes in (5, 10, 20, 80, 320)]
    assert levels[0] == pytest.approx(float(PStableHash(1.0, 8, 5).success_probability(0.35)), abs=1e-12)
    assert np.all(np.diff(levels) > 0)
    assert levels[-1] < 1
    both, _ = probing.success(5, 8, [10, 80], np.array([0.2, 0.35]))
    np.testing.assert_allclose(both[:, 1], [levels[1], levels[3]], atol=0.02)


def test_rows_are_held_by_the_buckets_they_belong_to():
    vectors = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    tables = Tables(PStableHash(1.0, 3, 4).fit(vectors)).file(vectors[:300])
    at = np.arange(400)
    assert tables.holds(at, vectors).all()
    assert not tables.holds(at[:300], vectors[:300] + 5).any()
    assert tables.holds(at[300:], vectors[300:] + 5).all()  # in no bucket yet


def test_buckets_of_another_hash_are_not_used():
    vectors = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    tables = Tables(PStableHash(1.0, 3, 4).fit(vectors)).file(vectors)
    derived = tables.as_derived()
    empty = Tables(tables.hash)
    assert empty.with_derived(derived, 300).filed == 300
    for header in ({"filed": 299}, {"filed": 301}, {"filed": -1}, {"filed": True}, {"hash": 0}):
        assert empty.with_derived(Trained({**derived.header, **header}, derived.arrays), 300).filed == 0
    assert empty.with_derived(derived, 299).filed == 0
    assert empty.with_derived(Trained({}, {}), 300).filed == 0
    other = Tables(PStableHash(1.0, 3, 4, random_state=1).fit(vectors))
    assert other.with_derived(derived, 300).filed == 0


def test_far_queries_get_as_many_probes_as_the_formula_says_or_a_scan():
    tables = Tables(PStableHash(1.0, 8, 6, random_state=0).fit(np.zeros((1, 4), np.float32)))
    distances = np.repeat(np.array([[0.05], [0.3], [0.4], [3.0]]), 5, axis=1)
    probes = tables.farther(distances, 10, 0.9)
    assert probes[0] == 10  # near enough: no more than the others
    assert 10 < probes[1] < probes[2] <= 1024
    assert probes[3] == 0  # no number finds rows that far off
    for distance, n_probes in zip(distances[1:3, 0], probes[1:3], strict=True):
        assert tables.success(float(distance), int(n_probes)) == pytest.approx(0.93, abs=0.07)
    assert (tables.farther(distances[:1], 2000, 0.9) == 2000).all()
