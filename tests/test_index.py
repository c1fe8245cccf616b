"""SetIndex, what users call: every verb, its answers against brute force, and its errors, which change nothing."""

from __future__ import annotations

import itertools
import json
import os
import pickle

import numpy as np
import pytest

import slosh
from slosh import Sets
from slosh.embed import Covariance, FSPool, GeM, MeanPool, SlicedWasserstein, WassersteinEmbedding
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch

SMALL = {"n_slices": 4, "n_quantiles": 4}


def clouds(n, dim=2, seed=0, largest=12):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(rng.integers(2, largest), dim)) * rng.uniform(0.3, 2) + rng.normal(size=dim)).astype("f4")
        for _ in range(n)
    ]


def make(path=None, dim=2, **options):
    options.setdefault("embedding", SlicedWasserstein(**SMALL))
    return slosh.SetIndex.create(path, dim, **{"n_jobs": 1, **options})


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    """Where an index is made: a path, or None."""
    return tmp_path / "index" if request.param == "disk" else None


def everything(index):
    """All that an index holds, to be compared."""
    return {
        name: (points.tobytes(), None if weights is None else weights.tobytes(), about)
        for name, points, weights, about in (index.get(name) for name in index.ids)
    }


# -- the verbs ---------------------------------------------------------------------------------------------------------


def test_what_was_added_is_there_unchanged(place):
    sets, about = clouds(30), [{"n": i, "kind": "ab"[i % 2]} for i in range(30)]
    index = make(place)
    assert len(index) == 0
    assert index.ids == []
    assert index.add(sets, ids=[f"s{i}" for i in range(30)], metadata=about) == [f"s{i}" for i in range(30)]
    assert len(index) == 30
    assert "s3" in index
    assert "x" not in index
    assert 3 not in index
    assert list(index) == index.ids == [f"s{i}" for i in range(30)]
    record = index.get("s7")
    assert record.id == "s7"
    assert np.array_equal(record.points, sets[7])
    assert record.weights is None
    assert record.metadata == about[7]
    found = index.get(["s9", "s2", "s9"])
    assert found.ids == ["s9", "s2", "s9"]
    assert [np.array_equal(a, sets[i]) for a, i in zip(found.sets, (9, 2, 9), strict=True)] == [True] * 3
    assert found.metadata == [about[9], about[2], about[9]]
    again = list(index.records(batch=7))
    assert [len(batch.ids) for batch in again] == [7, 7, 7, 7, 2]
    assert index.verify().ok
    assert index.info()["sets"] == 30


def test_counted_ids_are_never_used_twice(place):
    index = make(place)
    assert index.add(clouds(3)) == ["0", "1", "2"]
    assert index.add(clouds(2)) == ["3", "4"]
    index.remove(["0", "4"])
    assert not set(index.add(clouds(1))) & {"0", "4"}
    before = set(index.ids)
    index.compact()
    new = index.add(clouds(3))
    assert not set(new) & (before | {"0", "4"})
    assert len(index) == 7


def test_ids_are_strings_or_whole_numbers(place):
    index = make(place)
    odd = ["", "ü", "日本", "a b", "'; DROP TABLE sets; --", '"', "\u202e", "😀", "%", "x" * 1024, "\n", "e\u0301", "é"]
    assert index.add(clouds(2), ids=np.array([5, 6])) == ["5", "6"]
    assert index.add(clouds(12), ids=odd[1:]) == odd[1:]
    assert [index.get(name).id for name in odd[1:]] == odd[1:]
    assert index.get(5).id == "5"
    assert 6 in index
    assert index.search(clouds(1)[0], k=20).ids
    assert index.search(id=5, k=3).ids
    assert index.verify().ok
    index.remove(odd[1:])
    index.remove(5)
    assert index.ids == ["6"]


@pytest.mark.parametrize("bad", ["", "x" * 1025, "a\0b", "\ud800", b"x", 1.5, None, True, ("a",)])
def test_what_is_no_id_is_refused(place, bad):
    index = make(place)
    index.add(clouds(1), ids=["there"])
    with pytest.raises(ValueError, match="id"):
        index.add(clouds(2), ids=["fine", bad])
    assert index.ids == ["there"]


def test_update_replaces_points_metadata_or_both(place):
    sets, other = clouds(6), clouds(6, seed=1)
    index = make(place)
    index.add(sets, ids=list("abcdef"), metadata=[{"n": i} for i in range(6)])
    index.update("a", other[0])
    index.update("b", metadata={"n": 99})
    index.update(["c", "d"], other[2:4], [{"x": 1}, {"x": 2}])
    index.update(["e", "f"], metadata={"y": 3})
    index.add([other[4]], ids=["e"], update=True)
    assert len(index) == 6
    assert [index.get(name).metadata for name in "abcdef"] == [{"n": 0}, {"n": 99}, {"x": 1}, {"x": 2}, {}, {"y": 3}]
    expected = [other[0], sets[1], other[2], other[3], other[4], sets[5]]
    assert all(np.array_equal(index.get(name).points, x) for name, x in zip("abcdef", expected, strict=True))
    assert index.search(other[0], k=1)[0].id == "a"
    assert index.search(other[0], k=6, where={"n": 99}).ids == ["b"]
    assert index.search(other[0], k=6, where={"y": {"exists": True}}).ids == ["f"]
    assert index.search(other[0], k=6, where={"n": 1}).ids == []
    assert index.verify().ok
    with pytest.raises(KeyError, match="'z'"):
        index.update(["a", "z"], clouds(2))
    with pytest.raises(ValueError, match="update needs"):
        index.update("a")


