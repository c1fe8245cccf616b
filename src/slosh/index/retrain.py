"""What an embedding learns from data, learnt anew from stored sets: the index gets another specification."""

from __future__ import annotations

import logging
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import optional
from ..data.progress import ProgressBar
from ..data.sets import Sets
from ..embed.part_field import checked_parts
from ..embed.whitened import FEWEST_SETS
from ..engines.base import Engine, View
from ..engines.spec import IndexSpec, is_fitted
from ..errors import InputError, user_level
from ..search import HammingSearch
from ..where import parse_metadata
from . import part_trial
from .changes import place_of

logger = logging.getLogger(__name__)

SAMPLED_SETS = 20_000
"""Stored sets that are learnt from, at most."""
SAMPLED_NUMBERS = 1 << 26
"""Their coordinates, at most (256 MB)."""
LOOKED_AT, LOOKED_AT_POINTS = 256, 1 << 18
"""Stored sets, and their elements, that are looked at to see whether they are like those that were learnt from."""
NOVEL = 0.15
"""The part of them that may be unlike before there is advice; .05 is what to expect (docs/whitening.md)."""
LONGER_PARTS = 0.02
"""The part of the last sets that may be too long for the candidates of part search before there is advice."""
FEW_LEARNT_FROM, NOVEL_TO_FEW = 100, 0.35
"""With fewer sets learnt from, which do not show all that is usual, more may be unlike."""


def retrain(engine: Engine, sample: Any, embedding: Any, label: str | None, random_state: int) -> None:
    """Fit the embedding, or another one, to other sets, and embed all stored sets by it as one change."""
    started = time.perf_counter()
    with engine.view() as view:
        spec = view.spec
        given = None if embedding is None else spec.checked_embedding(embedding)
        if given is None and not spec.embedding.learns and spec.parts is None:
            problem = f"{spec.embedding!r:.200} learns nothing from data"
            raise InputError(problem, "give another embedding, e.g. embedding=Whitened()", argument="embedding")
        if sample is not None and label is not None:
            raise InputError("label names a field of stored sets", "leave sample or label out", argument="label")
        if given is not None and is_fitted(given) and (sample is not None or label is not None):
            problem, remedy = (
                "embedding is fitted and stays as it is",
                "give one that is not, or leave sample and label out",
            )
            raise InputError(problem, remedy, argument="embedding")
        if label is not None and not (chosen := spec.embedding if given is None else given).takes_labels:
            problem = f"{type(chosen).__name__} does not learn from labels"
            remedy = "give one that does, e.g. embedding=Whitened(...) around it, or leave label out"
            raise InputError(problem, remedy, argument="label")
        learning = spec.embedding if given is None else given
        if learning.needs_labels and label is None and (given is None or not is_fitted(given)):
            problem = f"{type(learning).__name__} learns from labels"
            remedy = "give label=, the field of the metadata that holds them, or an embedding that is fitted"
            raise InputError(problem, remedy, argument="label")
        if given is None and label is None and getattr(spec.embedding, "n_labelled_", False):
            text = "the embedding had learnt from labels, and learns without them now: to learn from them, give label="
            warnings.warn(text, UserWarning, stacklevel=user_level())
        sets, labels = _prepared(spec, sample), None
        learns = given is None or not is_fitted(given) or isinstance(spec.search, HammingSearch)
        if sets is None and learns and (len(view) or given is None or label is not None):
            sets, labels = _stored(view, label, random_state)
        with ProgressBar(unit="step", desc="learn"):
            new = spec.retrained(sets, labels, given)
    engine.compact(new)
    with optional():
        part_trial.measure(engine)
    n, seconds = 0 if sets is None else len(sets), time.perf_counter() - started
    logger.info("%s: retrained on %d sets in %.3f s", place_of(engine), n, seconds)


def enable_parts(engine: Engine, parts: Any, sample: Any, random_state: int) -> None:
    """Give an index what part search needs, learnt from stored sets or a sample, of all sets as one change."""
    field = checked_parts(parts)
    if field is None:
        raise InputError(f"parts={parts!r:.60}", "give True, or a slosh.embed.PartField", argument="parts")
    started = time.perf_counter()
    with engine.view() as view:
        spec = view.spec
        if spec.parts is not None and parts is True and sample is None:
            return
        sets = _prepared(spec, sample)
        if sets is None and not is_fitted(field):
            sets, _ = _stored(view, None, random_state)
        with ProgressBar(unit="step", desc="learn"):
            new = spec.with_parts(field, sets)
    engine.compact(new)
    with optional():
        part_trial.measure(engine)
    logger.info("%s: enabled part search in %.3f s", place_of(engine), time.perf_counter() - started)


