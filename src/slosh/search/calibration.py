"""How much to look at for a recall: measured on the collection itself, to a lower confidence bound.

Stored vectors are the queries, none of them its own neighbour. Come in: the part of its true neighbours that each query
found. Goes out: a recall that may be promised.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Calibration:
    """What was measured, and what it takes.

    k, recall : what was asked for.
    reach : how many spreads beyond its centroid a list is thought to extend; those that reach the neighbours found so
        far are scanned.
    depth : vectors that are compared, at most; 0 stands for an exact search.
    measured : the mean recall of the sample.
    promised : its one-sided 95% lower confidence bound; at least `recall`.
    n_queries : size of the sample.
    n_rows : size of the collection then.
    smallest : with the same work, cut to fewer neighbours, the bound is at least `recall` for every number of them from
        this on, measured alike; 0 is k.
    """

    k: int
    recall: float
    reach: float
    depth: int
    measured: float
    promised: float
    n_queries: int
    n_rows: int
    smallest: int = 0

    @classmethod
    def of(cls, about: dict[str, Any]) -> Calibration:
        """What `as_dict` gave; ValueError for anything else."""
        made = cls(**about)
        whole = (made.k, made.depth, made.n_queries, made.n_rows, made.smallest)
        if any(type(x) is not int or x < 0 for x in whole) or not made.k:
            raise ValueError(f"a calibration counts by {whole!r:.100}")
        parts = (made.recall, made.reach, made.measured, made.promised)
        if any(not isinstance(x, int | float) or not math.isfinite(x) for x in parts):
            raise ValueError(f"a calibration has {parts!r:.100}")
        return made

    def covers(self, k: int, recall: float, n_rows: int) -> bool:
        """Whether it may stand for this question, in a collection of this size."""
        return (self.smallest or self.k) <= k <= self.k and self.recall == recall and self.holds(n_rows)

    def holds(self, n_rows: int) -> bool:
        """Until the collection has doubled or halved."""
        return self.n_rows / 2 <= n_rows <= self.n_rows * 2

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def lower_bound(recalls: NDArray[np.float64]) -> float:
    """The one-sided 95% lower confidence bound of a mean recall, by Student's t.

    As if one more query had found nothing: a sample in which every query finds all is no proof of recall 1.

    >>> round(lower_bound(np.ones(999)), 4)
    0.9974
    """
    with_failure = np.append(recalls, 0.0)
    n = len(with_failure)
    spread = with_failure.std(ddof=1) / np.sqrt(n)
    return float(with_failure.mean() - student.ppf(CONFIDENCE, n - 1) * spread)


def found_part(found: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each query, which part of its true neighbours (n, k) is among those found (n, k)."""
    query = np.arange(len(truth))[:, None] * (int(max(found.max(initial=0), truth.max(initial=0))) + 2)
    return np.asarray(np.isin(truth + query, np.where(found >= 0, found + query, -1)).mean(axis=1))
