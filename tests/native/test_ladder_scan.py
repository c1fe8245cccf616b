"""The scan of rows in eight bits, on every kernel: bounds that hold, and answers that do not depend on the company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh.native import kernel, scan
from slosh.search import LadderSearch
from slosh.search.store import ShortVectors, to_int16


@settings(max_examples=60)
@given(
    n=st.integers(1, 40),
    numbers=st.integers(1, 70),
    step=st.sampled_from([1e-20, 0.003, 0.1, 1e15]),
    far=st.sampled_from([1.0, 100.0, 1000.0]),
    seed=st.integers(0, 999),
)
def test_codes_say_how_far_off_they_are(n, numbers, step, far, seed):
    rng = np.random.default_rng(seed)
    centres = (rng.normal(size=(3, numbers)) * far * step).astype(np.float32)
    which = rng.integers(3, size=n)
    rows = centres[which] + (rng.normal(size=(n, numbers)) * far * step).astype(np.float32)
    steps = np.float32(step) * np.array([1, 2, 0.5], np.float32)
    codes, coded, off = scan.code_rows(rows, centres, steps, which)
    assert codes.shape == (n, -(-numbers // 4), 4)
    flat = codes.reshape(n, -1).astype(float)
    assert (flat[:, numbers:] == 128).all()
    said = steps[which].astype(float)[:, None] * (flat[:, :numbers] - 128)
    away = rows.astype(float) - centres[which].astype(float)
    scale = np.abs(rows).max() + np.abs(centres).max()
    assert (np.linalg.norm(said - away, axis=1) <= off + 1e-6 * scale * np.sqrt(numbers)).all()
    inside = np.abs(away).max(axis=1) < 126 * steps[which]
    assert (off[inside] <= 0.51 * steps[which][inside] * np.sqrt(numbers) + 1e-6 * scale * np.sqrt(numbers)).all()
    np.testing.assert_allclose(coded, said, rtol=1e-6)


@settings(max_examples=60)
@given(
    n=st.integers(1, 40),
    numbers=st.integers(1, 70),
    far=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 999),
)
def test_biases_and_rests_give_distances_and_bounds(n, numbers, far, seed):
    """|q - x|^2 = |q - centre|^2 + bias - 2 <q - m, x - centre>, and the early numbers bound the product."""
    rng = np.random.default_rng(seed)
    centres, middle = (
        rng.normal(size=(3, numbers)).astype(np.float32),
        (rng.normal(size=numbers) * far).astype(np.float32),
    )
    which, query = rng.integers(3, size=n), rng.normal(size=numbers)
    coded = (rng.normal(size=(n, numbers)) * 0.3).astype(np.float32)
    biases, rests = scan.biases_of(coded, centres, which, middle), scan.rests_of(coded)
    exact = np.square(query - centres[which].astype(float) - coded.astype(float)).sum(axis=1)
    base = np.square(query - centres.astype(float)).sum(axis=1)[which]
    products = (query - middle.astype(float)) * coded.astype(float)
    np.testing.assert_allclose(base + biases - 2 * products.sum(axis=1), exact, rtol=1e-4, atol=1e-5 * (1 + far))
    early = scan.early_numbers(numbers)
    assert early % 4 == 0
    rest_of_query = np.linalg.norm((query - middle.astype(float))[early:])
    assert (products[:, early:].sum(axis=1) <= rest_of_query * rests).all()


@pytest.mark.parametrize(("n_lists", "numbers"), [(1, 3), (15, 16), (16, 1), (100, 33), (700, 64)])
def test_the_nearest_list_is_the_nearest(n_lists, numbers, each_kernel):
    rng = np.random.default_rng(n_lists)
    centres = rng.normal(size=(n_lists, numbers)).astype(np.float32)
    centres[-1] *= 1000  # far away, as a list that was founded later may be
    rows = np.concatenate([rng.normal(size=(200, numbers)), centres[-3:] * 1.01]).astype(np.float32)
    which, squares = scan.nearest_lists(scan.Heads(centres, max(1, n_lists - 1)), rows, 2)
    table = np.square(rows[:, None].astype(float) - centres[None].astype(float)).sum(axis=2)
    mine = np.take_along_axis(table, which[:, None], axis=1)[:, 0]
    assert (mine <= table.min(axis=1) * (1 + 1e-5)).all()
    np.testing.assert_allclose(squares, mine, rtol=1e-4, atol=1e-6)


def collection(dim=20, n=3000, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(15, dim)) * 2
    vectors = centres[rng.integers(15, size=n)] + rng.normal(size=(n, dim)) * 0.9 ** np.arange(dim)
    return vectors.astype(np.float32)


@pytest.mark.parametrize("recall", [0.9, 1.0])
@pytest.mark.parametrize("dim", [5, 20, 150])
def test_an_answer_does_not_depend_on_the_other_queries_or_on_threads(dim, recall, each_kernel):
    if each_kernel == "numpy":
        pytest.skip("it takes queries one by one")
    vectors = collection(dim)
    search = LadderSearch(n_lists=40, n_jobs=1)
    search.add(vectors[:2800])
    search.calibrate(7, 0.9)
    queries = vectors[2800:]
    whole = search.search(queries, 7, recall=recall)
    for n_jobs, part in ((1, slice(0, 1)), (3, slice(0, None)), (2, slice(5, 90)), (1, slice(199, 200))):
        search.set_params(n_jobs=n_jobs)
        some = search.search(queries[part], 7, recall=recall)
        assert np.array_equal(some.rows, whole.rows[part])
        assert np.array_equal(some.distances, whole.distances[part])
        assert np.array_equal(some.stats.scanned, whole.stats.scanned[part])


@pytest.mark.parametrize("dim", [3, 20, 150])
def test_an_exact_scan_leaves_nothing_out(dim, each_kernel):
    """Float32 vectors, filters and own rows, against a table in float64."""
    vectors = collection(dim, seed=1)
    search = LadderSearch(precision=32, n_lists=25)
    search.add(vectors)
    search.train()
    n = 10 if each_kernel == "numpy" else 60
    allowed = np.random.default_rng(2).random(3000) < 0.6
    queries, own = vectors[:n] + np.float32(0.01), np.arange(n)
    table = np.linalg.norm(queries[:, None].astype(float) - vectors[None].astype(float), axis=2)
    table[:, ~allowed] = np.inf
    table[own, own] = np.inf
    order = np.argsort(table, axis=1, kind="stable")[:, :9]
    found = search.search(queries, 9, allowed=np.flatnonzero(allowed), exclude=own, recall=1.0)
    np.testing.assert_allclose(found.distances, np.take_along_axis(table, order, axis=1), rtol=1e-6)
    assert np.mean(found.rows == order) > 0.999


def mask_of(positions, n):
    mask = np.zeros(n, np.bool_)
    mask[positions] = True
    return mask


def test_a_few_rows_are_compared_one_by_one(each_kernel):
    rng = np.random.default_rng(3)
    vectors, queries = rng.integers(0, 4, size=(200, 6)).astype(np.float32), np.zeros((5, 6), np.float32)
    positions, ranks, skip = np.arange(0, 200, 3), rng.permutation(200), np.array([0, -1, 3, 5, 6])
    distances, found, _ = scan.flat(queries, vectors, None, mask_of(positions, 200), 8, skip, ranks, 2)
    for i in range(5):
        there = positions[positions != skip[i]]
        exact = np.square(vectors[there]).sum(axis=1)
        order = np.lexsort((ranks[there], exact))[:8]
        assert found[i].tolist() == there[order].tolist(), "equal distances by rank"
        assert distances[i].tolist() == np.sqrt(exact[order].astype(float)).tolist()
    few = scan.flat(queries, vectors, None, mask_of([4, 9], 200), 3, None, None, 1)
    assert few[1][:, 2].tolist() == [-1] * 5
    assert np.isinf(few[0][:, 2]).all()
    assert not few[2].any()
    none = scan.flat(queries, vectors, None, mask_of([], 200), 3, None, None, 1)
    assert (none[1] == -1).all()


@pytest.mark.parametrize("k", [1, 6, 40])
@pytest.mark.parametrize("shorts", [False, True])
@pytest.mark.parametrize(("dim", "n"), [(1, 3), (7, 40), (33, 100), (100, 2000), (64, 4500)])
def test_many_queries_find_what_each_finds_alone(dim, n, shorts, k, each_kernel):
    """Whole numbers, so that there are many ties; against a table of them."""
    if each_kernel == "numpy" and n > 2000:
        pytest.skip("it has no blocks of vectors")
    rng = np.random.default_rng(dim)
    vectors, queries = rng.integers(-2, 3, size=(n, dim)), rng.integers(-1, 2, size=(13, dim))
    positions, ranks = np.flatnonzero(rng.random(n) < 0.7), rng.permutation(n)
    skip = np.where(rng.random(13) < 0.5, rng.integers(n, size=13), -1)
    stored = vectors.astype(np.int16 if shorts else np.float32)
    scale = np.ones(n, np.float32) if shorts else None  # rounding a query to 16 bits leaves ones as they are
    table = np.square(queries[:, None] - vectors[None]).sum(axis=2)
    for at in (positions, positions[:1], None):
        mask = None if at is None else mask_of(at, n)
        for some in (slice(0, 1), slice(0, 13)):
            asked = queries[some].astype(np.float32)
            distances, found, tied = scan.flat(asked, stored, scale, mask, k, skip[some], ranks, 2)
            for i, row in enumerate(table[some]):
                there = np.arange(n) if at is None else at
                there = there[there != skip[some][i]]
                order = there[np.lexsort((ranks[there], row[there]))]
                first = order[:k]
                assert found[i, : len(first)].tolist() == first.tolist()
                assert distances[i, : len(first)].tolist() == np.sqrt(row[first]).tolist()
                assert (found[i, len(first) :] == -1).all()
                assert tied[i] == (len(order) > k and row[order[k]] == row[order[k - 1]])


@pytest.mark.parametrize("n_queries", [1, 9])
def test_copies_are_at_no_distance_and_by_rank(n_queries, each_kernel):
    """Stored numbers are rounded products, and so is the query: nothing is left, whatever the precision."""
    rng = np.random.default_rng(6)
    whole, scale, ranks = (
        rng.integers(-32767, 32767, size=37).astype(np.int16),
        np.float32(0.1 / 32767),
        rng.permutation(500),
    )
    whole[5] = 32767  # the largest number of a vector decides about its scale
    query = np.tile(whole * scale, (n_queries, 1)).astype(np.float32)
    vectors, scales = np.tile(whole, (500, 1)), np.full(500, scale, np.float32)
    distances, found, tied = scan.flat(query, vectors, scales, None, 40, None, ranks, 1)
    assert not distances.any()
    assert (ranks[found] == np.arange(40)).all()
    assert tied.all()


@pytest.mark.parametrize("n_queries", [1, 20])
@pytest.mark.parametrize("dim", [3, 37, 64, 130])
def test_distances_have_the_bits_of_single_comparisons(dim, n_queries, each_kernel):
    """Numbers that are no whole ones, in 16 bits and in float32: rounded queries, and sums in one order."""
    rng = np.random.default_rng(dim)
    vectors, queries = (rng.normal(size=(n, dim)).astype(np.float32) for n in (1500, n_queries))
    whole, scale = to_int16(vectors)
    mask = rng.random(1500) < 0.8
    for stored, scales in ((vectors, None), (whole, scale)):
        rounded = queries if scales is None else ShortVectors({}, 0).as_stored(queries)
        positions = np.tile(np.flatnonzero(mask), n_queries)
        offsets = np.arange(n_queries + 1) * np.count_nonzero(mask)
        exact = scan.squares(rounded, stored, scales, offsets, positions, 1)
        squares, expected = scan.best(exact, positions, offsets, np.arange(1500), 11)
        distances, found, tied = scan.flat(queries, stored, scales, mask, 11, None, None, 2)
        assert np.array_equal(found, expected)
        assert np.array_equal(distances, np.sqrt(squares))
        assert not tied.any()


@pytest.mark.parametrize("n_queries", [1, 9])
@pytest.mark.parametrize("dim", [40, 300])  # of 300 numbers some squared distances are beyond float32, and some are not
@pytest.mark.parametrize("factor", [1e-25, 8e17])
def test_numbers_whose_squares_float32_cannot_hold(factor, dim, n_queries, each_kernel):
    rng = np.random.default_rng(5)
    vectors, queries = (rng.normal(size=(size, dim)).astype(np.float32) for size in (300, n_queries))
    usual = scan.flat(queries, vectors, None, None, 5, None, None, 1)[1]
    found = scan.flat(queries * np.float32(factor), vectors * np.float32(factor), None, None, 5, None, None, 1)[1]
    assert np.array_equal(found, usual)


@pytest.mark.parametrize("recall", [0.9, 1.0])
@pytest.mark.parametrize("precision", [16, 32])
def test_queries_too_far_for_float32_find_each_row_once(precision, recall, each_kernel):
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=(2000, 400)).astype(np.float32)
    vectors[:, 0] *= 50
    search = LadderSearch(precision=precision, n_lists=150)
    search.add(vectors)
    search.train()
    if recall < 1:
        search.calibrate(10, recall)
    queries = np.full((5, 400), 1e18, np.float32) * rng.uniform(0.95, 1, size=(5, 400)).astype(np.float32)
    for some in (queries, queries[:1]):
        found = search.search(some, 10, recall=recall)
        assert (found.rows >= 0).all()
        assert all(len(set(rows)) == 10 for rows in found.rows.tolist())


def test_what_would_read_outside_of_an_array_is_refused():
    if kernel.native is None:
        pytest.skip("there is no kernel here")
    with pytest.raises(ValueError, match="one entry of the mask a vector"):
        scan.flat(np.zeros((1, 2), np.float32), np.zeros((3, 2), np.float32), None, np.ones(4, bool), 1, None, None, 1)
    heads = scan.Heads(np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match="rows must be"):
        scan.nearest_lists(heads, np.zeros((2, 20), np.float32), 1)
