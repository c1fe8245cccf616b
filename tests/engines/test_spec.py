"""The specification of an index: what `make_spec` refuses, fits and keeps, and how it is stored."""

from __future__ import annotations

import numpy as np
import pytest

from builders import cloud_list, small_embedding
from slosh import Preprocess, Sets, errors
from slosh.embed import DistanceField, GeM, LocalShape, SlicedWasserstein, Whitened
from slosh.engines.spec import MAX_LENGTH, WHOLE, IndexSpec, make_spec
from slosh.search import ExactSearch, HammingSearch, LadderSearch

FILLED = ExactSearch()
FILLED.add(np.zeros((2, 3), np.float32))
LEARNT = Whitened().fit(cloud_list(30))


@pytest.mark.parametrize(
    ("options", "argument", "message"),
    [
        ({"embedding": "sliced"}, "embedding", "slosh.embed"),
        ({"embedding": SlicedWasserstein}, "embedding", "slosh.embed"),
        ({"embedding": SlicedWasserstein(reference="barycenter")}, "embedding", "sample"),
        ({"embedding": DistanceField()}, "embedding", "anchors='kmeans' is learnt from data: pass .* sample="),
        ({"embedding": DistanceField(), "sample": cloud_list(3)}, "n_anchors", "fit on more sets"),
        ({"embedding": SlicedWasserstein().fit([np.zeros((3, 5))])}, "embedding", "dimension 5"),
        ({"embedding": SlicedWasserstein().fit([np.zeros((3, 2))]), "origin": [1.0, 2.0]}, "origin", "same origin"),
        ({"embedding": LocalShape()}, "embedding", "sample"),
        (
            {"dim": 300, "embedding": LocalShape()},
            "embedding",
            "these sets have 300 features: use it for sets of 2 or 3",
        ),
        ({"dim": 1, "embedding": Whitened([GeM(2), LocalShape()])}, "embedding", "these sets have 1 feature: use"),
        (
            {"embedding": [GeM(2), SlicedWasserstein()]},
            "embedding",
            r"a list: wrap them: embedding=Whitened\(\[a, b\]\)",
        ),
        (
            {"embedding": LEARNT, "sample": cloud_list(30)},
            "sample",
            "is fitted and stays as it is: .* leave sample out",
        ),
        ({"embedding": SlicedWasserstein(2, MAX_LENGTH)}, "embedding", "numbers"),
        ({"embedding": GeM(1 << 11)}, "embedding", "orders"),
        ({"embedding": LocalShape(GeM(1 << 11)), "sample": cloud_list(9)}, "embedding", "orders"),
        ({"search": "exact"}, "search", "slosh.search"),
        ({"search": HammingSearch()}, "search", "sample"),
        ({"search": FILLED}, "search", "2 rows"),
        ({"search": LadderSearch(path="/tmp/x")}, "search", "path"),
        ({"search": LadderSearch(precision=8)}, "precision", "precision"),
        ({"preprocess": {"center": True}}, "preprocess", "slosh.Preprocess"),
        ({"preprocess": Preprocess(standardize=True)}, "preprocess", "sample"),
        ({"origin": "auto"}, "origin", "sample"),
        ({"origin": [1, 2, 3]}, "origin", "origin"),
        ({"origin": "middle"}, "origin", "origin"),
        ({"sample": []}, "sample", "empty"),
        ({"sample": [np.zeros((2, 3))]}, None, "2"),
    ],
    ids=lambda value: f"{value!r:.60}",
)
def test_what_cannot_be_made(options, argument, message):
    with pytest.raises(errors.InputError, match=message) as told:
        make_spec(**{"dim": 2, **options})
    assert argument is None or told.value.argument == argument


@pytest.mark.parametrize(
    "options",
    [
        {"embedding": LEARNT, "preprocess": Preprocess(standardize=True)},
        {"embedding": LEARNT, "search": HammingSearch()},
        {"embedding": SlicedWasserstein().fit(cloud_list(3))},
    ],
    ids=["standardize", "codes", "learns nothing"],
)
def test_a_sample_beside_a_fitted_embedding(options):
    """It is for what else learns; and an embedding that learns nothing is the same with it or without."""
    made = make_spec(2, **options, sample=cloud_list(30, seed=5))
    some = cloud_list(4, seed=6)
    assert made.embedding.transform(some).tolist() == options["embedding"].transform(some).tolist()


