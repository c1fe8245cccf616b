"""What searches promise, on every engine, against distances that NumPy computes from the formulas."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from builders import cloud_list, contents, plain_answer
from oracle import Oracle, check_nearest, check_within
from slosh import Sets, errors
from slosh.embed import DistanceField, SlicedWasserstein
from slosh.errors import InputError
from slosh.search import ExactSearch, LadderSearch

SLICES = np.array([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96], [0.8, -0.6]])
ORACLE = Oracle(SLICES, 4)
SEARCHES = {"exact": (ExactSearch(), 1e-5), "32 bits": (LadderSearch(precision=32), 1e-5), "default": (None, 6e-3)}


def create(engine, **options):
    """Create an index whose slices the oracle has."""
    embedding = SlicedWasserstein(None, ORACLE.n_quantiles, slices=SLICES, n_jobs=1)
    return engine.create(2, **{"embedding": embedding, **options})


def pairs(names, sets):
    return {name: (points, None) for name, points in zip(names, sets, strict=True)}


def check(hits, query, stored, k, tolerance, certify=False):
    distances = ORACLE.distances((query, None), stored, certify)
    check_nearest(hits, stored, distances, k, 1e-5 if certify else tolerance)


@pytest.mark.parametrize("search", SEARCHES)
def test_search_finds_the_nearest(engine, search):
    chosen, tolerance = SEARCHES[search]
    sets = cloud_list(60)
    sets[7] = sets[11] = sets[3]
    names = [f"{i:03}" for i in np.random.default_rng(1).permutation(60)]
    index = create(engine, search=chosen)
    index.add(sets, ids=names, metadata=[{"part": i % 5} for i in range(60)])
    stored = pairs(names, sets)
    few = {name: one for i, (name, one) in enumerate(stored.items()) if i % 5 in (1, 3)}
    most = {name: one for i, (name, one) in enumerate(stored.items()) if i % 5 != 1}
    for query in [*cloud_list(5, seed=2), sets[3]]:
        for k in (1, 2, 3, 10, 60, 1000):
            check(index.search(query, k, recall=1.0), query, stored, k, tolerance)
            check(index.search(query, k, certify=True), query, stored, k, tolerance, certify=True)
        check(index.search(query, 7, where={"part": [1, 3]}, recall=1.0), query, few, 7, tolerance)
        check(index.search(query, 7, where="part != 1", certify=True), query, most, 7, tolerance, certify=True)
        assert index.search(query, 7, where={"part": 77}).ids == []
    lists = index.search(sets[:4], k=3)
    assert len(lists) == 4
    assert [hits.ids for hits in lists] == [index.search(one, k=3).ids for one in sets[:4]]


def hausdorff(a, b):
    table = np.linalg.norm(a[:, None].astype(np.float64) - b[None], axis=2)
    return max(table.min(axis=1).max(), table.min(axis=0).max())


def test_the_nearest_by_the_hausdorff_distance_are_proved(engine):
    """Against all distances; with filters, by id, after changes, and by whoever reads."""
    sets = cloud_list(70)
    sets[7] = sets[11] = sets[3]
    names = [f"{i:03}" for i in np.random.default_rng(1).permutation(70)]
    index = engine.create(2, embedding=DistanceField(24), sample=sets[:20])
    index.add(sets[:50], names[:50], [{"part": i % 5} for i in range(50)])
    index.add(sets[50:], names[50:], [{"part": i % 5} for i in range(50, 70)])
    index.remove([names[5], names[60]])
    stored = {name: one for name, one in pairs(names, sets).items() if name not in (names[5], names[60])}
    few = {name: stored[name] for i, name in enumerate(names) if i % 5 in (1, 3) and name in stored}
    index = engine.reopen(index) or index
    for asked in (index, engine.read_only(index) or index):
        for query in [*cloud_list(3, seed=2), sets[3]]:
            distances = {name: hausdorff(query, points) for name, (points, _) in stored.items()}
            for k in (1, 2, 10, 1000):
                check_nearest(asked.search(query, k, rerank="hausdorff", certify=True), stored, distances, k, 1e-12)
            hits = asked.search(query, 7, where={"part": [1, 3]}, rerank="hausdorff", certify=True)
            check_nearest(hits, few, distances, 7, 1e-12)
            for radius in (0.0, 1.0, 100.0):
                within = asked.range_search(query, radius, where={"part": [1, 3]}, rerank="hausdorff", certify=True)
                check_within(within, few, distances, radius, 1e-12)
        others = {name: one for name, one in stored.items() if name != names[9]}
        distances = {name: hausdorff(sets[9], points) for name, (points, _) in others.items()}
        hits = asked.search(id=names[9], k=6, rerank="hausdorff", certify=True)
        check_nearest(hits, others, distances, 6, 1e-12)
        whole = asked.search(sets[9], 12, rerank="hausdorff", certify=True).ids
        pages = [asked.search(sets[9], 4, offset=i, rerank="hausdorff", certify=True).ids for i in (0, 4, 8)]
        assert [name for page in pages for name in page] == whole
    empty = engine.create(2, embedding=DistanceField(24), sample=sets[:20])
    hits = empty.search(sets[0], 3, rerank="hausdorff", certify=True)
    assert (hits.ids, hits.distance_kind) == ([], "hausdorff")


def test_a_query_by_id_leaves_itself_out(engine):
    sets = [*cloud_list(20), *cloud_list(1) * 4]  # the first, five times
    sets[0] = sets[-1]
    names = [f"{i:02}" for i in range(24)]
    index = create(engine)
    index.add(sets, ids=names, metadata=[{"even": i % 2 == 0} for i in range(24)])
    for name in ("00", "05", "22"):
        others = {other: one for other, one in pairs(names, sets).items() if other != name}
        even = {other: one for other, one in others.items() if int(other) % 2 == 0}
        query = sets[int(name)]
        for k in (1, 2, 4, 30):
            check(index.search(id=name, k=k), query, others, k, 6e-3)
            check(index.search(id=name, k=k, certify=True), query, others, k, 1e-5, certify=True)
            check(index.search(id=name, k=k, where={"even": True}), query, even, k, 6e-3)
        assert name not in index.range_search(id=name, radius=10.0).ids
    lists = index.search(id=["03", "00"], k=2)
    assert lists[1].ids == ["20", "21"]
    assert index.search(id="00", k=5, rerank="wasserstein").ids[:4] == ["20", "21", "22", "23"]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("certify", [False, True])
def test_a_set_is_not_its_own_neighbour_among_many_that_are_equal(engine, search, certify):
    index = create(engine, search=SEARCHES[search][0])
    names = list("zyxwvutsrq")
    index.add([cloud_list(1)[0]] * 10, ids=names)
    for name in names:
        others = sorted(set(names) - {name})
        assert index.search(id=name, k=3, certify=certify).ids == others[:3]
    graph, _ = index.neighbor_graph(3)
    assert graph.diagonal().sum() == 0
    assert graph.nnz == 30


def test_a_stored_set_is_at_distance_zero_of_itself(engine):
    sets = cloud_list(30)
    index = create(engine)
    index.add(sets)
    for i in (0, 13, 29):
        for options in ({}, {"recall": 1.0}, {"certify": True}):
            assert plain_answer(index.search(sets[i], k=1, **options)) == ([str(i)], [0.0])
        assert plain_answer(index.range_search(sets[i], 0.0)) == ([str(i)], [0.0])


def test_more_sets_within_a_radius_than_are_wanted_are_an_error(engine):
    index, sets = engine.create(), cloud_list(60)
    index.add(sets, ids=[str(i) for i in range(60)])
    assert len(index.range_search(sets[0], 1e6, max_hits=60)) == 60
    within = index.range_search(sets[:3], 1e6, where={"@id": list("0123456789")}, max_hits=30)
    assert [len(each) for each in within] == [10, 10, 10]
    for given in ({"queries": sets[0], "max_hits": 59}, {"id": ["1", "2"], "max_hits": 100}):
        for more in ({}, {"certify": True}):
            with pytest.raises(
                errors.InputError, match=r"more than \d+ sets are within the radius: ask with fewer"
            ) as error:
                index.range_search(radius=1e6, **given, **more)
            assert error.value.argument == "radius"
    with pytest.raises(errors.InputError):
        index.range_search(sets[0], 1.0, max_hits=0)
    described = index.describe(limit=5, offset=2)
    assert described.ids == index.select(limit=5, offset=2)
    assert described.sizes.tolist() == [len(index.get(name).points) for name in described.ids]


def test_range_search_and_duplicates(engine):
    sets = cloud_list(40)
    sets[30] = sets[4]
    sets[31] = sets[4] + np.float32(1e-3)
    names = [f"{i:02}" for i in range(40)]
    index = create(engine)
    index.add(sets, ids=names, metadata=[{"half": i // 20} for i in range(40)])
    stored = pairs(names, sets)
    for radius in (0.0, 0.5, 1.0, 100.0):
        for certify in (False, True):
            distances = ORACLE.distances((sets[0], None), stored, certify)
            tolerance = 1e-5 if certify else 6e-3
            check_within(index.range_search(sets[0], radius, certify=certify), stored, distances, radius, tolerance)
    second = {name: one for name, one in stored.items() if int(name) >= 20}
    true = ORACLE.distances((sets[0], None), second, True)
    check_within(index.range_search(sets[0], 1.0, certify=True, where={"half": 1}), second, true, 1.0, 1e-5)
    both = index.range_search(sets[:2], [0.5, 1.0], certify=True)
    assert both[0].ids == index.range_search(sets[0], 0.5, certify=True).ids
    assert both[1].ids == index.range_search(sets[1], 1.0, certify=True).ids
    assert [tuple(pair) for pair in index.duplicates(1e-9)] == [("04", "30", 0.0)]
    near = index.duplicates(0.01, certify=True)
    assert [pair[:2] for pair in near] == [("04", "30"), ("04", "31"), ("30", "31")]
    assert near.groups() == [["04", "30", "31"]]
    assert near.distance_kind == "sliced"
    assert len(index.duplicates(0.01, where={"half": 0})) == 0


def test_no_duplicate_within_the_radius_is_left_out(engine):
    """Whatever 16 bits have rounded: the radius is widened by it."""
    index = create(engine)
    index.add(cloud_list(60))
    for pair in list(index.duplicates(1.0, certify=True))[:60]:
        assert (pair.id, pair.other) in {(p.id, p.other) for p in index.duplicates(pair.distance)}


def test_neighbor_graph_is_what_search_finds(engine):
    sets = cloud_list(30)
    index = create(engine)
    index.add(sets)
    index.remove(["3", "17"])
    graph, names = index.neighbor_graph(k=4)
    assert graph.shape == (28, 28)
    assert names == index.ids
    stored = pairs(names, [sets[int(name)] for name in names])
    for i, name in enumerate(names):
        others = {other: one for other, one in stored.items() if other != name}
        line = graph.getrow(i)
        found = SimpleNamespace(ids=[names[j] for j in line.indices], distances=line.data)
        check(found, sets[int(name)], others, 4, 6e-3)
    ones, _ = index.neighbor_graph(k=4, mode="connectivity", certify=True)
    assert ones.nnz == 28 * 4
    assert set(ones.data.tolist()) == {1.0}


def test_kneighbors_are_the_hits_of_search_as_arrays(engine):
    """With sets that are equal, sets that were removed, a filter, and fewer sets than are asked for."""
    sets = [*cloud_list(30), *cloud_list(1) * 3]
    index = create(engine)
    index.add(sets, metadata=[{"even": i % 2 == 0} for i in range(33)])
    index.remove(["3", "17"])
    ids = index.ids
    for options in ({"k": 5}, {"k": 1, "recall": 1.0}, {"k": 40}, {"k": 4, "where": {"even": True}}):
        asked = {"queries": Sets.from_list(sets[:4])}, {"id": ["31", "5"]}, {"queries": sets[0]}, {"id": ids}
        for queries, given in zip(asked, (*asked[:3], {}), strict=True):
            hits = index.search(**queries, **options)
            distances, positions = index.kneighbors(**given, **options)
            assert distances.shape == positions.shape
            for i, found in enumerate([hits] if queries is asked[2] else hits):
                n = len(found)
                assert [ids[j] for j in positions[i, :n]] == found.ids
                np.testing.assert_array_equal(distances[i, :n], found.distances)
                assert (positions[i, n:] == -1).all()
                assert np.isinf(distances[i, n:]).all()
    assert index.kneighbors(Sets.from_list(sets)[:0], k=3)[0].shape == (0, 3)
    with pytest.raises(ValueError, match="not both"):
        index.kneighbors(sets[0], id="0")


def test_no_queries_give_no_hits(engine):
    index = create(engine)
    index.add(cloud_list(4))
    none = Sets.from_list(cloud_list(1))[:0]
    assert len(index.search(none)) == 0
    assert len(index.range_search(none, 1.0)) == 0
    assert len(index.search(id=[])) == 0
    assert index.get([]).ids == []


def test_answers_do_not_depend_on_the_order_of_the_adds(engine):
    sets = cloud_list(120, largest=5)
    for i in range(0, 120, 7):
        sets[i] = sets[0]  # many are equal
    names = [f"{i:03}" for i in range(120)]
    one, other = create(engine), create(engine)
    one.add(sets, names)
    order = np.random.default_rng(0).permutation(120).tolist()
    for first in range(0, 120, 37):
        part = order[first : first + 37]
        other.add([sets[i] for i in part], [names[i] for i in part])
    for index in (one, other):
        index.remove(names[20:40])
    queries = [*cloud_list(6, seed=5), sets[0]]
    for options in ({"recall": 1.0}, {"certify": True}):
        assert plain_answer(one.search(queries, k=9, **options)) == plain_answer(other.search(queries, k=9, **options))
    assert plain_answer(one.range_search(queries, 0.8)) == plain_answer(other.range_search(queries, 0.8))
    assert [tuple(pair) for pair in one.duplicates(0.1)] == [tuple(pair) for pair in other.duplicates(0.1)]


def test_ties_are_by_id_where_a_recall_turns_out_to_be_exact(engine):
    rng = np.random.default_rng(0)
    points = rng.integers(0, 3, size=(1500, 2, 2)).astype(float)
    one, two = create(engine), create(engine)
    names = [f"s{i}" for i in rng.permutation(1500)]
    one.add(points, ids=names)
    two.add(points[::-1], ids=names[::-1])
    for recall in (0.9999, 1.0):
        a, b = (index.search(points[:20], k=7, recall=recall) for index in (one, two))
        assert a.stats.recall == 1.0
        assert a.ids == b.ids


def test_recall_one_is_exact_where_the_search_is_trained(engine):
    sets, queries = cloud_list(1500, largest=6), cloud_list(20, seed=3, largest=6)
    names = [str(i) for i in range(1500)]
    index = create(engine, search=LadderSearch(precision=32))
    index.add(sets)
    index.tune(recall=0.9, k=9)
    stored = pairs(names, sets)
    exact = index.search(queries, k=9, recall=1.0)
    for query, hits in zip(queries, exact, strict=True):
        check(hits, query, stored, 9, 1e-5)
    fast = index.search(queries, k=9)
    assert fast.stats.recall >= 0.9
    found = [len(set(x) & set(y)) / 9 for x, y in zip(fast.ids, exact.ids, strict=True)]
    assert np.mean(found) >= 0.9
    for query, hits in zip(queries[:4], index.search(queries[:4], k=9, certify=True), strict=True):
        check(hits, query, stored, 9, 1e-5, certify=True)


def test_after_many_removals_the_rest_is_found(engine):
    sets = cloud_list(2500, largest=5)
    index = create(engine)
    index.add(sets)
    index.remove([str(i) for i in range(2300)])
    stored = pairs([str(i) for i in range(2300, 2500)], sets[2300:])
    for query in cloud_list(3, seed=8):
        check(index.search(query, k=3, certify=True), query, stored, 3, 1e-5, certify=True)
        check(index.search(query, k=3, recall=1.0), query, stored, 3, 6e-3)
    assert index.verify().ok


def test_compact_leaves_an_index_as_one_freshly_built(engine):
    """In the order of the ids: the same bits, also of approximate answers where nothing that is learnt is random."""
    rng = np.random.default_rng(0)
    names = [f"{i:05}" for i in rng.permutation(20_000)[:2400]]
    sets = dict(zip(names, cloud_list(2400, largest=6), strict=True))
    index = create(engine)
    for first in range(0, 2400, 600):
        part = names[first : first + 600]
        index.add([sets[name] for name in part], part, [{"n": name} for name in part])
    changed = {name: sets[name] + np.float32(1) for name in names[:200]}
    index.update(list(changed), list(changed.values()))
    index.remove(names[2000:])
    index.compact()
    fresh, now = create(engine), {**sets, **changed}
    kept = sorted(names[:2000])
    fresh.add([now[name] for name in kept], kept, [{"n": name} for name in kept])
    assert contents(index) == contents(fresh)
    queries = cloud_list(60, seed=9)
    for each in (index, fresh):
        each.tune(recall=0.8, k=10)
    found = [each.search(queries, k=10) for each in (index, fresh)]
    assert found[0].stats.recall < 1.0
    if engine.same_bits:
        assert plain_answer(found[0]) == plain_answer(found[1])
    exact, of_fresh = (each.search(queries, k=10, recall=1.0) for each in (index, fresh))
    assert plain_answer(exact) == plain_answer(of_fresh)
    exact = index.search(queries, k=10, recall=1.0)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found[0].ids, exact.ids, strict=True)]) >= 0.8


def test_every_step_of_an_answer_is_named(engine):
    """`distance_kind` says which distance it is, `stats` what is promised."""
    sets = cloud_list(12)
    index = create(engine)
    index.add(sets)
    assert index.search(sets[0]).distance_kind == index.range_search(sets[0], 1.0).distance_kind == "embedded"
    assert index.search(sets[0], certify=True).distance_kind == "sliced"
    assert index.search(sets[0], certify=True).stats.recall == 1.0
    for kind in ("sliced", "wasserstein", "chamfer", "hausdorff"):
        hits = index.search(sets[0], k=3, rerank=kind)
        assert (hits.ids[0], hits.distance_kind) == ("0", kind)
    told = index.explain(sets[0], "1")
    assert np.isclose(told.distance, ORACLE.sliced((sets[0], None), (sets[1], None)), rtol=1e-5)
    assert index.explain("0", "1").distance == told.distance


def test_an_empty_index_finds_nothing(engine):
    index, one = engine.create(), cloud_list(1)[0]
    for options in ({}, {"recall": 1.0}, {"certify": True}, {"rerank": "chamfer"}, {"where": {"x": 1}}):
        hits = index.search(one, k=3, **options)
        assert hits.ids == []
        assert hits.stats.recall == 1.0
        assert index.search([one, one], **options).ids == [[], []]
    assert index.search(one, certify=True).distance_kind == "sliced"
    assert index.search(one, rerank="chamfer").distance_kind == "chamfer"
    assert index.range_search(one, 5.0).ids == []
    assert index.kneighbors([one], k=2)[1].tolist() == [[-1, -1]]
    assert len(index.duplicates(1.0)) == 0
    assert index.neighbor_graph(2)[0].shape == (0, 0)


@pytest.mark.parametrize(
    "options", [{}, {"recall": 1.0}, {"certify": True}, {"rerank": "chamfer", "depth": 40}], ids=str
)
def test_pages_of_hits_are_parts_of_one_answer(engine, options):
    index = engine.create()
    index.add(cloud_list(40))
    query = cloud_list(1, seed=5)[0]
    whole = index.search(query, k=30, **options)
    pages = [index.search(query, k=7, offset=first, **options) for first in range(0, 30, 7)]
    assert [name for page in pages for name in page.ids][:30] == whole.ids
    assert np.array_equal(np.concatenate([page.distances for page in pages])[:30], whole.distances)
    assert index.search(query, k=7, offset=40, **options).ids == []


def test_pages_of_a_reranked_search_need_one_depth(engine):
    index = engine.create()
    index.add(cloud_list(200))
    query = cloud_list(1, seed=5)[0]
    with pytest.raises(errors.InputError, match="depth") as told:
        index.search(query, k=10, offset=10, rerank="chamfer")
    assert told.value.argument == "depth"
    whole = index.search(query, k=50, rerank="chamfer", depth=60).ids
    pages = [index.search(query, k=10, offset=first, rerank="chamfer", depth=60).ids for first in range(0, 50, 10)]
    assert [name for page in pages for name in page] == whole


def test_progress_is_reported(engine):
    index = engine.create()
    index.add(cloud_list(30))
    for question in (index.duplicates, index.neighbor_graph):
        seen = []
        question(progress=lambda done, total, seen=seen: seen.append((done, total)))
        assert seen == [(30, 30)]
        with pytest.raises(InputError, match=r"progress=5: give a function .* progress\(done, total\)"):
            question(progress=5)
