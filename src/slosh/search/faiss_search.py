"""FAISS behind the interface of slosh: any of its indexes that a factory string names, inside an index of sets, too.

FAISS names candidates; slosh keeps the vectors, compares those of the candidates, and says what recall that has.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from .base import Search, checked_recall, needed_recall
from .calibration import Calibration
from .columns import Specs
from .faiss_factory import parse_factory
from .faiss_index import import_faiss
from .faiss_state import FaissState
from .state import Stored
from .store import ShortVectors


class FaissSearch(Search):
    """Finds candidates by a FAISS index and compares their vectors; approximate with a stated recall, or exact.

    It needs the package faiss-cpu: ``pip install "slosh[faiss]"``. The FAISS index is trained at the first search, once
    there are enough rows (1024, or eight for each list), and again when the collection has grown by a factor of 4;
    before that every search is exact. Rows that are added later are compared one by one until they are one in sixteen,
    and then a larger FAISS index is made, without training. How many lists to probe, how many links to follow and how
    many candidates to compare is measured on the collection (`calibrate`). With ``recall=1.0``, in a range search, and
    with a filter that leaves few rows, the vectors are scanned, without FAISS.

    Distances are those of the vectors rounded to 16 bits, queries too, as for `LadderSearch`: they do not depend on the
    codes of FAISS.

    Parameters
    ----------
    factory : FAISS's name of an index, as "HNSW32", "IVF1024,SQ8", "IVF256,PQ32x4fs" or "PCA32,IVF512,Flat". None
        chooses by the number of rows and of numbers: lists with four bits for every two numbers.
    recall : what is promised if a search does not say; 1.0 is exact.
    random_state : seed of what is drawn for the training.
    n_jobs : threads, over the queries; FAISS itself uses one. The result does not depend on it. A graph is built by one
        thread.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import FaissSearch
    >>> vectors = np.random.default_rng(0).normal(size=(5000, 32)) * 0.9 ** np.arange(32)
    >>> search = FaissSearch("IVF64,SQ8")
    >>> rows = search.add(vectors)
    >>> search.search(vectors[:2], k=3, recall=0.9).rows[:, 0]
    array([0, 1])

    References
    ----------
    Douze et al.: The Faiss library (2024).
    """

    precision = 16
    """Bits of a stored number."""

    def __init__(
        self,
        factory: str | None = None,
        *,
        recall: float = 0.95,
        random_state: Any = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.factory = factory
        self.recall = recall
        self.random_state = random_state
        self.n_jobs = n_jobs

    def check_params(self) -> None:
        super().check_params()
        needed_recall(self.recall)
        if self.factory is not None:
            parse_factory(self.factory)
        import_faiss()

    def check_dim(self, dim: int) -> None:
        if self.factory is not None:
            parse_factory(self.factory).check_dim(dim)

    def column_names(self, dim: int) -> Specs:
        return ShortVectors.column_names(dim)

    def first_state(self, stored: Stored) -> FaissState:
        self.check_dim(stored.dim)
        return FaissState(self, stored, ShortVectors.start(stored))

    def train(self) -> None:
        """Learn from the rows that are there, and make the FAISS index anew. Done by itself once.

        As long as there are too few rows for the factory, nothing is learnt, and searches stay exact.
        """
        if len(self) < 2:
            raise InputError("train needs two rows or more", "add vectors first")
        self._train_if(lambda state: True, lambda state: state.train())

    def calibrate(self, k: int = 10, recall: float | None = None, queries: Any = None) -> Calibration:
        """Measure what it takes to find this fraction of the k nearest, and keep it. See `LadderSearch.calibrate`.

        In what is returned `reach` is the number of lists probed (nprobe) or of candidates that the graph keeps
        (efSearch), and `depth` the number of candidates whose vectors are compared.
        """
        asked = None if queries is None else self._checked_queries(queries)
        return self._calibrate(k, checked_recall(recall) or self.recall, asked)