def test_what_is_given_stays_as_it_was():
    """What is fitted is fitted on copies; of what is fitted there is a copy, and to fit that again changes nothing."""
    embedding, search, steps = small_embedding(reference="barycenter"), HammingSearch(), Preprocess(standardize=True)
    spec = make_spec(2, embedding, search, steps, "auto", cloud_list(30))
    assert not hasattr(embedding, "n_features_in_")
    assert search.hash is None
    assert steps.needs_sample
    assert not spec.preprocess.needs_sample
    assert spec.search.hash.n_features_in_ == spec.spaces[WHOLE].length == spec.embedding.index_length
    assert spec.origin.shape == (2,)
    fitted = small_embedding().fit(cloud_list(3))
    made, some = make_spec(2, fitted).embedding, cloud_list(4, seed=6)
    before = fitted.transform(some).tolist()
    fitted.set_params(random_state=5).fit(cloud_list(9, seed=7))
    assert made.transform(some).tolist() == before != fitted.transform(some).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"origin": [10.0, -3.0]},
        {"preprocess": Preprocess(center=True, scale="rms"), "search": ExactSearch()},
        {"search": HammingSearch(), "sample": cloud_list(30)},
        {"embedding": GeM(3)},
        {"embedding": DistanceField(20), "sample": cloud_list(30)},
        {"embedding": DistanceField(anchors=[[101.0, 2.0], [99.0, 1.0]]), "origin": [100.0, 0.0]},
        {"embedding": LocalShape(), "sample": cloud_list(30)},
        {"embedding": LocalShape(GeM(2), 5), "sample": cloud_list(30), "origin": [10.0, -3.0]},
        {"preprocess": Preprocess(center=True, align="pca")},
    ],
    ids=lambda options: f"{options!r:.40}",
)
def test_what_is_stored_embeds_alike(options):
    spec = make_spec(2, **{"embedding": small_embedding(), **options})
    again = IndexSpec.unpack(spec.pack(), "here")
    assert again.describe() == spec.describe()
    sets = spec.sets(cloud_list(9, seed=2))
    before, after = spec.embed(sets), again.embed(again.sets(cloud_list(9, seed=2)))
    np.testing.assert_array_equal(after.sets.points, before.sets.points)
    for one, other in zip(before.vectors[WHOLE], after.vectors[WHOLE], strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_damaged_is_refused():
    packed = make_spec(2, small_embedding()).pack()
    for bad in (packed[:-1], packed[: len(packed) // 2], packed[:-5] + b"wrong"):
        with pytest.raises(errors.DamagedError, match="here"):
            IndexSpec.unpack(bad, "here")
    for foreign in (b"", b"x" * 100):
        with pytest.raises(errors.FormatError, match="here"):
            IndexSpec.unpack(foreign, "here")


@pytest.mark.parametrize("error", [MemoryError(), errors.MissingExtra("needs POT", package="ot")], ids=repr)
def test_what_this_machine_lacks_is_no_damage(monkeypatch, error):
    packed = make_spec(2, small_embedding()).pack()

    def check_sizes(_):
        raise error

    monkeypatch.setattr(IndexSpec, "check_sizes", check_sizes)
    with pytest.raises(type(error)):
        IndexSpec.unpack(packed, "here")


@pytest.mark.parametrize(
    "anchors",
    [
        np.zeros((4, 3), np.float32),
        np.zeros((4, 2)),
        np.zeros(2, np.float32),
        np.zeros((0, 2), np.float32),
        np.full((4, 2), np.nan, np.float32),
        np.full((4, 2), 1e30, np.float32),
        None,
        "kmeans",
    ],
    ids=lambda anchors: getattr(anchors, "shape", anchors),
)
def test_anchors_that_cannot_have_been_fitted_are_refused(anchors):
    spec = make_spec(2, DistanceField(anchors=[[0.0, 1.0]] * 4))
    spec.embedding.anchors_ = anchors
    with pytest.raises(errors.DamagedError, match="here"):
        IndexSpec.unpack(spec.pack(), "here")


LOCAL = {
    "scale_": (np.ones(3), np.ones(13, np.float32), np.full(13, np.nan), -np.ones(11), np.full(11, np.inf), None),
    "neighbors_": ([8], [32, 8], [8, 33], None),
    "neighbors": ((), "many", (8, 8)),
    "n_features_in_": (3, 4),
    "embedding_": (GeM(1).fit(cloud_list(3)), LadderSearch(), None, LocalShape().fit(cloud_list(3))),
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in LOCAL.items() for bad in values])
def test_a_local_shape_that_fit_could_not_have_made_is_refused(name, bad):
    spec = make_spec(2, LocalShape(small_embedding()), sample=cloud_list(30))
    IndexSpec.unpack(spec.pack(), "here")
    setattr(spec.embedding, name, bad)
    with pytest.raises(errors.DamagedError, match="here"):
        IndexSpec.unpack(spec.pack(), "here")


def test_a_slicer_inside_of_a_local_shape_is_checked():
    spec = make_spec(2, LocalShape(small_embedding()), sample=cloud_list(30))
    inner = spec.embedding.embedding_
    inner.slicer_.directions_ = inner.slicer_.directions_[:, :2].copy()
    with pytest.raises(errors.DamagedError, match="another dimension"):
        IndexSpec.unpack(spec.pack(), "here")


def test_sets_of_a_user_become_sets_of_the_index():
    spec = make_spec(2, origin=[100.0, 0.0])
    assert spec.sets([[[101.0, 2.0]]]).points.tolist() == [[1.0, 2.0]]
    assert spec.sets([[[101.0, 2.0]]], [[3.0]]).weights.tolist() == [3.0]
    with pytest.raises(errors.InputError):
        spec.sets([np.zeros((2, 3))])
    with pytest.raises(errors.InputError):
        spec.sets(Sets.from_list([np.zeros((2, 3))]))
