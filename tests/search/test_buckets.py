"""Hash tables in flat arrays: which rows are in a bucket, and which of them may be the nearest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh.hash import probing
from slosh.search.buckets import Buckets, distinct
from slosh.search.store import shortlist


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=40)
def test_buckets_hold_the_rows_with_equal_cells(T, k, sizes, seed):
    rng = np.random.RandomState(seed)
    cells = rng.randint(-2, 3, size=(sum(sizes), T, k)).astype(float)
    buckets = Buckets(T, k)
    first = 0
    for size in sizes:
        before, runs = buckets, [np.array(part) for run in buckets.runs for part in run]
        buckets = buckets.extend(buckets.sums(cells[first : first + size]), first)
        assert all(np.array_equal(a, b) for a, b in zip(runs, [p for run in before.runs for p in run], strict=True))
        first += size
    assert buckets.n_rows == len(cells)
    asked = rng.randint(-2, 3, size=(7, T, k)).astype(float)
    tables = np.tile(np.arange(T), (7, 1))
    own = probing.Probes(tables, np.zeros((7, T, 1), np.int16))

    def looked_up(at):
        starts, ends = buckets.find(buckets.probe_keys(asked, own))
        found = buckets.entries(starts, ends)
        query = np.repeat(np.arange(7), (ends - starts).sum(axis=(0, 2)))
        for i in range(7):
            truth = np.flatnonzero((cells[at][:, :, :] == asked[i]).all(axis=2).any(axis=1))
            per_table = (cells[at] == asked[i]).all(axis=2).sum()
            assert np.sum(query == i) == per_table
            assert set(found[query == i].tolist()) == set(truth.tolist())

    looked_up(np.arange(len(cells)))
    buckets = Buckets.from_arrays(buckets.arrays(), T, k, len(cells))
    assert buckets.n_rows == len(cells)
    looked_up(np.arange(len(cells)))
    buckets = buckets.merged()
    looked_up(np.arange(len(cells)))


def test_saved_buckets_are_checked():
    buckets = Buckets(3, 2)
    buckets = buckets.extend(buckets.sums(np.random.RandomState(0).randint(-3, 4, size=(50, 3, 2)).astype(float)), 0)
    arrays = buckets.arrays()
    for change in (
        {"keys": arrays["keys"][::-1]},
        {"keys": arrays["keys"][:-1]},
        {"keys": arrays["keys"].astype(np.int64)},
        {"positions": arrays["positions"] * 0},
        {"positions": arrays["positions"][None]},
    ):
        with pytest.raises(ValueError, match="buckets"):
            Buckets.from_arrays({**arrays, **change}, 3, 2, 50)
    with pytest.raises(ValueError, match="buckets"):
        Buckets.from_arrays(arrays, 3, 2, 49)


def test_runs_are_merged_as_they_grow(monkeypatch):
    monkeypatch.setattr("slosh.search.buckets.SECOND_RUN_ROWS", 10)
    rng = np.random.RandomState(0)
    buckets = Buckets(3, 2)
    sums = buckets.sums(rng.randint(-3, 4, size=(900, 3, 2)).astype(float))
    for first in range(0, 900, 7):
        buckets = buckets.extend(sums[first : first + 7], first)
        assert len(buckets.runs[1][0]) <= 3 * max(10, len(sums) // 16)
    whole = Buckets(3, 2).extend(sums, 0)
    assert np.array_equal(buckets.merged().runs[0][0], whole.runs[0][0])


@given(st.integers(0, 400), st.integers(1, 60), st.integers(0, 99))
def test_distinct_keeps_one_of_each(n, n_positions, seed):
    rng = np.random.RandomState(seed)
    query, position = np.sort(rng.randint(4, size=n)), rng.randint(n_positions, size=n)
    keep = distinct(query, position, n_positions)
    pairs = list(zip(query.tolist(), position.tolist(), strict=True))
    kept = list(zip(query[keep].tolist(), position[keep].tolist(), strict=True))
    assert len(kept) == len(set(kept))
    assert set(kept) == set(pairs)


@given(st.integers(1, 6), st.lists(st.integers(0, 90), min_size=1, max_size=5), st.integers(0, 99))
def test_a_shortlist_has_the_k_smallest(k, counts, seed):
    squares = np.random.RandomState(seed).randint(0, 30, size=sum(counts)).astype(float)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    keep = shortlist(squares, offsets, k)
    for start, end in itertools.pairwise(offsets):
        part = squares[start:end]
        assert np.array_equal(np.sort(part)[:k], np.sort(part[keep[start:end]])[:k])
