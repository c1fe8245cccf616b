"""LSHSearch, its probes and its tuning: against brute force, against simulation, and against ExactSearch."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from builders import DATA, hurried_threads
from slosh import Sets
from slosh.data import tensors
from slosh.embed import SlicedWasserstein
from slosh.evaluate import recall_at_k
from slosh.hash import PStableHash, SignHash, tuning
from slosh.search import ExactSearch, LSHSearch, load
from slosh.search.calibration import lower_bound
from slosh.search.tables import success

N, N_QUERIES = 5000, 300


def clusters(n, dim=32, n_centres=60, seed=0):
    """Round clusters of different sizes, in a space of `dim`, of which a few directions matter more than others."""
    rng = np.random.RandomState(seed)
    scale = 0.9 ** np.arange(dim)
    centres = rng.normal(size=(n_centres, dim)) * scale
    spread = rng.uniform(0.1, 0.5, size=(n_centres, 1))
    which = rng.randint(n_centres, size=n)
    return (centres[which] + spread[which] * rng.normal(size=(n, dim)) * scale).astype(np.float32)


def digits(n):
    """n embedded sets of Point Cloud MNIST; generated rings and bars where the data is not there."""
    path = DATA / "pointcloud_mnist_2d.npz"
    if path.exists():
        with np.load(path) as file:
            offsets = file["offsets"][: n + 1].astype(np.int64)
            sets = Sets(file["points"][: offsets[-1]].astype(np.float32) / 28, offsets)
    else:
        rng = np.random.RandomState(0)
        t, turn = rng.uniform(size=(n, 100, 1)), rng.uniform(0, np.pi, size=(n, 1, 1))
        size = rng.uniform(0.1, 0.5, size=(n, 1, 2))
        ring = np.concatenate([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)], axis=2) * size
        bar = (t - 0.5) * np.concatenate([np.cos(turn), np.sin(turn)], axis=2)
        kind = rng.uniform(size=(n, 1, 1))
        sets = Sets.from_padded((kind * ring + (1 - kind) * bar).astype(np.float32))
    return SlicedWasserstein(n_slices=16, n_quantiles=8).fit_transform(sets)


def with_truth(vectors):
    """Vectors, held-out queries, and their true ten nearest."""
    exact = ExactSearch()
    exact.add(vectors[:N])
    return vectors[:N], vectors[N:], exact.search(vectors[N:], 10)


@pytest.fixture(scope="module")
def grouped():
    return with_truth(clusters(N + N_QUERIES))


@pytest.fixture(scope="module", params=["digits", "clusters"])
def data(request, grouped):
    return grouped if request.param == "clusters" else with_truth(digits(N + N_QUERIES))


@pytest.fixture(scope="module")
def small():
    return clusters(3000, dim=12, n_centres=20, seed=3)


def plain(**params):
    return LSHSearch(PStableHash(**{"width": 1.0, "n_hashes": 6, "n_tables": 5, **params}), n_jobs=1)


# The search


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95])
def test_held_out_queries_get_the_recall_and_little_is_looked_at(data, target):
    vectors, queries, truth = data
    search = LSHSearch(recall=target)
    search.add(vectors)
    found = search.search(queries, 10)
    assert recall_at_k(found.rows, truth.rows) >= target - 0.02
    assert found.stats.recall >= target
    assert found.stats.candidates.mean() < 0.2 * N
    assert np.all((found.stats.scanned > 0) | (found.stats.candidates >= N))  # buckets, or a scan
    tuned = search.tuning_
    assert tuned.recall >= target
    assert tuned.n_tables * 12 <= 4 * vectors.shape[1]
    assert search.info()["bytes"]["tables"] == tuned.n_tables * 12 * N
    # what tuning alone promises, without a calibration
    alone = LSHSearch(tuned.hash(random_state=1), n_probes=tuned.n_probes)
    alone.add(vectors)
    found = alone.search(queries, 10)
    assert recall_at_k(found.rows, truth.rows) >= target - 0.02
    assert found.stats.recall is None
    assert 0.6 < found.stats.candidates.mean() / tuned.candidates < 1.6


def test_multi_probe_needs_a_third_of_the_tables(data):
    vectors, queries, truth = data
    R = float(np.median(truth.distances[:, -1]))
    recalls, seen = [], []
    for T, n_probes in ((24, 24), (8, 32)):
        search = LSHSearch(PStableHash(4 * R, 10, T), n_probes=n_probes)
        search.add(vectors)
        found = search.search(queries, 10)
        recalls.append(recall_at_k(found.rows, truth.rows))
        seen.append(found.stats.candidates.mean())
    assert recalls[1] > recalls[0] - 0.02, recalls
    assert seen[1] < 1.2 * seen[0], seen


def test_given_parameters_are_kept_and_probes_are_calibrated(grouped):
    vectors, queries, truth = grouped
    R = float(np.median(truth.distances[:, -1]))
    hash_ = PStableHash(3 * R, 8, 10, random_state=5)
    search = LSHSearch(hash_)
    search.add(vectors)
    first = search.search(queries, 10)
    assert first.stats.recall is None
    assert not hasattr(hash_, "directions_")
    assert (search.hash_.width, search.hash_.n_hashes, search.hash_.n_tables) == (3 * R, 8, 10)
    assert search.tuning_ is None
    found = search.search(queries, 10, recall=0.9)
    assert recall_at_k(found.rows, truth.rows) >= 0.88
    assert found.stats.recall >= 0.9
    (about,) = search.info()["calibrations"]
    assert (about["k"], about["recall"], about["n_rows"]) == (10, 0.9, N)
    assert about["promised"] == found.stats.recall
    assert about["measured"] > about["promised"]
    assert search.calibrate(10, 0.9).n_probes == about["n_probes"] > 10


def test_exact_is_exact(grouped):
    vectors, queries, _ = grouped
    exact, search = ExactSearch(), LSHSearch()
    rows = np.random.RandomState(0).permutation(3 * N)[:N]
    for one in (exact, search):
        one.add(vectors, rows)
        one.remove(rows[::7])
    for allowed in (None, rows[1::7], rows[1:400:7]):
        a, b = exact.search(queries, 12, allowed=allowed), search.search(queries, 12, allowed=allowed, recall=1.0)
        assert np.array_equal(a.rows, b.rows)
        assert np.array_equal(a.distances, b.distances)
        assert b.stats.recall == 1.0
    radius = float(np.median(exact.search(queries, 12).distances))
    a, b = exact.range_search(queries, radius), search.range_search(queries, radius, recall=1.0)
    assert np.array_equal(a.offsets, b.offsets)
    assert np.array_equal(a.rows, b.rows)


def test_adding_and_removing_in_any_order(small):
    """The same tables, and so the same answers, as a fresh build; rows not yet in the tables are found as well."""
    rng = np.random.RandomState(7)
    vectors = small[:2500]
    mixed = plain(width=2.0)
    there: dict[int, int] = {}
    following = 0
    while following < len(vectors):
        size = int(rng.choice([1, 3, 40, 300]))
        rows = mixed.add(vectors[following : following + size], np.arange(len(vectors))[following : following + size])
        there.update((int(row), int(row)) for row in rows)
        following += size
        gone = rng.choice(list(there), size=min(len(there) // 3, int(rng.choice([0, 2, 150]))), replace=False)
        mixed.remove(gone)
        for row in gone.tolist():
            del there[row]
        if rng.uniform() < 0.3:
            mixed.search(vectors[:2], 3)
    rows = np.array(sorted(there))
    fresh = plain(width=2.0)
    fresh.add(vectors[rows], rows)
    queries = small[2500:2600]
    a, b = fresh.search(queries, 8), mixed.search(queries, 8)
    n_unfiled = mixed.info()["not_in_tables"]
    unfiled = np.arange(len(vectors))[len(vectors) - n_unfiled :]
    for i in range(len(queries)):  # all that the fresh one found, and perhaps a row that is in no table yet
        more = set(b.rows[i].tolist()) - set(a.rows[i].tolist())
        assert more <= set(unfiled.tolist()) | {-1} or b.distances[i].max() <= a.distances[i].max()
        assert np.all(b.distances[i] <= a.distances[i])
    assert np.array_equal(fresh.search(queries, 8, recall=1.0).rows, mixed.search(queries, 8, recall=1.0).rows)


def test_many_removals_close_up(small):
    search = plain(width=2.0)
    search.add(small)
    search.search(small[:1], 1)
    search.remove(np.arange(0, 2600))
    assert search.state.n == len(search) == 400
    found = search.search(small[2600:2700], 1)
    assert np.array_equal(found.rows[:, 0], np.arange(2600, 2700))


def test_rows_found_are_the_nearest_of_those_in_the_buckets(small):
    search = plain(width=1.5, n_hashes=4)
    search.add(small)
    queries = small[:40] + np.float32(0.05)
    cells, asked = search.search(queries, 1) and search.hash_.transform(small), search.hash_.transform(queries)
    found = search.search(queries, 5)
    for i in range(40):
        shared = np.flatnonzero((cells == asked[i]).all(axis=2).any(axis=1))
        assert found.stats.candidates[i] == len(shared)
        assert found.stats.scanned[i] == (cells == asked[i]).all(axis=2).sum()
        away = np.linalg.norm(small[shared].astype(float) - queries[i], axis=1)
        best = shared[np.lexsort((shared, away))][:5]
        assert np.array_equal(found.rows[i][: len(best)], best)
        assert np.all(found.rows[i][len(best) :] == -1)
        assert np.all(np.isinf(found.distances[i][len(best) :]))


def test_filters(grouped):
    vectors, queries, _ = grouped
    search = LSHSearch(recall=0.9)
    search.add(vectors)
    exact = ExactSearch()
    exact.add(vectors)
    few, half = np.arange(0, N, 10), np.arange(0, N, 2)
    found = search.search(queries, 10, allowed=few)
    assert found.stats.recall == 1.0
    assert np.array_equal(found.rows, exact.search(queries, 10, allowed=few).rows)
    found = search.search(queries, 10, allowed=half)
    assert np.isin(found.rows, half).all()
    assert found.stats.recall is None
    assert recall_at_k(found.rows, exact.search(queries, 10, allowed=half).rows) >= 0.88
    assert found.stats.candidates.mean() < 0.2 * N
    # a filter that goes with the distance: the rows that are farthest from the queries
    far = np.argsort(-np.linalg.norm(vectors - queries.mean(axis=0), axis=1))[: N // 2]
    assert np.all(search.search(queries, 10, allowed=far).rows >= 0)


def test_range_search_finds_rows_as_often_as_it_says(grouped):
    vectors, queries, truth = grouped
    radius = float(np.median(truth.distances[:, -1]))
    search = LSHSearch(PStableHash(4 * radius, 8, 6), n_probes=12)
    search.add(vectors)
    exact = ExactSearch()
    exact.add(vectors)
    a, b = exact.range_search(queries, radius), search.range_search(queries, radius)
    assert b.stats.recall == success(6, 8, 12, 0.25, 2)
    found = len(b.rows) / len(a.rows)
    assert b.stats.recall - 0.1 < found < 1  # of rows at most that far
    for i in range(len(queries)):
        assert set(b[i][1].tolist()) <= set(a[i][1].tolist())
        assert np.all(np.diff(b[i][0]) >= 0)
    b = search.range_search(queries, radius, recall=0.95)
    assert 0.95 <= b.stats.recall < 1
    assert len(b.rows) / len(a.rows) > 0.93
    each = search.range_search(queries, np.linspace(0, radius, len(queries)))
    assert each.stats.recall == search.range_search(queries[:1], radius).stats.recall
    beyond = search.range_search(queries, 40 * radius, recall=0.95)  # no number of probes is enough
    assert beyond.stats.recall == 1.0
    assert len(beyond.rows) == len(exact.range_search(queries, 40 * radius).rows)


@pytest.mark.parametrize("n_probes", [None, 40])
def test_near_keeps_its_promise(n_probes):
    """One row at R from each query, all others far: the rate over many draws of the hash is the probability."""
    rng = np.random.RandomState(0)
    dim, R, n = 16, 1.0, 200
    base = rng.uniform(-100, 100, size=(n, dim)).astype(np.float32)
    step = rng.normal(size=(n, dim))
    queries = (base + step * (R / np.linalg.norm(step, axis=1, keepdims=True)) * 0.999).astype(np.float32)
    rates = []
    for seed in range(12):
        search = LSHSearch(PStableHash(3.0, 8, 6, random_state=seed), n_probes=n_probes)
        search.add(base)
        found = search.near(queries, R, c=2.0)
        there = found.rows >= 0
        assert np.array_equal(found.rows[there], np.flatnonzero(there))
        assert np.all(np.isinf(found.distances[~there]))
        assert np.all(found.distances[there] <= 2 * R)
        rates.append(there.mean())
    expected = found.success_probability
    if n_probes is None:
        assert expected == pytest.approx(float(search.hash_.success_probability(R)), abs=1e-12)
    assert abs(np.mean(rates) - expected) < 5 * np.sqrt(expected * (1 - expected) / (12 * n)) + 0.01
    assert found.stats.recall == expected
    assert len(found) == n


def test_near_between_R_and_cR_and_beyond(small):
    search = LSHSearch(recall=0.95)
    search.add(small)
    away = ExactSearch()
    away.add(small)
    queries = small[:50] + np.float32(0.1)
    nearest = away.search(queries, 1).distances[:, 0]
    R = float(np.median(nearest))
    found = search.near(queries, R, 1.5)
    assert found.success_probability >= 0.95
    assert search.tuning_ is not None
    assert np.all(found.rows[nearest > 1.5 * R] == -1)
    assert np.mean(found.rows[nearest <= R] >= 0) > 0.8
    found = search.near(queries, R, 1.5, success=1.0)
    assert np.array_equal(found.rows >= 0, nearest <= 1.5 * R)
    only = search.near(queries, R, 1.5, allowed=[7], success=1.0)
    assert set(only.rows.tolist()) <= {7, -1}
    assert len(search.near(queries[:0], R)) == 0


def test_queries_unlike_the_collection_get_more_probes_or_a_scan(grouped):
    vectors, queries, _ = grouped
    search = LSHSearch(recall=0.9)
    search.add(vectors)
    usual = search.search(queries, 10)
    rng = np.random.RandomState(0)
    reach = search.calibrate(10, 0.9).reach
    step = rng.normal(size=queries.shape)
    moved = queries + (step * (0.8 * reach / np.linalg.norm(step, axis=1, keepdims=True))).astype(np.float32)
    found = search.search(moved, 10)
    plan = search.calibrate(10, 0.9)
    plain_probes = LSHSearch(search.hash_, n_probes=plan.n_probes)
    plain_probes.add(vectors)
    few = plain_probes.search(moved, 10).rows
    exact = search.search(moved, 10, recall=1.0).rows
    assert found.stats.candidates.mean() > usual.stats.candidates.mean()
    assert np.any(found.stats.candidates < N)  # not all of them
    assert recall_at_k(found.rows, exact) >= 0.9 > recall_at_k(few, exact)
    alone = search.search(np.full((1, vectors.shape[1]), 1e3), 10)  # where there is nothing at all
    assert alone.stats.candidates[0] >= N
    assert np.all(alone.rows >= 0)


def test_what_cannot_be_promised_is_exact():
    vectors = np.random.RandomState(0).normal(size=(3000, 24)).astype(np.float32)
    search = LSHSearch(PStableHash(0.5, 12, 2))  # cells far too narrow
    search.add(vectors)
    found = search.search(vectors[:20], 5, recall=0.9)
    assert found.stats.recall == 1.0
    assert np.all(found.stats.candidates == 3000)
    (about,) = search.info()["calibrations"]
    assert about["exact"]
    (note,) = search.info()["notes"]
    assert "recall 0.9 of the 5 nearest cannot be promised by probes: such searches are exact" in note
    # vectors with no neighbours to speak of: tuning sees that little can be won, and the promise is kept all the same
    default = LSHSearch(recall=0.95)
    default.add(vectors)
    assert default.search(vectors[:50], 5).stats.recall >= 0.95


def test_few_rows_are_scanned():
    search = LSHSearch()
    vectors = clusters(500)
    search.add(vectors)
    assert search.search(vectors[:5], 3).stats.recall == 1.0
    assert search.near(vectors[:5], 0.1).success_probability == 1.0
    assert search.hash_ is None
    assert search.info()["notes"] == ["2048 rows or fewer: every search is exact"]
    search.add(clusters(2000, seed=1))
    search.search(vectors[:5], 3)
    assert search.hash_ is not None
    assert search.info()["notes"] == []


def test_calibrations_and_tables_follow_the_collection(small):
    search = plain(width=2.0)
    search.add(small[:1000])
    search.search(small[:2], 3, recall=0.8)

    def measured():
        search.search(small[:2], 3, recall=0.8)
        (known,) = search.info()["calibrations"]
        return known["n_rows"]

    assert measured() == 1000
    search.add(small[1000:1900])
    assert measured() == 1000
    search.add(small[1900:2100])
    assert measured() == 2100
    search.remove(np.arange(1100))
    assert measured() == 1000


def test_tuned_again_when_the_collection_has_grown():
    vectors = clusters(9000, dim=8)
    search = LSHSearch()
    search.add(vectors[:2100])
    search.search(vectors[:2], 3)
    first = search.tuning_
    assert first.n == 2100
    search.add(vectors[2100:8000])
    search.search(vectors[:2], 3)
    assert search.tuning_ is first
    search.add(vectors[8000:])
    search.search(vectors[:2], 3)
    assert search.tuning_.n == 9000
    assert search.info()["not_in_tables"] == 0


def test_a_stored_vector_is_not_its_own_neighbour_in_a_calibration(small, monkeypatch):
    """Copies are neighbours, a vector itself is none: nothing but itself in its buckets is a recall of 0."""
    apart = np.arange(600)[:, None] * np.full((1, 4), 100.0)
    search = LSHSearch(PStableHash(1.0, 2, 2))
    search.add(apart)
    assert search.calibrate(1, 0.5).exact
    twice = LSHSearch(PStableHash(1.0, 2, 2))
    twice.add(np.concatenate([apart, apart]))
    plan = twice.calibrate(1, 0.9)
    assert plan.n_probes == 2
    assert plan.measured == 1.0
    assert plan.promised == lower_bound(np.ones(plan.n_queries))
    many = LSHSearch(PStableHash(1.0, 2, 2))
    many.add(np.repeat(apart[:100], 9, axis=0))
    assert many.calibrate(3, 0.9).measured == 1.0


def test_copies_and_single_points_are_no_trouble():
    for vectors in (np.zeros((3000, 4)), np.repeat(clusters(60), 50, axis=0), clusters(3000) * 1e-20 + 1e3):
        search = LSHSearch()
        search.add(vectors)
        found = search.search(vectors[:5], 4)
        assert np.all(found.rows >= 0)
        assert np.all(found.distances <= 1e-3)


def test_cauchy_hashes(small):
    search = plain(width=8.0, p=1)
    search.add(small)
    found = search.search(small[:50], 5, recall=0.9)
    exact = search.search(small[:50], 5, recall=1.0)
    assert recall_at_k(found.rows, exact.rows) > 0.85
    result = search.range_search(small[:50], 0.3)
    assert result.stats.recall == success(5, 6, 5, 0.3 * np.sqrt(12) / 8, 1)


def test_threads_searching_and_saving_at_once(small, tmp_path):
    search = LSHSearch(n_jobs=1, recall=0.9)
    search.add(small[:2600])
    search.search(small[:1], 5)
    search.add(small[2600:])  # a second run, which saving merges
    expected, done = search.search(small[:30], 5).rows, threading.Event()

    def run():
        found = []
        while not done.is_set() or not found:
            found.append(search.search(small[:30], 5).rows)
        return found

    with hurried_threads(), ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(run) for _ in range(3)]
        try:
            for i in range(10):
                search.save(tmp_path / str(i))
        finally:
            done.set()
        for each in searches:
            assert all(np.array_equal(rows, expected) for rows in each.result())
    assert np.array_equal(load(tmp_path / "9").search(small[:30], 5).rows, expected)


def test_small_batches_are_the_same(grouped, monkeypatch):
    vectors, queries, _ = grouped
    search = plain(width=float(np.std(vectors)), n_tables=6)
    search.add(vectors)
    whole = search.search(queries, 10)
    monkeypatch.setattr("slosh.search.tables.BATCH_ENTRIES", 50)
    monkeypatch.setattr("slosh.search.tables.BATCH_QUERIES", 37)
    parts = search.search(queries, 10)
    assert np.array_equal(whole.rows, parts.rows)
    assert np.array_equal(whole.stats.scanned, parts.stats.scanned)


def test_predictions_from_a_sample(data):
    vectors, _, _ = data
    whole = tuning.tune(vectors, recall=0.9)
    part = tuning.tune(vectors[:1500], n=N, recall=0.9)
    assert whole.n == part.n == N
    assert part.width / whole.width == pytest.approx(1, abs=0.6)
    search = LSHSearch(part.hash(), n_probes=part.n_probes)
    search.add(vectors)
    exact = ExactSearch()
    exact.add(vectors)
    sample = np.random.RandomState(0).permutation(N)[:300]
    truth = exact.search(vectors[sample], 11).rows[:, 1:]
    found = search.search(vectors[sample], 11).rows[:, 1:]
    assert recall_at_k(found, truth) > 0.9 - 0.05  # extrapolated to four times as many


# Files


def filled(vectors):
    search = LSHSearch(recall=0.8)
    search.add(vectors, np.arange(len(vectors)) + 9)
    search.search(vectors[:2], 4)
    search.remove([9, 13])
    search.add(vectors[:3] + np.float32(0.1))
    return search


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "search"
    filled(small).save(path)
    return path


def test_saved_and_loaded(small, tmp_path):
    path = tmp_path / "search.slosh"
    for search in (filled(small), plain(width=2.0), LSHSearch(n_probes=30, random_state=4)):
        if not len(search):
            search.add(small)
        search.save(path)
        again = load(path)
        assert isinstance(again, LSHSearch)
        for params in ({"recall": 1.0}, {"recall": 0.8}, {}):
            a, b = search.search(small[:40], 4, **params), again.search(small[:40], 4, **params)
            assert np.array_equal(a.rows, b.rows)
            assert np.array_equal(a.distances, b.distances)
            assert a.stats.recall == b.stats.recall
        a, b = search.info(), again.info()
        assert a == b
        again.add(small[:2])
        again.remove(again.rows[:5])
        assert np.all(again.search(small[:5], 3).rows >= -1)
    search = LSHSearch(PStableHash(2.0, 6, 5, random_state=np.random.RandomState(1)))
    search.add(small)
    search.save(path)
    assert np.array_equal(load(path).search(small[:20], 3).rows, search.search(small[:20], 3).rows)


def test_calibrations_are_kept(small, tmp_path, monkeypatch):
    search = filled(small)
    search.save(tmp_path / "a")
    again = load(tmp_path / "a")
    monkeypatch.setattr("slosh.search.calibration.settle", None)  # nothing is measured again
    assert again.search(small[:3], 4).stats.recall == search.search(small[:3], 4).stats.recall


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: header["trained"].pop("tuning"),
        lambda header, arrays: header["trained"].update(hash=None),
        lambda header, arrays: header["trained"]["hash"].update(n_tables=header["trained"]["hash"]["n_tables"] + 1),
        lambda header, arrays: header["trained"]["hash"].update(width=-1.0),
        lambda header, arrays: header["params"].update(recall=3),
        lambda header, arrays: header["trained"]["calibrations"].append({"k": 3}),
        lambda header, arrays: arrays.pop("trained.offsets"),
        lambda header, arrays: arrays.update({"trained.offsets": arrays["trained.directions"]}),
        lambda header, arrays: arrays.update({"column.vectors": arrays["column.vectors"][1:]}),
    ],
)
def test_damaged_files_are_refused(saved, tmp_path, change):
    path = tmp_path / "search"
    shutil.copy(saved, path)
    load(path)
    header, arrays = tensors.read(path, "slosh search")
    change(header, arrays)
    tensors.write(path, "slosh search", header, arrays)
    with pytest.raises(ValueError, match="damaged"):
        load(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cut short or damaged"):
        load(path)


# Bad input


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hash": SignHash()}, "hash must be a PStableHash or None, not a SignHash"),
        ({"hash": PStableHash(-1.0)}, "width=-1.0 must be a positive number"),
        ({"n_probes": 0}, "n_probes=0 must be a whole number, 1 or more"),
        ({"recall": 0}, "recall=0 must be more than 0 and at most 1"),
        ({"recall": None}, "recall=None: give a number"),
        ({"random_state": None}, "random_state=None must be a whole number, 0 or more"),
        ({"n_jobs": 0}, "n_jobs=0: pass a number of threads"),
    ],
)
def test_wrong_parameters(params, message):
    search = LSHSearch(**params)
    with pytest.raises(ValueError, match=message):
        search.add(np.zeros((3, 2)))
    assert len(search) == 0


def test_wrong_questions(small):
    search = LSHSearch()
    with pytest.raises(ValueError, match="the collection is empty: add vectors first"):
        search.near(small[:1], 1.0)
    with pytest.raises(ValueError, match="calibrate needs two rows or more: add vectors first"):
        search.calibrate()
    search.add(small)
    for R, c, message in (
        (-1.0, 2.0, r"R=-1.0 must be a number, 0 or more"),
        (np.nan, 2.0, "R=nan must be a number"),
        ("a", 2.0, "R='a' must be a number"),
        (1.0, 0.5, r"c=0.5 must be a number, 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            search.near(small[:1], R, c)
    with pytest.raises(ValueError, match="queries has vectors of 3 numbers; those of this search have 12"):
        search.near(small[:1, :3], 1.0)
    with pytest.raises(ValueError, match="success=2 must be a probability, more than 0 and at most 1"):
        search.near(small[:1], 1.0, success=2)
    with pytest.raises(ValueError, match="k=0 must be a whole number"):
        search.calibrate(0)
    narrow = plain(width=1e-12)
    narrow.add(small)
    with pytest.raises(ValueError, match="beyond int32: width=1e-12 is too small"):
        narrow.search(small[:1], 1)


def test_what_no_table_can_hold_is_scanned():
    vectors = np.random.default_rng(40).normal(size=(3000, 16)).astype(np.float32) * np.float32(1e-3)
    index = LSHSearch()
    index.add(vectors)
    index.search(vectors[:2], 3)
    far = np.full((1, 16), 1e9, np.float32)
    assert index.search(far, 3).rows.shape == (1, 3)
    assert index.near(far, 1.0, 2.0).rows.tolist() == [-1]
    index.add(np.full((300, 16), 1e9))
    assert index.search(vectors[:2], 1).rows[:, 0].tolist() == [0, 1]
    assert len(index.range_search(vectors[:1], np.inf)[0][1]) == 3300


def test_tables_can_be_chosen_anew():
    vectors = np.random.default_rng(41).normal(size=(4000, 8)).astype(np.float32)
    index = LSHSearch()
    index.add(vectors)
    index.near(vectors[:1], 50.0, 2.0)
    before = index.tuning_
    assert index.tune(k=10) != before
    with pytest.raises(ValueError, match="leave hash out"):
        LSHSearch(PStableHash(1.0)).tune()
