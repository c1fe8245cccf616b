"""What part search promises, on every engine, against distances that NumPy computes from the formulas."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from builders import cloud_list, contents
from oracle import check_nearest, check_within, part_distance
from slosh import Sets, errors
from slosh.embed import DistanceField, PartField, SlicedWasserstein

MATCHES = ("part", "contained", "both")
TOLERANCE = 1e-9


def field(**options):
    return PartField(32, 16, n_jobs=1, **options)


def create(engine, sample, **options):
    return engine.create(2, **{"parts": field(), "sample": sample, **options})


def distances_of(match, query, stored, coverage=1.0):
    return {name: part_distance(match, query, one, coverage) for name, one in stored.items()}


def clouds(n, seed=0):
    return [points.astype(np.float32) for points in cloud_list(n, seed=seed)]


@pytest.mark.parametrize("match", MATCHES)
def test_the_nearest_are_proved(engine, match):
    """With filters, by id, after changes, pages, ties, and by whoever reads."""
    sets = clouds(60)
    sets[7] = sets[11] = sets[3]
    names = [f"{i:03}" for i in np.random.default_rng(1).permutation(60)]
    index = create(engine, sets[:20])
    index.add(sets[:45], names[:45], [{"part": i % 5} for i in range(45)])
    index.add(sets[45:], names[45:], [{"part": i % 5} for i in range(45, 60)])
    index.remove([names[5], names[50]])
    moved = sets[20] + 1
    index.update([names[20]], [moved])
    stored = {name: (points, None) for name, points in zip(names, sets, strict=True)}
    stored[names[20]] = moved, None
    del stored[names[5]], stored[names[50]]
    few = {name: stored[name] for i, name in enumerate(names) if i % 5 in (1, 3) and name in stored}
    index = engine.reopen(index) or index
    for asked in (index, engine.read_only(index) or index):
        for query in [*clouds(2, seed=2), sets[3], sets[9][:3]]:
            distances = distances_of(match, (query, None), stored)
            for k in (1, 3, 10, 1000):
                for options in ({"certify": True}, {"recall": 1.0}):
                    hits = asked.search(query, k, match=match, **options)
                    check_nearest(hits, stored, distances, k, TOLERANCE)
                    assert hits.stats.recall == 1.0
            assert hits.distance_kind == {"part": "part", "contained": "contained", "both": "chamfer"}[match]
            hits = asked.search(query, 4, where={"part": [1, 3]}, match=match, certify=True)
            check_nearest(hits, few, distances, 4, TOLERANCE)
            for radius in (0.0, 0.5, 2.0, 100.0):
                within = asked.range_search(query, radius, where={"part": [1, 3]}, match=match)
                check_within(within, few, distances, radius, TOLERANCE)
            # Where few sets are stored, a plain search is exact, too; otherwise its distances are right.
            check_nearest(asked.search(query, 5, match=match), stored, distances, 5, TOLERANCE)
            some = asked.search(query, 5, match=match, depth=20)
            assert some.distances == pytest.approx([distances[name] for name in some.ids], abs=TOLERANCE)
            assert 20 <= some.stats.full_distances[0] <= 22  # equal sets are equally far
        others = {name: one for name, one in stored.items() if name != names[9]}
        check_nearest(
            asked.search(id=names[9], k=6, match=match, certify=True),
            others,
            distances_of(match, (sets[9], None), others),
            6,
            TOLERANCE,
        )
        whole = asked.search(sets[9], 12, match=match, certify=True).ids
        pages = [asked.search(sets[9], 4, offset=i, match=match, certify=True).ids for i in (0, 4, 8)]
        assert [name for page in pages for name in page] == whole
    lists = index.search(sets[:4], 3, match=match)
    assert [hits.ids for hits in lists] == [index.search(one, 3, match=match).ids for one in sets[:4]]
    assert index.verify().ok


@pytest.mark.parametrize("match", ["part", "contained"])
@pytest.mark.parametrize("coverage", [0.3, 0.8, 1.0])
def test_a_share_of_the_mass_may_stay_uncovered(engine, match, coverage):
    sets = clouds(40)
    random = np.random.default_rng(3)
    weights = [random.integers(0, 4, len(points)) + (np.arange(len(points)) == 0) for points in sets]
    index = create(engine, sets[:20], weighted=True)
    index.add(sets, weights=weights)
    stored = {str(i): (points, w) for i, (points, w) in enumerate(zip(sets, weights, strict=True))}
    query, mass = clouds(1, seed=5)[0], np.linspace(0.0, 2.0, 50)
    query = np.concatenate([query, query + 3])[: len(mass)]
    mass = mass[: len(query)]
    asked = Sets.from_list([query], [mass])
    distances = distances_of(match, (query, mass), stored, coverage)
    hits = index.search(asked, 6, match=match, coverage=coverage, certify=True)[0]
    check_nearest(hits, stored, distances, 6, 1e-6)
    within = index.range_search(asked, 1.0, match=match, coverage=coverage)[0]
    check_within(within, stored, distances, 1.0, 1e-6)


def test_maxsim_of_unit_vectors_is_proved(engine):
    random = np.random.default_rng(0)

    def unit(n):
        points = random.normal(size=(n, 4))
        return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)

    sets = [unit(n) for n in random.integers(2, 9, 50)]
    index = engine.create(4, parts=field(), sample=sets)
    index.add(sets)
    query = unit(5)
    stored = {str(i): (points, None) for i, points in enumerate(sets)}
    away = {name: 1 - (query.astype(np.float64) @ points.T).max(axis=1).mean() for name, (points, _) in stored.items()}
    for options in ({"certify": True}, {}, {"depth": 50}):
        hits = index.search(query, 7, match="part", rerank="maxsim", **options)
        check_nearest(hits, stored, away, 7, 1e-6)
        assert hits.distance_kind == "maxsim"
    check_within(index.range_search(query, 0.4, match="part", rerank="maxsim"), stored, away, 0.4, 1e-6)
    with pytest.raises(errors.InputError, match="length"):
        index.search(query * 2, match="part", rerank="maxsim")
    index.add([query * 3], ids=["long"])
    with pytest.raises(errors.InputError, match="length"):
        index.search(query, 60, match="part", rerank="maxsim")


def test_parts_are_enabled_later(engine):
    """All sets get what they need in one change; readers see it, a second time does nothing, whole distances stay."""
    sets = clouds(50)
    index = engine.create(2)
    index.add(sets, metadata=[{"n": i} for i in range(50)])
    reader, before, whole = engine.read_only(index), contents(index), index.search(sets[3], 5, recall=1.0)
    with pytest.raises(errors.UnsupportedError) as raised:
        index.search(sets[3], match="part")
    assert "enable" in raised.value.remedy
    index.enable("parts", field())
    anchors = index.info()["parts"]
    index.enable("parts")
    assert index.info()["parts"] == anchors
    assert contents(index) == before
    after = index.search(sets[3], 5, recall=1.0)
    assert (after.ids, after.distances.tolist()) == (whole.ids, whole.distances.tolist())
    stored = {str(i): (points, None) for i, points in enumerate(sets)}
    distances = distances_of("part", (sets[4][:4], None), stored)
    for asked in (index, reader or index):
        check_nearest(asked.search(sets[4][:4], 5, match="part", certify=True), stored, distances, 5, TOLERANCE)
    index.add([sets[4][:4]], ids=["piece"])
    index.compact()
    index.retrain()
    index = engine.reopen(index) or index
    assert index.search(sets[4][:4], 1, match="part", certify=True).ids == ["4"]  # before "piece", by id
    assert index.search(sets[4], 1, match="contained", certify=True).ids == ["4"]
    assert index.verify().ok


def test_a_copy_has_parts(engine, tmp_path):
    sets = clouds(30)
    index = create(engine, sets)
    index.add(sets)
    index.copy_to(tmp_path / "copy.slosh")
    import slosh

    with slosh.open(tmp_path / "copy.slosh") as copy:
        for match in MATCHES:
            mine, theirs = (each.search(sets[2][:3], 6, match=match, certify=True) for each in (index, copy))
            assert (mine.ids, mine.distances.tolist()) == (theirs.ids, theirs.distances.tolist())
        assert copy.verify().ok


def test_an_empty_index_answers(engine):
    index = create(engine, clouds(20))
    for match in MATCHES:
        hits = index.search(clouds(1)[0], 3, match=match, certify=True)
        assert (hits.ids, hits.distance_kind) == ([], {"both": "chamfer"}.get(match, match))
        assert index.range_search(clouds(1)[0], 1.0, match=match).ids == []


def test_an_explanation_says_where_a_part_lies(engine):
    sets = clouds(20)
    index = create(engine, sets)
    sets[5] = np.concatenate([sets[5], sets[6], sets[7], sets[8]])
    index.add(sets)
    piece = np.concatenate([sets[5][:3], sets[5][:1] + 50])
    told = index.explain(piece, "5", match="part")
    assert np.array_equal(sets[5][told.nearest[:3]], sets[5][:3])
    assert told.covered(1e-6) == pytest.approx(0.75)
    assert told.distance == pytest.approx(index.search(piece, 20, match="part", where="@id = 5").distances[0])
    assert index.explain("5", "5", match="contained").distance == 0
    with pytest.raises(errors.InputError, match="match"):
        index.explain(piece, "5", match="some")


def test_bad_input_is_refused(engine):
    sets = clouds(30)
    with pytest.raises(errors.InputError, match="learns its anchors") as raised:
        engine.create(2, parts=True)
    assert "enable" in raised.value.remedy
    with pytest.raises(errors.InputError, match="n_anchors"):
        engine.create(2, parts=PartField(5000), sample=sets)
    for wrong in ("yes", 3, DistanceField(4)):
        with pytest.raises(errors.InputError, match="parts="):
            engine.create(2, parts=wrong, sample=sets)
    with pytest.raises(errors.InputError, match="PartField is no embedding"):
        engine.create(2, embedding=PartField(4), sample=sets)
    with pytest.raises(errors.InputError, match="dimension"):
        engine.create(3, parts=field().fit(sets))
    index = create(engine, sets)
    index.add(sets)
    wrong = [
        ({"match": "half"}, "match"),
        ({"match": None}, "match"),
        ({"match": "whole", "coverage": 0.5}, "coverage"),
        ({"match": "both", "coverage": 0.5}, "coverage"),
        *[({"match": "part", "coverage": bad}, "coverage") for bad in (0, -1, 1.5, "all", np.nan, True)],
        ({"match": "contained", "rerank": "maxsim"}, "rerank"),
        ({"match": "part", "rerank": "hausdorff", "certify": True}, "rerank"),
        ({"match": "part", "depth": 9, "certify": True}, "depth"),
        ({"match": "part", "offset": 2}, "depth"),
        ({"rerank": "partial_wasserstein"}, "rerank"),
    ]
    for options, argument in wrong:
        with pytest.raises(errors.InputError) as raised:
            index.search(sets[0], 3, **options)
        assert raised.value.argument == argument
        assert raised.value.remedy
    for query in (np.empty((0, 2)), np.ones((3, 3))):
        with pytest.raises(errors.InputError):
            index.search(query, 3, match="part")
    with pytest.raises(errors.InputError, match="feature"):
        index.enable("wholes")


def test_another_distance_orders_the_candidates(engine):
    sets = clouds(25)
    index = create(engine, sets, embedding=SlicedWasserstein(4, 4, n_jobs=1))
    index.add(sets)
    hits = index.search(sets[6][:3], 5, match="part", rerank="chamfer", depth=25)
    stored = {str(i): (points, None) for i, points in enumerate(sets)}
    check_nearest(hits, stored, distances_of("both", (sets[6][:3], None), stored), 5, 1e-6)
    assert (hits.distance_kind, hits.stats.recall) == ("chamfer", None)


def test_searches_go_on_while_parts_are_enabled(engine):
    sets = clouds(60)
    index = engine.create(2)
    index.add(sets)
    done, wrong = threading.Event(), []

    def search():
        while not done.is_set():
            if index.search(sets[5], 1, recall=1.0).ids != ["5"]:
                wrong.append(1)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        index.enable("parts", field())
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert index.search(sets[5][:2], 1, match="part").distances[0] == 0