def test_remove_takes_all_or_none(place):
    index = make(place)
    index.add(clouds(8), ids=list("abcdefgh"), metadata={"k": 1})
    before = everything(index)
    with pytest.raises(KeyError, match="'z'"):
        index.remove(["a", "z"])
    with pytest.raises(ValueError, match="twice"):
        index.remove(["a", "a"])
    assert everything(index) == before
    index.remove([])
    index.remove(["a", "c"])
    index.remove("h")
    assert index.ids == list("bdefg")
    assert sorted(index.search(clouds(1)[0], k=10).ids) == list("bdefg")
    assert sorted(index.search(clouds(1)[0], k=10, where={"k": 1}).ids) == list("bdefg")
    for verb in (index.get, index.remove):
        with pytest.raises(KeyError, match="'a'"):
            verb("a")
    with pytest.raises(KeyError, match="'a'"):
        index.search(id="a")
    index.add(clouds(1), ids=["a"])
    assert index.ids == list("bdefga")
    index.compact()
    assert index.ids == list("abdefg")
    assert index.verify().ok
    index.remove(index.ids)
    assert len(index) == 0
    assert index.verify().ok
    with pytest.raises(ValueError, match="empty"):
        index.search(clouds(1)[0])
    index.compact()
    index.add(clouds(2), ids=["new", "newer"])
    assert len(index) == 2


def brute(index, query, k, names=None, sliced=False):
    """The nearest by distances that NumPy computes from the stored vectors, or by slosh.pairwise from the points."""
    names = index.ids if names is None else names
    sets = index.get(names).sets if names else []
    if not names:
        return []
    recipe = index._engine.recipe
    prepared = recipe.prepared(recipe.sets(sets))
    asked = recipe.prepared(recipe.sets([query]))
    if sliced:
        distances = slosh.pairwise(asked, prepared, slices=recipe.embedding.slices_)[0]
    else:
        ready = index._engine._sets
        search = ready.vector_search
        vectors, one = ready._embed(prepared)[0], ready._embed(asked)[0]
        if isinstance(search, LadderSearch):
            vectors, one = search._store.like(vectors)[0], search._store.like(one)[0]
        distances = np.sqrt(np.square(vectors.astype(np.float64) - one).sum(axis=1))
    return sorted(zip(distances.tolist(), names, strict=True))[:k]


