"""The calibration: a bound that holds, a monotone search, and what is kept for how long."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from slosh.search.calibration import (
    Calibration,
    Setting,
    Trial,
    expected_bound,
    first_that_holds,
    lower_bound,
    lower_bounds,
    provable,
    sample_positions,
    settle,
    which_found,
)


def test_lower_bound():
    """Of many samples of a known mean, about one in twenty has a bound above it, or fewer."""
    rng = np.random.default_rng(8)
    samples = rng.binomial(10, 0.95, (2000, 300)) / 10
    above = np.mean([lower_bound(sample) > 0.95 for sample in samples])
    assert above < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert lower_bound(np.ones(500)) < 1


def test_lower_bounds_of_columns():
    table = np.random.default_rng(1).binomial(10, 0.9, (50, 4)) / 10
    assert lower_bounds(table).tolist() == pytest.approx([lower_bound(column) for column in table.T])
    one = np.append(table[:, 0], 0.0)
    spread = one.std(ddof=1) / np.sqrt(51)
    assert lower_bound(table[:, 0]) == pytest.approx(one.mean() - 1.67590 * spread, abs=1e-5)  # t of 50 degrees


def test_what_a_part_expects_of_the_others():
    """The bound of the others is at least what was expected, about as often as was asked for."""
    rng, held = np.random.default_rng(2), []
    for _ in range(1000):
        some, others = (rng.binomial(10, 0.95, n) / 10 for n in (200, 600))
        held.append(lower_bound(others) >= expected_bound(some, 600))
    assert 0.75 < np.mean(held) < 0.85


def test_which_neighbours_are_found():
    found = which_found(np.array([[1, 2, -1], [4, 3, 2]]), np.array([[2, 3, 1], [0, 2, 4]]))
    assert found.tolist() == [[True, False, True], [False, True, True]]


def test_the_first_that_holds():
    for n in range(5):
        for first in range(n + 1):
            assert first_that_holds(n, lambda i, first=first: i >= first) == first
            for guess in range(-1, n + 2):
                assert first_that_holds(n, lambda i, first=first: i >= first, guess) == first


class Ranks(Trial):
    """A search that finds the neighbours of the lowest rank first."""

    def __init__(self, ranks):
        super().__init__(len(ranks))
        self.ranks, self.asked = ranks, []

    def choose(self, k, recall, enough, tried):
        depths = range(tried.depth + 1, 200)
        at = first_that_holds(len(depths), lambda i: enough(self.ranks[self.choosing, :k] < depths[i]))
        return None if at == len(depths) else Setting(0.5, depths[at], 7.0)

    def found(self, setting, k, recall):
        self.asked.append(setting.depth)
        return self.ranks[self.measuring, :k] < setting.depth


def geometric(seed, n=800, k=10):
    return np.sort(np.random.default_rng(seed).geometric(0.1, (n, k)) - 1, axis=1)


def test_the_recall_is_stated_by_queries_that_did_not_choose():
    trial = Ranks(geometric(0))
    found = settle(trial, 10, 0.9, 5000)
    told = np.mean(trial.ranks[trial.measuring] < found.depth, axis=1)
    assert (found.k, found.recall, found.reach, found.n_queries, found.n_rows) == (10, 0.9, 0.5, 600, 5000)
    assert found.measured == pytest.approx(told.mean())
    assert found.promised == pytest.approx(lower_bound(told))
    assert found.promised >= 0.9
    assert found.smallest == 1  # nearer neighbours have lower ranks here
    assert not set(np.flatnonzero(trial.choosing)) & set(np.flatnonzero(trial.measuring))


def test_a_choice_that_the_others_do_not_confirm_is_not_taken():
    ranks = geometric(0)
    trial = Ranks(ranks)
    ranks[trial.choosing] = 0  # these alone would take the least
    found = settle(trial, 10, 0.9, 5000)
    assert trial.asked == [1, 2, 3]  # each one deeper than the one before
    assert found.exact
    few = Ranks(geometric(3, 40))
    assert not provable(0.99, few.n_measuring)
    assert settle(few, 10, 0.99, 5000).exact
    assert few.asked == []


def test_fewer_neighbours_that_are_harder_to_find_are_not_covered():
    ranks = np.zeros((800, 10), np.int64)
    ranks[::5, 0] = 1000  # the nearest is missed by every fifth query
    found = settle(Ranks(ranks), 10, 0.9, 5000)
    assert found.promised >= 0.9
    assert found.smallest == 3  # of three, .933 are found; of two, .9, which has a lower bound
    assert [found.covers(k, 0.9) for k in (1, 2, 3, 10, 11)] == [False, False, True, True, False]


def test_promises_hold_on_fresh_queries_over_many_seeds():
    """At most one promise in twenty may exceed the recall that fresh queries find; with what chance allows."""
    n_seeds, broken = 400, 0
    fresh = geometric(10**6, 200_000)
    for seed in range(n_seeds):
        found = settle(Ranks(geometric(seed, 400)), 10, 0.9, 5000)
        broken += not found.exact and found.promised > np.mean(fresh < found.depth)
    assert broken <= n_seeds * 0.05 + 3 * np.sqrt(n_seeds * 0.05 * 0.95)


class RanksWalkedDown(Ranks):
    """The same, which also offers every depth below the one that was chosen."""

    def cheaper(self, setting):
        return (setting._replace(depth=depth) for depth in range(setting.depth - 1, 0, -1))


def test_a_cheaper_setting_is_taken_while_the_others_confirm_it():
    trial, plain = RanksWalkedDown(geometric(0)), Ranks(geometric(0))
    found, chosen = settle(trial, 10, 0.9, 5000), settle(plain, 10, 0.9, 5000)
    assert found.depth < chosen.depth
    assert trial.asked == list(range(chosen.depth, found.depth - 2, -1))  # the last one had not enough
    bounds = [lower_bound(np.mean(trial.ranks[trial.measuring] < found.depth - i, axis=1)) for i in (0, 1)]
    assert bounds[0] >= 0.9 > bounds[1]
    assert found.promised == 0.9  # what was chosen by the same queries states no more than was asked for
    assert found.measured == pytest.approx(np.mean(trial.ranks[trial.measuring] < found.depth))


def test_promises_hold_on_fresh_queries_over_many_seeds_if_settings_are_made_cheaper():
    n_seeds, broken = 400, 0
    fresh = geometric(10**6, 200_000)
    for seed in range(n_seeds):
        found = settle(RanksWalkedDown(geometric(seed, 400)), 10, 0.9, 5000)
        broken += not found.exact and found.promised > np.mean(fresh < found.depth)
    assert broken <= n_seeds * 0.05 + 3 * np.sqrt(n_seeds * 0.05 * 0.95)


def test_fewer_neighbours_are_covered_if_they_were_on_the_whole_way_to_a_cheaper_setting():
    class FirstMissed(RanksWalkedDown):
        """The nearest is missed by every fifth query, but for the settings below three quarters of the first one."""

        def found(self, setting, k, recall):
            hits = super().found(setting, k, recall)
            if setting.depth > 0.75 * self.asked[0]:
                hits[::5, 0] = False
            return hits

    ranks = np.zeros((800, 10), np.int64)
    ranks[:, 9] = np.arange(800) % 40  # of which not many need to be found
    trial = FirstMissed(ranks)
    trial.choose = lambda *_: Setting(0.5, 20, 7.0)
    found = settle(trial, 10, 0.9, 5000)
    assert found.depth < 15
    assert found.smallest == 3  # as on the way, where the nearest was missed


def test_a_sample_shows_no_more_than_it_can():
    assert provable(0.99, 900)
    assert not provable(0.99, 200)
    assert not provable(1.0, 10**6)
    alive = np.random.default_rng(1).random(20_000) < 0.5
    sizes = [len(sample_positions(alive, recall, 0)) for recall in (0.5, 0.99, 0.998, 1.0)]
    assert sizes == [667, 667, 2667, 5333]
    sample = sample_positions(alive, 0.9, 3)
    assert alive[sample].all()
    assert np.all(np.diff(sample) > 0)
    assert np.array_equal(sample, sample_positions(alive, 0.9, 3))
    assert sample_positions(alive[:9], 0.9, 3).tolist() == np.flatnonzero(alive[:9]).tolist()


def calibration(**changes):
    about = {"k": 10, "recall": 0.9, "reach": 1.5, "depth": 40, "measured": 0.93, "promised": 0.91}
    return Calibration(**{**about, "n_queries": 500, "n_rows": 1000, "smallest": 4, **changes})


def test_a_calibration_holds_until_the_collection_has_doubled_or_halved():
    one = replace(calibration(), n_added=1200)
    assert [one.holds(n, 1200) for n in (499, 500, 1000)] == [False, True, True]
    assert [one.holds(n, 200 + n) for n in (2000, 2001)] == [True, False]
    assert [one.holds(1000, 1200 + n) for n in (1000, 1001)] == [True, False], "as many were removed as added"
    assert [one.covers(k, 0.9) for k in (3, 4, 10, 11)] == [False, True, True, False]
    assert [one.covers(10, recall) for recall in (0.5, 0.9, 0.91)] == [True, True, False]
    assert (one.promise(10), one.promise(5)) == (0.91, 0.9)
    assert Calibration.exact_search(10, 0.9, 500, 1000).exact
    assert not one.exact


@pytest.mark.parametrize(
    "change",
    [
        {"k": 0},
        {"k": 1.5},
        {"depth": -1},
        {"recall": "x"},
        {"promised": float("nan")},
        {"reach": None},
        {"more": 1},
        {"nearest_within": ""},
        {"nearest_within": float("inf")},
    ],
)
def test_one_form_for_json(change):
    about = calibration().as_dict()
    assert Calibration.from_dict(json.loads(json.dumps(about))) == calibration()
    older = {name: value for name, value in about.items() if name != "nearest_within"}
    assert Calibration.from_dict(older).nearest_within is None
    assert Calibration.from_dict({**about, "nearest_within": 0.5}).nearest_within == 0.5
    with pytest.raises((ValueError, TypeError)):
        Calibration.from_dict({**about, **change})