def _prepared(spec: IndexSpec, sample: Any) -> Sets | None:
    """Return the sample that was given, as sets are embedded."""
    if sample is None:
        return None
    sets = spec.prepare(spec.sets(sample))
    if not len(sets):
        raise InputError("sample is empty", "give some sets, or leave it out", argument="sample")
    return sets


def advice(view: View) -> str | None:
    """Return why the embedding should be learnt anew, as a sentence; None if there is no reason."""
    embedding = view.spec.embedding
    n_learnt_from = getattr(embedding, "n_samples_", FEW_LEARNT_FROM)
    if not embedding.has_learnt:
        if n_learnt_from >= FEWEST_SETS:
            same = f"all sets to learn from were the same, or copies of fewer than {FEWEST_SETS}"
            return f"nothing is learnt, as {same}: call retrain() when there are others"
        return "nothing is learnt yet, as there were too few sets to learn from: call retrain() when there are more"
    if longer := _longer_parts(view):
        return longer
    if not embedding.learns or not len(view):
        return None
    keys, unlike = view.select(), 0.0
    evenly = keys[np.linspace(0, len(keys) - 1, min(len(keys), LOOKED_AT)).astype(np.int64)]
    for some in (keys[-LOOKED_AT:][::-1], evenly):  # the last ones, and all
        few = some[np.cumsum(view.prepared_sizes(some)) <= LOOKED_AT_POINTS]
        unlike = max(unlike, embedding.novelty(view.prepared(few)) or 0.0) if len(few) else unlike
    if unlike <= (NOVEL_TO_FEW if n_learnt_from < FEW_LEARNT_FROM else NOVEL):
        return None
    far = f"{unlike:.0%} of the sets looked at are farther from those that were learnt from"
    return f"{far} than 95% of those are from each other: call retrain()"


def _longer_parts(view: View) -> str | None:
    """Return advice where sets are longer than any that part search has learnt from, as candidates may miss them."""
    field = view.spec.parts
    if field is None or not len(view):
        return None
    keys = view.select()[-LOOKED_AT:]
    few = keys[np.cumsum(view.prepared_sizes(keys)) <= LOOKED_AT_POINTS]
    longer = field.novelty(view.prepared(few)) if len(few) else None
    if not longer or longer <= LONGER_PARTS:
        return None
    return f"{longer:.0%} of the last sets lie farther off than any that part search has learnt from: call retrain()"


def _stored(view: View, label: str | None, random_state: int) -> tuple[Sets, NDArray[Any] | None]:
    """Return stored sets as they are embedded, and the values of a field of their metadata, None where it is not."""
    keys = view.select()
    if not len(keys):
        raise InputError("there are no sets to learn from", "add some first, or give sample=")
    drawn = np.random.RandomState(random_state).permutation(keys)[:SAMPLED_SETS]
    n_numbers = np.cumsum(view.prepared_sizes(drawn)) * view.spec.dim
    keys = np.sort(drawn[: max(1, int(np.searchsorted(n_numbers, SAMPLED_NUMBERS, side="right")))])
    if label is None:
        return view.prepared(keys), None
    labels = np.empty(len(keys), object)
    labels[:] = [parse_metadata(each.metadata).get(label) for each in view.describe(keys)]
    _check_labels(labels, label)
    return view.prepared(keys), labels


def _check_labels(labels: NDArray[Any], label: str) -> None:
    """Refuse values that tell no classes apart, before anything is computed."""
    if all(value is None for value in labels):
        raise InputError(f"no set has {label!r} in its metadata", "give a field that sets have", argument="label")
    if (wrong := next((value for value in labels if isinstance(value, list | dict)), None)) is not None:
        problem = f"{label!r} holds {wrong!r:.60}"
        raise InputError(problem, "give a field of texts or numbers", argument="label")
    counts = Counter(value for value in labels if value is not None)
    if len(counts) == 1:
        problem = f"all sets that have {label!r} have the same there, {next(iter(counts))!r:.60}"
        raise InputError(problem, "give a field that tells sets apart", argument="label")
    if max(counts.values()) == 1:
        raise InputError(
            f"no two sets have the same {label!r}", "give a field whose values sets share", argument="label"
        )
