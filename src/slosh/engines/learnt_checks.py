"""Checks of what a stored specification says was learnt: it may be of other people."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.precision import MAX_COORDINATE
from ..embed import DistanceField, LocalShape, SlicedWasserstein, Whitened, Wrapped
from ..embed.base import DeviceTransformer, SetTransformer
from ..learn import LearnedEmbedding
from ..slices import Polynomial

MAX_ORDER = 1 << 10
"""The highest order of GeM, which takes time for each."""


def fresh(estimator: Any) -> Any:
    """Return another estimator of the same parameters; unlike scikit-learn's clone it leaves a fitted hash fitted."""
    return type(estimator)(**estimator.get_params(deep=False))


def own_copy(fitted: Any) -> Any:
    """Return what a user has fitted as a copy, which stays as it is when they fit theirs anew.

    What wraps the transformer of another library is not copied: that may not be possible.
    """
    return fitted if isinstance(fitted, Wrapped) else copy.deepcopy(fitted)


def device_of(embedding: SetTransformer) -> str | None:
    """Return the device that a fitted embedding was given, or what it wraps."""
    own: str | None = getattr(embedding, "device", None) if isinstance(embedding, DeviceTransformer) else None
    return own or next((found for each in _inner(embedding) if (found := device_of(each))), None)


def _inner(embedding: SetTransformer) -> list[SetTransformer]:
    """Return the fitted embeddings that one wraps."""
    if isinstance(embedding, LocalShape):
        return [embedding.embedding_]
    if isinstance(embedding, LearnedEmbedding):
        return embedding.views_
    return embedding.embeddings_ if isinstance(embedding, Whitened) else []


def order_of(embedding: SetTransformer) -> Any:
    """Return the order of GeM, also inside of another embedding; 1 for all others."""
    return max([getattr(embedding, "p", 1), *map(order_of, _inner(embedding))])


def check_learnt(embedding: SetTransformer, dim: int) -> None:
    """Refuse a stored embedding whose parts could not have been learnt together, in d dimensions."""
    if embedding.n_features_in_ != dim:
        raise ValueError("an embedding of another dimension")
    if order_of(embedding) > MAX_ORDER:
        raise ValueError("an order that nobody can mean")
    if isinstance(embedding, SlicedWasserstein):
        _check_slicer(embedding, dim)
    if isinstance(embedding, DistanceField):
        _check_anchors(embedding.anchors_, dim)
    if isinstance(embedding, LocalShape):
        embedding.check_state()
        check_learnt(embedding.embedding_, embedding.embedding_.n_features_in_)
    if isinstance(embedding, Whitened):
        embedding.check_state()
        for view in embedding.embeddings_ + _fitted(embedding.embedding):
            check_learnt(view, dim)
    if isinstance(embedding, LearnedEmbedding):
        embedding.check_state()
        for view in embedding.views_:
            check_learnt(view, view.n_features_in_)
        for view in _fitted(embedding.embedding):
            check_learnt(view, dim)


def _fitted(given: Any) -> list[SetTransformer]:
    """Return those of the embeddings that were given which were fitted already."""
    listed = given if isinstance(given, list) else [given]
    return [view for view in listed if isinstance(view, SetTransformer) and hasattr(view, "n_features_in_")]


def _check_slicer(embedding: SlicedWasserstein, dim: int) -> None:
    slicer = embedding.slicer_
    if isinstance(slicer, Polynomial):
        fresh(slicer).fit(dim, 1, 0)  # refuses what has too many terms
    n_slices, directions = embedding.reference_.shape[0], slicer.directions_
    if embedding.n_slices_ != n_slices or slicer.n_slices_ != n_slices:
        raise ValueError("another number of slices")
    if directions is not None and (directions.shape != (n_slices, dim) or directions.dtype != np.float32):
        raise ValueError("slices of another dimension")
    embedding.slices_ = slicer if directions is None else directions  # stored twice, and meant once


def _check_anchors(anchors: NDArray[Any], dim: int) -> None:
    if anchors.ndim != 2 or anchors.shape[1] != dim or anchors.dtype != np.float32:
        raise ValueError("anchors of another dimension")
    if not (np.abs(anchors) <= MAX_COORDINATE).all():
        raise ValueError("anchors that are not numbers, or too large")
