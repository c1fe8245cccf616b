"""`PartField` and the bounds made from it: they hold for every pair of a query and a set, whatever their weights."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import one_sided
from slosh import Sets
from slosh.embed import PartField
from slosh.embed.part_bounds import contained_bounds
from slosh.errors import InputError
from slosh.native import parts


def ragged(seed, n=12, dim=3, weighted=False, scale=1.0):
    random = np.random.default_rng(seed)
    points = [scale * random.normal(size=(size, dim)) for size in random.integers(1, 30, n)]
    weights = [random.integers(0, 3, len(each)) + (np.arange(len(each)) == 0) for each in points]
    return Sets.from_list(points, weights if weighted else None)


def one(sets, i):
    return sets[i], sets.weights_of(i)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dim=st.integers(1, 5),
    weighted=st.booleans(),
    coverage=st.sampled_from([0.2, 0.7, 1.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    n_near=st.integers(1, 9),
)
def test_no_bound_is_above_its_distance(seed, dim, weighted, coverage, scale, n_near):
    stored, asked = ragged(seed, 12, dim, weighted, scale), ragged(seed + 1, 4, dim, weighted, scale * 1.5)
    field = PartField(6, 4, n_near=n_near, n_jobs=1).fit(ragged(seed + 2, 20, dim, scale=scale))
    features, queries = field.features(stored), field.queries(asked)
    for squared in (False, True):
        low, _ = parts.field_bounds(
            features["field"],
            field.step_,
            queries.anchors,
            queries.distances,
            queries.offsets,
            queries.weights,
            coverage,
            squared,
        )
        true = [[one_sided(one(asked, i), one(stored, j), coverage, squared) for j in range(12)] for i in range(4)]
        assert (low <= np.array(true) * (1 + 1e-12)).all()
    fields = field.field(asked)
    down = np.asarray(np.maximum(fields - field.rounding(fields), 0), np.float32)
    low = contained_bounds(features["shares"], features["spread"], down, coverage)
    true = [[one_sided(one(stored, j), one(asked, i), coverage) for j in range(12)] for i in range(4)]
    assert (low <= np.array(true) * (1 + 1e-12)).all()


def test_the_field_is_rounded_down_and_no_farther_than_a_step():
    stored = ragged(0, 40)
    field = PartField(20, n_jobs=1).fit(stored)
    codes = field.features(stored)["field"].astype(np.float64)
    true = np.array(
        [
            np.linalg.norm(field.anchors_[:, None].astype(np.float64) - stored[i][None], axis=2).min(axis=1)
            for i in range(40)
        ]
    )
    assert (codes * field.step_ <= true).all()
    inside = codes < 255
    assert inside.any()
    assert (true[inside] <= (codes[inside] + 1) * field.step_ * (1 + 1e-5)).all()


def test_the_order_of_distances_is_that_of_the_inner_product():
    stored, asked = ragged(0, 60), ragged(1, 5)
    field = PartField(16, 16, n_jobs=1).fit(stored)
    vectors, queries = field.transform(stored).astype(np.float64), field.queries(asked)
    lengths = np.linalg.norm(vectors, axis=1)
    assert lengths == pytest.approx(field.longest_, rel=1e-5)
    away = np.linalg.norm(vectors[None] - queries.vectors[:, None], axis=2)
    fields = field.field(stored).astype(np.float64)
    for i in range(5):
        near = queries.anchors[queries.offsets[i] : queries.offsets[i + 1], 0]
        product = fields[:, near].mean(axis=1)
        # All 16 directions are kept, so nothing is lost but rounding.
        assert np.corrcoef(away[i] ** 2, product)[0, 1] > 0.99999


def test_sets_that_are_longer_than_the_sample_are_shortened():
    field = PartField(16, 8, n_jobs=1).fit(ragged(0, 60))
    far = ragged(3, 10, scale=50.0)
    assert np.linalg.norm(field.transform(far), axis=1) == pytest.approx(field.longest_, rel=1e-5)
    assert field.novelty(far) > 0.5
    assert field.novelty(ragged(0, 60)) == 0


def test_the_bits_depend_on_the_set_alone():
    sets = ragged(0, 50, weighted=True)
    field = PartField(16, 8, n_jobs=1).fit(sets)
    again = PartField(16, 8, n_jobs=2).fit(sets)
    vectors, features = field.stored(sets)
    others, more = again.stored(sets)
    assert np.array_equal(vectors, others)
    for i in (0, 7, 49):
        alone, own = field.stored(sets[i : i + 1])
        assert np.array_equal(alone[0], vectors[i])
        asked, together = field.queries(sets[i : i + 1]), field.queries(sets)
        assert np.array_equal(asked.vectors[0], together.vectors[i])
        for name in features:
            assert np.array_equal(own[name][0], features[name][i])
            assert np.array_equal(more[name], features[name])
    for twin in (copy.deepcopy(field), pickle.loads(pickle.dumps(field))):
        assert np.array_equal(twin.transform(sets), vectors)
        assert twin.fingerprint == field.fingerprint
    assert PartField(16, 8, random_state=1).fit(sets).fingerprint != field.fingerprint


def test_few_elements_get_few_anchors():
    two = Sets.from_list([[[0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
    field = PartField().fit(two)
    assert field.n_anchors_ == 2
    assert field.transform(two).shape == (2, field.vector_length)
    with pytest.raises(InputError, match="n_anchors=3"):
        PartField(3).fit(two)


@pytest.mark.parametrize(
    "options",
    [
        {"n_anchors": 0},
        {"n_anchors": "many"},
        {"n_components": 0},
        {"n_components": "few"},
        {"n_near": -1},
        {"anchors": "grid"},
    ],
)
def test_parameters_are_checked(options):
    with pytest.raises(InputError) as raised:
        PartField(**options).fit(ragged(0))
    assert raised.value.argument in options


def test_short_vectors_and_codes_follow_the_dimension():
    random = np.random.default_rng(0)
    for dim, n_numbers in ((3, 88), (24, 256)):
        sets = [random.normal(size=(5, dim)) for _ in range(400)]
        field = PartField(300, n_jobs=1).fit(sets)
        assert field.vector_length == n_numbers + 1
        codes = field.features(field.checked(sets))["field"]
        # In many dimensions nothing is near, and every distance says something.
        assert np.mean(codes == 255) < 0.01 if dim > 16 else np.mean(codes == 255) < 0.5
