"""The exact scan by torch: what it gives is never less than what may be nearest, and answers equal those of the CPU."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_gpu import DEVICES, torch
from scipy.spatial.distance import cdist

from slosh.errors import DeviceMemoryError
from slosh.gpu import scan
from slosh.gpu.scan import DeviceRows
from slosh.search import ExactSearch, exact

pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture
def small(monkeypatch):
    """Few rows of a chunk and of a tile, so that few vectors have many of them."""
    monkeypatch.setattr(scan, "CHUNK_NUMBERS", 1 << 12)
    monkeypatch.setattr(scan, "TILE_NUMBERS", 1 << 12)
    monkeypatch.setattr(scan, "QUERIES", 7)


@pytest.fixture
def on(monkeypatch, device):
    """A search whose device runs the code for GPUs, on the CPU where there is none."""
    if device == "cpu":
        monkeypatch.setattr(exact, "checked_device", lambda name: "cpu" if name == "cuda" else exact.CPU)
        monkeypatch.setattr(exact, "CPU", "the native kernel")
    return ExactSearch(device="cuda")


def same(a, b):
    np.testing.assert_array_equal(a.rows, b.rows)
    np.testing.assert_array_equal(a.distances, b.distances)


def drawn(kind, n, dim, seed):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, dim))
    if kind == "ties":
        vectors = random.integers(0, 3, size=(n, dim)).astype(float)
    elif kind == "far":
        vectors = vectors * 1e-3 + 1000
    elif kind == "outlier":
        vectors[n // 2] *= 1e6
    elif kind == "huge":
        vectors *= 1e17
    elif kind == "tiny":
        vectors *= 1e-22
    elif kind == "sorted":  # each tile has something nearer than the one before
        vectors = vectors[np.argsort(-np.linalg.norm(vectors, axis=1))]
    elif kind == "same":
        vectors[:] = vectors[0]
    return vectors.astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["normal", "ties", "far", "outlier", "huge", "tiny", "sorted", "same"]),
    n=st.sampled_from([1, 3, 64, 65, 700, 3000]),
    dim=st.sampled_from([1, 3, 16, 70]),
    k=st.sampled_from([1, 2, 10, 100]),
    filtered=st.booleans(),
    excluded=st.booleans(),
    seed=st.integers(0, 999),
)
def test_answers_equal_those_of_the_cpu(device, monkeypatch, kind, n, dim, k, filtered, excluded, seed):
    with monkeypatch.context() as patch:
        patch.setattr(scan, "CHUNK_NUMBERS", 1 << 14)
        patch.setattr(scan, "TILE_NUMBERS", 1 << 12)
        patch.setattr(scan, "QUERIES", 7)
        if device == "cpu":
            patch.setattr(exact, "checked_device", lambda name: "cpu" if name == "cuda" else exact.CPU)
            patch.setattr(exact, "CPU", "the native kernel")
        search, plain = ExactSearch(device="cuda"), ExactSearch(device=exact.CPU)
        vectors, random = drawn(kind, n, dim, seed), np.random.default_rng(seed)
        queries = np.concatenate([vectors[:: max(1, n // 10)], drawn(kind, 8, dim, seed + 1)])
        allowed = random.random(n) < 0.2 if filtered else None
        exclude = random.integers(-1, n, size=len(queries)) if excluded else None
        for each in (search, plain):
            each.add(vectors)
            if n > 10:
                each.remove(np.arange(0, n, 9))
        same(*(each.search(queries, k, allowed=allowed, exclude=exclude) for each in (search, plain)))
        radii = np.quantile(cdist(queries, vectors), 0.1, axis=1)
        found, expected = (each.range_search(queries, radii, allowed=allowed) for each in (search, plain))
        np.testing.assert_array_equal(found.offsets, expected.offsets)
        same(found, expected)


def test_few_positions_are_compared_on_the_cpu(device, small):
    vectors = drawn("normal", 20000, 32, 0)
    rows = DeviceRows(vectors, device)
    counts = [
        np.bincount(query, minlength=part.stop - part.start)
        for part, (query, _) in rows.nearest(vectors[:50], 10, None)
    ]
    assert (np.concatenate(counts) >= 10).all()
    assert np.concatenate(counts).mean() < 12


def test_rows_are_sent_once_and_more_of_them_later(device, on, small, monkeypatch):
    sent, plain = [], ExactSearch(device=exact.CPU)
    sound = torch.full

    def counted(shape, *args, **kwargs):
        if len(shape) == 1:
            sent.append(shape[0])
        return sound(shape, *args, **kwargs)

    monkeypatch.setattr(torch, "full", counted)
    vectors = drawn("normal", 1000, 32, 0)  # 128 rows of a chunk
    queries = drawn("normal", 5, 32, 1)
    for first, last in ((0, 300), (300, 310), (310, 1000)):
        on.add(vectors[first:last])
        plain.add(vectors[first:last])
        sent.clear()
        same(on.search(queries, 5), plain.search(queries, 5))
        assert sum(sent) <= last - first + 128 + 64
        sent.clear()
        on.search(queries, 5)
        assert not sent
    assert on.info()["bytes"][f"on {exact.checked_device('cuda')}"] >= 4 * vectors.size
    on.remove([3, 4])
    plain.remove([3, 4])
    same(on.search(queries, 5), plain.search(queries, 5))
    assert not sent


def test_what_has_no_room_is_sent_for_each_search(device, small):
    vectors, queries = drawn("normal", 2000, 32, 0), drawn("normal", 20, 32, 1)

    class Crowded(DeviceRows):
        def has_room(self):
            return False

    rows = Crowded(vectors, device)
    assert not rows.n_bytes
    whole = DeviceRows(vectors, device)
    for (part, found), (_, expected) in zip(
        rows.nearest(queries, 5, None), whole.nearest(queries, 5, None), strict=True
    ):
        assert part.stop - part.start <= 7
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


class AcceleratorError(RuntimeError):
    """As torch says it of memory that it does not manage itself."""

    error_code = 2


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, AcceleratorError])
@pytest.mark.parametrize("most", [1 << 11, 70])
def test_a_full_memory_takes_fewer_queries_and_smaller_tiles(device, on, small, monkeypatch, most, error):
    vectors, queries, plain = drawn("normal", 2000, 32, 0), drawn("normal", 20, 32, 1), ExactSearch(device=exact.CPU)
    monkeypatch.setattr(scan, "TILE_NUMBERS", 1 << 16)
    sound = torch.addmm

    def full(bias, *args, **kwargs):
        if args[0].shape[0] * args[1].shape[1] > most:
            raise error("full")
        return sound(bias, *args, **kwargs)

    monkeypatch.setattr(torch, "addmm", full)
    for each in (on, plain):
        each.add(vectors)
    same(on.search(queries, 5), plain.search(queries, 5))
    most = 10
    with pytest.raises(DeviceMemoryError, match="the scores of one query"):
        on.search(queries, 5)
    monkeypatch.undo()


def test_many_ties_take_fewer_queries_at_once(device, on, monkeypatch):
    monkeypatch.setattr(scan, "MAX_PAIRS", 3000)
    vectors, plain = drawn("same", 2000, 8, 0), ExactSearch(device=exact.CPU)
    for each in (on, plain):
        each.add(vectors)
    same(on.search(vectors[:9], 3), plain.search(vectors[:9], 3))


def test_the_device_is_not_saved_and_not_lost_in_a_copy(device, on, tmp_path):
    on.add(drawn("normal", 100, 8, 0))
    on.save(tmp_path / "x.search")
    loaded = ExactSearch.load(tmp_path / "x.search")
    assert loaded.device is None
    assert ExactSearch.load(tmp_path / "x.search", device="cuda").device == "cuda"
    for copied in (pickle.loads(pickle.dumps(on)), copy.deepcopy(on)):
        assert copied.device == "cuda"
        same(copied.search(on.vectors([0]), 3), on.search(on.vectors([0]), 3))
