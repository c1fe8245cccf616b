"""Lists of prefixes: every row is in one, and lists that were made before do not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh.native import scan
from slosh.search.lists import Lists


def lanes(masks):
    """Masks of blocks as (n, 16) bool."""
    return (masks[:, None] >> np.arange(16)) & 1 == 1


def described(lists, mask):
    """All that can be seen of lists, as values that can be compared."""
    there = lanes(lists.masks)
    return [
        *(getattr(lists, name).tolist() for name in ("radii", "errors", "steps", "counts", "masks", "order", "start")),
        lists.slots[there].tolist(),
        lists.biases[there].tolist(),
        lists.codes.transpose(0, 2, 1, 3)[there].tolist(),
        lists.place.tolist(),
    ]


def decoded(lists, block, lane):
    """What the code of a row says, number by number, in the arithmetic of the formula."""
    one = lists.list_of_block[block]
    codes = lists.codes[block, :, lane].reshape(-1)[: lists.centres.shape[1]].astype(float)
    return lists.centres[one].astype(float) + float(lists.steps[one]) * (codes - 128)


def steps(n_lists, step=0.03):
    return np.full(n_lists, step, np.float32)


@settings(max_examples=40)
@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=6), n_lists=st.integers(1, 9), seed=st.integers(0, 99))
def test_lists_hold_every_row_once(counts, n_lists, seed):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_lists, 3)).astype(np.float32)
    lists, rows, kept = Lists(centres, steps(n_lists)), np.empty((0, 3), np.float32), []
    everything = rng.random(sum(counts)) < 0.5
    for n in counts:
        part = rng.normal(size=(n, 3)).astype(np.float32)
        lists.append(part[::-1] + 1)  # abandoned: the next writes over it
        kept.append((lists, described(lists, everything)))
        lists = lists.append(part)
        rows = np.concatenate([rows, part])
    gone = rng.permutation(len(rows))[: len(rows) // 3]
    kept.append((lists, described(lists, everything)))
    lists = lists.remove(gone)
    for before, seen in kept:
        assert described(before, everything) == seen
    alive = np.ones(len(rows), bool)
    alive[gone] = False
    assert sorted(lists.slots[lanes(lists.masks)].tolist()) == np.flatnonzero(alive).tolist()
    which = np.square(rows[:, None].astype(float) - centres).sum(axis=2).argmin(axis=1)
    for list_ in range(n_lists):
        for block in lists.order[lists.start[list_] : lists.start[list_ + 1]]:
            for lane in np.flatnonzero(lanes(lists.masks)[block]):
                position = lists.slots[block, lane]
                assert which[position] == list_
                said = decoded(lists, block, lane)
                assert np.linalg.norm(said - rows[position]) <= lists.errors[list_]
                x, centre = said - centres[list_], centres[list_] - centres.mean(axis=0, dtype=float)
                assert lists.biases[block, lane] == pytest.approx(x @ x + 2 * centre @ x, rel=1e-4, abs=1e-5)
                assert np.linalg.norm(x[scan.early_numbers(3) :]) <= lists.rests[block]
                if np.abs(rows[position] - centres[list_]).max() < 127 * 0.03:
                    assert np.abs(said - rows[position]).max() <= 0.5001 * 0.03, "rounded, not cut off"
                assert np.linalg.norm(rows[position] - centres[list_]) <= lists.radii[list_]
    assert lists.holds(np.arange(len(rows)), rows, alive).all()
    assert not lists.holds(np.arange(len(rows)), rows, ~alive).any()
    assert not lists.holds(np.arange(len(rows)), rows + 1, alive).any()


def test_lists_are_there_again():
    rng = np.random.default_rng(0)
    lists = Lists(rng.normal(size=(5, 3)).astype(np.float32), steps(5))
    lists = lists.append(rng.normal(size=(100, 3)).astype(np.float32)).settle().remove(np.arange(0, 100, 7))
    again = Lists.from_arrays(lists.arrays(), 3)
    mask = rng.random(100) < 0.5
    assert described(again, mask) == described(lists, mask)
    more = rng.normal(size=(40, 3)).astype(np.float32)
    mask = rng.random(140) < 0.5
    assert described(again.append(more), mask) == described(lists.append(more), mask)


@pytest.mark.parametrize("numbers", [3, 40])
def test_radii_of_settled_lists_are_those_of_the_rows_that_are_there(numbers):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(300, numbers)).astype(np.float32)
    rows[::10] *= 5
    lists = Lists(rng.normal(size=(4, numbers)).astype(np.float32), steps(4, 0.2)).append(rows)
    gone = np.arange(0, 300, 10)
    settled = lists.remove(gone).settle()
    kept = np.setdiff1d(np.arange(300), gone)
    which, far = lists.nearest(rows[kept])
    largest = np.zeros(4)
    np.maximum.at(largest, which, far)
    assert (settled.radii >= largest * (1 - 1e-5)).all()
    assert (settled.radii <= largest + 2.01 * lists.errors + 1e-4).all(), "as near as codes can tell"
    assert (settled.radii < lists.radii).all()


def test_settled_lists_keep_bounds_whatever_is_said_of_the_radii():
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(300, 5)).astype(np.float32)
    lists = Lists(rng.normal(size=(4, 5)).astype(np.float32), steps(4)).append(rows)
    settled = lists.settle(lists.radii / 2)
    assert np.array_equal(settled.radii, lists.radii)
    assert np.array_equal(settled.first_radii, lists.radii / 2)


def test_packed_lists_hold_the_same():
    rng = np.random.default_rng(5)
    lists = Lists(rng.normal(size=(7, 6)).astype(np.float32), steps(7))
    for n in (40, 100, 3, 200):
        lists = lists.append(rng.normal(size=(n, 6)).astype(np.float32))
    lists = lists.settle().remove(np.arange(0, 300, 11))
    packed = lists.packed()
    assert packed.order.tolist() == list(range(len(lists.masks)))
    assert (np.diff(packed.list_of_block) >= 0).all()
    there, before = lanes(packed.masks), lanes(lists.masks)
    assert sorted(packed.slots[there].tolist()) == sorted(lists.slots[before].tolist())
    for position in range(lists.n):
        old, new = (divmod(int(each.place[position]), 16) for each in (lists, packed))
        assert np.array_equal(decoded(lists, *old), decoded(packed, *new))
        assert packed.list_of_block[new[0]] == lists.list_of_block[old[0]]
    more = rng.normal(size=(50, 6)).astype(np.float32)
    assert packed.append(more).counts.tolist() == lists.append(more).counts.tolist()


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("slots", (0, 0), 10**6),
        ("slots", (0, 0), -1),
        ("list", 0, 77),
        ("list", 0, -3),
        ("place", 5, 10**9),
        ("place", 5, -1),
        ("counts", 0, 10**6),
        ("masks", -1, 65535),
    ],
)
def test_numbers_that_would_read_outside_are_refused(name, at, value):
    """The kernel trusts the lists: what a file says of them is checked."""
    rng = np.random.default_rng(1)
    lists = Lists(rng.normal(size=(3, 3)).astype(np.float32), steps(3))
    lists = lists.append(rng.normal(size=(100, 3)).astype(np.float32)).settle()
    arrays = {key: np.array(array) for key, array in lists.arrays().items()}
    arrays[name][at] = value
    with pytest.raises(ValueError, match="do not fit together"):
        Lists.from_arrays(arrays, 3)
    with pytest.raises(ValueError, match="centres"):
        Lists.from_arrays(lists.arrays(), 4)
    with pytest.raises(ValueError, match="of the lists are"):
        Lists.from_arrays({**lists.arrays(), "radii": lists.radii[:2]}, 3)


def settled(rng, n_lists=6, n=200):
    """Lists around the origin, as training leaves them."""
    centres = rng.normal(size=(n_lists, 3)).astype(np.float32)
    return Lists(centres, steps(n_lists)).append(rng.normal(size=(n, 3)).astype(np.float32)).settle()


def filed_in(lists):
    """The list of each position."""
    return lists.list_of_block[lists.place // 16]


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 150), max_size=5), far=st.sampled_from([0.0, 3.0, 30.0]), seed=st.integers(0, 99))
def test_rows_outside_of_all_lists_found_lists_of_their_own(cuts, far, seed):
    rng = np.random.default_rng(seed)
    before = settled(rng)
    rows = (rng.normal(size=(150, 3)) + far * rng.integers(0, 2, size=(150, 1))).astype(np.float32)
    lists = before
    for part in np.split(rows, sorted(cuts)):
        lists = lists.append(part)
    usual = np.median(before.radii[before.radii > 0])
    assert (lists.radii[:6] <= np.maximum(1.2 * before.radii, usual)).all(), "rows far away stretch no list"
    centres, since, limits = [*before.centres.astype(float)], [0] * 6, [*np.maximum(1.2 * before.radii, usual)]
    expected = []
    for position, row in enumerate(rows.astype(float), start=200):  # one after the other, however they were added
        distances = np.linalg.norm(np.array(centres) - row, axis=1) * (1 + 1e-5)
        if distances.min() > limits[distances.argmin()] and len(centres) < 5 * 6:
            centres, since, limits = [*centres, row], [*since, position], [*limits, usual]
            distances = np.append(distances, 0.0)
        expected.append(distances.argmin())
    assert np.allclose(lists.centres, centres)
    assert lists.since.tolist() == since
    assert filed_in(lists)[200:].tolist() == expected
    grown = np.append(lists.radii[:6] > 1.2 * before.radii, np.ones(len(centres) - 6, bool))
    assert lists.n_outside == grown[filed_in(lists)].sum()
    assert lists.holds(np.arange(200, 350), rows, np.ones(150, bool)).all()
    again = Lists.from_arrays(lists.arrays(), 3)
    more, mask = (far + rng.normal(size=(40, 3))).astype(np.float32), rng.random(390) < 0.5
    assert described(again.append(more), mask) == described(lists.append(more), mask)


def test_no_more_lists_are_founded_than_are_of_use():
    rng = np.random.default_rng(3)
    lists = settled(rng, n_lists=2)
    scattered = (1000 * rng.normal(size=(500, 3))).astype(np.float32)
    lists = lists.append(scattered[:300]).append(scattered[300:])
    assert len(lists.radii) == 2 * 5
    assert sorted(lists.slots[lanes(lists.masks)].tolist()) == list(range(700))
    away = np.linalg.norm(scattered - lists.centres[filed_in(lists)[200:]], axis=1)
    assert (away <= lists.radii[filed_in(lists)[200:]]).all()
