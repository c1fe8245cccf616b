"""Fields as torch computes them, against float64, and what happens when memory is full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_gpu import DEVICES, torch

from builders import clouds
from slosh.embed import DistanceField
from slosh.errors import DeviceMemoryError
from slosh.gpu import field as fields
from slosh.native import kernel_numpy
from slosh.native.arrays import Ragged

pytestmark = pytest.mark.parametrize("device", DEVICES)


def ragged(sizes, dim, seed, weighted):
    sets = clouds(sizes, dim, seed, weighted)
    weights = sets.weights
    if weights is not None and len(sets.points) > len(sets):  # some weigh nothing, but never all of a set
        weights = weights.copy()
        drop = np.random.default_rng(seed).random(len(weights)) < 0.3
        drop[sets.offsets[:-1]] = False
        weights[drop] = 0
    return Ragged(sets.points, sets.offsets, weights)


def computed(sets, anchors, device):
    out = np.full((len(sets.offsets) - 1, len(anchors)), np.nan, np.float32)
    fields.field(sets, anchors, out, device)
    return out


def expected(sets, anchors):
    out = np.empty((len(sets.offsets) - 1, len(anchors)))
    kernel_numpy.field(sets, anchors, out)
    return out


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=6),
    dim=st.sampled_from([1, 2, 3, 5, 40]),
    n_anchors=st.sampled_from([1, 5, 70]),
    weighted=st.booleans(),
    scale=st.sampled_from([1e-15, 1e-3, 1.0, 1e12]),
    seed=st.integers(0, 999),
)
def test_is_the_formula_but_for_the_rounding_that_the_embedding_states(
    device, sizes, dim, n_anchors, weighted, scale, seed
):
    sets = ragged(sizes, dim, seed, weighted)
    sets = sets._replace(points=sets.points * np.float32(scale))
    anchors = (np.random.default_rng(seed).normal(size=(n_anchors, dim)) * scale).astype(np.float32)
    found, exact = computed(sets, anchors, device), expected(sets, anchors)
    model = DistanceField(anchors=anchors).fit(clouds([1], dim, 0))
    assert (np.linalg.norm(found - exact, axis=1) <= model.rounding(found)).all()


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_distances_near_zero_keep_their_digits(device, dim):
    """Anchors that are elements, and others next to them, far from the origin: products alone would lose all digits."""
    sets = ragged([300, 1, 40], dim, 1, False)
    sets.points[...] += 100
    anchors = sets.points[::7].copy()
    anchors[1::3, 0] = np.nextafter(anchors[1::3, 0], np.inf)
    anchors[2::3, 0] += np.float32(1e-3)
    found, exact = computed(sets, anchors, device), expected(sets, anchors)
    assert (found[exact == 0] == 0).all()
    assert (exact == 0).sum() > 10
    np.testing.assert_allclose(found, exact, rtol=1e-6 * dim, atol=0)


def test_large_sets_and_few_elements_at_once(device, monkeypatch):
    sets = ragged([1, 5000, 3, 700, 1], 6, 2, True)
    anchors = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    at_once = computed(sets, anchors, device)
    for name in ("TABLE_NUMBERS", "PAIRS"):
        monkeypatch.setattr(fields, name, 4096)
    np.testing.assert_allclose(computed(sets, anchors, device), at_once, rtol=1e-6)
    np.testing.assert_allclose(at_once, expected(sets, anchors), rtol=1e-6)


def test_no_sets(device):
    none = Ragged(np.empty((0, 3), np.float32), np.zeros(1, np.int64), None)
    assert computed(none, np.ones((4, 3), np.float32), device).shape == (0, 4)


def test_a_full_memory_takes_fewer_anchors_and_is_then_an_error(device, monkeypatch):
    if device != "cpu":
        pytest.skip("the kernel holds no table of distances; cuda_cases.py fills the memory")
    sets = ragged([50, 20], 3, 3, False)
    anchors = np.random.default_rng(0).normal(size=(33, 3)).astype(np.float32)
    sound, most = fields.by_differences, 5

    def full(points, idle, at, part):
        if len(part) > most:
            raise torch.cuda.OutOfMemoryError("full")
        return sound(points, idle, at, part)

    monkeypatch.setattr(fields, "by_differences", full)
    np.testing.assert_allclose(computed(sets, anchors, device), expected(sets, anchors), rtol=1e-6)
    most = 0
    with pytest.raises(DeviceMemoryError, match="the distances of 50 elements") as caught:
        computed(sets, anchors, device)
    assert caught.value.device == device


def test_a_full_memory_takes_fewer_sets_where_fewer_anchors_do_not_help(device, monkeypatch):
    sets = ragged([10] * 30, 20, 3, False)
    anchors = np.random.default_rng(0).normal(size=(4, 20)).astype(np.float32)
    sound, asked = fields.by_products, []

    def full(points, *given):
        asked.append(len(points))
        if len(points) > 100:
            raise torch.cuda.OutOfMemoryError("full")
        return sound(points, *given)

    monkeypatch.setattr(fields, "by_products", full)
    np.testing.assert_allclose(computed(sets, anchors, device), expected(sets, anchors), rtol=1e-6)
    assert asked[0] == 300
    assert sum(n for n in asked if n <= 100) == 300
