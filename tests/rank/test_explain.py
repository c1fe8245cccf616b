"""The parts of a sliced distance sum to the whole, and point at what differs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slosh
from builders import clouds
from slosh import rank
from slosh.embed import SlicedWasserstein
from slosh.slices import Polynomial


@settings(max_examples=30)
@given(
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    dim=st.integers(1, 4),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_parts_of_an_explanation_sum_to_the_whole(sizes, dim, weighted, seed):
    sets = clouds(sizes, dim, seed, weighted)
    found = rank.explain(sets[:1], sets[1:], n_slices=7)
    expected = slosh.distance(sets[:1], sets[1:], n_slices=7)
    assert found.distance == pytest.approx(expected, abs=1e-5)
    for parts, n in ((found.slices, None), (found.x_elements, sizes[0]), (found.y_elements, sizes[1])):
        assert (parts >= 0).all()
        assert parts.sum() == pytest.approx(expected**2, abs=1e-4)
        assert n is None or len(parts) == n
    if weighted:
        assert not found.x_elements[sets.weights_of(0) == 0].any()


def test_an_explanation_points_at_what_differs():
    rng = np.random.default_rng(0)
    x = rng.normal(scale=0.01, size=(40, 2))
    y = x.copy()
    y[7] += [0, 10]
    found = rank.explain(x, y, slices=np.eye(2))
    assert found.y_elements.argmax() == 7
    assert found.y_elements[7] > 0.9 * found.distance**2
    assert found.slices[1] > 0.99 * found.distance**2
    assert "elements of x" in str(found)
    assert np.array_equal(found.directions, np.eye(2))


def test_explanation_with_the_slices_of_a_model():
    sets = clouds([20, 30], 2)
    for slices in ("auto", Polynomial(3)):
        model = SlicedWasserstein(6, slices=slices, random_state=4).fit(sets)
        found = rank.explain(sets[0], sets[1], slices=model.slices_)
        lower, upper = model.bounds(sets[:1], sets[1:])
        assert lower.item() - 1e-5 <= found.distance <= upper.item() + 1e-5


@pytest.mark.parametrize("dim", [2, 3])
def test_plot(dim, tmp_path):
    pytest.importorskip("matplotlib")
    sets = clouds([300, 250], dim)
    path = tmp_path / "why.png"
    figure = rank.explain(sets[:1], sets[1:], n_slices=4).plot(path, title="why")
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert figure.axes[0].get_title() == "why"


def test_plot_into_axes_of_ones_own(tmp_path):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    left, right = figure.subplots(1, 2)
    sets = clouds([30, 25], 2)
    assert rank.explain(sets[:1], sets[1:]).plot(axes=right) is figure
    assert not left.has_data()
    assert right.has_data()


def test_plot_needs_two_or_three_dimensions():
    with pytest.raises(ValueError, match="PCA"):
        rank.explain(np.zeros((2, 5)), np.ones((3, 5))).plot()
