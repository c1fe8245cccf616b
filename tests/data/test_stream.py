"""Streams of sets: batches of bounded size, read only as they are taken."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import normal_arrays
from comparing import raises, same, utm
from slosh.data.sets import Sets, as_sets
from slosh.errors import PrecisionWarning

shared = np.shares_memory


# ---- stream


def test_stream_batches_and_laziness():
    pulled = []

    def source():
        for i in range(1000):
            pulled.append(i)
            yield np.full((4, 2), i, np.float32)

    batches = Sets.stream(source(), batch_points=10)
    assert pulled == []
    first = next(batches)
    assert len(first) == 2
    assert len(pulled) <= 3
    second = next(batches)
    assert second[0][0, 0] == 2
    assert len(pulled) <= 5


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 12), st.booleans(), st.data())
@settings(deadline=None)
def test_stream_gives_all_sets_in_order(sizes, batch_points, weighted, data):
    arrays = normal_arrays(*sizes)
    weights = [np.arange(1, n + 1) for n in sizes] if weighted else None
    items = []
    i = 0
    while i < len(sizes):  # single arrays (if there are no weights) and Sets of several
        j = data.draw(st.integers(i + 1, len(sizes)))
        if weighted or data.draw(st.booleans()):
            items.append(Sets.from_list(arrays[i:j], weights[i:j] if weighted else None))
        else:
            items += arrays[i:j]
        i = j
    batches = list(Sets.stream(iter(items), batch_points))
    assert sum(len(batch) for batch in batches) == len(sizes)
    assert all(len(batch.points) <= batch_points or len(batch) == 1 for batch in batches)
    if sizes:
        same(Sets.concat(batches), arrays, weights)
    if all(isinstance(item, Sets) for item in items) or not any(isinstance(item, Sets) for item in items):
        for one, other in itertools.pairwise(batches):  # as full as they can be
            assert len(one.points) + len(other[0]) > batch_points


def test_stream_cuts_sets_into_views(sets):
    batches = list(Sets.stream([sets], batch_points=4))
    assert [len(batch) for batch in batches] == [2, 1, 1]
    assert all(shared(batch.points, sets.points) and shared(batch.weights, sets.weights) for batch in batches)
    assert [len(batch) for batch in Sets.stream(sets, batch_points=4)] == [2, 1, 1]
    assert list(Sets.stream([])) == []


def test_stream_errors_count_from_the_start():
    def source(bad):
        for _ in range(12345):
            yield np.zeros((3, 2))
        yield bad

    for bad, words in (
        (np.array([[0, 0], [0, np.nan]]), ["set 12345, element 1, feature 1 is nan"]),
        (np.zeros((2, 3)), ["set 12345 has 3 features, expected 2"]),
        (np.zeros((0, 2)), ["set 12345 is empty"]),
        (as_sets(np.zeros((1, 1, 3))), ["set 12345 has 3 features, expected 2"]),
        (Sets(np.zeros((1, 2)), [0, 1], [1]), ["set 12345 has weights, unlike", "np.ones"]),
        (as_sets(np.zeros((1, 1, 2))).with_origin([1, 1]), ["origin"]),
    ):
        with raises(*words):
            list(Sets.stream(source(bad), batch_points=100))
    with raises("set 0 has 2 features, expected 5"):
        next(Sets.stream(source(None), dim=5))
    with raises("set 1 has no weights, unlike"):
        list(Sets.stream([Sets(np.zeros((1, 2)), [0, 1], [1]), np.zeros((1, 2))]))
    with raises("batch_points=0", "1 or more"):
        Sets.stream([], batch_points=0)


def test_stream_keeps_one_origin():
    x = utm(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(Sets.stream([x[i : i + 100] for i in range(0, 1000, 100)], 250, origin="auto"))
        assert len(batches) == 5
        assert len({tuple(batch.origin) for batch in batches}) == 1
        joined = Sets.concat(batches)
        assert np.abs(joined.points + joined.origin - x).max() < 2e-5
        again = list(Sets.stream([*batches, x[:100]], 250, origin="auto"))
        assert {tuple(batch.origin) for batch in again} == {tuple(joined.origin)}
    with pytest.warns(PrecisionWarning) as caught:
        list(Sets.stream([np.zeros((300, 2)), *(x[i : i + 100] for i in range(0, 1000, 100))], 250))
    assert "rounds feature" in str(caught[0].message)  # not only the first batch is looked at


def test_streams_have_batches_of_few_sets_too():
    sizes = [len(batch) for batch in Sets.stream((np.zeros((1, 2)) for _ in range(10)), batch_sets=4)]
    assert sizes == [4, 4, 2]
    whole = Sets.from_padded(np.zeros((10, 1, 2)))
    assert [len(batch) for batch in Sets.stream([whole[:3], whole], batch_sets=4)] == [4, 4, 4, 1]
    for bad in ({"batch_sets": 0}, {"batch_points": 2.5}):
        with pytest.raises(ValueError, match="must be a whole number"):
            Sets.stream([], **bad)
    with pytest.raises(ValueError, match="iterable"):
        Sets.stream(None)
