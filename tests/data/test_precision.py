"""Rounding to float32: the warnings, the origins that keep the detail, and the scale of features."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from comparing import raises, utm
from slosh.data import precision
from slosh.data.sets import Sets, as_sets
from slosh.errors import PrecisionWarning, ScaleWarning

shared = np.shares_memory


# ---- precision and scale


def test_far_coordinates_warn_and_an_origin_keeps_the_detail():
    x = utm()
    with pytest.warns(
        PrecisionWarning, match=r"feature 1 by about 0\.2.* units of the data.*origin=\"auto\""
    ) as caught:
        sets = Sets(x, [0, 200, 500])
    assert caught[0].filename == __file__
    assert np.abs(sets.points - x).max() > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (
            lambda origin: Sets(x, [0, 200, 500], origin=origin),
            lambda origin: Sets.from_list([x[:200], x[200:]], origin=origin),
        ):
            for origin in ("auto", [500_000, 4_500_000], x[0]):
                sets = make(origin)
                assert sets.origin.dtype == np.float64
                assert np.abs(sets.points + sets.origin - x).max() < 2e-5
                assert sets[:1].origin is sets.take([1]).origin is sets.origin
            assert make("auto").origin.tolist() == np.round(make("auto").origin, -1).tolist()
            assert np.all((x.min(axis=0) - 10 < make("auto").origin) & (make("auto").origin < x.max(axis=0) + 10))
    with pytest.warns(PrecisionWarning, match="origin that is nearer"):
        Sets(x, [0, 500], origin=[0, 1])


def test_the_origin_of_values_that_are_mostly_the_same_is_rounded_by_their_deviation():
    x = np.full((100, 1), 123_456.7)
    x[:40, 0] += np.linspace(-1000, 1000, 40)  # the deviation is about 400, the quartiles are the same
    assert Sets(x, [0, 100], origin="auto").origin.tolist() == [123_460.0]


def test_every_constructor_warns_at_the_callers_line():
    x = utm()
    for make in (
        lambda: Sets.from_list([x]),
        lambda: Sets.from_padded(x[None]),
        lambda: as_sets([x]),
        lambda: next(Sets.stream([x])),
    ):
        with pytest.warns(PrecisionWarning) as caught:
            make()
        assert caught[0].filename == __file__


def test_a_stray_value_does_not_hide_the_loss():
    x = utm()
    x[7] = 0
    with pytest.warns(PrecisionWarning):
        Sets(x, [0, 500])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sets = Sets(x, [0, 500], origin="auto")
    good = np.arange(500) != 7
    assert np.abs(sets.points + sets.origin - x)[good].max() < 2e-5


def test_the_sample_is_even_over_sets_too():
    x = np.arange(60_000.0).reshape(30_000, 2)
    whole = precision.even_sample([x], len(x))
    assert whole.shape[1] <= 4096
    assert len(set(np.diff(whole[0]))) == 1
    np.testing.assert_array_equal(precision.even_sample(np.split(x, 10_000), len(x)), whole)


def test_integers_far_from_zero():
    big = 2**40 + np.arange(100)[:, None] * [1, 3]
    with pytest.warns(PrecisionWarning, match="feature"):
        Sets(big, [0, 100])
    sets = Sets(big, [0, 100], origin="auto")
    np.testing.assert_array_equal(sets.points + sets.origin, big)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).standard_normal((1000, 3)),
        np.exp(3 * np.random.default_rng(0).standard_normal((1000, 3))),
        np.full((100, 2), 0.1),
        np.arange(200).reshape(100, 2) + 4_500_000,
        np.full((100, 1), 0.1) + 1e-17 * np.arange(100)[:, None],
        np.c_[np.random.default_rng(0).standard_normal(100), 0.1 + 1e-13 * np.arange(100)],
        np.c_[np.r_[np.zeros(99), 1.1]],
        utm().astype(np.float32),
        np.array([[500_000.01, 4_500_000.01]]),
    ],
    ids=["normal", "heavy tail", "constant", "exact integers", "noise", "flat", "rare", "float32", "one point"],
)
def test_no_false_alarm(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sets(x, [0, len(x)])
        Sets.from_list([x])


def test_values_too_small_for_float32():
    with pytest.warns(PrecisionWarning, match="multiply"):
        Sets(1e-42 * np.random.default_rng(0).standard_normal((100, 2)), [0, 100])


def test_origin_auto_of_special_data():
    assert Sets([[0.1, -3.0]] * 3, [0, 3], origin="auto").origin.tolist() == [0.1, -3.0]
    assert Sets(np.empty((0, 2)), [0], origin="auto").origin.tolist() == [0, 0]
    assert Sets(np.random.default_rng(0).standard_normal((9999, 1)), [0, 9999], origin="auto").origin.tolist() == [0]
    for value in (np.nan, np.inf):
        for x in (np.full((9, 1), value), np.array([[1.0], [value]])):
            with raises("not a finite number"):
                Sets(x, [0, len(x)], origin="auto")
    with raises("beyond 1e+15"):
        Sets(np.array([[1.7e308], [-1.7e308]]), [0, 2], origin="auto")


def test_with_origin_subtracts_nothing(sets):
    other = sets.with_origin([7, 8])
    assert other.points is sets.points
    assert other.origin.tolist() == [7, 8]
    assert other.with_origin(None).origin is None
    assert sets.origin is None


@pytest.mark.parametrize("origin", [[1], [1, 2, 3], [[1, 2]], [1, np.nan], "middle", 3, ["a", "b"]])
def test_bad_origin(origin):
    with raises("origin must be 2 finite numbers", '"auto"'):
        Sets(np.zeros((3, 2)), [0, 3], origin=origin)
    with raises("origin must be 2 finite numbers"):
        as_sets(np.zeros((1, 1, 2))).with_origin(origin)


def test_check_scale():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3)) * [1, 50, 1]
    sets = Sets(x, [0, 100, 400])
    with pytest.warns(ScaleWarning, match=r"feature 1 carries 99\.\d\d %.*standardise.*standard deviation") as caught:
        sets.check_scale()
    assert caught[0].filename == __file__
    with pytest.warns(ScaleWarning) as caught:
        sets.check_scale(stacklevel=1)
    assert caught[0].filename.endswith("sets.py")
    with pytest.warns(ScaleWarning, match=r"99\.99 %"):
        Sets(x * [0.0001, 1, 0], [0, 400]).check_scale()
    big = np.tile(x, (1000, 1)).astype(np.float32)
    with pytest.warns(ScaleWarning):
        Sets(big, [0, len(big)]).check_scale()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sets(x / x.std(axis=0), [0, 400]).check_scale()
        Sets(x[:99], [0, 99]).check_scale()
        Sets(x[:, 1:2], [0, 400]).check_scale()
        Sets(x * [0, 1, 0], [0, 400]).check_scale()
        Sets(x * 0, [0, 400]).check_scale()
        Sets(x, [0, 400])


# ---- loss inside of sets


def test_detail_lost_inside_of_sets_that_lie_far_apart():
    """A country of small sites: the spread over all of them is large, and float32 still takes what makes a site."""
    rng = np.random.default_rng(0)
    places = rng.uniform([-1e6, 4e6], [1e6, 6e6], (100, 2))
    sites = [place + rng.normal(scale=1.5, size=(30, 2)) for place in places]
    for origin in (None, "auto"):
        with pytest.warns(PrecisionWarning, match="of its spread"):
            Sets.from_list(sites, origin=origin)
    with pytest.warns(PrecisionWarning, match="a centre of its own"):
        Sets.from_list([1000 * site for site in sites], origin="auto")


def test_few_points_far_away_warn_too():
    with pytest.warns(PrecisionWarning, match="origin"):
        Sets.from_list([np.array([[500_000.01, 4_500_000.01], [500_000.22, 4_500_000.32], [500_000.5, 4_500_000.9]])])
