"""What an embedding learns from data, learnt anew from stored sets: the index gets another specification."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.sets import Sets
from ..engines.base import Engine, View
from ..errors import InputError
from ..where import parse_metadata
from .changes import place_of

logger = logging.getLogger(__name__)

SAMPLED_SETS = 20_000
"""Stored sets that are learnt from, at most."""


def retrain(engine: Engine, sample: Any, label: str | None, random_state: int) -> None:
    """Fit the embedding to other sets, and embed all stored sets by it as one change."""
    started = time.perf_counter()
    with engine.view() as view:
        spec = view.spec
        if not spec.embedding.learns:
            problem = f"{spec.embedding!r:.200} learns nothing from data"
            raise InputError(problem, "create the index with an embedding that does, e.g. Whitened()")
        if sample is None:
            sets, labels = _stored(view, label, random_state)
        elif label is not None:
            raise InputError("label names a field of stored sets", "leave sample or label out", argument="label")
        else:
            sets, labels = spec.prepare(spec.sets(sample)), None
            if not len(sets):
                raise InputError("sample is empty", "give some sets, or leave it out", argument="sample")
        new = spec.retrained(sets, labels)
    engine.compact(new)
    logger.info("%s: retrained on %d sets in %.3f s", place_of(engine), len(sets), time.perf_counter() - started)


def _stored(view: View, label: str | None, random_state: int) -> tuple[Sets, NDArray[Any] | None]:
    """Return stored sets as they are embedded, and the values of a field of their metadata, None where it is not."""
    keys = view.select()
    if not len(keys):
        raise InputError("there are no sets to learn from", "add some first, or give sample=")
    if len(keys) > SAMPLED_SETS:
        keys = np.sort(np.random.RandomState(random_state).choice(keys, SAMPLED_SETS, replace=False))
    if label is None:
        return view.prepared(keys), None
    described = view.describe(keys)
    labels = np.empty(len(keys), object)
    labels[:] = [parse_metadata(described[key].metadata).get(label) for key in keys.tolist()]
    if all(value is None for value in labels):
        raise InputError(f"no set has {label!r} in its metadata", "give a field that sets have", argument="label")
    return view.prepared(keys), labels
