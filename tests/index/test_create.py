"""What is chosen when an index is created, and is never changed: embedding, search, preprocessing, origin."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from builders import cloud_list, make_index, plain_answer, small_embedding, split
from oracle import Oracle, check_nearest
from slosh import Preprocess, Sets
from slosh.embed import Covariance, FSPool, GeM, MeanPool, SlicedWasserstein, WassersteinEmbedding
from slosh.search import ExactSearch, FaissSearch, HammingSearch, LadderSearch, LSHSearch

SMALL = {"n_slices": 4, "n_quantiles": 4}


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
        ({"weighted": 1}, "weighted"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"search": LadderSearch(precision=8)}, "precision"),
    ],
    ids=lambda value: f"{value!r:.60}",
)
def test_what_cannot_be_made(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_index(tmp_path / "i", **{"dim": 2, "embedding": None, **options})
    assert not (tmp_path / "i").exists()


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
SEARCHES = [LadderSearch(), ExactSearch(), LSHSearch(), HammingSearch(rerank=20), FaissSearch()]
BOTH = [(embedding, search) for search in SEARCHES[:2] for embedding in EMBEDDINGS]
BOTH += [(embedding, search) for search in SEARCHES[2:] for embedding in EMBEDDINGS[:1] + EMBEDDINGS[8:10]]


@pytest.mark.parametrize(("embedding", "search"), BOTH, ids=lambda part: f"{part!r:.50}")
def test_every_embedding_and_search_opens_as_it_was(tmp_path, embedding, search):
    sets = cloud_list(40, dim=3)
    index = make_index(tmp_path / "i", dim=3, embedding=embedding, search=search, sample=sets[:20])
    index.add(sets[:30])
    queries = cloud_list(4, dim=3, seed=9)
    index.add(sets[30:])
    index.remove(["4", "33"])
    index.update("5", sets[0])
    before = index.search(queries, k=5)
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as again:
        assert again.info()["embedded_on_open"] == 0
        after = again.search(queries, k=5)
        assert plain_answer(after) == plain_answer(before)
        assert after.distance_kind == before.distance_kind
        assert again.search(sets[0], k=2, recall=1.0).ids == ["0", "5"]
        again.add(cloud_list(3, dim=3, seed=11))
        assert again.verify().ok
        again.compact()
        assert len(again) == 41
        assert again.verify().ok


def test_an_embedding_that_is_fitted_stays_as_it_is(tmp_path):
    """Its vectors are those of the index, also after it was opened again."""
    sets, queries = cloud_list(30, dim=3), cloud_list(3, dim=3, seed=1)
    fitted = SlicedWasserstein(**SMALL, quantiles="linear", slices="random", reference="barycenter").fit(sets[:10])
    expected = np.linalg.norm(fitted.transform(queries)[:, None].astype(float) - fitted.transform(sets)[None], axis=2)
    make_index(tmp_path / "i", dim=3, embedding=fitted, search=ExactSearch()).close()
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        index.add(sets)
        for hits, distances in zip(index.search(queries, k=30), expected, strict=True):
            np.testing.assert_allclose(hits.distances, np.sort(distances), rtol=1e-6)


def test_threads_are_those_of_whoever_opens_it(tmp_path):
    fitted = SlicedWasserstein(**SMALL, n_jobs=3).fit(cloud_list(5))
    make_index(tmp_path / "i", embedding=fitted, n_jobs=2).close()
    assert fitted.n_jobs == 3
    with slosh.open(tmp_path / "i", n_jobs=1) as index:
        index.add(cloud_list(5))
        assert "n_jobs=3" not in index.info()["embedding"]


# -- preprocessing -----------------------------------------------------------------------------------------------------

SLICES = np.array([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96]])
ORACLE = Oracle(SLICES, 4)


def centered(x):
    return x - x.mean(axis=0)


STEPS = {
    "center": ({"center": True}, centered),
    "rms": ({"scale": "rms"}, lambda x: x / np.sqrt((x**2).sum(axis=1).mean())),
    "center and unit": (
        {"center": True, "scale": "unit"},
        lambda x: centered(x) / np.linalg.norm(centered(x), axis=1).max(),
    ),
    "standardize": ({"standardize": ([1.0, 2.0], [2.0, 3.0])}, lambda x: (x - [1.0, 2.0]) / [2.0, 3.0]),
    "few points": ({"max_points": 4, "random_state": 5}, None),
    "learnt": ({"standardize": True}, None),
}


@pytest.mark.parametrize("origin", [None, [1000.0, -1000.0], "auto"], ids=str)
@pytest.mark.parametrize("steps", STEPS)
def test_what_is_done_to_sets_is_done_to_queries(tmp_path, steps, origin):
    given, formula = STEPS[steps]
    if origin is not None and steps not in ("center", "few points"):
        return
    shift = np.zeros(2) if origin is None else np.array([1000.0, -1000.0])
    sets = [x.astype(np.float64) + shift for x in cloud_list(30)]
    preprocess = Preprocess(**given)
    embedding = SlicedWasserstein(None, 4, slices=SLICES, n_jobs=1)
    options = {"embedding": embedding, "preprocess": preprocess, "origin": origin, "sample": sets[:10]}
    index = make_index(tmp_path / "i", **options)
    index.add(sets)
    record = index.get("3")
    points = record.points if index.origin is None else record.points.astype(np.float64) + index.origin
    np.testing.assert_allclose(points, sets[3], rtol=1e-6)  # stored as it came
    if formula is None:  # a draw, or learnt: then by the steps themselves
        steps_alone = Preprocess(**given).fit(Sets.from_list(sets[:10], origin=index.origin))
        done = split(steps_alone.apply(Sets.from_list(sets, origin=index.origin)))
    else:
        done = [formula(x) for x in sets]
    stored = {str(i): (np.asarray(x, np.float32), None) for i, x in enumerate(done)}
    for i in (0, 7):
        hits = index.search(sets[i], k=3)
        assert (hits[0].id, hits[0].distance) == (str(i), 0.0)
        check_nearest(hits, stored, ORACLE.distances(stored[str(i)], stored), 3, 6e-3)
        assert index.search(id=str(i), k=2).ids == hits.ids[1:]
        assert index.search(sets[i], k=1, certify=True)[0].distance == 0.0
    if given.get("center"):
        assert index.search(sets[0] + 5.0, k=1)[0].id == "0"
    before = plain_answer(index.search(sets[5], k=30))
    origin_before = index.info()["origin"]
    index.close()
    with slosh.open(tmp_path / "i", n_jobs=1) as again:
        assert plain_answer(again.search(sets[5], k=30)) == before
        assert again.verify().ok
        again.add([sets[5]], ids=["again"])
        assert again.search(id="again", k=1)[0].distance == 0.0
        assert again.info()["origin"] == origin_before


def test_preprocess_and_sample_are_not_changed():
    preprocess, sample = Preprocess(standardize=True), cloud_list(10)
    before = [x.copy() for x in sample]
    index = make_index(preprocess=preprocess, sample=sample)
    index.add(cloud_list(5, seed=1))
    assert len(index) == 5
    assert all(np.array_equal(a, b) for a, b in zip(sample, before, strict=True))


def test_coordinates_far_from_zero_need_an_origin():
    far = [x.astype(np.float64) + 1e7 for x in cloud_list(30)]
    index = make_index(origin=[1e7, 1e7], embedding=small_embedding(slices=SLICES, n_slices=None))
    index.add(far)
    stored = {str(i): (x, None) for i, x in enumerate(cloud_list(30))}
    check_nearest(index.search(far[3], k=5), stored, ORACLE.distances(stored["3"], stored), 5, 6e-3)


def test_vectors_of_64_numbers_take_less_than_150_bytes_of_memory(tmp_path):
    """With an index on disk, whose vectors stay mapped."""
    points = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    with slosh.SetIndex.create(tmp_path / "index", 64, embedding=MeanPool()) as index:
        index.add(slosh.Sets(points, np.arange(20_001)))
        about = index.info()
    assert about["search_info"]["n_components"] > 0
    assert sum(about["memory_bytes"].values()) / 20_000 < 150
