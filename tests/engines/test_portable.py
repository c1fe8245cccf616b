"""Fitted objects as plain data: what is written comes back, and what others have put together is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import clouds
from slosh import embed, errors, hash, search, slices
from slosh.engines import portable

THINGS = [
    embed.SlicedWasserstein(3, 4),
    embed.SlicedWasserstein(3, 4, slices=slices.Polynomial(3)),
    embed.SlicedWasserstein(3, 4, reference="kmeans"),
    embed.GeM(),
    embed.Covariance(),
    embed.FSPool(4),
    embed.MeanPool(),
    embed.WassersteinEmbedding(n_reference=5),
    embed.DistanceField(5),
    embed.DistanceField(anchors=[[0.0, 1.0], [2.0, 0.0]]),
    embed.LocalShape(),
    embed.LocalShape(embed.SlicedWasserstein(3, 4, reference="kmeans"), (4, 9)),
]


def packed(thing):
    arrays = []
    tree = json.loads(json.dumps(portable.dump(thing, arrays, "embedding")))
    return tree, arrays


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: repr(thing)[:40])
def test_a_fitted_embedding_embeds_alike(thing):
    sets = clouds(12, seed=1)
    fitted = thing.fit(sets)
    again = portable.load(*packed(fitted))
    assert type(again) is type(fitted)
    assert again.get_params().keys() == fitted.get_params().keys()
    assert np.array_equal(again.transform(sets), fitted.transform(sets))


@pytest.mark.parametrize("fitted", [False, True])
def test_hashes_and_searches(fitted):
    sign = hash.SignHash(64, random_state=3)
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    if fitted:
        sign.fit(vectors)
    again = portable.load(*packed(search.HammingSearch(sign, rerank=5))).hash
    assert again.get_params() == sign.get_params()
    assert hasattr(again, "n_features_in_") == fitted
    if fitted:
        assert np.array_equal(again.transform(vectors), sign.transform(vectors))


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (lambda points: points, "function"),
        (np.random.default_rng(0), "random generator"),
        (np.array(["text"]), "array of"),
        (object(), "object"),
        (embed.SlicedWasserstein(slices=lambda points: points), "function"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_stored(thing, message):
    with pytest.raises(errors.InputError, match=message) as told:
        portable.dump(thing, [], "embedding")
    assert told.value.argument == "embedding"


TREE, ARRAYS = packed(embed.SlicedWasserstein(3, 4).fit(clouds(3)))
JUNK = st.none() | st.booleans() | st.integers(-5, 99) | st.text(max_size=5) | st.just([]) | st.just({"array": 10**9})


def places(tree, path=()):
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from places(value, (*path, key))


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(list(places(TREE))), junk=JUNK, name=st.sampled_from(["array", "list", "sets", "class", "x"])
)
def test_what_was_tampered_with_is_refused_or_harmless(path, junk, name):
    """Loading raises one of the errors that callers expect, or gives an object of a class of slosh."""
    tree = json.loads(json.dumps(TREE))
    inside = tree
    for key in path:
        inside = inside[key] if isinstance(inside, dict) else {}
    if isinstance(inside, dict):
        inside[name] = junk
    try:
        made = portable.load(tree, ARRAYS)
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    assert made is None or isinstance(made, list | np.ndarray | bool | int | str | float | embed.SlicedWasserstein)


def test_depth_is_bounded():
    tree = 1
    for _ in range(5000):
        tree = {"list": [tree]}
    with pytest.raises(ValueError, match="not what slosh writes"):
        portable.load(tree, [])