def check_same(hits, expected):
    assert hits.ids == [name for _, name in expected]
    np.testing.assert_allclose(hits.distances, [distance for distance, _ in expected], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("search", [None, ExactSearch(), LadderSearch(precision=32)])
def test_search_is_brute_force(place, search):
    sets = clouds(60)
    sets[7] = sets[3]
    sets[11] = sets[3]
    index = make(place, search=search)
    rng = np.random.default_rng(1)
    names = [f"{i:03}" for i in rng.permutation(60)]
    index.add(sets, ids=names, metadata=[{"part": i % 5} for i in range(60)])
    for query in [*clouds(5, seed=2), sets[3]]:
        for k in (1, 2, 3, 10, 60, 1000):
            check_same(index.search(query, k), brute(index, query, k))
            check_same(index.search(query, k, certify=True), brute(index, query, k, sliced=True))
        few = [name for i, name in enumerate(names) if i % 5 in (1, 3)]
        check_same(index.search(query, 7, where={"part": [1, 3]}), brute(index, query, 7, few))
        check_same(index.search(query, 7, where="part != 1", certify=True),
                   brute(index, query, 7, [n for i, n in enumerate(names) if i % 5 != 1], sliced=True))  # fmt: skip
        assert index.search(query, 7, where={"part": 77}).ids == []
    lists = index.search(sets[:4], k=3)
    assert len(lists) == 4
    assert [hits.ids for hits in lists] == [index.search(one, k=3).ids for one in sets[:4]]


def test_a_query_by_id_leaves_itself_out(place):
    sets = [*clouds(20), *clouds(1) * 4]  # the first, five times
    index = make(place)
    names = [f"{i:02}" for i in range(24)]
    index.add(sets, ids=names, metadata=[{"even": i % 2 == 0} for i in range(24)])
    for name in ("00", "05", "22"):
        for k in (1, 2, 4, 30):
            other = [n for n in names if n != name]
            check_same(index.search(id=name, k=k), brute(index, sets[int(name)], k, other))
            check_same(index.search(id=name, k=k, certify=True), brute(index, sets[int(name)], k, other, sliced=True))
            even = [n for n in other if int(n) % 2 == 0]
            check_same(index.search(id=name, k=k, where={"even": True}), brute(index, sets[int(name)], k, even))
        assert name not in index.range_search(id=name, radius=10.0).ids
    lists = index.search(id=["03", "00"], k=2)
    assert lists[1].ids == ["20", "21"]
    assert index.search(id="00", k=5, rerank="wasserstein").ids[:4] == ["20", "21", "22", "23"]


def test_range_search_and_duplicates(place):
    sets = clouds(40)
    sets[30] = sets[4]
    sets[31] = sets[4] + np.float32(1e-3)
    index = make(place)
    names = [f"{i:02}" for i in range(40)]
    index.add(sets, ids=names, metadata=[{"half": i // 20} for i in range(40)])
    radius = brute(index, sets[0], 12)[-1][0] * 1.0001
    check_same(index.range_search(sets[0], radius), brute(index, sets[0], 12))
    true = [line for line in brute(index, sets[0], 40, sliced=True) if line[0] <= 1.0]
    check_same(index.range_search(sets[0], 1.0, certify=True), true)
    check_same(index.range_search(sets[0], 1.0, certify=True, where={"half": 1}), [x for x in true if int(x[1]) >= 20])
    pairs = index.duplicates(1e-9)
    assert [tuple(pair) for pair in pairs] == [("04", "30", 0.0)]
    near = index.duplicates(0.01, certify=True)
    assert [pair[:2] for pair in near] == [("04", "30"), ("04", "31"), ("30", "31")]
    assert near.groups() == [["04", "30", "31"]]
    assert near.distance_kind == "sliced"
    assert len(index.duplicates(0.01, where={"half": 0})) == 0
    assert list(near.to_pandas().columns) == ["id", "other", "distance"]
    assert near.to_arrow().num_rows == 3
    assert "3 pairs" in repr(near)


def test_neighbor_graph_is_what_search_finds(place):
    sets = clouds(30)
    index = make(place)
    index.add(sets)
    index.remove(["3", "17"])
    graph, names = index.neighbor_graph(k=4)
    assert graph.shape == (28, 28)
    assert names == index.ids
    for i, name in enumerate(names):
        hits = index.search(id=name, k=4)
        line = graph.getrow(i)
        assert {names[j] for j in line.indices} == set(hits.ids)
        assert np.allclose(sorted(line.data), hits.distances)
    ones, _ = index.neighbor_graph(k=4, mode="connectivity", certify=True)
    assert ones.nnz == 28 * 4
    assert set(ones.data.tolist()) == {1.0}
    with pytest.raises(ValueError, match="mode"):
        index.neighbor_graph(mode="x")


def test_explain_and_rerank(place):
    sets = clouds(12, dim=3)
    index = make(place, dim=3)
    index.add(sets, ids=list("abcdefghijkl"))
    told = index.explain(sets[0], "b")
    assert np.isclose(told.distance, brute(index, sets[0], 1, ["b"], sliced=True)[0][0])
    assert index.explain("a", "b").distance == told.distance
    with pytest.raises(KeyError):
        index.explain("a", "zz")
    for name in ("sliced", "wasserstein", "chamfer", "hausdorff"):
        hits = index.search(sets[0], k=3, rerank=name)
        assert hits[0].id == "a"
        assert hits.distance_kind == name
    own = index.search(sets[0], k=3, rerank=lambda query, candidates: -candidates.sizes.astype(float), depth=12)
    assert own[0].distance == -max(map(len, sets))


def test_tune_stores_the_default_recall(tmp_path):
    index = make(tmp_path / "i")
    index.add(clouds(2000, largest=6))
    tuned = index.tune(recall=0.9, k=5)
    assert tuned.recall == 0.9
    assert tuned.measured >= 0.9
    assert "k = 5" in str(tuned)
    assert index.info()["recall"] == 0.9
    promised = index.search(clouds(1)[0], k=5).stats.recall
    assert promised in (tuned.promised, tuned.recall)
    assert index.tune(0.95, k=3, queries=clouds(40, seed=5)).n_queries in (0, 40)
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as again:
        assert again.info()["recall"] == 0.95
        assert {c["k"] for c in again.info()["search_info"]["calibrations"]} >= {4, 6}  # one more, for queries by id
        with pytest.raises(ValueError, match="recall"):
            again.tune(recall=1.5)


@pytest.mark.parametrize("n", [1, 50])
def test_tune_of_few_sets(place, n):
    index = make(place)
    index.add(clouds(n))
    if n < 2:
        with pytest.raises(ValueError, match="two sets"):
            index.tune()
    else:
        assert index.tune().exact


def test_hits_in_every_form(place):
    index = make(place)
    about = [{"kind": "a", "id": 7}, {"kind": "b", "tags": ["x", "y"]}, {}, {"deep": {"er": 1}}]
    sets = clouds(4)
    index.add(sets, ids=list("abcd"), metadata=about)
    hits = index.search(sets[0], k=4)
    assert [hit.id for hit in hits] == hits.ids
    assert len(hits[1:3]) == 2
    assert hits[-1] == hits[3]
    assert hits[0].metadata == {"kind": "a", "id": 7}
    hits[0].metadata["kind"] = "changed"
    assert hits[0].metadata["kind"] == "a"
    assert index.get("a").metadata["kind"] == "a"
    with pytest.raises(IndexError):
        hits[4]
    text = repr(hits)
    assert "embedded" in text
    assert len(text.splitlines()) == 5
    assert "Hit(id='a'" in repr(hits[0])
    frame = hits.to_pandas()
    assert list(frame["id"]) == hits.ids
    assert {"id", "distance", "metadata.id", "kind", "tags", "deep"} == set(frame.columns)
    table = hits.to_arrow()
    assert table.column_names == ["id", "distance", "metadata"]
    assert [json.loads(text.as_py()) for text in table["metadata"]] == hits.metadata
    lists = index.search(sets[:3], k=2)
    assert list(lists.to_pandas()["query"]) == [0, 0, 1, 1, 2, 2]
    assert lists.to_arrow().num_rows == 6
    assert "6 hits of 3 queries" in repr(lists)
    assert [len(part) for part in lists[1:]] == [2, 2]
    assert lists.stats.recall == 1.0
    assert hits.distance_kind == lists.distance_kind == "embedded"
    none = index.search(sets[0], where={"kind": "z"})
    assert none.to_pandas().empty
    assert none.to_arrow().num_rows == 0
    assert "0 hits" in repr(none)
    assert index.search(sets[:2], k=1, where={"kind": "z"}).to_pandas().empty


def test_no_queries_give_no_hits(place):
    index = make(place)
    index.add(clouds(4))
    none = Sets.from_list(clouds(1))[:0]
    assert len(index.search(none)) == 0
    assert len(index.range_search(none, 1.0)) == 0
    assert len(index.search(id=[])) == 0
    assert index.get([]).ids == []


@pytest.mark.parametrize("weighted", [True, False])
def test_export_and_back(tmp_path, place, weighted):
    import pyarrow.parquet as pq

    sets = clouds(25, dim=3)
    weights = [np.linspace(1, 2, len(x)) for x in sets] if weighted else None
    index = make(place, dim=3)
    index.add(sets, [f"ü{i}" for i in range(25)], [{"n": i, "l": [1, "x"]} for i in range(25)], weights=weights)
    index.remove("ü3")
    assert index.export(tmp_path / "all.parquet") == 24
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["id"].to_pylist() == index.ids
    assert [json.loads(x) for x in table["metadata"].to_pylist()] == [index.get(name).metadata for name in index.ids]
    assert np.array_equal(np.array(table["points"][0].as_py(), "f4"), sets[0])
    assert ("weights" in table.column_names) == weighted
    other = make(None, dim=3)
    other.add(slosh.readers.read(tmp_path / "all.parquet"))
    assert everything(other) == everything(index)
    assert os.listdir(tmp_path).count("all.parquet") == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


# -- what comes in -----------------------------------------------------------------------------------------------------


def test_every_form_of_sets(place):
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    sets = clouds(4)
    index = make(place)
    forms = {
        "list": sets,
        "lists": [x.tolist() for x in sets],
        "sets": Sets.from_list(sets),
        "arrow": pa.array([x.tolist() for x in sets]),
        "series": pd.Series(sets),
        "iterator": iter(sets),
        "double": [x.astype(np.float64) for x in sets],
        "batches": iter([Sets.from_list(sets[:3]), Sets.from_list(sets[3:])]),
        "triples": iter([(sets[:1], None, None), (sets[1:], None, [{"x": 1}] * 3)]),
    }
    for form, given in forms.items():
        names = index.add(given, ids=[f"{form}{i}" for i in range(4)])
        assert names == [f"{form}{i}" for i in range(4)]
        for name, x in zip(names, sets, strict=True):
            assert np.array_equal(index.get(name).points, x), form
    cube = np.random.default_rng(0).normal(size=(5, 6, 2))
    assert len(index.add(cube)) == 5
    assert index.add([]) == []
    assert index.add(iter([])) == []
    assert len(index.search(cube, k=2)) == 5
    assert index.search(cube[0].tolist(), k=1).ids == index.search(cube[0], k=1).ids
    assert index.verify().ok


def test_a_large_set_and_single_points(place):
    index = make(place)
    large = np.random.default_rng(0).normal(size=(1_000_000, 2)).astype(np.float32)
    index.add([large, large[:1]], ids=["large", "one"])
    assert index.get("large").points.shape == (1_000_000, 2)
    assert index.search(large, k=1)[0].id == "large"
    assert index.search(large[:1], k=1)[0].id == "one"


BAD_SETS = {
    "wrong dim": [[np.zeros((3, 3))]],
    "one wrong dim": [[np.zeros((3, 2)), np.zeros((3, 3))]],
    "nan": [[np.array([[0.0, np.nan]])]],
    "inf": [[np.array([[0.0, np.inf]])]],
    "too large": [[np.array([[0.0, 1e300]])]],
    "empty set": [[np.zeros((2, 2)), np.zeros((0, 2))]],
    "flat": [[np.zeros(2)]],
    "four": [np.zeros((2, 2, 2, 2))],
    "strings": [[np.array([["a", "b"]])]],
    "objects": [[np.array([[None, 1]])]],
    "complex": [[np.array([[1j, 1]])]],
    "number": [5],
    "none": [None],
    "text": ["abc"],
    "dict": [{"a": 1}],
    "bare points": [np.zeros((3, 2))],
}


@pytest.mark.parametrize("what", BAD_SETS)
def test_bad_sets_change_nothing(place, what):
    index = make(place)
    index.add(clouds(3), ids=list("abc"))
    before = everything(index)
    with pytest.raises((ValueError, TypeError)):
        index.add(*BAD_SETS[what])
    with pytest.raises((ValueError, TypeError)):
        index.update(["a", "b"], *BAD_SETS[what])
    if what not in ("bare points", "flat"):  # these are one set
        with pytest.raises((ValueError, TypeError)):
            index.search(*BAD_SETS[what])
    assert everything(index) == before
    assert index.verify().ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": ["a", "x"]}, "'a' exists"),
        ({"ids": ["x", "x"]}, "twice"),
        ({"ids": ["x"]}, "2 sets and 1 ids"),
        ({"ids": ["x", "y", "z"]}, "2 sets and 3 ids"),
        ({"ids": "xy"}, "list"),
        ({"ids": 5}, "list"),
        ({"metadata": [{}]}, "2 sets and 1 metadata"),
        ({"metadata": [{}, {}, {}]}, "2 sets and 3 metadata"),
        ({"metadata": "x"}, "dict"),
        ({"metadata": 5}, "dict"),
        ({"metadata": {"x": float("nan")}}, "x"),
        ({"metadata": {"x": float("inf")}}, "x"),
        ({"metadata": {"x": b"bytes"}}, "x"),
        ({"metadata": {"x": {"y": {1, 2}}}}, "x"),
        ({"metadata": {1: "x"}}, "key"),
        ({"metadata": {"x": 1 << 70}}, "x"),
        ({"metadata": [{}, "no dict"]}, "dict"),
        ({"metadata": [{}, 0]}, "dict"),
        ({"metadata": [{}, ""]}, "dict"),
        ({"metadata": [{}, []]}, "dict"),
        ({"weights": [[1.0]]}, "weight"),
        ({"weights": [[1.0, 1.0], [1.0, -1.0]]}, "weight"),
    ],
)
def test_bad_ids_and_metadata_change_nothing(place, options, message):
    index = make(place)
    index.add(clouds(3), ids=list("abc"))
    before = everything(index)
    with pytest.raises(ValueError, match=message):
        index.add([np.zeros((2, 2)), np.ones((2, 2))], **options)
    assert everything(index) == before
    assert index.info()["removed_since_compact"] == 0
    index.add(clouds(1), ids=["after"])
    assert index.verify().ok


def test_weights(place):
    sets = clouds(10)
    weights = [np.linspace(0.5, 2, len(x)).astype("f4") for x in sets]
    index = make(place)
    index.add(sets, weights=weights)
    assert np.array_equal(index.get("3").weights, weights[3])
    plain = clouds(3, seed=4)
    index.add(plain, ids=list("xyz"))  # each element counts the same
    ones = index.get("x").weights
    assert ones is None or set(ones.tolist()) == {1.0}
    index.add(Sets.from_list(plain, [np.full(len(x), 3.0) for x in plain]), ids=list("uvw"))
    assert index.search(plain[0], k=2).ids == ["u", "x"]
    assert index.search(Sets.from_list(plain[:1], [np.ones(len(plain[0]))]), k=2)[0].ids == ["u", "x"]
    index.update("x", plain[1], weights=np.ones(len(plain[1])))
    assert np.array_equal(index.get("x").points, plain[1])
    assert index.verify().ok
    unweighted = make()
    unweighted.add(sets)
    before = everything(unweighted)
    with pytest.raises(ValueError, match="weights"):
        unweighted.add(sets, weights=weights)
    assert everything(unweighted) == before
    promised = make(weighted=True)
    promised.add(sets)
    promised.add(sets, weights=weights)
    assert len(promised) == 20
    assert promised.verify().ok
    with pytest.raises(ValueError, match="weights"):
        make(weighted=False).add(sets, weights=weights)


def failing(batches, error):
    yield from batches
    raise error


@pytest.mark.parametrize("error", [ValueError("no good"), OSError(5, "no good"), KeyError("no good")])
def test_an_iterator_that_fails_leaves_what_came_before(place, error):
    index = make(place)
    parts = [Sets.from_list(clouds(4, seed=i)) for i in range(2)]
    with pytest.raises(type(error), match="no good") as told:
        index.add(failing(parts, error))
    said = " ".join([str(told.value), *getattr(told.value, "__notes__", [])])
    assert "8 sets before" in said
    assert len(index) == 8
    assert index.verify().ok
    with pytest.raises(ValueError, match=r"NaN|finite|nan") as told:
        index.add(iter([parts[0], Sets.from_list(clouds(2)), np.full((2, 2), np.nan)]), ids=itertools.count(100))
    assert "6 sets before" in str(told.value)
    assert len(index) == 14
    with pytest.raises(ValueError, match="ids"):
        index.add(iter(clouds(3)), ids=["one", "two"])
    with pytest.raises(ValueError, match="iterator"):
        index.add(iter(clouds(3)), weights=[[1]])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda index, x: index.search(x, k=0), ValueError),
        (lambda index, x: index.search(x, k=-1), ValueError),
        (lambda index, x: index.search(x, k=1.5), ValueError),
        (lambda index, x: index.search(x, k=True), ValueError),
        (lambda index, x: index.search(), ValueError),
        (lambda index, x: index.search(x, id="a"), ValueError),
        (lambda index, x: index.search(id="zz"), KeyError),
        (lambda index, x: index.search(id=["a", "zz"]), KeyError),
        (lambda index, x: index.search(x, recall=0), ValueError),
        (lambda index, x: index.search(x, recall=2), ValueError),
        (lambda index, x: index.search(x, rerank="nonsense"), ValueError),
        (lambda index, x: index.search(x, certify=True, rerank="sliced"), ValueError),
        (lambda index, x: index.search(x, certify=True, recall=0.5), ValueError),
        (lambda index, x: index.search(x, depth=3), ValueError),
        (lambda index, x: index.search(x, where=5), ValueError),
        (lambda index, x: index.search(x, where="kind ="), ValueError),
        (lambda index, x: index.search(x, where={"k": {"~": 1}}), ValueError),
        (lambda index, x: index.range_search(x, -1), ValueError),
        (lambda index, x: index.range_search(x, float("nan")), ValueError),
        (lambda index, x: index.range_search(x, [1, 2]), ValueError),
        (lambda index, x: index.duplicates(-1), ValueError),
        (lambda index, x: index.neighbor_graph(0), ValueError),
        (lambda index, x: index.get("zz"), KeyError),
        (lambda index, x: index.get(["a", "zz"]), KeyError),
        (lambda index, x: index.get(None), ValueError),
        (lambda index, x: index.remove(None), ValueError),
        (lambda index, x: index.explain([x, x], "a"), ValueError),
        (lambda index, x: index.export("/no/such/folder/x.parquet"), OSError),
        (lambda index, x: pickle.dumps(index), TypeError),
    ],
)
def test_bad_questions(place, call, error):
    index = make(place)
    index.add(clouds(3), ids=list("abc"))
    with pytest.raises(error):
        call(index, clouds(1)[0])
    assert index.search(clouds(1)[0]).ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim"),
        ({"dim": 2.0}, "dim"),
        ({"dim": "2"}, "dim"),
        ({"embedding": "sliced"}, "embedding"),
        ({"embedding": SlicedWasserstein(slices=lambda points: points)}, "function"),
        ({"embedding": SlicedWasserstein(random_state=np.random.RandomState(0))}, "random generator"),
        ({"search": LadderSearch(random_state=np.random.RandomState(0))}, "random generator"),
        ({"embedding": SlicedWasserstein(reference="barycenter")}, "sample"),
        ({"embedding": SlicedWasserstein().fit([np.zeros((3, 5))])}, "dimension"),
        ({"embedding": SlicedWasserstein().fit([np.zeros((3, 2))]), "origin": [1.0, 2.0]}, "same origin"),
        ({"search": "exact"}, "search"),
        ({"search": HammingSearch()}, "sample"),
        ({"search": LadderSearch(path="/tmp/x")}, "path"),
        ({"search": LadderSearch(precision=8)}, "precision"),
        ({"standardize": True}, "sample"),
        ({"origin": "auto"}, "sample"),
        ({"origin": [1, 2, 3]}, "origin"),
        ({"origin": "middle"}, "origin"),
        ({"scale": "huge"}, "scale"),
        ({"max_points": 0}, "max_points"),
        ({"weighted": 1}, "weighted"),
        ({"sample": []}, "sample"),
        ({"sample": [np.zeros((2, 3))]}, "2"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_what_cannot_be_made(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        slosh.SetIndex.create(tmp_path / "i", **{"dim": 2, **options})
    assert not (tmp_path / "i").exists()


def test_names_that_are_taken_or_wrong(tmp_path):
    make(tmp_path / "i").close()
    with pytest.raises(FileExistsError, match=r"slosh\.open"):
        make(tmp_path / "i")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError):
        make(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="folder"):
        make(tmp_path / "no" / "such")
    with pytest.raises(FileNotFoundError, match="create"):
        slosh.open(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no index"):
        slosh.open(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="no index"):
        slosh.open(tmp_path / "folder")
    make(tmp_path / "folder").close()
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("name", ["with space", "q?mode=memory", "50%25#x", "ü日", "a'b\"c", "-x"])
def test_odd_names_of_folders(tmp_path, name):
    with make(tmp_path / name) as index:
        index.add(clouds(3))
    assert (tmp_path / name / "index.db").exists()
    with slosh.open(str(tmp_path / name), n_jobs=1) as index:
        assert len(index) == 3


def test_a_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with make("i") as index:
        index.add(clouds(3))
        monkeypatch.chdir(tmp_path / "elsewhere")
        index.add(clouds(3))
        assert len(index.search(clouds(1)[0])) == 6
        index.compact()
    assert os.listdir(tmp_path / "elsewhere") == []
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        assert len(index) == 6
        assert index.info()["embedded_on_open"] == 0


def test_a_closed_index_says_so(place):
    index = make(place)
    index.add(clouds(3), ids=list("abc"))
    index.close()
    index.close()
    x = clouds(1)
    calls = [
        lambda: len(index), lambda: index.ids, lambda: index.add(x), lambda: index.search(x[0]), lambda: index.get("a"),
        lambda: index.remove("a"), lambda: index.update("a", x[0]), lambda: index.compact(), lambda: index.verify(),
        lambda: index.info(), lambda: index.tune(), lambda: "a" in index, lambda: index.duplicates(),
        lambda: index.range_search(x[0], 1.0), lambda: next(index.records()), lambda: index.export("/tmp/x.parquet"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    assert "closed" in repr(index)


def test_a_read_only_index_is_not_changed(tmp_path):
    with make(tmp_path / "i") as index:
        index.add(clouds(3), ids=list("abc"))
    before = {p.name: p.read_bytes() for p in (tmp_path / "i").rglob("*") if p.is_file()}
    with slosh.open(tmp_path / "i", read_only=True, n_jobs=1) as index:
        assert index.read_only
        assert "read only" in repr(index)
        x = clouds(1)
        calls = [
            lambda: index.add(x), lambda: index.remove("a"), lambda: index.update("a", x[0]), lambda: index.compact(),
            lambda: index.tune(), lambda: index.add(iter(x)), lambda: index.update("a", metadata={}),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(ValueError, match="reading only"):
                call()
        assert index.search(x[0]).ids
        assert index.verify().ok
        assert index.info()["sets"] == 3
        index.neighbor_graph(2)
    after = {p.name: p.read_bytes() for p in (tmp_path / "i").rglob("*") if p.is_file()}
    assert {n: b for n, b in after.items() if "-shm" not in n and "-wal" not in n} == before


# -- what is chosen at creation ----------------------------------------------------------------------------------------

EMBEDDINGS = [
    SlicedWasserstein(**SMALL),
    SlicedWasserstein(**SMALL, quantiles="linear", slices="random", random_state=3),
    SlicedWasserstein(None, 4, slices=np.eye(3)),
    SlicedWasserstein(**SMALL, slices=slosh.slices.Polynomial(3)),
    SlicedWasserstein(**SMALL, slices=slosh.slices.Circular()),
    SlicedWasserstein(**SMALL, slices=slosh.slices.Neural()),
    SlicedWasserstein(**SMALL, reference="barycenter"),
    SlicedWasserstein(**SMALL, reference=np.random.default_rng(0).normal(size=(6, 3))),
    GeM(3),
    Covariance(),
    FSPool(5),
    MeanPool(),
    WassersteinEmbedding(np.random.default_rng(0).normal(size=(6, 3))),
]


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda e: f"{repr(e)[:50]}")
@pytest.mark.parametrize("search", [LadderSearch(), ExactSearch(), LSHSearch(), HammingSearch(rerank=20)], ids=repr)
def test_every_embedding_and_search_opens_as_it_was(tmp_path, embedding, search):
    if isinstance(search, LSHSearch | HammingSearch) and embedding not in EMBEDDINGS[:1] + EMBEDDINGS[8:10]:
        return
    sets = clouds(40, dim=3)
    index = make(tmp_path / "i", dim=3, embedding=embedding, search=search, sample=sets[:20])
    index.add(sets[:30])
    queries = clouds(4, dim=3, seed=9)
    index.add(sets[30:])
    index.remove(["4", "33"])
    index.update("5", sets[0])
    before = index.search(queries, k=5)
    vectors = index._engine._sets.embedding.transform(Sets.from_list(queries))
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as again:
        assert again.info()["embedded_on_open"] == 0
        assert np.array_equal(again._engine._sets.embedding.transform(Sets.from_list(queries)), vectors)
        after = again.search(queries, k=5)
        assert after.ids == before.ids
        assert all(np.array_equal(a, b) for a, b in zip(before.distances, after.distances, strict=True))
        assert after.distance_kind == before.distance_kind
        assert again.search(sets[0], k=2, recall=1.0).ids == ["0", "5"]
        again.add(clouds(3, dim=3, seed=11))
        assert again.verify().ok
        again.compact()
        assert len(again) == 41
        assert again.verify().ok


def test_an_embedding_that_is_fitted_stays_as_it_is(tmp_path):
    sets = clouds(30, dim=3)
    fitted = SlicedWasserstein(**SMALL, reference="barycenter").fit(sets)
    with make(tmp_path / "i", dim=3, embedding=fitted) as index:
        index.add(sets)
        assert np.array_equal(index._engine.recipe.embedding.reference_, fitted.reference_)
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        assert np.array_equal(index._engine.recipe.embedding.transform(sets), fitted.transform(sets))


def test_threads_are_those_of_whoever_opens_it(tmp_path):
    fitted = SlicedWasserstein(**SMALL, n_jobs=3).fit(clouds(5))
    make(tmp_path / "i", embedding=fitted, n_jobs=2).close()
    assert fitted.n_jobs == 3
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        index.add(clouds(5))
        assert index._engine.recipe.embedding.n_jobs == 1
        assert index._engine._sets.vector_search.n_jobs == 1


STEPS = [
    {"center": True},
    {"scale": "rms"},
    {"center": True, "scale": "unit"},
    {"standardize": True},
    {"standardize": ([1.0, 2.0], [2.0, 3.0])},
    {"max_points": 4, "random_state": 5},
    {"origin": [1000.0, -1000.0]},
    {"origin": "auto", "center": True},
]


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_what_is_done_to_sets_is_done_to_queries(tmp_path, steps):
    shift = [1000.0, -1000.0] if "origin" in steps else 0.0
    sets = [x + np.asarray(shift) for x in clouds(30)]
    index = make(tmp_path / "i", sample=sets[:10], **steps)
    index.add(sets)
    record = index.get("3")
    given = record.points if index.origin is None else record.points.astype(np.float64) + index.origin
    np.testing.assert_allclose(given, sets[3], rtol=1e-6)
    for i in (0, 7):
        hits = index.search(sets[i], k=3)
        assert (hits[0].id, hits[0].distance) == (str(i), 0.0)
        check_same(hits, brute(index, sets[i], 3))
        by_id = index.search(id=str(i), k=2)
        assert by_id.ids == hits.ids[1:]
        assert index.search(sets[i], k=1, certify=True)[0].distance == 0.0
    if steps.get("center"):
        assert index.search(sets[0] + 5.0, k=1)[0].id == "0"
    before = index.search(sets[5], k=30)
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as again:
        after = again.search(sets[5], k=30)
        assert after.ids == before.ids
        assert np.array_equal(after.distances, before.distances)
        assert again.verify().ok
        again.add([sets[5]], ids=["again"])
        assert again.search(id="again", k=1)[0].distance == 0.0
        assert again.info()["origin"] == (None if index.origin is None else index.origin.tolist())


def test_recall_one_is_exact_search():
    sets = clouds(1500, largest=6)
    ladder, exact = make(search=LadderSearch(precision=32)), make(search=ExactSearch())
    for index in (ladder, exact):
        index.add(sets)
    queries = clouds(20, seed=3, largest=6)
    a, b = ladder.search(queries, k=9, recall=1.0), exact.search(queries, k=9)
    assert a.ids == b.ids
    np.testing.assert_allclose(np.stack(a.distances), np.stack(b.distances), rtol=1e-12)
    fast = ladder.search(queries, k=9)
    assert fast.stats.recall is not None
    same = [len(set(x) & set(y)) / 9 for x, y in zip(fast.ids, b.ids, strict=True)]
    assert np.mean(same) >= 0.95
    certified = ladder.search(queries, k=9, certify=True)
    for query, hits in zip(queries, certified, strict=True):
        check_same(hits, brute(ladder, query, 9, sliced=True))


def test_info_and_repr(place):
    index = make(place)
    assert "0 sets" in repr(index)
    assert index.info()["sizes"] is None
    index.add(clouds(5), metadata={"x": 1})
    about = index.info()
    assert about["sets"] == 5
    assert about["weighted"] is False
    assert about["points"] == sum(map(len, clouds(5)))
    json.dumps(about)
    assert index.dim == 2
    assert index.path == place


def test_ids_by_filter(tmp_path):
    with slosh.SetIndex.create(tmp_path / "i.slosh", dim=1) as index:
        assert index.select() == []
        index.add([[[float(i)]] for i in range(6)], metadata=[{"n": i, "odd": i % 2 == 1} for i in range(6)])
        assert index.select() == index.ids
        assert index.select({"odd": True}) == ["1", "3", "5"]
        assert index.select("n >= 2 and odd = false", limit=1) == ["2"]
        assert index.select({"n": {"in": [0, 5], "<": 3}}) == ["0"]
        with pytest.raises(ValueError, match="limit=0"):
            index.select(limit=0)
