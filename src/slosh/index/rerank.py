"""Candidates in the order of an exact distance between sets, computed from their points."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .. import rank
from ..checkpoints import checkpoint
from ..data.checks import as_array
from ..data.sets import Sets
from ..embed.base import SetTransformer
from ..engines.base import Candidates, View
from ..errors import InputError, UnsupportedError
from .certify import SlicedDistances

Distance = Callable[[Sets, Sets], ArrayLike]

DISTANCES: dict[str, Distance] = {
    "wasserstein": rank.wasserstein,
    "chamfer": rank.chamfer,
    "hausdorff": rank.hausdorff,
    "maxsim": rank.maxsim,
}


class Measure(NamedTuple):
    """A distance to re-rank by: its name, and the function; None is the sliced distance."""

    kind: str
    function: Distance | None


def measure_of(rerank: Any, embedding: SetTransformer, share: float | None = None) -> Measure | None:
    """Return what `rerank=` stands for; `share` is the mass that partial transport moves, None for whole sets."""
    if rerank is None:
        return None
    if callable(rerank):
        return Measure(str(getattr(rerank, "__name__", "own")), rerank)
    if rerank in ("sliced", "sliced_wasserstein"):
        if embedding.sliced_view is None:
            raise UnsupportedError(
                "rerank='sliced' takes its slices from SlicedWasserstein",
                "give another distance, or index.retrain(embedding=SlicedWasserstein())",
                argument="rerank",
                feature_name="rerank",
            )
        return Measure("sliced", None)
    if isinstance(rerank, str) and rerank in DISTANCES:
        return Measure(rerank, DISTANCES[rerank])
    if isinstance(rerank, str) and rerank == "partial_wasserstein":
        if share is None:
            problem = "rerank='partial_wasserstein' moves a share of the mass, and whole sets are compared"
            raise InputError(problem, "give match='part' and coverage= too", argument="rerank")
        return Measure(rerank, partial(rank.partial_wasserstein, mass=share))
    names = ", ".join(map(repr, DISTANCES))
    raise InputError(f"rerank={rerank!r:.60}", f"give 'sliced', {names}, or a function", argument="rerank")


def _checked(given: Any, n: int) -> Any:
    """Refuse what a function of the user's own returned unless it is a distance for each of n candidates."""
    if given.shape != (n,) or given.dtype.kind not in "fiu":
        remedy = f"return {n} distances, one for each candidate"
        raise InputError(f"rerank returned {given.dtype} of shape {given.shape}", remedy, argument="rerank")
    if (bad := np.flatnonzero(np.isnan(given))).size:
        problem = f"rerank returned nan for candidate {bad[0]} of {n}"
        raise InputError(problem, "return a number, inf for a candidate that is to come last", argument="rerank")
    return given


def rerank(view: View, queries: Sets, near: Candidates, measure: Measure) -> Candidates:
    """Order the candidates of each query by a measure; nothing is promised of the result."""
    which = near.query
    if measure.function is None:
        distances = SlicedDistances(view, queries).compute(which, near.keys)
    else:
        distances = np.empty(len(near.keys))
        for i in range(len(queries)):
            checkpoint()
            part = slice(near.offsets[i], near.offsets[i + 1])
            candidates = view.prepared(near.keys[part])
            given = as_array(measure.function(queries[i : i + 1], candidates), "what rerank returned")
            distances[part] = _checked(given, len(candidates))
    order = np.lexsort((distances, which))
    return near._replace(
        keys=near.keys[order],
        distances=distances[order],
        kind=measure.kind,
        promise=None,
        full_distances=np.diff(near.offsets),
    )
