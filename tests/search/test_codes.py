"""Codes side by side, and the scan of their Hamming distances: against a stable sort, and FAISS."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slosh.hash import SignHash, hamming
from slosh.hash.codes import as_words
from slosh.native import kernel, scan, scan_numpy
from slosh.search import nearest_codes
from slosh.search.codes import Codes


def random_codes(n, n_bits, seed=0, spread=0.5):
    """Codes about a common one: the smaller `spread`, the more distances are equal."""
    rng = np.random.default_rng(seed)
    return np.packbits((rng.random(n_bits) < 0.5) ^ (rng.random((n, n_bits)) < spread), axis=1)


def stored(codes, n_bits):
    return Codes(n_bits).extend(codes).groups


def ranked(distances, rows, k):
    """Positions of the k nearest of each query, by distance, then row."""
    order = np.argsort(rows, kind="stable")
    return np.stack([order[np.argsort(line[order], kind="stable")] for line in distances])[:, :k]


@pytest.mark.parametrize("n_bits", [1, 7, 8, 63, 64, 65, 200, 256, 300, 1024, 1100, 4160])
def test_the_nearest_codes_are_those_of_a_stable_sort(each_kernel, n_bits):
    for n, spread in ((1, 0.5), (7, 0.5), (8, 0.1), (33, 0.02), (700, 0.3), (1000, 0.02)):
        codes = random_codes(n + 20, n_bits, n, spread)
        queries, codes = codes[n:], codes[:n]
        away = hamming(queries, codes)
        for k in {1, min(10, n), n}:
            expected = ranked(away, np.arange(n), k)
            found = scan.nearest_codes(as_words(queries), stored(codes, n_bits), n, None, None, k, 1)
            np.testing.assert_array_equal(found[1], expected)
            np.testing.assert_array_equal(found[0], np.take_along_axis(away, expected, axis=1))


@pytest.mark.parametrize("spread", [0.5, 0.05, 0.0])
def test_equal_distances_come_by_row_in_any_order_of_rows(each_kernel, spread):
    n, n_bits = 2000, 130
    codes = random_codes(n + 5, n_bits, 3, spread)
    rows = np.random.default_rng(1).permutation(3 * n)[:n].astype(np.int64)
    away = hamming(codes[n:], codes[:n])
    mask = np.random.default_rng(2).random(n) < 0.5
    for k in (1, 5, 64, 900):
        groups = stored(codes[:n], n_bits)
        found = scan.nearest_codes(as_words(codes[n:]), groups, n, None, rows, k, 1)[1]
        np.testing.assert_array_equal(found, ranked(away, rows, k))
        found = scan.nearest_codes(as_words(codes[n:]), groups, n, mask, rows, k, 1)[1]
        np.testing.assert_array_equal(found, ranked(np.where(mask, away, 999), rows, k))


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 0.97])
def test_filters(each_kernel, share):
    n, n_bits = 4000, 256
    codes = random_codes(n + 30, n_bits, 5, 0.2)
    mask = np.random.default_rng(7).random(n) < share
    mask[[3, 77]] = True
    away = np.where(mask, hamming(codes[n:], codes[:n]), 10**6)
    k = min(12, int(mask.sum()))
    groups = stored(codes[:n], n_bits)
    found = scan.nearest_codes(as_words(codes[n:]), groups, n, mask, None, k, 1)
    np.testing.assert_array_equal(found[1], ranked(away, np.arange(n), k))
    more = scan.nearest_codes(as_words(codes[n:]), groups, n, mask, None, int(mask.sum()) + 3, 1)
    assert (more[1][:, -3:] == -1).all()
    assert np.isinf(more[0][:, -3:]).all()
    limits = np.linspace(-1, n_bits, 30).astype(np.int64)
    offsets, distances, positions = scan.codes_within(as_words(codes[n:]), groups, n, mask, np.arange(n), limits, 1)
    for i, limit in enumerate(limits):
        part = slice(offsets[i], offsets[i + 1])
        expected = ranked(away[i : i + 1], np.arange(n), n)[0][: int((away[i] <= limit).sum())]
        np.testing.assert_array_equal(positions[part], expected)
        np.testing.assert_array_equal(distances[part], away[i][expected])


def test_any_number_of_threads_finds_the_same(each_kernel):
    n, n_bits = 40_000, 64
    codes = random_codes(n + 40, n_bits, 11, 0.3)
    rows = np.random.default_rng(4).permutation(n).astype(np.int64)
    groups = stored(codes[:n], n_bits)
    for order in (None, rows):
        for n_queries, k in ((1, 3), (2, 700), (40, 10)):
            queries = as_words(codes[n : n + n_queries])
            one = scan.nearest_codes(queries, groups, n, None, order, k, 1)
            for n_jobs in (2, 3, 8):
                many = scan.nearest_codes(queries, groups, n, None, order, k, n_jobs)
                assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))


def test_codes_that_are_all_the_same(each_kernel):
    codes = np.full((5000, 4), 0b1010_0101, np.uint8)
    rows = np.arange(5000, dtype=np.int64)[::-1].copy()
    for order, expected in ((None, np.arange(9)), (rows, np.arange(4999, 4990, -1))):
        found = scan.nearest_codes(as_words(codes[:3]), stored(codes, 32), 5000, None, order, 9, 2)
        assert (found[0] == 0).all()
        np.testing.assert_array_equal(found[1], [expected] * 3)


def test_faiss_finds_the_same_distances(each_kernel):
    faiss = pytest.importorskip("faiss")
    codes = random_codes(3050, 1024, 2, 0.3)
    index = faiss.IndexBinaryFlat(1024)
    index.add(codes[:3000])
    expected, _ = index.search(codes[3000:], 20)
    found, _ = scan.nearest_codes(as_words(codes[3000:]), stored(codes[:3000], 1024), 3000, None, None, 20, 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")
def test_the_native_scan_refuses_what_it_would_read_beyond():
    groups, queries = stored(random_codes(100, 64), 64), as_words(random_codes(2, 64))
    out, positions = np.empty((2, 3)), np.empty((2, 3), np.int64)
    allowed = np.full(4 * len(groups), 255, np.uint8)
    native = kernel.native.nearest_codes
    native(queries, groups, allowed, None, None, out, positions, 1)
    for bad in (
        (as_words(random_codes(2, 128)), groups, allowed, None, None, out, positions, 1),
        (queries, groups[:3], allowed[:11], None, None, out, positions, 1),
        (queries, groups, allowed[:4], None, None, out, positions, 1),
        (queries, groups, allowed, np.array([1, 1]), None, out, positions, 1),
        (queries, groups, allowed, np.array([4 * len(groups)]), None, out, positions, 1),
        (queries, groups, allowed, np.array([-1]), None, out, positions, 1),
        (queries, groups, allowed, None, np.arange(100), out, positions, 1),
        (queries, groups, allowed, None, None, out[:1], positions, 1),
        (queries, groups, allowed, None, None, out, positions[:, :2].copy(), 1),
        (queries, groups, allowed, None, None, out[:, :0], positions[:, :0], 1),
    ):
        with pytest.raises(ValueError):  # noqa: PT011  the messages are for us
            native(*bad)
    with pytest.raises(ValueError, match="limit"):
        kernel.native.codes_within(queries, groups, allowed, None, np.array([1]), 1)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 70), max_size=6), st.integers(1, 200), st.integers(0, 5))
def test_codes_can_be_added_piece_by_piece(sizes, n_bits, seed):
    codes = random_codes(sum(sizes), n_bits, seed)
    store, first, kept = Codes(n_bits), 0, []
    for size in sizes:
        store.extend(random_codes(size + 3, n_bits, 99))  # abandoned
        store = store.extend(codes[first : first + size])
        first += size
        kept.append(store)
    for each in kept:  # what came later has changed nothing
        np.testing.assert_array_equal(each.take(np.arange(each.n)), codes[: each.n])
    assert store.groups.ctypes.data % 64 == 0 or not len(codes)
    with pytest.raises(ValueError, match="codes of"):
        store.extend(np.zeros((2, -(-n_bits // 8) + 1), np.uint8))


def test_the_numpy_twin_is_what_runs_without_a_compiler(monkeypatch):
    monkeypatch.setattr(kernel, "native", None)
    monkeypatch.setattr(scan_numpy, "BLOCK_CODES", 64)
    monkeypatch.setattr(scan_numpy, "BLOCK_QUERIES", 4)
    codes = random_codes(300, 90, 1, 0.1)
    found = scan.nearest_codes(as_words(codes[:10]), stored(codes, 90), 300, None, None, 20, 1)
    np.testing.assert_array_equal(found[1], ranked(hamming(codes[:10], codes), np.arange(300), 20))


@pytest.mark.parametrize("n_bytes", [1, 16, 33])
def test_codes_that_are_there_already(each_kernel, n_bytes):
    codes, queries = random_codes(300, 8 * n_bytes, spread=0.2), random_codes(20, 8 * n_bytes, spread=0.2)
    distances, rows = nearest_codes(queries, codes, k=7)
    expected = hamming(queries, codes)
    order = np.argsort(expected, axis=1, kind="stable")[:, :7]
    assert np.array_equal(rows, order)
    assert np.array_equal(distances, np.take_along_axis(expected, order, axis=1))
    assert distances.dtype == rows.dtype == np.int64


def test_the_first_bytes_are_a_shorter_code():
    vectors = np.random.default_rng(0).normal(size=(500, 24))
    long, short = (SignHash(n, random_state=3).fit_transform(vectors) for n in (256, 64))
    assert np.array_equal(nearest_codes(long[:5, :8], long[:, :8], k=9)[1], nearest_codes(short[:5], short, k=9)[1])


@pytest.mark.parametrize(
    ("queries", "codes", "k", "message"),
    [
        ([[1, 2]], [[1]], 1, "queries are codes of 2 bytes, codes of 1"),
        ([[1]], [[1], [2]], 3, "k=3, but there are 2 codes"),
        ([[1]], [[1], [2]], 0, "k=0"),
        ([[0.5]], [[1]], 1, "queries must be packed codes"),
        ([[1]], [[300]], 1, "codes holds numbers beyond 0 to 255"),
    ],
)
def test_what_are_no_codes(queries, codes, k, message):
    with pytest.raises(ValueError, match=message):
        nearest_codes(queries, codes, k)
