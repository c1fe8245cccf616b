"""One query at a time: the short way through the layers gives what the long one gives, and notices every change."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.errors import InputError
from slosh.search import ExactSearch, LadderSearch

K = 7


def clouds(n: int, seed: int, spread: float = 1.0) -> np.ndarray:
    """Return vectors around a few centres."""
    rng = np.random.default_rng(seed)
    centres = 4 * np.random.default_rng(0).normal(size=(40, 24))
    return (centres[rng.integers(0, 40, n)] + spread * rng.normal(size=(n, 24))).astype(np.float32)


@pytest.fixture(scope="module")
def stored() -> np.ndarray:
    return clouds(3000, 1)


@pytest.fixture
def search(stored: np.ndarray) -> LadderSearch:
    made = LadderSearch(n_lists=64, n_jobs=1)
    made.add(stored)
    return made


def check_one_by_one(search: LadderSearch, queries: np.ndarray, recall: float | None) -> None:
    """Compare each query by itself, asked for twice, with all of them together, to the last bit."""
    together = search.search(queries, K, recall=recall)
    for i in range(len(queries)):
        for _ in range(2):
            alone = search.search(queries[i : i + 1], K, recall=recall)
            np.testing.assert_array_equal(alone.rows, together.rows[i : i + 1])
            np.testing.assert_array_equal(alone.distances, together.distances[i : i + 1])
            assert alone.stats.candidates.tolist() == [together.stats.candidates[i]]
            assert alone.stats.scanned.tolist() == [together.stats.scanned[i]]
            assert alone.stats.recall == together.stats.recall


@pytest.mark.parametrize("recall", [None, 0.8, 0.95, 1.0])
def test_one_query_finds_what_it_finds_in_a_batch(search: LadderSearch, recall: float | None) -> None:
    check_one_by_one(search, clouds(20, 2), recall)


def test_rows_of_the_users_own_decide_between_equal_distances(stored: np.ndarray) -> None:
    search, order = LadderSearch(n_lists=64, n_jobs=1), np.random.default_rng(3).permutation(6000)
    search.add(np.concatenate([stored, stored]), order + 100)
    for _ in range(3):
        found = search.search(stored[5:6], 2, recall=0.9)
        assert found.rows.tolist() == [sorted([order[5] + 100, order[3005] + 100])]


def test_every_change_is_seen(search: LadderSearch, stored: np.ndarray) -> None:
    query = stored[10:11]
    assert search.search(query, K, recall=0.9).rows[0, 0] == 10
    search.remove([10])
    assert 10 not in search.search(query, K, recall=0.9).rows
    check_one_by_one(search, clouds(5, 4), 0.9)
    assert search.add(query) == [3000]
    assert search.search(query, K, recall=0.9).rows[0, 0] == 3000
    check_one_by_one(search, clouds(5, 5), 0.9)


def test_rows_unlike_those_that_were_measured_are_searched_with_care() -> None:
    search, queries = (
        LadderSearch(n_lists=64, n_jobs=1),
        clouds(50, 6, spread=5.0),
    )  # no gaps: a larger reach scans more lists
    search.add(clouds(3000, 1, spread=5.0))

    def scanned() -> int:
        return sum(int(search.search(query[None], K, recall=0.9).stats.scanned[0]) for query in queries)

    before = scanned()
    aside = np.random.default_rng(7).normal(size=(400, 24)).astype(np.float32) + 100
    search.add(aside)
    check_one_by_one(search, np.concatenate([queries[:5], aside[:5]]), 0.9)
    assert scanned() > before  # more lists than were measured


def test_parameters_are_those_of_the_moment(search: LadderSearch) -> None:
    query = clouds(1, 8)
    for _ in range(2):
        assert search.search(query, K).stats.recall >= 0.99
    search.recall = 1.0
    assert search.search(query, K).stats.recall == 1.0
    search.recall = 0.5
    assert search.search(query, K).stats.recall < 1.0
    search.n_jobs = "all"  # type: ignore[assignment]
    with pytest.raises(InputError, match="n_jobs"):
        search.search(query, K)


def test_filters_and_exclusions_do_not_take_the_short_way(search: LadderSearch, stored: np.ndarray) -> None:
    query, exact = stored[20:21], ExactSearch(n_jobs=1)
    exact.add(stored)
    for _ in range(2):
        assert search.search(query, K, recall=0.95).rows[0, 0] == 20
    assert 20 not in search.search(query, K, recall=0.95, exclude=[20]).rows
    odd = np.arange(3000) % 2 == 1
    found = search.search(query, K, recall=0.95, allowed=odd)
    assert found.rows.tolist() == exact.search(query, K, allowed=odd).rows.tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e19])
def test_a_query_is_checked_each_time(search: LadderSearch, value: float) -> None:
    good, bad = clouds(1, 9), clouds(1, 9)
    bad[0, 3] = value
    for _ in range(2):
        search.search(good, K, recall=0.9)
        with pytest.raises(InputError, match="queries"):
            search.search(bad, K, recall=0.9)
    with pytest.raises(InputError, match="those of this search have 24"):
        search.search(good[:, :23], K, recall=0.9)
    with pytest.raises(InputError, match=r"pass x\[None\]"):
        search.search(good[0], K, recall=0.9)


def test_other_kinds_of_numbers_are_converted(search: LadderSearch) -> None:
    query = clouds(1, 10)
    right = search.search(query, K, recall=0.9)
    for other in (query.astype(np.float64), query.tolist(), np.asfortranarray(query), query.astype(">f4")):
        found = search.search(other, K, recall=0.9)
        np.testing.assert_array_equal(found.rows, right.rows)
        np.testing.assert_array_equal(found.distances, right.distances)


def test_more_questions_than_are_remembered(search: LadderSearch) -> None:
    query = clouds(1, 11)
    right = search.search(query, 40, recall=0.9).rows
    for k in range(1, 41):
        for recall in np.linspace(0.05, 0.9, 8).tolist():
            state = search.state
            assert state is not None
            state.nearest(query, k, recall=recall)
    assert search.search(query, 40, recall=0.9).rows.tolist() == right.tolist()


@pytest.mark.parametrize("precision", [16, 32])
@pytest.mark.parametrize("n_allowed", [0, 1, 5, 40, 900, 2999, 3000])
def test_a_filtered_query_alone_finds_what_it_finds_in_a_batch(
    stored: np.ndarray, n_allowed: int, precision: int
) -> None:
    """With copies that tie, holes, and more or fewer rows than are asked for; an excluded row takes the long way."""
    search = LadderSearch(n_lists=64, n_jobs=1, precision=precision)
    search.add(np.concatenate([stored[:2900], stored[:100]]))
    removed = np.arange(50, 60)
    search.remove(removed)
    mask = np.zeros(3000, np.bool_)
    mask[np.random.default_rng(4).permutation(3000)[:n_allowed]] = True
    queries = np.concatenate([stored[:10], clouds(10, 5)])
    together, own = search.search(queries, K, allowed=mask), np.arange(20)
    without = search.search(queries, K, allowed=mask, exclude=own)
    there = mask.copy()
    there[removed] = False
    assert together.rows.shape[1] == min(K, np.count_nonzero(there))
    assert there[together.rows].all()
    for i in range(20):
        alone = search.search(queries[i : i + 1], K, allowed=mask)
        np.testing.assert_array_equal(alone.rows, together.rows[i : i + 1])
        np.testing.assert_array_equal(alone.distances, together.distances[i : i + 1])
        excluded = search.search(queries[i : i + 1], K, allowed=mask, exclude=own[i : i + 1])
        np.testing.assert_array_equal(excluded.rows, without.rows[i : i + 1])
