"""Query-directed probing: the best buckets first, and how often they hold a row at a distance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh.hash import PStableHash, probing
from slosh.search.buckets import Buckets


def every_bucket(positions, p):
    """(score, table, moves) of all buckets that can be reached, but for the query's own, in order: brute force."""
    found = []
    for table, line in enumerate(positions):
        place = line - np.floor(line)
        home = -probing.log_stays(place, probing.SPREAD, p).sum()
        for moves in itertools.product((-1, 0, 1), repeat=len(line)):
            away = [x if move < 0 else 1 - x for x, move in zip(place, moves, strict=True) if move]
            if away:
                score = home + probing.crossing(np.array(away), probing.SPREAD, p).sum()
                found.append((float(score), table, moves))
    return sorted(found)


def unfolded(moves, k):
    out = [0] * k
    for move in moves.tolist():
        if move:
            assert out[abs(move) - 1] == 0  # one border of a cell only
            out[abs(move) - 1] = 1 if move > 0 else -1
    return tuple(out)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 40), st.sampled_from([1, 2]), st.integers(0, 1000))
@settings(max_examples=60)
def test_probes_are_the_best_of_all_buckets(k, T, extra, p, seed):
    positions = np.random.RandomState(seed).uniform(-3, 3, size=(3, T, k))
    found = probing.probes(positions, T + extra, p)
    for i, line in enumerate(positions):
        assert sorted(found.tables[i, :T].tolist()) == list(range(T))
        assert not found.moves[i, :T].any()
        truth = every_bucket(line, p)
        scores = {(table, moves): score for score, table, moves in truth}
        got = [(int(t), unfolded(m, k)) for t, m in zip(found.tables[i, T:], found.moves[i, T:], strict=True)]
        assert len(set(got)) == len(got) == min(extra, len(truth))
        got_scores = np.array([scores[bucket] for bucket in got])
        # places in a cell are told apart to 1 / 4096, scores to 1 / 1024
        np.testing.assert_allclose(got_scores, [score for score, _, _ in truth[: len(got)]], atol=0.1)


def test_the_order_is_that_of_the_probabilities():
    positions = np.random.RandomState(0).uniform(size=(50, 6, 10))
    found = probing.probes(positions, 60)
    chance = probing.bucket_probabilities(positions, found, np.array([probing.SPREAD]))[0]
    assert np.all(np.diff(np.log(chance[:, 6:]), axis=1) < 0.05)
    # which squared distances to the borders, the score of the paper that had the idea, is only about
    place = positions % 1
    moved = np.take_along_axis(place[:, :, :], found.tables[:, :, None], axis=1)
    squares = np.zeros(chance.shape)
    for column in range(found.moves.shape[2]):
        move = found.moves[:, :, column]
        x = np.take_along_axis(moved, np.maximum(np.abs(move) - 1, 0)[:, :, None], axis=2)[:, :, 0]
        squares += np.where(move < 0, x, np.where(move > 0, 1 - x, 0)) ** 2
    inside = [
        np.corrcoef(squares[i, 6:][found.tables[i, 6:] == t], -np.log(chance[i, 6:][found.tables[i, 6:] == t]))[0, 1]
        for i in range(50)
        for t in range(6)
        if np.sum(found.tables[i, 6:] == t) > 5
    ]
    assert np.mean(inside) > 0.9


def test_a_query_has_the_same_probes_in_any_batch():
    positions = np.random.RandomState(1).uniform(size=(200, 7, 11))
    together = probing.probes(positions, 90)
    for i in (0, 77, 199):
        alone = probing.probes(positions[i : i + 1], 90)
        assert np.array_equal(alone.tables[0], together.tables[i])
        assert np.array_equal(alone.moves[0], together.moves[i])
    many, few = probing.probes(positions[:, :1], 200).moves[:, :20], probing.probes(positions[:, :1], 20).moves
    assert np.array_equal(many[:, :, : few.shape[2]], few)
    assert not many[:, :, few.shape[2] :].any()


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("T", "k", "n_probes"), [(4, 6, 4), (4, 6, 20), (1, 3, 9), (8, 10, 64)])
def test_predicted_hit_rates_are_those_of_pairs_at_that_distance(p, T, k, n_probes):
    """Simulation: positions of pairs at a distance, looked up by the keys that a search uses."""
    n, rng = 4000, np.random.RandomState(5)
    draw = rng.standard_normal if p == 2 else rng.standard_cauchy
    ratios = np.array([0.1, 0.3, 0.6])
    predicted, error = probing.success(T, k, n_probes, ratios, p)
    buckets = Buckets(T, k)
    for ratio, rate, spread in zip(ratios, predicted, error, strict=True):
        places = rng.uniform(-50, 50, size=(n, T, k))
        others = places + ratio * draw(places.shape)
        found = probing.probes(places, n_probes, p)
        keys = buckets.probe_keys(np.floor(places), found)
        theirs = buckets.keys(buckets.sums(np.floor(others)), np.arange(T))
        hits = (keys == np.take_along_axis(theirs, found.tables, axis=1)).any(axis=1)
        assert abs(hits.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / n + spread**2) + 1e-4
    if n_probes == T:
        closed = PStableHash(1.0, k, T, p).success_probability(ratios)
        np.testing.assert_allclose(predicted, closed, atol=5 * error.max() + 1e-4)
