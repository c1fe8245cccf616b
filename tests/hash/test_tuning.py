"""Tuning: the parameters of a p-stable hash that are predicted to be enough."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.hash import tuning
from slosh.search.tables import success


@pytest.fixture(scope="module")
def small():
    """Round clusters of different sizes, of which a few directions matter more than others."""
    rng = np.random.RandomState(3)
    scale = 0.9 ** np.arange(12)
    centres, spread = rng.normal(size=(20, 12)) * scale, rng.uniform(0.1, 0.5, size=(20, 1))
    which = rng.randint(20, size=3000)
    return (centres[which] + spread[which] * rng.normal(size=(3000, 12)) * scale).astype(np.float32)


def test_extrapolated_distances_of_a_square():
    """Uniform in a square, away from its border: the law is exact there."""
    rng = np.random.RandomState(0)
    queries = rng.uniform(0.1, 0.9, size=(400, 2)).astype(np.float32)
    points = rng.uniform(size=(16000, 2)).astype(np.float32)
    near = np.sort(tuning.distances(queries, points[:2000]), axis=1)[:, :16]
    truth = np.sort(tuning.distances(queries, points), axis=1)[:, :5]
    found = tuning.extrapolated(near, 2000, 16000, 5)
    np.testing.assert_allclose(np.log(found).mean(axis=0), np.log(truth).mean(axis=0), atol=0.1)


def test_tuning_for_a_radius(small):
    found = tuning.tune(small, R=0.5, c=3.0, success=0.9)
    assert found.recall >= 0.9
    assert found.far < tuning.tune(small, R=0.5, c=1.5, success=0.9).far < 0.9
    assert tuning.tune(small).far is None
    assert success(found.n_tables, found.n_hashes, found.n_probes, 0.5 / found.width, 2) > 0.88
    assert found.candidates < len(small)


def test_memory_bounds_the_tables(small):
    assert tuning.tune(small, memory=24).n_tables <= 2
    assert tuning.tune(small, memory=12).n_tables == 1


def test_a_tuning_reads_well(small):
    found = tuning.tune(small, k=5, recall=0.8)
    assert str(found).startswith(f"{found.n_tables} tables of {found.n_hashes} hashes, width ")
    assert "(target 0.8)" in str(found)
    assert f"of {len(small)} vectors compared" in str(found)
    assert tuning.tune(small, k=5, recall=0.8) == found
    assert found.fraction == found.candidates / len(small)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: tuning.tune(x[:1]), "tune needs two vectors or more"),
        (lambda x: tuning.tune(x, n=5), "n=5, but there are 3000 vectors"),
        (
            lambda x: tuning.tune(x, recall=1.0),
            r"recall=1.0 must be more than 0 and less than 1: for 1 use ExactSearch",
        ),
        (lambda x: tuning.tune(x, R=1.0, success=0), "success=0 must be more than 0"),
        (lambda x: tuning.tune(x, R=-1.0), "R=-1.0 must be a positive distance"),
        (lambda x: tuning.tune(x, R=1.0, c=1.0), "c=1.0 must be a number larger than 1"),
        (lambda x: tuning.tune(x, k=0), "k=0 must be a whole number, 1 or more"),
        (lambda x: tuning.tune(x, memory=4), "memory=4: one table takes 12 bytes a row"),
        (lambda x: tuning.tune(x * np.nan), "row 0 holds NaN"),
    ],
)
def test_tuning_errors(small, call, message):
    with pytest.raises(ValueError, match=message):
        call(small)
