"""Batches of consecutive sets, against a loop that takes one set after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slosh.data.batching import batches_by_points


def by_a_loop(sizes, max_points, max_sets):
    runs, points = [], 0
    for i, size in enumerate(sizes):
        full = runs and (points + size > max_points or (max_sets is not None and len(runs[-1]) == max_sets))
        if not runs or full:
            runs.append([])
            points = 0
        runs[-1].append(i)
        points += size
    return runs


@given(st.lists(st.integers(0, 9)), st.integers(1, 20) | st.just(2**63), st.none() | st.integers(1, 5))
def test_runs_are_those_of_a_loop(sizes, max_points, max_sets):
    made = batches_by_points(np.array(sizes, np.int64), max_points, max_sets)
    assert [list(range(len(sizes)))[run] for run in made] == by_a_loop(sizes, max_points, max_sets)


def test_a_large_set_is_a_run_of_its_own():
    assert list(batches_by_points(np.array([3, 1, 6, 1, 1]), 5)) == [slice(0, 2), slice(2, 3), slice(3, 5)]
    assert list(batches_by_points(np.empty(0, np.int64), 5)) == []
