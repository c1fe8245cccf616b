"""What labels add to whitening: labels into classes, directions against scikit-learn's discriminant, and weights."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf

from slosh.embed.discriminant import class_numbers, discriminants, joined_map, label_weight, shared_classes
from slosh.errors import InputError


@pytest.mark.parametrize(
    "labels",
    [
        np.array([7, 3, -1, 7, 3]),
        [7, 3, None, 7, 3],
        ["cat", "dog", None, "cat", "dog"],
        np.array(["cat", "dog", float("nan"), "cat", "dog"], object),
        (True, False, None, True, False),
        iter([7, 3, -1, 7, 3]),
        np.array([7.0, 3.0, None, 7.0, 3.0], object),
        np.array([7, 3, np.nan, 7, 3], np.float32),
        [7.0, 3.0, float("nan"), 7.0, 3.0],
        pd.Series([7, 3, None, 7, 3]),
        pd.Series([7, 3, None, 7, 3], dtype="Int64"),
        pd.Series(["cat", "dog", None, "cat", "dog"], dtype="string"),
        pd.Series([7, 3, None, 7, 3], dtype="category"),
        pd.Series(pd.to_datetime(["2020-01-07", "2020-01-03", None, "2020-01-07", "2020-01-03"])).dt.date,
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_labels_of_many_kinds(labels):
    assert class_numbers(labels, 5).tolist() == [0, 1, -1, 0, 1]


@pytest.mark.parametrize(
    "targets", [np.array([0.5, 1.0]), [1.0, 2.0], np.array([1, 2], np.float32), [0.5, float("nan")], [np.inf, np.nan]]
)
def test_numbers_of_a_regression_are_no_labels(targets):
    assert class_numbers(targets, 2) is None


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([-1, 1, -1, 1], [0, 1, 0, 1]),
        ([1, 1, None, -1], [0, 0, -1, 1]),
        ([-1.0, 1.0, float("nan"), 1.0], [0, 1, -1, 1]),
        ([-1, 1, 0, 1], [-1, 0, 1, 0]),
        ([np.int64(-1), "a", "b", "a"], [-1, 0, 1, 0]),
    ],
)
def test_minus_one_is_a_class_beside_one_other(labels, classes):
    assert class_numbers(labels, 4).tolist() == classes


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], "has 2 labels for 4 sets: give one for each set"),
        (np.zeros((4, 2), int), r"has the shape \(4, 2\) for 4 sets"),
        ([1, 1, 1, None], "one class only, 1: give labels of two classes or more"),
        ([-1, -1, None, -1], "None and -1 stand for sets without a label"),
        ([None] * 4, "no label at all"),
        ([1, 2, 3, 4], "no label twice"),
        ([[1], [2], [1], [2]], "cannot be a label"),
        ([np.ones(2), None, 1, 1], "cannot be a label"),
        ([float("nan")] * 4, "no label at all"),
        (3, "a label for each set"),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_labels_that_tell_nothing_are_refused(labels, message):
    with pytest.raises(InputError, match=message) as caught:
        class_numbers(labels, 4)
    assert caught.value.argument == "y"


def test_a_class_of_one_set_does_not_count():
    assert shared_classes(np.array([0, 1, -1, 2, 0, 2, 3])).tolist() == [0, -1, -1, 1, 0, 1, -1]
    assert shared_classes(np.array([-1, -1])).tolist() == [-1, -1]


def labelled(n=400, dim=12, n_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, n_classes, n)
    spread = np.arange(1, dim + 1) ** -0.5
    return (rng.normal(size=(n_classes, dim))[classes] + rng.normal(size=(n, dim))) * spread, classes


@pytest.mark.parametrize("n", [40, 400])
def test_directions_are_those_of_fisher(n):
    """With few sets, too, whose covariance is shrunk a good deal."""
    x, classes = labelled(n)
    found = discriminants(x, classes)
    means = np.stack([x[classes == k].mean(axis=0) for k in range(4)])
    within = ledoit_wolf(x - means[classes], assume_centered=True)[0] + 1e-4 * x.var(axis=0).mean() * np.eye(12)
    values, columns = np.linalg.eig(np.linalg.solve(within, np.cov(means[classes].T, bias=True)))
    expected = columns.real[:, np.argsort(values.real)[-3:]]
    assert found.shape == (12, 3)
    for ours, other in zip(found.T, expected.T, strict=True):
        assert abs(ours @ other) / np.linalg.norm(ours) / np.linalg.norm(other) > 1 - 1e-4
        assert ours @ within @ ours == pytest.approx(1, rel=0.15)


def test_classes_that_are_told_apart_by_nothing():
    """Sets of a class that are all the same, classes with the same mean, more classes than numbers: no NaN."""
    x, classes = labelled()
    means = np.stack([x[classes == k].mean(axis=0) for k in range(4)])
    assert np.isfinite(discriminants(means[classes], classes)).all()
    assert np.isfinite(discriminants(x - means[classes], classes)).all()
    assert discriminants(np.concatenate([x, x]), np.repeat([0, 1], 400)).shape[1] <= 1
    many, of = labelled(600, 5, 40)
    assert discriminants(many, of).shape == (5, 5)


def test_weights_grow_with_labels_and_classes():
    assert label_weight(304, 4, 4) == 0.25
    assert label_weight(10**6, 40, 39) == pytest.approx(39 / 43, rel=1e-3)
    assert label_weight(30, 2, 1) < 0.02


def test_the_joined_map_puts_both_side_by_side():
    """Distances are those of the principal directions of both parts together."""
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(300, 8)) - 0.5)[0] * np.arange(8, 0, -1)
    x -= x.mean(axis=0)
    x = x @ np.linalg.eigh(np.cov(x.T))[1][:, ::-1]
    variances, found = x.var(axis=0), rng.normal(size=(8, 2))
    mapped = x @ joined_map(variances, 6, found, 0.5, 5).T
    plain, apart = x[:, :6], x @ found
    both = [
        plain / np.sqrt(np.square(plain).sum(axis=1).mean()),
        apart / np.sqrt(2 * np.square(apart).sum(axis=1).mean()),
    ]
    both = np.concatenate(both, axis=1)
    both = (both - both.mean(axis=0)) @ np.linalg.eigh(np.cov(both.T))[1][:, ::-1][:, :5]
    np.testing.assert_allclose(cdist(mapped, mapped), cdist(both, both), atol=1e-9)
