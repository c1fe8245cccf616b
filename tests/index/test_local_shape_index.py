"""An index whose embedding is LocalShape: what it stores and learns anew, and which distances it does not claim."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from builders import cloud_list
from slosh import Preprocess
from slosh.embed import LocalShape, SlicedWasserstein
from slosh.errors import UnsupportedError

SETS = [points * (1 + i % 3) for i, points in enumerate(cloud_list(40))]


def made(path=None, **options):
    embedding = LocalShape(SlicedWasserstein(8, 4), neighbors=(4, 9))
    index = slosh.SetIndex.create(path, dim=2, embedding=embedding, sample=SETS[:30], **options)
    index.add(SETS)
    return index


def test_distances_are_those_of_the_richer_sets_and_last(tmp_path):
    steps = Preprocess(center=True, scale="rms", max_points=20)
    with made(tmp_path / "a", preprocess=steps) as index:
        prepared = steps.apply(SETS)
        model = LocalShape(SlicedWasserstein(8, 4), neighbors=(4, 9)).fit(prepared[:30])
        vectors = model.transform(prepared)
        expected = np.linalg.norm(vectors - vectors[3], axis=1)
        hits = index.search(SETS[3], k=6, recall=1.0)
        assert hits.distance_kind == "embedded"
        assert hits.ids == [str(i) for i in np.argsort(expected)[:6]]
        np.testing.assert_allclose(hits.distances, np.sort(expected)[:6], rtol=2e-3, atol=1e-4)
    with slosh.open(tmp_path / "a") as again:
        assert repr(again.embedding) == repr(LocalShape(SlicedWasserstein(8, 4), neighbors=(4, 9)))
        assert np.array_equal(again.embedding.scale_, model.scale_)
        same = again.search(SETS[3], k=6, recall=1.0)
        assert (same.ids, list(same.distances)) == (hits.ids, list(hits.distances))
        assert again.verify().ok


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"certify": True}, "certify"),
        ({"certify": True, "rerank": "hausdorff"}, "certify"),
        ({"rerank": "sliced"}, "rerank"),
        ({"rerank": "sliced", "certify": True}, "rerank"),
    ],
)
def test_the_sliced_distance_is_not_claimed(options, argument):
    """The vectors slice richer sets, so they bound no distance of the sets themselves."""
    index = made()
    with pytest.raises(UnsupportedError) as told:
        index.search(SETS[3], k=3, **options)
    assert told.value.argument == argument
    assert told.value.remedy.startswith(
        ("give another distance", "give the index another embedding", "search with rerank=")
    )


def test_other_distances_are_those_of_the_sets_themselves():
    hits = made().search(SETS[3], k=5, rerank="chamfer", depth=40)
    np.testing.assert_allclose(hits.distances, np.sort(slosh.rank.chamfer(SETS[3], SETS))[:5], rtol=1e-5)


def test_retraining_learns_the_columns_anew():
    index = made()
    index.add([50 * points for points in SETS], ids=[f"large{i}" for i in range(40)])
    before = index.embedding.scale_
    index.retrain()
    assert not np.allclose(index.embedding.scale_, before, rtol=0.1)
    assert index.search(SETS[3], k=1, recall=1.0).ids == ["3"]
