"""The calibration: a bound that holds, a monotone search, and what is kept for how long."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from slosh.search.calibration import (
    Calibration,
    Calibrations,
    first_that_holds,
    found_part,
    lower_bound,
    measured_depth,
    provable,
    sample_positions,
)


def test_lower_bound():
    """Of many samples of a known mean, about one in twenty has a bound above it, or fewer."""
    rng = np.random.default_rng(8)
    samples = rng.binomial(10, 0.95, (2000, 300)) / 10
    above = np.mean([lower_bound(sample) > 0.95 for sample in samples])
    assert above < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert lower_bound(np.ones(500)) < 1


def test_found_part():
    assert found_part(np.array([[1, 2, -1]]), np.array([[2, 3, 1]]))[0] == pytest.approx(2 / 3)


def test_the_first_that_holds():
    for n in range(5):
        for first in range(n + 1):
            assert first_that_holds(n, lambda i, first=first: i >= first) == first


def test_the_least_depth_whose_bound_reaches_the_recall():
    ranks = np.random.default_rng(0).geometric(0.1, (600, 10)) - 1
    depth, mean, bound = measured_depth(range(1, 200), lambda d: np.mean(ranks < d, axis=1), 0.9)
    assert mean == np.mean(ranks < depth)
    assert bound >= 0.9 > lower_bound(np.mean(ranks < depth - 1, axis=1))
    assert measured_depth(range(1, 4), lambda d: np.mean(ranks < d, axis=1), 0.9) is None


def test_a_sample_shows_no_more_than_it_can():
    assert provable(0.99, 900)
    assert not provable(0.99, 200)
    assert not provable(1.0, 10**6)
    alive = np.random.default_rng(1).random(20_000) < 0.5
    sizes = [len(sample_positions(alive, recall, 0)) for recall in (0.5, 0.99, 0.998, 1.0)]
    assert sizes == [500, 500, 1999, 4000]
    sample = sample_positions(alive, 0.9, 3)
    assert alive[sample].all()
    assert np.all(np.diff(sample) > 0)
    assert np.array_equal(sample, sample_positions(alive, 0.9, 3))
    assert sample_positions(alive[:9], 0.9, 3).tolist() == np.flatnonzero(alive[:9]).tolist()


def calibration(**changes):
    about = {"k": 10, "recall": 0.9, "reach": 1.5, "depth": 40, "measured": 0.93, "promised": 0.91}
    return Calibration(**{**about, "n_queries": 500, "n_rows": 1000, "smallest": 4, **changes})


def test_a_calibration_holds_until_the_collection_has_doubled_or_halved():
    one = calibration()
    assert [one.holds(n) for n in (499, 500, 1000, 2000, 2001)] == [False, True, True, True, False]
    assert [one.covers(k, 0.9, 1000) for k in (3, 4, 10, 11)] == [False, True, True, False]
    assert not one.covers(10, 0.8, 1000)
    assert Calibration.exact_search(10, 0.9, 500, 1000).exact
    assert not one.exact


@pytest.mark.parametrize(
    "change",
    [{"k": 0}, {"k": 1.5}, {"depth": -1}, {"recall": "x"}, {"promised": float("nan")}, {"reach": None}, {"more": 1}],
)
def test_one_form_for_json(change):
    about = calibration().as_dict()
    assert Calibration.from_dict(json.loads(json.dumps(about))) == calibration()
    with pytest.raises((ValueError, TypeError)):
        Calibration.from_dict({**about, **change})


def test_what_is_measured_is_measured_once_for_all_threads():
    known, calls, begin = Calibrations(), [], threading.Barrier(8)

    def measure():
        calls.append(1)
        return calibration()

    def ask():
        begin.wait()
        known.get(10, 0.9, 1000, measure)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == known.version == 1
    assert known.covering(5, 0.9, 1500, 1500) == calibration()
    assert known.covering(5, 0.9, 1500, 9) is None
    assert known.get(10, 0.9, 5000, measure) == calibration()
    assert len(calls) == 2  # it no longer held
    assert Calibrations(known.as_dicts()).all() == known.all() == [calibration()]
