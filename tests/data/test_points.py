"""An item of a Sets: an array for NumPy, and the same set as a slice of one for everything that takes sets."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import slosh
from builders import clouds, make_index, plain_answer
from comparing import raises, same, utm
from slosh import Sets, rank
from slosh.data.points import SetPoints
from slosh.data.sets import as_sets
from slosh.embed import SlicedWasserstein


@pytest.fixture
def far():
    """Six sets on a map, weighted, less their origin."""
    rng = np.random.default_rng(1)
    return Sets.from_list([utm(9 + i, i) for i in range(6)], [rng.random(9 + i) for i in range(6)], origin="auto")


def test_an_item_has_its_weights_and_its_origin(sets, far):
    assert isinstance(sets[2], SetPoints)
    assert sets[2].weights.tolist() == [5, 6, 7, 8]
    assert sets[2].origin is None
    assert far[-1].origin is far.origin
    assert [x.weights.tolist() for x in sets] == [sets.weights_of(i).tolist() for i in range(4)]
    assert np.shares_memory(sets[2], sets.points)
    assert np.shares_memory(sets[2].weights, sets.weights)
    assert type(Sets(sets.points, sets.offsets)[2]) is np.ndarray
    assert type(next(iter(Sets(sets.points, sets.offsets)))) is np.ndarray


def test_numpy_takes_an_item_as_an_array(sets):
    item, plain = sets[2], sets.points[4:8]
    computed = [
        (item + 1, plain + 1),
        (1 - item, 1 - plain),
        (item[:, 1:], plain[:, 1:]),
        (item[1:, :1], plain[1:, :1]),
        (item[:, [1, 0]], plain[:, [1, 0]]),
        (item[None], plain[None]),
        (item[item > 0], plain[plain > 0]),
        (item[[[0, 1]]], plain[[[0, 1]]]),
        (item[:, 0], plain[:, 0]),
        (item[1], plain[1]),
        (item.mean(axis=0), plain.mean(axis=0)),
        (np.asarray(item), plain),
        (np.array(item), plain),
        (item.astype(int), plain.astype(int)),
        (item.astype(float, subok=False), plain.astype(float)),
        (np.concatenate([item, item]), np.concatenate([plain, plain])),
        (np.add.reduce(item), np.add.reduce(plain)),
        (item @ np.eye(2, dtype=np.float32), plain),
        (next(iter(item)), plain[0]),
    ]
    for found, expected in computed:
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, expected)
    assert type(item[0, 0]) is np.float32
    assert item.shape == (4, 2)
    assert len(item) == 4
    assert item.tolist() == plain.tolist()
    assert repr(item) == repr(plain)
    out = np.zeros((4, 2), np.float32)
    assert np.multiply(item, 2, out=out) is out
    moved = Sets(sets.points.copy(), sets.offsets, sets.weights)[2]
    moved += 1  # in place, as ever
    np.testing.assert_array_equal(moved, plain + 1)


def test_what_is_computed_has_no_weights(sets):
    """An order, a choice or a sum of elements has other weights, and NumPy would not say so."""
    item = sets[2]
    others = np.sort(item, axis=0), np.roll(item, 1, axis=0), item.take([0, 0, 1, 1], axis=0), item.T
    for other in others:
        assert getattr(other, "weights", None) is None
        assert Sets.from_list([other]).weights is None


def test_a_copy_of_an_item_is_the_same_set(far):
    item = far[1]
    copies = copy.copy(item), copy.deepcopy(item), pickle.loads(pickle.dumps(item)), item.copy(), item.copy(order="F")
    for other in (*copies, item.astype(np.float32), item.astype(float), item[:].copy()):
        assert not np.shares_memory(other, far.points)
        np.testing.assert_array_equal(other, far[1])
        np.testing.assert_array_equal(other.weights, far.weights_of(1))
        np.testing.assert_array_equal(other.origin, far.origin)


def test_rows_of_an_item_keep_their_weights_and_the_origin(far):
    """Oracle: the same rows of the two arrays."""
    item, points, weights = far[3], np.asarray(far[3]), far.weights_of(3)
    mask = np.arange(12) % 3 > 0
    for rows in (
        slice(None),
        slice(2, 9),
        slice(None, None, -2),
        [5, 1, 5],
        np.array([-1, 0]),
        mask,
        mask.tolist(),
        ...,
    ):
        for found in (item[rows], item[rows, ...], item[rows, :]) if rows is not ... else (item[...], item[..., :]):
            np.testing.assert_array_equal(np.asarray(found), points[rows])
            np.testing.assert_array_equal(found.weights, weights[rows])
            assert found.origin is far.origin
            same(Sets.from_list([found]), [points[rows]], [weights[rows]])
    assert np.shares_memory(item[2:4], far.points)
    bare = Sets(far.points, far.offsets).with_origin(far.origin)[3][1:]
    assert bare.weights is None
    np.testing.assert_array_equal(bare.origin, far.origin)


def test_parts_and_copies_of_items_are_checked(far):
    """They may be empty, without weight or written to, which an item is not."""
    counted = Sets(far.points, far.offsets, np.arange(len(far.points))).with_origin(far.origin)
    changed = far[3].copy()
    changed[2, 1] = np.nan
    for bad, said in (
        (far[3][:0], "set 1 is empty"),
        (changed, "set 1, element 2, feature 1 is nan"),
        (counted[0][:1], "set 1 has weights that are all zero"),
    ):
        for read in (Sets.from_list, lambda items: list(Sets.stream(items))):
            with raises(said):
                read([far[0], bad])


def test_a_copy_or_all_rows_of_an_item_find_their_own_set(far):
    """Neither are the weights lost nor is the origin subtracted twice."""
    index = make_index(origin=far.origin)
    index.add(far)
    for i, item in enumerate(far):
        for asked in (item.copy(), item[:], item.astype(float), item[::-1], [item.copy()]):
            hits = index.search(asked, 1)
            found = hits[0] if isinstance(asked, list) else hits
            assert (found.ids, found.distances.tolist()) == ([str(i)], [pytest.approx(0, abs=1e-6)])


def test_collections_of_items(sets, far):
    weights = [sets.weights_of(i) for i in (2, 0)]
    for made in (
        Sets.from_list([sets[2], sets[0]]),
        Sets.from_list(sets[i] for i in (2, 0)),
        as_sets((sets[2], sets[0])),
        next(Sets.stream(iter([sets[2], sets[0]]))),
        next(Sets.stream([sets[2], sets[:1]])),
    ):
        same(made, [sets.points[4:8], sets.points[:3]], weights)
    same(Sets.from_list([sets[1]], [[3.0]]), [sets.points[3:4]], [[3.0]])
    same(
        Sets.from_list([sets.points[:1], sets[1]], [[2.0], [3.0]]), [sets.points[:1], sets.points[3:4]], [[2.0], [3.0]]
    )
    assert Sets.from_list([far[0]], [np.ones(9)]).origin is far.origin
    for made in (Sets.from_list(list(far)), Sets.from_list(list(far), origin=far.origin), next(Sets.stream(iter(far)))):
        np.testing.assert_array_equal(made.points, far.points)  # the origin is not subtracted again
        np.testing.assert_array_equal(made.weights, far.weights)
        np.testing.assert_array_equal(made.origin, far.origin)


def test_items_beside_arrays(sets, far):
    ones = [sets.weights_of(0), np.ones(2), sets.weights_of(2)]
    same(
        Sets.from_list([sets[0], sets.points[1:3], sets[2]]),
        [sets.points[:3], sets.points[1:3], sets.points[4:8]],
        ones,
    )
    same(
        Sets.from_list([sets.points[:2], sets[1]]),
        [sets.points[:2], sets.points[3:4]],
        [np.ones(2), sets.weights_of(1)],
    )
    by_origin = Sets(far.points, far.offsets).with_origin(far.origin)
    both = Sets.from_list([far[0], by_origin[1]])
    same(both, [far.points[:9], far.points[9:19]], [far.weights_of(0), np.ones(10)])
    np.testing.assert_array_equal(both.origin, far.origin)
    with raises("set 1 has no weights"):
        list(Sets.stream(iter([sets[0], sets.points[:3]])))
    bare = Sets(far.points, far.offsets).with_origin(far.origin)
    mixed = Sets.from_list([bare[0], utm(10, 1)])  # an array has its coordinates on the map
    np.testing.assert_array_equal(mixed.points, far.points[:19])
    with raises("origin"):
        Sets.from_list([far[0]], origin=far.origin + 1)
    with raises("set 2 has 1 feature, expected 2"):
        Sets.from_list([sets[0], sets[1], Sets([[1.0]], [0, 1], [1.0])[0]])


def test_one_item_is_the_set_that_a_slice_of_one_is(far):
    """For every function that takes one set."""
    index = make_index(origin=far.origin)
    index.add(far)
    for options in ({}, {"certify": True}, {"rerank": "hausdorff"}, {"rerank": "sliced"}):
        one, other = index.search(far[3], 4, **options), index.search(far[3:4], 4, **options)
        assert plain_answer(one) == plain_answer(other[0])
        assert one.ids[0] == "3"
    index.update("2", far[4])
    np.testing.assert_array_equal(index.get("2").weights, far.weights_of(4))
    assert index.explain(far[1], "3").distance == index.explain(far[1:2], "3").distance
    x, y = far[0], far[5]
    assert slosh.distance(x, y) == slosh.distance(far[:1], far[5:])
    assert rank.chamfer(x, list(far)).tolist() == rank.chamfer(far[:1], far).tolist()
    assert rank.match(x, y).mass.tolist() == rank.match(far[:1], far[5:]).mass.tolist()
    models = [SlicedWasserstein(4, reference=given).fit(far) for given in (x, far[:1])]
    assert np.array_equal(models[0].reference_, models[1].reference_)


def test_weights_are_seen_in_a_search():
    """The mass of a set lies at one of two points, and the query that says so finds it."""
    points = np.array([[0.0, 0.0], [1.0, 0.0]])
    sets = Sets.from_list([points, points], [[1, 9], [9, 1]])
    index = make_index()
    index.add(sets)
    for i, item in enumerate(sets):
        hits = index.search(item, 1)
        assert (hits.ids, hits.distances.tolist()) == ([str(i)], [0.0])
    assert index.search(clouds([3])[0], 1).ids
