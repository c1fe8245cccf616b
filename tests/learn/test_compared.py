"""`slosh.compare` lists what learns from labels only, where it is asked to."""

from __future__ import annotations

import pytest
from labelled_shapes import shapes, small

import slosh
from slosh.embed import MeanPool, SlicedWasserstein
from slosh.errors import InputError
from slosh.neighbors.compare import LEARNED


def test_a_learned_embedding_is_a_row_fitted_with_labels():
    sets, labels = shapes(520)
    methods = {"sliced": SlicedWasserstein(4, 4), "learned": small(epochs=3)}
    found = slosh.compare(sets, labels, methods=methods, k=3)
    row = next(row for row in found.rows if row.method == "learned")
    assert row.error is None
    assert row.labels
    assert row.embedding.distance_kind == "learned"
    assert row.precision > 0.5
    assert row.embedding.n_samples_ < 520  # queries are not among those that it has learnt from


def test_on_request():
    sets, labels = shapes(30)
    methods = {"mean": MeanPool()}
    assert LEARNED not in [row.method for row in slosh.compare(sets, labels, methods=methods, k=2).rows]
    row = slosh.compare(sets, labels, methods=methods, k=2, learned=True).rows[-1]
    assert row.method == LEARNED
    assert "500 sets" in row.error
    with pytest.raises(InputError):
        slosh.compare(sets, labels, methods=methods, learned="yes")
